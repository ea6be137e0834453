//! Tenants in turn: due tasks of a quiet tenant are found within a counted number of batches, whatever is due of
//! others.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::{BoxFuture, Either, join_all, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use reveille::base::clock::pause;
use reveille::base::metrics::Metrics;
use reveille::domain::event::Event;
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::store::{CredentialFilter, Finish, FireDue, Lease, Park, RunFilter, StoreError};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::asked::{LIMIT, asked};
use super::conditions;
use super::matching::{self, MatcherHarness};
use super::world::{LEASE, START, StoreHarness, end_of, new_task, only};

on_both!(
    due_tasks_of_a_quiet_tenant_fire_in_the_second_batch_beside_thousands_of_others,
    tenants_with_nothing_due_take_no_turn_from_those_that_have,
    run_of_a_quiet_tenant_that_waits_for_people_is_in_the_first_look_beside_others,
    overdue_completion_of_a_quiet_tenant_is_in_the_first_look_beside_others,
    window_of_a_quiet_tenant_closes_in_the_first_batch_beside_thousands_of_another,
    windows_that_close_together_are_bounded_in_bytes_and_tenants_without_room_are_next,
    held_events_of_a_quiet_tenant_are_in_the_first_look_beside_others,
    write_of_a_quiet_tenant_waits_for_no_backlog_of_another,
    transcript_of_a_quiet_tenant_waits_for_no_backlog_of_another,
    poll_of_a_quiet_tenant_is_recorded_before_the_backlog_of_another,
    short_write_stands_behind_one_large_write_of_its_tenant_at_most,
    turns_that_were_waited_for_are_in_the_metrics_by_what_was_waited_for,
);

/// Their names stand before and behind that of the quiet tenant.
const LOUD: [&str; 2] = ["a-loud", "z-loud"];
const QUIET: &str = "quiet";

fn at(millis: i64) -> DateTime<Utc> {
    START + TimeDelta::milliseconds(millis)
}

/// So many tasks of a tenant that are due once.
async fn due_once(world: &StoreHarness, tenant: &str, count: usize, due: DateTime<Utc>) -> Vec<Uuid> {
    let trigger: Value = json!({ "at": due.to_rfc3339() });
    let tasks: Vec<_> = (0..count).map(|_| new_task(tenant, trigger.clone(), json!({}), world.now())).collect();
    for stored in world.store.create_tasks(&tasks).await.unwrap() {
        assert!(stored);
    }
    tasks.into_iter().map(|(task, _)| task.id).collect()
}

async fn runs_of_tenant(world: &StoreHarness, tenant: &str) -> i64 {
    world.count(&format!("select count(*) from runs where tenant_id = '{tenant}'")).await
}

/// Neither the earliest nor the latest that are due are the quiet tenant's.
async fn due_tasks_of_a_quiet_tenant_fire_in_the_second_batch_beside_thousands_of_others(world: &StoreHarness) {
    const EACH: usize = 800;
    for tenant in LOUD {
        due_once(world, tenant, EACH, at(1_000)).await;
        due_once(world, tenant, EACH, at(3_000)).await;
    }
    due_once(world, QUIET, 3, at(2_000)).await;
    world.pass(10);
    let ask = FireDue { limit: 100, ..world.ask(0, 10_000) };
    for _ in 0..2 {
        let fired = world.store.fire_due(&ask).await.unwrap();
        assert!(
            fired.tasks <= 120,
            "a batch has a tenth more of those due last, and a tenth more of turns: {}",
            fired.tasks
        );
    }
    assert_eq!(runs_of_tenant(world, QUIET).await, 3);
    for tenant in LOUD {
        assert!(runs_of_tenant(world, tenant).await > 0);
    }
    let mut batches = 2;
    while world.store.fire_due(&ask).await.unwrap().tasks > 0 {
        batches += 1;
        assert!(batches <= 33, "all is done in as many batches as it fills");
    }
    for tenant in LOUD {
        assert_eq!(runs_of_tenant(world, tenant).await, 2 * EACH as i64, "each once");
    }
    assert_eq!(runs_of_tenant(world, QUIET).await, 3);
}

async fn tenants_with_nothing_due_take_no_turn_from_those_that_have(world: &StoreHarness) {
    for number in 0..30 {
        due_once(world, &format!("idle-{number:02}"), 1, at(3_600_000)).await;
    }
    due_once(world, LOUD[0], 60, at(1_000)).await;
    due_once(world, LOUD[0], 60, at(3_000)).await;
    due_once(world, QUIET, 1, at(2_000)).await;
    world.pass(10);
    let ask = FireDue { limit: 20, ..world.ask(0, 1_000) };
    for _ in 0..2 {
        world.store.fire_due(&ask).await.unwrap();
    }
    assert_eq!(runs_of_tenant(world, QUIET).await, 1);
    while world.store.fire_due(&ask).await.unwrap().tasks > 0 {}
}

async fn run_of_a_quiet_tenant_that_waits_for_people_is_in_the_first_look_beside_others(world: &StoreHarness) {
    for number in 0..9 {
        let (_, started, _) = asked(world, &["c1"]).await;
        let (tenant, later) = if number == 8 { (QUIET, 60) } else { (LOUD[number % 2], 0) };
        let id = world.id(started.run.id);
        world.plant(&format!("update parked set tenant_id = '{tenant}' where run_id = {id}")).await;
        if later > 0 {
            let wake = (world.now() + TimeDelta::seconds(LIMIT / 2 + later)).to_rfc3339();
            world.plant(&format!("update parked set wake_at = '{wake}' where run_id = {id}")).await;
        }
    }
    world.pass(LIMIT / 2 + 61);
    let quiet = "select count(*) from parked where tenant_id = 'quiet'";
    assert_eq!(world.count(quiet).await, 1);
    let looked_at = world.store.waiting_for_people(world.now(), 4).await.unwrap();
    let mut found = Vec::new();
    for waiting in &looked_at {
        let of =
            format!("select count(*) from parked where tenant_id = 'quiet' and run_id = {}", world.id(waiting.run.id));
        found.push(world.count(&of).await);
    }
    assert_eq!((found.len(), found.iter().sum::<i64>()), (3, 1), "one of each tenant");
    assert_eq!(world.store.waiting_for_people(world.now(), 100).await.unwrap().len(), 9, "all, where all fit");
}

async fn overdue_completion_of_a_quiet_tenant_is_in_the_first_look_beside_others(world: &StoreHarness) {
    for (tenant, runs, seconds) in [(LOUD[0], 6, 10), (LOUD[1], 6, 10), (QUIET, 1, 20)] {
        let task = world.task_with(tenant, json!({ "interval": "1h" }), json!({})).await;
        for _ in 0..runs {
            let started = world.started(&task).await;
            let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(seconds) });
            let end = Finish { park, ..end_of(&started, RunState::WaitingForCompletion) };
            assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
        }
    }
    world.pass(60);
    let overdue = world.store.overdue_completions(world.now(), 6).await.unwrap();
    let tenants: Vec<&str> = overdue.iter().map(|(run, _)| run.tenant_id.as_str()).collect();
    assert_eq!(tenants.len(), 5, "two of each that has so many: {tenants:?}");
    assert_eq!(tenants.iter().filter(|tenant| **tenant == QUIET).count(), 1);
    assert_eq!(world.store.overdue_completions(world.now(), 100).await.unwrap().len(), 13, "all, where all fit");
}

fn events(tenant: &str, id: &str, count: usize) -> Vec<Event> {
    let event = |number: usize| {
        let id = format!("{id}-{number}");
        json!({ "specversion": "1.0", "id": id, "source": "s", "type": "t", "tenantid": tenant })
    };
    (0..count).map(|number| Event::try_from(event(number)).expect("an event")).collect()
}

/// A call of a tenant that has a name.
type Call<'a> = (&'static str, BoxFuture<'a, Result<(), StoreError>>);

/// One call of the quiet tenant behind several of another.
fn behind_others<'a>(call: impl Fn(&'static str, usize) -> BoxFuture<'a, Result<(), StoreError>>) -> Vec<Call<'a>> {
    let tenants = [LOUD[0], LOUD[0], LOUD[0], LOUD[0], QUIET];
    tenants.into_iter().enumerate().map(|(number, tenant)| (tenant, call(tenant, number))).collect()
}

/// The order of calls of which the quiet tenant's waits for the present one and for no backlog.
const IN_TURN: [&str; 5] = [LOUD[0], QUIET, LOUD[0], LOUD[0], LOUD[0]];

/// Calls that wait in a fair queue: all but the first, which is held up.
const BEHIND: usize = IN_TURN.len() - 1;

/// Attempts at a case in which the database must not give up a statement.
const ATTEMPTS: i64 = 10;
/// Looks whether all have asked; they need no more than their turns of the runtime.
const LOOKS: usize = 2_000;

/// The order in which calls end that wait behind each other, and how many waited in fair queues once all had asked, of
/// which `behind` are to do so. On Postgres others have
/// all connections but one until all have ended. The first call is held up by the database until all have asked: it
/// needs this table, or SQLite's writer. An attempt in which the database gave up a statement does not count.
async fn order_of<'a>(
    world: &StoreHarness,
    table: &str,
    behind: usize,
    calls: impl Fn(i64) -> Vec<Call<'a>>,
) -> (Vec<&'static str>, usize) {
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    for attempt in 0..ATTEMPTS {
        let (lock, others) = others_connections(world).await;
        let mut others = std::pin::pin!(others);
        assert!((&mut others).now_or_never().is_none());
        world.plant(if world.is_postgres() { "begin" } else { "begin immediate" }).await;
        if world.is_postgres() {
            world.plant(&format!("lock table {table} in access exclusive mode")).await;
        }
        let order = Mutex::new(Vec::new());
        let ended = calls(attempt).into_iter().map(async |(name, call): Call<'a>| {
            let answer = call.await;
            order.lock().unwrap().push(name);
            match answer {
                Err(StoreError::TimedOut(_) | StoreError::Unavailable(_)) => false,
                answer => answer.map(|()| true).unwrap(),
            }
        });
        // each is looked at when it is woken, so in the order in which they end
        let mut ended = std::pin::pin!(ended.collect::<FuturesUnordered<_>>().collect::<Vec<bool>>());
        assert!((&mut ended).now_or_never().is_none(), "the first is held up");
        // some calls go on in tasks of their own, which ask as soon as they run
        let behind = calls_behind(&metrics, behind).await;
        world.plant("rollback").await;
        let (counts, all) = match select(&mut others, &mut ended).await {
            Either::Left(_) => (false, ended.await),
            Either::Right((all, _)) => (true, all),
        };
        if let Some(lock) = lock {
            lock.close().await.unwrap();
            if counts {
                others.await;
            }
        }
        if counts && all.into_iter().all(|in_time| in_time) {
            return (order.lock().unwrap().clone(), behind);
        }
    }
    panic!("the database gave up a statement in each of {ATTEMPTS} attempts")
}

/// Calls that have all shared connections of Postgres but one for as long as a table is locked that nothing else reads
/// here.
async fn others_connections(world: &StoreHarness) -> (Option<PgConnection>, BoxFuture<'_, ()>) {
    if !world.is_postgres() {
        return (None, pending().boxed());
    }
    let mut lock = PgConnection::connect(&world.url()).await.unwrap();
    for statement in ["begin", "lock table credentials in access exclusive mode"] {
        sqlx::query(statement).execute(&mut lock).await.unwrap();
    }
    let shared = world.store.pools().into_iter().find(|pool| pool.pool == "shared").expect("shared connections");
    let filter = CredentialFilter { limit: 1, ..CredentialFilter::default() };
    let calls = (1..shared.most).map(move |number| {
        let (filter, scope) = (filter.clone(), only(&format!("other-{number}")));
        async move { world.store.list_credentials(&scope, &filter).await.map(drop) }
    });
    (Some(lock), join_all(calls).map(drop).boxed())
}

/// How many wait in all fair queues, once all that are to wait there have asked.
async fn calls_behind(metrics: &Metrics, expected: usize) -> usize {
    for _ in 0..LOOKS {
        if waiting(&metrics.text()) >= expected {
            break;
        }
        pause(Duration::from_millis(1)).await;
    }
    waiting(&metrics.text())
}

/// How many wait in all fair queues.
fn waiting(metrics: &str) -> usize {
    let gauges = metrics.lines().filter(|line| line.starts_with("reveille_fair_queue_waiting{"));
    gauges.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
}

/// Windows of a tenant that has none yet, due from then on, all of one task and each of one event.
async fn due_windows(world: &StoreHarness, tenant: &str, kind: &str, count: usize, bytes: usize, due: DateTime<Utc>) {
    let (task, creation) = new_task(tenant, json!({ "type": "event", "source": "s" }), json!({}), world.now());
    let task_id = world.id(task.id);
    assert_eq!(world.store.create_tasks(&[(task, creation)]).await.unwrap(), [true]);
    let event = json!({ "specversion": "1.0", "id": "e", "source": "s", "type": "t", "tenantid": tenant });
    let id = if world.is_postgres() { "gen_random_uuid()" } else { "randomblob(16)" };
    let at = due.to_rfc3339();
    world
        .plant(&format!(
            "insert into event_windows (id, task_id, tenant_id, kind, key, opened_at, closes_at, events, bytes)
             with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {count})
             select {id}, {task_id}, '{tenant}', '{kind}', 'k' || n, '{at}', '{at}', 1, {bytes} from numbers"
        ))
        .await;
    world
        .plant(&format!(
            "insert into window_events (task_id, event_key, window_id, seq, body, created_at)
             select task_id, key, id, 1, '{event}', '{at}' from event_windows where tenant_id = '{tenant}'"
        ))
        .await;
}

/// Closes a batch; answers how many windows of each tenant it had.
async fn close_batch(world: &StoreHarness) -> HashMap<String, usize> {
    let due = world.store.due_windows(world.now(), 100).await.unwrap();
    let closed = world.store.close_windows(&due, world.now(), Uuid::nil(), 0).await.unwrap();
    assert_eq!(closed.recorded, due.len());
    let mut tenants = HashMap::new();
    for window in due {
        *tenants.entry(window.tenant_id).or_default() += 1;
    }
    tenants
}

async fn window_of_a_quiet_tenant_closes_in_the_first_batch_beside_thousands_of_another(world: &StoreHarness) {
    due_windows(world, LOUD[0], "debounce", 5_000, 100, at(1_000)).await;
    due_windows(world, QUIET, "debounce", 1, 100, at(2_000)).await;
    world.pass(10);
    let first = close_batch(world).await;
    assert_eq!((first.get(QUIET), first.get(LOUD[0])), (Some(&1), Some(&50)), "each has half, as far as it has any");
    let mut batches = 1;
    loop {
        let next = close_batch(world).await;
        if next.is_empty() {
            break;
        }
        batches += 1;
    }
    assert_eq!(batches, 1 + 50, "a tenant that is alone has all of a batch");
    assert_eq!(runs_of_tenant(world, LOUD[0]).await, 5_000, "each once");
}

async fn windows_that_close_together_are_bounded_in_bytes_and_tenants_without_room_are_next(world: &StoreHarness) {
    // the bound is `CLOSED_BYTES`
    const MIB: usize = 1_048_576;
    for tenant in ["a", "b", "c", "d", "e"] {
        due_windows(world, tenant, "debounce", 2, MIB, at(1_000)).await;
    }
    world.pass(10);
    let order = |batch: HashMap<String, usize>| {
        let mut tenants: Vec<(String, usize)> = batch.into_iter().collect();
        tenants.sort_unstable();
        tenants.into_iter().map(|(tenant, count)| format!("{tenant}{count}")).collect::<Vec<_>>()
    };
    assert_eq!(order(close_batch(world).await), ["a1", "b1", "c1", "d1"], "4 MiB");
    assert_eq!(order(close_batch(world).await), ["e2"], "on behind the last one");
    assert_eq!(order(close_batch(world).await), ["a1", "b1", "c1", "d1"]);
    due_windows(world, "f", "debounce", 1, 4 * MIB + 1, at(1_000)).await;
    due_windows(world, "g", "debounce", 1, 1, at(2_000)).await;
    assert_eq!(order(close_batch(world).await), ["f1"], "one in any case");
    assert_eq!(order(close_batch(world).await), ["g1"]);
}

async fn held_events_of_a_quiet_tenant_are_in_the_first_look_beside_others(world: &StoreHarness) {
    due_windows(world, LOUD[0], "buffer", 50, 0, at(1_000)).await;
    due_windows(world, QUIET, "buffer", 1, 0, at(2_000)).await;
    world.pass(10);
    let due = world.store.due_releases(world.now(), 10).await.unwrap();
    let quiet = due.iter().find(|due| due.tenant_id == QUIET).expect("in the first look");
    assert_eq!(world.store.held_events(quiet, 10).await.unwrap().expect("an event").events.len(), 1);
    assert_eq!(due.len(), 6, "each has half of the look, as far as it has any");
}

async fn write_of_a_quiet_tenant_waits_for_no_backlog_of_another(world: &StoreHarness) {
    let publish = |attempt: i64, tenant: &str, number: usize| {
        let events = events(tenant, &format!("{attempt}-{number}"), 5);
        async move { world.store.publish_events(&events).await.map(drop) }.boxed()
    };
    let calls = |attempt| behind_others(|tenant, number| publish(attempt, tenant, number));
    assert_eq!(order_of(world, "events", BEHIND, calls).await, (IN_TURN.to_vec(), 4));
}

async fn transcript_of_a_quiet_tenant_waits_for_no_backlog_of_another(world: &StoreHarness) {
    let mut leases = HashMap::new();
    for tenant in [LOUD[0], QUIET] {
        let task = world.task_with(tenant, json!({ "interval": "1h" }), json!({})).await;
        leases.insert(tenant, world.started(&task).await);
    }
    let append = |attempt: i64, tenant: &'static str, number: usize| {
        let started = leases[tenant].clone();
        let seq = attempt * 10 + number as i64;
        // of the large ones no two go together
        let text = if tenant == QUIET { "hello".into() } else { "x".repeat(700_000) };
        let message = TranscriptMessage::user(&text);
        let entry = TranscriptEntry::new(seq, 0, world.now(), message);
        async move { world.store.append(tenant, started.lease, &[entry]).await }.boxed()
    };
    let calls = |attempt| behind_others(|tenant, number| append(attempt, tenant, number));
    let (order, _) = order_of(world, "turns", 0, calls).await;
    assert!(order[..2].contains(&QUIET), "it goes with the first batch: {order:?}");
}

async fn poll_of_a_quiet_tenant_is_recorded_before_the_backlog_of_another(world: &StoreHarness) {
    let mut claims = Vec::new();
    for tenant in [LOUD[0], LOUD[0], LOUD[0], LOUD[0], QUIET] {
        let task = world.task_with(tenant, conditions::condition(json!({})), json!({})).await;
        world.pass(600);
        let now = world.now();
        claims.push(world.store.claim_polls(&[task.id], now, now + LEASE).await.unwrap().remove(0));
    }
    let claims = &claims;
    let record = |number: usize| {
        let (claim, now) = (&claims[number], world.now());
        let step = conditions::step(claim, Ok(json!(1000)), now);
        async move { world.store.record_poll(claim, &step, Some(step.next_poll_at), None, now).await.map(drop) }.boxed()
    };
    let calls = |_| behind_others(|_, number| record(number));
    assert_eq!(order_of(world, "condition_state", BEHIND, calls).await, (IN_TURN.to_vec(), 4));
}

/// On SQLite it is the writer that they have in turn.
#[tokio::test]
async fn on_postgres_few_matches_stand_behind_the_present_batch_and_no_backlog_of_many() {
    let world = &StoreHarness::postgres().await;
    matching::task(world, json!({})).await;
    let mut batches = Vec::new();
    for id in 0..ATTEMPTS as usize * IN_TURN.len() {
        batches.push(MatcherHarness::of(world, vec![matching::event(&id.to_string())]).await);
    }
    let batches = &batches;
    // what is asked before a batch is known from then on
    let first = MatcherHarness::of(world, vec![matching::event("first")]).await;
    first.try_record(&world.store, false).await.unwrap();
    // other work has one of the two connections meanwhile
    let leases = [Lease { run_id: Uuid::nil(), token: 1 }];
    let mut beat = world.store.heartbeat(&leases, world.now() + LEASE).boxed();
    assert!((&mut beat).now_or_never().is_none());
    let calls = |attempt: i64| {
        let kinds = ["many", "many", "many", "many", "few"].into_iter().enumerate();
        let record = |(number, kind): (usize, &'static str)| -> Call<'_> {
            let batch = &batches[attempt as usize * IN_TURN.len() + number];
            (kind, async move { batch.try_record(&world.store, kind == "few").await.map(drop) }.boxed())
        };
        kinds.map(record).collect()
    };
    let order = order_of(world, "runs", BEHIND, calls).await;
    drop(beat);
    assert_eq!(order, (vec!["many", "few", "many", "many", "many"], 4));
    world.clone().leave().await;
}

/// On SQLite as many read at once as there are processors; `store::tenant_readers` has its cases.
#[tokio::test]
async fn on_postgres_each_read_of_runs_of_a_quiet_tenant_is_before_the_backlog_of_another() {
    let world = &StoreHarness::postgres().await;
    let task = &world.task(json!({ "interval": "1h" })).await;
    let (filter, event) = (&RunFilter { limit: 9, ..RunFilter::default() }, &events("a", "1", 1)[0]);
    for read in ["get_run", "last_runs", "recorded_around", "runs_of_event", "list_runs", "run_summaries", "transcript"]
    {
        let call = |tenant: &'static str, _| {
            let (scope, store, ids) = (only(tenant), &world.store, [task.id]);
            async move {
                match read {
                    "get_run" => match store.get_run(&scope, task.id).await {
                        Err(StoreError::NotFound) => Ok(()),
                        read => read.map(drop),
                    },
                    "last_runs" => store.last_runs(&scope, &ids).await.map(drop),
                    "recorded_around" => store.recorded_around(&scope, task.id, START).await.map(drop),
                    "runs_of_event" => store.runs_of_event(&scope, event, &ids).await.map(drop),
                    "list_runs" => store.list_runs(&scope, filter).await.map(drop),
                    "run_summaries" => store.run_summaries(&scope, filter).await.map(drop),
                    _ => store.transcript(&scope, task.id, 0, 9).await.map(drop),
                }
            }
            .boxed()
        };
        let calls = |_| behind_others(call);
        assert_eq!(order_of(world, "runs", BEHIND, calls).await, (IN_TURN.to_vec(), 4), "{read}");
    }
    world.clone().leave().await;
}

async fn short_write_stands_behind_one_large_write_of_its_tenant_at_most(world: &StoreHarness) {
    let publish = |name: &'static str, id: String, count: usize| -> Call<'_> {
        let events = events(LOUD[0], &id, count);
        (name, async move { world.store.publish_events(&events).await.map(drop) }.boxed())
    };
    let calls = |attempt: i64| {
        let large = (0..4).map(|number| publish("large", format!("{attempt}-{number}"), 200));
        large.chain([publish("short", format!("{attempt}"), 1)]).collect()
    };
    assert_eq!(order_of(world, "events", BEHIND, calls).await, (vec!["large", "short", "large", "large", "large"], 4));
}

async fn turns_that_were_waited_for_are_in_the_metrics_by_what_was_waited_for(world: &StoreHarness) {
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    let resource = if world.is_postgres() { "connections" } else { "writer" };
    let count = |text: &str, name: &str| {
        let line = format!("reveille_fair_queue_{name}{{resource=\"{resource}\"}} ");
        let value =
            text.lines().find_map(|found| found.strip_prefix(&line)).unwrap_or_else(|| panic!("{line}\n{text}"));
        value.parse::<f64>().unwrap()
    };
    assert_eq!(["waiting", "wait_seconds_count"].map(|name| count(&metrics.text(), name)), [0.0, 0.0]);
    let publish = |attempt: i64, tenant: &str, number: usize| {
        let events = events(tenant, &format!("{attempt}-{number}"), 1);
        async move { world.store.publish_events(&events).await.map(drop) }.boxed()
    };
    let calls = |attempt| behind_others(|tenant, number| publish(attempt, tenant, number));
    let (order, waited) = order_of(world, "events", BEHIND, calls).await;
    assert_eq!((order.len(), waited), (5, 4));
    let text = metrics.text();
    assert_eq!(count(&text, "waiting"), 0.0);
    assert!(count(&text, "wait_seconds_count") >= 4.0 && count(&text, "wait_seconds_sum") > 0.0, "{text}");
    assert!(!LOUD.iter().chain([&QUIET]).any(|tenant| text.contains(tenant)), "no tenant is named");
}
