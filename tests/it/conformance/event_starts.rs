//! Events whose runs start with the commit that records them, as far as the instance has slots; all else is claimed.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use reveille::base::clock::pause;
use reveille::base::compute::JSON_IN_PLACE;
use reveille::base::id::Scope;
use reveille::domain::event::Event;
use reveille::domain::halt::HaltKind;
use reveille::domain::notification::Recipient;
use reveille::domain::run::cause::Cause;
use reveille::domain::run::{Run, RunState};
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Spec, TaskStatus};
use reveille::store::{
    EventsFired, EventsRecorded, Finish, ImmediateStart, OverlapOutcome, RunClaim, Starts, StrandedRun,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::matching::{MatcherHarness, event, event_with, task, task_with};
use super::starting::shares;
use super::world::{LEASE, StoreHarness, again, leases, open_postgres};
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::gate::Gate;

on_both!(
    event_with_a_free_place_starts_with_its_record,
    task_that_was_edited_starts_as_it_is,
    cause_of_a_run_that_starts_with_its_record_is_read_on_a_computing_thread,
    event_without_a_place_is_claimed,
    event_starts_are_shared_among_tenants,
    event_run_that_finds_the_slot_taken_is_judged_by_its_claim,
    event_run_overtakes_no_older_run_of_a_task_with_a_slot,
    event_that_comes_twice_starts_once_and_leaves_no_slot,
    stale_batch_starts_nothing,
    event_of_a_halted_tenant_starts_nothing,
    rules_decide_before_a_run_starts_and_windows_are_claimed,
    started_event_run_whose_process_has_died_is_rescued_once,
);

/// So many slots for whichever tenant.
fn start_with(world: &StoreHarness, slots: usize) -> ImmediateStart {
    ImmediateStart { slots, lease_until: world.now() + LEASE, shares: None }
}

async fn fire(world: &StoreHarness, events: Vec<Event>, start: &ImmediateStart) -> EventsRecorded {
    written(MatcherHarness::of(world, events).await.record_by(&world.store, 100, Some(start)).await)
}

fn written(fired: EventsFired) -> EventsRecorded {
    match fired {
        EventsFired::Done(recorded) => recorded,
        EventsFired::Stale => panic!("nothing has changed meanwhile"),
    }
}

async fn start(world: &StoreHarness, claims: &[RunClaim]) -> Starts {
    world.store.start_runs(&leases(claims), world.now() + LEASE).await.expect("a start")
}

async fn slots(world: &StoreHarness) -> i64 {
    world.count("select count(*) from slots").await
}

async fn event_with_a_free_place_starts_with_its_record(world: &StoreHarness) {
    let task = task_with(world, json!({}), json!({"timeout_seconds": 90})).await;
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.unwrap();
    world.pass(5);
    let data = json!({"data": {"n": 1.5, "text": "a\u{0}b", "list": [1, null, {"é": true}]}});
    let mut recorded = fire(world, vec![event("e1"), event_with("e2", data)], &start_with(world, 9)).await;
    recorded.started.sort_by_key(|one| one.run.event_ids.clone());
    let [started, other] = recorded.started.as_slice() else { panic!("{recorded:?}") };
    assert_eq!((recorded.recorded, recorded.claims.len()), (2, 0));
    for one in [started, other] {
        assert_eq!(world.get_run(one.lease.run_id).await, *one.run, "it is as it is stored");
        assert_eq!((one.run.state, one.run.attempt, one.is_first), (RunState::Running, 1, true));
        assert_eq!((one.run.started_at, one.lease_until), (Some(world.now()), world.now() + LEASE));
        assert_eq!(one.deadline_at, world.now() + TimeDelta::seconds(90));
        assert_eq!(one.recipient.as_deref(), Some(&recipient));
        assert_eq!(one.task.as_deref().map(|task| task.version), Some(task.version));
    }
    assert_eq!(started.run.cause, Some(Cause::Event { event: event("e1").to_value(), events: vec![] }));
    let after = world.get_task(task.id).await;
    assert_eq!((after.fire_count, after.run_count), (2, 2));
    assert_eq!(started.task.as_deref(), Some(&after.into_definition()));
    let held = world.store.heartbeat(&[started.lease, other.lease], world.now() + LEASE).await.unwrap();
    assert_eq!(held.len(), 2, "both leases hold");
    assert!(world.claim().await.is_empty(), "nobody else gets them");
    world.succeed(started).await;
    world.succeed(other).await;
}

async fn task_that_was_edited_starts_as_it_is(world: &StoreHarness) {
    let task = task(world, json!({})).await;
    let first = fire(world, vec![event("e1")], &start_with(world, 9)).await;
    world.succeed(&first.started[0]).await;
    let spec = Spec { timeout_seconds: 30, ..task.spec.clone() };
    let edit = TaskChange::Edit { version: task.version, name: "another".into(), spec: Box::new(spec) };
    world.store.change_task(&Scope::Every, task.id, &edit).await.unwrap();
    let second = fire(world, vec![event("e2")], &start_with(world, 9)).await;
    let [started] = second.started.as_slice() else { panic!("{second:?}") };
    assert_eq!(started.task.as_deref().map(|task| task.name.as_str()), Some("another"));
    assert_eq!(started.deadline_at, world.now() + TimeDelta::seconds(30));
    world.succeed(started).await;
}

async fn cause_of_a_run_that_starts_with_its_record_is_read_on_a_computing_thread(world: &StoreHarness) {
    task(world, json!({})).await;
    let long = event_with("e1", json!({"data": {"text": "x".repeat(JSON_IN_PLACE)}}));
    let (matching, start) = (MatcherHarness::of(world, vec![long.clone()]).await, start_with(world, 9));
    let computing = world.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        drop(threads);
    };
    let (fired, ()) = tokio::join!(matching.record_by(&world.store, 9, Some(&start)), meanwhile);
    let recorded = written(fired);
    let [started] = recorded.started.as_slice() else { panic!("{recorded:?}") };
    assert_eq!(started.run.cause, Some(Cause::Event { event: long.to_value(), events: vec![] }));
    world.succeed(started).await;
}

async fn event_without_a_place_is_claimed(world: &StoreHarness) {
    task(world, json!({})).await;
    let none = fire(world, vec![event("e0")], &start_with(world, 0)).await;
    assert_eq!((none.recorded, none.started.len(), none.claims.len()), (1, 0, 1));
    let one = fire(world, ["e1", "e2", "e3"].map(event).to_vec(), &start_with(world, 1)).await;
    assert_eq!((one.recorded, one.claims.len()), (3, 2));
    let [first] = one.started.as_slice() else { panic!("{one:?}") };
    assert_eq!(first.run.event_ids, ["e1"], "the first of the batch");
    let starts = start(world, &[none.claims, one.claims].concat()).await;
    assert_eq!(starts.started.len(), 3);
    // what it has no room to lease is anybody's
    let matching = MatcherHarness::of(world, vec![event("e4"), event("e5")]).await;
    let full = written(matching.record_by(&world.store, 1, Some(&start_with(world, 9))).await);
    assert_eq!((full.recorded, full.started.len(), full.claims.len()), (2, 1, 0));
    let taken = start(world, &world.claim().await).await;
    assert_eq!(taken.started.len(), 1);
    for started in [&one.started, &starts.started, &full.started, &taken.started].into_iter().flatten() {
        world.succeed(started).await;
    }
}

async fn event_starts_are_shared_among_tenants(world: &StoreHarness) {
    for tenant in ["many", "one"] {
        world.task_with(tenant, json!({"type": "event", "source": "shop"}), json!({})).await;
    }
    let of = |tenant: &str, id: i32| event_with(&format!("e{id}"), json!({"tenantid": tenant}));
    let mut events: Vec<Event> = (0..10).map(|id| of("many", id)).collect();
    events.push(of("one", 0));
    let start_in = |free: usize, held: &[(&str, usize)]| ImmediateStart {
        shares: Some(shares(free, held)),
        ..start_with(world, free)
    };
    let recorded = fire(world, events, &start_in(8, &[])).await;
    let mut tenants: BTreeMap<&str, usize> = BTreeMap::new();
    recorded.started.iter().for_each(|one| *tenants.entry(one.run.tenant_id.as_str()).or_default() += 1);
    assert_eq!(tenants, BTreeMap::from([("many", 6), ("one", 1)]));
    assert_eq!((recorded.recorded, recorded.claims.len()), (11, 4), "the others wait here for a slot");
    let later = fire(world, vec![of("many", 10), of("one", 1)], &start_in(2, &[("many", 6)])).await;
    let [other] = later.started.as_slice() else { panic!("{later:?}") };
    assert_eq!((other.run.tenant_id.as_str(), later.claims.len()), ("one", 1));
    for started in recorded.started.iter().chain(&later.started) {
        world.succeed(started).await;
    }
}

async fn event_run_that_finds_the_slot_taken_is_judged_by_its_claim(world: &StoreHarness) {
    task(world, json!({"overlap": "skip"})).await;
    let first = fire(world, vec![event("e1"), event("e2")], &start_with(world, 9)).await;
    let [running] = first.started.as_slice() else { panic!("{first:?}") };
    assert_eq!((running.run.event_ids.as_slice(), first.claims.len()), (["e1".to_owned()].as_slice(), 1));
    let second = fire(world, vec![event("e3")], &start_with(world, 9)).await;
    assert_eq!((second.started.len(), second.claims.len()), (0, 1));
    let starts = start(world, &[first.claims, second.claims].concat()).await;
    let fates: Vec<OverlapOutcome> = starts.blocked.iter().map(|(_, fate)| *fate).collect();
    assert_eq!((starts.started.len(), fates), (0, vec![OverlapOutcome::Skipped; 2]));
    world.succeed(running).await;
    assert_eq!(slots(world).await, 0);
    let third = fire(world, vec![event("e4")], &start_with(world, 9)).await;
    assert_eq!((third.started.len(), slots(world).await), (1, 1), "an end frees the slot");
    world.succeed(&third.started[0]).await;
}

async fn event_run_overtakes_no_older_run_of_a_task_with_a_slot(world: &StoreHarness) {
    let (slotted, free) = (json!({"overlap": "queue_all"}), json!({"overlap": "allow"}));
    for (trigger, starts) in [(slotted, 0), (free, 1)] {
        let task = task(world, trigger).await;
        let older = world.run_now(&task).await;
        let recorded = fire(world, vec![event("e1")], &start_with(world, 9)).await;
        assert_eq!((recorded.started.len(), recorded.claims.len()), (starts, 1 - starts));
        let taken = start(world, &world.claim().await).await;
        assert_eq!(taken.started[0].run.id, older);
        let claimed = start(world, &recorded.claims).await;
        assert!(claimed.blocked.iter().all(|(_, fate)| *fate == OverlapOutcome::Behind), "{claimed:?}");
        for started in recorded.started.iter().chain(&taken.started) {
            world.succeed(started).await;
        }
        let behind = start(world, &world.claim().await).await;
        assert_eq!(behind.started.len(), 1 - starts, "the slot is handed on");
        for started in &behind.started {
            world.succeed(started).await;
        }
        world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    }
}

async fn event_that_comes_twice_starts_once_and_leaves_no_slot(world: &StoreHarness) {
    for overlap in ["skip", "allow"] {
        let task = task(world, json!({"overlap": overlap})).await;
        let twice = fire(world, vec![event("e1"), event("e1")], &start_with(world, 9)).await;
        let [running] = twice.started.as_slice() else { panic!("{twice:?}") };
        assert_eq!((twice.recorded, twice.duplicates, twice.claims.len()), (1, 1, 0));
        let meanwhile = fire(world, vec![event("e1")], &start_with(world, 9)).await;
        world.succeed(running).await;
        let later = fire(world, vec![event("e1")], &start_with(world, 9)).await;
        for again in [meanwhile, later] {
            assert_eq!(again, EventsRecorded { duplicates: 1, ..EventsRecorded::default() });
        }
        let after = world.get_task(task.id).await;
        assert_eq!((after.run_count, world.runs_of(&task).await.len(), slots(world).await), (1, 1, 0));
        world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    }
}

async fn stale_batch_starts_nothing(world: &StoreHarness) {
    // straight, and by a rule with a memory
    for rule in [json!({"overlap": "skip"}), json!({"throttle": {"limit": 1, "per": "1h"}})] {
        let task = task(world, rule).await;
        let matching = MatcherHarness::of(world, vec![event("e1")]).await;
        world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
        let fired = matching.record_by(&world.store, 9, Some(&start_with(world, 9))).await;
        assert_eq!(fired, EventsFired::Stale);
        for table in ["runs", "queue", "slots", "throttles"] {
            assert_eq!(world.count(&format!("select count(*) from {table}")).await, 0, "{table}");
        }
        world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    }
}

async fn event_of_a_halted_tenant_starts_nothing(world: &StoreHarness) {
    let task = task(world, json!({"overlap": "skip"})).await;
    world.store.halt(HaltKind::Stopped, Some("a"), None, "token:admin").await.unwrap();
    let halted = fire(world, vec![event("e1")], &start_with(world, 9)).await;
    assert_eq!((halted.skipped, halted.started.len(), halted.claims.len(), slots(world).await), (1, 0, 0, 0));
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Skipped, Some("stopped")));
    world.store.lift_halt(HaltKind::Stopped, Some("a"), "token:admin").await.unwrap();
    let started = fire(world, vec![event("e2")], &start_with(world, 9)).await.started;
    assert_eq!(started.len(), 1);
    world.succeed(&started[0]).await;
}

/// On Postgres the statement that starts runs answers whom their tenants' messages go to.
#[tokio::test]
async fn started_event_run_whose_recipient_can_t_be_read_is_recorded_and_left_to_its_lease() {
    let world = StoreHarness::sqlite().await;
    let task = task(&world, json!({})).await;
    world.plant("alter table recipients rename to renamed").await;
    let recorded = fire(&world, vec![event("e1")], &start_with(&world, 9)).await;
    world.plant("alter table renamed rename to recipients").await;
    assert_eq!((recorded.recorded, recorded.started.len(), recorded.claims.len()), (1, 0, 0));
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    assert_eq!(run.state, RunState::Running);
    assert_eq!(fire(&world, vec![event("e1")], &start_with(&world, 9)).await.duplicates, 1, "it is not recorded again");
    world.leave().await;
}

async fn rules_decide_before_a_run_starts_and_windows_are_claimed(world: &StoreHarness) {
    let throttled = task(world, json!({"event_type": "a", "throttle": {"limit": 1, "per": "1h"}})).await;
    let limited = task_with(world, json!({"event_type": "b"}), json!({"max_runs": 1})).await;
    task(world, json!({"event_type": "c", "batch": {"size": 2, "wait": "1m"}})).await;
    let events = ["a1", "a2", "b1", "b2", "c1", "c2"].map(|id| event_with(id, json!({"type": &id[..1]})));
    let recorded = fire(world, events.to_vec(), &start_with(world, 9)).await;
    assert_eq!((recorded.recorded, recorded.skipped, recorded.collected), (3, 2, 1));
    let mut started: Vec<_> = recorded.started.iter().map(|one| one.run.event_ids.concat()).collect();
    started.sort();
    assert_eq!(started, ["a1", "b1"]);
    let [window] = recorded.claims.as_slice() else { panic!("{recorded:?}") };
    assert_eq!(world.get_run(window.lease.run_id).await.event_ids, ["c1", "c2"]);
    assert_eq!(world.get_task(limited.id).await.status, TaskStatus::Completed);
    let tasks: Vec<Option<Uuid>> = recorded.started.iter().map(|one| one.task.as_ref().map(|task| task.id)).collect();
    assert!(tasks.contains(&Some(throttled.id)) && tasks.contains(&Some(limited.id)), "{tasks:?}");
    let starts = start(world, &recorded.claims).await;
    for started in recorded.started.iter().chain(&starts.started) {
        world.succeed(started).await;
    }
}

/// The process dies between the commit and the first line of the executor.
async fn started_event_run_whose_process_has_died_is_rescued_once(world: &StoreHarness) {
    task(world, json!({"overlap": "skip"})).await;
    let recorded = fire(world, vec![event("e1")], &start_with(world, 9)).await;
    let [lost] = recorded.started.as_slice() else { panic!("{recorded:?}") };
    let other = world.other_instance().await;
    let stranded = async || {
        let (now, grace) = (world.now(), TimeDelta::seconds(10));
        other.take_over_expired(now, grace, now + LEASE, 100).await.expect("a look")
    };
    assert_eq!(stranded().await, [], "its lease holds");
    world.pass(46);
    assert_eq!(world.store.requeue_expired_claims(world.now()).await.unwrap(), 0, "it is no claim");
    let [one] = <[StrandedRun; 1]>::try_from(stranded().await).expect("one run");
    assert_eq!((one.lease.run_id, one.crashed, one.ran), (lost.run.id, true, Duration::from_secs(45)));
    assert_eq!(stranded().await, [], "it has another lease");
    let dead = world.store.finish_runs(&[again(lost, world.now(), true)]).await.unwrap();
    assert_eq!(dead, [lost.run.id], "the dead one's token is void");
    let back = Finish { lease: one.lease, crashed: true, ..again(lost, world.now(), true) };
    assert_eq!(world.store.finish_runs(&[back]).await.unwrap(), Vec::<Uuid>::new());
    let rescued = start(world, &world.claim().await).await;
    let [started] = rescued.started.as_slice() else { panic!("{rescued:?}") };
    let run = &started.run;
    assert_eq!((run.id, run.attempt, run.crashes, started.is_first), (lost.run.id, 2, 1, false));
    let late = fire(world, vec![event("e1")], &start_with(world, 9)).await;
    assert_eq!((late.duplicates, late.started.len()), (1, 0), "the event comes again from the bus");
    world.succeed(started).await;
}

/// Waits until a statement waits for another transaction, and ends that.
pub(super) async fn commit_when_waited_for(world: &StoreHarness, mut other: PgConnection) {
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    while world.count(waits).await == 0 {
        pause(Duration::from_millis(5)).await;
    }
    sqlx::query("commit").execute(&mut other).await.expect("committed");
}

#[tokio::test]
async fn event_that_another_instance_records_meanwhile_leaves_no_slot_behind() {
    let world = StoreHarness::postgres().await;
    let task = task(&world, json!({"overlap": "skip"})).await;
    let matching = MatcherHarness::of(&world, vec![event("e1")]).await;
    let mut other = PgConnection::connect(&world.url()).await.expect("a connection");
    let recorded = format!(
        "with made as (
             insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             values (gen_random_uuid(), '{}', 'a', 'e:{}', 'event', now(), 'queued', now())
             returning id, task_id)
         insert into queue (run_id, task_id, tenant_id, epoch, run_at, state)
         select id, task_id, 'a', 1, now(), 'ready' from made",
        task.id,
        event("e1").key()
    );
    for statement in ["set reveille.tenant = '*'", "begin", recorded.as_str()] {
        sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut other).await.expect("recorded");
    }
    let start = start_with(&world, 9);
    let (fired, ()) =
        tokio::join!(matching.record_by(&world.store, 9, Some(&start)), commit_when_waited_for(&world, other));
    assert_eq!(written(fired), EventsRecorded { duplicates: 1, ..EventsRecorded::default() });
    assert_eq!((slots(&world).await, world.runs_of(&task).await.len()), (0, 1));
    world.leave().await;
}

/// The task's row is locked by the other instance, so the look for older runs has a state without the one that it
/// queues.
#[tokio::test]
async fn event_run_overtakes_no_run_that_another_instance_queues_while_the_task_is_waited_for() {
    for (overlap, starts) in [("skip", 0), ("queue_all", 0), ("allow", 1)] {
        let world = StoreHarness::postgres().await;
        let task = task(&world, json!({"overlap": overlap})).await;
        let matching = MatcherHarness::of(&world, vec![event("e1")]).await;
        let mut other = PgConnection::connect(&world.url()).await.expect("a connection");
        let counted = "fire_count = fire_count + 1, run_count = run_count + 1";
        let lock = format!("update due set {counted} where task_id = '{}'", task.id);
        let queued = format!(
            "with made as (
                 insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
                 values (gen_random_uuid(), '{}', 'a', 'e:{}', 'event', now(), 'queued', now())
                 returning id, task_id)
             insert into queue (run_id, task_id, tenant_id, epoch, run_at, state)
             select id, task_id, 'a', 1, now(), 'ready' from made",
            task.id,
            event("e0").key()
        );
        for statement in ["set reveille.tenant = '*'", "begin", lock.as_str(), queued.as_str()] {
            sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut other).await.expect("queued");
        }
        let start = start_with(&world, 9);
        let (fired, ()) =
            tokio::join!(matching.record_by(&world.store, 9, Some(&start)), commit_when_waited_for(&world, other));
        let recorded = written(fired);
        assert_eq!((recorded.started.len(), recorded.claims.len()), (starts, 1 - starts), "{overlap}");
        assert_eq!(slots(&world).await, 0, "{overlap}");
        assert_eq!(world.get_task(task.id).await.run_count, 2);
        world.leave().await;
    }
}

#[tokio::test]
async fn event_is_recorded_and_started_by_one_statement() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    for overlap in ["allow", "skip"] {
        task(&world, json!({"event_type": overlap, "overlap": overlap})).await;
    }
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.expect("written");
    let mut counted = Vec::new();
    for round in 0..4 {
        let events = ["allow", "skip"].map(|kind| event_with(&format!("{kind}{round}"), json!({"type": kind})));
        let matching = MatcherHarness::of(&world, events.to_vec()).await;
        let before = gate.requests();
        let fired = written(matching.record_by(&world.store, 9, Some(&start_with(&world, 9))).await);
        counted.push(gate.requests() - before);
        assert_eq!((fired.started.len(), fired.claims.len()), (2, 0));
        for started in &fired.started {
            assert!(started.task.is_some());
            assert_eq!(started.recipient.as_deref(), Some(&recipient));
            world.succeed(started).await;
        }
    }
    // a statement is prepared on each of its connections, and a task read, once
    assert_eq!(counted.last(), Some(&1), "{counted:?}");
    world.store.close().await;
}
