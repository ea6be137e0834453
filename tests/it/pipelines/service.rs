//! Pipelines over a whole service: what is recorded, told and kept, on both databases.

use reveille::run::RunState;
use serde_json::json;

use crate::support::world::{ADMIN, World, on_both};

on_both! {
    a_filtered_run_succeeds_and_nobody_is_told
    what_one_run_stores_and_publishes_is_there_afterwards
}

async fn a_filtered_run_succeeds_and_nobody_is_told(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let steps = json!([{ "name": "never", "filter": "1 > 2" }, { "name": "tell", "notify": { "message": "no" } }]);
    let task = instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.reason.as_deref(), run.output), (RunState::Succeeded, Some("filtered"), None));
    assert_eq!(instance.deliveries().await, []);
    instance.finish(&world).await;
}

async fn what_one_run_stores_and_publishes_is_there_afterwards(world: World) {
    let instance = world.instance();
    let steps = json!([
        { "name": "count", "store": { "name": "n", "expression": "has(state.n) ? state.n + 1 : 1" } },
        { "name": "spread", "publish": { "type": "counted", "data": { "n": "{{ steps.count }}" } } },
        { "name": "said", "map": "state.n" },
    ]);
    let config = json!({ "config": { "steps": steps } });
    let task = instance.task(json!({ "executor": "pipeline", "action": config, "output": null })).await;
    for expected in ["1", "2"] {
        let id = instance.run_now(&task).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        assert_eq!((run.state, run.output.as_deref()), (RunState::Succeeded, Some(expected)), "{:?}", run.error);
    }
    let (status, events) = instance.ask("GET", "/v1/events?tenant_id=ann", ADMIN, None).await;
    assert_eq!(status, 200, "{events}");
    let published: Vec<_> =
        events["items"].as_array().unwrap().iter().map(|event| event["data"]["n"].clone()).collect();
    assert!(published.len() == 2 && published.contains(&json!(1)) && published.contains(&json!(2)), "{events}");
    // a step that can't be is refused over HTTP as well, at its place
    let body = json!({
        "tenant_id": "ann", "name": "x", "trigger": { "type": "schedule", "interval": "1h" }, "executor": "pipeline",
        "action": { "config": { "steps": [{ "name": "a", "map": "1 +" }] } },
    });
    let (status, told) = instance.ask("POST", "/v1/tasks", ADMIN, Some(body)).await;
    assert_eq!((status, &told["errors"][0]["pointer"]), (422, &json!("/action/config/steps/0/map")));
    instance.finish(&world).await;
}
