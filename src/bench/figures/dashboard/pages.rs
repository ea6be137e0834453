//! `dashboard_1m`: how long pages of the dashboard take, and how large they are, where a million tasks and a million
//! runs are stored: as the tenant that has the runs and as the operator open them, over HTTP, in a session that has
//! signed in as a browser does.
//!
//! It goes on where the lists were measured, so that the runs are stored once.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::bench::env::random_id;
use crate::bench::fixtures::{draft, hourly};
use crate::bench::limits::millis;
use crate::bench::process::service::{BenchService, BenchTenant};
use crate::bench::process::visitor::PageVisitor;
use crate::bench::{Bench, BenchEnv, BenchFigure, Fixtures, Instance, Samples};
use crate::domain::run::{RunState, ToolCall, TranscriptEntry, TranscriptMessage};
use crate::store::{Finish, RunLimits, TakeRequest};

pub const NAME: &str = "dashboard_1m";
/// The longest that a page may take, p99, in milliseconds, and how large it may be, in kilobytes.
const MOST: f64 = 50.0;
const LARGEST: f64 = 100.0;
/// Requests of each page of each reader, where they take no longer than so long; and those of a first look.
const REQUESTS: usize = 100;
const QUICK_REQUESTS: usize = 3;
const LONGEST: Duration = Duration::from_secs(5);
/// The least requests of each page, however long they take.
const LEAST: usize = 3;
/// Entries of the transcript of a long run, and of a first look; those that are written at once.
const ENTRIES: usize = 5_000;
const QUICK_ENTRIES: usize = 300;
const WRITTEN_AT_ONCE: usize = 100;
/// Events on the bus.
const EVENTS: usize = 60;
const KILOBYTE: f64 = 1000.0;
/// Pages whose size is told, the largest.
const SIZES: usize = 5;
/// Lists and other pages without an id.
const LISTS: [&str; 25] = [
    "/ui",
    "/ui/tasks",
    "/ui/tasks?q=nothing",
    "/ui/tasks?status=disabled",
    "/ui/runs",
    "/ui/runs?state=failed",
    "/ui/runs?q=m:1",
    "/ui/runs?q=nothing",
    "/ui/events",
    "/ui/dead-letters",
    "/ui/deliveries",
    "/ui/approvals",
    "/ui/approvals/grants",
    "/ui/inbox",
    "/ui/conversations",
    "/ui/memory",
    "/ui/recipients",
    "/ui/credentials",
    "/ui/tools",
    "/ui/skills",
    "/ui/budgets",
    "/ui/usage",
    "/ui/usage?by=task",
    "/ui/audit",
    "/ui/system",
];

/// A page that is opened again and again.
struct MeasuredPage {
    /// Its address, as the figure tells it.
    name: &'static str,
    path: String,
}

/// How long a page took, and how large it was, of the reader for whom it was more.
pub struct PageTimes {
    name: &'static str,
    /// p99, in milliseconds.
    late: f64,
    bytes: usize,
    /// Times that it was opened, by both readers.
    opened: usize,
}

/// Stores `missing_tasks` more, and opens every page; `task` is one of the tenant with the runs. No service may be
/// running in the place.
pub async fn observe(
    bench: &Bench<'_>,
    place: &BenchEnv,
    (tenant, task): (&str, Uuid),
    missing_tasks: usize,
) -> anyhow::Result<Vec<PageTimes>> {
    bench.progress(&format!("{NAME}: {missing_tasks} tasks more"));
    let (entries, most) = if bench.size.quick { (QUICK_ENTRIES, QUICK_REQUESTS) } else { (ENTRIES, REQUESTS) };
    let instance = Instance::build_with(&place.default_config(), None).await?;
    let fixtures = instance.fixtures(place);
    fixtures.due(missing_tasks, instance.store.clock().now() + TimeDelta::days(1)).await?;
    let long = long_run(&fixtures, tenant, entries).await?;
    instance.close().await;
    if place.is_postgres() {
        place.inside.execute("analyze tasks, due, turns").await?;
    }
    let service = BenchService::start(bench.at, place).await?;
    let caller = service.tenant(tenant).await?;
    publish(&caller).await?;
    let (own, operator) = (PageVisitor::sign_in(&caller).await?, PageVisitor::sign_in(service.operator()).await?);
    let mut times = Vec::new();
    for page in pages(&caller, tenant, (task, long)).await? {
        let mut of_page = PageTimes { name: page.name, late: 0.0, bytes: 0, opened: 0 };
        for visitor in [&own, &operator] {
            let (took, bytes) = requests(visitor, &page.path, most).await?;
            of_page.late = of_page.late.max(took.percentile(0.99));
            of_page.bytes = of_page.bytes.max(bytes);
            of_page.opened += took.count();
        }
        times.push(of_page);
    }
    service.stop().await?;
    Ok(times)
}

/// The figure: the page that takes the longest, with all others beside it, and the sizes of the largest.
pub fn figure(bench: &Bench<'_>, mut times: Vec<PageTimes>) -> BenchFigure {
    let slowest = times.iter().map(|page| page.late).fold(f64::NAN, f64::max);
    let (tasks, runs) = (bench.size.stored_tasks, bench.size.stored_runs);
    let what = format!("the slowest page of the dashboard beside {tasks} tasks and {runs} runs, over HTTP, p99");
    let opened = times.iter().map(|page| page.opened).sum();
    let kilobytes = |page: &PageTimes| page.bytes as f64 / KILOBYTE;
    let largest = times.iter().map(kilobytes).fold(f64::NAN, f64::max);
    let mut figure = BenchFigure::new(NAME, what, "ms", opened, slowest)
        .with_limit("what a page may take", MOST)
        .at_most(1.0)
        .with_part_at_most("the largest page", "kB", largest, LARGEST);
    for page in &times {
        figure = figure.with_part(format!("`{}`, p99", page.name), "ms", page.late);
    }
    times.sort_by_key(|page| std::cmp::Reverse(page.bytes));
    for page in times.iter().take(SIZES) {
        figure = figure.with_part(format!("`{}`, size", page.name), "kB", kilobytes(page));
    }
    figure
}

/// All pages, with those of one task, of the newest run, of a run with a long transcript, and of an event.
async fn pages(caller: &BenchTenant, tenant: &str, (task, long): (Uuid, Uuid)) -> anyhow::Result<Vec<MeasuredPage>> {
    let newest = first_id(caller, "/v1/runs?limit=1").await?;
    let event = first_id(caller, "/v1/events?order=newest&limit=1").await?;
    let page = |name, path: String| MeasuredPage { name, path };
    let of_one = [
        page("/ui/tasks/{id}", format!("/ui/tasks/{task}")),
        page("/ui/tasks/{id}/edit", format!("/ui/tasks/{task}/edit")),
        page("/ui/runs?task_id=", format!("/ui/runs?task_id={task}")),
        page("/ui/runs/bulk/retry?task_id=", format!("/ui/runs/bulk/retry?task_id={task}")),
        page("/ui/runs/{id}", format!("/ui/runs/{newest}")),
        page("/ui/runs/{id}, 5,000 entries", format!("/ui/runs/{long}")),
        page("/ui/runs/{id}?view=transcript", format!("/ui/runs/{long}?view=transcript")),
        page("/ui/runs/{id}/rows", format!("/ui/runs/{long}/rows?from=100")),
        page("/ui/runs/{id}/rows/{row}", format!("/ui/runs/{long}/rows/42")),
        page("/ui/runs/{id}/end", format!("/ui/runs/{long}?from=100")),
        page("/ui/events/{id}", format!("/ui/events/{event}?tenant_id={tenant}")),
    ];
    Ok(LISTS.into_iter().map(|path| page(path, path.to_owned())).chain(of_one).collect())
}

async fn first_id(caller: &BenchTenant, list: &str) -> anyhow::Result<String> {
    let found = caller.get(list).await?;
    Ok(found["items"][0]["id"].as_str().with_context(|| format!("{list} has no rows"))?.to_owned())
}

/// How long a page takes, and its largest size.
async fn requests(visitor: &PageVisitor, path: &str, most: usize) -> anyhow::Result<(Samples, usize)> {
    let (mut took, mut bytes, from) = (Vec::new(), 0, Instant::now());
    while took.len() < LEAST || (took.len() < most && from.elapsed() < LONGEST) {
        let began = Instant::now();
        let text = visitor.open(path).await?;
        took.push(millis(began));
        bytes = bytes.max(text.len());
    }
    Ok((Samples::new(took), bytes))
}

async fn publish(caller: &BenchTenant) -> anyhow::Result<()> {
    for number in 0..EVENTS {
        let text = "Two of the large ones, and one of the small ones in red. ".repeat(10);
        let event = json!({
            "source": "shop", "type": "order.created", "id": number.to_string(),
            "data": { "order": number, "text": text },
        });
        caller.post("/v1/events", &event).await?;
    }
    Ok(())
}

/// A run with a long transcript: its agent calls a tool in each turn.
async fn long_run(fixtures: &Fixtures<'_>, tenant: &str, entries: usize) -> anyhow::Result<Uuid> {
    let store = fixtures.store;
    let task = fixtures.task(tenant, &draft(hourly())).await?;
    let (run_id, worker, now) = (random_id(), random_id(), store.clock().now());
    store.run_now(&Scope::Every, task.id, run_id, None, now, None).await?;
    let (lease_until, limits) = (now + TimeDelta::hours(1), RunLimits::default());
    let take = TakeRequest { worker, now, ahead: now, lease_until, limit: 1, fair: None, limits, shares: None };
    let taken = store.take_runs(&take).await?;
    let lease = taken.starts.started.first().context("the run can't be started")?.lease;
    ensure!(lease.run_id == run_id, "another run was started");
    let all: Vec<TranscriptEntry> = (0..entries as i64).map(|seq| entry(seq, now)).collect();
    for some in all.chunks(WRITTEN_AT_ONCE) {
        store.append(tenant, lease, some).await?;
    }
    let output = Some("All orders are paid but three, which are listed below. ".repeat(20));
    let end = Finish { output, ..Finish::of(lease, Some(task.id), RunState::Succeeded) };
    ensure!(store.finish_runs(&[end]).await?.is_empty(), "the lease of the long run was lost");
    Ok(run_id)
}

/// A call in each entry with an even number, and its result in the next.
fn entry(seq: i64, begun: DateTime<Utc>) -> TranscriptEntry {
    let (turn, at) = (seq / 2 + 1, begun + TimeDelta::milliseconds(seq * 700));
    let call_id = format!("call_{turn}");
    let message = match seq % 2 {
        0 => TranscriptMessage::Assistant {
            text: Some(format!("I look up order {turn} and compare it with what has come in since yesterday evening.")),
            tool_calls: vec![ToolCall::new(call_id, "shop.find_order", arguments(turn))],
            provider_message: None,
            finish: None,
        },
        _ => TranscriptMessage::Tool {
            call_id,
            name: "shop.find_order".into(),
            notices: vec![],
            content: format!("Order {turn}: two of the large ones, and one of the small ones in red. ").repeat(10),
            is_error: turn % 500 == 0,
            reasons: vec![],
            fetched_at: None,
        },
    };
    TranscriptEntry { duration_ms: Some(350), ..TranscriptEntry::new(seq, turn, at, message) }
}

fn arguments(turn: i64) -> Value {
    json!({ "order": turn, "fields": ["state", "total", "paid_at"], "note": "of the shop in the old town" })
}
