//! Steps of the services for each delivery, poll, window, completion and question, and for each call of a tool. The
//! cases of `plans` count what they read.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{ApprovalChoice, ApprovedCallStart, CallOutcome};
use reveille::domain::credential::OAuth;
use reveille::domain::event::Event;
use reveille::domain::notification::run_notification::NotifiedOutcome;
use reveille::domain::notification::{
    DeliveryClaim, DeliveryReport, DeliveryState, HoldReason, Mark, MessageKind, NewDelivery, ReportedFate,
};
use reveille::domain::run::{RunEvent, RunState};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::domain::trigger::zone::ZoneRelease;
use reveille::store::{
    ApprovalLink, Cancelled, DecisionOutcome, Finish, NewDeadLetter, Park, PollClaim, RecordedPoll, RunCompletion,
    RunLimits, StartedRun, TakeRequest, WaitingOutcome, WaitingUpdate,
};
use serde_json::json;
use uuid::Uuid;

use super::{BATCH, STORED, plant};
use crate::conformance::alerts::tells;
use crate::conformance::asked::{LIMIT, answer, park, question};
use crate::conformance::conditions::{condition, step};
use crate::conformance::tool_pins::seen;
use crate::conformance::world::{LEASE, StoreHarness, WORKER, end_of, new_task, only, tenant_of};
use crate::conformance::{credentials, grants, matching};

const EVERY: &Scope = &Scope::Every;
/// How long a started run is left alone after its time limit.
const GRACE: TimeDelta = TimeDelta::seconds(10);

/// Each step once, on rows of its own.
pub async fn every_service(world: &StoreHarness) {
    let tenant = format!("t-{}", new_id(world.now()));
    let runs = <[StartedRun; 9]>::try_from(started(world, 9).await).unwrap();
    let [told, lost, stopped, kept, overdue, asks, goes_on, held, calls] = runs;
    look(world).await;
    rewrite_zones(world, &told).await;
    deliver(world, &tenant, &calls).await;
    digest(world, &tenant, &calls).await;
    interrupt(world, &tenant).await;
    poll(world, &tenant, &calls).await;
    collect(world).await;
    complete(world, &kept, &overdue).await;
    ask(world, &asks).await;
    go_on(world, &goes_on).await;
    undo(world, &held).await;
    call(world, &tenant, &calls).await;
    tell(world, &tenant, &told).await;
    tell_of_tools(world).await;
    rescue(world, &lost).await;
    stop(world, &[stopped, calls]).await;
}

/// Rewrites a task that a release has planned which is set aside.
async fn rewrite_zones(world: &StoreHarness, one: &StartedRun) {
    let id = one.run.task_id.unwrap();
    let before = Uuid::from_u128(id.as_u128() - 1);
    world.plant(&format!("update tasks set zone_database = '2999a' where id = '{id}'")).await;
    let zones = ZoneRelease::parse("2026f").unwrap();
    world.store.rewrite_tasks_of_zones("2999a", &zones, before, 1).await.unwrap();
}

/// The looks of services that have nothing to do: on tables that are empty, too.
pub async fn look(world: &StoreHarness) {
    let (store, now) = (&world.store, world.now());
    let zones = ZoneRelease::parse("2026f").unwrap();
    store.rewrite_tasks_of_zones("2999a", &zones, Uuid::nil(), BATCH).await.unwrap();
    store.wake_parked(now, BATCH).await.unwrap();
    store.due_deliveries(BATCH).await.unwrap();
    for tenant in [None, Some("tenant-5")] {
        store.next_queue("email", tenant).await.unwrap();
    }
    store.next_delivery().await.unwrap();
    assert_eq!(store.lose_receipts(now - TimeDelta::minutes(1), BATCH).await.unwrap(), 0);
    store.next_poll().await.unwrap();
    store.due_windows(now, BATCH).await.unwrap();
    store.next_window().await.unwrap();
    assert_eq!(store.due_releases(now, BATCH).await.unwrap(), []);
    store.overdue_completions(now, BATCH).await.unwrap();
    store.next_overdue().await.unwrap();
    store.waiting_for_people(now, BATCH).await.unwrap();
    store.next_waiting_at().await.unwrap();
    store.resume_next(BATCH).await.unwrap();
    assert_eq!(store.take_over_expired(now, GRACE, now + LEASE, BATCH).await.unwrap(), []);
}

/// Rows that these steps have nothing to do with: of each kind as many as `plans` stores of others.
pub async fn store_for_services(world: &StoreHarness) {
    let now = format!("'{}'::timestamptz", world.now().to_rfc3339());
    let each = format!("generate_series(1, {STORED}) n");
    let statements = [
        // messages that are due, have no report yet, or have failed
        format!(
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, fallback, state, next_at,
                                     sent_at, created_at)
             select gen_random_uuid(), 'tenant-' || n % 100, 'tenant-' || n % 100, 'email', n || state, 'message', '[]',
                    state, case when state = 'pending' then {now} end, case when state = 'sent' then {now} end, {now}
               from {each} cross join unnest(array['pending', 'sent', 'failed']) as state"
        ),
        format!("insert into interruptions (tenant_id, day, sent) select 'tenant-' || n, '2026-03-01', 1 from {each}"),
        format!(
            "insert into live_messages (id, tenant_id, body, has_approval_link, created_at)
             select gen_random_uuid(), 'tenant-' || n % 100, '\"\"', false, {now} from {each}"
        ),
        format!("insert into task_alerts (task_id, tenant_id) select gen_random_uuid(), 'tenant-' || n from {each}"),
        format!(
            "insert into condition_state (task_id, version, edges, body, updated_at)
             select gen_random_uuid(), 1, 1, '{{}}', {now} from {each}"
        ),
        format!(
            "insert into event_windows (id, task_id, tenant_id, kind, key, opened_at, closes_at, events)
             select gen_random_uuid(), gen_random_uuid(), 'tenant-' || n % 100, 'debounce', 'k', {now},
                    {now} + interval '1 hour', 1
               from {each}"
        ),
        format!(
            "insert into dedups (task_id, key, event_key, expires_at)
             select gen_random_uuid(), 'k', 'e', {now} + interval '1 hour' from {each}"
        ),
        format!(
            "insert into event_tasks (task_id, shard, version, live, changed_at)
             select gen_random_uuid(), 1000, n, true, {now} from {each}"
        ),
        // runs that wait for people or a completion: a few are due, four of each tenant
        format!(
            "insert into parked (run_id, task_id, tenant_id, reason, wake_at)
             select id, task_id, 'waits-' || n / 4, case when n % 2 = 0 then 'approval' else 'completion' end, {now}
               from (select id, task_id, row_number() over () as n from runs where tenant_id = 'z' limit 400) ended"
        ),
        format!(
            "insert into parked (run_id, task_id, tenant_id, reason, wake_at)
             select gen_random_uuid(), gen_random_uuid(), 'waits-' || n % 100, reason, {now} + interval '1 hour'
               from {each} cross join unnest(array['approval', 'completion']) as reason"
        ),
        format!(
            "insert into approvals (id, batch_id, run_id, task_id, tenant_id, turn, call_id, tool, digest, proposal,
                                    status, created_at, expires_at)
             select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'tenant-' || n % 100, 1,
                    'c', 't', '', '{{}}', 'pending', {now}, {now} + interval '1 hour'
               from {each}"
        ),
        format!(
            "insert into approval_links (token_hash, batch_id, tenant_id, recipient, channel, expires_at)
             select sha256(convert_to(cast(n as text), 'UTF8')), gen_random_uuid(), 'tenant-' || n, 'tenant-' || n,
                    'email', {now} + interval '1 hour'
               from {each}"
        ),
        format!(
            "insert into grants (id, tenant_id, task_id, tool, epoch, arguments, definition, created_at, created_by,
                                 expires_at)
             select gen_random_uuid(), 'tenant-' || n % 100, gen_random_uuid(), 'mail.send', 1, '{{}}', 'd', {now}, 't',
                    {now} + interval '1 hour'
               from {each}"
        ),
        format!(
            "insert into grant_uses (run_id, turn, call_id, grant_id, at)
             select gen_random_uuid(), 1, 'c1', gen_random_uuid(), {now} from {each}"
        ),
        format!(
            "insert into credentials (tenant_id, service, account, id, sealed, generation, key_id, hosts, status,
                                      version, created_at, updated_at)
             select 'tenant-' || n, 'google', 'work', gen_random_uuid(), 'v1', 1, 'old', '[]', 'active', 1, {now}, {now}
               from {each}"
        ),
        format!(
            "insert into credential_uses (id, tenant_id, service, account, at, run_id, used_by, host, outcome)
             select gen_random_uuid(), 'tenant-' || n % 100, 'google', 'work', {now}, gen_random_uuid(), 't', '', 'used'
               from {each}"
        ),
        // tasks that are to go on: thousands of one tenant, and one of each of ten others
        format!(
            "insert into resumptions (task_id, tenant_id, service, account)
             select gen_random_uuid(), case when n % 1000 = 0 then 'resumes-' || n else 'many' end, 'google', 'work'
               from {each}"
        ),
        // tasks of other tenants that name other tools
        format!(
            "insert into task_credentials (task_id, tenant_id, service, account)
             select gen_random_uuid(), 'tenant-' || n, 'tool:other.t' || n, '' from {each}"
        ),
        format!(
            "insert into task_state (task_id, tenant_id, name, value, updated_at)
             select gen_random_uuid(), 'tenant-' || n, 'seen', '1', {now} from {each}"
        ),
    ];
    plant(world, &statements).await;
}

/// Runs of as many new tasks, which have started.
async fn started(world: &StoreHarness, count: usize) -> Vec<StartedRun> {
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        let task = world.task(json!({"interval": "1h"})).await;
        ids.push(world.run_now(&task).await);
    }
    start(world, &ids).await
}

/// Starts these ready runs, before all others.
async fn start(world: &StoreHarness, ids: &[Uuid]) -> Vec<StartedRun> {
    for id in ids {
        world.plant(&format!("update queue set priority = 9 where run_id = '{id}'")).await;
    }
    let (now, lease_until, limits) = (world.now(), world.now() + LEASE, RunLimits::default());
    let limit = ids.len() as i64;
    let take = TakeRequest { worker: WORKER, now, ahead: now, lease_until, limit, fair: None, limits, shares: None };
    let started = world.store.take_runs(&take).await.unwrap().starts.started;
    assert!(started.len() == ids.len() && started.iter().all(|started| ids.contains(&started.run.id)), "{started:?}");
    started
}

/// A message about a run, with a key of its own.
fn message(world: &StoreHarness, tenant: &str, about: &StartedRun) -> NewDelivery {
    NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: "email".into(),
        fallback: vec!["webhook".into()],
        dedupe_key: new_id(world.now()).to_string(),
        run_id: Some(about.run.id),
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some("Hello".into()),
        text: Some("Good morning".into()),
    }
}

/// As many new messages, each about to be sent.
async fn claimed(world: &StoreHarness, tenant: &str, about: &StartedRun, count: usize) -> Vec<DeliveryClaim> {
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        let message = message(world, tenant, about);
        world.store.post_delivery(&message).await.unwrap();
        ids.push(world.store.find_delivery(EVERY, tenant, &message.dedupe_key).await.unwrap().id);
    }
    let claims = world.store.claim_deliveries(&ids, world.now() + LEASE).await.unwrap();
    assert_eq!(claims.len(), count);
    claims
}

/// Each outcome of an attempt, and what follows: a fall-back, a provider's report, a person's retry, silence.
async fn deliver(world: &StoreHarness, tenant: &str, about: &StartedRun) {
    let (store, later) = (&world.store, world.now() + TimeDelta::hours(1));
    let claims = claimed(world, tenant, about, 7).await;
    let error = || "mailbox full".to_owned();
    let marks = [
        Mark::Delivered { provider_id: None },
        Mark::Sent { provider_id: Some("SM1".into()) },
        Mark::Retry { at: later, error: error(), asked: false, maybe_delivered: false },
        Mark::Wait { at: later, hold_reason: None, error: None },
        Mark::Failed { error: error(), fall_back: claims[4].delivery.fall_back().map(Box::new) },
        Mark::Failed { error: error(), fall_back: None },
        Mark::Unknown { error: error(), fall_back: None },
    ];
    for (claim, mark) in claims.iter().zip(&marks) {
        assert!(store.referred(&claim.delivery).await.unwrap().run.is_some());
        store.mark_delivery(claim, mark).await.unwrap();
    }
    let report = DeliveryReport { provider_id: Some("SM1".into()), fate: ReportedFate::Failed { why: error() } };
    let settled = store.receive_receipt(claims[1].delivery.id, "email", &report).await.unwrap();
    assert_eq!(settled, DeliveryState::Failed);
    store.retry_delivery(EVERY, claims[5].delivery.id, |_| Ok(None)).await.unwrap();
    let [claim] = <[DeliveryClaim; 1]>::try_from(claimed(world, tenant, about, 1).await).unwrap();
    store.mark_delivery(&claim, &Mark::Sent { provider_id: None }).await.unwrap();
    assert!(store.lose_receipts(world.now(), 2).await.unwrap() > 0);
}

/// Messages that are held for a digest: it falls back, and they come to what the next one comes to.
async fn digest(world: &StoreHarness, tenant: &str, about: &StartedRun) {
    let (store, now) = (&world.store, world.now());
    let claims = claimed(world, tenant, about, 2).await;
    for claim in &claims {
        let digest = Box::new(claim.delivery.digest(now));
        let mark = Mark::Hold { hold_reason: HoldReason::Budget, digest, at: now };
        store.mark_delivery(claim, &mark).await.unwrap();
    }
    let key = claims[0].delivery.digest(now).dedupe_key;
    let digest = store.find_delivery(EVERY, tenant, &key).await.unwrap();
    assert_eq!(store.digest_members(EVERY, digest.id, 9).await.unwrap().1, 2);
    let claims = store.claim_deliveries(&[digest.id], now + LEASE).await.unwrap();
    let fall_back = claims[0].delivery.fall_back().map(Box::new);
    store.mark_delivery(&claims[0], &Mark::Failed { error: "no".into(), fall_back }).await.unwrap();
    let (messages, count) = store.digest_messages(&claims[0].delivery, 9).await.unwrap();
    assert_eq!(count, 2);
    let next = messages[0].digest_id.expect("the next digest");
    let claims = store.claim_deliveries(&[next], now + LEASE).await.unwrap();
    store.mark_delivery(&claims[0], &Mark::Delivered { provider_id: None }).await.unwrap();
}

/// The recipient of a message, its interruptions of a day, and its sessions.
async fn interrupt(world: &StoreHarness, tenant: &str) {
    let (store, now, owner) = (&world.store, world.now(), tenant_of(tenant));
    assert!(store.find_recipient(EVERY, tenant).await.unwrap().is_none());
    assert!(store.count_interruption(tenant, "2026-03-01", Some(2)).await.unwrap());
    store.uncount_interruption(tenant, "2026-03-01").await.unwrap();
    let [taken, withdrawn] = [new_id(now), new_id(now)];
    for id in [taken, withdrawn] {
        store.put_live_message(&owner, id, false, "v1").await.unwrap();
    }
    assert_eq!(store.live_messages(&owner, now, 9).await.unwrap().len(), 2);
    assert!(store.live_message(&owner, taken).await.unwrap().is_some());
    assert!(store.take_live_message(&owner, taken).await.unwrap().is_some());
    assert!(store.withdraw_live_message(&owner, withdrawn).await.unwrap());
}

/// Polls that are claimed: one fires, one is the last, one is put off, and one can't be read.
async fn poll(world: &StoreHarness, tenant: &str, about: &StartedRun) {
    let (store, now) = (&world.store, world.now());
    let due = |_| {
        let (task, _) = new_task("a", condition(json!({})), json!({}), now);
        (Task { next_fire_at: Some(now), ..task }, Some(now))
    };
    let tasks: Vec<_> = (0..4).map(due).collect();
    assert!(store.create_tasks(&tasks).await.unwrap().iter().all(|made| *made));
    let ids: Vec<Uuid> = tasks.iter().map(|(task, _)| task.id).collect();
    let claims = store.claim_polls(&ids, now, now + LEASE).await.unwrap();
    let [fires, ends, late, unreadable] = <[PollClaim; 4]>::try_from(claims).unwrap();
    let (polled, notice) = (step(&fires, Ok(json!(400)), now), message(world, tenant, about));
    let fired = store.record_poll(&fires, &polled, Some(polled.next_poll_at), Some(&notice), now).await.unwrap();
    assert!(matches!(fired, RecordedPoll::Fired(_)), "{fired:?}");
    let polled = step(&ends, Ok(json!(900)), now);
    assert_eq!(store.record_poll(&ends, &polled, None, None, now).await.unwrap(), RecordedPoll::Quiet);
    assert!(store.postpone_poll(&late, now + TimeDelta::hours(1)).await.unwrap());
    assert!(store.disable_condition(&unreadable, "it can't be read").await.unwrap());
    assert_eq!(store.condition_states(EVERY, &ids).await.unwrap().len(), 2);
}

/// Events that windows collect, rules remember and a paused task buffers; the windows close, and the task is resumed.
async fn collect(world: &StoreHarness) {
    let (store, later) = (&world.store, world.now() + TimeDelta::minutes(2));
    let source = format!("mill-{}", new_id(world.now()));
    for rule in [
        json!({"source": source, "batch": {"size": 2, "wait": "1m"}}),
        json!({"source": source, "debounce": {"quiet": "30s"}}),
        json!({"source": source, "dedup": {"key": "event.id", "window": "1h"}}),
    ] {
        matching::task(world, rule).await;
    }
    let paused = matching::paused(world, json!({"source": source, "buffer_while_paused": true})).await;
    let event = |_| {
        let id = new_id(world.now()).to_string();
        let event = json!({"specversion": "1.0", "id": id, "source": source, "type": "order", "tenantid": "a"});
        Event::try_from(event).unwrap()
    };
    let recorded = matching::publish(world, (0..3).map(event).collect()).await;
    assert!(recorded.recorded > 0 && recorded.collected > 0, "{recorded:?}");
    let in_turn = store.due_windows(later, 1).await.unwrap();
    assert_eq!(in_turn.len(), 1, "one of the tenant whose turn it is, or the earliest");
    let due = store.due_windows(later, BATCH).await.unwrap();
    assert!(due.len() >= 2, "{due:?}");
    store.close_windows(&due, later, WORKER, 0).await.unwrap();
    store.change_task(EVERY, paused.id, &TaskChange::Resume).await.unwrap();
    assert_eq!(store.due_releases(later, 1).await.unwrap().len(), 1, "in turn");
    while !matching::release(world, None).await.is_empty() {}
    store.take_events("a", 1).await.unwrap();
    let letter = NewDeadLetter { seq: i64::MAX, event: None, body: "x", error: "it can't be read", deliveries: 3 };
    store.dead_letter_event(letter).await.unwrap();
}

/// Runs that wait for a completion: one is completed and hands its slot on, one is overdue and expires.
async fn complete(world: &StoreHarness, kept: &StartedRun, overdue: &StartedRun) {
    let (store, now) = (&world.store, world.now());
    let parked = |started: &StartedRun, until| Finish {
        park: Some(Park::Completion { until }),
        ..end_of(started, RunState::WaitingForCompletion)
    };
    let ends = [
        Finish { overlap_counts_waiting: true, ..parked(kept, now + TimeDelta::hours(1)) },
        parked(overdue, now - TimeDelta::minutes(1)),
    ];
    assert_eq!(store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!(store.overdue_completions(now, 1).await.unwrap().len(), 1);
    let task = world.get_task(kept.run.task_id.unwrap()).await;
    let succeeded = NotifiedOutcome::Success { wanted: true, hash: Some(vec![1; 32]) };
    let completed = RunCompletion {
        event: RunEvent::Succeed,
        output: Some("Booked.".into()),
        error: None,
        reason: None,
        tells: tells(&task, kept.run.id, succeeded),
    };
    let expired = RunCompletion { event: RunEvent::Expire, output: None, tells: None, ..completed.clone() };
    store.complete_run(&only("a"), kept.run.id, &completed, now, None).await.unwrap();
    store.complete_run(EVERY, overdue.run.id, &expired, now, None).await.unwrap();
}

/// Questions that are put, looked after, linked to and answered; the call is made, another question takes the place of
/// one, and the run is cancelled.
async fn ask(world: &StoreHarness, started: &StartedRun) {
    let (store, now, id) = (&world.store, world.now(), started.run.id);
    let (first, second) = (question(world, started, "c1"), question(world, started, "c2"));
    park(world, started, &[(first.clone(), None), (second.clone(), None)], &[]).await;
    assert_eq!(store.approvals_of_turn(id, 1).await.unwrap().len(), 2);
    let later = now + TimeDelta::seconds(LIMIT);
    assert_eq!(store.waiting_for_people(later, 1).await.unwrap().len(), 1);
    let update = WaitingUpdate { wake_at: later, deliveries: vec![], if_expired: vec![] };
    assert_eq!(store.settle_waiting(id, &update).await.unwrap(), WaitingOutcome::Waits);
    let mut hash = [0; 32];
    hash[..16].copy_from_slice(id.as_bytes());
    let link = ApprovalLink {
        batch_id: first.batch_id,
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        expires_at: later,
    };
    store.remember_link(&hash, &link).await.unwrap();
    assert_eq!(store.tenant_of_batch(first.batch_id).await.unwrap().as_deref(), Some("a"));
    assert_eq!(store.approvals_of_batch("a", first.batch_id).await.unwrap().len(), 2);
    assert_eq!(store.approvals_by_link(&hash, now).await.unwrap().1.len(), 2);
    for (asked, choice) in [(&second, ApprovalChoice::Cancel), (&first, ApprovalChoice::Approve)] {
        let decided = store.decide_approval(&only("a"), asked.id, &answer(choice, asked, "token:t")).await.unwrap();
        assert!(matches!(decided, DecisionOutcome::Done(_)), "{decided:?}");
    }
    let again = start(world, &[id]).await.remove(0);
    assert_eq!(
        store.mark_execution_started(again.lease, first.id, &first.digest).await.unwrap(),
        ApprovedCallStart::Now
    );
    let outcome = CallOutcome { is_error: false, text: "sent".into() };
    store.note_outcome(first.id, &outcome).await.unwrap();
    park(world, &again, &[(question(world, &again, "c2"), Some(second.id))], &[]).await;
    assert_eq!(store.cancel_run(EVERY, id, "no").await.unwrap(), Cancelled::Now);
}

/// A question that is answered while its run is being parked for it: the run goes on.
async fn go_on(world: &StoreHarness, started: &StartedRun) {
    let asked = question(world, started, "c1");
    park(world, started, &[(asked.clone(), None)], &[]).await;
    let approve = answer(ApprovalChoice::Approve, &asked, "token:t");
    world.store.decide_approval(EVERY, asked.id, &approve).await.unwrap();
    let again = start(world, &[started.run.id]).await.remove(0);
    park(world, &again, &[], &[asked.id]).await;
    world.succeed(&start(world, &[started.run.id]).await.remove(0)).await;
}

/// A call that is approved, held, and stopped.
async fn undo(world: &StoreHarness, started: &StartedRun) {
    let mut asked = question(world, started, "c1");
    asked.proposal.undo_seconds = Some(60);
    park(world, started, &[(asked.clone(), None)], &[]).await;
    for choice in [ApprovalChoice::Approve, ApprovalChoice::Cancel] {
        let decided = world.store.decide_approval(EVERY, asked.id, &answer(choice, &asked, "token:t")).await.unwrap();
        assert!(matches!(decided, DecisionOutcome::Done(_)), "{decided:?}");
    }
    world.succeed(&start(world, &[started.run.id]).await.remove(0)).await;
}

/// Reads and writes of a tool or a step beside the transcript: the state of its task, a grant, a credential.
async fn call(world: &StoreHarness, tenant: &str, started: &StartedRun) {
    let (store, now, owner) = (&world.store, world.now(), tenant_of("a"));
    let task_id = started.run.task_id.unwrap();
    store.put_task_state(&owner, task_id, "seen", &json!(1), now).await.unwrap();
    assert_eq!(store.task_state(&owner, task_id).await.unwrap().len(), 1);
    store.delete_task_state(&owner, task_id, "seen").await.unwrap();
    let (task, _) = grants::granted(world, |_| ()).await;
    assert!(grants::used(world, &task, json!({"to": "ann"})).await.is_some());
    let (id, at) = (new_id(now), now.to_rfc3339());
    let credential = format!(
        "insert into credentials (tenant_id, service, account, id, sealed, generation, key_id, hosts, status, version,
                                  created_at, updated_at)
         values ('{tenant}', 'google', 'work', '{id}', 'v1', 1, 'old', '[]', 'active', 1, '{at}', '{at}')"
    );
    world.plant(&credential).await;
    assert!(store.find_credential(EVERY, tenant, "google", "work").await.unwrap().is_some());
    let used = credentials::used(tenant, now);
    store.note_credential_use(&used).await.unwrap();
    store.mark_credential_use(used.id, "refused").await.unwrap();
    let (run, since) = (used.run_id.unwrap(), now - TimeDelta::hours(1));
    assert_eq!(store.credentials_used_by(tenant, run, since, 9).await.unwrap().len(), 1);
    let token = store.claim_refresh(id, 1, now + LEASE).await.unwrap().expect("the right to renew it");
    store.release_refresh(id, token).await.unwrap();
    assert!(store.note_missed_scopes(id, 1, &OAuth::default()).await.unwrap());
}

/// The end of a run that people hear of, and a notice about its task.
async fn tell(world: &StoreHarness, tenant: &str, started: &StartedRun) {
    let store = &world.store;
    let task = world.get_task(started.run.task_id.unwrap()).await;
    let failed = NotifiedOutcome::Failure { code: "away".into() };
    let end = Finish {
        tells: tells(&task, started.run.id, failed),
        deliveries: vec![message(world, tenant, started)],
        ..end_of(started, RunState::Failed)
    };
    assert_eq!(store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    assert!(!store.pause_if_failing(task.id, 3).await.unwrap());
    assert!(!store.is_missing_reported(task.id, "steps").await.unwrap());
    assert!(store.report_missing(task.id, "steps", &message(world, "a", started)).await.unwrap());
}

/// A tool of a server that has changed, and the owners of tasks that name it.
async fn tell_of_tools(world: &StoreHarness) {
    let store = &world.store;
    let server = format!("s-{}", new_id(world.now()));
    for description in ["one", "two"] {
        store.judge_tools(&server, &[seen("t", description)]).await.unwrap();
    }
    let untold = store.untold_tool_changes(BATCH).await.unwrap();
    let changed = untold.iter().find(|untold| untold.server == server).expect("a change");
    let tool = format!("{server}.t");
    let action = json!({"instruction": "say hello", "config": {"tools": [tool]}});
    world.task_with("a", json!({"interval": "1h"}), json!({"action": action})).await;
    let owner = store.next_owner_of_tool(&tool, None).await.unwrap().expect("an owner");
    assert_eq!(store.next_owner_of_tool(&tool, Some(&owner.tenant)).await.unwrap(), None);
    store.mark_tool_told(&server, "t", &changed.hash).await.unwrap();
}

/// A run of a worker that died.
async fn rescue(world: &StoreHarness, lost: &StartedRun) {
    let (store, now) = (&world.store, world.now());
    store.heartbeat(&[lost.lease], now - TimeDelta::minutes(1)).await.unwrap();
    let stranded = store.take_over_expired(now, GRACE, now + LEASE, BATCH).await.unwrap();
    let taken = stranded.iter().find(|stranded| stranded.run.id == lost.run.id).expect("it is taken over");
    let end = Finish { lease: taken.lease, crashed: true, ..end_of(lost, RunState::Failed) };
    assert_eq!(store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
}

/// Runs under way that somebody cancels.
async fn stop(world: &StoreHarness, started: &[StartedRun]) {
    let store = &world.store;
    for started in started {
        assert_eq!(store.cancel_run(EVERY, started.run.id, "no").await.unwrap(), Cancelled::Asked);
    }
    assert_eq!(store.cancels_asked(WORKER).await.unwrap().len(), started.len());
    let ends: Vec<Finish> = started.iter().map(|started| end_of(started, RunState::Cancelled)).collect();
    assert_eq!(store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
}
