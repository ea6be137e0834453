//! Vectors of facts: which facts have none, tenant by tenant, and what is kept of a text that changes meanwhile.

use std::time::Duration;

use reveille::base::metrics::Metrics;
use reveille::domain::halt::HaltKind;
use reveille::domain::memory::recall::terms;
use reveille::domain::memory::{FactChange, FactOrigin};
use reveille::domain::quota::Overrides;
use reveille::engine::maintenance::embedder::FactEmbedder;
use reveille::engine::service::{NextTick, ServiceLoop};
use reveille::ports::llm::ModelSettings;
use reveille::ports::llm::openai::embedding::Embeddings;
use reveille::store::{EmbeddingPlace, UnembeddedFact};
use tokio::time::timeout;
use uuid::Uuid;

use super::facts::{said, tenant};
use super::world::{StoreHarness, only};
use crate::support::slow_model::SlowModel;
use crate::support::talking_model::TalkingModel;

on_both!(
    facts_without_a_vector_are_claimed_tenant_by_tenant_until_they_have_one,
    text_that_changes_meanwhile_keeps_no_vector_of_the_former_one,
    vectors_are_read_page_by_page_each_tenant_s_own_and_go_with_their_facts,
    facts_of_a_full_tenant_get_their_vectors_once_there_is_room,
    facts_that_an_endpoint_fails_on_hold_up_no_other_tenant,
    stop_cuts_off_the_making_of_vectors_and_they_are_made_after_the_start,
);

const SPACE: &str = "5000000000000000";
/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

async fn note(world: &StoreHarness, of: &str, text: &str) -> Uuid {
    world.store.note_fact(&tenant(of), &said(text, FactOrigin::Person), None).await.unwrap().fact.id
}

/// The facts of the next tenant behind a place, and that place.
async fn claim(
    world: &StoreHarness,
    space: &str,
    after: &EmbeddingPlace,
) -> Option<(EmbeddingPlace, Vec<UnembeddedFact>)> {
    let place = world.store.next_unembedded(space, after).await.unwrap()?;
    let facts = world.store.claim_unembedded(&tenant(&place.1), &place.0, 2).await.unwrap();
    Some((place, facts))
}

async fn keep(
    world: &StoreHarness,
    claimed: &(EmbeddingPlace, Vec<UnembeddedFact>),
    space: &str,
    vector: Option<&[u8]>,
) {
    let (place, facts) = claimed;
    let vectors: Vec<_> = facts.iter().map(|(id, version, _)| (*id, *version, vector.map(<[u8]>::to_vec))).collect();
    world.store.keep_vectors(&tenant(&place.1), space, &vectors).await.unwrap();
}

async fn vectors(world: &StoreHarness, of: &str, space: &str, after: Option<Uuid>) -> Vec<(Uuid, Vec<u8>)> {
    let page = world.store.embedded_facts(&tenant(of), space, after).await.unwrap();
    let ids: Vec<Uuid> = page.iter().map(|fact| fact.fact_id).collect();
    let mut vectors = world.store.vectors_of(&tenant(of), space, &ids).await.unwrap();
    vectors.sort_by_key(|(id, ..)| *id);
    let versions = |(id, version, _): &(Uuid, i64, Vec<u8>)| (*id, Some(*version));
    assert!(vectors.iter().map(versions).eq(page.iter().map(|fact| (fact.fact_id, fact.version))));
    vectors.into_iter().map(|(id, _, vector)| (id, vector)).collect()
}

fn texts(claimed: &(EmbeddingPlace, Vec<UnembeddedFact>)) -> (&str, Vec<&str>) {
    (&claimed.0.1, claimed.1.iter().map(|(.., text)| text.as_str()).collect())
}

async fn facts_without_a_vector_are_claimed_tenant_by_tenant_until_they_have_one(world: &StoreHarness) {
    for text in ["One.", "Two.", "Three."] {
        note(world, "a", text).await;
    }
    note(world, "b", "Four.").await;
    let beginning = EmbeddingPlace::default();
    let first = claim(world, SPACE, &beginning).await.unwrap();
    assert_eq!(texts(&first), ("a", vec!["One.", "Two."]));
    let second = claim(world, SPACE, &first.0).await.unwrap();
    assert_eq!(texts(&second), ("b", vec!["Four."]));
    assert_eq!(claim(world, SPACE, &second.0).await, None);
    let rest = claim(world, SPACE, &beginning).await.unwrap();
    assert_eq!(texts(&rest), ("a", vec!["Three."]));
    assert_eq!(claim(world, SPACE, &beginning).await, None, "each is claimed");

    keep(world, &rest, SPACE, None).await;
    keep(world, &second, SPACE, Some(&[1; 8])).await;
    world.pass(121);
    let again = claim(world, SPACE, &beginning).await.unwrap();
    assert_eq!(texts(&again), ("a", vec!["One."]), "by itself, in case that it was its text");
    assert_eq!(texts(&claim(world, SPACE, &beginning).await.unwrap()), ("a", vec!["Two."]));
    assert_eq!(claim(world, SPACE, &beginning).await, None);
    world.pass(121);
    assert_eq!(claim(world, SPACE, &beginning).await, None, "and later than the time before");
    world.pass(121);
    for _ in 0..2 {
        let claimed = claim(world, SPACE, &beginning).await.unwrap();
        keep(world, &claimed, SPACE, Some(&[2; 8])).await;
    }
    assert_eq!(claim(world, SPACE, &beginning).await, None);

    // of another space they have none, whether it comes before or behind
    for other in ["4000000000000000", "6000000000000000"] {
        let of_a = claim(world, other, &beginning).await.unwrap();
        assert_eq!((of_a.0.clone(), of_a.1.len()), ((SPACE.to_owned(), "a".to_owned()), 2));
        let of_b = claim(world, other, &of_a.0).await.unwrap();
        assert_eq!(texts(&of_b), ("b", vec!["Four."]));
        assert_eq!(world.store.next_unembedded(other, &of_b.0).await.unwrap(), None);
        for claimed in [&of_a, &of_b] {
            keep(world, claimed, SPACE, Some(&[3; 8])).await;
        }
    }
}

async fn text_that_changes_meanwhile_keeps_no_vector_of_the_former_one(world: &StoreHarness) {
    let beginning = EmbeddingPlace::default();
    let id = note(world, "a", "Drives a car.").await;
    let claimed = claim(world, SPACE, &beginning).await.unwrap();
    let change = FactChange { text: Some("Rides a bicycle.".into()), collection: None };
    world.store.correct_fact(&only("a"), id, &change, "token:t").await.unwrap();
    keep(world, &claimed, SPACE, Some(&[1; 8])).await;
    assert_eq!(vectors(world, "a", SPACE, None).await, []);
    let anew = claim(world, SPACE, &beginning).await.unwrap();
    assert_eq!(anew.1, [(id, 2, "Rides a bicycle.".to_owned())]);
    keep(world, &anew, SPACE, Some(&[2; 8])).await;
    assert_eq!(vectors(world, "a", SPACE, None).await, [(id, vec![2; 8])]);
    let change = FactChange { text: Some("Walks.".into()), collection: None };
    world.store.correct_fact(&only("a"), id, &change, "token:t").await.unwrap();
    assert_eq!(vectors(world, "a", SPACE, None).await, []);
}

async fn vectors_are_read_page_by_page_each_tenant_s_own_and_go_with_their_facts(world: &StoreHarness) {
    let mut ids = Vec::new();
    for text in ["One.", "Two.", "Three."] {
        ids.push(note(world, "a", text).await);
    }
    note(world, "b", "Four.").await;
    for _ in 0..2 {
        let mut after = EmbeddingPlace::default();
        while let Some(claimed) = claim(world, SPACE, &after).await {
            keep(world, &claimed, SPACE, Some(&[1; 8])).await;
            after = claimed.0;
        }
    }
    let of = async |name: &str, space: &str, after: Option<Uuid>| {
        vectors(world, name, space, after).await.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(of("a", SPACE, None).await, ids);
    assert_eq!(of("a", SPACE, Some(ids[0])).await, ids[1..]);
    assert!(of("a", "6000000000000000", None).await.is_empty());
    assert!(world.store.vectors_of(&tenant("b"), SPACE, &ids).await.unwrap().is_empty());
    let page = world.store.embedded_facts(&tenant("a"), SPACE, None).await.unwrap();
    for (space, embedded) in [(Some(SPACE), &page[..]), (Some("6000000000000000"), &[]), (None, &[])] {
        let recalled = world.store.recall_facts(&tenant("a"), &[], space).await.unwrap();
        assert!(recalled.has_any && recalled.embedded == embedded, "{space:?}");
    }
    assert_eq!((page[0].origin.as_deref(), page[0].collection.as_deref()), (Some("person"), Some("")));
    let found = world.store.facts_by_ids(&tenant("a"), &[ids[2], ids[0], Uuid::from_u128(1)]).await.unwrap();
    assert_eq!(found.iter().map(|fact| fact.id).collect::<Vec<_>>(), [ids[2], ids[0]]);
    assert!(world.store.facts_by_ids(&tenant("b"), &ids).await.unwrap().is_empty());

    world.store.delete_fact(&only("a"), ids[0], "token:t", None).await.unwrap();
    assert_eq!(of("a", SPACE, None).await, ids[1..]);
    // a search by meaning that can't begin takes nothing of what is found by words along
    world.plant("alter table fact_vectors rename to renamed").await;
    let recalled = world.store.recall_facts(&tenant("a"), &terms("three"), Some(SPACE)).await.unwrap();
    assert_eq!((recalled.found.len(), recalled.embedded), (1, vec![]));
    world.plant("alter table renamed rename to fact_vectors").await;

    world.store.delete_facts(&tenant("a"), "token:t").await.unwrap();
    assert!(of("a", SPACE, None).await.is_empty());
    assert_eq!(of("b", SPACE, None).await.len(), 1);
}

async fn facts_of_a_full_tenant_get_their_vectors_once_there_is_room(world: &StoreHarness) {
    note(world, "a", "One.").await;
    note(world, "b", "Two.").await;
    while world.store.count_stored_bytes(100).await.unwrap() > 0 {}
    let limit = async |bytes: u64| {
        let overrides = Overrides { stored_bytes: Some(bytes), ..Overrides::default() };
        world.store.put_quotas("a", &overrides, "token:admin").await.unwrap();
    };
    limit(1).await;
    let beginning = EmbeddingPlace::default();
    let of_a = claim(world, SPACE, &beginning).await.unwrap();
    assert_eq!(texts(&of_a), ("a", vec![]));
    assert_eq!(texts(&claim(world, SPACE, &of_a.0).await.unwrap()), ("b", vec!["Two."]), "it keeps no other waiting");
    limit(1_000).await;
    assert_eq!(texts(&claim(world, SPACE, &beginning).await.unwrap()), ("a", vec!["One."]));
}

fn talking(model: &TalkingModel) -> ModelSettings {
    ModelSettings {
        provider: "openai".into(),
        base_url: Some(model.url("v1")),
        model: "talking".into(),
        ..ModelSettings::default()
    }
}

/// An embedder that asks the endpoint of these settings.
fn embedder_of(world: &StoreHarness, settings: &ModelSettings) -> (FactEmbedder, Embeddings) {
    let computing = world.store.computing().clone();
    let embeddings = Embeddings::new(settings, None, world.clock.clone(), computing).unwrap();
    let embedder = FactEmbedder::new(world.store.clone(), Some(embeddings.clone()), &Metrics::new());
    (embedder.unwrap(), embeddings)
}

/// Ticks until there is nothing to do for now.
pub async fn embed_all(embedder: &FactEmbedder) {
    for _ in 0..20 {
        if embedder.tick().await.unwrap() == NextTick::OnWake {
            return;
        }
    }
    panic!("the embedder does not come to an end");
}

async fn facts_that_an_endpoint_fails_on_hold_up_no_other_tenant(world: &StoreHarness) {
    let model = TalkingModel::start().await;
    let (embedder, embeddings) = embedder_of(world, &talking(&model));
    let made = async |of: &str| vectors(world, of, embeddings.space(), None).await.len();
    note(world, "a", "An unlucky text.").await;
    note(world, "b", "Has a flat.").await;
    embed_all(&embedder).await;
    assert_eq!((made("a").await, made("b").await), (0, 1));
    // the endpoint fails one tenant after the other
    world.pass(3600);
    note(world, "b", "Another unlucky text.").await;
    note(world, "c", "Has a car.").await;
    embed_all(&embedder).await;
    assert_eq!((made("b").await, made("c").await), (1, 0), "all leave it alone");
    world.pass(29);
    embed_all(&embedder).await;
    assert_eq!(made("c").await, 0);
    world.pass(1);
    embed_all(&embedder).await;
    assert_eq!(made("c").await, 1);
}

async fn stop_cuts_off_the_making_of_vectors_and_they_are_made_after_the_start(world: &StoreHarness) {
    let (slow, model) = (SlowModel::start().await, TalkingModel::start().await);
    let (waits, _) = embedder_of(world, &slow.settings());
    let (embedder, embeddings) = embedder_of(world, &talking(&model));
    let made = async || vectors(world, "a", embeddings.space(), None).await.len();
    note(world, "a", "Has a car.").await;
    let stopping = async {
        slow.until_waiting("Has a car.", 1).await;
        world.store.halt(HaltKind::Stopped, Some("a"), None, "token:t").await.unwrap();
        slow.until_waiting("Has a car.", 0).await;
    };
    let (ticked, ()) = tokio::join!(timeout(PATIENCE, waits.tick()), stopping);
    assert_eq!(ticked.expect("cut off in time").unwrap(), NextTick::Now);
    // its claim has run out, but its tenant is stopped
    world.pass(120);
    embed_all(&embedder).await;
    assert_eq!(made().await, 0);
    world.store.lift_halt(HaltKind::Stopped, Some("a"), "token:t").await.unwrap();
    embed_all(&embedder).await;
    assert_eq!(made().await, 1);
}
