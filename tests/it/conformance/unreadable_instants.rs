//! Instants and numbers that can't be read hold up no other row, and are told of once. Only SQLite takes such a text:
//! on Postgres the types of the columns let nothing in that can't be read. Each case is listed in `unreadable.rs`, by
//! its table.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::base::metrics::Metrics;
use reveille::domain::notification::{MessageKind, NewDelivery};
use reveille::domain::quota::Overrides;
use reveille::domain::run::RunState;
use reveille::domain::task::TaskStatus;
use reveille::engine::scheduling::rescuer::Rescuer;
use reveille::engine::service::ServiceLoop;
use reveille::store::{
    ClaimCursor, Finish, Park, PendingWork, RunLimits, StartedRun, StoredDeadLetterFilter, TakeRequest, TakeResult,
    event_shard,
};
use serde_json::json;
use uuid::Uuid;

use super::matching::{self, event};
use super::world::{LEASE, StoreHarness, WORKER, end_of, leases, tenant_of};

/// Texts that are no instants: before all that are, among those that have come, and behind all.
const BEFORE_ALL: &str = "";
const NO_DAY: &str = "2026-02-31T00:00:00+00:00";
const BEHIND_ALL: &str = "soon";

/// The rows that were told of as unreadable.
struct ToldRows(Metrics);

impl ToldRows {
    fn of(world: &StoreHarness) -> ToldRows {
        let metrics = Metrics::new();
        world.store.show_counts(&metrics);
        ToldRows(metrics)
    }

    /// How many of a table.
    fn count(&self, table: &str) -> usize {
        let begin = format!("reveille_unreadable_rows_total{{table=\"{table}\"}} ");
        let text = self.0.text();
        let told = text.lines().find_map(|line| line.strip_prefix(&begin));
        told.map_or(0, |count| count.parse().expect("a number"))
    }
}

async fn take_with(world: &StoreHarness, fair: bool, limits: RunLimits) -> TakeResult {
    let now = world.now();
    let take = TakeRequest {
        worker: WORKER,
        now,
        ahead: now,
        lease_until: now + LEASE,
        limit: 9,
        fair: fair.then(ClaimCursor::default),
        limits,
        shares: None,
    };
    world.store.take_runs(&take).await.unwrap()
}

async fn take(world: &StoreHarness, fair: bool) -> TakeResult {
    take_with(world, fair, RunLimits::default()).await
}

fn tasks_of(started: &[StartedRun]) -> Vec<Option<Uuid>> {
    started.iter().map(|one| one.run.task_id).collect()
}

fn message(key: &str) -> NewDelivery {
    NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: Vec::new(),
        dedupe_key: key.into(),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: None,
        text: Some(key.into()),
    }
}

pub async fn unreadable_instant_of_a_ready_run_is_set_aside_and_the_others_are_taken(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    for (text, fair) in [(BEFORE_ALL, false), (NO_DAY, true)] {
        let (bad, good) =
            (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
        let lost = world.id(world.run_now(&bad).await);
        world.run_now(&good).await;
        world.plant(&format!("update queue set run_at = '{text}' where run_id = {lost}")).await;
        let taken = take(world, fair).await.starts.started;
        assert_eq!(tasks_of(&taken), [Some(good.id)]);
        assert!(take(world, fair).await.is_empty(), "it is not met again at once");
        world.succeed(&taken[0]).await;
        world.pass(3600);
        let later = take(world, fair).await.starts.started;
        assert_eq!(tasks_of(&later), [Some(bad.id)], "it is ready in an hour");
        world.succeed(&later[0]).await;
    }
    assert_eq!(told.count("queue"), 2, "each once");
}

pub async fn unreadable_claim_is_set_aside_and_the_others_start(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    let lost = world.id(world.run_now(&bad).await);
    world.run_now(&good).await;
    let claims = leases(&world.claim().await);
    world.plant(&format!("update queue set overlap = x'ff' where run_id = {lost}")).await;
    for _ in 0..2 {
        let starts = world.store.start_runs(&claims, world.now() + LEASE).await.unwrap();
        assert_eq!((tasks_of(&starts.started), starts.blocked), (vec![Some(good.id)], vec![]));
    }
    assert!(take(world, false).await.is_empty());
    world.pass(3600);
    world.plant("update queue set overlap = null").await;
    assert_eq!(tasks_of(&take(world, false).await.starts.started), [Some(bad.id)]);
    assert_eq!(told.count("queue"), 1);
}

pub async fn unreadable_running_time_counts_as_none_and_its_run_starts(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    for _ in 0..2 {
        let task = world.task(json!({ "interval": "1h" })).await;
        world.run_now(&task).await;
    }
    world.plant("update runs set execution_ms = 'long' where id = (select min(id) from runs)").await;
    let started = take(world, false).await.starts.started;
    let limits: Vec<_> = started.iter().map(|one| one.deadline_at - world.now()).collect();
    assert_eq!(limits, [TimeDelta::seconds(600); 2]);
    world.plant("update runs set execution_ms = 'long' where id = (select min(id) from runs)").await;
    world.pass(60);
    let now = world.now();
    let taken = world.store.take_over_expired(now, TimeDelta::zero(), now + LEASE, 9).await.unwrap();
    assert_eq!(taken.len(), 2, "and the rescuer ends it");
}

pub async fn unreadable_lease_is_mended_and_the_others_are_taken_over(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let mut runs = Vec::new();
    for _ in 0..3 {
        let task = world.task(json!({ "interval": "1h" })).await;
        runs.push(world.started(&task).await);
    }
    for (column, text, started) in [("lease_until", BEFORE_ALL, &runs[0]), ("deadline_at", BEHIND_ALL, &runs[1])] {
        let id = world.id(started.run.id);
        world.plant(&format!("update queue set {column} = '{text}' where run_id = {id}")).await;
    }
    world.pass(60);
    let take_over = async || {
        let now = world.now();
        world.store.take_over_expired(now, TimeDelta::zero(), now + LEASE, 9).await.unwrap()
    };
    let taken = take_over().await;
    assert_eq!(taken.iter().map(|one| one.run.id).collect::<Vec<_>>(), [runs[2].run.id]);
    assert_eq!(told.count("queue"), 2);
    assert_eq!(take_over().await, [], "they have leases, and nobody else's is over");
    let end = Finish { lease: taken[0].lease, ..end_of(&runs[2], RunState::Failed) };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
    world.pass(LEASE.num_seconds() + 1);
    let mut later: Vec<Uuid> = take_over().await.iter().map(|one| one.run.id).collect();
    later.sort_unstable();
    let mut mended = [runs[0].run.id, runs[1].run.id];
    mended.sort_unstable();
    assert_eq!(later, mended, "they are rescued once these are over");
}

pub async fn lease_that_cannot_be_read_is_renewed_by_its_worker(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    let (bad, good) = (world.started(&bad).await, world.started(&good).await);
    world
        .plant(&format!("update queue set lease_until = '{BEHIND_ALL}' where run_id = {}", world.id(bad.run.id)))
        .await;
    let beats = world.store.heartbeat(&[bad.lease, good.lease], world.now() + LEASE).await.unwrap();
    assert_eq!(beats.len(), 2);
    assert_eq!(world.pending_work().await.lease, Some(world.now() + LEASE));
    for started in [&bad, &good] {
        world.succeed(started).await;
    }
}

/// A row of each kind that services find by an instant, with this text in its place. Answers the next fire of a good
/// schedule.
async fn plant_everywhere(world: &StoreHarness, text: &str) -> DateTime<Utc> {
    let poll = json!({
        "type": "condition", "poll": { "redis": { "source": "s", "key": "k" } }, "interval": "1m",
        "expression": "value < 500",
    });
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "2h" })).await);
    world.task(poll).await;
    let waiting = world.started(&good).await;
    let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(60) });
    let end = Finish { park, ..end_of(&waiting, RunState::WaitingForCompletion) };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
    world.started(&bad).await;
    world.store.post_delivery(&message("a")).await.unwrap();
    matching::task(world, json!({ "batch": { "size": 5, "wait": "1m" } })).await;
    matching::publish(world, vec![event("e1")]).await;
    let at = world.now().to_rfc3339();
    let run = world.id(waiting.run.id);
    let statements = [
        format!("update due set next_at = '{text}' where task_id = {} or kind = 'condition'", world.id(bad.id)),
        format!("update queue set lease_until = '{text}', deadline_at = '{text}' where state = 'started'"),
        format!("update parked set wake_at = '{text}'"),
        format!("update deliveries set next_at = '{text}'"),
        format!("update event_windows set closes_at = '{text}'"),
        format!(
            "insert into extractions (tenant_id, run_id, due_at, claims, queued_at) values ('a', {run}, '{text}', 0, '{at}')"
        ),
    ];
    for statement in statements {
        world.plant(&statement).await;
    }
    good.next_fire_at.expect("it waits for an instant")
}

async fn sees_all_in_an_hour(world: &StoreHarness, fire: DateTime<Utc>) {
    let hour = Some(world.now() + TimeDelta::hours(1));
    let expected = PendingWork {
        fire: Some(fire),
        poll: hour,
        lease: hour,
        deadline: hour,
        parked: hour,
        delivery: hour,
        window: hour,
        extraction: hour,
        ..PendingWork::default()
    };
    assert_eq!(world.pending_work().await, expected);
}

pub async fn unreadable_first_instants_are_set_aside_and_those_behind_them_are_read(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let fire = plant_everywhere(world, BEFORE_ALL).await;
    sees_all_in_an_hour(world, fire).await;
    let tables = ["tasks", "due", "queue", "parked", "deliveries", "event_windows", "extractions"];
    assert_eq!(tables.map(|table| told.count(table)), [1; 7], "each row once");
    let disabled = "select count(*) from tasks where status = 'disabled' and status_reason like '%can''t be read%'";
    assert_eq!(world.count(disabled).await, 1);
}

pub async fn services_read_on_where_the_first_instant_cannot_be_read(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let fire = plant_everywhere(world, BEHIND_ALL).await;
    let hour = Some(world.now() + TimeDelta::hours(1));
    let (store, now) = (&world.store, world.now());
    assert_eq!(store.next_window().await.unwrap(), hour);
    let again = format!("update event_windows set closes_at = '{NO_DAY}'");
    world.plant(&again).await;
    assert_eq!(store.next_window().await.unwrap(), hour);
    world.plant(&format!("update due set next_at = '{BEHIND_ALL}' where kind = 'condition'")).await;
    assert_eq!((store.next_poll().await.unwrap(), store.next_due().await.unwrap()), (hour, Some(fire)));
    world.plant(&format!("update due set next_at = '{BEHIND_ALL}' where kind = 'condition'")).await;
    assert_eq!(store.next_poll_after(now).await.unwrap(), hour);
    world.plant(&format!("update parked set wake_at = '{NO_DAY}'")).await;
    assert_eq!(store.next_overdue().await.unwrap(), hour);
    world.plant(&format!("update parked set wake_at = '{NO_DAY}', reason = 'approval'")).await;
    assert_eq!(store.next_waiting_at().await.unwrap(), hour);
    world.plant("update parked set reason = 'completion'").await;
    world.plant(&format!("update deliveries set next_at = '{BEHIND_ALL}'")).await;
    assert_eq!(store.next_delivery().await.unwrap(), hour);
}

pub async fn instants_behind_all_others_are_set_aside_by_the_rescuer(world: &StoreHarness) {
    if world.is_postgres() {
        assert_eq!(world.store.set_aside_instants().await.unwrap(), 0);
        return;
    }
    let told = ToldRows::of(world);
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    let lost = world.id(world.run_now(&bad).await);
    world.run_now(&good).await;
    for key in ["a", "b"] {
        world.store.post_delivery(&message(key)).await.unwrap();
    }
    world.store.publish_events(&[event("e1"), event("e2")]).await.unwrap();
    let leased = world.store.lease_events(WORKER, world.now() + LEASE, 9, "", &[]).await.unwrap();
    assert_eq!(leased.events.len(), 2);
    world.plant(&format!("update queue set run_at = '{BEHIND_ALL}' where run_id = {lost}")).await;
    world.plant(&format!("update deliveries set next_at = '{BEHIND_ALL}' where dedupe_key = 'a'")).await;
    let first = "seq = (select min(seq) from event_queue)";
    world.plant(&format!("update event_queue set lease_until = '{BEHIND_ALL}' where {first}")).await;
    // the others go on, and nobody meets these
    let started = take(world, false).await.starts.started;
    assert_eq!(tasks_of(&started), [Some(good.id)]);
    world.succeed(&started[0]).await;
    assert_eq!(world.store.due_deliveries(9).await.unwrap().len(), 1);
    assert_eq!(["queue", "deliveries", "event_queue"].map(|table| told.count(table)), [0; 3]);

    Rescuer::new(world.store.clone(), Duration::from_secs(45)).tick().await.unwrap();
    assert_eq!(world.store.set_aside_instants().await.unwrap(), 0, "none is left");
    assert_eq!(["queue", "deliveries", "event_queue"].map(|table| told.count(table)), [1; 3]);
    world.pass(3600);
    let started = take(world, false).await.starts.started;
    assert_eq!(tasks_of(&started), [Some(bad.id)]);
    world.succeed(&started[0]).await;
    assert_eq!(world.store.due_deliveries(9).await.unwrap().len(), 2);
    let leased = world.store.lease_events(WORKER, world.now() + LEASE, 9, "", &[]).await.unwrap();
    assert_eq!(leased.events.len(), 2);
}

pub async fn unreadable_instant_of_a_delivery_is_passed_over_in_its_line(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    for key in ["a", "b", "c"] {
        world.store.post_delivery(&message(key)).await.unwrap();
    }
    let id = async |key: &str| world.store.find_delivery(&Scope::Every, "a", key).await.unwrap().id;
    let (b, c) = (id("b").await, id("c").await);
    world.plant(&format!("update deliveries set next_at = '{NO_DAY}' where dedupe_key = 'a'")).await;
    let first = world.store.next_queue("", None).await.unwrap().expect("the first that can be read");
    assert!([b, c].contains(&first.id));
    world.plant(&format!("update deliveries set next_at = '{BEFORE_ALL}' where dedupe_key = 'b'")).await;
    let due = world.store.due_deliveries(9).await.unwrap();
    assert_eq!(due.iter().map(|due| due.id).collect::<Vec<_>>(), [c]);
    assert_eq!(told.count("deliveries"), 2);
    world.pass(3600);
    assert_eq!(world.store.due_deliveries(9).await.unwrap().len(), 3, "they are looked at again");
}

pub async fn unreadable_number_of_a_quota_keeps_no_run_from_being_taken(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    for tenant in ["a", "b"] {
        let less = Overrides { concurrent_runs: Some(7), ..Overrides::default() };
        world.store.put_quotas(tenant, &less, "token:admin").await.unwrap();
        let task = world.task_with(tenant, json!({ "interval": "1h" }), json!({})).await;
        world.run_now(&task).await;
    }
    world.plant("update tenant_quotas set concurrent_runs = 'many' where tenant_id = 'a'").await;
    let limits = RunLimits { per_tenant: Some(1), total: None, own: true };
    assert_eq!(take_with(world, true, limits).await.starts.started.len(), 2);
}

pub async fn unreadable_rate_of_a_throttle_begins_anew(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let task = matching::task(world, json!({ "throttle": { "limit": 1, "per": "1h" } })).await;
    matching::publish(world, vec![event("e1")]).await;
    world.plant(&format!("update throttles set arrival_at = '{BEHIND_ALL}'")).await;
    assert_eq!(matching::publish(world, vec![event("e2"), event("e3")]).await.recorded, 1);
    assert_eq!(world.runs_of(&task).await.len(), 3);
    assert_eq!(told.count("throttles"), 1);
}

pub async fn unreadable_window_closes_with_its_events_and_the_next_one_begins(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let task = matching::task(world, json!({ "batch": { "size": 5, "wait": "1m" } })).await;
    matching::publish(world, vec![event("e1"), event("e2")]).await;
    world.plant(&format!("update event_windows set opened_at = '{BEHIND_ALL}'")).await;
    let recorded = matching::publish(world, vec![event("e3")]).await;
    assert_eq!((recorded.recorded, recorded.collected), (1, 1));
    assert_eq!(world.runs_of(&task).await[0].event_ids, ["e1", "e2"]);
    assert_eq!(told.count("event_windows"), 1);
}

pub async fn unreadable_event_of_a_window_is_left_out_and_the_other_windows_close(world: &StoreHarness) {
    let told = ToldRows::of(world);
    let batch = json!({ "batch": { "size": 5, "wait": "1m" } });
    let (bad, good) = (matching::task(world, batch.clone()).await, matching::task(world, batch.clone()).await);
    let (lost, odd) = (matching::task(world, batch.clone()).await, matching::task(world, batch).await);
    matching::publish(world, vec![event("e1"), event("e2")]).await;
    if !world.is_postgres() {
        let of = |task: Uuid| format!("update window_events set body = '{{' where task_id = {}", world.id(task));
        world.plant(&format!("{} and seq = 1", of(bad.id))).await;
        world.plant(&of(lost.id)).await;
    }
    let mut spec = serde_json::to_value(&odd.spec).unwrap();
    spec["max_runs"] = json!("many");
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(odd.id))).await;
    world.pass(60);
    let due = world.store.due_windows(world.now(), 9).await.unwrap();
    assert_eq!(due.len(), 4);
    let closed = world.store.close_windows(&due, world.now(), WORKER, 9).await.unwrap();
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap(), []);
    assert_eq!(world.runs_of(&good).await[0].event_ids, ["e1", "e2"]);
    assert_eq!(world.store.next_window().await.unwrap(), Some(world.now() + TimeDelta::hours(1)), "the others");
    match world.is_postgres() {
        true => assert_eq!((closed.recorded, told.count("event_windows")), (3, 1)),
        false => {
            assert_eq!((closed.recorded, told.count("event_windows"), told.count("window_events")), (2, 2, 2));
            assert_eq!(world.runs_of(&bad).await[0].event_ids, ["e2"]);
            assert_eq!(world.runs_of(&lost).await, []);
        }
    }
    assert_eq!(world.runs_of(&odd).await, []);
    let spec = serde_json::to_value(&odd.spec).unwrap();
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(odd.id))).await;
}

pub async fn unreadable_count_of_an_event_task_disables_it_and_the_others_fire(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let (bad, good) = (matching::task(world, json!({})).await, matching::task(world, json!({})).await);
    world.plant(&format!("update due set fire_count = 'many' where task_id = {}", world.id(bad.id))).await;
    assert_eq!(matching::publish_anew(world, vec![event("e1")]).await.recorded, 1);
    assert_eq!(world.runs_of(&good).await.len(), 1);
    let status = format!("select count(*) from tasks where status = 'disabled' and id = {}", world.id(bad.id));
    assert_eq!((world.count(&status).await, told.count("tasks")), (1, 1));
    world.plant("update due set fire_count = 0").await;
    assert_eq!(world.get_task(good.id).await.status, TaskStatus::Active);
}

pub async fn event_task_that_is_no_json_is_out_of_the_index_and_the_others_are_in_it(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    let (bad, good) = (matching::task(world, json!({})).await, matching::task(world, json!({})).await);
    // they read what is written, and would refuse it
    for trigger in ["event_tasks_left", "event_tasks_joined"] {
        world.plant(&format!("drop trigger {trigger}")).await;
    }
    world.plant(&format!("update tasks set spec = '{{' where id = {}", world.id(bad.id))).await;
    for _ in 0..2 {
        let changes = world.store.event_tasks(event_shard("a"), 0, 10, false).await.unwrap();
        assert_eq!(changes.live.iter().map(|task| task.task_id).collect::<Vec<_>>(), [good.id]);
        assert_eq!(changes.gone, [bad.id]);
        let own = world.store.event_tasks_of(&tenant_of("a"), None, 9).await.unwrap();
        assert_eq!(own.iter().map(|task| task.task_id).collect::<Vec<_>>(), [good.id]);
    }
    assert_eq!(told.count("tasks"), 1);
    let spec = serde_json::to_value(&bad.spec).unwrap();
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(bad.id))).await;
}

pub async fn event_that_is_no_text_is_left_to_its_lease_and_the_others_are_handed_out(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    world.store.publish_events(&[event("e1"), event("e2")]).await.unwrap();
    world.plant("update events set body = x'ff' where seq = (select min(seq) from events)").await;
    for _ in 0..2 {
        let leased = world.store.lease_events(WORKER, world.now() + LEASE, 9, "", &[]).await.unwrap();
        assert_eq!(leased.events.iter().map(|entry| entry.body.contains("e2")).collect::<Vec<_>>(), [true]);
        world.pass(60);
    }
    assert_eq!(told.count("event_queue"), 1);
}

pub async fn unreadable_dead_letter_is_out_of_the_list_and_hides_no_other(world: &StoreHarness) {
    if world.is_postgres() {
        return;
    }
    let told = ToldRows::of(world);
    world.store.publish_events(&["e1", "e2", "e3", "e4"].map(event)).await.unwrap();
    for seq in 1..=4 {
        let letter = reveille::store::NewDeadLetter { seq, event: None, body: "{", error: "no JSON", deliveries: 5 };
        world.store.dead_letter_event(letter).await.unwrap();
    }
    let page = async |before: Option<Uuid>, limit: i64| {
        let filter = StoredDeadLetterFilter { before, limit, ..StoredDeadLetterFilter::default() };
        let page = world.store.list_dead_letters(&Scope::Every, &filter).await.unwrap();
        (page.rows.into_iter().map(|letter| letter.id).collect::<Vec<_>>(), page.behind)
    };
    let letters = page(None, 9).await.0;
    world.plant(&format!("update dead_letters set created_at = '{BEHIND_ALL}' where entry in ('1', '3')")).await;
    for _ in 0..2 {
        assert_eq!(page(None, 9).await, (vec![letters[0], letters[2]], None));
    }
    assert_eq!(page(None, 2).await, (vec![letters[0]], Some(letters[1])), "the list goes on behind it");
    assert_eq!(page(None, 3).await, (vec![letters[0], letters[2]], Some(letters[2])), "and behind the last one read");
    assert_eq!(page(Some(letters[0]), 1).await, (vec![], Some(letters[1])), "a page of others ends no list");
    assert_eq!(page(Some(letters[1]), 1).await, (vec![letters[2]], None));
    assert_eq!(told.count("dead_letters"), 2);
}
