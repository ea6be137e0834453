//! `list_runs_1m` and `stats_1m`: what a tenant with very many runs that have ended waits for its lists and its figures, by
//! the API of a service with its default configuration.

use std::time::{Duration, Instant};

use anyhow::ensure;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use uuid::Uuid;

use crate::bench::fixtures::{ENDED_FAILED, ENDED_TASKS};
use crate::bench::limits::millis;
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::{Bench, BenchEnv, BenchFigure, EndedRuns, Instance, Samples};
use crate::domain::run::RunState;

const LIST: &str = "list_runs_1m";
const STATS: &str = "stats_1m";
const TENANT: &str = "ann";
/// The longest that a request may take, in milliseconds, p99.
const MOST: f64 = 20.0;
/// Requests of each filter, and of figures, where that takes no longer than so long.
const REQUESTS: usize = 100;
const LONGEST: Duration = Duration::from_secs(3);
/// The least requests of each, however long they take.
const LEAST: usize = 3;

/// How long requests with one filter took, in milliseconds.
struct Filtered {
    filter: String,
    took: Vec<f64>,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes_any(&[LIST, STATS]) {
        return Ok(());
    }
    let stored = bench.size.stored_runs;
    bench.progress(&format!("{LIST}, {STATS}: {stored} stored runs of one tenant"));
    let (lists, stats) = BenchEnv::with(bench.at, async |place| observe(bench, place).await).await?;
    if bench.includes(LIST) {
        let slowest = lists.iter().map(|filtered| (median(filtered), filtered.filter.as_str()));
        let (slowest, filter) = slowest.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::NAN, ""));
        let samples = Samples::new(lists.iter().flat_map(|filtered| filtered.took.clone()).collect());
        let what = format!("a page of the runs of a tenant that has {stored}, by each filter over HTTP, p99");
        let figure = judged(BenchFigure::new(LIST, what, "ms", samples.count(), samples.percentile(0.99)));
        let words = format!("p50 of the slowest filter, `{filter}`");
        bench.figures.push(figure.with_part(words, "ms", slowest).spread(&samples));
    }
    if bench.includes(STATS) {
        let samples = Samples::new(stats.took);
        let what = format!("the figures of a tenant that has {stored} runs, over HTTP, p99");
        let figure = judged(BenchFigure::new(STATS, what, "ms", samples.count(), samples.percentile(0.99)));
        bench.figures.push(figure.spread(&samples));
    }
    Ok(())
}

fn judged(figure: BenchFigure) -> BenchFigure {
    figure.with_limit("what it may take", MOST).at_most(1.0)
}

fn median(filtered: &Filtered) -> f64 {
    Samples::new(filtered.took.clone()).percentile(0.5)
}

async fn observe(bench: &Bench<'_>, place: &BenchEnv) -> anyhow::Result<(Vec<Filtered>, Filtered)> {
    let instance = Instance::build_with(&place.default_config(), None).await?;
    let ended = instance.fixtures(place).ended_runs(TENANT, bench.size.stored_runs).await?;
    instance.close().await;
    if place.is_postgres() {
        // as autovacuum has done long before there are so many
        place.inside.execute("analyze runs").await?;
    }
    let service = BenchService::start(bench.at, place).await?;
    let tenant = service.tenant(TENANT).await?;
    check(&tenant, &ended).await?;
    let mut lists = Vec::new();
    for filter in filters(&ended) {
        lists.push(requests(&tenant, "/v1/runs", filter).await?);
    }
    let stats = requests(&tenant, "/v1/stats", String::new()).await?;
    service.stop().await?;
    Ok((lists, stats))
}

/// # Errors
/// The answers are not those of what is stored.
async fn check(tenant: &BenchTenant, ended: &EndedRuns) -> anyhow::Result<()> {
    for (filter, expected) in [
        ("state=failed".to_owned(), ENDED_FAILED),
        ("state=cancelled".to_owned(), 0),
        (format!("until={}", text(ended.first_at)), 0),
        (format!("task_id={}&limit=1", ended.task), 1),
    ] {
        let (mut found, mut cursor) = (0, None);
        loop {
            let page = tenant.get(&address("/v1/runs", &filter, cursor.as_deref())).await?;
            found += page["items"].as_array().map_or(0, Vec::len);
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            // a page that is full says enough
            if cursor.is_none() || found >= expected.max(1) {
                break;
            }
        }
        ensure!(found == expected, "{found} instead of {expected} runs are listed by `{filter}`");
    }
    let stats = tenant.get("/v1/stats").await?;
    let tasks: u64 = stats["tasks"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    ensure!(tasks == ENDED_TASKS as u64, "{tasks} instead of {ENDED_TASKS} tasks are counted");
    Ok(())
}

/// All runs; each state, most of which none or few have; times, with and without runs; and tasks, with and without runs.
fn filters(ended: &EndedRuns) -> Vec<String> {
    let day = |from: DateTime<Utc>| format!("since={}&until={}", text(from), text(from + TimeDelta::days(1)));
    let task = format!("task_id={}", ended.task);
    let of_time = [
        day(ended.middle),
        format!("since={}", text(ended.last_at + TimeDelta::hours(1))),
        format!("until={}", text(ended.first_at)),
        format!("state=failed&{}", day(ended.middle)),
    ];
    let of_task =
        [format!("{task}&state=failed"), format!("{task}&state=cancelled"), format!("task_id={}", Uuid::nil())];
    let of_state = RunState::ALL.into_iter().map(|state| format!("state={}", state.as_str()));
    [String::new(), task].into_iter().chain(of_state).chain(of_time).chain(of_task).collect()
}

/// An instant as it is written in an address.
fn text(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The address of a page.
fn address(path: &str, filter: &str, cursor: Option<&str>) -> String {
    let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    format!("{path}?{filter}{cursor}")
}

/// Asks for one page after the other, and for the first again behind the last.
async fn requests(tenant: &BenchTenant, path: &str, filter: String) -> anyhow::Result<Filtered> {
    let (mut took, from, mut cursor) = (Vec::new(), Instant::now(), None);
    while took.len() < LEAST || (took.len() < REQUESTS && from.elapsed() < LONGEST) {
        let began = Instant::now();
        let page = tenant.get(&address(path, &filter, cursor.as_deref())).await?;
        took.push(millis(began));
        cursor = page["next_cursor"].as_str().map(str::to_owned);
    }
    Ok(Filtered { filter, took })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_a_filter_of_its_own() {
        let at = DateTime::UNIX_EPOCH;
        let filters = filters(&EndedRuns { task: Uuid::nil(), first_at: at, middle: at, last_at: at });
        for state in RunState::ALL {
            assert!(filters.contains(&format!("state={}", state.as_str())), "{filters:?}");
        }
        assert!(
            filters.contains(&String::new()) && filters[2..].iter().all(|filter| !filter.contains('+')),
            "{filters:?}"
        );
    }
}
