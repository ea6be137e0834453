//! Claims of ready runs: a busy instance fills them, and a run alone does not wait for others.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::clock::pause;
use reveille::base::id::{Scope, new_id};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
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
}

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
