//! Records of an instant, and of an event: found by their keys, for their tenant alone.

use chrono::TimeDelta;
use reveille::base::id::{Scope, Tenant};
use reveille::domain::event::Event;
use reveille::domain::run::{Run, RunState};
use reveille::store::SurroundingRuns;
use serde_json::json;

use super::matching;
use super::world::StoreHarness;

on_both!(
    records_around_an_instant_are_found_by_their_keys,
    records_of_an_event_are_found_by_its_key,
    event_tasks_of_a_tenant_are_read_page_by_page,
    event_is_found_by_its_id,
    event_is_found_by_its_id_behind_many_newer_ones,
    so_many_ids_are_looked_at_for_those_that_begin_so,
    events_are_found_by_the_beginnings_of_their_ids,
    newest_events_of_a_tenant_are_found_by_source_and_type,
);

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

async fn records_around_an_instant_are_found_by_their_keys(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m", "overlap": "allow"})).await;
    world.pass(60);
    world.fire().await;
    let [first] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    let around = async |scope: &Scope, seconds: i64| {
        let at = first.scheduled_for + TimeDelta::seconds(seconds);
        world.store.recorded_around(scope, task.id, at).await.unwrap()
    };
    let ids =
        |found: SurroundingRuns| [found.before, found.at, found.covering, found.after].map(|run| run.map(|run| run.id));
    let every = Scope::Every;
    assert_eq!(ids(around(&every, 0).await), [None, Some(first.id), None, None]);
    assert_eq!(ids(around(&every, 1).await), [Some(first.id), None, None, None]);
    assert_eq!(ids(around(&every, -1).await), [None, None, None, Some(first.id)]);
    // a record of many instants is found by each of them
    world.pass(20 * 60);
    world.fire().await;
    let range = around(&every, 120).await.covering.expect("a record that covers it");
    let missed = range.missed.expect("what it stands for");
    assert!(missed.from <= first.scheduled_for + TimeDelta::seconds(120) && missed.to > missed.from, "{missed:?}");
    let others = Scope::Only(tenant("b"));
    assert_eq!(around(&others, 0).await, SurroundingRuns::default());
}

async fn records_of_an_event_are_found_by_its_key(world: &StoreHarness) {
    let task = matching::task(world, json!({})).await;
    matching::publish(world, vec![matching::event("e1"), matching::event("e2")]).await;
    let of = async |scope: &Scope, id: &str| {
        world.store.runs_of_event(scope, &matching::event(id), &[task.id]).await.unwrap()
    };
    let found = of(&Scope::Every, "e1").await;
    let (run, state, reason) = &found[&task.id];
    assert_eq!(world.get_run(*run).await.event_ids, ["e1"]);
    assert_eq!((found.len(), *state, reason), (1, RunState::Queued, &None));
    assert!(of(&Scope::Every, "e3").await.is_empty());
    assert!(of(&Scope::Only(tenant("b")), "e1").await.is_empty());
    assert!(world.store.runs_of_event(&Scope::Every, &matching::event("e1"), &[]).await.unwrap().is_empty());
}

async fn event_tasks_of_a_tenant_are_read_page_by_page(world: &StoreHarness) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(matching::task(world, json!({})).await.id);
    }
    world.task(json!({"interval": "1h"})).await;
    expected.sort_unstable();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = world.store.event_tasks_of(&tenant("a"), after, 2).await.unwrap();
        after = page.last().map(|task| task.task_id);
        found.extend(page.into_iter().map(|task| task.task_id));
        if found.len() % 2 == 1 {
            break;
        }
    }
    assert_eq!(found, expected);
    assert_eq!(world.store.event_tasks_of(&tenant("b"), None, 9).await.unwrap(), []);
}

async fn event_is_found_by_its_id(world: &StoreHarness) {
    world.store.publish_events(&[matching::event("e1"), matching::event("e2")]).await.unwrap();
    let found = async |name: &str, source: Option<&str>, id: &str| {
        let body = world.store.find_event(&tenant(name), source, id).await.unwrap();
        body.map(|body| serde_json::from_str::<Event>(&body).unwrap())
    };
    assert_eq!(found("a", Some("shop"), "e1").await, Some(matching::event("e1")));
    assert_eq!(found("a", None, "e2").await, Some(matching::event("e2")));
    for (name, source, id) in
        [("b", None, "e1"), ("b", Some("shop"), "e1"), ("a", Some("mail"), "e1"), ("a", None, "x")]
    {
        assert_eq!(found(name, source, id).await, None);
    }
}

async fn event_is_found_by_its_id_behind_many_newer_ones(world: &StoreHarness) {
    let newer = (0..1_100).map(|n| matching::event(&format!("newer-{n}")));
    let events: Vec<Event> = std::iter::once(matching::event("e1")).chain(newer).collect();
    world.store.publish_events(&events).await.unwrap();
    assert!(world.store.find_event(&tenant("a"), None, "e1").await.unwrap().is_some());
    for source in [None, Some("shop")] {
        assert_eq!(world.store.event_ids(&tenant("a"), source, "e").await.unwrap(), ["e1"]);
    }
    // of several with one id, the newest
    let again = matching::event_with("e1", json!({ "source": "mail" }));
    world.store.publish_events(std::slice::from_ref(&again)).await.unwrap();
    let found = world.store.find_event(&tenant("a"), None, "e1").await.unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Event>(&found).unwrap(), again);
    assert_eq!(world.store.event_ids(&tenant("a"), None, "e").await.unwrap(), ["e1"]);
}

async fn so_many_ids_are_looked_at_for_those_that_begin_so(world: &StoreHarness) {
    // the bound is `IDS_LOOKED_AT`
    let of_mail = |n: usize| matching::event_with(&format!("x{n:04}"), json!({ "source": "mail" }));
    let events: Vec<Event> = (0..999).map(of_mail).chain([matching::event("x9999")]).collect();
    world.store.publish_events(&events).await.unwrap();
    let found = async || world.store.event_ids(&tenant("a"), Some("shop"), "x").await.unwrap();
    assert_eq!(found().await, ["x9999"]);
    world.store.publish_events(&[of_mail(999)]).await.unwrap();
    assert_eq!(found().await, [""; 0]);
    assert_eq!(world.store.event_ids(&tenant("a"), Some("shop"), "x99").await.unwrap(), ["x9999"]);
}

async fn events_are_found_by_the_beginnings_of_their_ids(world: &StoreHarness) {
    let ids = ["order-1", "order-2", "mail_%"].map(matching::event);
    world.store.publish_events(&ids).await.unwrap();
    let found = async |name: &str, source: Option<&str>, beginning: &str| {
        let mut ids = world.store.event_ids(&tenant(name), source, beginning).await.unwrap();
        ids.sort();
        ids
    };
    assert_eq!(found("a", None, "order-2").await, ["order-2"]);
    assert_eq!(found("a", Some("shop"), "order").await, ["order-1", "order-2"]);
    assert_eq!(found("a", None, "m").await, ["mail_%"]);
    for (name, source, beginning) in [("a", None, "%"), ("a", Some("mail"), "order"), ("b", None, "order")] {
        assert!(found(name, source, beginning).await.is_empty(), "{beginning}");
    }
    if !world.is_postgres() {
        // Postgres keeps events as JSON, and has none that is not
        world.plant("update events set body = replace(body, '{', 'x') where body like '%order-1%'").await;
        assert_eq!(found("a", None, "order").await, ["order-2"]);
    }
}

async fn newest_events_of_a_tenant_are_found_by_source_and_type(world: &StoreHarness) {
    let like = |name: &str, id: &str, source: &str, kind: &str| Event {
        tenant: tenant(name),
        source: source.into(),
        kind: kind.into(),
        ..matching::event(id)
    };
    let events = [
        like("a", "1", "mail", "mail.new"),
        like("a", "2", "mail", "mail.gone"),
        like("b", "3", "mail", "mail.new"),
        like("a", "4", "mail_2", "mail.new"),
        like("a", "5", "shop", "order"),
    ];
    world.store.publish_events(&events).await.unwrap();
    let found = async |name: &str, source: Option<&str>, kind: Option<&str>, among: i64, limit: i64| {
        let found = world.store.newest_events(&tenant(name), source, kind, among, limit).await.unwrap();
        found.iter().map(|body| serde_json::from_str::<Event>(body).unwrap().id).collect::<String>()
    };
    assert_eq!(found("a", None, None, 9, 9).await, "5421");
    assert_eq!(found("a", Some("mail"), None, 9, 9).await, "21");
    assert_eq!(found("a", Some("mail*"), None, 9, 9).await, "421");
    assert_eq!(found("a", Some("mail*"), Some("mail.new"), 9, 9).await, "41");
    assert_eq!(found("a", Some("*"), Some("mail.*"), 9, 9).await, "421");
    assert_eq!(found("a", Some("%"), None, 9, 9).await, "");
    assert_eq!(found("b", None, None, 9, 9).await, "3");
    assert_eq!(found("c", None, None, 9, 9).await, "");
    assert_eq!(found("a", None, Some("mail.new"), 9, 1).await, "4");
    // of the tenant's own that are looked at, the first is as new as that
    assert_eq!(found("a", Some("mail"), None, 3, 9).await, "2");
    assert_eq!(found("a", Some("mail"), None, 4, 9).await, "21");
}
