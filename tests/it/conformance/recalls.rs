//! Facts that a run is told: found once for a message, and told again as long as the facts of its tenant are as they
//! were.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use reveille::agent::MemorySettings;
use reveille::base::metrics::Metrics;
use reveille::domain::memory::recall::RECALLED_CHARS;
use reveille::domain::memory::{Fact, FactChange, FactOrigin, NewFact};
use reveille::domain::task::TaskValidator;
use reveille::engine::maintenance::embedder::FactEmbedder;
use reveille::executor::host::StoreHost;
use reveille::executor::host::nearest::NearestFacts;
use reveille::ports::bus;
use reveille::ports::llm::{self, ModelSettings};
use reveille::ports::tool::ToolHost;
use reveille::store::{RecalledFacts, Store};
use serde_json::json;

use super::facts::{said, tenant};
use super::vectors::embed_all;
use super::world::{StoreHarness, only, open_postgres};
use crate::support::gate::Gate;
use crate::support::talking_model::TalkingModel;

on_both!(
    facts_that_another_instance_changes_are_told_to_the_next_run,
    use_of_facts_is_noted_on_each_day_though_they_are_known,
    endpoint_is_asked_once_for_a_text_that_comes_again,
    facts_that_are_found_without_an_endpoint_are_found_anew,
);

/// The host of the runs of an instance.
fn host(store: &Store) -> StoreHost {
    let validator = TaskValidator {
        channels: vec![],
        check: Arc::new(|_, _, _| {}),
        poll: Arc::new(|_, _, _, _| {}),
        seal: Arc::new(|_, _, _, _| Ok(())),
    };
    StoreHost::new(store.clone(), validator, bus::open(&bus::Settings::default(), store).expect("a bus"))
}

/// As [`host`], with a search by meaning; and the service that makes vectors of facts.
fn host_with_vectors(world: &StoreHarness, model: &TalkingModel) -> (StoreHost, FactEmbedder) {
    let embedder =
        ModelSettings { base_url: Some(model.url("v1")), model: "talking".into(), ..ModelSettings::default() };
    let models = BTreeMap::from([("embedder".to_owned(), embedder)]);
    let models = llm::Settings { models, ..llm::Settings::default() };
    let memory = MemorySettings { embedding_model: Some("embedder".into()), ..MemorySettings::default() };
    let (clock, compute) = (world.clock.clone(), world.store.computing().clone());
    let nearest = NearestFacts::configured(&memory, &models, clock, compute).expect("a search by meaning");
    let made = FactEmbedder::new(world.store.clone(), Some(nearest.embeddings.clone()), &Metrics::new());
    (host(&world.store).with_nearest(Some(nearest)), made.expect("an embedder"))
}

async fn note(store: &Store, text: &str, collection: Option<&str>) -> Fact {
    let new = NewFact { collection: collection.map(str::to_owned), ..said(text, FactOrigin::Person) };
    store.note_fact(&tenant("a"), &new, None).await.unwrap().fact
}

/// The facts that a run of tenant a with this message is told.
async fn told(host: &StoreHost, message: &str) -> Vec<String> {
    let facts = host.facts_for(&tenant("a"), message, RECALLED_CHARS).await.unwrap();
    let mut texts: Vec<String> = facts.into_iter().map(|fact| fact.text).collect();
    texts.sort();
    texts
}

async fn facts_that_another_instance_changes_are_told_to_the_next_run(world: &StoreHarness) {
    const MESSAGE: &str = "What about Vienna?";
    let (host, other) = (host(&world.store), world.other_instance().await);
    note(&other, "Name: Ann.", Some("profile")).await;
    for _ in 0..2 {
        assert_eq!(told(&host, MESSAGE).await, ["Name: Ann."]);
    }
    let home = note(&other, "Lives in Vienna.", None).await.id;
    for _ in 0..2 {
        assert_eq!(told(&host, MESSAGE).await, ["Lives in Vienna.", "Name: Ann."]);
    }
    assert_eq!(told(&host, "What about Graz?").await, ["Name: Ann."], "another message is another search");
    let moved = FactChange { text: Some("Lived in Vienna.".into()), collection: None };
    other.correct_fact(&only("a"), home, &moved, "token:t").await.unwrap();
    assert_eq!(told(&host, MESSAGE).await, ["Lived in Vienna.", "Name: Ann."]);
    other.delete_fact(&only("a"), home, "token:t", None).await.unwrap();
    assert_eq!(told(&host, MESSAGE).await, ["Name: Ann."]);
    other.delete_facts(&tenant("a"), "token:t").await.unwrap();
    assert_eq!(told(&host, MESSAGE).await, [""; 0]);
}

async fn use_of_facts_is_noted_on_each_day_though_they_are_known(world: &StoreHarness) {
    let host = host(&world.store);
    let id = note(&world.store, "Lives in Vienna.", None).await.id;
    let used = async || world.store.get_fact(&only("a"), id).await.unwrap().0.last_used_at;
    let noted = used().await;
    for (hours, is_noted) in [(0, false), (23, false), (1, true), (12, false), (12, true)] {
        world.pass(hours * 3_600);
        let before = used().await;
        assert_eq!(told(&host, "What about Vienna?").await, ["Lives in Vienna."]);
        assert_eq!(used().await, if is_noted { world.now() } else { before }, "{hours} hours later");
    }
    assert!(used().await > noted);
}

async fn endpoint_is_asked_once_for_a_text_that_comes_again(world: &StoreHarness) {
    const MESSAGE: &str = "Wash my car.";
    let model = TalkingModel::start().await;
    let (host, embedder) = host_with_vectors(world, &model);
    note(&world.store, "Drives an old automobile.", None).await;
    note(&world.store, "Owns a flat in Graz.", None).await;
    embed_all(&embedder).await;
    let before = model.embedded();
    for _ in 0..3 {
        assert_eq!(told(&host, MESSAGE).await, ["Drives an old automobile."]);
    }
    assert_eq!(model.embedded() - before, 1);
    // though other facts are found with it
    note(&world.store, "Repairs every bicycle.", None).await;
    assert_eq!(told(&host, MESSAGE).await, ["Drives an old automobile."], "it has no vector yet");
    embed_all(&embedder).await;
    let before = model.embedded();
    assert_eq!(told(&host, MESSAGE).await, ["Drives an old automobile.", "Repairs every bicycle."]);
    assert_eq!(model.embedded(), before, "the vector of the text is known");
    assert_eq!(told(&host, "Sell my flat.").await, ["Owns a flat in Graz."]);
    assert_eq!(model.embedded() - before, 1, "each text by itself");
}

async fn facts_that_are_found_without_an_endpoint_are_found_anew(world: &StoreHarness) {
    let model = TalkingModel::start().await;
    let (host, embedder) = host_with_vectors(world, &model);
    note(&world.store, "Drives an old automobile.", None).await;
    embed_all(&embedder).await;
    assert_eq!(told(&host, "Wash my car.").await, ["Drives an old automobile."]);
    model.stop_embedding();
    assert_eq!(told(&host, "Sell my car.").await, [""; 0], "none by its words");
    // the model is left alone now, and its known vectors are there all the same
    note(&world.store, "Sails a boat.", None).await;
    assert_eq!(told(&host, "Wash my car.").await, ["Drives an old automobile."]);
    assert_eq!(told(&host, "Sell my car.").await, [""; 0], "it is asked for nothing");
    model.resume_embedding();
    world.pass(30);
    assert_eq!(told(&host, "Sell my car.").await, ["Drives an old automobile."], "nothing was kept of that");
}

/// Each statement is sent by itself once it was prepared on its connection.
#[tokio::test]
async fn run_of_a_tenant_whose_facts_are_as_they_were_costs_one_read_and_another_message_few() {
    let world = StoreHarness::postgres().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let host = host(&store);
    for (text, collection) in [("Name: Ann.", Some("profile")), ("Lives in Vienna.", None)] {
        note(&store, text, collection).await;
    }
    let requests = async |message: &str| {
        let before = gate.requests();
        assert_eq!(told(&host, message).await, ["Lives in Vienna.", "Name: Ann."]);
        gate.requests() - before
    };
    let (mut known, mut others) = (Vec::new(), Vec::new());
    for round in 0..8 {
        others.push(requests(&format!("Vienna in round {round}?")).await);
        // the end of a transaction before may be counted with the first
        for _ in 0..2 {
            known.push(requests("What about Vienna?").await);
        }
    }
    assert_eq!(known.iter().min(), Some(&1), "{known:?}");
    // it begins and asks; its end may come behind it
    assert!((2..=3).contains(others.iter().min().expect("rounds")), "{others:?}");
    store.close().await;
    world.leave().await;
}

/// One of those who ask goes first, and the others go together at the latest once it is answered.
#[tokio::test]
async fn runs_that_ask_at_once_whether_facts_are_as_they_were_share_a_statement() {
    const RUNS: usize = 40;
    let world = StoreHarness::postgres().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    note(&store, "Lives in Vienna.", None).await;
    let (of_a, of_b) = (tenant("a"), tenant("b"));
    let mut counted = Vec::new();
    for _ in 0..4 {
        let before = gate.requests();
        let asked = (0..RUNS).map(|number| store.fact_revision(if number % 2 == 0 { &of_a } else { &of_b }));
        let revisions: Vec<i64> = join_all(asked).await.into_iter().map(|read| read.unwrap()).collect();
        assert!(revisions.iter().enumerate().all(|(number, read)| *read == [1, 0][number % 2]), "{revisions:?}");
        counted.push(gate.requests() - before);
    }
    assert!(counted.iter().min() <= Some(&3), "{counted:?}");
    store.close().await;
    world.leave().await;
}

/// The quotas of a tenant are asked for at the beginning of each run.
#[tokio::test]
async fn tenant_with_neither_facts_nor_overrides_costs_no_read_once_its_quotas_are_known() {
    let world = StoreHarness::postgres().await;
    world.task(json!({ "interval": "1h" })).await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let none = async || {
        let recalled = store.recall_facts(&tenant("a"), &[], None).await.unwrap();
        let overrides = store.approval_overrides_of_calls("a", None, None, &["mail"]).await.unwrap();
        recalled == RecalledFacts::default() && overrides.is_empty()
    };
    let mut counted = Vec::new();
    for _ in 0..4 {
        world.pass(5);
        store.quotas_of("a").await.unwrap();
        let before = gate.requests();
        assert!(none().await);
        counted.push(gate.requests() - before);
    }
    assert_eq!(counted.iter().min(), Some(&0), "{counted:?}");
    // what another instance has written is seen as soon as that is forgotten
    note(&world.store, "Lives in Vienna.", None).await;
    world.pass(5);
    assert!(!none().await);
    store.close().await;
    world.leave().await;
}
