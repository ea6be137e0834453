//! Records of an instant, and of an event: found by their keys, for their tenant alone.

use chrono::TimeDelta;
use reveille::base::id::{Scope, Tenant};
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
    events_are_found_by_the_beginnings_of_their_ids,
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
        world.store.recorded_of_event(scope, &matching::event(id), &[task.id]).await.unwrap()
    };
    let found = of(&Scope::Every, "e1").await;
    let (run, state, reason) = &found[&task.id];
    assert_eq!(world.get_run(*run).await.event_ids, ["e1"]);
    assert_eq!((found.len(), *state, reason), (1, RunState::Queued, &None));
    assert!(of(&Scope::Every, "e3").await.is_empty());
    assert!(of(&Scope::Only(tenant("b")), "e1").await.is_empty());
    assert!(world.store.recorded_of_event(&Scope::Every, &matching::event("e1"), &[]).await.unwrap().is_empty());
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
        body.map(|body| serde_json::from_str::<reveille::domain::event::Event>(&body).unwrap())
    };
    assert_eq!(found("a", Some("shop"), "e1").await, Some(matching::event("e1")));
    assert_eq!(found("a", None, "e2").await, Some(matching::event("e2")));
    for (name, source, id) in
        [("b", None, "e1"), ("b", Some("shop"), "e1"), ("a", Some("mail"), "e1"), ("a", None, "x")]
    {
        assert_eq!(found(name, source, id).await, None);
    }
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
