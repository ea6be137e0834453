//! Wires to the database that go silent without an end: nobody waits for one for ever, and others take their place.

use std::time::Duration;

use reveille::base::id::{Scope, new_id};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{RunLimits, Store, StoreError, TakeRequest, Topic};
use serde_json::json;
use tokio::time::timeout;

use super::world::{LEASE, StoreHarness, WORKER, new_task, open_postgres};
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
