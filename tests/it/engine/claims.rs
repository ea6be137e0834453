//! Claims of ready runs: a busy instance fills them, also beyond its slots while runs are short, and a run alone does
//! not wait for others.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::clock::pause;
use reveille::base::id::{Scope, new_id};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::engine::scheduling::run_slots::SlotCounts;
use reveille::engine::service::NextTick;
use reveille::store::Idempotency;
use serde_json::json;
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::{World, on_both};

on_both! {
    backlog_of_short_runs_is_claimed_in_few_statements
    run_that_becomes_ready_alone_is_claimed_at_once
    worker_that_holds_a_claim_looks_at_halts_a_moment_before_its_instant
    runs_are_started_ahead_of_their_slots_by_one_claim_while_runs_are_short
    run_whose_slot_does_not_come_is_given_back_and_has_not_begun
    run_without_its_slot_is_cancelled_at_once
}

/// How many short runs are measured before others are started ahead of their slots.
const MEASURED: usize = 64;
/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that comes by itself.
const LOOK: Duration = Duration::from_millis(20);

/// How many claims the instance has made.
async fn claims(instance: &Instance) -> usize {
    let page = instance.page("/metrics").await;
    let counted = page.lines().find_map(|line| line.strip_prefix("reveille_run_claims_total "));
    counted.expect("claims are counted").parse().expect("a number")
}

/// Asks for a run with an idempotency key: it is ready, where another request would start with its record.
async fn ask_for_ready_run(instance: &Instance, task: &Task, now: DateTime<Utc>) -> Uuid {
    let (task_id, id) = (task.id, new_id(now));
    let key = id.to_string();
    let once = Idempotency { tenant: "*".into(), key, digest: vec![1], status: 202, body: json!({}).into() };
    instance
        .on(move |store| async move { store.run_now(&Scope::Every, task_id, id, None, now, Some(&once)).await })
        .await
        .expect("a run");
    id
}

async fn backlog_of_short_runs_is_claimed_in_few_statements(mut world: World) {
    const RUNS: i64 = 1_000;
    // a slot frees with each end, long before the next claim has its answer
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (32, 0);
    let mut instance = world.instance();
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } })).await;
    for _ in 0..RUNS {
        instance.run_now(&task).await;
    }
    let began = Instant::now();
    let running = instance.start().await;
    while world.number("select count(*) from runs where state = 'succeeded'").await < RUNS {
        assert!(began.elapsed() < Duration::from_secs(60), "the queue has {:?}", instance.queue().await);
        pause(Duration::from_millis(20)).await;
    }
    // a claim with less than half of the slots under way fills the others; the rest go by time, two in a tick at most
    let most = 2 * (RUNS as usize / 16 + 32 + began.elapsed().as_millis() as usize / 2);
    let claims = claims(&instance).await;
    assert!(claims <= most, "{RUNS} runs took {claims} claims, {most} at most");
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}

/// The clock stands still: a claim that waited for time to pass would never be made.
async fn run_that_becomes_ready_alone_is_claimed_at_once(world: World) {
    let mut instance = world.instance();
    let slow = instance.task(json!({ "acts": ["wait"] })).await;
    let quick = instance.task(json!({ "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } })).await;
    let running = instance.start().await;
    instance.run_now(&slow).await;
    for number in 1..=20 {
        let before = claims(&instance).await;
        let run = ask_for_ready_run(&instance, &quick, world.clock.now()).await;
        let run = instance.until(run, |run| run.state == RunState::Succeeded).await;
        assert!(claims(&instance).await > before, "run {number}");
        assert_eq!(run.started_at, Some(world.clock.now()));
    }
    world.journal.open_gate();
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}

/// At the instant the look is fresh, so that nothing stands before the start.
async fn worker_that_holds_a_claim_looks_at_halts_a_moment_before_its_instant(world: World) {
    let instance = world.instance();
    let due = world.clock.now() + TimeDelta::milliseconds(900);
    let task = instance.task(json!({ "trigger": { "type": "schedule", "at": due.to_rfc3339() } })).await;
    instance.fire().await;
    let next = async || instance.tick(&instance.engine().worker).await.expect("a tick");
    let look = due - TimeDelta::milliseconds(200);
    assert!(matches!(next().await, NextTick::At(instant) if instant == look));
    world.advance(0.7);
    assert!(matches!(next().await, NextTick::At(instant) if instant == due));
    assert_eq!(instance.runs(&task).await[0].state, RunState::Queued);
    world.advance(0.2);
    instance.settle(0).await;
    assert_eq!(instance.runs(&task).await[0].started_at, Some(due));
    instance.finish(&world).await;
}

/// A task whose runs do so, any number of them at once.
async fn task_that(instance: &Instance, act: &str) -> Task {
    let trigger = json!({ "type": "schedule", "interval": "1h", "overlap": "allow" });
    instance.task(json!({ "acts": [act], "trigger": trigger })).await
}

async fn run_often(instance: &Instance, task: &Task, times: usize) -> Vec<Uuid> {
    let mut runs = Vec::new();
    for _ in 0..times {
        runs.push(instance.run_now(task).await);
    }
    runs
}

/// An instance with four slots, in which as many short runs as are measured have ended: the clock has stood still.
async fn measured_instance(world: &mut World) -> Instance {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (4, 0);
    let instance = world.instance();
    let quick = task_that(&instance, "succeed").await;
    run_often(&instance, &quick, MEASURED).await;
    instance.settle(0).await;
    instance
}

fn with_starting(computing: usize, starting: usize) -> SlotCounts {
    SlotCounts { computing, starting, ..SlotCounts::default() }
}

/// Returns once so many executors have begun, those of the short runs aside.
async fn until_begun(world: &World, count: usize) {
    let began = Instant::now();
    while world.journal.begun().len() < MEASURED + count {
        assert!(began.elapsed() < PATIENCE, "{} have begun", world.journal.begun().len());
        pause(LOOK).await;
    }
}

async fn runs_are_started_ahead_of_their_slots_by_one_claim_while_runs_are_short(mut world: World) {
    let instance = measured_instance(&mut world).await;
    let task = task_that(&instance, "wait").await;
    run_often(&instance, &task, 20).await;
    let before = claims(&instance).await;
    instance.work().await;
    assert_eq!(instance.queue().await, [("started".into(), 20)]);
    assert_eq!(claims(&instance).await, before + 1);
    assert_eq!(instance.engine().slot_counts(), with_starting(4, 16));
    until_begun(&world, 4).await;
    world.journal.open_gate();
    instance.settle(0).await;
    let ends: Vec<_> = instance.runs(&task).await.iter().map(|run| (run.state, run.attempt)).collect();
    assert_eq!(ends, [(RunState::Succeeded, 1); 20]);
    assert_eq!(instance.engine().slot_counts(), SlotCounts::default());
    instance.finish(&world).await;
}

/// The first four hold their slots for as long as the gate is closed.
async fn run_whose_slot_does_not_come_is_given_back_and_has_not_begun(mut world: World) {
    let instance = measured_instance(&mut world).await;
    let task = task_that(&instance, "wait").await;
    run_often(&instance, &task, 20).await;
    instance.work().await;
    assert_eq!(instance.engine().slot_counts(), with_starting(4, 16));
    until_begun(&world, 4).await;
    let given_back = [("ready".to_owned(), 16), ("started".to_owned(), 4)];
    let began = Instant::now();
    // a run that comes to its wait only now has the whole time before it
    while instance.queue().await != given_back {
        assert!(began.elapsed() < PATIENCE, "{:?}", instance.queue().await);
        world.advance(0.25);
        pause(LOOK).await;
    }
    assert_eq!(world.journal.begun().len(), MEASURED + 4, "no more than there are slots");
    let kept = "select count(*) from runs where state = 'queued' and attempt = 0 and execution_ms = 0";
    assert_eq!(world.number(kept).await, 16, "no attempt is used up, and nothing of the time limit");
    instance.work().await;
    assert_eq!(instance.queue().await, given_back, "slots are held for long now");
    world.journal.open_gate();
    instance.settle(0).await;
    let succeeded = "select count(*) from runs where state = 'succeeded' and attempt = 1";
    assert_eq!(world.number(succeeded).await, MEASURED as i64 + 20);
    instance.finish(&world).await;
}

async fn run_without_its_slot_is_cancelled_at_once(mut world: World) {
    let instance = measured_instance(&mut world).await;
    let task = task_that(&instance, "wait").await;
    let runs = run_often(&instance, &task, 5).await;
    instance.work().await;
    until_begun(&world, 4).await;
    assert_eq!(instance.engine().slot_counts(), with_starting(4, 1));
    let begun: Vec<Uuid> = world.journal.begun().iter().map(|begun| begun.run_id).collect();
    let waits = runs.into_iter().find(|run| !begun.contains(run)).expect("a run without a slot");
    instance.cancel(waits).await;
    instance.beat().await;
    instance.until(waits, |run| run.state == RunState::Cancelled).await;
    assert_eq!(world.journal.begun().len(), MEASURED + 4);
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}

#[tokio::test]
async fn long_runs_are_left_to_an_instance_that_has_slots_for_them() {
    let mut world = World::postgres().await;
    let instance = measured_instance(&mut world).await;
    let task = task_that(&instance, "wait").await;
    run_often(&instance, &task, 4).await;
    instance.work().await;
    assert_eq!(instance.queue().await, [("started".into(), 4)]);
    // longer than short runs hold their slots
    world.advance(0.005);
    run_often(&instance, &task, 4).await;
    instance.work().await;
    assert_eq!(instance.queue().await, [("ready".into(), 4), ("started".into(), 4)]);
    let other = world.instance();
    other.work().await;
    assert_eq!(instance.queue().await, [("started".into(), 8)]);
    assert_eq!(other.engine().slot_counts(), with_starting(4, 0));
    world.journal.open_gate();
    instance.settle(0).await;
    other.finish(&world).await;
    instance.finish(&world).await;
}
