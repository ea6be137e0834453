//! `webhook_fire`: how late the requests of `webhook` tasks come to an agent runtime that are all due at one instant,
//! by the service with its default configuration.

use std::time::Duration;

use anyhow::ensure;
use chrono::TimeDelta;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::base::clock::{pause, to_delta};
use crate::bench::figures::burst::next_second;
use crate::bench::fixtures::hourly;
use crate::bench::instance::{record, until_recorded};
use crate::bench::limits::timer;
use crate::bench::process::service::SIGNING;
use crate::bench::servers::WebhookServer;
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Samples, Scale};

const NAME: &str = "webhook_fire";
const TASKS: usize = 1_000;
/// How late they may be, in milliseconds.
const MOST_LATE: f64 = 60.0;
/// The secret of a task is sealed for its tenant, so all tasks are of one.
const TENANT: &str = "ann";
/// How long the making of the tasks may take before they are due, beyond the scheduler's horizon.
const AHEAD: Duration = Duration::from_secs(4);
/// The longest until all requests of an instant have come.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes(NAME) {
        return Ok(());
    }
    let (tasks, rounds) = (bench.size.burst(TASKS), bench.size.rounds);
    bench.progress(&format!("{NAME}: {tasks} webhooks that are due at once, {rounds} times"));
    let mut sleeps = Vec::new();
    for _ in 0..rounds {
        sleeps.push(timer::concurrent(tasks).await);
    }
    let sleeps = Samples::all(sleeps);
    let arrivals = BenchEnv::with(bench.at, async |place| arrivals(place, tasks, rounds).await).await?;
    let limit = sleeps.percentile(0.99);
    let words = format!("timer burst: {tasks} sleeps of the runtime that end at once; p99");
    bench.limits.push(FigureLimit::new(format!("timer_{NAME}"), words, "ms", limit).spread(sleeps.distribution("ms")));
    let what = format!("lateness of the requests of {tasks} webhooks that are due at one instant, p99");
    let figure = BenchFigure::new(NAME, what, "ms", arrivals.count(), arrivals.percentile(0.99));
    let figure = figure.with_limit("timer burst of that size, p99", limit).at_most_value(MOST_LATE);
    bench.figures.push(figure.require_not_early(&arrivals).spread(&arrivals));
    Ok(())
}

/// How late each request came, in milliseconds, of so many that are due at once, so often.
async fn arrivals(place: &BenchEnv, tasks: usize, rounds: usize) -> anyhow::Result<Samples> {
    let server = WebhookServer::open().await?;
    let service = Instance::build_with(&place.default_config(), None).await?.start().await?;
    let mut late = Vec::new();
    for _ in 0..rounds {
        let clock = service.store.clock().clone();
        let at = next_second(clock.now() + to_delta(AHEAD) + TimeDelta::milliseconds(tasks as i64 / 5));
        service.fixtures(place).due_of(TENANT, &webhook_draft(&server.url()), tasks, at).await?;
        let scale = Scale::of(place).await?;
        ensure!(clock.now() < at, "the tasks were made too late");
        until_received(&server, tasks).await?;
        until_recorded(place).await?;
        let arrived = server.take_arrivals();
        late.push(Samples::new(arrived.into_iter().map(|arrived| scale.late(arrived, at)).collect()));
    }
    service.stop().await;
    let (record, all) = (record(place).await?, (tasks * rounds) as i64);
    ensure!((record.runs, record.finished) == (all, all), "of {all} fires came {record:?}");
    Ok(Samples::all(late))
}

async fn until_received(server: &WebhookServer, tasks: usize) -> anyhow::Result<()> {
    let all = timeout(PATIENCE, async {
        while server.received() < tasks {
            pause(Duration::from_millis(5)).await;
        }
    });
    ensure!(all.await.is_ok(), "{} of {tasks} requests came within {PATIENCE:?}", server.received());
    Ok(())
}

fn webhook_draft(url: &str) -> Value {
    json!({
        "name": "A webhook of the measurement", "trigger": hourly(), "executor": "webhook",
        "action": { "instruction": "Work.", "config": { "url": url, "secret": SIGNING } }, "output": null,
    })
}
