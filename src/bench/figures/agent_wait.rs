//! `agent_wait_1000`: what a run of an agent takes in memory while it waits for its model's last answer, where a thousand are
//! under way. The service has the default configuration but for its places, of which there are more than runs.
//!
//! A second service has its places by default, too: of a thousand runs that are asked for some sixty are under way, the
//! others wait in the queue. What a process takes and gives back by itself is as much as so few runs, so that value is told
//! and not judged.
//!
//! The service is a process of its own, so that the model's memory does not count. Only few runs were made before, one
//! after the other: what the first of many at once takes for good counts for the runs.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::base::clock::pause;
use crate::bench::env::BenchEnv;
use crate::bench::figure::BenchFigure;
use crate::bench::figures::agent::agent_task;
use crate::bench::figures::rest::memory;
use crate::bench::fixtures::tenant;
use crate::bench::instance::{record, until_recorded};
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::servers::ModelServer;
use crate::bench::session::Bench;

const NAME: &str = "agent_wait_1000";
const RUNS: usize = 1_000;
/// Places for each run, where all are to be under way: tenants leave some to each other.
const ROOM: usize = 2;
/// Tenants that ask for them: one alone may not have all places.
const TENANTS: usize = 10;
/// The most that one may take, in KiB.
const MOST: f64 = 64.0;
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
struct Waiting {
    runs: usize,
    /// Resident, in bytes, before the runs and with them.
    before: f64,
    with_runs: f64,
}

impl Waiting {
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
    bench.progress(&format!("{NAME}: {asked} runs of an agent whose model takes its time, all under way"));
    let places = asked * ROOM;
    let all = BenchEnv::with(bench.at, async |place| observe(bench, place, asked, Some(places)).await).await?;
    bench.progress(&format!("{NAME}: the same with as many under way as there are by default"));
    let few = BenchEnv::with(bench.at, async |place| observe(bench, place, asked, None).await).await?;
    let what = format!("resident memory of a run that waits for its model's third answer, of {asked} asked for");
    let figure = BenchFigure::new(NAME, what, "KiB", all.runs, all.each())
        .with_limit("what it may take", MOST)
        .at_most(1.0)
        .with_part("runs under way", "", all.runs as f64)
        .with_part("memory of the service before", "MiB", all.before / MEBIBYTE)
        .with_part("and with them", "MiB", all.with_runs / MEBIBYTE)
        .with_part("runs under way by default configuration", "", few.runs as f64)
        .with_part("memory of each of these", "KiB", few.each());
    bench.figures.push(figure);
    Ok(())
}

/// `places` are those of runs under way, if they are not to be as many as by default.
async fn observe(bench: &Bench<'_>, place: &BenchEnv, asked: usize, places: Option<usize>) -> anyhow::Result<Waiting> {
    let model = ModelServer::open().await?;
    let service = BenchService::start_with(bench.at, place, Some(model.base_url()), places).await?;
    let id = service.id().context("the service has ended")?;
    let mut tasks = Vec::new();
    for number in 0..TENANTS {
        tasks.push(AgentTask::make(&service, &tenant(number)).await?);
        tasks[number].ask().await?;
        until_recorded(place).await?;
    }
    let before = settled_memory(id).await?;
    let answered = CancellationToken::new();
    model.hold_answers(answered.clone());
    for task in tasks.iter().cycle().take(asked) {
        task.ask().await?;
    }
    let runs = until_steady(&model).await?;
    let with_runs = settled_memory(id).await?;
    answered.cancel();
    until_recorded(place).await?;
    service.stop().await?;
    let (record, all) = (record(place).await?, (TENANTS + asked) as i64);
    ensure!((record.runs, record.finished) == (all, all), "of {all} runs came {record:?}");
    Ok(Waiting { runs, before, with_runs })
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

/// A task whose runs its tenant asks for.
struct AgentTask {
    tenant: BenchTenant,
    run: String,
}

impl AgentTask {
    async fn make(service: &BenchService, tenant: &str) -> anyhow::Result<AgentTask> {
        let tenant = service.tenant(tenant).await?;
        let made = tenant.post("/v1/tasks", &agent_task()).await?;
        let id = made["id"].as_str().context("a task has an id")?;
        Ok(AgentTask { run: format!("/v1/tasks/{id}/run"), tenant })
    }

    async fn ask(&self) -> anyhow::Result<Value> {
        self.tenant.post(&self.run, &json!({})).await
    }
}
