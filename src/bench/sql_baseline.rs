//! Baseline: the rate of the service's own statements. The store is called by two callers, one batch after the other,
//! with no service and no executor between. A figure of the service lies below it by the service's own cost.

use std::time::Instant;

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Utc};
use futures::future::try_join_all;
use uuid::Uuid;

use crate::bench::env::random_id;
use crate::bench::fixtures::hourly;
use crate::bench::instance::record;
use crate::bench::limits::rate;
use crate::bench::{BenchEnv, BenchFigure, Instance};
use crate::domain::run::RunState;
use crate::store::{Finish, FireDue, ImmediateStart, RunLimits, Store, TakeRequest};

const WHAT: &str = "its statements by themselves, two callers";
const CALLERS: usize = 2;
const BATCH: usize = 500;
/// Longer than any measurement.
const LEASE: TimeDelta = TimeDelta::minutes(30);

/// Statements that a figure executes.
#[derive(Clone, Copy)]
enum BaselineBatch {
    /// Fire what is due, and start it.
    Fire,
    /// Take what is ready, and start it.
    Take,
}

/// So many tasks that are due are fired, started and ended: runs a second.
pub async fn fire(place: &BenchEnv, fires: usize) -> anyhow::Result<f64> {
    let instance = Instance::build(place).await?;
    instance.fixtures(place).due_by(hourly(), fires, instance.store.clock().now()).await?;
    drain_queue(place, instance, BaselineBatch::Fire, fires).await
}

/// So many runs that are ready are taken, started and ended: runs a second.
pub async fn drain(place: &BenchEnv, runs: usize) -> anyhow::Result<f64> {
    let instance = Instance::build(place).await?;
    instance.fixtures(place).queued(runs).await?;
    drain_queue(place, instance, BaselineBatch::Take, runs).await
}

/// Tells beside a figure, in runs a second, what its statements gave, and how much of the limit that is: what can be
/// reached with these statements.
pub fn annotate(figure: BenchFigure, rate: f64) -> BenchFigure {
    let limit = figure.limit;
    let figure = figure.with_part(WHAT, "runs/s", rate);
    match limit {
        Some(limit) => figure.with_part("which is of the limit", "", rate / limit),
        None => figure,
    }
}

/// The baseline that was told beside a figure.
pub fn baseline_of(figure: &BenchFigure) -> Option<f64> {
    figure.parts.iter().find(|part| part.name == WHAT).map(|part| part.value)
}

async fn drain_queue(place: &BenchEnv, instance: Instance, batch: BaselineBatch, runs: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let callers = (0..CALLERS).map(|_| tokio::spawn(run_batches(instance.store.clone(), batch)));
    for called in try_join_all(callers).await? {
        called?;
    }
    let value = rate(runs, began);
    let record = record(place).await?;
    ensure!(record.finished == runs as i64, "of {runs} runs, {record:?}");
    instance.store.close().await;
    Ok(value)
}

/// One batch after the other, until there is none.
async fn run_batches(store: Store, batch: BaselineBatch) -> anyhow::Result<()> {
    let worker = random_id();
    loop {
        let now = store.clock().now();
        let started = match batch {
            BaselineBatch::Fire => store.fire_due(&firing(worker, now)).await?.started,
            BaselineBatch::Take => store.take_runs(&taking(worker, now)).await?.starts.started,
        };
        if started.is_empty() {
            return Ok(());
        }
        let ends = started.iter().map(|run| Finish::of(run.lease, run.run.task_id, RunState::Succeeded));
        let ends: Vec<Finish> = ends.collect();
        let lost = store.finish_runs(&ends).await?;
        ensure!(lost.is_empty(), "the leases of {} runs were lost", lost.len());
    }
}

fn firing(worker: Uuid, now: DateTime<Utc>) -> FireDue {
    let start = Some(ImmediateStart { slots: 2 * BATCH, lease_until: now + LEASE, shares: None });
    FireDue { now, limit: BATCH as i64, worker, room: 2 * BATCH, start, ..FireDue::default() }
}

fn taking(worker: Uuid, now: DateTime<Utc>) -> TakeRequest {
    let limits = RunLimits::default();
    TakeRequest {
        worker,
        now,
        ahead: now,
        lease_until: now + LEASE,
        limit: BATCH as i64,
        fair: None,
        limits,
        shares: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_figures_are_told_with_their_share_of_the_limit() {
        let figure = annotate(
            BenchFigure::new("fire", "due → finished", "runs/s", 10, 20.0).with_limit("bare fire", 80.0),
            28.0,
        );
        let told_beside: Vec<(&str, f64)> = figure.parts.iter().map(|part| (part.name.as_str(), part.value)).collect();
        assert_eq!(told_beside, [(WHAT, 28.0), ("which is of the limit", 0.35)]);
        assert_eq!((baseline_of(&figure), baseline_of(&BenchFigure::default())), (Some(28.0), None));
    }
}
