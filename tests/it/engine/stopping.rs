//! Instances that come, share and go: the real loops on the real clock, and two on one database.

use std::collections::BTreeMap;
use std::time::Duration;

use reveille::base::clock::{Clock, to_delta};
use reveille::domain::run::RunState;
use reveille::engine::RunningEngine;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::support::app::Instance;
use crate::support::journal::RecordedEnd;
use crate::support::world::{World, on_both};

on_both! {
    loops_fire_execute_and_stop
    stop_waits_for_runs_and_hands_back_what_does_not_end
    stop_does_not_wait_for_events
}

async fn stop(instance: &Instance, running: RunningEngine) {
    instance.on(|_| async move { running.stop().await }).await;
}

/// A schedule whose first instant is that long after the present.
fn after(clock: &Clock, wait: Duration) -> Value {
    json!({ "type": "schedule", "at": (clock.now() + to_delta(wait)).to_rfc3339() })
}

async fn loops_fire_execute_and_stop(mut world: World) {
    let lease = Duration::from_secs(3);
    world.settings.lease_seconds = lease.as_secs_f64();
    world.clock = Clock::system();
    let mut instance = world.instance();
    let running = instance.start().await;
    let trigger = json!({ "type": "schedule", "interval": "1s", "overlap": "queue_all" });
    let task = instance.task(json!({ "trigger": trigger, "max_runs": 2 })).await;
    let slow = instance.task(json!({ "acts": ["wait"] })).await;
    let slow = instance.run_now(&slow).await;
    instance.until(slow, |run| run.state == RunState::Running).await;
    // it needs heartbeats
    reveille::base::clock::pause(lease * 5 / 4).await;
    loop {
        let runs = instance.runs(&task).await;
        if let [_, second] = runs.as_slice() {
            instance.until(second.id, |run| run.state == RunState::Succeeded).await;
            break;
        }
        reveille::base::clock::pause(Duration::from_millis(20)).await;
    }
    assert_eq!(instance.late_services(), [""; 0]);
    world.journal.open_gate();
    let slow = instance.until(slow, |run| run.state.is_final()).await;
    assert_eq!((slow.state, slow.attempt, slow.crashes), (RunState::Succeeded, 1, 0));
    for begun in world.journal.begun() {
        let run = instance.run(begun.run_id).await;
        assert!(begun.at >= run.scheduled_for, "{} began at {}", begun.fire_key, begun.at);
    }
    stop(&instance, running).await;
    assert_eq!(instance.late_services(), [""; 0], "nobody waits for the ticks of what has stopped");
    instance.finish(&world).await;
}

async fn stop_waits_for_runs_and_hands_back_what_does_not_end(mut world: World) {
    world.settings.shutdown_grace_seconds = 0.3;
    let mut first = world.instance();
    let running = first.start().await;
    let mut start = Vec::new();
    for act in [json!(["hang", "hang"]), json!(["deaf"]), json!(["wait"])] {
        let task = first.task(json!({ "acts": act, "trigger": after(&world.clock, Duration::from_secs(3000)) })).await;
        let id = first.run_now(&task).await;
        first.until(id, |run| run.state == RunState::Running).await;
        start.push(id);
    }
    // within the horizon: claimed, and not started when the stop comes
    let ahead = first.task(json!({ "trigger": after(&world.clock, Duration::from_millis(1400)) })).await;
    while first.runs(&ahead).await.is_empty() {
        reveille::base::clock::pause(Duration::from_millis(5)).await;
    }
    let [hanging, deaf, waiting] = start[..] else { unreachable!() };
    let passes = async {
        // what was claimed is given back, and the grace begins
        while first.queue().await != [("ready".into(), 1), ("started".into(), 3)] {
            reveille::base::clock::pause(Duration::from_millis(5)).await;
        }
        world.journal.open_gate();
        first.until(waiting, |run| run.state == RunState::Succeeded).await;
        assert_eq!([world.journal.ended(hanging), world.journal.ended(deaf)], [[], []], "the others have their grace");
        loop {
            reveille::base::clock::pause(Duration::from_millis(50)).await;
            world.advance(0.05);
        }
    };
    tokio::select! {
        () = stop(&first, running) => {}
        () = passes => {}
    }

    for id in [hanging, deaf] {
        let run = first.run(id).await;
        assert_eq!((run.state, run.attempt), (RunState::Queued, 0), "handed back, and no attempt is used up");
    }
    assert_eq!(world.journal.ended(hanging), [RecordedEnd::ByItself]);
    assert_eq!(world.journal.ended(deaf), [RecordedEnd::Dropped]);
    assert_eq!(first.run(waiting).await.state, RunState::Succeeded, "what ends within the grace is recorded");
    assert_eq!(first.queue().await, [("ready".into(), 3)], "nothing stays claimed");
    first.crash();
}

/// Its commit comes after the engine has stopped.
#[tokio::test]
async fn run_that_is_recorded_during_a_stop_is_ready_for_others() {
    let mut world = World::postgres().await;
    world.clock = Clock::system();
    let mut instance = world.instance();
    let running = instance.start().await;
    let task = instance.task(json!({ "trigger": after(&world.clock, Duration::from_secs(3000)) })).await;

    let mut other = PgConnection::connect(&world.url()).await.expect("a connection");
    let mut keeper = other.begin().await.expect("a transaction");
    // nobody but who asks for a run waits for that row
    let row = sqlx::query("select 1 from due where task_id = $1 for update").bind(task.id);
    row.execute(&mut *keeper).await.expect("a lock");
    let waiting =
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let is_recorded = async || {
        while world.number(waiting).await == 0 {
            reveille::base::clock::pause(Duration::from_millis(5)).await;
        }
    };
    let lets_go = async {
        is_recorded().await;
        reveille::base::clock::pause(Duration::from_millis(500)).await;
        keeper.rollback().await.expect("let go");
    };
    let stops = async {
        is_recorded().await;
        stop(&instance, running).await;
    };
    let (run, (), ()) = tokio::join!(instance.run_now(&task), lets_go, stops);
    assert_eq!(instance.queue().await, [("ready".into(), 1)], "nobody has a lease of it");
    let other = world.instance();
    other.settle(0).await;
    let run = other.run(run).await;
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Succeeded, 1, 0));
    instance.crash();
    other.finish(&world).await;
}

/// The matcher reads for ten seconds while nothing comes.
async fn stop_does_not_wait_for_events(mut world: World) {
    world.clock = Clock::system();
    let mut instance = world.instance();
    // a read waits for five seconds at least, and none begins before
    let read = tokio::time::Instant::now() + Duration::from_millis(4800);
    let running = instance.start().await;
    reveille::base::clock::pause(Duration::from_millis(500)).await;
    let stopped = tokio::time::timeout_at(read, stop(&instance, running)).await;
    assert!(stopped.is_ok(), "the stop waits for a read of events");
    instance.finish(&world).await;
}

#[tokio::test]
async fn stop_does_not_wait_for_events_of_redis() {
    let mut world = World::redis().await;
    world.bus.stalled_after_seconds = 60.0;
    stop_does_not_wait_for_events(world).await;
}

#[tokio::test]
async fn two_instances_on_one_postgres_share_a_thousand_tasks_of_one_second_and_run_none_twice() {
    let world = World::postgres().await;
    let (one, other) = (world.instance(), world.instance());
    let trigger = json!({ "type": "schedule", "at": "2027-03-01T08:01:00Z" });
    for _ in 0..20 {
        let created = (0..50).map(|_| one.task(json!({ "trigger": trigger })));
        futures::future::join_all(created).await;
    }
    world.advance_to("08:00:59");
    let shared = async |instance: &Instance| {
        for _ in 0..3 {
            instance.fire().await;
        }
        world.clock.sleep_until(crate::support::world::at("08:01")).await;
        instance.settle_shared().await;
    };
    let release = async {
        while world.number("select count(*) from runs").await < 1000 {
            reveille::base::clock::pause(Duration::from_millis(5)).await;
        }
        world.advance_to("08:01");
    };
    tokio::join!(shared(&one), shared(&other), release);

    let mut of_task: BTreeMap<uuid::Uuid, usize> = BTreeMap::new();
    let mut of_instance = [0, 0];
    for begun in world.journal.begun() {
        *of_task.entry(begun.run_id).or_default() += 1;
        of_instance[begun.instance] += 1;
    }
    assert_eq!(of_task.len(), 1000);
    assert!(of_task.values().all(|times| *times == 1), "a run was executed twice");
    assert!(of_instance.iter().all(|share| *share > 0), "{of_instance:?}");
    assert_eq!(world.number("select count(*) from runs").await, 1000);
    assert_eq!(world.number("select count(distinct task_id) from runs where state = 'succeeded'").await, 1000);
    other.finish(&world).await;
    one.finish(&world).await;
}
