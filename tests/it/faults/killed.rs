//! `kill -9`, over and over, at whatever a process is doing.

use std::time::Duration;

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};
use serde_json::json;

use super::harness::FaultHarness;
use crate::support::postgres::Database;
use crate::support::servers;

/// One run of the dead at a time: how long an execution takes, so that kills meet some.
const EXECUTION: Duration = Duration::from_millis(40);

fn sample(most: u64) -> Duration {
    Duration::from_millis(fastrand::u64(0..most))
}

#[tokio::test]
async fn on_sqlite_an_instance_that_is_killed_over_and_over_loses_and_doubles_nothing() {
    let cycles = servers::chaos_cycles();
    let mut stage = FaultHarness::sqlite().await;
    stage.effects.takes(EXECUTION);
    stage.start(0).await;
    stage.busy().await;
    for _ in 0..cycles {
        stage.once().await;
        for _ in 0..fastrand::usize(0..4) {
            stage.publish().await;
        }
        pause(sample(1500)).await;
        stage.kill(0).await;
        pause(sample(500)).await;
        stage.start(0).await;
    }
    let verdict = stage.must_hold(&format!("sqlite, {cycles} kills")).await;
    assert!(verdict.instants > cycles && verdict.effects > cycles, "{verdict}");
}

#[tokio::test]
async fn on_postgres_three_instances_of_which_any_is_killed_lose_and_double_nothing() {
    let cycles = servers::chaos_cycles();
    let database = Database::empty().await;
    let mut stage = FaultHarness::postgres(3, &database.url, &database.url).await;
    stage.effects.takes(EXECUTION);
    stage.start_all().await;
    stage.busy().await;
    for cycle in 0..cycles {
        stage.once().await;
        for _ in 0..fastrand::usize(0..4) {
            stage.publish().await;
        }
        pause(sample(1200)).await;
        // once in a while all of them at once
        let all = cycle % 10 == 9;
        let victims = if all { vec![0, 1, 2] } else { vec![fastrand::usize(0..3)] };
        for victim in &victims {
            stage.kill(*victim).await;
        }
        pause(sample(500)).await;
        for victim in victims {
            stage.start(victim).await;
        }
    }
    let verdict = stage.must_hold(&format!("postgres, {cycles} cycles, {} kills", stage.known.crashes)).await;
    assert!(verdict.instants > cycles && verdict.effects > cycles, "{verdict}");
}

/// Until services that find nothing have come to rest.
const REST: Duration = Duration::from_secs(25);
/// Most time that the loss of an instance may cost a run, and what a loaded machine may add.
const LOSS: TimeDelta = TimeDelta::seconds(10 + 2);

#[tokio::test]
async fn instance_at_rest_goes_on_with_what_a_dead_one_had_claimed() {
    let database = Database::empty().await;
    let mut stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    stage.start_all().await;
    pause(REST).await;
    // the first is asked, and nobody tells the other
    let at = machine_now() + TimeDelta::seconds(8);
    for _ in 0..20 {
        stage.task(json!({ "type": "schedule", "at": at.to_rfc3339(), "overlap": "allow" })).await;
    }
    pause((at - TimeDelta::milliseconds(500) - machine_now()).to_std().unwrap_or_default()).await;
    stage.kill(0).await;
    pause(LOSS.to_std().expect("a length")).await;
    let effects = stage.effects.journal();
    assert_eq!(effects.len(), 20, "{}", stage.logs());
    let late = effects.iter().map(|effect| effect.at - effect.scheduled_for).max().expect("effects");
    assert!(late <= LOSS, "{late}");
    println!("postgres, the one that had claimed is killed, the other at rest: {} s late at most", late.num_seconds());
    stage.must_hold("postgres, a claimer killed beside one at rest").await;
}
