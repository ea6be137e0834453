//! `kill -9`, over and over, at whatever a process is doing.

use std::time::Duration;

use reveille::clock::pause;

use super::stage::Stage;
use crate::support::postgres::Database;
use crate::support::servers;

/// One run of the dead at a time: how long an execution takes, so that kills meet some.
const EXECUTION: Duration = Duration::from_millis(40);

fn some(most: u64) -> Duration {
    Duration::from_millis(fastrand::u64(0..most))
}

#[tokio::test]
async fn on_sqlite_an_instance_that_is_killed_over_and_over_loses_and_doubles_nothing() {
    let cycles = servers::chaos_cycles();
    let mut stage = Stage::sqlite().await;
    stage.effects.takes(EXECUTION);
    stage.start(0).await;
    stage.busy().await;
    for _ in 0..cycles {
        stage.once().await;
        for _ in 0..fastrand::usize(0..4) {
            stage.publish().await;
        }
        pause(some(1500)).await;
        stage.kill(0).await;
        pause(some(500)).await;
        stage.start(0).await;
    }
    let verdict = stage.must_hold(&format!("sqlite, {cycles} kills")).await;
    assert!(verdict.instants > cycles && verdict.effects > cycles, "{verdict}");
}

#[tokio::test]
async fn on_postgres_three_instances_of_which_any_is_killed_lose_and_double_nothing() {
    let cycles = servers::chaos_cycles();
    let database = Database::empty().await;
    let mut stage = Stage::postgres(3, &database.url, &database.url).await;
    stage.effects.takes(EXECUTION);
    stage.start_all().await;
    stage.busy().await;
    for cycle in 0..cycles {
        stage.once().await;
        for _ in 0..fastrand::usize(0..4) {
            stage.publish().await;
        }
        pause(some(1200)).await;
        // once in a while all of them at once
        let all = cycle % 10 == 9;
        let victims = if all { vec![0, 1, 2] } else { vec![fastrand::usize(0..3)] };
        for victim in &victims {
            stage.kill(*victim).await;
        }
        pause(some(500)).await;
        for victim in victims {
            stage.start(victim).await;
        }
    }
    let verdict = stage.must_hold(&format!("postgres, {cycles} cycles, {} kills", stage.known.crashes)).await;
    assert!(verdict.instants > cycles && verdict.effects > cycles, "{verdict}");
}
