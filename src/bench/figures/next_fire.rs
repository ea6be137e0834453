//! `next_fire`: what the next instant of a cron task with a zone takes to find, and what a task takes in memory. Both
//! are parts of a fire, which nobody asks for alone, so they are not judged.
//!
//! No task keeps a parsed pattern: one that waits is a row in the database, and once it is claimed ahead, an entry in a
//! heap. Patterns that were asked for lately are kept, a few hundred in all.

use std::hint::black_box;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use crate::base::invalid::ValidationErrors;
use crate::bench::env::random_id;
use crate::bench::figure::median;
use crate::bench::figures::rest::memory;
use crate::bench::{Bench, BenchFigure};
use crate::domain::trigger::Trigger;
use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::engine::scheduling::run_slots::RunSlots;
use crate::store::{Lease, RunClaim};

/// In microseconds.
const MOST: f64 = 4.0;
/// Claims of which the heap is weighed.
const CLAIMS: usize = 200_000;

pub fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("next_fire") {
        return Ok(());
    }
    bench.progress("next_fire: instants of a cron task with a zone");
    let instants = if bench.size.quick { 2_000 } else { 100_000 };
    let mut faults = ValidationErrors::new();
    let written = json!({ "type": "schedule", "cron": "30 8 * * 1-5", "timezone": "Europe/Berlin" });
    let trigger = Trigger::parse(&written, "/trigger", DateTime::UNIX_EPOCH, &mut faults);
    let Some(Trigger::Schedule(schedule)) = trigger else { return Err(faults.into()) };
    let start = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
    let (mut anew, mut compiled) = (Vec::new(), Vec::new());
    for _ in 0..bench.size.rounds {
        anew.push(each(instants, start, |after| schedule.next_after(after, start).ok().flatten())?);
        let timetable = schedule.compile(start).map_err(|fault| ValidationErrors(vec![fault]))?;
        compiled.push(each(instants, start, |after| timetable.next_after(after))?);
    }
    let held = bytes_held()?;
    let what = "next instant of `30 8 * * 1-5` in Europe/Berlin, its schedule compiled each time: a part of each fire";
    let figure = BenchFigure::new("next_fire", what, "µs", instants, median(anew))
        .with_limit("what it may take", MOST)
        .with_part("of a schedule that is compiled already", "µs", median(compiled))
        .with_part("memory of a task that is claimed ahead", "bytes", held);
    bench.figures.push(figure);
    Ok(())
}

/// Microseconds that each of so many instants takes, one after another.
fn each(
    count: usize,
    start: DateTime<Utc>,
    next: impl Fn(DateTime<Utc>) -> Option<DateTime<Utc>>,
) -> anyhow::Result<f64> {
    let mut instant = start;
    let began = Instant::now();
    for _ in 0..count {
        instant = black_box(next(black_box(instant)).ok_or_else(|| anyhow::anyhow!("the schedule has ended"))?);
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / count as f64)
}

/// Memory of the heap of claims per claim, as the kernel sees it.
fn bytes_held() -> anyhow::Result<f64> {
    let claims: Vec<RunClaim> = (0..CLAIMS as i64)
        .map(|token| {
            let run_at = DateTime::UNIX_EPOCH + TimeDelta::milliseconds(token);
            RunClaim { lease: Lease { run_id: random_id(), token }, run_at, until: run_at, tenant_hash: 0 }
        })
        .collect();
    let held = PrefetchBuffer::new(0, RunSlots::new(CLAIMS, 0));
    let before = memory(std::process::id())?;
    held.add(claims);
    let after = memory(std::process::id())?;
    anyhow::ensure!(held.next().is_some(), "the heap is empty");
    Ok((after - before).max(0.0) / CLAIMS as f64)
}
