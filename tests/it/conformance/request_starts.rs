//! Requests for runs: they are recorded together, and start with their record where the instance that took them has a
//! slot, and nothing else of a task with a slot stands in the way. All others are ready for any instance.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::base::clock::pause;
use reveille::base::id::{Scope, new_id};
use reveille::domain::conversation::RequestEcho;
use reveille::domain::halt::HaltKind;
use reveille::domain::notification::Recipient;
use reveille::domain::run::{RunOrigin, RunState};
use reveille::domain::task::Task;
use reveille::store::{Idempotency, OverlapOutcome, RunRequest, StartedRun, StoreError, StoredAnswer};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::event_starts::commit_when_waited_for;
use super::message_starts::Places;
use super::world::{LEASE, StoreHarness, WORKER, only, open_postgres};
use crate::support::gate::Gate;

on_both!(
    request_starts_with_its_record_where_its_instance_has_a_slot,
    second_request_is_ready_where_its_task_has_one_slot_and_starts_where_overlap_is_allowed,
    request_overtakes_no_older_run_of_a_task_with_a_slot,
    run_that_is_asked_for_again_changes_nothing_and_leaves_no_slot,
    run_that_is_asked_for_twice_at_once_is_recorded_and_started_once,
    many_requests_at_once_are_each_recorded_and_started_once,
    request_of_a_halted_tenant_is_ready_and_one_of_another_tenant_starts,
    requests_are_ready_where_they_may_not_start_here,
    request_that_is_refused_takes_no_other_along,
);

const EVERY: &Scope = &Scope::Every;
/// Time for requests to come while a batch waits for slots, and less than it waits.
const GATHERING: Duration = Duration::from_millis(40);

async fn task_of(world: &StoreHarness, tenant: &str, overlap: &str) -> Task {
    world.task_with(tenant, json!({"interval": "1h", "overlap": overlap}), json!({})).await
}

async fn slots(world: &StoreHarness) -> i64 {
    world.count("select count(*) from slots").await
}

async fn state(world: &StoreHarness, run: Uuid) -> RunState {
    world.get_run(run).await.state
}

fn ids(started: &[StartedRun]) -> BTreeSet<Uuid> {
    started.iter().map(|one| one.run.id).collect()
}

fn set(ids: impl IntoIterator<Item = Uuid>) -> BTreeSet<Uuid> {
    ids.into_iter().collect()
}

async fn succeed_all(world: &StoreHarness, started: &[StartedRun]) {
    for one in started {
        world.succeed(one).await;
    }
}

async fn request_starts_with_its_record_where_its_instance_has_a_slot(world: &StoreHarness) {
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(EVERY, "a", &recipient, None).await.unwrap();
    let trigger = json!({"interval": "1h", "overlap": "skip"});
    let task = world.task_with("a", trigger, json!({"timeout_seconds": 90})).await;
    world.pass(5);
    let places = Places::open(world).await;
    let (id, now) = (new_id(world.now()), world.now());
    let input = json!({"n": 1.5, "list": [1, null, {"é": true}]});
    let requested_by = Some("token:t".to_owned());
    let request = RunRequest { input: Some(input.clone()), requested_by, ..RunRequest::default() };
    let answer = world.store.run_now(&only("a"), task.id, id, request, now, None).await.unwrap();
    assert_eq!(answer, StoredAnswer::Done(()));
    assert_eq!(places.reserved(), 0, "its slot of the instance is given back");

    let started = places.started();
    assert_eq!(world.get_run(id).await, *started.run, "it is as it is stored");
    assert_eq!((started.run.id, started.run.origin), (id, RunOrigin::Request));
    assert_eq!((started.run.state, started.run.attempt, started.is_first), (RunState::Running, 1, true));
    assert_eq!((&started.run.input, started.run.started_at), (&Some(input), Some(now)));
    assert_eq!((started.lease_until, started.deadline_at), (now + LEASE, now + TimeDelta::seconds(90)));
    assert_eq!(started.recipient.as_deref(), Some(&recipient));
    assert_eq!(world.store.requester_of(&only("a"), id).await.unwrap().as_deref(), Some("token:t"));
    let stored = world.get_task(task.id).await;
    assert_eq!((stored.run_count, stored.fire_count), (1, 0));
    assert_eq!(started.task.as_deref(), Some(&stored.into_definition()));
    let leased = format!("select count(*) from queue where state = 'started' and worker = {}", world.id(WORKER));
    assert_eq!(world.count(&leased).await, 1, "it is leased to the instance");

    assert!(world.claim().await.is_empty(), "nobody else gets it");
    assert_eq!(world.store.heartbeat(&[started.lease], now + LEASE).await.unwrap().len(), 1, "its lease holds");
    world.succeed(&started).await;
    assert_eq!(slots(world).await, 0, "its end frees the slot of the task");
    let next = world.run_now(&task).await;
    let started = places.started();
    assert_eq!((started.run.id, slots(world).await), (next, 1));
    assert_eq!(started.run.input, None);
    world.succeed(&started).await;
}

async fn second_request_is_ready_where_its_task_has_one_slot_and_starts_where_overlap_is_allowed(world: &StoreHarness) {
    let places = Places::open(world).await;
    let slotted = task_of(world, "a", "skip").await;
    let first = world.run_now(&slotted).await;
    let under_way = places.started();
    let second = world.run_now(&slotted).await;
    assert!(places.has_started_none(), "the first has the slot");
    assert_eq!((under_way.run.id, state(world, second).await), (first, RunState::Queued));
    let starts = world.start_all().await;
    assert_eq!((starts.started.len(), starts.blocked), (0, vec![(second, OverlapOutcome::Skipped)]));
    world.succeed(&under_way).await;

    // of two that are asked for at once, one starts
    let both = join_all([world.run_now(&slotted), world.run_now(&slotted)]).await;
    let [under_way] = <[StartedRun; 1]>::try_from(places.all_started()).expect("one of them");
    let other = both.into_iter().find(|id| *id != under_way.run.id).expect("the other one");
    assert_eq!((state(world, other).await, slots(world).await), (RunState::Queued, 1));
    world.succeed(&under_way).await;
    let starts = world.start_all().await.started;
    assert_eq!(ids(&starts), set([other]), "it was ready");
    succeed_all(world, &starts).await;

    let free = task_of(world, "a", "allow").await;
    let beside = [world.run_now(&free).await, world.run_now(&free).await];
    let both = places.all_started();
    assert_eq!((ids(&both), slots(world).await), (set(beside), 0));
    succeed_all(world, &both).await;
}

async fn request_overtakes_no_older_run_of_a_task_with_a_slot(world: &StoreHarness) {
    for (overlap, starts) in [("queue_all", false), ("allow", true)] {
        let task = task_of(world, "a", overlap).await;
        let older = world.run_now(&task).await;
        assert_eq!(state(world, older).await, RunState::Queued, "nothing starts here yet");
        world.pass(1);
        let places = Places::open(world).await;
        let newer = world.run_now(&task).await;
        let at_once = places.all_started();
        assert_eq!(ids(&at_once), set(starts.then_some(newer)), "{overlap}");
        let taken = world.start_all().await;
        assert_eq!(ids(&taken.started), set([older]), "{overlap}");
        let behind = (!starts).then_some((newer, OverlapOutcome::Behind));
        assert_eq!(taken.blocked, behind.into_iter().collect::<Vec<_>>());
        succeed_all(world, &at_once).await;
        succeed_all(world, &taken.started).await;
        let handed_on = world.start_all().await.started;
        assert_eq!(ids(&handed_on), set((!starts).then_some(newer)), "the slot is handed on");
        succeed_all(world, &handed_on).await;
        assert_eq!((slots(world).await, world.get_task(task.id).await.run_count), (0, 2));
        world.store.end_local_starts().await;
    }
}

async fn run_that_is_asked_for_again_changes_nothing_and_leaves_no_slot(world: &StoreHarness) {
    for (overlap, taken) in [("skip", 1), ("allow", 0)] {
        let task = task_of(world, "a", overlap).await;
        let (id, now, scope) = (new_id(world.now()), world.now(), only("a"));
        let ask = async || {
            let answer = world.store.run_now(&scope, task.id, id, None, now, None).await.unwrap();
            assert_eq!(answer, StoredAnswer::Done(()));
            (world.get_run(id).await, slots(world).await, world.get_task(task.id).await.run_count)
        };
        let ready = ask().await;
        assert_eq!((ready.0.state, ready.1, ready.2), (RunState::Queued, 0, 1));
        let places = Places::open(world).await;
        assert_eq!(ask().await, ready, "{overlap}: it is ready");
        assert!(places.has_started_none());
        let [running] = <[StartedRun; 1]>::try_from(world.start_all().await.started).expect("one run that starts");
        assert_eq!(ask().await, ((*running.run).clone(), taken, 1), "{overlap}: it is running");
        world.succeed(&running).await;
        let ended = world.get_run(id).await;
        assert_eq!(ask().await, (ended, 0, 1), "{overlap}: it has ended");
        assert!(places.has_started_none());
        assert_eq!((places.reserved(), world.claim().await), (0, vec![]));
        world.store.end_local_starts().await;
    }
}

async fn run_that_is_asked_for_twice_at_once_is_recorded_and_started_once(world: &StoreHarness) {
    let places = Places::open(world).await;
    for overlap in ["skip", "allow"] {
        for has_place in [true, false] {
            places.has_place.store(has_place, Ordering::Relaxed);
            let task = task_of(world, "a", overlap).await;
            let (id, now, scope) = (new_id(world.now()), world.now(), only("a"));
            let ask = || world.store.run_now(&scope, task.id, id, None, now, None);
            for answer in join_all([ask(), ask(), ask()]).await {
                assert_eq!(answer.unwrap(), StoredAnswer::Done(()));
            }
            let at_once = places.all_started();
            assert!(has_place || at_once.is_empty(), "{overlap}");
            let later = world.start_all().await.started;
            let started = at_once.iter().chain(&later).map(|one| one.run.id).collect::<Vec<_>>();
            assert_eq!(started, [id], "{overlap}");
            succeed_all(world, &at_once).await;
            succeed_all(world, &later).await;
            assert_eq!((slots(world).await, world.get_task(task.id).await.run_count), (0, 1), "{overlap}");
        }
    }
}

async fn many_requests_at_once_are_each_recorded_and_started_once(world: &StoreHarness) {
    const EACH: i64 = 6;
    let mut tasks: Vec<(Scope, Task)> = Vec::new();
    for (tenant, scope) in [("a", only("a")), ("b", only("b")), ("c", Scope::Every)] {
        tasks.push((scope, task_of(world, tenant, "allow").await));
    }
    let id = || new_id(world.now());
    let mut asked: Vec<(Scope, Uuid, Uuid)> = Vec::new();
    for _ in 0..EACH {
        asked.extend(tasks.iter().map(|(scope, task)| (scope.clone(), task.id, id())));
    }
    let refused = [id(), id()];
    asked.insert(4, (only("a"), tasks[1].1.id, refused[0])); // a task of another tenant
    asked.insert(8, (only("b"), id(), refused[1])); // no task

    let places = Places::open(world).await;
    // those that come while the first wait for slots go together
    let closed = places.gate.lock().await;
    let now = world.now();
    let ask = |(scope, task, run): &(Scope, Uuid, Uuid)| {
        let (store, scope, task, run) = (world.store.clone(), scope.clone(), *task, *run);
        async move { store.run_now(&scope, task, run, None, now, None).await }
    };
    let meanwhile = async {
        places.until_asked().await;
        pause(GATHERING).await;
        drop(closed);
    };
    let (answers, ()) = tokio::join!(join_all(asked.iter().map(ask)), meanwhile);

    for ((_, _, run), answer) in asked.iter().zip(&answers) {
        match refused.contains(run) {
            true => assert!(matches!(answer, Err(StoreError::NotFound)), "{answer:?}"),
            false => assert!(matches!(answer, Ok(StoredAnswer::Done(()))), "{answer:?}"),
        }
    }
    let started = places.all_started();
    let expected = set(asked.iter().map(|(.., run)| *run).filter(|run| !refused.contains(run)));
    assert_eq!((started.len(), ids(&started)), (expected.len(), expected));
    assert_eq!(world.count("select count(*) from runs").await, 3 * EACH);
    for (_, task) in &tasks {
        let stored = world.get_task(task.id).await;
        assert_eq!((stored.run_count, stored.fire_count), (EACH, 0));
    }
    let batches = places.asked.load(Ordering::Relaxed);
    assert!(batches < asked.len() / 2, "{batches} batches");
    for one in &started {
        assert_eq!(world.get_run(one.run.id).await, *one.run);
        world.succeed(one).await;
    }
    assert_eq!(places.reserved(), 0);
}

/// Its id is that of a run of another task.
async fn request_that_is_refused_takes_no_other_along(world: &StoreHarness) {
    let (task, other) = (task_of(world, "a", "allow").await, task_of(world, "a", "allow").await);
    let known = world.run_now(&other).await;
    let places = Places::open(world).await;
    let closed = places.gate.lock().await;
    let now = world.now();
    let asked = [new_id(now), new_id(now), known, new_id(now)];
    let ask = |run: Uuid| {
        let (store, task) = (world.store.clone(), task.id);
        async move { store.run_now(EVERY, task, run, None, now, None).await }
    };
    let meanwhile = async {
        places.until_asked().await;
        pause(GATHERING).await;
        drop(closed);
    };
    let (answers, ()) = tokio::join!(join_all(asked.map(ask)), meanwhile);
    for (run, answer) in asked.iter().zip(&answers) {
        match *run == known {
            true => assert!(matches!(answer, Err(StoreError::Conflict(_))), "{answer:?}"),
            false => assert!(matches!(answer, Ok(StoredAnswer::Done(()))), "{answer:?}"),
        }
    }
    assert_eq!((world.runs_of(&task).await.len(), world.get_task(task.id).await.run_count), (3, 3));
    let at_once = places.all_started();
    let later = world.start_all().await.started;
    assert_eq!(at_once.len() + later.len(), asked.len());
    assert_eq!(set(ids(&at_once).into_iter().chain(ids(&later))), set(asked));
    succeed_all(world, &at_once).await;
    succeed_all(world, &later).await;
}

async fn request_of_a_halted_tenant_is_ready_and_one_of_another_tenant_starts(world: &StoreHarness) {
    let tasks = [task_of(world, "a", "skip").await, task_of(world, "b", "skip").await];
    let places = Places::open(world).await;
    world.store.halt(HaltKind::Stopped, Some("a"), None, "token:admin").await.unwrap();
    let asked = join_all(tasks.iter().map(|task| world.run_now(task))).await;
    let [halted, other] = <[Uuid; 2]>::try_from(asked).expect("two runs");
    let started = places.started();
    assert_eq!((started.run.id, started.run.tenant_id.as_str()), (other, "b"));
    assert_eq!((state(world, halted).await, slots(world).await), (RunState::Queued, 1));
    world.succeed(&started).await;
    world.store.lift_halt(HaltKind::Stopped, Some("a"), "token:admin").await.unwrap();
    let starts = world.start_all().await.started;
    assert_eq!(ids(&starts), set([halted]));
    succeed_all(world, &starts).await;
}

async fn requests_are_ready_where_they_may_not_start_here(world: &StoreHarness) {
    let task = task_of(world, "a", "allow").await;
    let places = Places::open(world).await;
    let start_elsewhere = async |asked: Vec<Uuid>| {
        assert!(places.has_started_none());
        let starts = world.start_all().await.started;
        assert_eq!(ids(&starts), set(asked));
        succeed_all(world, &starts).await;
    };
    places.has_place.store(false, Ordering::Relaxed);
    start_elsewhere(join_all((0..3).map(|_| world.run_now(&task))).await).await;
    places.has_place.store(true, Ordering::Relaxed);

    // the answer to a key, and what a response repeats, are recorded in a transaction of their own
    let (keyed, echoed, now) = (new_id(world.now()), new_id(world.now()), world.now());
    let once =
        Idempotency { tenant: "a".into(), key: "k".into(), digest: vec![1], status: 202, body: json!({}).into() };
    world.store.run_now(EVERY, task.id, keyed, None, now, Some(&once)).await.unwrap();
    let echo = RequestEcho { background: true, previous: None };
    let request = RunRequest { echo, ..RunRequest::default() };
    world.store.run_now(EVERY, task.id, echoed, request, now, None).await.unwrap();
    start_elsewhere(vec![keyed, echoed]).await;

    world.store.end_local_starts().await;
    start_elsewhere(vec![world.run_now(&task).await]).await;
    assert_eq!(world.get_task(task.id).await.run_count, 6);
}

/// The row of the task is locked by another instance, which may queue a run meanwhile.
#[tokio::test]
async fn request_for_a_locked_task_waits_by_itself_and_is_ready_behind_what_was_queued_meanwhile() {
    for (overlap, is_queued) in [("skip", true), ("queue_all", true), ("allow", true), ("skip", false)] {
        let world = StoreHarness::postgres().await;
        let (task, free) = (task_of(&world, "a", overlap).await, task_of(&world, "b", overlap).await);
        let places = Places::open(&world).await;
        let lock = format!("select task_id from due where task_id = '{}' for update", task.id);
        let counted = format!("update due set run_count = run_count + 1 where task_id = '{}'", task.id);
        let queued = format!(
            "with made as (
                 insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
                 values (gen_random_uuid(), '{}', 'a', 'm:another', 'schedule', now(), 'queued', now())
                 returning id, task_id)
             insert into queue (run_id, task_id, tenant_id, epoch, run_at, state)
             select id, task_id, 'a', 1, now(), 'ready' from made",
            task.id
        );
        let mut statements = vec![lock.as_str()];
        if is_queued {
            statements.extend([counted.as_str(), queued.as_str()]);
        }
        let other = hold(&world, &statements).await;
        let meanwhile = async {
            let beside = world.run_now(&free).await;
            commit_when_waited_for(&world, other).await;
            beside
        };
        let (id, beside) = tokio::join!(world.run_now(&task), meanwhile);
        assert_eq!(ids(&places.all_started()), set([beside]), "{overlap}");
        assert_eq!(slots(&world).await, i64::from(overlap != "allow"), "{overlap}");
        assert_eq!(state(&world, id).await, RunState::Queued, "{overlap}");
        let recorded = 1 + usize::from(is_queued);
        assert_eq!(world.runs_of(&task).await.len(), recorded, "{overlap}");
        assert_eq!(world.get_task(task.id).await.run_count, recorded as i64, "{overlap}");
        world.leave().await;
    }
}

/// A session of another instance that has executed these statements and holds their locks until it commits or closes.
async fn hold(world: &StoreHarness, statements: &[&str]) -> PgConnection {
    let mut other = PgConnection::connect(&world.url()).await.expect("a connection");
    for statement in ["set reveille.tenant = '*'", "begin"].iter().chain(statements) {
        sqlx::query(AssertSqlSafe((*statement).to_owned())).execute(&mut other).await.expect("done");
    }
    other
}

#[tokio::test]
async fn request_for_a_task_that_is_being_deleted_is_refused_and_records_nothing() {
    for key in [None, Some("k")] {
        let world = StoreHarness::postgres().await;
        let task = task_of(&world, "a", "skip").await;
        let _places = Places::open(&world).await;
        let delete = ["due", "tasks"].map(|table| {
            let column = if table == "due" { "task_id" } else { "id" };
            format!("delete from {table} where {column} = '{}'", task.id)
        });
        let other = hold(&world, &[&delete[0], &delete[1]]).await;
        let once = key.map(|key: &str| Idempotency {
            tenant: "a".into(),
            key: key.into(),
            digest: vec![1],
            status: 202,
            body: json!({}).into(),
        });
        let (id, now) = (new_id(world.now()), world.now());
        let asked = world.store.run_now(EVERY, task.id, id, None, now, once.as_ref());
        let (answer, ()) = tokio::join!(asked, commit_when_waited_for(&world, other));
        assert!(matches!(answer, Err(StoreError::NotFound)), "{key:?}: {answer:?}");
        assert_eq!(world.count("select count(*) from runs").await, 0, "{key:?}");
        world.leave().await;
    }
}

#[tokio::test]
async fn request_waits_for_no_slot_that_somebody_else_frees() {
    let world = StoreHarness::postgres().await;
    let (task, free) = (task_of(&world, "a", "skip").await, task_of(&world, "b", "skip").await);
    let places = Places::open(&world).await;
    let first = world.run_now(&task).await;
    assert_eq!(places.started().run.id, first);
    let freed = format!("delete from slots where task_id = '{}'", task.id);
    let other = hold(&world, &[&freed]).await;
    let asked = join_all([world.run_now(&task), world.run_now(&free)]);
    let asked = tokio::time::timeout(Duration::from_secs(2), asked).await.expect("nobody waits for the slot");
    assert_eq!(ids(&places.all_started()), set([asked[1]]));
    assert_eq!(state(&world, asked[0]).await, RunState::Queued);
    other.close().await.expect("its lock goes with it");
    world.leave().await;
}

#[tokio::test]
async fn request_is_recorded_and_started_by_one_statement() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(EVERY, "a", &recipient, None).await.unwrap();
    let task = task_of(&world, "a", "skip").await;
    let places = Places::open(&world).await;
    let mut counted = Vec::new();
    for _ in 0..4 {
        let (id, now, before) = (new_id(world.now()), world.now(), gate.requests());
        world.store.run_now(&only("a"), task.id, id, None, now, None).await.unwrap();
        counted.push(gate.requests() - before);
        let started = places.started();
        assert_eq!((started.run.id, started.recipient.as_deref()), (id, Some(&recipient)));
        assert!(started.task.is_some());
        world.succeed(&started).await;
    }
    // a statement is prepared on its connection, and a task, quotas and halts are read, once
    assert_eq!(counted.iter().min(), Some(&1), "{counted:?}");
    world.store.close().await;
}

#[tokio::test]
async fn request_that_can_not_be_recorded_on_sqlite_starts_nothing_and_leaves_no_slot() {
    let world = StoreHarness::sqlite().await;
    let task = task_of(&world, "a", "skip").await;
    let places = Places::open(&world).await;
    world.plant("create trigger full before insert on queue begin select raise(abort, 'as told'); end").await;
    let (id, now) = (new_id(world.now()), world.now());
    world.store.run_now(EVERY, task.id, id, None, now, None).await.expect_err("as told");
    world.plant("drop trigger full").await;
    assert!(places.has_started_none());
    assert_eq!((places.reserved(), slots(&world).await), (0, 0));
    assert_eq!(world.count("select count(*) from runs").await, 0);
    let next = world.run_now(&task).await;
    let started = places.started();
    assert_eq!(started.run.id, next);
    world.succeed(&started).await;
    world.leave().await;
}
