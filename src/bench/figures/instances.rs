//! `instances_2` and `instances_4`: as many processes on one Postgres share the fires, and none is lost or doubled.

use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use futures::future::try_join_all;

use crate::base::clock::pause;
use crate::bench::figure::median;
use crate::bench::instance::{PATIENCE, record};
use crate::bench::{Bench, BenchEnv, BenchFigure, BenchSite, Instance, Part, PartProcess};

/// How often it is looked whether all is done.
const LOOK: Duration = Duration::from_millis(250);

/// Result of a number of instances.
struct Shared {
    /// Runs a second.
    rate: f64,
    lost: i64,
    doubled: i64,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let wanted: Vec<usize> = [2, 4].into_iter().filter(|n| bench.includes(&format!("instances_{n}"))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let (at, fires) = (bench.at, bench.size.fires);
    let counts: Vec<usize> = [1].into_iter().chain(wanted).collect();
    let mut rounds: Vec<Vec<Shared>> = counts.iter().map(|_| Vec::new()).collect();
    for round in 1..=bench.size.rounds {
        for (count, results) in counts.iter().zip(&mut rounds) {
            bench.progress(&format!("instances: {fires} tasks, {count} at work, round {round}"));
            results.push(BenchEnv::with(at, async |place| share(at, place, *count, fires).await).await?);
        }
    }
    let rate = |results: &[Shared]| median(results.iter().map(|shared| shared.rate).collect());
    let one = rate(&rounds[0]);
    for (count, results) in counts.iter().zip(&rounds).skip(1) {
        let sum = |of: fn(&Shared) -> i64| results.iter().map(of).sum::<i64>() as f64;
        let what = format!("due → finished, by {count} processes on one Postgres together");
        let figure = BenchFigure::new(format!("instances_{count}"), what, "runs/s", fires, rate(results))
            .with_limit("one process", one)
            .at_least(0.9)
            .with_part_at_most("lost", "runs", sum(|shared| shared.lost), 0.0)
            .with_part_at_most("doubled", "runs", sum(|shared| shared.doubled), 0.0);
        bench.figures.push(figure);
    }
    Ok(())
}

async fn share(at: &BenchSite, place: &BenchEnv, count: usize, fires: usize) -> anyhow::Result<Shared> {
    let instance = Instance::build(place).await?;
    instance.fixtures(place).due(fires, instance.store.clock().now()).await?;
    instance.store.close().await;
    let part = Part::engine(place);
    let mut processes = try_join_all((0..count).map(|_| PartProcess::start(at, &part))).await?;
    let began: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(place.postgres()?).await?;
    try_join_all(processes.iter_mut().map(PartProcess::begin)).await?;
    let finished = "select count(*) from runs where finished_at is not null";
    let all_done = async {
        while place.inside.count(finished).await? < fires as i64 {
            pause(LOOK).await;
        }
        anyhow::Ok(())
    };
    // losses are told, not waited for
    if let Ok(done) = tokio::time::timeout(PATIENCE, all_done).await {
        done?;
    }
    let executed: u64 = try_join_all(processes.into_iter().map(PartProcess::stop)).await?.iter().sum();
    let record = record(place).await?;
    let last = record.last.context("nothing was executed at all")?;
    Ok(Shared {
        rate: fires as f64 / (last - began).as_seconds_f64(),
        lost: fires as i64 - record.finished.min(record.tasks),
        doubled: (record.runs - record.tasks) + (executed as i64 - record.runs).max(0),
    })
}
