//! `drain` and `drain_100k`: a backlog of queued runs is worked off, by one instance, on tables that were never
//! analysed.

use crate::bench::figure::median;
use crate::bench::limits::drain;
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Point, Rate, sql_baseline};

/// The longer backlog is so many times the other.
const LONGER: usize = 5;
/// The share of bare SQL that is to be reached.
const SHARE: f64 = 0.5;
const WHAT: &str = "a backlog of queued runs, started, executed and finished by one instance, statistics missing";
const BARE: &str = "bare drain: 500 claimed with skip locked, taken from the queue and marked done, 2 connections";

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes_any(&["drain", "drain_100k"]) {
        return Ok(());
    }
    let (short, rounds) = (bench.size.backlog, bench.size.rounds);
    let first = drain_queue(bench, short, rounds).await?;
    if bench.includes("drain") {
        bench.limits.push(FigureLimit::new("bare_drain", BARE, "runs/s", first.limit.value));
        let figure = BenchFigure::new("drain", WHAT, "runs/s", short, first.ours.value);
        let figure = figure.with_limit("bare drain", first.limit.value).at_least(SHARE);
        let figure = sql_baseline::annotate(figure, baseline_rate(bench, short, rounds).await?);
        bench.figures.push(first.profile(figure));
    }
    if !bench.includes("drain_100k") {
        return Ok(());
    }
    let long = short * LONGER;
    let mut series = Vec::new();
    // from a twentieth of it on, in steps that look even on a logarithmic axis
    let steps = [short / 20, short / 10, short / 4, short / 2];
    for size in steps.into_iter().skip(if bench.size.quick { 3 } else { 0 }) {
        series.push(drain_queue(bench, size.max(1), 1).await?.point());
    }
    series.push(first.point());
    if !bench.size.quick {
        series.push(drain_queue(bench, short * 5 / 2, 1).await?.point());
    }
    let last = drain_queue(bench, long, rounds.min(2)).await?;
    series.push(last.point());
    bench.limits.push(FigureLimit::new("bare_drain_100k", BARE, "runs/s", last.limit.value));
    let (value, limit) = (last.ours.value, last.limit.value);
    let kept = value / first.ours.value;
    let figure = BenchFigure::new("drain_100k", WHAT, "runs/s", long, value)
        .with_limit("bare drain of as many", limit)
        .with_part("of the rate of drain", "", kept)
        .at_least(SHARE)
        .require("≥ 90 % of the rate of `drain`".into(), kept >= 0.9);
    bench.figures.push(BenchFigure { series, ..last.profile(figure) });
    Ok(())
}

async fn baseline_rate(bench: &Bench<'_>, size: usize, rounds: usize) -> anyhow::Result<f64> {
    let mut rates = Vec::new();
    for round in 1..=rounds {
        bench.progress(&format!("drain: {size} queued runs by statements alone, round {round}"));
        rates.push(BenchEnv::with(bench.at, async |place| sql_baseline::drain(place, size).await).await?);
    }
    Ok(median(rates))
}

/// A backlog of one size that was drained.
struct DrainedBacklog {
    size: u64,
    ours: Rate,
    limit: Rate,
}

impl DrainedBacklog {
    fn point(&self) -> Point {
        Point { size: self.size, value: self.ours.value, limit: self.limit.value }
    }

    fn profile(&self, figure: BenchFigure) -> BenchFigure {
        self.limit.profile_limit(self.ours.profile(figure))
    }
}

async fn drain_queue(bench: &Bench<'_>, size: usize, rounds: usize) -> anyhow::Result<DrainedBacklog> {
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.progress(&format!("drain: {size} queued runs, round {round}"));
        let (limit, value) = BenchEnv::with(bench.at, async |place| {
            let instance = Instance::build(place).await?;
            let limit = drain::measure(place.postgres()?, size).await?;
            for table in ["queue", "runs"] {
                place.inside.execute(format!("alter table {table} set (autovacuum_enabled = false)")).await?;
            }
            instance.fixtures(place).queued(size).await?;
            Ok((limit, instance.run_all(place, size, size.min(500)).await?))
        })
        .await?;
        bare.push(limit);
        ours.push(value);
    }
    Ok(DrainedBacklog { size: size as u64, ours: Rate::median(ours), limit: Rate::median(bare) })
}
