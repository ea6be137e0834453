//! `neighbours`: a quiet tenant by itself, and the same tenant beside two hostile ones, on one service with its default
//! configuration, its quotas included.
//!
//! The service is a process of its own. The quiet tenant has schedules, event tasks whose pipeline asks an address,
//! conditions that poll one, messages by webhook, and calls of the API. Each of these may take twice as long beside the
//! hostile tenants as it took alone in the same run. What takes less than [`FLOOR`] is not told apart from noise, and
//! is within its bound.
//!
//! How long the service's threads wait for a processor is measured in both phases. The hostile tenants' own programs
//! run behind all other threads of the machine, because elsewhere they would share no processor with the service.

mod clients;
mod events;
mod hostile;
mod processor;
mod query;
mod quiet;
mod sink;
mod streams;
mod tasks;
mod work;

use std::time::Duration;

use crate::base::clock::pause;
use crate::bench::figures::rest::memory;
use crate::bench::process::service::BenchService;
use crate::bench::{Bench, BenchEnv, BenchFigure, Samples};
use clients::ClientThreads;
use hostile::{HostileLoad, NAMES};
use processor::{ProcessorPhase, ProcessorWatch};
use query::SlowQuery;
use quiet::{QuietTenant, QuietTimes};
use sink::MessageSink;
use work::WorkDone;

pub const NAME: &str = "neighbours";
/// So many times what the quiet tenant takes alone.
const TIMES: f64 = 2.0;
/// Shorter times are noise, in milliseconds.
pub const FLOOR: f64 = 10.0;
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Observations of one run.
struct QuietFigures {
    alone: QuietTimes,
    beside: QuietTimes,
    /// By the hostile tenants, while the quiet one was watched beside them.
    done: WorkDone,
    /// Alone and beside; `None` where the system does not count it.
    phases: Option<(ProcessorPhase, ProcessorPhase)>,
    memory: f64,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes(NAME) {
        return Ok(());
    }
    let seen = BenchEnv::with(bench.at, async |place| observe(bench, place).await).await?;
    bench.figures.extend(figures(&seen));
    Ok(())
}

async fn observe(bench: &Bench<'_>, place: &BenchEnv) -> anyhow::Result<QuietFigures> {
    let (seconds, crowd) = (bench.size.neighbour_seconds, bench.size.hostile_tasks);
    let watched = Duration::from_secs(seconds as u64);
    bench.progress(&format!("{NAME}: a quiet tenant alone, {seconds} s, with the default configuration and quotas"));
    let clients = ClientThreads::start()?;
    let sink = MessageSink::open(clients.handle(), &tasks::polled_text()).await?;
    let query = SlowQuery::prepare(bench.at, place, watched)?;
    let service = BenchService::start_configured(bench.at, place, query.configuration(&NAMES)).await?;
    let mut quiet = QuietTenant::start(&service, &sink).await?;
    let watch = ProcessorWatch::start(&service);
    let alone = quiet.live(watched, || true).await?;
    let phase_alone = watch.phase();
    bench.progress(&format!("{NAME}: the same beside two hostile tenants with {crowd} tasks of a kind, {seconds} s"));
    let hostile = HostileLoad::start(&service, &sink, &query, (crowd, clients.handle())).await?;
    // their schedules have fired and their polls are under way
    pause(watched / 4).await;
    let before = hostile.done().await?;
    let watch = ProcessorWatch::start(&service);
    let beside = quiet.live(watched, || hostile.has_done_each_since(&before)).await?;
    if !beside.refused.is_empty() {
        bench.progress(&format!("{NAME}: calls of the quiet tenant were refused: {}", beside.refused.join("; ")));
    }
    let phases = phase_alone.zip(watch.phase());
    let done = hostile.done().await?.since(&before);
    let memory = service.id().map_or(Ok(f64::NAN), memory)?;
    hostile.stop().await;
    Ok(QuietFigures { alone, beside, done, phases, memory })
}

fn figures(seen: &QuietFigures) -> Vec<BenchFigure> {
    let QuietFigures { alone, beside, done, phases, memory } = seen;
    let schedule =
        figure("schedule", "lateness of tasks that are due each second, p99", &alone.schedule, &beside.schedule)
            .with_part_at_most("instants that did not fire", "", beside.missed as f64, alone.missed as f64);
    let polls = figure(
        "polls",
        "from one poll of a condition to the next, which are a second apart, p99",
        &alone.polls,
        &beside.polls,
    );
    let api = figure("api", "calls of the API, one after the other, p99", &alone.api, &beside.api);
    let mut figures = vec![
        schedule,
        figure("events", "event published → request of the first step of its run, p99", &alone.events, &beside.events),
        polls,
        api.with_part_at_most("calls that were refused", "", beside.refused.len() as f64, alone.refused.len() as f64)
            .with_part("memory of the service", "MiB", memory / MEBIBYTE),
        figure(
            "notifications",
            "last step of a run → its message at a webhook, p99",
            &alone.notifications,
            &beside.notifications,
        ),
        hostile_figure(done),
    ];
    let name = format!("{NAME}.processor");
    figures.extend(phases.as_ref().map(|(alone, beside)| processor::figure(name, alone, beside)));
    figures
}

/// The work of the hostile tenants meanwhile, by kind.
fn hostile_figure(done: &WorkDone) -> BenchFigure {
    let (calls, what) = (done.calls(), "calls of the hostile tenants beside it, streams not counted");
    let figure = BenchFigure::new(format!("{NAME}.hostile"), what, "calls", calls as usize, calls as f64);
    done.annotate(figure.require("each kind is done".into(), done.has_each()))
}

/// The quiet tenant's time beside the hostile ones, against its time alone.
fn figure(name: &str, what: &str, alone: &Samples, beside: &Samples) -> BenchFigure {
    let most = |share| (TIMES * alone.percentile(share)).max(FLOOR);
    let figure = BenchFigure::new(format!("{NAME}.{name}"), what, "ms", beside.count(), beside.percentile(0.99));
    let figure = figure.with_limit("twice what it takes alone, p99, and at least 10 ms", most(0.99)).at_most(1.0);
    let within = beside.percentile(0.5) <= most(0.5);
    let figure = figure.require(format!("p50 ≤ {} ms", crate::bench::figure::number(most(0.5))), within);
    figure
        .with_part("alone p50", "ms", alone.percentile(0.5))
        .with_part("alone p99", "ms", alone.percentile(0.99))
        .spread(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_tenant_may_take_twice_as_long_and_what_is_noise_is_not_judged() {
        let judged = |alone: f64, beside: f64| {
            let samples = |value| Samples::new(vec![value; 5]);
            figure("api", "calls", &samples(alone), &samples(beside)).met
        };
        assert_eq!((judged(20.0, 40.0), judged(20.0, 40.1)), (Some(true), Some(false)));
        assert_eq!((judged(0.2, 10.0), judged(0.2, 10.1)), (Some(true), Some(false)), "below the floor");
    }

    #[test]
    fn median_is_judged_too() {
        let alone = Samples::new([vec![10.0; 99], vec![500.0]].concat());
        let beside = Samples::new([vec![300.0; 99], vec![900.0]].concat());
        let judged = figure("api", "calls", &alone, &beside);
        assert_eq!((judged.met, judged.limit), (Some(false), Some(20.0)));
    }
}
