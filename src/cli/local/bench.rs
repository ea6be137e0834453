//! `reveille bench`: measures this machine against its own limits.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::to_value;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::base::secret::SecretUrl;
use crate::bench::figure::number;
use crate::bench::report::relative_to;
use crate::bench::{self, BenchFigure, BenchReport, BenchSite, BenchSize, NAMES};
use crate::cli::{Screen, Tone};

/// Event tasks that a tenant may have of one source by default.
const MOST_CROWD: usize = 1_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It works in schemas and under a Redis prefix of its own, and removes them also when it is interrupted.
Without --database-url it measures what there is to measure on SQLite, in a temporary file.
A build without optimisation says little: use the released binary, on a machine that does nothing else.
Everything takes about a quarter of an hour there.

Examples:
  reveille bench --database-url postgres://… --quick
  reveille bench fire drain --database-url postgres://…
  reveille bench --database-url postgres://… --json > run.json
  reveille bench --from run.json --markdown performance.md --plots images
  reveille bench neighbours --database-url postgres://…
  reveille bench events --database-url postgres://… --redis-url redis://127.0.0.1:6379")]
pub struct Args {
    /// Measurements to make; all when absent
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(NAMES.map(|(name, what)| PossibleValue::new(name).help(what))))]
    names: Vec<String>,
    /// PostgreSQL to measure; its disk is what most figures hang on
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Redis to measure, for events
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Everything small, in about two minutes: a first look
    #[arg(long)]
    quick: bool,
    /// Rounds of each throughput; the one in the middle counts [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Tasks that fire in a throughput [default: 50000]
    #[arg(long, value_name = "N")]
    fires: Option<usize>,
    /// Queued runs of drain; five times as many of drain_100k [default: 20000]
    #[arg(long, value_name = "N")]
    backlog: Option<usize>,
    /// Starts that are timed one by one [default: 500]
    #[arg(long, value_name = "N")]
    starts: Option<usize>,
    /// Seconds for which the lone task is watched [default: 60]
    #[arg(long, value_name = "N")]
    single_task_seconds: Option<usize>,
    /// Tasks that are stored in rest_1m, herd and dashboard_1m, and a tenth of them in stats_1m [default: 1000000]
    #[arg(long, value_name = "N")]
    stored_tasks: Option<usize>,
    /// Runs that are stored in list_runs_1m, stats_1m and dashboard_1m [default: 1000000]
    #[arg(long, value_name = "N")]
    stored_runs: Option<usize>,
    /// Facts that are stored in recall_1m [default: 1000000]
    #[arg(long, value_name = "N")]
    stored_facts: Option<usize>,
    /// Tasks that are due at one instant in herd [default: 200000]
    #[arg(long, value_name = "N")]
    herd: Option<usize>,
    /// Seconds for which a service at rest is watched [default: 20]
    #[arg(long, value_name = "N")]
    idle_seconds: Option<usize>,
    /// Tasks that are made [default: 20000]
    #[arg(long, value_name = "N")]
    creates: Option<usize>,
    /// Event tasks that there are [default: 10000]
    #[arg(long, value_name = "N")]
    event_tasks: Option<usize>,
    /// Events of each throughput [default: 20000]
    #[arg(long, value_name = "N")]
    events: Option<usize>,
    /// Events that are timed one by one [default: 500]
    #[arg(long, value_name = "N")]
    event_samples: Option<usize>,
    /// Runs of an agent in agent_32 [default: 2000]
    #[arg(long, value_name = "N")]
    agent_runs: Option<usize>,
    /// Seconds for which the quiet tenant of neighbours is watched, alone and beside others [default: 30]
    #[arg(long, value_name = "N")]
    neighbour_seconds: Option<usize>,
    /// Tasks of a kind that each hostile tenant of neighbours has, 1,000 at most [default: 300]
    #[arg(long, value_name = "N")]
    hostile_tasks: Option<usize>,
    /// Print JSON instead of a table: figures, limits, percentiles, machine
    #[arg(long)]
    json: bool,
    /// Measure nothing, and show what an earlier run printed with --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "database_url", "redis_url", "quick"])]
    from: Option<PathBuf>,
    /// Write a page about it, too
    #[arg(long, value_name = "FILE", requires = "plots")]
    markdown: Option<PathBuf>,
    /// Write its plots as SVG into this directory, too
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Markdown that is put at the end of the page: what a person has to say of the figures
    #[arg(long, value_name = "FILE", requires = "markdown")]
    notes: Option<PathBuf>,
    /// Be another process of a measurement; told what on standard input
    #[arg(long, hide = true)]
    as_part: bool,
}

pub async fn run(args: Args, screen: &mut Screen) -> anyhow::Result<()> {
    if args.as_part {
        return bench::be_part().await;
    }
    let report = match &args.from {
        Some(file) => earlier(file)?,
        None => measured(&args).await?,
    };
    write(&args, &report)?;
    if args.json {
        return Ok(screen.json(&to_value(&report)?)?);
    }
    show(&report, screen)
}

fn earlier(file: &Path) -> anyhow::Result<BenchReport> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what `reveille bench --json` prints", file.display()))
}

async fn measured(args: &Args) -> anyhow::Result<BenchReport> {
    let size = args.size();
    let stop = CancellationToken::new();
    stop_when_asked(stop.clone())?;
    let at = BenchSite {
        database_url: args.database_url.clone().map(SecretUrl::new),
        redis_url: args.redis_url.clone().map(SecretUrl::new),
        program: program()?,
        stop,
    };
    let names: Vec<&str> = args.names.iter().map(String::as_str).collect();
    bench::run(&names, &at, size, &|doing| eprintln!("{doing}")).await
}

/// Writes the page and the plots that were asked for.
fn write(args: &Args, report: &BenchReport) -> anyhow::Result<()> {
    let Some(plots) = &args.plots else { return Ok(()) };
    std::fs::create_dir_all(plots).with_context(|| plots.display().to_string())?;
    let put = |path: &Path, text: &str| std::fs::write(path, text).with_context(|| path.display().to_string());
    for picture in report.plots() {
        put(&plots.join(picture.file), &picture.svg)?;
    }
    let Some(page) = &args.markdown else { return Ok(()) };
    let notes =
        args.notes.as_ref().map(|file| std::fs::read_to_string(file).with_context(|| file.display().to_string()));
    put(page, &report.markdown(&relative_to(page, plots), &notes.transpose()?.unwrap_or_default()))
}

impl Args {
    fn size(&self) -> BenchSize {
        let usual = if self.quick { BenchSize::quick() } else { BenchSize::default() };
        let or = |given: Option<usize>, usual: usize| given.unwrap_or(usual).max(1);
        BenchSize {
            quick: self.quick,
            rounds: or(self.rounds, usual.rounds),
            fires: or(self.fires, usual.fires),
            backlog: or(self.backlog, usual.backlog).max(20),
            starts: or(self.starts, usual.starts),
            single_task_seconds: or(self.single_task_seconds, usual.single_task_seconds),
            stored_tasks: or(self.stored_tasks, usual.stored_tasks).max(10),
            stored_runs: or(self.stored_runs, usual.stored_runs).max(100),
            stored_facts: or(self.stored_facts, usual.stored_facts).max(100),
            facts_of_one: usual.facts_of_one,
            herd: or(self.herd, usual.herd),
            idle_seconds: or(self.idle_seconds, usual.idle_seconds),
            creates: or(self.creates, usual.creates),
            event_tasks: or(self.event_tasks, usual.event_tasks),
            events: or(self.events, usual.events),
            event_samples: or(self.event_samples, usual.event_samples),
            agent_runs: or(self.agent_runs, usual.agent_runs),
            neighbour_seconds: or(self.neighbour_seconds, usual.neighbour_seconds),
            hostile_tasks: or(self.hostile_tasks, usual.hostile_tasks).min(MOST_CROWD),
        }
    }
}

/// This executable: some measurements take more than one process of it.
fn program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// SIGINT and SIGTERM end it in order: what it has made is removed.
fn stop_when_asked(stop: CancellationToken) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

fn show(report: &BenchReport, screen: &mut Screen) -> anyhow::Result<()> {
    let machine = &report.machine;
    screen.facts(&[
        ("machine", format!("{} cores, {} MiB, {}", machine.cores, machine.memory_mib, machine.processor)),
        ("load", format!("{} before anything was measured", machine.load)),
        ("database", format!("{} {}, fsync {}", machine.database, machine.version, machine.fsync)),
        ("build", machine.build.clone()),
    ])?;
    if machine.build == "debug" {
        screen.line(screen.tone(Tone::Notable, "a build without optimisation: the figures say little"))?;
    }
    if report.quick {
        screen.line(screen.tone(Tone::Notable, "small sizes: a first look, not to be judged by"))?;
    }
    if !report.limits.is_empty() {
        let row = |limit: &bench::FigureLimit| {
            vec![limit.name.clone(), format!("{} {}", number(limit.value), limit.unit), limit.what.clone()]
        };
        screen.line("")?;
        screen.table(&["limit", "value", "what"], report.limits.iter().map(row).collect())?;
    }
    screen.line("")?;
    let heading = ["figure", "value", "limit", "ratio", "to be reached", "met", "beside it"];
    Ok(screen.table(&heading, report.figures.iter().map(row).collect())?)
}

fn row(figure: &BenchFigure) -> Vec<String> {
    let part = |part: &bench::figure::FigurePart| format!("{} {} {}", part.name, number(part.value), part.unit);
    let met = |met| if met { "yes" } else { "no" };
    vec![
        figure.name.clone(),
        format!("{} {}", number(figure.value), figure.unit),
        figure.limit.map_or_else(|| "-".into(), number),
        figure.ratio.map_or_else(|| "-".into(), number),
        figure.reach.clone().unwrap_or_default(),
        figure.met.map(met).unwrap_or_default().to_owned(),
        figure.parts.iter().map(part).map(|text| text.trim_end().to_owned()).collect::<Vec<_>>().join(", "),
    ]
}
