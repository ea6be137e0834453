//! The service in the test's own process, on a clock that stands still: built by `app::build`, ticked by hand.
//!
//! Instances come and go in a [`World`]. Each has a runtime of its own, so that a crash takes all of it, as the death
//! of a process would. What an instance leaves behind when it is finished (a queued run, a slot, a parked run) fails
//! the test.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use chrono::{DateTime, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use reveille::app::{AppEnd, BuiltApp, Extras, build};
use reveille::base::clock::{Clock, pause};
use reveille::base::id::{Scope, Tenant, new_id};
use reveille::config::Config;
use reveille::domain::event::Event;
use reveille::domain::notification::{Addresses, Delivery, Recipient};
use reveille::domain::run::{Run, RunState};
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Draft, Task};
use reveille::domain::trigger::condition::ConditionState;
use reveille::engine::service::{NextTick, ServiceLoop, TickError};
use reveille::engine::{self, Engine};
use reveille::http;
use reveille::ports::bus::{Bus, BusBacklog};
use reveille::store::{Cancelled, DeliveryFilter, RunFilter, Store, StoreError};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;

use super::reference::{Exchange, is_held, reference};
use super::world::{World, at};

/// Text of a fault that `src/base/failpoint.rs` makes. Nothing does, without the feature.
const PLANTED_FAULT: &str = "a planted fault";

#[cfg(feature = "failpoints")]
use reveille::base::failpoint::without_faults;

/// Spares a test's own question to the store from faults that are made on purpose.
#[cfg(not(feature = "failpoints"))]
async fn without_faults<F: Future>(ask: F) -> F::Output {
    ask.await
}

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that comes by itself.
const LOOK: Duration = Duration::from_millis(2);

/// An event of the tenant `ann`: what differs from source `shop`, type `order`.
pub fn event(more: &Value) -> Event {
    let mut event = json!({ "specversion": "1.0", "source": "shop", "type": "order", "tenantid": "ann" });
    event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    Event::try_from(event).unwrap_or_else(|faults| panic!("{faults}"))
}

/// One service, ticked by hand.
pub struct Instance {
    pub number: usize,
    pub store: Store,
    engine: Option<Engine>,
    http: Option<http::HttpState>,
    /// The routes, which know the whole reference: they are made once.
    router: OnceLock<axum::Router>,
    runtime: Option<Runtime>,
    stop: CancellationToken,
}

impl Instance {
    /// Builds a service in a runtime of its own; only the writer of ends runs, everything else is ticked.
    pub(super) fn build(number: usize, config: Config, clock: Clock, extras: Extras) -> Instance {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let building = move || {
            handle
                .block_on(without_faults(build(&config, clock, extras, AppEnd::default(), |_| {})))
                .expect("a service")
        };
        let BuiltApp { store, engine, http, .. } = std::thread::spawn(building).join().expect("a service");
        let stop = CancellationToken::new();
        let in_it = runtime.enter();
        drop(engine.finisher.run(stop.clone()));
        drop(in_it);
        let router = OnceLock::new();
        Instance { number, store, engine: Some(engine), http: Some(http), router, runtime: Some(runtime), stop }
    }

    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("an engine that was not started")
    }

    pub fn http(&self) -> &http::HttpState {
        self.http.as_ref().expect("an instance")
    }

    /// The routes of this instance.
    pub fn router(&self) -> axum::Router {
        self.router.get_or_init(|| http::router(self.http().clone())).clone()
    }

    /// A task of the tenant `ann` from what differs from: every minute, the executor `test`, no second attempt.
    pub async fn task(&self, json: Value) -> Task {
        let now = self.store.clock().now();
        let task = self.draft(json);
        let (task, next) = Task::new(new_id(now), task, now).expect("a trigger");
        let stored = task.clone();
        self.on(|store| async move { store.create_task(&stored, next.map(|next| next.nominal), None).await })
            .await
            .expect("a stored task");
        task
    }

    /// The state of the task's condition.
    pub async fn condition(&self, task: &Task) -> ConditionState {
        let id = task.id;
        let states = self.on(move |store| async move { store.condition_states(&Scope::Every, &[id]).await }).await;
        states.expect("states").remove(&id).unwrap_or_default()
    }

    pub fn draft(&self, json: Value) -> Draft {
        let mut fields = json!({
            "name": "a task", "executor": "test", "action": { "config": { "acts": ["succeed"] } },
            "trigger": { "type": "schedule", "interval": "1m" }, "retry": { "max_attempts": 1 },
        });
        let mut tenant = "ann";
        for (field, value) in json.as_object().expect("an object") {
            match field.as_str() {
                "tenant" | "tenant_id" => tenant = value.as_str().expect("a tenant"),
                "acts" => fields["action"]["config"]["acts"] = value.clone(),
                _ => fields[field] = value.clone(),
            }
        }
        let now = self.store.clock().now();
        Draft::parse(Tenant::new(tenant).map_err(|why| panic!("{why}")), &fields, &self.http().validator, now)
            .unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// Gives the tenant an address, so that there is somebody to tell.
    pub async fn recipient(&self) {
        let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
        let ann = Recipient { timezone: chrono_tz::Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() };
        self.on(|store| async move { store.put_recipient(&Scope::Every, "ann", &ann, None).await })
            .await
            .expect("written");
    }

    /// Asks the store, in this instance's runtime.
    pub async fn on<T, F>(&self, ask: impl FnOnce(Store) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.spawn(without_faults(ask(self.store.clone()))).await
    }

    async fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("a live instance");
        runtime.spawn(work).await.expect("an answer")
    }

    /// One tick of a service.
    pub async fn tick<S: ServiceLoop>(&self, service: &Arc<S>) -> Result<NextTick, TickError> {
        loop {
            let service = Arc::clone(service);
            let ticked = self.spawn(async move { service.tick().await }).await;
            match &ticked {
                // as the loop of a service would
                Err(TickError::Store(StoreError::Unavailable(why))) if why.contains(PLANTED_FAULT) => {}
                _ => return ticked,
            }
        }
    }

    /// Ticks a service until it has nothing more to do now.
    async fn tick_out<S: ServiceLoop>(&self, service: &Arc<S>) {
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < PATIENCE, "{} has no end of work", S::NAME);
            match self.tick(service).await.unwrap_or_else(|error| panic!("{}: {error}", S::NAME)) {
                NextTick::Now => {}
                NextTick::At(instant) if instant <= self.store.clock().now() => {}
                _ => return,
            }
        }
    }

    /// Records what is due.
    pub async fn fire(&self) {
        self.tick_out(&self.engine().scheduler).await;
    }

    /// Makes the polls that are due, and waits until they are recorded.
    pub async fn poll(&self) {
        self.tick(&self.engine().watcher).await.unwrap_or_else(|error| panic!("the watcher: {error}"));
        let watcher = Arc::clone(&self.engine().watcher);
        self.on(|_| async move { watcher.drain().await }).await;
    }

    /// Starts what can start.
    pub async fn work(&self) {
        self.tick_out(&self.engine().worker).await;
    }

    /// The bus of this instance.
    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.http().bus)
    }

    /// Puts events of the tenant `ann` on the bus: what differs from source `shop`, type `order`.
    pub async fn publish(&self, events: &[Value]) {
        let events: Vec<Event> = events.iter().map(event).collect();
        let bus = self.bus();
        self.on(|_| async move { bus.publish(&events).await }).await.expect("published");
    }

    /// Handles what is on the bus, until nothing is left.
    pub async fn match_events(&self) {
        while self.match_once().await.expect("matched") > 0 {}
    }

    /// Handles what is on the bus until all of it is acknowledged, by whichever instance. One that has enough of a
    /// tenant leaves the rest of it on the bus for a while.
    pub async fn match_shared(&self) {
        let started = Instant::now();
        loop {
            self.match_events().await;
            let backlog = self.bus().backlog().await.expect("a backlog");
            if backlog == BusBacklog::default() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "the bus has {backlog:?}");
            pause(LOOK).await;
        }
    }

    /// Handles one batch of what is on the bus.
    pub async fn match_once(&self) -> Result<usize, TickError> {
        let matcher = Arc::clone(&self.engine().matcher);
        self.on(|_| async move { matcher.process(Duration::ZERO).await }).await
    }

    /// Has the matcher do one round.
    pub async fn match_round(&self) {
        let matcher = Arc::clone(&self.engine().matcher);
        self.on(|_| async move { matcher.round(Duration::ZERO).await }).await.expect("a round");
    }

    /// Closes windows and releases what was held.
    pub async fn close_windows(&self) {
        self.tick_out(&self.engine().windows).await;
    }

    pub async fn beat(&self) {
        self.tick(&self.engine().heartbeat).await.expect("a heartbeat");
    }

    pub async fn rescue(&self) {
        self.tick(&self.engine().rescuer).await.expect("a rescue");
    }

    /// The next wake-up of the worker from now on; older ones are used up.
    pub fn worker_hint(&self) -> BoxFuture<'static, ()> {
        loop {
            let mut hint = self.engine().worker.wakeup();
            if (&mut hint).now_or_never().is_none() {
                return hint;
            }
        }
    }

    /// Picks up what was left, records and starts what is due, and waits until it has ended but for `running` runs.
    pub async fn live(&self, running: i64) {
        self.rescue().await;
        self.fire().await;
        self.settle(running).await;
    }

    /// Starts what can start until `running` runs are executed, by all instances, and no other can start.
    pub async fn settle(&self, running: i64) {
        let started = Instant::now();
        let mut before = Vec::new();
        loop {
            self.work().await;
            let now = self.queue().await;
            let executed = now.iter().find(|(state, _)| state == "started").map_or(0, |(_, count)| *count);
            // what follows from an end is recorded a little after it
            if executed == running && now == before && self.engine().running_count() as i64 <= executed {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{running} runs should be executed; the queue has {now:?}");
            before = now;
            pause(LOOK).await;
        }
    }

    /// Starts what it can get until the queue is empty, which other instances work on, too.
    pub async fn settle_shared(&self) {
        let (mut fewest, mut since) = (i64::MAX, Instant::now());
        loop {
            let queue = self.queue().await;
            let left = queue.iter().map(|(_, count)| count).sum::<i64>();
            if left == 0 {
                return;
            }
            if left < fewest {
                (fewest, since) = (left, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "the queue has {queue:?}");
            self.work().await;
        }
    }

    /// Services that the loops should have ticked lately, and have not.
    pub fn late_services(&self) -> Vec<&'static str> {
        let late = self.http().metrics.late_services(self.store.clock().now());
        late.into_iter().map(|late| late.service).collect()
    }

    /// How many runs are ready, claimed, started and parked; those that are none are left out.
    pub async fn queue(&self) -> Vec<(String, i64)> {
        let counts = self.on(|store| async move { store.count_runs(&Scope::Every).await }).await.expect("counts");
        let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        counts.sort();
        counts
    }

    /// The task's runs, oldest first.
    pub async fn runs(&self, task: &Task) -> Vec<Run> {
        let filter = RunFilter { task_id: Some(task.id), limit: 10_000, ..RunFilter::default() };
        let mut runs =
            self.on(|store| async move { store.list_runs(&Scope::Every, &filter).await }).await.expect("runs");
        runs.reverse();
        runs
    }

    /// The task's runs in the order of their instants, a line each: see [`line`].
    pub async fn lines(&self, task: &Task) -> Vec<String> {
        let mut runs = self.runs(task).await;
        runs.sort_by_key(|run| run.missed.as_ref().filter(|_| is_skipped(run)).map_or(run.scheduled_for, |m| m.from));
        runs.iter().map(line).collect()
    }

    pub async fn run(&self, id: Uuid) -> Run {
        self.on(move |store| async move { store.get_run(&Scope::Every, id).await }).await.expect("a run")
    }

    /// The run, once it is as it should be.
    pub async fn until(&self, id: Uuid, is_so: impl Fn(&Run) -> bool) -> Run {
        let started = Instant::now();
        loop {
            let run = self.run(id).await;
            if is_so(&run) {
                return run;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain: {run:#?}");
            pause(LOOK).await;
        }
    }

    pub async fn change(&self, task: &Task, change: TaskChange) -> Task {
        let id = task.id;
        self.on(move |store| async move { store.change_task(&Scope::Every, id, &change).await })
            .await
            .expect("a change")
    }

    /// Asks over HTTP with a bearer token: the status and the JSON of the answer.
    pub async fn ask(&self, method: &str, path: &str, token: &str, body: Option<Value>) -> (u16, Value) {
        let mut request =
            Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let bytes = body.as_ref().map_or(Body::empty(), |body| Body::from(body.to_string()));
        let (router, request) = (self.router(), request.body(bytes).expect("a request"));
        let (status, kind, answer) = self
            .on(|_| async move {
                let (parts, body) = router.oneshot(request).await.expect("an answer").into_parts();
                let kind =
                    parts.headers.get("content-type").map(|kind| kind.to_str().expect("a media type").to_owned());
                let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
                let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                (parts.status.as_u16(), kind.filter(|kind| is_held(kind)), answer)
            })
            .await;
        reference().hold(&Exchange {
            method,
            path,
            sent: body.as_ref().map(|body| ("application/json", body)),
            status,
            answered: kind.as_deref().map(|kind| (kind, &answer)),
        });
        (status, answer)
    }

    /// Posts a form as a provider does, with a signature in a header; the status of the answer.
    pub async fn post_form(&self, path: &str, signature: (&str, &str), fields: &[(&str, &str)]) -> u16 {
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = Request::post(path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header(signature.0, signature.1)
            .body(Body::from(form))
            .expect("a request");
        let router = self.router();
        self.on(|_| async move { router.oneshot(request).await.expect("an answer").status().as_u16() }).await
    }

    /// The answer to a GET of an admin, as text.
    pub async fn page(&self, path: &str) -> String {
        let request = Request::get(path).header("authorization", format!("Bearer {}", super::world::ADMIN));
        let (router, request) = (self.router(), request.body(Body::empty()).expect("a request"));
        self.on(|_| async move {
            let answer = router.oneshot(request).await.expect("an answer");
            assert!(answer.status().is_success(), "{}", answer.status());
            let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
            String::from_utf8_lossy(&bytes).into_owned()
        })
        .await
    }

    /// Ends what waited too long.
    pub async fn expire(&self) {
        self.tick_out(&self.engine().expirer).await;
    }

    /// Sees to runs that wait for people.
    pub async fn attend(&self) {
        self.tick_out(&self.engine().approval_reminder).await;
    }

    /// Sends what is due, and waits until it is recorded.
    pub async fn notify(&self) {
        self.tick(&self.engine().notifier).await.unwrap_or_else(|error| panic!("the notifier: {error}"));
        let notifier = Arc::clone(&self.engine().notifier);
        self.on(|_| async move { notifier.drain().await }).await;
    }

    /// Changes fields of a task, as PATCH does.
    pub async fn edit(&self, task: &Task, json: Value) -> Task {
        let stored = self.stored(task).await;
        let draft = Draft::patch(&stored, &json, &self.http().validator, self.store.clock().now());
        let Draft { name, spec, .. } = draft.unwrap_or_else(|faults| panic!("{faults}"));
        self.change(task, TaskChange::Edit { version: stored.version, name, spec: Box::new(spec) }).await
    }

    /// Records a run now, as a person may.
    pub async fn run_now(&self, task: &Task) -> Uuid {
        let (task_id, now) = (task.id, self.store.clock().now());
        let id = new_id(now);
        self.on(move |store| async move { store.run_now(&Scope::Every, task_id, id, None, now, None).await })
            .await
            .expect("a run");
        id
    }

    pub async fn cancel(&self, id: Uuid) -> Cancelled {
        self.on(move |store| async move { store.cancel_run(&Scope::Every, id, "no longer needed").await })
            .await
            .expect("a run that can be cancelled")
    }

    pub async fn stored(&self, task: &Task) -> Task {
        let id = task.id;
        self.on(move |store| async move { store.get_task(&Scope::Every, id).await }).await.expect("a task")
    }

    /// Deliveries in the outbox, oldest first.
    pub async fn deliveries(&self) -> Vec<Delivery> {
        let filter = DeliveryFilter { limit: 1000, ..DeliveryFilter::default() };
        let listed = self.on(|store| async move { store.list_deliveries(&Scope::Every, &filter).await }).await;
        let mut deliveries = listed.expect("deliveries");
        deliveries.reverse();
        deliveries
    }

    /// Loops all services for real.
    pub async fn start(&mut self) -> engine::RunningEngine {
        self.stop.cancel();
        let engine = self.engine.take().expect("an engine that was not started");
        self.on(|_| async move { engine.start().await }).await.expect("a running engine")
    }

    /// Dies as a process does: nothing is flushed, no end is awaited.
    pub fn crash(mut self) {
        self.die();
    }

    /// Ends an instance that must have left nothing behind.
    pub async fn finish(mut self, world: &World) {
        assert_eq!(self.queue().await, [], "runs are left in the queue");
        assert_eq!(world.number("select count(*) from slots").await, 0, "slots are left");
        self.die();
    }

    fn die(&mut self) {
        drop((self.engine.take(), self.http.take(), self.router.take()));
        let runtime = self.runtime.take().expect("a live instance");
        // a runtime can't be shut down from within another one
        let ended = std::thread::spawn(move || runtime.shutdown_timeout(PATIENCE));
        ended.join().expect("a shut down");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.runtime.is_some() {
            self.die();
            assert!(std::thread::panicking(), "an instance must be finished, or crash");
        }
    }
}

fn is_skipped(run: &Run) -> bool {
    run.state == RunState::Skipped
}

/// A run as one line: `08:05 succeeded`, `m skipped overlap`, `08:00..08:04 skipped missed_window x5`, and behind a run
/// that stands for others `+2 from 08:01..08:02`. Instants of other days have the day before them.
pub fn line(run: &Run) -> String {
    let range = |from, to, count: Option<u64>| match from == to {
        true => instant(from),
        false => format!("{}..{} x{}", instant(from), instant(to), count.map_or("?".into(), |n| n.to_string())),
    };
    let what = match (&run.missed, run.fire_key.split(':').next()) {
        (Some(missed), _) if is_skipped(run) && run.reason.as_deref() != Some("overlap") => {
            range(missed.from, missed.to, missed.count)
        }
        (_, Some("s")) => instant(run.scheduled_for),
        (_, kind) => format!("{} {}", kind.unwrap_or_default(), instant(run.scheduled_for)),
    };
    let reason = run.reason.as_deref().or(run.error.as_ref().map(|fault| fault.code.as_str()));
    let stands_for = run.missed.as_ref().filter(|_| !is_skipped(run));
    let more = stands_for.map(|m| format!(" +{} from {}", m.count.unwrap_or(0), range(m.from, m.to, m.count)));
    format!(
        "{what} {}{}{}",
        run.state.as_str(),
        reason.map_or(String::new(), |r| format!(" {r}")),
        more.unwrap_or_default()
    )
}

fn instant(instant: DateTime<Utc>) -> String {
    let same_day = instant.date_naive() == at("08:00").date_naive();
    let format = match (same_day, instant.timestamp() % 60) {
        (true, 0) => "%H:%M",
        (true, _) => "%H:%M:%S",
        (false, 0) => "%d %H:%M",
        (false, _) => "%d %H:%M:%S",
    };
    instant.format(format).to_string()
}
