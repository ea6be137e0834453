//! Runs that wait for people or a completion and count as running: the slot is theirs until they end, however they do.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::approval::{Approval, ApprovalChoice, ApprovalStatus};
use reveille::domain::run::{RunEvent, RunState};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::store::{
    AuditFilter, Cancelled, DecisionOutcome, DecisionRefusal, Finish, OverlapOutcome, Park, RunCompletion, StartedRun,
    Starts, StoreError, WaitingOutcome, WaitingUpdate,
};
use serde_json::json;
use uuid::Uuid;

use super::asked::{LIMIT, answer, parked, question};
use super::world::{LEASE, StoreHarness, end_in_log, end_of, leases, spec};

on_both!(
    run_that_waits_for_a_completion_keeps_the_slot_until_it_is_completed_or_expires,
    answered_run_goes_on_with_the_slot_and_hands_it_on_at_its_end,
    expired_run_hands_the_slot_on,
    run_cancelled_while_it_waits_hands_the_slot_on,
    run_cancelled_before_it_was_parked_keeps_nothing,
    younger_run_takes_the_place_of_one_that_waits_for_people,
    younger_run_takes_the_place_of_one_that_waits_for_a_completion,
    youngest_takes_the_place_of_those_that_waited_behind_as_well,
    resumed_run_is_superseded_as_any_running_one,
    waiting_run_that_does_not_count_is_not_superseded,
    backfill_that_waits_is_not_superseded,
    run_that_no_longer_counts_gives_the_slot_up_and_waits_for_its_turn,
    deleted_task_leaves_no_slot,
    takeover_and_an_answer_at_once_leave_one_run,
    log_tells_of_runs_that_end_for_a_younger_one_with_their_task_or_while_parked,
);

const EVERY: &Scope = &Scope::Every;

async fn counting(world: &StoreHarness, policy: &str) -> Task {
    world.task(json!({ "interval": "1h", "overlap": policy, "overlap_counts_waiting": true })).await
}

async fn record(world: &StoreHarness, end: Finish) {
    assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
}

/// Parks it for a person, with one question.
async fn ask(world: &StoreHarness, started: &StartedRun) -> Approval {
    let asked = question(world, started, "c1");
    record(world, Finish { overlap_counts_waiting: true, ..parked(world, started, &[(asked.clone(), None)], &[]) })
        .await;
    asked
}

/// Parks it for a completion, within a minute.
async fn await_completion(world: &StoreHarness, started: &StartedRun) {
    let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(60) });
    record(world, Finish { park, overlap_counts_waiting: true, ..end_of(started, RunState::WaitingForCompletion) })
        .await;
}

async fn complete(world: &StoreHarness, id: Uuid, event: RunEvent) -> Result<(), StoreError> {
    let completion = RunCompletion { event, output: None, error: None, reason: None, tells: None };
    world.store.complete_run(EVERY, id, &completion, world.now(), None).await.map(drop)
}

/// The run that starts when everything that is ready is claimed.
async fn next(world: &StoreHarness) -> StartedRun {
    let starts = world.start_all().await;
    assert_eq!(starts.blocked, []);
    let [started] = <[StartedRun; 1]>::try_from(starts.started).unwrap();
    started
}

/// It was cancelled just now because of `by`.
async fn assert_superseded(world: &StoreHarness, id: Uuid, by: Uuid) {
    let run = world.get_run(id).await;
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, Some("superseded")));
    assert_eq!((run.blocked_by, run.finished_at), (Some(by), Some(world.now())));
}

async fn run_that_waits_for_a_completion_keeps_the_slot_until_it_is_completed_or_expires(world: &StoreHarness) {
    let task = counting(world, "skip").await;
    for end in [RunEvent::Succeed, RunEvent::Fail, RunEvent::Expire] {
        let waits = world.started(&task).await;
        await_completion(world, &waits).await;
        let (run, fate) = world.blocked(&task).await;
        assert_eq!((fate, run.state, run.blocked_by), (OverlapOutcome::Skipped, RunState::Skipped, Some(waits.run.id)));
        complete(world, waits.run.id, end).await.unwrap();
        assert_eq!(world.count("select count(*) from slots").await, 0);
    }
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    await_completion(world, &waits).await;
    let (behind, fate) = world.blocked(&task).await;
    assert_eq!((fate, world.blocked(&task).await.1), (OverlapOutcome::Behind, OverlapOutcome::Skipped));
    // neither is it taken for a slot that nobody has, nor for a wait that was forgotten
    world.pass(59);
    assert_eq!(world.store.free_lost_slots(world.now(), 9).await.unwrap(), 0);
    world.pass(1);
    assert_eq!(world.store.wake_parked(world.now(), 9).await.unwrap(), 0);
    complete(world, waits.run.id, RunEvent::Expire).await.unwrap();
    assert_eq!(next(world).await.run.id, behind.id);
}

async fn answered_run_goes_on_with_the_slot_and_hands_it_on_at_its_end(world: &StoreHarness) {
    let task = counting(world, "queue_all").await;
    let waits = world.started(&task).await;
    let asked = ask(world, &waits).await;
    let (behind, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    let decided = world.store.decide_approval(EVERY, asked.id, &answer(ApprovalChoice::Approve, &asked, "ann")).await;
    assert!(matches!(decided, Ok(DecisionOutcome::Done(_))), "{decided:?}");
    let went_on = next(world).await;
    assert_eq!((went_on.run.id, went_on.run.attempt), (waits.run.id, 1));
    // it may ask once more, and is in the way still
    let again = Approval { id: Uuid::from_u128(7), turn: 2, ..question(world, &went_on, "c2") };
    record(world, Finish { overlap_counts_waiting: true, ..parked(world, &went_on, &[(again.clone(), None)], &[]) })
        .await;
    assert_eq!(world.start_all().await, Starts::default());
    world.store.decide_approval(EVERY, again.id, &answer(ApprovalChoice::Cancel, &again, "ann")).await.unwrap();
    world.succeed(&next(world).await).await;
    assert_eq!(next(world).await.run.id, behind.id);
}

async fn expired_run_hands_the_slot_on(world: &StoreHarness) {
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    ask(world, &waits).await;
    let (behind, _) = world.blocked(&task).await;
    world.pass(LIMIT);
    let update = WaitingUpdate { wake_at: world.now() + TimeDelta::days(1), deliveries: vec![], if_expired: vec![] };
    assert_eq!(world.store.settle_waiting(waits.run.id, &update).await.unwrap(), WaitingOutcome::Expired);
    assert_eq!(next(world).await.run.id, behind.id);
}

async fn run_cancelled_while_it_waits_hands_the_slot_on(world: &StoreHarness) {
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    await_completion(world, &waits).await;
    let (behind, _) = world.blocked(&task).await;
    assert_eq!(world.store.cancel_run(EVERY, waits.run.id, "no").await.unwrap(), Cancelled::Now);
    assert_eq!(next(world).await.run.id, behind.id);
}

async fn run_cancelled_before_it_was_parked_keeps_nothing(world: &StoreHarness) {
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    let (behind, _) = world.blocked(&task).await;
    assert_eq!(world.store.cancel_run(EVERY, waits.run.id, "no").await.unwrap(), Cancelled::Asked);
    ask(world, &waits).await;
    assert_eq!(world.get_run(waits.run.id).await.state, RunState::Cancelled);
    assert_eq!(next(world).await.run.id, behind.id);
}

async fn younger_run_takes_the_place_of_one_that_waits_for_people(world: &StoreHarness) {
    let task = counting(world, "cancel_previous").await;
    let waits = world.started(&task).await;
    let asked = ask(world, &waits).await;
    world.pass(5);
    let (young, fate) = world.blocked(&task).await;
    assert_eq!((fate, young.state), (OverlapOutcome::Again, RunState::Queued));
    assert_superseded(world, waits.run.id, young.id).await;
    assert_eq!(world.store.get_approval(EVERY, asked.id).await.unwrap().status, ApprovalStatus::Cancelled);
    let late =
        world.store.decide_approval(EVERY, asked.id, &answer(ApprovalChoice::Approve, &asked, "ann")).await.unwrap();
    assert!(matches!(late, DecisionOutcome::Refused(DecisionRefusal::Settled, _)), "{late:?}");
    let filter = AuditFilter { subject_id: Some(asked.id), limit: 9, ..AuditFilter::default() };
    let acts = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    assert_eq!(
        acts.iter().map(|act| act.action.as_str()).collect::<Vec<_>>(),
        ["approval.cancelled", "approval.asked"]
    );
    let started = next(world).await;
    assert_eq!(started.run.id, young.id);
    world.succeed(&started).await;
    assert_eq!(world.count("select count(*) from slots").await, 0);
}

async fn younger_run_takes_the_place_of_one_that_waits_for_a_completion(world: &StoreHarness) {
    let task = counting(world, "cancel_previous").await;
    let waits = world.started(&task).await;
    await_completion(world, &waits).await;
    let (young, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Again);
    assert_superseded(world, waits.run.id, young.id).await;
    let late = complete(world, waits.run.id, RunEvent::Succeed).await;
    assert!(matches!(&late, Err(StoreError::Conflict(why)) if why.contains("cancelled")), "{late:?}");
    assert_eq!(next(world).await.run.id, young.id);
}

async fn youngest_takes_the_place_of_those_that_waited_behind_as_well(world: &StoreHarness) {
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    ask(world, &waits).await;
    let (behind, _) = world.blocked(&task).await;
    let trigger = json!({ "interval": "1h", "overlap": "cancel_previous", "overlap_counts_waiting": true });
    let edit = TaskChange::Edit { version: 1, name: "n".into(), spec: Box::new(spec(trigger, json!({}))) };
    world.store.change_task(EVERY, task.id, &edit).await.unwrap();
    let (young, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Again);
    assert_superseded(world, waits.run.id, young.id).await;
    assert_superseded(world, behind.id, young.id).await;
    assert_eq!(next(world).await.run.id, young.id);
}

async fn resumed_run_is_superseded_as_any_running_one(world: &StoreHarness) {
    let task = counting(world, "cancel_previous").await;
    let waits = world.started(&task).await;
    let asked = ask(world, &waits).await;
    world.store.decide_approval(EVERY, asked.id, &answer(ApprovalChoice::Approve, &asked, "ann")).await.unwrap();
    let went_on = next(world).await;
    let (young, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    let asked = world.store.cancels_asked(super::world::WORKER).await.unwrap();
    assert_eq!(asked.iter().map(|asked| asked.run_id).collect::<Vec<_>>(), [waits.run.id]);
    record(world, end_of(&went_on, RunState::Cancelled)).await;
    assert_eq!(next(world).await.run.id, young.id);
}

async fn waiting_run_that_does_not_count_is_not_superseded(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h", "overlap": "cancel_previous" })).await;
    let waits = world.started(&task).await;
    let asked = question(world, &waits, "c1");
    record(world, parked(world, &waits, &[(asked, None)], &[])).await;
    let beside = world.started(&task).await;
    assert_eq!(world.get_run(waits.run.id).await.state, RunState::PendingApproval);
    world.succeed(&beside).await;
}

async fn backfill_that_waits_is_not_superseded(world: &StoreHarness) {
    let task = counting(world, "cancel_previous").await;
    let instants = [1, 2].map(|hours| world.now() - TimeDelta::hours(hours));
    world.store.backfill(EVERY, task.id, task.id, &instants, None, None).await.unwrap();
    let starts = world.start_all().await;
    let [first] = <[StartedRun; 1]>::try_from(starts.started).unwrap();
    await_completion(world, &first).await;
    let (young, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    assert_eq!(world.get_run(first.run.id).await.state, RunState::WaitingForCompletion);
    complete(world, first.run.id, RunEvent::Succeed).await.unwrap();
    let second = next(world).await;
    assert_eq!(second.run.id, starts.blocked[0].0);
    world.succeed(&second).await;
    assert_eq!(next(world).await.run.id, young.id);
}

async fn run_that_no_longer_counts_gives_the_slot_up_and_waits_for_its_turn(world: &StoreHarness) {
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    let asked = ask(world, &waits).await;
    let (behind, _) = world.blocked(&task).await;
    let trigger = json!({ "interval": "1h", "overlap": "queue_one" });
    let edit = TaskChange::Edit { version: 1, name: "n".into(), spec: Box::new(spec(trigger, json!({}))) };
    world.store.change_task(EVERY, task.id, &edit).await.unwrap();
    let beside = next(world).await;
    assert_eq!(beside.run.id, behind.id);
    world.store.decide_approval(EVERY, asked.id, &answer(ApprovalChoice::Approve, &asked, "ann")).await.unwrap();
    assert_eq!(world.start_all().await.blocked, [(waits.run.id, OverlapOutcome::Behind)]);
    world.succeed(&beside).await;
    assert_eq!(next(world).await.run.id, waits.run.id);
}

async fn deleted_task_leaves_no_slot(world: &StoreHarness) {
    let task = counting(world, "queue_one").await;
    let waits = world.started(&task).await;
    ask(world, &waits).await;
    let (behind, _) = world.blocked(&task).await;
    world.store.delete_task(EVERY, task.id).await.unwrap();
    for id in [waits.run.id, behind.id] {
        assert_eq!(world.get_run(id).await.state, RunState::Cancelled);
    }
    assert_eq!(world.count("select count(*) from slots").await, 0);
}

async fn takeover_and_an_answer_at_once_leave_one_run(world: &StoreHarness) {
    let other = world.other_instance().await;
    for _ in 0..5 {
        let task = counting(world, "cancel_previous").await;
        let waits = world.started(&task).await;
        let asked = ask(world, &waits).await;
        let young = world.run_now(&task).await;
        let claimed = leases(&world.claim().await);
        let approves = answer(ApprovalChoice::Approve, &asked, "ann");
        let (starts, decided) = tokio::join!(
            other.start_runs(&claimed, world.now() + LEASE),
            world.store.decide_approval(EVERY, asked.id, &approves),
        );
        assert_eq!(starts.unwrap().started, []);
        let approved = matches!(decided.unwrap(), DecisionOutcome::Done(_));
        // whoever was first, the older one is to end and the younger one runs
        let mut started = world.start_all().await.started;
        started.extend(world.start_all().await.started);
        let asked_to_end = world.store.cancels_asked(super::world::WORKER).await.unwrap();
        if let Some(went_on) = started.iter().position(|started| started.run.id == waits.run.id) {
            assert_eq!(asked_to_end.iter().map(|asked| asked.run_id).collect::<Vec<_>>(), [waits.run.id]);
            record(world, end_of(&started.remove(went_on), RunState::Cancelled)).await;
            started.extend(world.start_all().await.started);
        }
        assert_eq!(started.iter().map(|started| started.run.id).collect::<Vec<_>>(), [young], "{approved}");
        assert_eq!(world.get_run(waits.run.id).await.state, RunState::Cancelled);
        let status = world.store.get_approval(EVERY, asked.id).await.unwrap().status;
        assert_eq!(status, if approved { ApprovalStatus::Approved } else { ApprovalStatus::Cancelled });
        world.succeed(&started[0]).await;
    }
}

async fn log_tells_of_runs_that_end_for_a_younger_one_with_their_task_or_while_parked(world: &StoreHarness) {
    let tells = |line: &str, parts: &[&str]| {
        for part in parts {
            assert!(line.contains(part), "{part} in {line}");
        }
    };
    let task = counting(world, "cancel_previous").await;
    let waits = world.started(&task).await;
    ask(world, &waits).await;
    let ((young, fate), line) = end_in_log(world.blocked(&task)).await;
    assert_eq!(fate, OverlapOutcome::Again);
    tells(&line, &["INFO", "runs=1", "state=\"cancelled\"", "why=\"superseded\""]);

    let started = next(world).await;
    assert_eq!(started.run.id, young.id);
    assert_eq!(world.store.cancel_run(EVERY, young.id, "aside").await.unwrap(), Cancelled::Asked);
    let (_, line) = end_in_log(ask(world, &started)).await;
    let (run_id, task_id) = (format!("run_id={}", young.id), format!("task_id={}", task.id));
    tells(&line, &["INFO", &run_id, &task_id, "state=\"cancelled\"", "why=\"aside\""]);

    let ended = [world.run_now(&task).await, world.run_now(&task).await];
    let (deleted, line) = end_in_log(world.store.delete_task(EVERY, task.id)).await;
    deleted.unwrap();
    for id in ended {
        assert_eq!(world.get_run(id).await.state, RunState::Cancelled);
    }
    tells(&line, &["INFO", "runs=2", &task_id, "state=\"cancelled\"", "why=\"task_deleted\""]);
}
