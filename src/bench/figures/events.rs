//! Events from the bus to runs: how many a second that match nothing, how many that match, and how soon one starts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::app::{self, AppEnd, BuiltApp, Extras};
use crate::base::clock::{Clock, pause};
use crate::base::id::{Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::metrics::Metrics;
use crate::bench::env::random_id;
use crate::bench::limits::stream::{Stream, StreamRow, insert_runs};
use crate::bench::limits::{commits, notify, rate};
use crate::bench::{BenchEnv, BenchFigure, BenchSite, BenchSize, Samples};
use crate::domain::event::Event;
use crate::domain::run::{RunError, RunOutcome, Usage};
use crate::domain::task::{Action, Draft, Task};
use crate::engine::events::matcher::EventMatcher;
use crate::engine::scheduling::run_starter::RunStarter;
use crate::executor::{Executor, Job};
use crate::ports::bus::Bus;
use crate::store::Store;

/// Events that are published, and rows that are inserted, at once; as many as the matcher takes.
const BATCH: usize = 500;
/// Tenants that the tasks are spread over.
const TENANTS: usize = 100;
/// The longest that one event may take to its start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two events whose way is timed, and between two of the limit.
const GAP: Duration = Duration::from_millis(5);
/// Limits of an event's way to its start.
const BARE_NOTIFY: &str = "bare notify";
const TWO_COMMITS: &str = "two commits of one row, one after the other";

pub async fn measure(at: &BenchSite, size: BenchSize, progress: &dyn Fn(&str)) -> anyhow::Result<Vec<BenchFigure>> {
    BenchEnv::with(at, async |place| measure_on(at, place, size, progress).await).await
}

async fn measure_on(
    at: &BenchSite,
    place: &BenchEnv,
    size: BenchSize,
    progress: &dyn Fn(&str),
) -> anyhow::Result<Vec<BenchFigure>> {
    // before the service listens to the same database
    let limit = bare_starts(at, place, size).await?;
    let started = StartedRuns::default();
    let extras = Extras { executors: vec![Arc::new(started.clone())], ..Extras::default() };
    let BuiltApp { store, engine, http, .. } =
        app::build(&place.config, Clock::system(), extras, AppEnd::default(), |_| {}).await?;
    let bus = Arc::clone(&http.bus);
    progress(&format!("making {} event tasks", size.event_tasks));
    let tasks = create_tasks(&store, &http.validator, size.event_tasks).await?;
    let mut figures = throughput(place, &store, &bus, &tasks, size, progress).await?;
    progress(&format!("timing {} events, one after the other", size.event_samples));
    let engine = engine.start().await?;
    let timed = latency(&limit, &bus, &started, size).await;
    engine.stop().await;
    store.close().await;
    figures.extend(timed?);
    Ok(figures)
}

/// Tasks of many tenants, each for a type of its own, with a filter that holds.
async fn create_tasks(
    store: &Store,
    validator: &crate::domain::task::TaskValidator,
    count: usize,
) -> anyhow::Result<Vec<Uuid>> {
    let now = store.clock().now();
    let tasks = (0..count).map(|number| {
        let draft = json!({
            "name": format!("task {number}"), "executor": "bench",
            "trigger": { "type": "event", "source": "bench", "event_type": format!("kind.{number}"),
                         "filter": "event.data.amount > 100" },
        });
        let draft = Draft::parse(
            Tenant::new(tenant(number)).map_err(|why| ValidationErrors::one("/tenant_id", why)),
            &draft,
            validator,
            now,
        )?;
        let (task, _) = Task::new(new_id(now), draft, now).map_err(|fault| ValidationErrors(vec![fault]))?;
        Ok::<Task, ValidationErrors>(task)
    });
    let tasks: Vec<Task> = tasks.collect::<Result<_, _>>()?;
    let ids = tasks.iter().map(|task| task.id).collect();
    stream::iter(tasks)
        .map(|task| async move { store.create_task(&task, None, None).await.map(drop) })
        .buffer_unordered(8)
        .try_collect::<()>()
        .await?;
    Ok(ids)
}

fn tenant(number: usize) -> String {
    format!("tenant-{}", number % TENANTS)
}

/// An event for the task of this number, or for none.
fn event(number: usize, matching: bool) -> Event {
    let kind = if matching { format!("kind.{number}") } else { format!("other.{number}") };
    let value = json!({
        "specversion": "1.0", "id": random_id(), "source": "bench", "type": kind, "tenantid": tenant(number),
        "data": { "amount": 150, "text": "what happened, in as many words as an event has as a rule" },
    });
    Event::try_from(value).expect("an event")
}

async fn throughput(
    place: &BenchEnv,
    store: &Store,
    bus: &Arc<dyn Bus>,
    tasks: &[Uuid],
    size: BenchSize,
    progress: &dyn Fn(&str),
) -> anyhow::Result<Vec<BenchFigure>> {
    // nothing is executed here: the runs are committed, and that is all
    let starter = RunStarter::recording_only(store.clone(), random_id());
    let compute = store.computing().clone();
    let matcher = EventMatcher::new(store.clone(), Arc::clone(bus), starter, compute, 5, &Metrics::new());
    publish(bus, &first_of_each_tenant()).await?;
    drain(&matcher, TENANTS).await?;

    progress(&format!("{} events that match nothing", size.events));
    let unmatched: Vec<Event> = (0..size.events).map(|number| event(number % size.event_tasks, false)).collect();
    let bodies: Vec<String> = unmatched.iter().map(|event| event.to_value().to_string()).collect();
    let (mut plain_add, mut plain_read) = (None, None);
    if let Some((url, prefix)) = place.redis() {
        let mut plain = Stream::new(url, prefix).await?;
        plain_add = Some(plain.add(&bodies, BATCH).await?);
        plain_read = Some(plain.read(bodies.len(), BATCH).await?);
    }
    let published = publish(bus, &unmatched).await?;
    let read = drain(&matcher, unmatched.len()).await?;

    progress(&format!("{} events that match a task each", size.events));
    let matching: Vec<Event> = (0..size.events).map(|number| event(number % size.event_tasks, true)).collect();
    let rows: Vec<StreamRow> =
        matching.iter().zip(tasks.iter().cycle()).map(|(event, task)| row(event, *task)).collect();
    let bare = insert_runs(&place.bare, &rows, BATCH).await?;
    publish(bus, &matching).await?;
    let recorded = drain(&matcher, matching.len()).await?;
    let runs = store.count_runs(&crate::base::id::Scope::Every).await?;
    let ready: i64 = runs.iter().filter(|(state, _)| state == "ready").map(|(_, count)| count).sum();
    anyhow::ensure!(ready == size.events as i64, "{} events made {ready} runs", size.events);
    let rates = |name: &str, what: &str, value: f64, limit: Option<f64>, against: &str| {
        let figure = BenchFigure::new(name, what, "events/s", size.events, value);
        match limit {
            Some(limit) => figure.with_limit(against, limit),
            None => figure,
        }
    };
    Ok(vec![
        rates("events.published", "events published", published, plain_add, "XADD, in pipelines of 500"),
        rates("events.unmatched", "events that match nothing", read, plain_read, "XREADGROUP and XACK, 500 at once"),
        rates(
            "events.matched",
            "events that match a task each",
            recorded,
            Some(bare),
            "bare inserts of the same rows, 500 at once",
        ),
    ])
}

/// Fields of an event's run that differ from run to run.
fn row(event: &Event, task_id: Uuid) -> StreamRow {
    StreamRow {
        task_id,
        tenant: event.tenant.to_string(),
        fire_key: format!("e:{}", event.key()),
        event_ids: json!([event.id]).to_string(),
        cause: json!({ "type": "event", "event": event }).to_string(),
    }
}

/// The index of a tenant's tasks is read when its first event comes, once in the life of a process: not measured here.
fn first_of_each_tenant() -> Vec<Event> {
    (0..TENANTS).map(|number| event(number, false)).collect()
}

/// Publishes in batches; how many a second.
async fn publish(bus: &Arc<dyn Bus>, events: &[Event]) -> anyhow::Result<f64> {
    let began = Instant::now();
    for batch in events.chunks(BATCH) {
        bus.publish(batch).await?;
    }
    Ok(rate(events.len(), began))
}

/// Reads, matches, records and acknowledges so many events; how many a second.
async fn drain(matcher: &EventMatcher, count: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut handled = 0;
    while handled < count {
        let some = matcher.process(Duration::from_secs(1)).await?;
        anyhow::ensure!(some > 0 || began.elapsed() < PATIENCE * 4, "{handled} of {count} events came");
        handled += some;
    }
    Ok(rate(count, began))
}

/// The name of the limit of an event's way to its start, and times in milliseconds: bare notify, or where nothing
/// notifies, two commits.
async fn bare_starts(at: &BenchSite, place: &BenchEnv, size: BenchSize) -> anyhow::Result<(&'static str, Samples)> {
    if !place.is_postgres() {
        let commits = commits::times(&place.bare, size.event_samples, 2, Duration::ZERO).await?;
        return Ok((TWO_COMMITS, commits));
    }
    let (bare, _) = notify::measure(at, place, place.postgres()?, size.event_samples, GAP).await?;
    Ok((BARE_NOTIFY, bare))
}

/// Publish to start, on a service that has nothing else to do.
async fn latency(
    limit: &(&'static str, Samples),
    bus: &Arc<dyn Bus>,
    started: &StartedRuns,
    size: BenchSize,
) -> anyhow::Result<Vec<BenchFigure>> {
    // the runs that the throughput has left are executed first
    publish(bus, &first_of_each_tenant()).await?;
    started.wait_until_idle().await?;
    let mut took = Vec::with_capacity(size.event_samples);
    for number in 0..size.event_samples {
        let event = event(number % size.event_tasks, true);
        started.expect(&event.id);
        let began = Instant::now();
        bus.publish(std::slice::from_ref(&event)).await?;
        let at = started.wait().await?;
        took.push(at.duration_since(began).as_secs_f64() * 1000.0);
        pause(GAP).await;
    }
    Ok(start_figures(limit, &Samples::new(took)))
}

/// The median may take half as long again as bare notify.
fn start_figures(limit: &(&'static str, Samples), took: &Samples) -> Vec<BenchFigure> {
    let (against, bare) = limit;
    let figure = |name: &str, share| {
        BenchFigure::new(name, "event published → start", "ms", took.count(), took.percentile(share))
            .with_limit(*against, bare.percentile(share))
    };
    let median = figure("events.start.p50", 0.5);
    let median = if *against == BARE_NOTIFY { median.at_most(1.5) } else { median };
    vec![median, figure("events.start.p99", 0.99).spread(took)]
}

/// An executor that does nothing and says when it was asked to.
#[derive(Clone, Default)]
struct StartedRuns(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The event that is waited for, and when its run began.
    expected: Mutex<(String, Option<Instant>)>,
    last: Mutex<Option<Instant>>,
    bell: Notify,
}

impl StartedRuns {
    fn expect(&self, event_id: &str) {
        *self.0.expected.lock().expect("bench lock") = (event_id.to_owned(), None);
    }

    async fn wait(&self) -> anyhow::Result<Instant> {
        let until = async {
            loop {
                let bell = self.0.bell.notified();
                if let Some(at) = self.0.expected.lock().expect("bench lock").1 {
                    return at;
                }
                bell.await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await.map_err(|_| anyhow::anyhow!("an event did not start its task"))
    }

    /// Waits until nothing has begun for two seconds.
    async fn wait_until_idle(&self) -> anyhow::Result<()> {
        let quiet = Duration::from_secs(2);
        loop {
            pause(quiet / 4).await;
            let last = *self.0.last.lock().expect("bench lock");
            if last.is_none_or(|last| last.elapsed() > quiet) {
                return Ok(());
            }
        }
    }
}

impl Executor for StartedRuns {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn validate(&self, _: &Action, _: &mut ValidationErrors) {}

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        let now = Instant::now();
        *self.0.last.lock().expect("bench lock") = Some(now);
        let mut expected = self.0.expected.lock().expect("bench lock");
        if job.run.event_ids.first() == Some(&expected.0) {
            expected.1 = Some(now);
            self.0.bell.notify_waiters();
        }
        Box::pin(async { Ok(RunOutcome::Succeeded { output: String::new(), finish: None, usage: Usage::default() }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_starts_is_judged_by_bare_notify_and_by_nothing_else() {
        let took = |median: f64| Samples::new(vec![median; 3]);
        let judged = |against, median| {
            let figures = start_figures(&(against, took(1.0)), &took(median));
            (figures[0].met, figures[1].met)
        };
        assert_eq!(judged(BARE_NOTIFY, 1.5), (Some(true), None));
        assert_eq!(judged(BARE_NOTIFY, 1.51), (Some(false), None));
        assert_eq!(judged(TWO_COMMITS, 9.0), (None, None));
    }
}
