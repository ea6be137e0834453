//! Places of an instance: a tenant with slow runs leaves some to the next one, whichever way its runs come.

use reveille::domain::run::RunState;
use serde_json::{Value, json};

use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::world::{World, on_both};

on_both! {
    slow_runs_of_one_tenant_leave_places_in_which_another_s_start_at_once
    events_and_retries_of_a_tenant_that_has_its_share_wait_for_an_end_of_its_own
    tenant_that_is_alone_has_all_places
    due_fires_of_a_tenant_that_has_its_share_hold_no_place_while_they_are_planned
}

fn every_minute(tenant: &str, act: &str) -> Value {
    json!({ "tenant": tenant, "acts": [act],
            "trigger": { "type": "schedule", "interval": "1m", "overlap": "allow" } })
}

async fn slow_runs_of_one_tenant_leave_places_in_which_another_s_start_at_once(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (8, 8);
    let instance = world.instance();
    for _ in 0..20 {
        instance.task(every_minute("many", "wait")).await;
    }
    world.advance(30.0);
    let one = instance.task(every_minute("one", "wait")).await;
    world.advance(30.0);
    instance.fire().await;
    instance.settle(6).await;
    let asked = instance.run_now(&one).await;
    instance.settle(7).await;
    assert_eq!(instance.run(asked).await.state, RunState::Running, "asked for, behind fourteen that are ready");
    world.advance(30.0);
    instance.fire().await;
    instance.settle(8).await;
    let due = instance.runs(&one).await.pop().expect("a run");
    assert_eq!((due.trigger_type.as_str(), due.state), ("schedule", RunState::Running));
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn events_and_retries_of_a_tenant_that_has_its_share_wait_for_an_end_of_its_own(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (4, 8);
    let instance = world.instance();
    let mut slow = Vec::new();
    for _ in 0..3 {
        slow.push(instance.task(every_minute("ann", "wait")).await);
    }
    let trigger = json!({ "type": "event", "source": "shop", "event_type": "order" });
    let on_event = instance
        .task(json!({ "acts": ["retry:0", "succeed"], "trigger": trigger,
                                         "retry": { "max_attempts": 2 } }))
        .await;
    let other = instance.task(every_minute("other", "succeed")).await;
    for task in &slow {
        instance.run_now(task).await;
    }
    instance.settle(3).await;
    instance.publish(&[json!({ "id": "e-1" })]).await;
    instance.match_events().await;
    instance.settle(3).await;
    assert_eq!(instance.runs(&on_event).await[0].state, RunState::Queued, "one slot is left, for others");
    let asked = instance.run_now(&other).await;
    instance.settle(3).await;
    assert_eq!(instance.run(asked).await.state, RunState::Succeeded);
    world.journal.open_gate();
    instance.settle(0).await;
    // its second attempt waits for its back-off, and for slots that are just given back
    let mut run = instance.runs(&on_event).await.remove(0);
    for _ in 0..10 {
        if run.state == RunState::Succeeded {
            break;
        }
        instance.live(0).await;
        world.advance(5.0);
        run = instance.run(run.id).await;
    }
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    instance.finish(&world).await;
}

async fn tenant_that_is_alone_has_all_places(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (8, 8);
    let instance = world.instance();
    for _ in 0..20 {
        instance.task(every_minute("many", "wait")).await;
    }
    world.advance(60.0);
    instance.fire().await;
    instance.settle(8).await;
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn due_fires_of_a_tenant_that_has_its_share_hold_no_place_while_they_are_planned(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (8, 8);
    let instance = world.instance();
    let task = |tenant: &str, interval: &str| {
        json!({ "tenant": tenant, "acts": ["wait"],
                "trigger": { "type": "schedule", "interval": interval, "overlap": "allow" } })
    };
    for _ in 0..6 {
        let many = instance.task(task("many", "20s")).await;
        instance.run_now(&many).await;
    }
    let one = instance.task(task("one", "1h")).await;
    instance.settle(6).await;
    world.advance(20.0);
    let computing = instance.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        let asked = instance.run_now(&one).await;
        instance.settle(7).await;
        drop(threads);
        asked
    };
    let (fired, asked) = tokio::join!(instance.tick(&instance.engine().scheduler), meanwhile);
    fired.expect("a tick");
    assert_eq!(instance.run(asked).await.state, RunState::Running);
    assert_eq!(instance.queue().await, [("ready".into(), 6), ("started".into(), 7)]);
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}
