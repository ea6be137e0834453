//! `reveille bench`: what this machine does, beside what its own database, Redis and timer could do at best.
//!
//! Absolute times say little on a shared machine. So each figure has a limit: the same work by a few lines of bare SQL
//! or bare Redis, taken in the same run. It works in schemas, and under a prefix, of its own, and leaves nothing there.
//!
//! Reading order: [`figure`] is what comes out, `env` where it is measured, `fixtures` what is measured, `limits/`
//! what it is measured against, `servers` whom the service calls meanwhile; one file per figure or two, [`report`] and
//! [`plot`] for people.

mod env;
pub mod figure;
pub mod figures;
mod fixtures;
mod instance;
mod limits;
pub mod machine;
mod part;
pub mod plot;
mod probe;
mod process;
mod protocol;
mod rate;
pub mod report;
mod scale;
mod servers;
mod session;
mod site;
mod size;
mod sql_baseline;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::base::clock::machine_now;

pub(crate) use env::{BenchEnv, DirectPool};
pub use figure::{BenchFigure, FigureLimit};
pub(crate) use figure::{Distribution, FigurePart, Point, Samples};
pub(crate) use fixtures::{EndedRuns, Fixtures};
pub(crate) use instance::{Instance, StartedInstance};
pub use machine::Machine;
pub use part::run as be_part;
pub(crate) use probe::{ExecutorProbe, ProbedRun};
pub use process::ARGUMENT as PART_ARGUMENT;
pub(crate) use process::PartProcess;
pub(crate) use protocol::{Part, PartMessage, ServiceSettings};
pub(crate) use rate::{Rate, Watch};
pub(crate) use scale::Scale;
pub(crate) use session::Bench;
pub use site::BenchSite;
pub use size::BenchSize;

/// Every measurement: its name, and its description. First those that a user gets, by the default configuration.
pub const NAMES: [(&str, &str); 32] = [
    ("agent_1", "a run of an agent of 3 turns and 2 calls, one at a time"),
    ("agent_32", "runs of such an agent, 32 at once"),
    ("agent_wait_1000", "memory of a run while its model takes its time, of 1,000 runs"),
    ("pipeline_fire", "10,000 pipelines that are due at once: runs a second, and how late they start"),
    ("pipeline_fire_1000", "how late 1,000 pipelines start that are due at once"),
    ("everything_on", "`agent_1`, `agent_32` and `pipeline_fire` with everything configured, beside as many without"),
    ("webhook_fire", "how late 1,000 requests of `webhook` tasks come that are due at once"),
    ("list_runs_1m", "lists of runs of a tenant that has 1,000,000, and the operator's, by each filter"),
    ("stats_1m", "figures of a tenant that has 1,000,000 runs, counted anew, and the operator's"),
    ("dashboard_1m", "pages of the dashboard beside 1,000,000 tasks and 1,000,000 runs: how long, and how large"),
    ("live_tails_200", "pipelines that are due at once beside 200 open streams of the dashboard, and without"),
    ("recall_1m", "facts that a run is told, of 1,000,000 of 10,000 tenants"),
    ("neighbours", "a quiet tenant beside two hostile ones, by the default configuration and quotas"),
    ("events", "events through the bus, past 10,000 event tasks, to runs and their start"),
    ("fire", "due → recorded → executed → finished, runs a second"),
    ("drain", "a backlog of queued runs, runs a second"),
    ("drain_100k", "a backlog five times as long, and what becomes of it as it grows"),
    ("start_local", "run now → start in the same process"),
    ("start_remote", "run now, asked of an instance without a free slot → start on another"),
    ("burst_100", "how late 100 tasks start that are due at once"),
    ("burst_1000", "how late 1,000 tasks start that are due at once"),
    ("burst_10000", "how late 10,000 tasks start that are due at once"),
    ("lone", "how late the only task starts"),
    ("rest_1m", "what a service with 1,000,000 stored tasks takes while nothing is due"),
    ("herd", "200,000 tasks at one instant, and a lone one of another tenant"),
    ("create_batch", "tasks stored a hundred at a time, without a request around them"),
    ("create_single", "tasks made one by one, by 16 clients"),
    ("instances_2", "two processes on one Postgres"),
    ("instances_4", "four processes on one Postgres"),
    ("sqlite_fire", "`fire` on SQLite"),
    ("sqlite_enqueue", "run now, one after another, on SQLite"),
    ("next_fire", "the next instant of a cron task with a zone"),
];

/// All that was measured in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Version of the product.
    pub reveille: String,
    /// The instant at which the measurement began.
    pub began_at: DateTime<Utc>,
    /// The machine and its servers.
    pub machine: Machine,
    /// Small sizes: a first look, and no figures to judge by.
    pub quick: bool,
    /// Limits that figures are compared with.
    pub limits: Vec<FigureLimit>,
    /// The figures.
    pub figures: Vec<BenchFigure>,
}

/// Measures what is named, or everything; `told` hears what is being done. Figures that need Postgres are left out on
/// SQLite.
///
/// # Errors
/// The database or Redis can't be used, or what was measured was not done right: lost, doubled, or not done at all.
pub async fn run(names: &[&str], at: &BenchSite, size: BenchSize, told: &dyn Fn(&str)) -> anyhow::Result<BenchReport> {
    let machine = Machine::inspect(at).await?;
    let began_at = machine_now();
    let quick = size.quick;
    let mut bench = Bench { at, size, names, told, limits: Vec::new(), figures: Vec::new() };
    bench.progress("the quotas of tenants are raised but where the configuration is the default one");
    figures::agent::measure(&mut bench).await?;
    figures::agent_wait::measure(&mut bench).await?;
    figures::pipeline::measure(&mut bench).await?;
    figures::everything::measure(&mut bench).await?;
    figures::webhook::measure(&mut bench).await?;
    figures::lists::measure(&mut bench).await?;
    figures::dashboard::live_tails::measure(&mut bench).await?;
    figures::recall::measure(&mut bench).await?;
    figures::neighbours::measure(&mut bench).await?;
    if bench.includes("events") {
        bench.figures.extend(figures::events::measure(at, size, told).await?);
    }
    let on_postgres = at.database_url.is_some();
    if on_postgres {
        if names.is_empty() {
            figures::write::limits(&mut bench).await?;
        }
        figures::fire::measure(&mut bench).await?;
        figures::drain::measure(&mut bench).await?;
        figures::start::local(&mut bench).await?;
        figures::start::remote(&mut bench).await?;
        figures::burst::single(&mut bench).await?;
        figures::burst::measure(&mut bench).await?;
        figures::rest::measure(&mut bench).await?;
        figures::herd::measure(&mut bench).await?;
        figures::create::batch(&mut bench).await?;
        figures::create::single(&mut bench).await?;
        figures::instances::measure(&mut bench).await?;
    }
    figures::fire::on_sqlite(&mut bench).await?;
    figures::write::sqlite_enqueue(&mut bench).await?;
    figures::next_fire::measure(&mut bench)?;
    let Bench { limits, figures, .. } = bench;
    Ok(BenchReport { reveille: env!("CARGO_PKG_VERSION").into(), began_at, machine, quick, limits, figures })
}
