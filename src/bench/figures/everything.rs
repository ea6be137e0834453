//! `everything_on`: agents and pipelines of a service in which everything is configured that can be, beside one that
//! has only a model. Both are processes of their own, on the same machine, and take turns.
//!
//! Runs are timed by their records, so that no request of the measurement counts: until the end is noted, without its
//! commit.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::base::clock::{machine_now, pause, to_delta};
use crate::bench::env::on_bare;
use crate::bench::figure::median;
use crate::bench::figures::agent::agent_task;
use crate::bench::figures::burst::next_second;
use crate::bench::fixtures::pipeline_draft;
use crate::bench::instance::{record, until_recorded};
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::servers::{Collector, ModelServer};
use crate::bench::{Bench, BenchEnv, BenchFigure};

const NAME: &str = "everything_on";
/// The most that one run may take, as a share of what it takes where nothing is configured.
const TIMES: f64 = 1.25;
/// Only a model, and as many runs at once as of `agent_32`.
const MODEL_ALONE: &str = "[engine]
max_concurrent_runs = 32
[llm.models.main]
base_url = \"{model}\"
model = \"measurement\"
[telemetry]
log_level = \"warn\"
";
const EVERYTHING: &str = include_str!("everything.toml");
const SKILLS: [&str; 3] = ["expense-report", "travel", "minutes"];
const LIMIT: &str = "with nothing configured but the model";
/// Facts of the tenant.
const FACTS: usize = 100;
/// Runs before anything is measured.
const WARM_UP: usize = 5;
/// Pipelines that are due at one instant.
const PIPELINES: usize = 10_000;
const TENANT: &str = "ann";
/// How long the making of tasks may take before they are due, and for each of them.
const AHEAD: Duration = Duration::from_secs(4);
const AHEAD_OF_EACH: TimeDelta = TimeDelta::milliseconds(1);
/// Vectors of all facts are made within that.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// How much is configured: where the model and the collector are.
struct ConfiguredExtent {
    text: String,
    has_memory: bool,
}

/// When a run was recorded, and when its end was.
type RunTimes = (DateTime<Utc>, DateTime<Utc>);

/// A service in a place of its own.
struct ConfiguredService<'a> {
    place: &'a BenchEnv,
    service: BenchService,
    tenant: BenchTenant,
    agent: String,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes(NAME) {
        return Ok(());
    }
    let (model, collector) = (ModelServer::open().await?, Collector::open().await?);
    let extents = [(MODEL_ALONE, false), (EVERYTHING, true)].map(|(text, has_memory)| {
        let text = text.replace("{model}", &model.base_url()).replace("{collector}", &collector.base_url());
        ConfiguredExtent { text, has_memory }
    });
    one_by_one(bench, &extents).await?;
    ensure!(collector.received() > 0, "no spans were exported");
    let agents = bench.size.agent_runs;
    let what = "runs of such an agent, 32 at once, with everything configured";
    at_one_instant(bench, &extents, ("agent_32", what), agents, &agent_task()).await?;
    let pipelines = bench.size.burst(PIPELINES);
    let what = "pipelines of one step that only computes, due at one instant, with everything configured";
    let mut draft = pipeline_draft(Value::Null);
    draft["executor"] = json!("pipeline");
    at_one_instant(bench, &extents, ("pipeline_fire", what), pipelines, &draft).await
}

/// Runs of an agent that are asked for in turns.
async fn one_by_one(bench: &mut Bench<'_>, extents: &[ConfiguredExtent; 2]) -> anyhow::Result<()> {
    let runs = bench.size.starts;
    bench.progress(&format!("{NAME}: {runs} runs of an agent, one after the other, with and without"));
    let at = bench.at;
    let [alone, everything] = BenchEnv::with(at, async |without| {
        BenchEnv::with(at, async |with| {
            let services = [
                ConfiguredService::start(bench, without, &extents[0]).await?,
                ConfiguredService::start(bench, with, &extents[1]).await?,
            ];
            for _ in 0..runs {
                for service in &services {
                    service.run_agent().await?;
                }
            }
            let [without, with] = services;
            Ok([without.stop(runs).await?, with.stop(runs).await?])
        })
        .await
    })
    .await?;
    let what =
        "a run of an agent, 3 turns and 2 calls that only read, with everything configured, mean of the middle half";
    let figure = BenchFigure::new(format!("{NAME}.agent_1"), what, "ms", runs, middle(&everything));
    bench.figures.push(figure.with_limit(LIMIT, middle(&alone)).at_most(TIMES));
    Ok(())
}

/// Runs of as many tasks that are due at one instant: how many a second until the last has ended.
async fn at_one_instant(
    bench: &mut Bench<'_>,
    extents: &[ConfiguredExtent; 2],
    (name, what): (&str, &str),
    tasks: usize,
    draft: &Value,
) -> anyhow::Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    for round in 1..=bench.size.rounds {
        bench.progress(&format!("{NAME}: {tasks} runs as of {name}, with and without, round {round}"));
        // each goes first in its turn
        for number in [round % 2, (round + 1) % 2] {
            let (extent, rates) = (&extents[number], &mut rates[number]);
            rates.push(BenchEnv::with(bench.at, async |place| rate(bench, place, extent, tasks, draft).await).await?);
        }
    }
    let [alone, everything] = rates.map(median);
    let figure = BenchFigure::new(format!("{NAME}.{name}"), what, "runs/s", tasks, everything);
    bench.figures.push(figure.with_limit(LIMIT, alone).at_least(1.0 / TIMES));
    Ok(())
}

async fn rate(
    bench: &Bench<'_>,
    place: &BenchEnv,
    extent: &ConfiguredExtent,
    tasks: usize,
    draft: &Value,
) -> anyhow::Result<f64> {
    let service = ConfiguredService::start(bench, place, extent).await?;
    let instant = next_second(machine_now() + to_delta(AHEAD) + AHEAD_OF_EACH * tasks as i32);
    let mut task = draft.clone();
    task["trigger"] = json!({ "type": "schedule", "at": instant });
    service.tenant.import(&vec![task; tasks]).await?;
    ensure!(machine_now() < instant, "the tasks were made too late");
    let begun = machine_now();
    while record(place).await?.finished < (WARM_UP + tasks) as i64 {
        ensure!(machine_now() - begun < to_delta(PATIENCE), "the runs take too long: {:?}", record(place).await?);
        pause(LOOK).await;
    }
    let last = service.stop(tasks).await?.into_iter().map(|(_, end)| end).max().context("no run has ended")?;
    Ok(tasks as f64 / (last - instant).as_seconds_f64())
}

impl<'a> ConfiguredService<'a> {
    /// Starts it, and makes some runs.
    async fn start(
        bench: &Bench<'_>,
        place: &'a BenchEnv,
        extent: &ConfiguredExtent,
    ) -> anyhow::Result<ConfiguredService<'a>> {
        let skills = place.dir.join("skills");
        write_skills(&skills)?;
        let text = extent.text.replace("{skills}", &skills.display().to_string());
        let service = BenchService::start_configured(bench.at, place, text).await?;
        let tenant = service.tenant(TENANT).await?;
        if extent.has_memory {
            remember(place, &tenant).await?;
        }
        let made = tenant.post("/v1/tasks", &agent_task()).await?;
        let agent = made["id"].as_str().context("a task has an id")?.to_owned();
        let configured = ConfiguredService { place, service, tenant, agent };
        for _ in 0..WARM_UP {
            configured.run_agent().await?;
        }
        let record = record(place).await?;
        ensure!(record.finished == WARM_UP as i64, "of {WARM_UP} first runs came {record:?}");
        Ok(configured)
    }

    /// One run of the agent, to its end.
    async fn run_agent(&self) -> anyhow::Result<()> {
        self.tenant.post(&format!("/v1/tasks/{}/run", self.agent), &json!({})).await?;
        until_recorded(self.place).await
    }

    /// Times of the runs behind the first, in order, once all of so many have ended.
    async fn stop(self, runs: usize) -> anyhow::Result<Vec<RunTimes>> {
        self.service.stop().await?;
        let (record, all) = (record(self.place).await?, (WARM_UP + runs) as i64);
        ensure!((record.runs, record.finished) == (all, all), "of {all} runs came {record:?}");
        let query = "select created_at, finished_at from runs order by created_at, id";
        let mut times: Vec<RunTimes> =
            on_bare!(&self.place.inside, |pool| sqlx::query_as(query).fetch_all(pool).await?);
        Ok(times.split_off(WARM_UP))
    }
}

/// Milliseconds that a run took, as the mean of the middle half: instants of a record are whole milliseconds on SQLite.
fn middle(times: &[RunTimes]) -> f64 {
    let mut took: Vec<f64> = times.iter().map(|(begun, end)| (*end - *begun).as_seconds_f64() * 1000.0).collect();
    took.sort_by(f64::total_cmp);
    let half = &took[took.len() / 4..took.len() - took.len() / 4];
    half.iter().sum::<f64>() / half.len() as f64
}

/// Notes facts of the tenant, a tenth of them of its profile, and waits for their vectors.
async fn remember(place: &BenchEnv, tenant: &BenchTenant) -> anyhow::Result<()> {
    for number in 0..FACTS {
        let collection = if number % 10 == 0 { "profile" } else { "preferences/travel" };
        let text = format!("Has said as number {number} what time it is in Berlin and in Tokyo.");
        tenant.post("/v1/facts", &json!({ "text": text, "collection": collection })).await?;
    }
    let begun = machine_now();
    while place.inside.count("select count(*) from fact_vectors").await? < FACTS as i64 {
        ensure!(machine_now() - begun < to_delta(PATIENCE), "the vectors of facts are not made");
        pause(LOOK).await;
    }
    Ok(())
}

fn write_skills(dir: &Path) -> anyhow::Result<()> {
    for name in SKILLS {
        let folder = dir.join(name);
        std::fs::create_dir_all(&folder)?;
        let text = format!("---\nname: {name}\ndescription: How {name} is done here.\n---\nAsk first.\n");
        std::fs::write(folder.join("SKILL.md"), text)?;
    }
    Ok(())
}
