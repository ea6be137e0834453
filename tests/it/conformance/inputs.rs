//! Questions for what calls lack, beside those about calls, in several turns of one run at once.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{
    Approval, ApprovalChoice, ApprovalStatus, ApprovedCallStart, OpenQuestion, ProposalIdentity, QuestionKind,
};
use reveille::domain::run::RunState;
use reveille::store::{ApprovalFilter, Finish, Park, StartedRun, WaitingOutcome, WaitingUpdate};
use serde_json::json;
use uuid::Uuid;

use super::asked::{answer, go_on, proposal};
use super::world::{StoreHarness, end_of};

on_both!(
    call_may_have_a_question_of_each_kind_and_the_run_waits_in_the_state_of_what_it_asks,
    run_waits_for_the_questions_of_every_turn_that_it_names,
    question_of_a_call_that_has_ended_is_withdrawn_when_its_run_waits_for_others,
);

const EVERY: &Scope = &Scope::Every;

/// A question of a turn; not put yet.
fn question(world: &StoreHarness, started: &StartedRun, turn: i64, kind: QuestionKind) -> Approval {
    let run = &started.run;
    let of = ProposalIdentity { tenant: &run.tenant_id, run_id: run.id, turn, call_id: "c" };
    let proposal = reveille::domain::approval::Proposal { kind, ..proposal() };
    Approval::asked((new_id(world.now()), run.id), of, run.task_id, proposal, world.now())
}

async fn park(world: &StoreHarness, started: &StartedRun, asks: Vec<Approval>, open: Vec<OpenQuestion>, to: RunState) {
    let asks = asks.into_iter().map(|ask| (ask, None)).collect();
    let park = Park::Approval { wake_at: world.now(), asks, open };
    let end = Finish { park: Some(park), ..end_of(started, to) };
    assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
}

async fn settle(world: &StoreHarness, started: &StartedRun) -> WaitingOutcome {
    let wake_at = world.now() + TimeDelta::minutes(1);
    let update = WaitingUpdate { wake_at, deliveries: vec![], if_expired: vec![] };
    world.store.settle_waiting(started.run.id, &update).await.unwrap()
}

async fn begin(world: &StoreHarness, started: &StartedRun, id: Uuid) {
    let decided = world.store.get_approval(EVERY, id).await.unwrap();
    let digest = decided.decided_digest.as_deref().unwrap();
    assert_eq!(world.store.mark_execution_started(started.lease, id, digest).await.unwrap(), ApprovedCallStart::Now);
}

async fn call_may_have_a_question_of_each_kind_and_the_run_waits_in_the_state_of_what_it_asks(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    let input = question(world, &started, 1, QuestionKind::Input);
    park(world, &started, vec![input.clone()], vec![], RunState::WaitingForInput).await;
    let state = async || world.store.get_run(EVERY, started.run.id).await.unwrap().state;
    assert_eq!((state().await, settle(world, &started).await), (RunState::WaitingForInput, WaitingOutcome::Waits));
    let stored = world.store.get_approval(EVERY, input.id).await.unwrap();
    assert_eq!(stored, input, "its kind is read back");
    let listed = async |kind: QuestionKind| {
        let status = Some(ApprovalStatus::Pending);
        let filter = ApprovalFilter { kind: Some(kind), status, limit: 9, ..ApprovalFilter::default() };
        world.store.list_approvals(EVERY, &filter).await.unwrap()
    };
    assert_eq!(listed(QuestionKind::Input).await, std::slice::from_ref(&input));
    assert_eq!(listed(QuestionKind::Approval).await, []);
    world.store.decide_approval(EVERY, input.id, &answer(ApprovalChoice::Edit, &input, "token:t")).await.unwrap();
    assert_eq!(state().await, RunState::Queued);
    let again = go_on(world, started.run.id).await;
    begin(world, &again, input.id).await;
    // the same call is asked about
    let approval = question(world, &again, 1, QuestionKind::Approval);
    park(world, &again, vec![approval.clone()], vec![], RunState::PendingApproval).await;
    assert_eq!(settle(world, &started).await, WaitingOutcome::Waits, "what was answered wakes nobody again");
    let asked = world.store.approvals_of_turn(started.run.id, 1).await.unwrap();
    assert_eq!(
        asked.iter().map(|one| one.proposal.kind).collect::<Vec<_>>(),
        [QuestionKind::Input, QuestionKind::Approval]
    );
    let batch = world.store.approvals_of_batch(&started.run.tenant_id, approval.batch_id).await.unwrap();
    assert_eq!(batch.len(), 2);
    assert_eq!(world.store.approvals_of_batch("b", approval.batch_id).await.unwrap(), []);
    // what the call lacked was answered, and the call itself was not
    world.pass(1801);
    assert_eq!(settle(world, &started).await, WaitingOutcome::Expired);
    let run = world.store.get_run(EVERY, started.run.id).await.unwrap();
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Expired, Some("approval_expired")));
}

async fn question_of_a_call_that_has_ended_is_withdrawn_when_its_run_waits_for_others(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    let (outer, inner) =
        (question(world, &started, 1, QuestionKind::Approval), question(world, &started, 2, QuestionKind::Input));
    park(world, &started, vec![outer.clone(), inner.clone()], vec![], RunState::PendingApproval).await;
    world.store.decide_approval(EVERY, outer.id, &answer(ApprovalChoice::Approve, &outer, "token:t")).await.unwrap();
    let again = go_on(world, started.run.id).await;
    begin(world, &again, outer.id).await;
    // the agent that had asked took too long, and another call asks
    let later = question(world, &again, 5, QuestionKind::Approval);
    park(world, &again, vec![later.clone()], vec![], RunState::PendingApproval).await;
    let abandoned = world.store.get_approval(EVERY, inner.id).await.unwrap();
    assert_eq!((abandoned.status, abandoned.decided_by.as_deref()), (ApprovalStatus::Cancelled, Some("service")));
    assert_eq!(world.store.get_approval(EVERY, outer.id).await.unwrap().status, ApprovalStatus::Approved);
    world.store.decide_approval(EVERY, later.id, &answer(ApprovalChoice::Cancel, &later, "token:t")).await.unwrap();
    assert_eq!(world.store.get_run(EVERY, started.run.id).await.unwrap().state, RunState::Queued);
}

async fn run_waits_for_the_questions_of_every_turn_that_it_names(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    // a call of the run's own agent, and one of an agent that it has called
    let outer = question(world, &started, 1, QuestionKind::Approval);
    let inner = question(world, &started, 2, QuestionKind::Input);
    park(world, &started, vec![outer.clone(), inner.clone()], vec![], RunState::PendingApproval).await;
    assert_eq!(settle(world, &started).await, WaitingOutcome::Waits);
    world.store.decide_approval(EVERY, outer.id, &answer(ApprovalChoice::Cancel, &outer, "token:t")).await.unwrap();
    assert_eq!(settle(world, &started).await, WaitingOutcome::Waits, "the other one is open");
    world.store.decide_approval(EVERY, inner.id, &answer(ApprovalChoice::Edit, &inner, "token:t")).await.unwrap();
    let again = go_on(world, started.run.id).await;
    begin(world, &again, inner.id).await;
    // a later turn of the one that was called, while the run's own call has come to another question
    let (first, later) =
        (question(world, &again, 3, QuestionKind::Approval), question(world, &again, 9, QuestionKind::Input));
    park(world, &again, vec![first.clone(), later.clone()], vec![], RunState::PendingApproval).await;
    world.store.decide_approval(EVERY, first.id, &answer(ApprovalChoice::Approve, &first, "token:t")).await.unwrap();
    let again = go_on(world, started.run.id).await;
    begin(world, &again, first.id).await;
    park(world, &again, vec![], vec![later.open_question()], RunState::WaitingForInput).await;
    assert_eq!(settle(world, &started).await, WaitingOutcome::Waits);
    world.pass(1801);
    assert_eq!(settle(world, &started).await, WaitingOutcome::Expired);
    let run = world.store.get_run(EVERY, started.run.id).await.unwrap();
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Expired, Some("input_expired")));
    let expired = world.store.get_approval(EVERY, later.id).await.unwrap();
    assert_eq!(expired.status, ApprovalStatus::Expired);
}
