//! Asked to stop under load: runs at work are given their time or handed back; a second signal ends it at once.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};
use serde_json::json;

use super::harness::{FaultHarness, LEASE_VARIABLE, PATIENCE};
use crate::support::binary::signal;
use crate::support::postgres::Database;

async fn until_executing(stage: &FaultHarness, more_than: usize) {
    let begun = Instant::now();
    while stage.effects.journal().len() <= more_than {
        assert!(begun.elapsed() < PATIENCE, "nothing is executed\n{}", stage.logs());
        pause(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn instances_that_are_asked_to_stop_under_load_leave_nothing_behind() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    // nothing is left to the end of a lease
    let mut stage = stage.with(LEASE_VARIABLE, "60");
    stage.effects.takes(Duration::from_millis(300));
    stage.start_all().await;
    stage.busy().await;
    for round in 0..6 {
        stage.once().await;
        until_executing(&stage, stage.effects.journal().len()).await;
        pause(Duration::from_millis(700)).await;
        let begun = Instant::now();
        assert!(stage.terminate(round % 2).await, "it ends in order\n{}", stage.logs());
        assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
        stage.start(round % 2).await;
    }
    stage.must_hold("six stops under load").await;
}

#[tokio::test]
async fn second_signal_ends_it_at_once_and_what_was_at_work_goes_on_later() {
    let mut stage = FaultHarness::sqlite().await.with(LEASE_VARIABLE, "6");
    stage.effects.takes(Duration::from_secs(15));
    stage.start(0).await;
    let at = (machine_now() + TimeDelta::seconds(2)).to_rfc3339();
    stage.task(json!({ "type": "schedule", "at": at })).await;
    until_executing(&stage, 0).await;
    let process = stage.service(0).process_id();
    signal("TERM", process).await;
    stage.service(0).until_logged("a second signal stops at once").await;
    let begun = Instant::now();
    signal("TERM", process).await;
    let ended = stage.ended(0).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    assert!(!ended.success(), "it did not end in order: {ended}");
    stage.known.crashes += 1;
    stage.effects.takes(Duration::ZERO);
    stage.start(0).await;
    let verdict = stage.must_hold("a second signal").await;
    assert_eq!((verdict.runs, verdict.effects), (1, 2), "its run was executed again");
}
