//! Runs that start with the commit that records or takes them, here or where somebody else hears of them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::notification::Recipient;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{
    ClaimCursor, FireDue, FireResult, ImmediateStart, Occupant, OverlapOutcome, RunLimits, Shares, StartedRun,
    TakeRequest, TakeResult, Topic, tenant_hash,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::world::{LEASE, START, StoreHarness, WORKER};

on_both!(
    ready_runs_that_are_due_start_when_they_are_taken_and_later_ones_are_leased,
    runs_that_are_taken_bring_their_tasks_and_who_is_told,
    taken_run_that_finds_the_slot_taken_is_judged_at_once,
    due_fire_starts_with_its_record,
    of_fires_that_are_caught_up_with_one_starts_and_the_others_are_leased,
    only_as_many_fires_start_as_there_are_places,
    fires_start_in_their_tenants_shares_of_the_places,
    room_for_fires_is_asked_for_by_the_tenants_of_what_is_due,
    take_in_turn_leaves_places_and_passes_over_a_tenant_that_has_its_share,
    tasks_of_one_tenant_are_told_from_those_of_two,
    run_that_is_asked_for_is_ready_at_once_and_starts_by_a_take,
    second_request_for_a_run_changes_nothing,
    other_instances_hear_of_what_can_not_be_done_here,
);

async fn take(world: &StoreHarness, ahead_seconds: i64) -> TakeResult {
    let now = world.now();
    let ahead = now + TimeDelta::seconds(ahead_seconds);
    let take = TakeRequest {
        worker: WORKER,
        now,
        ahead,
        lease_until: now + LEASE,
        limit: 100,
        fair: None,
        limits: RunLimits::default(),
        shares: None,
    };
    world.store.take_runs(&take).await.expect("a take")
}

async fn ready_runs_that_are_due_start_when_they_are_taken_and_later_ones_are_leased(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10s", "overlap": "allow"})).await;
    world.store.fire_due(&world.ask(15, 0)).await.expect("a fire, ahead");
    let now = world.run_now(&task).await;
    let taken = take(world, 15).await;
    let [started] = taken.starts.started.as_slice() else { panic!("{taken:?}") };
    assert_eq!((started.run.id, started.run.state, started.run.attempt), (now, RunState::Running, 1));
    assert_eq!(started.run.started_at, Some(START));
    assert_eq!((started.lease_until, started.deadline_at), (START + LEASE, START + TimeDelta::seconds(600)));
    assert_eq!(started.task.as_deref(), Some(&world.get_task(task.id).await.into_definition()));
    assert_eq!(world.get_run(now).await, *started.run);
    let [claim] = taken.claims.as_slice() else { panic!("{taken:?}") };
    let at = START + TimeDelta::seconds(10);
    assert_eq!((claim.run_at, claim.until), (at, at + TimeDelta::seconds(5)));
    assert_eq!(world.get_run(claim.lease.run_id).await.state, RunState::Queued);
    assert!(take(world, 15).await.is_empty(), "what is taken is not taken again");
    world.succeed(started).await;
}

async fn runs_that_are_taken_bring_their_tasks_and_who_is_told(world: &StoreHarness) {
    let mut expected = Vec::new();
    for (tenant, locale) in [("ann", Some("de")), ("bob", None), ("cleo", Some("fr"))] {
        if let Some(locale) = locale {
            let recipient = Recipient { locale: locale.into(), ..Recipient::default() };
            world.store.put_recipient(&Scope::Every, tenant, &recipient, None).await.unwrap();
        }
        for _ in 0..2 {
            let task = world.task_with(tenant, json!({"interval": "1h"}), json!({})).await;
            expected.push((world.run_now(&task).await, task.id, locale.map(str::to_owned)));
        }
    }
    let taken = take(world, 0).await;
    let brought = taken.starts.started.iter().map(|started| {
        let locale = started.recipient.as_ref().map(|recipient| recipient.locale.clone());
        (started.run.id, started.task.as_ref().expect("its task").id, locale)
    });
    let mut brought: Vec<_> = brought.collect();
    brought.sort();
    expected.sort();
    assert_eq!(brought, expected);
}

async fn taken_run_that_finds_the_slot_taken_is_judged_at_once(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "skip"})).await;
    let running = world.started(&task).await;
    let second = world.run_now(&task).await;
    let taken = take(world, 0).await;
    assert_eq!((taken.starts.started.len(), taken.starts.blocked), (0, vec![(second, OverlapOutcome::Skipped)]));
    let run = world.get_run(second).await;
    assert_eq!((run.state, run.blocked_by), (RunState::Skipped, Some(running.run.id)));
}

fn starting(world: &StoreHarness, slots: usize) -> FireDue {
    let start = ImmediateStart { slots, lease_until: world.now() + LEASE, shares: None };
    FireDue { start: Some(start), ..world.ask(0, 100) }
}

async fn fired(world: &StoreHarness, slots: usize) -> FireResult {
    world.store.fire_due(&starting(world, slots)).await.expect("a fire")
}

async fn due_fire_starts_with_its_record(world: &StoreHarness) {
    let more = json!({"timeout_seconds": 90});
    let task = world.task_with("a", json!({"interval": "1m", "overlap": "skip"}), more).await;
    world.pass(60);
    let first = fired(world, 9).await;
    let [started] = first.started.as_slice() else { panic!("{first:?}") };
    assert_eq!((first.recorded, first.claims.len()), (1, 0));
    assert_eq!(world.get_run(started.lease.run_id).await, *started.run);
    assert_eq!((started.run.state, started.run.attempt), (RunState::Running, 1));
    assert_eq!(started.deadline_at, world.now() + TimeDelta::seconds(90));
    assert_eq!(world.store.heartbeat(&[started.lease], world.now() + LEASE).await.unwrap().len(), 1);

    // its slot is taken: the next one is leased only, and judged when it is to start
    world.pass(60);
    let second = fired(world, 9).await;
    assert_eq!((second.started.len(), second.claims.len()), (0, 1));
    let starts = world.store.start_runs(&[second.claims[0].lease], world.now() + LEASE).await.unwrap();
    assert_eq!(starts.blocked, [(second.claims[0].lease.run_id, OverlapOutcome::Skipped)]);
    world.succeed(started).await;
    world.pass(60);
    let third = fired(world, 9).await;
    assert_eq!(third.started.len(), 1, "an end frees the slot");
    assert_eq!(world.runs_of(&task).await.len(), 3);
    world.succeed(&third.started[0]).await;
}

async fn of_fires_that_are_caught_up_with_one_starts_and_the_others_are_leased(world: &StoreHarness) {
    world.task(json!({"interval": "1m", "catch_up": "all", "overlap": "skip"})).await;
    world.pass(180);
    let fired = fired(world, 9).await;
    assert_eq!((fired.recorded, fired.started.len(), fired.claims.len()), (3, 1, 2));
    let first = fired.started[0].run.scheduled_for;
    assert_eq!(first, START + TimeDelta::seconds(60), "the oldest");
    let leases: Vec<_> = fired.claims.iter().map(|claim| claim.lease).collect();
    let starts = world.store.start_runs(&leases, world.now() + LEASE).await.unwrap();
    assert!(starts.blocked.iter().all(|(_, fate)| *fate == OverlapOutcome::Behind), "{starts:?}");
    world.succeed(&fired.started[0]).await;
}

async fn only_as_many_fires_start_as_there_are_places(world: &StoreHarness) {
    for _ in 0..5 {
        world.task(json!({"interval": "1m"})).await;
    }
    world.pass(60);
    let fired = fired(world, 2).await;
    assert_eq!((fired.recorded, fired.started.len(), fired.claims.len()), (5, 2, 3));
    for started in &fired.started {
        world.succeed(started).await;
    }
}

pub(super) fn shares(free: usize, held: &[(&str, usize)]) -> Shares {
    let occupant =
        |(tenant, runs): &(&str, usize)| (tenant_hash(tenant), Occupant { tenant: (*tenant).into(), runs: *runs });
    Shares { free, occupants: held.iter().map(occupant).collect(), single_tenant: false }
}

fn tenants(started: &[StartedRun]) -> BTreeMap<&str, usize> {
    let mut tenants = BTreeMap::new();
    started.iter().for_each(|started| *tenants.entry(started.run.tenant_id.as_str()).or_default() += 1);
    tenants
}

async fn fires_start_in_their_tenants_shares_of_the_places(world: &StoreHarness) {
    for _ in 0..10 {
        world.task_with("many", json!({"interval": "1m"}), json!({})).await;
    }
    world.pass(1);
    world.task_with("one", json!({"interval": "1m"}), json!({})).await;
    world.pass(60);
    let start = ImmediateStart { slots: 8, lease_until: world.now() + LEASE, shares: Some(shares(8, &[])) };
    let ask = FireDue { start: Some(start), ..world.ask(0, 100) };
    let fired = world.store.fire_due(&ask).await.expect("a fire");
    assert_eq!(tenants(&fired.started), BTreeMap::from([("many", 6), ("one", 1)]));
    assert_eq!((fired.recorded, fired.claims.len()), (11, 0), "what this instance may not start any may take");
    for started in &fired.started {
        world.succeed(started).await;
    }
    world.pass(60);
    let start = ImmediateStart { slots: 2, lease_until: world.now() + LEASE, shares: Some(shares(2, &[("many", 6)])) };
    let ask = FireDue { start: Some(start), ..world.ask(0, 100) };
    let fired = world.store.fire_due(&ask).await.expect("a fire");
    assert_eq!(tenants(&fired.started), BTreeMap::from([("one", 1)]));
    world.succeed(&fired.started[0]).await;
}

async fn room_for_fires_is_asked_for_by_the_tenants_of_what_is_due(world: &StoreHarness) {
    for (tenant, interval) in [("many", "1m"), ("many", "1m"), ("many", "1m"), ("one", "1m"), ("later", "1h")] {
        world.task_with(tenant, json!({"interval": interval}), json!({})).await;
    }
    world.pass(60);
    let start = ImmediateStart { slots: 2, lease_until: world.now() + LEASE, shares: None };
    let mut due = HashMap::new();
    let reserve = |tasks: HashMap<u32, usize>| {
        due = tasks;
        (3, Some(start))
    };
    let fired = world.store.fire_due_with(&world.ask(0, 0), reserve).await.expect("a fire");
    assert_eq!(due, HashMap::from([(tenant_hash("many"), 3), (tenant_hash("one"), 1)]));
    assert_eq!((fired.recorded, fired.started.len(), fired.claims.len()), (4, 2, 1));
    for started in &fired.started {
        world.succeed(started).await;
    }
}

async fn take_in_turn_leaves_places_and_passes_over_a_tenant_that_has_its_share(world: &StoreHarness) {
    for (tenant, runs) in [("few", 2), ("many", 9)] {
        let task = world.task_with(tenant, json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
        for _ in 0..runs {
            world.run_now(&task).await;
        }
    }
    let take = async |shares: Shares| {
        let now = world.now();
        let take = TakeRequest {
            worker: WORKER,
            now,
            ahead: now,
            lease_until: now + LEASE,
            limit: shares.free as i64,
            fair: Some(ClaimCursor::default()),
            limits: RunLimits::default(),
            shares: shares.of_tenants(),
        };
        world.store.take_runs(&take).await.expect("a take").starts.started
    };
    let first = take(shares(8, &[])).await;
    assert_eq!(tenants(&first), BTreeMap::from([("few", 2), ("many", 3)]), "as much as leaves something to a third");
    let second = take(shares(3, &[("few", 2), ("many", 3)])).await;
    assert_eq!(tenants(&second), BTreeMap::from([("many", 2)]));
    assert_eq!(take(shares(1, &[("few", 2), ("many", 5)])).await, [], "the last is for who comes next");
    let alone = take(Shares { single_tenant: true, ..shares(1, &[("many", 5)]) }).await;
    assert_eq!(tenants(&alone), BTreeMap::from([("many", 1)]));
    for started in first.iter().chain(&second).chain(&alone) {
        world.succeed(started).await;
    }
}

async fn tasks_of_one_tenant_are_told_from_those_of_two(world: &StoreHarness) {
    let mut told = vec![world.store.has_single_tenant().await.unwrap()];
    for tenant in ["b", "b", "a"] {
        world.task_with(tenant, json!({"interval": "1h"}), json!({})).await;
        told.push(world.store.has_single_tenant().await.unwrap());
    }
    assert_eq!(told, [true, true, true, false]);
}

async fn run_that_is_asked_for_is_ready_at_once_and_starts_by_a_take(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "skip"})).await;
    let first = world.run_now(&task).await;
    let recorded = world.get_run(first).await;
    assert_eq!((recorded.state, recorded.attempt, recorded.started_at), (RunState::Queued, 0, None));
    let taken = take(world, 0).await;
    let [started] = taken.starts.started.as_slice() else { panic!("{taken:?}") };
    assert_eq!(world.get_run(first).await, *started.run);
    assert_eq!((started.run.state, started.run.attempt, started.run.input.as_ref()), (RunState::Running, 1, None));
    assert_eq!(started.task.as_deref().map(|task: &Task| task.id), Some(task.id));

    let second = world.run_now(&task).await;
    assert_eq!(world.get_run(second).await.state, RunState::Queued, "judged when it is to start");
    world.succeed(started).await;
    let taken = take(world, 0).await;
    world.succeed(&taken.starts.started[0]).await;

    let unknown = world.store.run_now(&Scope::Every, Uuid::nil(), Uuid::from_u128(5), None, world.now(), None).await;
    assert!(matches!(unknown, Err(reveille::store::StoreError::NotFound)), "{unknown:?}");
    let others = super::world::only("somebody-else");
    let hidden = world.store.run_now(&others, task.id, Uuid::from_u128(6), None, world.now(), None).await;
    assert!(matches!(hidden, Err(reveille::store::StoreError::NotFound)), "{hidden:?}");
    assert_eq!((world.get_task(task.id).await.run_count, world.count("select count(*) from queue").await), (2, 0));
}

async fn second_request_for_a_run_changes_nothing(world: &StoreHarness) {
    for overlap in ["skip", "allow"] {
        let task = world.task(json!({"interval": "1h", "overlap": overlap})).await;
        let (id, now) = (reveille::base::id::new_id(START), START + TimeDelta::microseconds(1_234_567));
        let ask = async || {
            let asked = world.store.run_now(&Scope::Every, task.id, id, Some(json!("in")), now, None).await;
            asked.expect("a run");
        };
        let counts = async || {
            let queued = world.count("select count(*) from queue").await;
            (queued, world.get_task(task.id).await.run_count)
        };
        ask().await;
        ask().await;
        assert_eq!(counts().await, (1, 1), "it is in the queue already");
        world.pass(2);
        let taken = take(world, 0).await;
        let [started] = taken.starts.started.as_slice() else { panic!("{taken:?}") };
        assert_eq!((started.run.id, started.run.input.as_ref()), (id, Some(&json!("in"))));
        let late = started.deadline_at - (world.now() + TimeDelta::seconds(600));
        assert!(late.abs() <= TimeDelta::milliseconds(1), "it may run for ten minutes, and is {late} off");
        ask().await;
        assert!(take(world, 0).await.is_empty(), "it is started already");
        assert_eq!((world.get_run(id).await, counts().await), ((*started.run).clone(), (1, 1)));
        world.succeed(started).await;
        ask().await;
        assert_eq!((world.get_run(id).await.state, counts().await), (RunState::Succeeded, (0, 1)));
    }
}

async fn other_instances_hear_of_what_can_not_be_done_here(world: &StoreHarness) {
    if !world.is_postgres() {
        // one process
        let task = world.task(json!({"interval": "1h"})).await;
        let mut queue = world.store.listen(Topic::Queue);
        world.run_now(&task).await;
        assert!(queue.has_changed().unwrap());
        queue.borrow_and_update();
        return;
    }
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let other = world.other_instance().await;
    let mut queue = other.listen(Topic::Queue);
    world.run_now(&task).await;
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, queue.changed()).await.expect("heard from the beginning").expect("open");

    // a notice that is told while nobody listens is lost, so a listener that comes again looks
    let lost = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
        and query ilike 'listen%'";
    let mut look = PgConnection::connect(&world.url()).await.expect("a connection");
    sqlx::query(lost).execute(&mut look).await.expect("cut off");
    tokio::time::timeout(patience, queue.changed()).await.expect("woken").expect("open");

    let mut here = world.store.listen(Topic::Queue);
    world.store.begin_work();
    reveille::base::clock::pause(Duration::from_millis(300)).await;
    queue.borrow_and_update();
    let mut is_heard = async |within| tokio::time::timeout(within, queue.changed()).await.is_ok();
    let quiet = Duration::from_millis(500);
    world.store.forward(Topic::Queue);
    assert!(!is_heard(quiet).await, "nothing was hinted at here alone");
    world.run_now(&task).await;
    assert!(!is_heard(quiet).await && here.has_changed().expect("open"), "what starts here is nobody else's");
    world.store.forward(Topic::Due);
    assert!(!is_heard(quiet).await, "another topic was passed on");
    world.store.forward(Topic::Queue);
    assert!(is_heard(patience).await, "what does not start here is another one's");
    world.store.forward(Topic::Queue);
    assert!(!is_heard(quiet).await, "once is enough");

    world.run_now(&task).await;
    assert!(!is_heard(quiet).await);
    here.borrow_and_update();
    world.store.end_work();
    assert!(is_heard(patience).await, "what is left at the end is another one's");
    world.run_now(&task).await;
    assert!(is_heard(patience).await, "and so is all that comes after it");
    other.close().await;
}

#[tokio::test]
async fn run_that_can_not_be_recorded_leaves_nothing_and_keeps_nobody_from_writing() {
    let world = StoreHarness::sqlite().await;
    let task = world.task(json!({"interval": "1h"})).await;
    let asks = async || {
        let run_id = reveille::base::id::new_id(world.now());
        world.store.run_now(&Scope::Every, task.id, run_id, None, world.now(), None).await
    };
    world.plant("create trigger full before insert on queue begin select raise(abort, 'as told'); end").await;
    for _ in 0..2 {
        asks().await.expect_err("as told");
    }
    world.plant("drop trigger full").await;
    assert_eq!(world.count("select count(*) from runs").await, 0);
    asks().await.expect("a run");
    assert_eq!(world.count("select count(*) from queue").await, 1);
    world.leave().await;
}
