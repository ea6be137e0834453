//! `list_runs_1m` and `stats_1m`: what a tenant with very many runs that have ended, and the operator, wait for lists
//! and figures, by the API of a service with its default configuration. Figures are counted anew each time: a service
//! keeps them for a while, and what it keeps says nothing of the counting. The pages of the dashboard are measured in
//! the same place.

use std::time::{Duration, Instant};

use anyhow::ensure;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::base::clock::pause;
use crate::bench::figures::dashboard::pages::{self, PageTimes};
use crate::bench::fixtures::{ENDED_FAILED, ENDED_TASKS};
use crate::bench::limits::{millis, rows};
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::{Bench, BenchEnv, BenchFigure, EndedRuns, Instance, Samples};
use crate::domain::run::RunState;

const LIST: &str = "list_runs_1m";
const STATS: &str = "stats_1m";
const TENANT: &str = "ann";
/// A tenant with a hundredth of the runs, newer than those of the other.
const OTHER: &str = "ben";
const SHARE_OF_OTHER: usize = 100;
/// One task of other tenants for so many that other figures have stored.
const SHARE_OF_TASKS: usize = 10;
/// The longest that a request may take, in milliseconds, p99.
const MOST: f64 = 20.0;
/// Requests of each filter, where that takes no longer than so long; and those of a first look.
const REQUESTS: usize = 100;
const QUICK_REQUESTS: usize = 5;
const LONGEST: Duration = Duration::from_secs(3);
/// The least requests of each, however long they take.
const LEAST: usize = 3;
/// A service keeps its figures for five seconds; they are asked for again when these are over.
const COUNTED_ANEW: Duration = Duration::from_millis(5_200);
/// Counts of the figures, and those of a first look.
const COUNTS: usize = 20;
const QUICK_COUNTS: usize = 2;
/// Rows of a page.
const PAGE: usize = 50;

/// Times of requests with one filter, in milliseconds.
struct FilterTimes {
    filter: String,
    took: Vec<f64>,
}

/// Times of one caller's lists, or none where they are not asked for.
struct CallerTimes {
    words: &'static str,
    filtered: Vec<FilterTimes>,
}

impl CallerTimes {
    fn samples(&self) -> Samples {
        Samples::new(self.filtered.iter().flat_map(|filtered| filtered.took.clone()).collect())
    }
}

/// How long one caller's figures took to be counted, in milliseconds.
#[derive(Default)]
struct CountTimes {
    took: Vec<f64>,
    /// When the last ones were counted, by the service.
    as_of: Value,
}

/// Observations of lists and figures.
struct ListObservations {
    /// Of the tenant, and of the operator.
    lists: Vec<CallerTimes>,
    /// Bare selects of a page, in milliseconds.
    bare: Samples,
    own_figures: CountTimes,
    all_figures: CountTimes,
    tasks: usize,
}

/// Observations of one place: none where they are not asked for.
struct PlaceObservations {
    lists: Option<ListObservations>,
    pages: Option<Vec<PageTimes>>,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes_any(&[LIST, STATS, pages::NAME]) {
        return Ok(());
    }
    let stored = bench.size.stored_runs;
    bench.progress(&format!("{LIST}, {STATS}, {}: {stored} stored runs of one tenant", pages::NAME));
    let PlaceObservations { lists, pages } =
        BenchEnv::with(bench.at, async |place| observe(bench, place).await).await?;
    if let Some(lists) = lists {
        tell(bench, lists);
    }
    if let Some(pages) = pages {
        let figure = pages::figure(bench, pages);
        bench.figures.push(figure);
    }
    Ok(())
}

fn tell(bench: &mut Bench<'_>, observed: ListObservations) {
    let stored = bench.size.stored_runs;
    let ListObservations { lists, bare, own_figures, all_figures, tasks } = observed;
    if bench.includes(LIST)
        && let Some((own, others)) = lists.split_first()
    {
        let slowest = own.filtered.iter().map(|filtered| (median(filtered), filtered.filter.as_str()));
        let (slowest, filter) = slowest.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::NAN, ""));
        let samples = own.samples();
        let what = format!("a page of the runs of a tenant that has {stored}, by each filter over HTTP, p99");
        let mut figure = judged(BenchFigure::new(LIST, what, "ms", samples.count(), samples.percentile(0.99)));
        for caller in others {
            figure = figure.with_part_at_most(caller.words, "ms", caller.samples().percentile(0.99), MOST);
        }
        figure = figure.with_part(format!("p50 of the slowest filter, `{filter}`"), "ms", slowest);
        figure = figure.with_part("a bare select of as many rows by the index, p99", "ms", bare.percentile(0.99));
        bench.figures.push(figure.spread(&samples));
    }
    if bench.includes(STATS) {
        let (samples, all) = (Samples::new(own_figures.took), Samples::new(all_figures.took));
        let what = format!("the figures of a tenant that has {stored} runs, counted anew, over HTTP, p99");
        let figure = judged(BenchFigure::new(STATS, what, "ms", samples.count(), samples.percentile(0.99)));
        let figure = figure.with_part_at_most("the operator's, of all tenants, p99", "ms", all.percentile(0.99), MOST);
        bench.figures.push(figure.with_part("tasks of all tenants", "", tasks as f64).spread(&samples));
    }
}

fn judged(figure: BenchFigure) -> BenchFigure {
    figure.with_limit("what it may take", MOST).at_most(1.0)
}

fn median(filtered: &FilterTimes) -> f64 {
    Samples::new(filtered.took.clone()).percentile(0.5)
}

async fn observe(bench: &Bench<'_>, place: &BenchEnv) -> anyhow::Result<PlaceObservations> {
    let stored = bench.size.stored_runs;
    let instance = Instance::build_with(&place.default_config(), None).await?;
    let fixtures = instance.fixtures(place);
    let ended = fixtures.ended_runs(TENANT, stored).await?;
    fixtures.ended_runs(OTHER, (stored / SHARE_OF_OTHER).max(ENDED_FAILED)).await?;
    let tasks = bench.size.stored_tasks / SHARE_OF_TASKS;
    fixtures.due(tasks, instance.store.clock().now() + TimeDelta::days(1)).await?;
    instance.close().await;
    if place.is_postgres() {
        // as autovacuum has done long before there are so many
        place.inside.execute("analyze runs, tasks, due").await?;
    }
    let lists = match bench.includes_any(&[LIST, STATS]) {
        true => Some(observe_lists(bench, place, &ended, tasks).await?),
        false => None,
    };
    let missing = bench.size.stored_tasks - tasks;
    let pages = match bench.includes(pages::NAME) {
        true => Some(pages::observe(bench, place, (TENANT, ended.task), missing).await?),
        false => None,
    };
    Ok(PlaceObservations { lists, pages })
}

async fn observe_lists(
    bench: &Bench<'_>,
    place: &BenchEnv,
    ended: &EndedRuns,
    tasks: usize,
) -> anyhow::Result<ListObservations> {
    let bare = rows::pages(&place.inside, TENANT, PAGE, REQUESTS).await?;
    let service = BenchService::start(bench.at, place).await?;
    let (tenant, operator) = (service.tenant(TENANT).await?, service.operator());
    check(&tenant, ended).await?;
    let mut lists = vec![
        CallerTimes { words: "", filtered: Vec::new() },
        CallerTimes { words: "the operator's, of all tenants, p99", filtered: Vec::new() },
        CallerTimes { words: "the operator's, of this tenant, p99", filtered: Vec::new() },
        CallerTimes { words: "the operator's, of a tenant with a hundredth of the runs, p99", filtered: Vec::new() },
    ];
    let callers = [
        (&tenant, String::new()),
        (operator, String::new()),
        (operator, format!("&tenant_id={TENANT}")),
        (operator, format!("&tenant_id={OTHER}")),
    ];
    let (mut own_figures, mut all_figures) = (CountTimes::default(), CountTimes::default());
    let mut counted = Instant::now();
    let most = if bench.size.quick { QUICK_REQUESTS } else { REQUESTS };
    if bench.includes(LIST) {
        for ((caller, of), times) in callers.iter().zip(&mut lists) {
            for filter in filters(ended) {
                times.filtered.push(requests(caller, format!("{filter}{of}"), most).await?);
                if counted.elapsed() > COUNTED_ANEW {
                    own_figures.ask(&tenant).await?;
                    all_figures.ask(operator).await?;
                    counted = Instant::now();
                }
            }
        }
    }
    let counts = if bench.size.quick { QUICK_COUNTS } else { COUNTS };
    while bench.includes(STATS) && own_figures.took.len() < counts {
        if !own_figures.took.is_empty() {
            pause(COUNTED_ANEW.saturating_sub(counted.elapsed())).await;
        }
        let stats = own_figures.ask(&tenant).await?;
        let own: u64 = stats["tasks"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
        ensure!(own == ENDED_TASKS as u64, "{own} instead of {ENDED_TASKS} tasks are counted");
        all_figures.ask(operator).await?;
        counted = Instant::now();
    }
    service.stop().await?;
    Ok(ListObservations { lists, bare, own_figures, all_figures, tasks: tasks + 2 * ENDED_TASKS })
}

impl CountTimes {
    /// # Errors
    /// The service answers figures that it had counted before.
    async fn ask(&mut self, caller: &BenchTenant) -> anyhow::Result<Value> {
        let began = Instant::now();
        let mut stats = caller.get("/v1/stats").await?;
        self.took.push(millis(began));
        let as_of = stats["as_of"].take();
        ensure!(as_of.is_string() && as_of != self.as_of, "the figures of {as_of} were not counted anew");
        self.as_of = as_of;
        Ok(stats)
    }
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
            let page = tenant.get(&address(&filter, cursor.as_deref())).await?;
            found += page["items"].as_array().map_or(0, Vec::len);
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            // a page that is full says enough
            if cursor.is_none() || found >= expected.max(1) {
                break;
            }
        }
        ensure!(found == expected, "{found} instead of {expected} runs are listed by `{filter}`");
    }
    Ok(())
}

/// All runs; each state, most of which none or few have; times, with and without runs; and tasks, with and without
/// runs.
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
fn address(filter: &str, cursor: Option<&str>) -> String {
    let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    format!("/v1/runs?{filter}{cursor}")
}

/// Asks for one page after the other, and for the first again behind the last.
async fn requests(caller: &BenchTenant, filter: String, most: usize) -> anyhow::Result<FilterTimes> {
    let (mut took, from, mut cursor) = (Vec::new(), Instant::now(), None);
    while took.len() < LEAST || (took.len() < most && from.elapsed() < LONGEST) {
        let began = Instant::now();
        let page = caller.get(&address(&filter, cursor.as_deref())).await?;
        took.push(millis(began));
        cursor = page["next_cursor"].as_str().map(str::to_owned);
    }
    Ok(FilterTimes { filter, took })
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
