//! `start_local` and `start_remote`: run now → start, in the process that was asked, and in another.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::time::timeout;

use crate::base::clock::pause;
use crate::base::id::Scope;
use crate::bench::env::random_id;
use crate::bench::fixtures::draft;
use crate::bench::limits::{commits, notify};
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Part, PartProcess, Said, Samples, Watch};

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

pub async fn remote(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("start_remote") {
        return Ok(());
    }
    let starts = bench.size.starts;
    bench.progress(&format!("start_remote: {starts} runs, one after the other"));
    let at = bench.at;
    let ((bare, rate), (took, ours)) = BenchEnv::with(at, async |place| {
        let bare = notify::measure(at, place, place.postgres()?, starts, GAP).await?;
        // the services of this one do not run: it is asked, and the other one starts
        let asked = Instance::build(place).await?;
        let trigger = json!({ "type": "schedule", "interval": "1d", "overlap": "allow" });
        let task = asked.fixtures(place).task("ann", &draft(trigger)).await?;
        let mut other = PartProcess::start(at, &Part::serve(place, true)).await?;
        let clock = asked.store.clock().clone();
        let (mut took, watch) = (Vec::with_capacity(starts), Watch::start());
        for _ in 0..starts {
            let id = random_id();
            let began = clock.elapsed();
            asked.store.run_now(&Scope::Every, task.id, id, None, clock.now(), None).await?;
            let said = other.receive().await?;
            let Said::Started { run_id, at } = said else { anyhow::bail!("the other instance said {said:?}") };
            anyhow::ensure!(run_id == id, "another run was started than the one that was asked for");
            took.push(at.saturating_sub(began).as_secs_f64() * 1000.0);
            pause(GAP).await;
        }
        let ours = watch.rate(starts);
        other.stop().await?;
        asked.store.close().await;
        Ok((bare, (Samples::new(took), ours)))
    })
    .await?;
    let words = "bare notify: a commit that notifies, heard by another process, which commits; p50";
    bench
        .limits
        .push(FigureLimit::new("bare_notify", words, "ms", bare.percentile(0.5)).spread(bare.distribution("ms")));
    let what = "run now → start on another instance, idle";
    let figure = BenchFigure::new("start_remote", what, "ms", took.count(), took.percentile(0.5))
        .with_limit("bare notify", bare.percentile(0.5));
    let figure = figure.at_most(1.5).spread(&took);
    let allowed = 2.0 * bare.percentile(0.99);
    let figure = figure
        .with_part("p99 of bare notify", "ms", bare.percentile(0.99))
        .require("p99 ≤ 2 × that of the limit".into(), took.percentile(0.99) <= allowed);
    bench.figures.push(rate.profile_limit(ours.profile(figure)));
    Ok(())
}
