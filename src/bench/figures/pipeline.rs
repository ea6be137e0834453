//! `pipeline_fire` and `pipeline_fire_1000`: pipelines of one step that only computes, all due at once, by the service
//! with its default configuration. The figures of `fire` and `burst_…` have room for all runs at once instead.

use crate::bench::figures::burst::{BurstPlan, BurstTimes, STEP_DONE, measure_bursts};
use crate::bench::figures::fire::bare_fire;
use crate::bench::figures::write::BODY;
use crate::bench::fixtures::{hourly, pipeline_draft};
use crate::bench::limits::{rows, timer};
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Rate, Samples};

/// The name of the rate, and how many are due.
const RATE: (&str, usize) = ("pipeline_fire", 10_000);
/// The name of the lateness, and how many are due.
const LATE: (&str, usize) = ("pipeline_fire_1000", 1_000);
/// The share of bare fire that is to be reached.
const SHARE: f64 = 0.4;
/// How late those of the rate, and those of the lateness, may be, in milliseconds.
const MOST_LATE: f64 = 300.0;
const FEWER_LATE: f64 = 40.0;

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if bench.includes(RATE.0) {
        rate(bench).await?;
    }
    if bench.includes(LATE.0) {
        lateness(bench).await?;
    }
    Ok(())
}

async fn rate(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let (name, tasks) = (RATE.0, bench.size.burst(RATE.1));
    let on_postgres = bench.at.database_url.is_some();
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 1..=bench.size.rounds {
        bench.progress(&format!("{name}: {tasks} pipelines, round {round}"));
        bare.push(BenchEnv::with(bench.at, async |place| limit(bench, place, tasks).await).await?);
        ours.push(BenchEnv::with(bench.at, async |place| fire_all(place, tasks).await).await?);
    }
    let BurstTimes { starts, ends } = bursts(bench, tasks).await?;
    let (limit, value) = (Rate::median(bare), Rate::median(ours));
    let words = match on_postgres {
        true => "bare fire of as many, 500 at once, 2 connections",
        false => "SQLite, synchronous = FULL: rows inserted, 100 in a statement and commit",
    };
    bench.limits.push(FigureLimit::new("bare_pipeline_fire", words, "runs/s", limit.value));
    let what = "due → run recorded → pipeline of one step that only computes → finished, by default configuration";
    let figure = BenchFigure::new(name, what, "runs/s", tasks, value.value);
    let figure = match on_postgres {
        true => figure.with_limit("bare fire", limit.value).at_least(SHARE),
        // as of `sqlite_fire`, no share of it is promised for pipelines
        false => figure.with_limit("SQLite's 100-row inserts", limit.value),
    };
    let late = starts.percentile(0.99);
    let figure = figure.with_part_at_most("late, where all are due at one instant, p99", "ms", late, MOST_LATE);
    let figure = figure.require_not_early(&starts).with_part(STEP_DONE, "ms", ends.percentile(0.99));
    bench.figures.push(value.profile(figure));
    Ok(())
}

async fn limit(bench: &Bench<'_>, place: &BenchEnv, fires: usize) -> anyhow::Result<Rate> {
    if place.is_postgres() {
        return bare_fire(place, fires).await;
    }
    Ok(Rate::of(rows::rates(&place.bare, bench.size.rows(), BODY).await?.inserted))
}

async fn fire_all(place: &BenchEnv, tasks: usize) -> anyhow::Result<Rate> {
    let instance = Instance::build_with(&place.default_config(), Some("pipeline")).await?;
    let now = instance.store.clock().now();
    instance.fixtures(place).due_as(&pipeline_draft(hourly()), tasks, now).await?;
    instance.run_all(place, tasks, tasks).await
}

async fn lateness(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let (name, tasks) = (LATE.0, bench.size.burst(LATE.1));
    bench.progress(&format!("{name}: {tasks} pipelines that are due at once, {} times", bench.size.rounds));
    let mut sleeps = Vec::new();
    for _ in 0..bench.size.rounds {
        sleeps.push(timer::concurrent(tasks).await);
    }
    let (sleeps, BurstTimes { starts, ends }) = (Samples::all(sleeps), bursts(bench, tasks).await?);
    let limit = sleeps.percentile(0.99);
    let words = format!("timer burst: {tasks} sleeps of the runtime that end at once; p99");
    bench.limits.push(FigureLimit::new(format!("timer_{name}"), words, "ms", limit).spread(sleeps.distribution("ms")));
    let what = format!("lateness of {tasks} pipelines that are due at one instant, by default configuration, p99");
    let figure = BenchFigure::new(name, what, "ms", starts.count(), starts.percentile(0.99));
    let figure = figure.with_limit("timer burst of that size, p99", limit).at_most_value(FEWER_LATE);
    let figure = figure.require_not_early(&starts).spread(&starts);
    bench.figures.push(figure.with_part(STEP_DONE, "ms", ends.percentile(0.99)));
    Ok(())
}

/// How late so many start, and are done, in all rounds.
async fn bursts(bench: &Bench<'_>, tasks: usize) -> anyhow::Result<BurstTimes> {
    let plan = BurstPlan { draft: pipeline_draft(hourly()), tasks, rounds: bench.size.rounds, old: 0 };
    measure_bursts(bench, &plan, BenchEnv::default_config).await
}
