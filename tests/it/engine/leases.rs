//! Leases of runs, and their fate when an instance is slow, cut off, or dead.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::pause;
use reveille::domain::notification::MessageKind;
use reveille::domain::run::RunState;
use reveille::engine::service::TickError;
use reveille::store::{Cancelled, FireDue, Lease, StoreError};
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::journal::RecordedEnd;
use crate::support::world::{World, on_both};

/// How long what comes by itself may take.
const PATIENCE: Duration = Duration::from_secs(60);

on_both! {
    run_goes_on_for_as_long_as_its_worker_beats
    worker_that_hears_that_its_lease_is_gone_drops_the_run
    end_under_a_lost_lease_is_not_recorded
    worker_that_can_not_beat_stops_before_others_may_take_over
    worker_that_has_slept_over_its_lease_takes_no_further_step
    run_of_a_dead_instance_goes_on_elsewhere
    run_that_kills_its_instances_fails_and_its_owner_hears_of_it
    claim_of_a_dead_instance_is_started_elsewhere
    full_instance_leaves_the_rest_to_the_others
    run_that_hangs_past_its_limit_is_closed_for_its_worker
    end_that_was_asked_for_outlives_the_worker
    start_whose_answer_was_lost_is_answered_again
    heartbeat_says_once_a_minute_that_the_instance_lives
}

/// A run that is executed, in a world with leases of 45 s.
async fn running(world: &mut World, json: serde_json::Value) -> (Instance, Uuid) {
    world.settings.lease_seconds = 45.0;
    let instance = world.instance();
    let mut fields = json!({ "max_runs": 1, "retry": { "max_attempts": 10 } });
    fields.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
    let task = instance.task(fields).await;
    world.advance_to("08:01");
    instance.live(1).await;
    let id = instance.runs(&task).await[0].id;
    world.journal.until_begun(id).await;
    (instance, id)
}

/// Waits until the executions of a run have ended so.
async fn until_ended(world: &World, run: Uuid, how: &[RecordedEnd]) {
    let started = Instant::now();
    while world.journal.ended(run) != how {
        assert!(started.elapsed() < Duration::from_secs(30), "ended {:?}", world.journal.ended(run));
        pause(Duration::from_millis(2)).await;
    }
}

async fn heartbeat_says_once_a_minute_that_the_instance_lives(world: World) {
    let instance = world.instance();
    let listed = async || {
        let listed = instance.on(|store| async move { store.list_instances().await }).await.expect("instances");
        listed.into_iter().map(|one| (one.id, one.started_at, one.seen_at)).collect::<Vec<_>>()
    };
    let (id, started_at) = (instance.engine().instance(), world.clock.now());
    assert_eq!(listed().await, []);
    instance.beat().await;
    assert_eq!(listed().await, [(id, started_at, started_at)]);
    world.advance(59.0);
    instance.beat().await;
    assert_eq!(listed().await, [(id, started_at, started_at)]);
    world.advance(1.0);
    instance.beat().await;
    assert_eq!(listed().await, [(id, started_at, world.clock.now())]);
    assert_eq!(instance.store.own_instance(), Some(id));
    instance.finish(&world).await;
}

async fn steal(world: &World) {
    let statement = "update queue set lease_token = lease_token + 1000000";
    world.execute(statement, statement).await;
}

async fn run_goes_on_for_as_long_as_its_worker_beats(mut world: World) {
    let (instance, id) = running(&mut world, json!({ "acts": ["wait"], "timeout_seconds": 3600 })).await;
    for _ in 0..20 {
        world.advance(40.0);
        instance.beat().await;
        instance.rescue().await;
    }
    world.journal.open_gate();
    instance.settle(0).await;
    let run = instance.run(id).await;
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Succeeded, 1, 0));
    instance.finish(&world).await;
}

async fn worker_that_hears_that_its_lease_is_gone_drops_the_run(mut world: World) {
    let (instance, id) = running(&mut world, json!({ "acts": ["deaf", "succeed"] })).await;
    steal(&world).await;
    instance.beat().await;
    until_ended(&world, id, &[RecordedEnd::Dropped]).await;
    assert_eq!(instance.run(id).await.state, RunState::Running, "nothing was written");
    world.advance(45.001);
    instance.rescue().await;
    instance.settle(0).await;
    let run = instance.run(id).await;
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Succeeded, 2, 1));
    instance.finish(&world).await;
}

async fn end_under_a_lost_lease_is_not_recorded(mut world: World) {
    let (instance, id) = running(&mut world, json!({ "acts": ["wait", "say:second"] })).await;
    steal(&world).await;
    world.journal.open_gate();
    until_ended(&world, id, &[RecordedEnd::ByItself]).await;
    world.advance(45.001);
    instance.rescue().await;
    instance.settle(0).await;
    let run = instance.run(id).await;
    assert_eq!((run.state, run.output.as_deref(), run.crashes), (RunState::Succeeded, Some("second"), 1));
    instance.finish(&world).await;
}

async fn worker_that_can_not_beat_stops_before_others_may_take_over(mut world: World) {
    let (instance, id) = running(&mut world, json!({ "acts": ["deaf", "succeed"] })).await;
    world.advance(44.499);
    instance.settle(1).await;
    assert_eq!(world.journal.ended(id), []);
    world.advance(0.001);
    until_ended(&world, id, &[RecordedEnd::Dropped]).await;
    instance.rescue().await;
    assert_eq!(instance.run(id).await.state, RunState::Running, "its lease stands, so nobody may take it yet");
    world.advance(0.501);
    instance.rescue().await;
    let run = instance.run(id).await;
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Queued, 1, 1));
    instance.settle(0).await;
    assert_eq!(instance.run(id).await.state, RunState::Succeeded);
    instance.finish(&world).await;
}

async fn worker_that_has_slept_over_its_lease_takes_no_further_step(mut world: World) {
    world.settings.lease_seconds = 45.0;
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1h", "overlap": "allow" });
    let task = instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(instance.run_now(&task).await);
    }
    instance.work().await;
    for run in &runs {
        world.journal.until_begun(*run).await;
    }
    // as it wakes up, the lease is over, and what the work has waited for is there, too
    let (clock, journal) = (world.clock.clone(), world.journal.clone());
    let wake = async move {
        clock.advance(TimeDelta::seconds(46));
        journal.open_gate();
    };
    instance.on(|_| wake).await;
    let woken = Instant::now();
    for run in runs {
        while world.journal.ended(run).is_empty() {
            assert!(woken.elapsed() < PATIENCE, "it is still executed");
            pause(Duration::from_millis(5)).await;
        }
        assert_eq!(world.journal.ended(run), [RecordedEnd::Dropped]);
    }
    instance.crash();
}

async fn run_of_a_dead_instance_goes_on_elsewhere(mut world: World) {
    let (dead, id) = running(&mut world, json!({ "acts": ["deaf", "succeed"] })).await;
    dead.crash();
    world.advance(45.001);
    let other = world.instance();
    other.rescue().await;
    other.settle(0).await;
    let run = other.run(id).await;
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Succeeded, 2, 1));
    let begun = world.journal.begun();
    assert_eq!(begun.iter().map(|b| (b.run_id, b.attempt, b.instance)).collect::<Vec<_>>(), [(id, 1, 0), (id, 2, 1)]);
    other.finish(&world).await;
}

async fn run_that_kills_its_instances_fails_and_its_owner_hears_of_it(mut world: World) {
    let (mut instance, id) = running(&mut world, json!({ "acts": ["deaf"] })).await;
    instance.recipient().await;
    for _ in 0..2 {
        instance.crash();
        world.advance(45.001);
        instance = world.instance();
        instance.rescue().await;
        instance.settle(1).await;
    }
    instance.crash();
    world.advance(45.001);
    let last = world.instance();
    last.rescue().await;
    last.settle(0).await;
    let run = last.run(id).await;
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Failed, 3, 3));
    let fault = run.error.unwrap();
    assert_eq!(
        (fault.code.as_str(), &*fault.message),
        ("crashed", "the process that executed it died, 3 time(s) in all")
    );
    let told: Vec<_> = last.deliveries().await.into_iter().map(|d| (d.kind, d.run_id)).collect();
    assert_eq!(told, [(MessageKind::Failure, Some(id))]);
    last.finish(&world).await;
}

async fn claim_of_a_dead_instance_is_started_elsewhere(world: World) {
    let dead = world.instance();
    let task = dead.task(json!({ "max_runs": 1 })).await;
    world.advance_to("08:00:59");
    dead.fire().await;
    assert_eq!(dead.queue().await, [("claimed".into(), 1)]);
    dead.crash();
    world.advance_to("08:01:05");
    world.advance(0.001);
    let other = world.instance();
    other.rescue().await;
    other.live(0).await;
    let run = other.runs(&task).await.remove(0);
    assert_eq!((run.state, run.attempt, run.crashes), (RunState::Succeeded, 1, 0), "it was never started");
    other.finish(&world).await;
}

async fn full_instance_leaves_the_rest_to_the_others(mut world: World) {
    world.settings.max_concurrent_runs = 2;
    world.settings.prefetch = 0;
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    for _ in 0..5 {
        instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    }
    world.advance_to("08:00:59");
    instance.fire().await;
    for _ in 0..2 {
        instance.work().await;
        assert_eq!(instance.queue().await, [("claimed".into(), 2), ("ready".into(), 3)]);
    }
    // due runs have no reason to wait for those that are not
    let asked = instance.task(json!({ "acts": ["succeed"] })).await;
    let asked = instance.run_now(&asked).await;
    instance.settle(0).await;
    assert_eq!(instance.run(asked).await.state, RunState::Succeeded);
    world.advance_to("08:01");
    instance.work().await;
    assert_eq!(instance.queue().await, [("ready".into(), 3), ("started".into(), 2)]);
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}

#[tokio::test]
async fn runs_left_or_given_back_by_an_instance_wake_the_others() {
    let mut world = World::postgres().await;
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (2, 0);
    let (mut one, other) = (world.instance(), world.instance());
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    for _ in 0..5 {
        one.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    }
    let running = one.start().await;
    // nothing runs yet, so all its slots are free
    let left = other.worker_hint();
    world.advance_to("08:00:59");
    timeout(PATIENCE, left).await.expect("three runs are left to others");
    let begun = Instant::now();
    while one.queue().await != [("claimed".into(), 2), ("ready".into(), 3)] {
        assert!(begun.elapsed() < PATIENCE, "{:?}", one.queue().await);
        pause(Duration::from_millis(20)).await;
    }
    let given_back = other.worker_hint();
    one.on(|_| async move { running.stop().await }).await;
    timeout(PATIENCE, given_back).await.expect("two claims are given back");
    assert_eq!(other.queue().await, [("ready".into(), 5)]);
    one.crash();
    other.crash();
}

#[tokio::test]
async fn run_that_is_asked_for_where_there_is_no_place_wakes_the_others() {
    let mut world = World::postgres().await;
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (1, 0);
    let (mut one, other) = (world.instance(), world.instance());
    let trigger = json!({ "type": "schedule", "interval": "1h", "overlap": "allow" });
    let task = one.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    let running = one.start().await;
    let first = one.run_now(&task).await;
    one.until(first, |run| run.state == RunState::Running).await;
    // one that is full after a take does not know whether there was more
    pause(Duration::from_millis(500)).await;
    let told = other.worker_hint();
    one.run_now(&task).await;
    timeout(PATIENCE, told).await.expect("the second one is left to others");
    assert_eq!(other.queue().await, [("ready".into(), 1), ("started".into(), 1)]);
    world.journal.open_gate();
    one.on(|_| async move { running.stop().await }).await;
    one.crash();
    other.crash();
}

/// It asks first what there is at all, and that reads more than rescue needs.
#[tokio::test]
async fn locked_table_that_rescue_does_not_need_keeps_nobody_from_it() {
    let mut world = World::postgres().await;
    let (dead, id) = running(&mut world, json!({ "acts": ["deaf"] })).await;
    dead.crash();
    world.advance(45.001);
    let other = world.instance();
    let mut blocking = world.begin("lock table event_windows in access exclusive mode").await;
    other.rescue().await;
    assert_eq!(other.run(id).await.crashes, 1);
    sqlx::query("rollback").execute(&mut blocking).await.expect("given back");
    other.crash();
}

async fn run_that_hangs_past_its_limit_is_closed_for_its_worker(mut world: World) {
    let (hung, id) = running(&mut world, json!({ "acts": ["deaf"], "timeout_seconds": 100 })).await;
    hung.crash();
    // as if its process went on beating and did nothing else
    let other = world.instance();
    let beating = "update queue set lease_until = '2027-03-01T09:00:00+00:00'";
    world.execute(beating, beating).await;
    world.advance(110.0);
    other.rescue().await;
    assert_eq!(other.run(id).await.state, RunState::Running, "a worker that lives ends it by itself");
    world.advance(0.001);
    other.rescue().await;
    let run = other.run(id).await;
    assert_eq!((run.state, run.error.unwrap().code.as_str(), run.crashes), (RunState::Failed, "timeout", 0));
    other.finish(&world).await;
}

async fn end_that_was_asked_for_outlives_the_worker(mut world: World) {
    let (dead, id) = running(&mut world, json!({ "acts": ["deaf"] })).await;
    assert_eq!(dead.cancel(id).await, Cancelled::Asked);
    dead.crash();
    world.advance(45.001);
    let other = world.instance();
    other.rescue().await;
    let run = other.run(id).await;
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, Some("no longer needed")));
    other.finish(&world).await;
}

async fn start_whose_answer_was_lost_is_answered_again(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "max_runs": 1 })).await;
    world.advance_to("08:01");
    let ask = FireDue {
        now: world.clock.now(),
        horizon: Duration::ZERO,
        limit: 10,
        worker: Uuid::nil(),
        room: 10,
        start: None,
    };
    let fired = instance.on(move |store| async move { store.fire_due(&ask).await }).await.unwrap();
    let leases: Vec<Lease> = fired.claims.iter().map(|claim| claim.lease).collect();
    let start = async |seconds: i64| {
        let (leases, until) = (leases.clone(), world.clock.now() + chrono::TimeDelta::seconds(seconds));
        instance.on(move |store| async move { store.start_runs(&leases, until).await }).await.unwrap()
    };
    let first = start(45).await;
    let again = start(50).await;
    assert_eq!((first.started.len(), &again.blocked), (1, &vec![]));
    assert_eq!(again.started[0].run, first.started[0].run, "no second attempt is counted");
    assert_eq!(again.started[0].deadline_at, first.started[0].deadline_at);
    world.advance(47.0);
    instance.rescue().await;
    assert_eq!(instance.runs(&task).await[0].state, RunState::Running, "the lease is the later one");
    instance.crash();
}

#[tokio::test]
async fn end_that_comes_while_the_database_is_away_is_recorded_once_it_is_back() {
    let mut world = World::postgres().await;
    let (instance, id) = running(&mut world, json!({ "acts": ["wait"] })).await;
    world.take_away().await;
    let engine = instance.engine();
    let beaten = instance.tick(&engine.heartbeat).await;
    assert!(matches!(beaten, Err(TickError::Store(StoreError::Unavailable(_)))), "{beaten:?}");
    let fired = instance.tick(&engine.scheduler).await;
    assert!(matches!(fired, Err(TickError::Store(StoreError::Unavailable(_)))), "{fired:?}");
    world.journal.open_gate();
    until_ended(&world, id, &[RecordedEnd::ByItself]).await;
    world.advance(60.0);
    world.give_back().await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!(
        (run.state, run.attempt, run.crashes),
        (RunState::Succeeded, 1, 0),
        "its lease is over, but still its own"
    );
    instance.settle(0).await;
    assert_eq!(world.journal.begun().len(), 1);
    instance.finish(&world).await;
}
