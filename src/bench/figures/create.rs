//! `create_single`: tasks are made one by one, by 16 clients at once, as `POST /v1/tasks` makes them. `create_batch`: a
//! hundred at a time, by the store itself. That is a part of an import, which nobody asks for alone: not judged.

use std::time::Instant;

use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::bench::figure::median;
use crate::bench::figures::write::BODY;
use crate::bench::fixtures::{draft, tenant};
use crate::bench::limits::{commits, rate, rows};
use crate::bench::{Bench, BenchEnv, BenchFigure, Instance, Rate, Watch};
use crate::store::NewTask;

const CLIENTS: usize = 16;

pub async fn single(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("create_single") {
        return Ok(());
    }
    let (each, length) = (bench.size.creates.div_ceil(CLIENTS), bench.size.commit_time());
    let count = each * CLIENTS;
    let doing = format!("create_single: {count} tasks by {CLIENTS} clients");
    let (bare, ours) = bench
        .rounds(bench.at, &doing, async |place| {
            let limit = commits::rate(&place.bare, CLIENTS, length).await?;
            let instance = Instance::build(place).await?;
            let fixtures = instance.fixtures(place);
            let draft = weekday_morning();
            let client = async |client: usize| {
                for number in 0..each {
                    fixtures.task(&tenant(client * each + number), &draft).await?;
                }
                anyhow::Ok(())
            };
            let watch = Watch::start();
            try_join_all((0..CLIENTS).map(client)).await?;
            let value = watch.rate(count);
            all_are_stored(place, count).await?;
            instance.store.close().await;
            Ok((limit, value))
        })
        .await?;
    let what = "tasks read, checked and stored one by one, by 16 clients at once";
    let (limit, value) = (Rate::median(bare), Rate::median(ours));
    let figure = BenchFigure::new("create_single", what, "tasks/s", count, value.value);
    let figure = figure.with_limit("one-row commits, 16 clients", limit.value).at_least(0.7);
    bench.figures.push(limit.profile_limit(value.profile(figure)));
    Ok(())
}

pub async fn batch(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("create_batch") {
        return Ok(());
    }
    let batches = bench.size.rows().div_ceil(rows::BATCH);
    let count = batches * rows::BATCH;
    let doing = format!("create_batch: {count} tasks, {} at a time", rows::BATCH);
    let (bare, ours) = bench
        .rounds(bench.at, &doing, async |place| {
            let limit = rows::rates(&place.bare, count, BODY).await?.inserted;
            let instance = Instance::build(place).await?;
            let fixtures = instance.fixtures(place);
            let draft = weekday_morning();
            let began = Instant::now();
            for batch in 0..batches {
                let read = (0..rows::BATCH).map(|n| fixtures.read(&tenant(batch * rows::BATCH + n), &draft));
                let tasks = read.collect::<anyhow::Result<Vec<NewTask>>>()?;
                instance.store.create_tasks(&tasks).await?;
            }
            let value = rate(count, began);
            all_are_stored(place, count).await?;
            instance.store.close().await;
            Ok((limit, value))
        })
        .await?;
    let what = "tasks read, checked and stored, 100 in a batch, without the request around them";
    let figure = BenchFigure::new("create_batch", what, "tasks/s", count, median(ours));
    bench.figures.push(figure.with_limit("100-row inserts", median(bare)));
    Ok(())
}

/// # Errors
/// Some are not, or will not fire.
async fn all_are_stored(place: &BenchEnv, count: usize) -> anyhow::Result<()> {
    let made = place.inside.count("select count(*) from tasks join due on task_id = id where next_at is not null");
    let made = made.await?;
    anyhow::ensure!(made == count as i64, "{made} of {count} tasks are stored");
    Ok(())
}

/// A task as people have them.
fn weekday_morning() -> Value {
    draft(json!({ "type": "schedule", "cron": "0 8 * * 1-5", "timezone": "Europe/Berlin" }))
}
