//! `fire` and `sqlite_fire`: tasks that are all due become runs, are started, executed and finished, by one instance.

use serde_json::Value;

use crate::bench::figure::median;
use crate::bench::fixtures::{hourly, hourly_with_a_slot};
use crate::bench::limits::{fire, rows};
use crate::bench::{Bench, BenchEnv, BenchFigure, BenchSite, FigureLimit, Instance, Rate, sql_baseline};

const WHAT: &str = "due → run recorded → executor that does nothing → finished, by one instance";

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("fire") {
        return Ok(());
    }
    let fires = bench.size.fires;
    let (mut bare, mut ours, mut slotted, mut alone) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.size.rounds {
        bench.progress(&format!("fire: {fires} tasks, round {round}"));
        let (limit, value) = BenchEnv::with(bench.at, async |place| {
            // what comes second finds the server warm, or its disk busy: they take turns
            let first = if round % 2 == 1 { Some(bare_fire(place, fires).await?) } else { None };
            let value = fire_all(place, fires, hourly()).await?;
            let limit = match first {
                Some(limit) => limit,
                None => bare_fire(place, fires).await?,
            };
            Ok((limit, value))
        })
        .await?;
        bare.push(limit);
        ours.push(value);
        let with_slots =
            BenchEnv::with(bench.at, async |place| fire_all(place, fires, hourly_with_a_slot()).await).await?;
        slotted.push(with_slots.value);
        alone.push(BenchEnv::with(bench.at, async |place| sql_baseline::fire(place, fires).await).await?);
    }
    let (limit, value) = (Rate::median(bare), Rate::median(ours));
    let bare_words = "bare fire: 500 claimed, moved on, recorded and marked done in two statements, 2 connections";
    bench.limits.push(FigureLimit::new("bare_fire", bare_words, "fires/s", limit.value));
    let figure = BenchFigure::new("fire", WHAT, "runs/s", fires, value.value).with_limit("bare fire", limit.value);
    let figure = figure.with_part("runs that take their task's slot", "runs/s", median(slotted));
    let figure = sql_baseline::annotate(figure.at_least(0.5), median(alone));
    bench.figures.push(limit.profile_limit(value.profile(figure)));
    Ok(())
}

/// Fires on SQLite, beside its 100-row inserts.
pub async fn on_sqlite(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("sqlite_fire") {
        return Ok(());
    }
    let at: BenchSite = bench.at.on_sqlite();
    let (fires, count) = (bench.size.fires / 5, bench.size.rows());
    let (mut inserted, mut updated, mut ours, mut by_itself) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.size.rounds {
        bench.progress(&format!("sqlite_fire: {fires} tasks, round {round}"));
        let (rows, value) = BenchEnv::with(&at, async |place| {
            let rows = rows::rates(&place.bare, count, crate::bench::figures::write::BODY).await?;
            Ok((rows, fire_all(place, fires, hourly()).await?))
        })
        .await?;
        inserted.push(rows.inserted);
        updated.push(rows.updated);
        ours.push(value);
        by_itself.push(BenchEnv::with(&at, async |place| sql_baseline::fire(place, fires).await).await?);
    }
    let limit = median(inserted);
    let words = |done| format!("SQLite, synchronous = FULL: rows {done}, 100 in a statement and commit");
    bench.limits.push(FigureLimit::new("sqlite_insert_100", words("inserted"), "rows/s", limit));
    bench.limits.push(FigureLimit::new("sqlite_update_100", words("updated"), "rows/s", median(updated)));
    let what = format!("{WHAT}, on SQLite with synchronous = FULL");
    let value = Rate::median(ours);
    let figure = BenchFigure::new("sqlite_fire", what, "runs/s", fires, value.value);
    let figure = figure.with_limit("SQLite's 100-row inserts", limit).at_least(0.15);
    bench.figures.push(value.profile(sql_baseline::annotate(figure, median(by_itself))));
    Ok(())
}

/// The limit of so many fires.
pub async fn bare_fire(place: &BenchEnv, fires: usize) -> anyhow::Result<Rate> {
    // its tables are copies of the service's
    Instance::build(place).await?.store.close().await;
    fire::measure(place.postgres()?, fires).await
}

async fn fire_all(place: &BenchEnv, fires: usize, trigger: Value) -> anyhow::Result<Rate> {
    let instance = Instance::build(place).await?;
    instance.fixtures(place).due_by(trigger, fires, instance.store.clock().now()).await?;
    instance.run_all(place, fires, fires).await
}
