//! `burst_…` and `lone`: how late tasks start that are all due at one instant, or that are alone, by the database's
//! clock.
//!
//! The tasks of a burst are pipelines of one step that only computes, with room for all of them at once; the lone task
//! does nothing.

use std::time::Duration;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::base::clock::to_delta;
use crate::bench::fixtures::{draft, hourly, hourly_with_a_slot, pipeline_draft};
use crate::bench::instance::{PATIENCE, record, until_recorded};
use crate::bench::limits::timer;
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, ProbedRun, Samples, Scale};
use crate::config::Config;
use crate::engine::maintenance::housekeeping::Housekeeping;
use crate::store::Store;

/// So many times what the bare timer takes.
const TIMES: f64 = 5.0;
const BURSTS: [(&str, usize); 3] = [("burst_100", 100), ("burst_1000", 1_000), ("burst_10000", 10_000)];
/// Told beside the lateness of starts.
pub const STEP_DONE: &str = "p99 until its step is done";
/// How long the making of so many tasks may take before they are due, beyond the scheduler's horizon.
const AHEAD: Duration = Duration::from_secs(4);
/// The burst that is measured once more while housekeeping forgets runs, and how many there are of these for each task.
const CLEANED: (&str, usize) = ("burst_1000", 200);
/// Housekeeping is at work for so long before the tasks are due.
const CLEANING: TimeDelta = TimeDelta::milliseconds(500);
/// Between two sleeps of the timer alone.
const GAP: Duration = Duration::from_millis(100);

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for (name, tasks) in BURSTS {
        if !bench.includes(name) {
            continue;
        }
        let (tasks, rounds) = (bench.size.burst(tasks), bench.size.rounds);
        bench.progress(&format!("{name}: {tasks} tasks that are due at once, {rounds} times"));
        let mut sleeps = Vec::new();
        for _ in 0..rounds {
            sleeps.push(timer::concurrent(tasks).await);
        }
        let plan = |trigger: Value, old| BurstPlan { draft: pipeline_draft(trigger), tasks, rounds, old };
        let config = |place: &BenchEnv| place.config.clone();
        let BurstTimes { starts, ends } = measure_bursts(bench, &plan(hourly(), 0), config).await?;
        let slotted = measure_bursts(bench, &plan(hourly_with_a_slot(), 0), config).await?.starts;
        let sleeps = Samples::all(sleeps);
        let words = format!("timer burst: {tasks} sleeps of the runtime that end at once; p99");
        let limit = sleeps.percentile(0.99);
        bench
            .limits
            .push(FigureLimit::new(format!("timer_{name}"), words, "ms", limit).spread(sleeps.distribution("ms")));
        let what = format!("lateness of {tasks} pipelines that are due at one instant, p99");
        let figure = BenchFigure::new(name, what, "ms", starts.count(), starts.percentile(0.99));
        let figure =
            figure.with_limit("timer burst of that size, p99", limit).at_most(TIMES).require_not_early(&starts);
        let words = "p99 of runs that take their task's slot";
        let mut figure = figure.spread(&starts).with_part(STEP_DONE, "ms", ends.percentile(0.99)).with_part(
            words,
            "ms",
            slotted.percentile(0.99),
        );
        if name == CLEANED.0 {
            let amid = measure_bursts(bench, &plan(hourly(), tasks * CLEANED.1), config).await?.starts;
            let words = "p99 while runs past their retention are deleted";
            figure = figure.with_part_at_most(words, "ms", amid.percentile(0.99), TIMES * limit);
        }
        bench.figures.push(figure);
    }
    Ok(())
}

/// Tasks that are due at once, so often.
pub struct BurstPlan {
    /// The draft that `pipeline` executes.
    pub draft: Value,
    pub tasks: usize,
    pub rounds: usize,
    /// Runs past their retention. If there are any, housekeeping forgets some of them at each instant.
    pub old: usize,
}

/// How late, in milliseconds, of all tasks in all rounds.
pub struct BurstTimes {
    /// Runs were handed to their executor, their start recorded.
    pub starts: Samples,
    /// The executor was done with them.
    pub ends: Samples,
}

/// How late the pipeline of each task was begun, its start recorded, in milliseconds, by a service with this
/// configuration.
pub async fn measure_bursts(
    bench: &Bench<'_>,
    plan: &BurstPlan,
    config: impl Fn(&BenchEnv) -> Config,
) -> anyhow::Result<BurstTimes> {
    let &BurstPlan { ref draft, tasks, rounds, old } = plan;
    BenchEnv::with(bench.at, async |place| {
        let service = Instance::build_with(&config(place), Some("pipeline")).await?.start().await?;
        if old > 0 {
            service.fixtures(place).old_runs(old).await?;
        }
        let (mut starts, mut ends, mut forgotten) = (Vec::new(), Vec::new(), 0);
        for round in 1..=rounds as u64 {
            let clock = service.store.clock().clone();
            // on a whole second, as most are
            let at = next_second(clock.now() + to_delta(AHEAD) + TimeDelta::milliseconds(tasks as i64 / 5));
            service.probe.start_recording();
            service.fixtures(place).due_as(draft, tasks, at).await?;
            let scale = Scale::of(place).await?;
            anyhow::ensure!(clock.now() < at, "the tasks were made too late");
            let stop = CancellationToken::new();
            let cleaning =
                (old > 0).then(|| tokio::spawn(run_housekeeping(service.store.clone(), at - CLEANING, stop.clone())));
            service.probe.until_executed(round * tasks as u64, PATIENCE).await?;
            stop.cancel();
            if let Some(cleaning) = cleaning {
                forgotten += cleaning.await?;
            }
            let (started, ended) = service.probe.take_starts_and_ends();
            let late = |runs: Vec<ProbedRun>| runs.iter().map(|run| scale.late(run.at, run.scheduled_for)).collect();
            starts.push(Samples::new(late(started)));
            ends.push(Samples::new(late(ended)));
        }
        anyhow::ensure!(
            old == 0 || (1..old).contains(&forgotten),
            "{forgotten} of {old} runs were forgotten meanwhile"
        );
        until_recorded(place).await?;
        let (executed, all) = (service.probe.executed() as i64, (rounds * tasks) as i64);
        service.stop().await;
        let finished = record(place).await?.finished;
        anyhow::ensure!(
            (executed, finished) == (all, all),
            "of {all} fires {executed} were executed, and {finished} have succeeded at the first attempt"
        );
        Ok(BurstTimes { starts: Samples::all(starts), ends: Samples::all(ends) })
    })
    .await
}

/// Does what housekeeping does, from then on; answers how many runs it forgot.
async fn run_housekeeping(store: Store, from: DateTime<Utc>, stop: CancellationToken) -> usize {
    store.clock().sleep_until(from).await;
    Housekeeping::delete_expired(&store, TimeDelta::days(1), &stop).await
}

pub async fn single(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("lone") {
        return Ok(());
    }
    let seconds = bench.size.single_task_seconds;
    bench.progress(&format!("lone: one task a second, for {seconds} s"));
    let sleeps = timer::sequential(seconds.max(20), GAP).await;
    let starts = BenchEnv::with(bench.at, async |place| {
        let service = Instance::build(place).await?.start().await?;
        let trigger =
            json!({ "type": "schedule", "cron": "* * * * * *", "timezone": "Europe/Berlin", "overlap": "allow" });
        service.fixtures(place).task("ann", &draft(trigger)).await?;
        // the first seconds warm the connections
        service.probe.until_executed(2, PATIENCE).await?;
        service.probe.start_recording();
        let scale = Scale::of(place).await?;
        service.probe.until_executed(2 + seconds as u64, PATIENCE).await?;
        let noted = service.probe.take_recorded();
        service.stop().await;
        Ok(Samples::new(noted.iter().map(|start| scale.late(start.at, start.scheduled_for)).collect()))
    })
    .await?;
    let limit = sleeps.percentile(0.99);
    let words = "timer alone: one sleep of the runtime after the other; p99";
    bench.limits.push(FigureLimit::new("timer_alone", words, "ms", limit).spread(sleeps.distribution("ms")));
    let what = "lateness of the only task, which is due each second, p99";
    let figure = BenchFigure::new("lone", what, "ms", starts.count(), starts.percentile(0.99));
    bench.figures.push(
        figure.with_limit("timer alone, p99", limit).at_most_over(3.0).require_not_early(&starts).spread(&starts),
    );
    Ok(())
}

/// The first whole second after an instant.
pub fn next_second(instant: DateTime<Utc>) -> DateTime<Utc> {
    let second = TimeDelta::seconds(1);
    instant.duration_trunc(second).map_or(instant, |whole| whole + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_second_is_whole_and_later() {
        let at = DateTime::UNIX_EPOCH + TimeDelta::milliseconds(1500);
        assert_eq!(next_second(at), DateTime::UNIX_EPOCH + TimeDelta::seconds(2));
        assert_eq!(next_second(DateTime::UNIX_EPOCH), DateTime::UNIX_EPOCH + TimeDelta::seconds(1));
    }
}
