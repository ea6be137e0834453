//! `herd`: the full hour. Very many tasks of many tenants are due at one instant, and in the same second a lone one of
//! another tenant, among a million that are not.

use std::time::{Duration, Instant};

use chrono::TimeDelta;

use crate::base::clock::{pause, to_delta};
use crate::bench::figures::burst::next_second;
use crate::bench::fixtures::{draft, hourly};
use crate::bench::instance::{PATIENCE, record, until_recorded};
use crate::bench::limits::fire;
use crate::bench::{Bench, BenchEnv, BenchFigure, Instance, Samples, Scale, sql_baseline};

/// Tenant of the lone task.
const LONE: &str = "lone";
/// When it is due, after the herd.
const AFTER: TimeDelta = TimeDelta::milliseconds(500);
/// How late it may be, in milliseconds.
const MOST_LATE: f64 = 50.0;
/// From the last task made until the herd is due, at least.
const AHEAD: Duration = Duration::from_secs(5);

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("herd") {
        return Ok(());
    }
    let (stored, herd, fires) =
        (bench.size.stored_tasks, bench.size.herd.min(bench.size.stored_tasks / 2), bench.size.fires);
    bench.progress(&format!("herd: {herd} tasks at one instant, among {stored}"));
    let (limit, took, lone, late) = BenchEnv::with(bench.at, async |place| {
        let instance = Instance::build(place).await?;
        let bare = fire::measure(place.postgres()?, fires).await?.value;
        let fixtures = instance.fixtures(place);
        let clock = instance.store.clock().clone();
        let began = Instant::now();
        fixtures.due(stored - herd, clock.now() + TimeDelta::days(1)).await?;
        // as fast as those before, with room
        let making = began.elapsed().mul_f64(2.0 * herd as f64 / (stored - herd) as f64);
        let at = next_second(clock.now() + to_delta(making + AHEAD));
        fixtures.due(herd, at).await?;
        fixtures.due_of(LONE, &draft(hourly()), 1, at + AFTER).await?;
        anyhow::ensure!(clock.now() < at - TimeDelta::seconds(2), "the tasks were made too late");
        let scale = Scale::of(place).await?;
        instance.probe.start_recording();
        let service = instance.start().await?;
        let all = herd as i64 + 1;
        service.probe.until_executed(all as u64, PATIENCE).await?;
        until_all_recorded(place, all).await?;
        let (executed, noted) = (service.probe.executed() as i64, service.probe.take_recorded());
        service.stop().await;
        let record = record(place).await?;
        anyhow::ensure!((record.runs, record.finished) == (all, all), "of {all} fires came {record:?}");
        anyhow::ensure!(executed == all, "{all} runs were executed {executed} times");
        let late = |of_lone: bool| {
            let starts = noted.iter().filter(|start| (start.tenant == LONE) == of_lone);
            Samples::new(starts.map(|start| scale.late(start.at, start.scheduled_for)).collect())
        };
        let seconds = Samples::new(noted.iter().map(|start| scale.late(start.at, at) / 1000.0).collect());
        Ok((herd as f64 / bare, seconds, late(true).percentile(1.0), late(false)))
    })
    .await?;
    let what = "tasks that are due at one instant: until the last has started";
    let figure = BenchFigure::new("herd", what, "s", herd, took.percentile(1.0))
        .with_limit("as many divided by the rate of bare fire", limit)
        .at_most(1.5)
        .with_part_at_most("a lone task of another tenant late by", "ms", lone, MOST_LATE)
        .require_not_early(&late)
        .spread(&took);
    // of the same run, where that was measured, too
    let by_itself = bench.figures.iter().find(|figure| figure.name == "fire").and_then(sql_baseline::baseline_of);
    bench.figures.push(match by_itself {
        Some(rate) => {
            figure.with_part("as many at the rate of the statements of `fire` by themselves", "s", herd as f64 / rate)
        }
        None => figure,
    });
    Ok(())
}

/// Returns once the end of each of so many runs is recorded.
async fn until_all_recorded(place: &BenchEnv, runs: i64) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let recorded = place.inside.count("select count(*) from runs").await?;
        if recorded >= runs {
            return until_recorded(place).await;
        }
        anyhow::ensure!(began.elapsed() < PATIENCE, "{recorded} of {runs} runs are recorded");
        pause(Duration::from_millis(100)).await;
    }
}
