//! `create_single`: tasks are made one by one, by 16 clients at once, as `POST /v1/tasks` makes them.

use std::time::Instant;

use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::bench::figure::{Figure, median};
use crate::bench::instance::Instance;
use crate::bench::limits::{commits, rate};
use crate::bench::place::Place;
use crate::bench::stock::{draft, tenant};

const CLIENTS: usize = 16;

pub async fn single(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.wants("create_single") {
        return Ok(());
    }
    let (each, length) = (bench.size.creates.div_ceil(CLIENTS), bench.size.commit_time());
    let count = each * CLIENTS;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 1..=bench.size.rounds {
        bench.tell(&format!("create_single: {count} tasks by {CLIENTS} clients, round {round}"));
        let (limit, value) = Place::with(bench.at, async |place| {
            let limit = commits::rate(&place.bare, CLIENTS, length).await?;
            let instance = Instance::build(place).await?;
            let stock = instance.stock(place);
            let draft = weekday_morning();
            let client = async |client: usize| {
                for number in 0..each {
                    stock.task(&tenant(client * each + number), &draft).await?;
                }
                anyhow::Ok(())
            };
            let began = Instant::now();
            try_join_all((0..CLIENTS).map(client)).await?;
            let value = rate(count, began);
            let made =
                place.inside.count("select count(*) from tasks join due on task_id = id where next_at is not null");
            let made = made.await?;
            anyhow::ensure!(made == count as i64, "{made} of {count} tasks are stored");
            instance.store.close().await;
            Ok((limit, value))
        })
        .await?;
        bare.push(limit);
        ours.push(value);
    }
    let what = "tasks read, checked and stored one by one, by 16 clients at once";
    let figure = Figure::new("create_single", what, "tasks/s", count, median(ours));
    bench.figures.push(figure.against("one-row commits, 16 clients", median(bare)).at_least(0.7));
    Ok(())
}

/// A task as people have them.
fn weekday_morning() -> Value {
    draft(json!({ "type": "schedule", "cron": "0 8 * * 1-5", "timezone": "Europe/Berlin" }))
}
