//! Events whose runs begin with the commit that records them: no worker ticks before they do.

use reveille::domain::run::{Run, RunState};
use serde_json::{Value, json};

use super::{on, told};
use crate::support::app::Instance;
use crate::support::world::World;

on_each_bus! {
    event_with_a_free_place_runs_before_the_worker_ticks
    event_without_a_place_waits_for_one
    event_run_whose_instance_dies_is_rescued_once
}

fn acting(acts: &[&str]) -> Value {
    let mut task = on(json!({}));
    task["acts"] = json!(acts);
    task["retry"] = json!({ "max_attempts": 5 });
    task
}

async fn only_run(instance: &Instance, task: &reveille::domain::task::Task) -> Run {
    let [run] = <[Run; 1]>::try_from(instance.runs(task).await).expect("one run");
    run
}

async fn event_with_a_free_place_runs_before_the_worker_ticks(world: World) {
    let instance = world.instance();
    let task = instance.task(acting(&["succeed"])).await;
    instance.publish(&[json!({ "id": "1", "data": { "amount": 3 } })]).await;
    instance.match_events().await;
    let run = only_run(&instance, &task).await;
    world.journal.until_begun(run.id).await;
    let ended = instance.until(run.id, |run| run.state == RunState::Succeeded).await;
    assert_eq!((ended.attempt, world.journal.begun().len()), (1, 1));
    instance.settle(0).await;
    assert_eq!(world.journal.begun().len(), 1, "it begins once");
    instance.finish(&world).await;
}

async fn event_without_a_place_waits_for_one(mut world: World) {
    world.settings.max_concurrent_runs = 1;
    let instance = world.instance();
    let task = instance.task(acting(&["wait"])).await;
    instance.publish(&[json!({ "id": "1" })]).await;
    instance.match_events().await;
    let first = only_run(&instance, &task).await;
    world.journal.until_begun(first.id).await;
    instance.publish(&[json!({ "id": "2" })]).await;
    instance.match_events().await;
    assert_eq!(instance.queue().await, [("ready".to_owned(), 1), ("started".to_owned(), 1)]);
    instance.settle(1).await;
    assert_eq!(told(&instance, &task).await, ["1 running", "2 queued"]);
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(told(&instance, &task).await, ["1 succeeded", "2 succeeded"]);
    instance.finish(&world).await;
}

async fn event_run_whose_instance_dies_is_rescued_once(mut world: World) {
    world.settings.lease_seconds = 45.0;
    let first = world.instance();
    let task = first.task(acting(&["hang", "succeed"])).await;
    first.publish(&[json!({ "id": "1" })]).await;
    first.match_events().await;
    let lost = only_run(&first, &task).await;
    world.journal.until_begun(lost.id).await;
    first.crash();
    let second = world.instance();
    second.live(1).await;
    assert_eq!(world.journal.begun().len(), 1, "its lease holds");
    world.advance(45.001);
    second.live(0).await;
    let run = only_run(&second, &task).await;
    assert_eq!((run.id, run.state, run.attempt, run.crashes), (lost.id, RunState::Succeeded, 2, 1));
    assert_eq!(world.journal.begun().len(), 2);
    second.finish(&world).await;
}
