//! `agent_wait_1000`: runs of an agent that are due at one instant and wait for their model, by the service with its
//! default configuration: the memory of each while it waits for the model's last answer, and how long it takes until
//! the last of them is under way.
//!
//! The service is a process of its own, so that the model's memory does not count. Only few runs were made before, one
//! after the other: what the first of many at once takes for good counts for the runs.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::base::clock::{machine_now, pause, to_delta};
use crate::bench::figure::Samples;
use crate::bench::figures::agent::agent_task;
use crate::bench::figures::burst::next_second;
use crate::bench::figures::rest::memory;
use crate::bench::fixtures::tenant;
use crate::bench::instance::{record, until_recorded};
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::scale::Scale;
use crate::bench::servers::ModelServer;
use crate::bench::{Bench, BenchEnv, BenchFigure};

const NAME: &str = "agent_wait_1000";
const RUNS: usize = 1_000;
/// Tenants whose tasks they are: one alone may not have all slots.
const TENANTS: usize = 10;
/// The most that one may take, in KiB.
const MOST: f64 = 64.0;
/// When the last has asked its model, in seconds after the instant.
const MOST_LATE: f64 = 1.0;
/// How long the making of the tasks may take before they are due, beyond the scheduler's horizon, and for each of them.
const AHEAD: Duration = Duration::from_secs(4);
const AHEAD_OF_EACH: TimeDelta = TimeDelta::milliseconds(5);
/// Tasks that are made at once.
const MADE_AT_ONCE: usize = 16;
const KIBIBYTE: f64 = 1024.0;
const MEBIBYTE: f64 = 1024.0 * KIBIBYTE;
/// As many runs wait as can, once their number has not grown for so long.
const STEADY: Duration = Duration::from_millis(1_500);
/// A process whose memory has changed by no more for as long has settled, or after the longest time.
const LITTLE: f64 = 256.0 * KIBIBYTE;
const LONGEST_SETTLING: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// The longest that is waited for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Observations of a service with runs that wait.
struct WaitFigures {
    runs: usize,
    /// Resident, in bytes, before the runs and with them.
    before: f64,
    with_runs: f64,
    /// Seconds from the instant until the first requests of half of the runs had come to the model, and of all.
    half_after: f64,
    last_after: f64,
}

impl WaitFigures {
    /// KiB of a run.
    fn each(&self) -> f64 {
        (self.with_runs - self.before) / self.runs as f64 / KIBIBYTE
    }
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes(NAME) {
        return Ok(());
    }
    let asked = bench.size.burst(RUNS);
    bench.progress(&format!("{NAME}: {asked} runs of an agent, due at one instant, whose model takes its time"));
    let waiting = BenchEnv::with(bench.at, async |place| observe(bench, place, asked).await).await?;
    let what =
        format!("resident memory of a run that waits for its model's third answer, of {asked} due at one instant");
    let figure = BenchFigure::new(NAME, what, "KiB", waiting.runs, waiting.each())
        .with_limit("what it may take", MOST)
        .at_most(1.0)
        .with_part_at_most("until the last had asked its model", "s", waiting.last_after, MOST_LATE)
        .with_part("until half of them had", "s", waiting.half_after)
        .with_part("runs under way", "", waiting.runs as f64)
        .with_part("memory of the service before", "MiB", waiting.before / MEBIBYTE)
        .with_part("and with them", "MiB", waiting.with_runs / MEBIBYTE);
    bench.figures.push(figure);
    Ok(())
}

async fn observe(bench: &Bench<'_>, place: &BenchEnv, asked: usize) -> anyhow::Result<WaitFigures> {
    let model = ModelServer::open().await?;
    let service = BenchService::start_with_model(bench.at, place, model.base_url()).await?;
    let id = service.id().context("the service has ended")?;
    let mut tenants = Vec::new();
    for number in 0..TENANTS {
        tenants.push(service.tenant(&tenant(number)).await?);
        run_once(&tenants[number]).await?;
        until_recorded(place).await?;
    }
    let before = settled_memory(id).await?;
    let answered = CancellationToken::new();
    model.hold_answers(answered.clone());
    let at = next_second(machine_now() + to_delta(AHEAD) + AHEAD_OF_EACH * asked as i32);
    make_due(&tenants, asked, at).await?;
    let scale = Scale::of(place).await?;
    ensure!(machine_now() < at, "the tasks were made too late");
    let runs = until_steady(&model).await?;
    ensure!(runs == asked, "of {asked} runs {runs} are under way");
    let with_runs = settled_memory(id).await?;
    let begun = Samples::new(model.take_begun().into_iter().map(|begun| scale.late(begun, at) / 1000.0).collect());
    ensure!(begun.percentile(0.0) >= 0.0, "a run was under way before its instant");
    answered.cancel();
    until_recorded(place).await?;
    service.stop().await?;
    let (record, all) = (record(place).await?, (TENANTS + asked) as i64);
    ensure!((record.runs, record.finished) == (all, all), "of {all} runs came {record:?}");
    let (half_after, last_after) = (begun.percentile(0.5), begun.percentile(1.0));
    Ok(WaitFigures { runs, before, with_runs, half_after, last_after })
}

/// One run of each tenant's agent, from its request on.
async fn run_once(tenant: &BenchTenant) -> anyhow::Result<()> {
    let made = tenant.post("/v1/tasks", &agent_task()).await?;
    let id = made["id"].as_str().context("a task has an id")?;
    tenant.post(&format!("/v1/tasks/{id}/run"), &json!({})).await?;
    Ok(())
}

/// So many tasks of these tenants that are all due at this instant.
async fn make_due(tenants: &[BenchTenant], count: usize, at: DateTime<Utc>) -> anyhow::Result<()> {
    let mut task = agent_task();
    task["trigger"] = json!({ "type": "schedule", "at": at });
    let making = tenants.iter().cycle().take(count).map(|tenant| tenant.post("/v1/tasks", &task));
    stream::iter(making).buffer_unordered(MADE_AT_ONCE).try_for_each(async |_: Value| Ok(())).await
}

/// Resident memory of a process, in bytes, once it has changed little for a while.
async fn settled_memory(id: u32) -> anyhow::Result<f64> {
    let began = Instant::now();
    let (mut settled, mut since) = (memory(id)?, Instant::now());
    while since.elapsed() < STEADY && began.elapsed() < LONGEST_SETTLING {
        pause(LOOK).await;
        let now = memory(id)?;
        if (now - settled).abs() > LITTLE {
            (settled, since) = (now, Instant::now());
        }
    }
    memory(id)
}

/// How many runs wait for their answer, once their number does not grow any more.
async fn until_steady(model: &ModelServer) -> anyhow::Result<usize> {
    let began = Instant::now();
    let (mut most, mut since) = (0, Instant::now());
    while most == 0 || since.elapsed() < STEADY {
        ensure!(began.elapsed() < PATIENCE, "the number of waiting runs is not steady after {PATIENCE:?}");
        pause(LOOK).await;
        let waiting = model.waiting();
        if waiting > most {
            (most, since) = (waiting, Instant::now());
        }
    }
    Ok(most)
}
