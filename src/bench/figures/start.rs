//! `start_local` and `start_remote`: run now → start, in the process that was asked, and in another.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::id::Scope;
use crate::bench::env::random_id;
use crate::bench::fixtures::draft;
use crate::bench::limits::{commits, notify};
use crate::bench::{
    Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Part, PartMessage, PartProcess, Rate, Samples,
    StartedInstance, Watch,
};
use crate::store::Store;

/// The longest that one start may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two starts; odd, so that it does not keep step with anything.
const GAP: Duration = Duration::from_millis(7);

pub async fn local(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("start_local") {
        return Ok(());
    }
    let (starts, length) = (bench.size.starts, bench.size.commit_time());
    bench.progress(&format!("start_local: {starts} runs, one after the other"));
    let (commit, rested, rate, (took, ours), (idle, _)) = BenchEnv::with(bench.at, async |place| {
        let commit = commits::times(&place.bare, starts, 1, Duration::ZERO).await?;
        let rested = commits::times(&place.bare, starts, 1, GAP).await?;
        let rate = commits::rate(&place.bare, 1, length).await?;
        let service = Instance::build(place).await?.start().await?;
        let trigger = json!({ "type": "schedule", "interval": "1d", "overlap": "allow" });
        let task = service.fixtures(place).task("ann", &draft(trigger)).await?;
        let mut heard = service.probe.listen();
        let clock = service.store.clock().clone();
        let mut measure = async |gap: Duration| {
            let (mut took, watch) = (Vec::with_capacity(starts), Watch::start());
            for _ in 0..starts {
                let run_id = random_id();
                let began = clock.elapsed();
                service.store.run_now(&Scope::Every, task.id, run_id, None, clock.now(), None).await?;
                let start =
                    timeout(PATIENCE, heard.recv()).await.context("a run was not started")?.context("a start")?;
                anyhow::ensure!(start.run_id == run_id, "another run was started than the one that was asked for");
                took.push(start.at.saturating_sub(began).as_secs_f64() * 1000.0);
                pause(gap).await;
            }
            anyhow::Ok((Samples::new(took), watch.rate(starts)))
        };
        let (took, idle) = (measure(Duration::ZERO).await?, measure(GAP).await?);
        service.stop().await;
        Ok((commit, rested, rate, took, idle))
    })
    .await?;
    let limit = commit.percentile(0.5);
    let words = "one row, committed; one client";
    bench.limits.push(FigureLimit::new("commit", words, "ms", limit).spread(commit.distribution("ms")));
    let what = "run now → start on the same instance, one after the other, as the limit's commits";
    let figure = BenchFigure::new("start_local", what, "ms", took.count(), took.percentile(0.5))
        .with_limit("a one-row commit", limit);
    let figure = figure.at_most(2.0).spread(&took);
    let figure = figure.with_part("p50 on an idle machine, a pause before each", "ms", idle.percentile(0.5));
    let figure = figure.with_part("a commit after the same pause", "ms", rested.percentile(0.5));
    bench.figures.push(rate.profile_limit(ours.profile(figure)));
    Ok(())
}

/// The instance that is asked has no place left, so it tells others: by a notice of its own, once its worker has seen
/// that. One that is being stopped tells them with the commit of the run instead; that is a part of the figure.
pub async fn remote(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("start_remote") {
        return Ok(());
    }
    let starts = bench.size.starts;
    bench.progress(&format!("start_remote: {starts} runs, one after the other"));
    let at = bench.at;
    let ((bare, rate), (took, ours), of_stopped) = BenchEnv::with(at, async |place| {
        let bare = notify::measure(at, place, place.postgres()?, starts, GAP).await?;
        // its services do not run, as those of an instance that is being stopped
        let stopped = Instance::build(place).await?;
        let trigger = json!({ "type": "schedule", "interval": "1d", "overlap": "allow" });
        let task = stopped.fixtures(place).task("ann", &draft(trigger)).await?.id;
        let mut other = PartProcess::start(at, &Part::serve(place, true)).await?;
        let (of_stopped, _) = remote_starts(&stopped.store, task, &mut other, starts).await?;
        other.stop().await?;
        stopped.close().await;
        let (full, held) = full_instance(place, task).await?;
        let mut other = PartProcess::start(at, &Part::serve(place, true)).await?;
        let (took, ours) = remote_starts(&full.store, task, &mut other, starts).await?;
        other.stop().await?;
        held.cancel();
        full.stop().await;
        Ok((bare, (took, ours), of_stopped))
    })
    .await?;
    let words = "bare notify: a commit that notifies, heard by another process, which commits; p50";
    bench
        .limits
        .push(FigureLimit::new("bare_notify", words, "ms", bare.percentile(0.5)).spread(bare.distribution("ms")));
    let what = "run now, asked of an instance without a free slot → start on another instance, idle";
    let figure = BenchFigure::new("start_remote", what, "ms", took.count(), took.percentile(0.5))
        .with_limit("bare notify", bare.percentile(0.5));
    let figure = figure.at_most(1.5).spread(&took);
    let allowed = 2.0 * bare.percentile(0.99);
    let figure = figure
        .with_part("p99 of bare notify", "ms", bare.percentile(0.99))
        .require("p99 ≤ 2 × that of the limit".into(), took.percentile(0.99) <= allowed)
        .with_part("asked of an instance that is being stopped, p50", "ms", of_stopped.percentile(0.5))
        .with_part("and its p99", "ms", of_stopped.percentile(0.99));
    bench.figures.push(rate.profile_limit(ours.profile(figure)));
    Ok(())
}

/// How long it takes from asking this store for a run until the other process has started it, in milliseconds.
async fn remote_starts(
    store: &Store,
    task: Uuid,
    other: &mut PartProcess,
    starts: usize,
) -> anyhow::Result<(Samples, Rate)> {
    let clock = store.clock().clone();
    let (mut took, watch) = (Vec::with_capacity(starts), Watch::start());
    for _ in 0..starts {
        let id = random_id();
        let began = clock.elapsed();
        store.run_now(&Scope::Every, task, id, None, clock.now(), None).await?;
        let said = other.receive().await?;
        let PartMessage::Started { run_id, at } = said else { anyhow::bail!("the other instance said {said:?}") };
        anyhow::ensure!(run_id == id, "another run was started than the one that was asked for");
        took.push(at.saturating_sub(began).as_secs_f64() * 1000.0);
        pause(GAP).await;
    }
    Ok((Samples::new(took), watch.rate(starts)))
}

/// A running instance whose only place a run of this task has, until the token is cancelled.
async fn full_instance(place: &BenchEnv, task: Uuid) -> anyhow::Result<(StartedInstance, CancellationToken)> {
    let mut config = place.config.clone();
    config.engine.max_concurrent_runs = 1;
    let (instance, held) = (Instance::build_with(&config, None).await?, CancellationToken::new());
    instance.probe.hold_runs(held.clone());
    let full = instance.start().await?;
    let now = full.store.clock().now();
    full.store.run_now(&Scope::Every, task, random_id(), None, now, None).await?;
    full.probe.until_executed(1, PATIENCE).await?;
    Ok((full, held))
}
