//! The clock of the database jumps an hour and a day, forwards and back. On SQLite it is the process's own.

use std::path::Path;
use std::time::Duration;

use reveille::clock::pause;

use super::stage::Stage;
use crate::support::servers;

/// Longer than the services need to look at the clock again.
const WELL: Duration = Duration::from_secs(3);

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// Moves the process's clock to so many seconds from the machine's.
fn step(file: &Path, seconds: i64) {
    // put in its place whole: the process reads it at each look at the clock
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
    std::fs::rename(&new, file).unwrap();
}

#[tokio::test]
async fn a_clock_that_jumps_an_hour_and_a_day_both_ways_fires_nothing_twice_and_loses_nothing() {
    let stage = Stage::sqlite().await;
    let file = stage.service(0).dir.path().join("clock");
    step(&file, 0);
    let mut stage = stage
        .with("LD_PRELOAD", &servers::faketime())
        .with("FAKETIME_TIMESTAMP_FILE", &file.display().to_string())
        .with("FAKETIME_NO_CACHE", "1")
        .with("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    stage.known.clock_stepped = true;
    stage.start(0).await;
    stage.busy().await;
    // back is only where a clock can go that was ahead: before its creation a task is not due
    for seconds in [0, HOUR, 0, HOUR, DAY, HOUR, DAY, 0, DAY, DAY + HOUR] {
        step(&file, seconds);
        pause(WELL).await;
        let verdict = stage.verdict().await;
        verdict.must_hold();
    }
    let verdict = stage.must_hold("sqlite, the clock an hour and a day ahead and back, four times").await;
    let days = verdict.instants as i64 / DAY;
    assert!(days >= 4, "a day of seven tasks was due: {verdict}");
    assert!(verdict.fires < verdict.instants / 10, "a jump is a misfire, no stampede: {verdict}");
    assert!(verdict.runs < 2000, "and costs no row for each instant: {verdict}");
}
