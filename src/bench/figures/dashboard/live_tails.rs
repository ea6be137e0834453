//! `live_tails_200`: pipelines that are due at one instant, by a service of whose running runs 200 are followed in the
//! dashboard, beside the same service without anybody who follows them. The runs are those of agents that wait for
//! their model, in both cases; the streams are read and dropped.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::TimeDelta;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::base::clock::{machine_now, pause, to_delta};
use crate::bench::figure::median;
use crate::bench::figures::agent::agent_task;
use crate::bench::figures::burst::next_second;
use crate::bench::fixtures::{pipeline_draft, tenant};
use crate::bench::instance::{record, until_recorded};
use crate::bench::process::held_stream::open_stream;
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::process::visitor::PageVisitor;
use crate::bench::servers::ModelServer;
use crate::bench::{Bench, BenchEnv, BenchFigure};

const NAME: &str = "live_tails_200";
/// Tenants whose runs are followed: a token may have half of the streams of its tenant.
const TENANTS: usize = 10;
/// Runs of each of them, and of a first look.
const RUNS: usize = 20;
const QUICK_RUNS: usize = 2;
/// Streams from one address, which has no room for all.
const FROM_ONE_ADDRESS: usize = 40;
/// Pipelines that are due at one instant.
const PIPELINES: usize = 10_000;
/// The share of the rate without streams that is to be reached.
const SHARE: f64 = 0.95;
/// How long the making of tasks may take before they are due, and for each of them.
const AHEAD: Duration = Duration::from_secs(4);
const AHEAD_OF_EACH: TimeDelta = TimeDelta::milliseconds(1);
const LOOK: Duration = Duration::from_millis(50);
/// The longest that is waited for anything.
const PATIENCE: Duration = Duration::from_secs(120);
const BUFFER: usize = 16 * 1024;

/// A tenant whose runs are followed.
struct FollowedTenant {
    caller: BenchTenant,
    visitor: PageVisitor,
    /// Its agent.
    task: String,
}

/// A service with such tenants.
struct FollowedService<'a> {
    place: &'a BenchEnv,
    service: BenchService,
    model: ModelServer,
    tenants: Vec<FollowedTenant>,
    /// Runs of each.
    runs: usize,
    pipelines: usize,
}

/// Streams that are read until this is dropped.
struct OpenTails {
    reading: JoinSet<()>,
    opened: usize,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes(NAME) {
        return Ok(());
    }
    let (rounds, pipelines) = (bench.size.rounds, bench.size.burst(PIPELINES));
    let runs = if bench.size.quick { QUICK_RUNS } else { RUNS };
    let tails = TENANTS * runs;
    bench.progress(&format!("{NAME}: {pipelines} pipelines with {tails} streams and without, {rounds} times"));
    let [alone, beside] = BenchEnv::with(bench.at, async |place| {
        let service = FollowedService::start(bench, place, runs, pipelines).await?;
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            // each goes first in its turn
            for followed in [round % 2, (round + 1) % 2] {
                let number = 2 * round + followed;
                rates[followed].push(service.rate(number, followed == 1).await?);
            }
        }
        service.service.stop().await?;
        Ok(rates)
    })
    .await?;
    let what =
        format!("pipelines of one step that only computes, due at one instant, beside {tails} open streams of runs");
    let figure = BenchFigure::new(NAME, what, "runs/s", pipelines, median(beside));
    let figure = figure.with_limit("the same without streams", median(alone)).at_least(SHARE);
    bench.figures.push(figure.with_part("open streams", "", tails as f64));
    Ok(())
}

impl<'a> FollowedService<'a> {
    async fn start(
        bench: &Bench<'_>,
        place: &'a BenchEnv,
        runs: usize,
        pipelines: usize,
    ) -> anyhow::Result<FollowedService<'a>> {
        let model = ModelServer::open().await?;
        let service = BenchService::start_with_model(bench.at, place, model.base_url()).await?;
        let mut tenants = Vec::new();
        for number in 0..TENANTS {
            let caller = service.tenant(&tenant(number)).await?;
            let visitor = PageVisitor::sign_in(&caller).await?;
            let made = caller.post("/v1/tasks", &agent_task()).await?;
            let task = made["id"].as_str().context("a task has an id")?.to_owned();
            tenants.push(FollowedTenant { caller, visitor, task });
        }
        Ok(FollowedService { place, service, model, tenants, runs, pipelines })
    }

    /// Pipelines a second until the last has ended, while agents wait for their model, followed or not.
    async fn rate(&self, number: usize, is_followed: bool) -> anyhow::Result<f64> {
        let answered = CancellationToken::new();
        self.model.hold_answers(answered.clone());
        let runs = self.begin_agents().await?;
        let tails = match is_followed {
            true => Some(OpenTails::open(&runs).await?),
            false => None,
        };
        let rate = self.fire(number).await?;
        if let Some(mut tails) = tails {
            tails.check()?;
        }
        answered.cancel();
        until_recorded(self.place).await?;
        Ok(rate)
    }

    /// Asks for the runs of the agents, and waits until all wait for their model; answers each with who follows it.
    async fn begin_agents(&self) -> anyhow::Result<Vec<(&PageVisitor, String)>> {
        let mut runs = Vec::new();
        for tenant in &self.tenants {
            for _ in 0..self.runs {
                let run = tenant.caller.post(&format!("/v1/tasks/{}/run", tenant.task), &json!({})).await?;
                runs.push((&tenant.visitor, run["id"].as_str().context("a run has an id")?.to_owned()));
            }
        }
        let begun = machine_now();
        while self.model.waiting() < runs.len() {
            ensure!(machine_now() - begun < to_delta(PATIENCE), "{} runs wait for a model", self.model.waiting());
            pause(LOOK).await;
        }
        Ok(runs)
    }

    /// Fires the pipelines of a tenant of their own: its quota holds those of one time.
    async fn fire(&self, number: usize) -> anyhow::Result<f64> {
        let (tasks, before) = (self.pipelines, record(self.place).await?.finished);
        let owner = self.service.tenant(&format!("pipelines-{number}")).await?;
        let instant = next_second(machine_now() + to_delta(AHEAD) + AHEAD_OF_EACH * tasks as i32);
        let mut task = pipeline_draft(Value::Null);
        task["executor"] = json!("pipeline");
        task["trigger"] = json!({ "type": "schedule", "at": instant });
        owner.import(&vec![task; tasks]).await?;
        ensure!(machine_now() < instant, "the tasks were made too late");
        let begun = machine_now();
        loop {
            let record = record(self.place).await?;
            if record.finished >= before + tasks as i64 {
                let last = record.last.context("no run has ended")?;
                return Ok(tasks as f64 / (last - instant).as_seconds_f64());
            }
            ensure!(machine_now() - begun < to_delta(PATIENCE), "the pipelines take too long: {record:?}");
            pause(LOOK).await;
        }
    }
}

impl OpenTails {
    /// Follows each of these runs as its page does.
    async fn open(runs: &[(&PageVisitor, String)]) -> anyhow::Result<OpenTails> {
        let mut reading = JoinSet::new();
        for (number, (visitor, run)) in runs.iter().enumerate() {
            let from = Ipv4Addr::new(127, 3, 0, (number / FROM_ONE_ADDRESS) as u8 + 1);
            let cookie = format!("cookie: {}", visitor.cookie());
            let mut stream = open_stream(visitor.address(), from, &format!("/ui/runs/{run}/live"), &[cookie]).await?;
            reading.spawn(async move {
                let mut buffer = vec![0; BUFFER];
                while let Ok(1..) = stream.read(&mut buffer).await {}
            });
        }
        Ok(OpenTails { reading, opened: runs.len() })
    }

    /// # Errors
    /// One has ended.
    fn check(&mut self) -> anyhow::Result<()> {
        let mut ended = 0;
        while self.reading.try_join_next().is_some() {
            ended += 1;
        }
        ensure!(ended == 0, "{ended} of {} streams have ended", self.opened);
        Ok(())
    }
}
