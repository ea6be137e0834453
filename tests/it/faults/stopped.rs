//! SIGSTOP for longer than a lease: the others take its runs over, and what the zombie does when it wakes is fenced.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};
use serde_json::json;

use super::harness::{FaultHarness, LEASE_VARIABLE, PATIENCE};
use crate::support::binary::signal;
use crate::support::postgres::Database;

const RUNS: usize = 12;

/// The first instance has all the runs, since the second one comes when they have begun. It sleeps until each was taken
/// over; when it wakes, the answers to its own executions are there, and the second ones are under way, whose answers
/// are kept.
pub async fn sleeps_over_its_leases(stage: &mut FaultHarness) {
    // who is awake loses none
    stage.set(LEASE_VARIABLE, "6");
    stage.effects.releases(0);
    stage.start(0).await;
    let at = (machine_now() + TimeDelta::seconds(6)).to_rfc3339();
    for _ in 0..RUNS {
        stage.task(json!({ "type": "schedule", "at": at, "overlap": "allow" })).await;
    }
    begun(stage, 1).await;
    stage.start(1).await;
    let sleeper = stage.service(0).process_id();
    signal("STOP", sleeper).await;
    stage.known.crashes += 1;
    begun(stage, 2).await;
    stage.effects.releases(1);
    signal("CONT", sleeper).await;
}

/// Waits until this attempt of each run has begun.
async fn begun(stage: &FaultHarness, attempt: i64) {
    let since = Instant::now();
    while stage.effects.journal().iter().filter(|effect| effect.attempt == attempt).count() < RUNS {
        assert!(since.elapsed() < PATIENCE, "attempt {attempt} of each did not begin\n{}", stage.logs());
        pause(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn instance_that_sleeps_for_longer_than_its_leases_writes_nothing_when_it_wakes() {
    let database = Database::empty().await;
    let mut stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    sleeps_over_its_leases(&mut stage).await;
    stage.service(0).until_logged("the lease is lost").await;
    stage.effects.releases(2);
    let verdict = stage.must_hold("postgres, an instance asleep over its leases").await;
    assert_eq!((verdict.runs, verdict.effects), (RUNS, 2 * RUNS), "{verdict}");
    stage.must_say("a run was left by its worker");
}
