//! The clock of the database jumps an hour and a day, forwards and back. On SQLite it is the process's own, on Postgres
//! that of another process.

use std::path::Path;
use std::time::Duration;

use reveille::base::clock::pause;
use reveille::base::id::Scope;
use reveille::domain::task::change::TaskChange;
use serde_json::json;

use super::harness::FaultHarness;
use crate::support::binary::TempDir;
use crate::support::postgres_server::PostgresServer;
use crate::support::stepped_clock::{by_the_clock_in, step};
use crate::support::world::{World, on_both};

/// Longer than the services need to look at the clock again.
const WELL: Duration = Duration::from_secs(3);

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

on_both! {
    change_by_a_clock_that_is_behind_takes_no_run_back_that_was_due
}

async fn change_by_a_clock_that_is_behind_takes_no_run_back_that_was_due(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "queue_all" });
    let task = instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    world.advance_to("08:01");
    instance.fire().await;
    instance.settle(1).await;
    world.advance_to("08:02");
    instance.fire().await;
    instance.settle(1).await;
    // the first ends, and the second, which waited for it, is handed its slot by an instance that is a little ahead
    world.advance(0.2);
    world.journal.open_gate();
    let first = instance.runs(&task).await[0].id;
    instance.until(first, |run| run.state.is_final()).await;
    world.advance(-0.1);
    instance.on(move |store| async move { store.change_task(&Scope::Every, task.id, &pausing()).await }).await.unwrap();
    assert_eq!(world.number("select count(*) from runs").await, 2, "what was due has its record");
    world.advance(0.2);
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, 2);
    instance.finish(&world).await;
}

fn pausing() -> TaskChange {
    TaskChange::Pause { reason: None }
}

/// Jumps about, and judges after each jump: back only to where the clock has been.
async fn check_clock_jumps(stage: &mut FaultHarness, file: &Path, what: &str) {
    stage.known.clock_stepped = true;
    // a jump takes every lease away
    stage.known.crashes = 3;
    stage.start_all().await;
    stage.busy().await;
    for seconds in [0, HOUR, 0, HOUR, DAY, HOUR, DAY, 0, DAY, DAY + HOUR] {
        step(file, seconds);
        pause(WELL).await;
        stage.verdict().await.must_hold();
    }
    let verdict = stage.must_hold(what).await;
    let days = verdict.instants as i64 / DAY;
    assert!(days >= 4, "a day of seven tasks was due: {verdict}");
    assert!(verdict.fires < verdict.instants / 10, "a jump is a misfire, no stampede: {verdict}");
    assert!(verdict.runs < 2500, "and costs no row for each instant: {verdict}");
}

#[tokio::test]
async fn process_whose_clock_jumps_an_hour_and_a_day_both_ways_fires_nothing_twice_and_loses_nothing() {
    let mut stage = FaultHarness::sqlite().await;
    let file = stage.service(0).dir.path().join("clock");
    step(&file, 0);
    for (name, value) in by_the_clock_in(&file) {
        stage = stage.with(name, &value);
    }
    check_clock_jumps(&mut stage, &file, "sqlite, the clock an hour and a day ahead and back").await;
}

#[tokio::test]
async fn postgres_whose_clock_jumps_an_hour_and_a_day_both_ways_fires_nothing_twice_and_loses_nothing() {
    let dir = TempDir::new();
    let file = dir.path().join("clock");
    step(&file, 0);
    let server = PostgresServer::start_with(&by_the_clock_in(&file)).await;
    let mut stage = FaultHarness::postgres(2, &server.url(), &server.url()).await;
    check_clock_jumps(&mut stage, &file, "postgres, its clock an hour and a day ahead and back").await;
}
