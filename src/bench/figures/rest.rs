//! `rest_1m`: what a million stored tasks cost a service while nothing is due. The service is a process of its own.

use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::TimeDelta;

use crate::base::clock::pause;
use crate::bench::machine::{field, kilobytes};
use crate::bench::{Bench, BenchEnv, BenchFigure, BenchSite, Instance, Part, PartProcess};

/// Of a core, in percent.
const MOST_CPU: f64 = 0.1;
const MOST_MEMORY: f64 = 64.0;
const MOST_SECONDS: f64 = 5.0;
/// In seconds: a dozen looks of a second each, and then each wait twice as long until it is the longest.
const COMES_TO_REST: f64 = 25.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Figures of a service that has nothing to do.
struct RestFigures {
    /// From the start of the process, in seconds.
    ready: f64,
    /// Of a core, in percent.
    cpu: f64,
    /// Resident, in bytes.
    memory: f64,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("rest_1m") {
        return Ok(());
    }
    let (at, stored, seconds) = (bench.at, bench.size.stored_tasks, bench.size.idle_seconds);
    bench.progress(&format!("rest_1m: {stored} stored tasks, nothing due, for {seconds} s"));
    let (empty, full) = BenchEnv::with(at, async |place| {
        let instance = Instance::build(place).await?;
        let empty = measure_idle(at, place, seconds).await?;
        let tomorrow = instance.store.clock().now() + TimeDelta::days(1);
        instance.fixtures(place).due(stored, tomorrow).await?;
        instance.store.close().await;
        Ok((empty, measure_idle(at, place, seconds).await?))
    })
    .await?;
    let above = full.memory - empty.memory;
    let what = "a service with stored tasks and nothing due: share of a core that it takes";
    let figure = BenchFigure::new("rest_1m", what, "%", stored, full.cpu)
        .with_limit("a thousandth of a core", MOST_CPU)
        .at_most(1.0)
        .with_part_at_most("memory above an empty service", "MiB", above / MIB, MOST_MEMORY)
        .with_part_at_most("ready after", "s", full.ready, MOST_SECONDS)
        .with_part("memory in all", "MiB", full.memory / MIB)
        .with_part("memory of a stored task", "bytes", (above / stored as f64).max(0.0))
        .with_part("an empty service's share", "%", empty.cpu);
    bench.figures.push(figure);
    Ok(())
}

/// Starts a service, lets it come to rest, and watches it.
async fn measure_idle(at: &BenchSite, place: &BenchEnv, seconds: usize) -> anyhow::Result<RestFigures> {
    let began = Instant::now();
    let mut service = PartProcess::start(at, &Part::serve(place, false)).await?;
    let ready = began.elapsed().as_secs_f64();
    let id = service.id().context("the service has ended")?;
    // what a start does is done by then, and looks that find nothing have become rare
    pause(Duration::from_secs_f64((seconds as f64).min(COMES_TO_REST))).await;
    let (before, from) = (service.cpu().await?, Instant::now());
    pause(Duration::from_secs(seconds as u64)).await;
    let cpu = (service.cpu().await? - before).as_secs_f64() / from.elapsed().as_secs_f64() * 100.0;
    let memory = memory(id)?;
    service.stop().await?;
    Ok(RestFigures { ready, cpu, memory })
}

/// Memory of a process, in bytes.
pub fn memory(id: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let resident = field(&status, "VmRSS").and_then(kilobytes).context("the kernel tells no VmRSS")?;
    Ok(resident as f64 * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_something_in_memory() {
        assert!(memory(std::process::id()).unwrap() > MIB);
    }
}
