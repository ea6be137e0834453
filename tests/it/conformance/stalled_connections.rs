//! Connections to the database that stall without an end: nobody waits for one for ever, and others take their place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use reveille::base::id::{Scope, new_id};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{
    ImmediateStart, LocalStarter, ReservedStart, RunLimits, RunRequest, StartedRun, Store, StoreError, TakeRequest,
    Topic,
};
use serde_json::json;
use tokio::time::timeout;

use super::conversations::conversation;
use super::world::{LEASE, StoreHarness, WORKER, new_task, only, open_postgres};
use crate::support::proxy::{Proxy, Wire};

/// Several limits of ten seconds, one after the other, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);

async fn create(store: &Store) -> Result<(), StoreError> {
    let (task, nominal) = new_task("a", json!({"interval": "1h"}), json!({}), store.clock().now());
    store.create_task(&task, nominal, None).await.map(drop)
}

async fn run_now(store: &Store, task: &Task) -> Result<(), StoreError> {
    let now = store.clock().now();
    store.run_now(&Scope::Every, task.id, new_id(now), None, now, None).await.map(drop)
}

/// Asks until it is done: there are several connections that may have to be given up.
async fn until_done(ask: impl AsyncFn() -> Result<(), StoreError>) {
    let done = async { while ask().await.is_err() {} };
    timeout(PATIENCE, done).await.expect("another connection takes its place");
}

#[tokio::test]
async fn caller_over_a_silent_wire_is_told_so_and_the_next_is_served() {
    let world = StoreHarness::postgres().await;
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let proxy = Proxy::before(&world.url()).await;
    let other = open_postgres(&proxy.url(&world.url()), &world.clock).await;

    create(&other).await.expect("a task");
    // nor are new ones served for now
    proxy.forsake();
    proxy.set(Wire::BlackHole);
    // more than go at once
    let asked = async { tokio::join!(create(&other), create(&other), create(&other), create(&other)) };
    let (first, second, third, fourth) = timeout(PATIENCE, asked).await.expect("nobody waits for ever");
    for answer in [first, second, third, fourth] {
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    proxy.set(Wire::Whole);
    until_done(async || create(&other).await).await;

    proxy.forsake();
    proxy.set(Wire::BlackHole);
    let answer = timeout(PATIENCE, run_now(&other, &task)).await.expect("nobody waits for ever");
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    proxy.set(Wire::Whole);
    until_done(async || run_now(&other, &task).await).await;
    timeout(PATIENCE, other.close()).await.expect("nobody waits for the first wire");
}

#[tokio::test]
async fn work_after_an_abandoned_begin_is_committed_for_all_to_see() {
    let world = StoreHarness::postgres().await;
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let proxy = Proxy::before(&world.url()).await;
    let other = open_postgres(&proxy.url(&world.url()), &world.clock).await;
    let (first, second) = tokio::join!(other.finish_runs(&[]), other.finish_runs(&[]));
    assert!(first.is_ok() && second.is_ok(), "both connections of the engine are there");

    // nobody waits for the transactions to begin, and they do: one answer has come by then, the other comes later
    let mut begun = Box::pin(other.finish_runs(&[]));
    assert!(futures::poll!(&mut begun).is_pending(), "it is asked for");
    reveille::base::clock::pause(Duration::from_millis(200)).await;
    proxy.set(Wire::BlackHole);
    assert!(timeout(Duration::from_millis(200), other.finish_runs(&[])).await.is_err(), "nothing comes through");
    proxy.set(Wire::Whole);
    reveille::base::clock::pause(Duration::from_millis(200)).await;
    drop(begun);

    // one statement, which is its own transaction
    let run = world.run_now(&task).await;
    let (now, limits) = (world.now(), RunLimits::default());
    let take = TakeRequest {
        worker: WORKER,
        now,
        ahead: now,
        lease_until: now + LEASE,
        limit: 100,
        fair: None,
        limits,
        shares: None,
    };
    let taken = other.take_runs(&take).await.expect("a take");
    assert_eq!(taken.starts.started.len(), 1, "{taken:?}");
    assert_eq!(world.get_run(run).await.state, RunState::Running, "whoever looks sees it");
    other.close().await;
}

#[tokio::test]
async fn listener_recovers_after_a_silent_connection() {
    let world = StoreHarness::postgres().await;
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let proxy = Proxy::before(&world.url()).await;
    let other = open_postgres(&proxy.url(&world.url()), &world.clock).await;
    let mut queue = other.listen(Topic::Queue);
    proxy.forsake();
    world.run_now(&task).await;
    timeout(PATIENCE, queue.changed()).await.expect("somebody asks why it is so quiet").expect("open");
    queue.borrow_and_update();
    world.run_now(&task).await;
    timeout(PATIENCE, queue.changed()).await.expect("heard").expect("open");
    timeout(PATIENCE, other.close()).await.expect("nobody waits for the first wire");
}

/// The answer to the end of each read is lost, and its connection with it.
#[tokio::test]
async fn read_of_a_tenant_does_not_wait_for_the_end_of_its_transaction() {
    let world = StoreHarness::postgres().await;
    let task = world.task(json!({"interval": "1h"})).await;
    let proxy = Proxy::before(&world.url()).await;
    let other = open_postgres(&proxy.url(&world.url()), &world.clock).await;
    proxy.lose_commits(1);
    for (ended, tenant) in ["a", "b", "a"].into_iter().enumerate() {
        let found = other.find_task(&only(tenant), task.id).await.expect("what was read stands");
        assert_eq!(found.is_some(), tenant == "a", "as {tenant}");
        let began = Instant::now();
        while proxy.lost_commits() <= ended as u64 {
            assert!(began.elapsed() < PATIENCE, "the transaction of a read is not ended");
            reveille::base::clock::pause(Duration::from_millis(2)).await;
        }
    }
    proxy.lose_commits(0);
    let found = other.find_task(&Scope::Every, task.id).await.expect("another connection takes the place of each");
    assert_eq!(found, Some(task));
    timeout(PATIENCE, other.close()).await.expect("none is left");
}

/// Has a slot for each message, and silences the wire once it has given one.
struct SilencingStarter(Proxy);

impl LocalStarter for SilencingStarter {
    fn reserve<'a>(&'a self, tenants: &'a [&'a str], now: DateTime<Utc>) -> BoxFuture<'a, Option<ReservedStart>> {
        self.0.forsake();
        self.0.set(Wire::BlackHole);
        let start = ImmediateStart { slots: tenants.len(), lease_until: now + LEASE, shares: None };
        let reserved = ReservedStart { worker: WORKER, room: tenants.len(), start, permit: Box::new(()) };
        Box::pin(std::future::ready(Some(reserved)))
    }

    fn execute(&self, started: StartedRun) {
        panic!("nothing was recorded: {started:?}");
    }
}

#[tokio::test]
async fn message_with_a_slot_keeps_the_end_of_starts_waiting_over_a_silent_wire_for_a_bounded_time() {
    let world = StoreHarness::postgres().await;
    let task = conversation(&world, "a").await;
    let proxy = Proxy::before(&world.url()).await;
    let other = open_postgres(&proxy.url(&world.url()), &world.clock).await;
    let starter: Arc<dyn LocalStarter> = Arc::new(SilencingStarter(proxy.clone()));
    other.begin_local_starts(Arc::downgrade(&starter)).await;
    let (scope, now) = (only("a"), world.now());
    let posting = other.post_message(&scope, task.id, new_id(now), RunRequest::default(), now);
    let posted = timeout(PATIENCE, posting).await.expect("nobody waits for ever");
    assert!(matches!(posted, Err(StoreError::Unavailable(_))), "{posted:?}");
    timeout(PATIENCE, other.end_local_starts()).await.expect("its slot is given back");
    proxy.set(Wire::Whole);
    timeout(PATIENCE, other.close()).await.expect("nobody waits for the first wire");
}
