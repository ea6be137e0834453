//! `agent_1` and `agent_32`: runs of an agent that calls a tool in each of two turns and answers in the third, one
//! after the other and many at once, by the service with its default configuration. Its model answers at once.
//!
//! A run counts from the commit of its record to the commit of its end, as a watcher of the run is told of it.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::bench::env::random_id;
use crate::bench::instance::record;
use crate::bench::limits::model::{BareClient, BareTimes};
use crate::bench::servers::{ModelServer, TURNS, set_model};
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Rate, Samples, StartedInstance, Watch};
use crate::domain::run::{RunState, StreamEvent};
use crate::executor::hub::{Hub, RunSubscription, WatchedEvent};
use crate::store::Store;

/// Runs at once of `agent_32`.
const AT_ONCE: usize = 32;
/// Time that a run may take over its limit, in one-row commits.
const COMMITS_OVER: f64 = 1.5 * TURNS as f64;
/// The share of the bare client's rate that is to be reached.
const SHARE: f64 = 0.3;
/// Runs before anything is measured: connections are open and code is in memory then.
const WARM_UP: usize = 5;
/// The longest that one run may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if bench.includes("agent_1") {
        one_by_one(bench).await?;
    }
    if bench.includes("agent_32") {
        many_at_once(bench).await?;
    }
    Ok(())
}

async fn one_by_one(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let runs = bench.size.starts;
    bench.progress(&format!("agent_1: {runs} runs of {TURNS} turns, one after the other"));
    let (commit, bare, took) = BenchEnv::with(bench.at, async |place| {
        let agent = AgentService::start(place).await?;
        let bare_client = agent.warm_up().await?;
        let BareTimes { runs: bare, commits } = bare_client.times(&place.bare, runs).await?;
        let mut took = Vec::with_capacity(runs);
        for _ in 0..runs {
            took.push(agent.runner.run().await?.as_secs_f64() * 1000.0);
        }
        agent.stop(place, WARM_UP + runs).await?;
        Ok((commits.percentile(0.5), bare, Samples::new(took)))
    })
    .await?;
    let limit = bare.percentile(0.5);
    let words = "bare client: the same requests to the same model, and a one-row commit after each; p50";
    bench.limits.push(FigureLimit::new("bare_agent_1", words, "ms", limit).spread(bare.distribution("ms")));
    let what = "a run of an agent, 3 turns and 2 calls that only read, from its record to its end, p50";
    let figure = BenchFigure::new("agent_1", what, "ms", took.count(), took.percentile(0.5));
    let figure = figure
        .with_limit("its requests by a bare client, with 3 one-row commits, p50", limit)
        .require(
            format!("≤ the limit + {COMMITS_OVER} one-row commits"),
            took.percentile(0.5) <= limit + COMMITS_OVER * commit,
        )
        .with_part("a one-row commit, p50", "ms", commit)
        .with_part("over the limit, in one-row commits", "", (took.percentile(0.5) - limit) / commit);
    bench.figures.push(figure.spread(&took));
    Ok(())
}

async fn many_at_once(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let each = bench.size.agent_runs.div_ceil(AT_ONCE);
    let runs = each * AT_ONCE;
    let doing = format!("agent_32: {runs} runs of {TURNS} turns, {AT_ONCE} at once");
    let (bare, ours) = bench
        .rounds(bench.at, &doing, async |place| {
            let agent = AgentService::start(place).await?;
            let bare_client = agent.warm_up().await?;
            let limit = bare_client.rate(runs, AT_ONCE).await?;
            let watch = Watch::start();
            for ran in try_join_all((0..AT_ONCE).map(|_| tokio::spawn(agent.runner.clone().run_all(each)))).await? {
                ran?;
            }
            let value = watch.rate(runs);
            agent.stop(place, WARM_UP + runs).await?;
            Ok((limit, value))
        })
        .await?;
    let (limit, value) = (Rate::median(bare), Rate::median(ours));
    let words = "bare client: the same requests to the same model, 32 runs at once, no commit";
    bench.limits.push(FigureLimit::new("bare_agent_32", words, "runs/s", limit.value));
    let what = "runs of an agent, 3 turns and 2 calls that only read, 32 at once";
    let figure = BenchFigure::new("agent_32", what, "runs/s", runs, value.value);
    let figure = figure.with_limit("their requests by a bare client", limit.value).at_least(SHARE);
    bench.figures.push(limit.profile_limit(value.profile(figure)));
    Ok(())
}

/// A task for an agent, whose runs are asked for.
pub fn agent_task() -> Value {
    json!({
        "name": "An agent of the measurement",
        "trigger": { "type": "schedule", "interval": "1d", "overlap": "allow" },
        "executor": "orchestrator",
        "action": { "instruction": "Say what time it is in Berlin and in Tokyo." },
        "output": null,
    })
}

/// A running service, its model, and a task of an agent.
struct AgentService {
    model: ModelServer,
    service: StartedInstance,
    runner: AgentRunner,
}

/// Asks for runs of one task, and waits for their ends.
#[derive(Clone)]
struct AgentRunner {
    store: Store,
    hub: Hub,
    task: Uuid,
}

impl AgentService {
    async fn start(place: &BenchEnv) -> anyhow::Result<AgentService> {
        let model = ModelServer::open().await?;
        let mut config = place.default_config();
        set_model(&mut config, model.base_url());
        let service = Instance::build_with(&config, None).await?.start().await?;
        let task = service.fixtures(place).task("ann", &agent_task()).await?.id;
        let runner = AgentRunner { store: service.store.clone(), hub: service.hub.clone(), task };
        Ok(AgentService { model, service, runner })
    }

    /// Makes some runs; answers a client that sends what the last of them has sent.
    async fn warm_up(&self) -> anyhow::Result<BareClient> {
        for _ in 1..WARM_UP {
            self.runner.run().await?;
        }
        self.model.start_recording();
        self.runner.run().await?;
        let requests = self.model.take_recorded();
        ensure!(requests.len() == TURNS, "a run has asked its model {} times", requests.len());
        let client = BareClient::new(&self.model.base_url(), requests);
        // its connections are opened, too
        client.rate(AT_ONCE, AT_ONCE).await?;
        Ok(client)
    }

    /// # Errors
    /// Not all of so many runs have succeeded.
    async fn stop(self, place: &BenchEnv, runs: usize) -> anyhow::Result<()> {
        self.service.stop().await;
        let record = record(place).await?;
        ensure!((record.runs, record.finished) == (runs as i64, runs as i64), "of {runs} runs came {record:?}");
        Ok(())
    }
}

impl AgentRunner {
    /// One run: how long it took from the commit of its record to the commit of its end.
    async fn run(&self) -> anyhow::Result<Duration> {
        let (run_id, clock) = (random_id(), self.store.clock());
        let mut events = self.hub.subscribe(run_id);
        self.store.run_now(&Scope::Every, self.task, run_id, None, clock.now(), None).await?;
        let recorded = clock.elapsed();
        timeout(PATIENCE, until_ended(&mut events)).await.context("a run has not ended")??;
        Ok(clock.elapsed().saturating_sub(recorded))
    }

    /// So many runs, one after the other.
    async fn run_all(self, runs: usize) -> anyhow::Result<()> {
        for _ in 0..runs {
            self.run().await?;
        }
        Ok(())
    }
}

/// Returns when the run has succeeded, which is told once that is committed.
async fn until_ended(events: &mut RunSubscription) -> anyhow::Result<()> {
    loop {
        let WatchedEvent::Event(StreamEvent::StateChange { state, reason }) = events.next().await else { continue };
        match RunState::ALL.into_iter().find(|known| known.as_str() == state) {
            Some(RunState::Succeeded) => return Ok(()),
            Some(RunState::Queued | RunState::Running) => {}
            _ => bail!("a run is {state}: {reason:?}"),
        }
    }
}
