//! SIGSTOP for longer than a lease: the others take its runs over, and what the zombie does when it wakes is fenced.

use std::time::Duration;

use chrono::TimeDelta;
use reveille::clock::{machine_now, pause};
use serde_json::json;

use super::stage::{LEASE_SECONDS, PATIENCE, Stage};
use crate::support::binary::signal;
use crate::support::postgres::Database;

/// Longer than a lease and a look of the rescuer, so that runs of the sleeping one are executed elsewhere when it wakes.
const SLEEP: Duration = Duration::from_millis(4500);
/// So long that the second execution is under way when the first one's worker wakes, and its answer is there.
const EXECUTION: Duration = Duration::from_millis(4000);

/// Who sleeps, round for round, in step with nobody who fires: one instance may have all the runs of a round.
const SLEEPERS: [usize; 6] = [0, 1, 1, 0, 0, 1];

/// Of two instances one sleeps in the middle of the runs, until some of them were taken over.
pub async fn sleeps_over_its_leases(stage: &mut Stage) {
    stage.start_all().await;
    stage.effects.takes(EXECUTION);
    for (round, sleeper) in SLEEPERS.into_iter().enumerate() {
        let before = stage.effects.journal().len();
        let at = (machine_now() + TimeDelta::seconds(4)).to_rfc3339();
        for _ in 0..12 {
            stage.task(json!({ "type": "schedule", "at": at, "overlap": "allow" })).await;
        }
        let begun = std::time::Instant::now();
        while stage.effects.journal().len() < before + 12 {
            assert!(begun.elapsed() < PATIENCE, "round {round} did not begin\n{}", stage.logs());
            pause(Duration::from_millis(20)).await;
        }
        let sleeper = stage.service(sleeper).process_id();
        signal("STOP", sleeper).await;
        stage.known.crashes += 1;
        pause(SLEEP).await;
        signal("CONT", sleeper).await;
        pause(EXECUTION).await;
        if stage.effects.journal().iter().any(|effect| effect.attempt > 1) {
            return;
        }
    }
}

#[tokio::test]
async fn an_instance_that_sleeps_for_longer_than_its_leases_writes_nothing_when_it_wakes() {
    let database = Database::empty().await;
    let mut stage = Stage::postgres(2, &database.url, &database.url).await;
    assert!(SLEEP.as_secs_f64() > 2.0 * LEASE_SECONDS);
    sleeps_over_its_leases(&mut stage).await;
    let verdict = stage.must_hold("postgres, an instance asleep over its leases").await;
    let again = stage.known.effects.iter().filter(|effect| effect.attempt > 1).count();
    assert!(again > 0, "no run of the sleeping one was taken over: {verdict}");
    stage.must_say("a run was left by its worker");
}
