//! Questions of MCP servers in the middle of a call: a server is told no, or gets an answer, once; its next question
//! takes the place of the one before; and where nobody answers, the run goes on without.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::approval::{
    Approval, ApprovalChoice, ApprovalStatus, ApprovedCallStart, OnExpiry, Proposal, QuestionKind, ServerAnswer,
};
use reveille::domain::run::RunState;
use reveille::store::{AuditFilter, DecisionOutcome, DecisionRefusal, StartedRun, WaitingUpdate};
use serde_json::json;
use uuid::Uuid;

use super::asked::{LIMIT, answer, asked, asked_with, go_on, park, question};
use super::grants::grant;
use super::world::StoreHarness;

on_both!(
    server_is_told_no_once_and_the_call_goes_on,
    nobody_but_a_server_is_told_no,
    no_that_may_not_be_changes_nothing,
    next_question_of_a_server_takes_the_place_of_its_answered_one,
    question_of_a_server_that_nobody_answers_lets_the_run_go_on,
    answer_to_a_server_ends_no_standing_grant,
);

const EVERY: &Scope = &Scope::Every;

/// Makes it the question of a server in this round.
fn of_server(asked: &mut Approval, round: u32) {
    let server = json!({
        "server": "github",
        "parts": [{ "key": "to", "message": "Whom?", "mode": "form", "fields": [{ "name": "to", "field": "to" }] }],
        "continuation": { "kind": "continue", "round": round, "request_state": "AHM=" },
    });
    let proposal = Proposal {
        kind: QuestionKind::Input,
        server: Some(serde_json::from_value(server).unwrap()),
        options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
        arguments: json!({}),
        on_expiry: OnExpiry::Cancel,
        ..asked.proposal.clone()
    };
    asked.digest = proposal.digest(&asked.identity(), &proposal.arguments);
    asked.proposal = proposal;
}

/// A run that waits for the answer to a server.
async fn waiting(world: &StoreHarness) -> (StartedRun, Approval) {
    let (_, started, mut asked) = asked_with(world, &["c1"], |asked| of_server(asked, 1)).await;
    (started, asked.remove(0))
}

async fn decide(world: &StoreHarness, to: &Approval, choice: ApprovalChoice) -> DecisionOutcome {
    world.store.decide_approval(EVERY, to.id, &answer(choice, to, "token:t")).await.unwrap()
}

async fn refused(world: &StoreHarness, to: &Approval) -> DecisionRefusal {
    match decide(world, to, ApprovalChoice::Decline).await {
        DecisionOutcome::Refused(refusal, _) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

async fn get(world: &StoreHarness, id: Uuid) -> Approval {
    world.store.get_approval(EVERY, id).await.unwrap()
}

/// The acts on record about a question, oldest first.
async fn acts(world: &StoreHarness, id: Uuid) -> Vec<String> {
    let filter = AuditFilter { subject_id: Some(id), limit: 50, ..AuditFilter::default() };
    let entries = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    entries.iter().rev().map(|entry| entry.action.clone()).collect()
}

async fn server_is_told_no_once_and_the_call_goes_on(world: &StoreHarness) {
    let (started, question) = waiting(world).await;
    assert_eq!(get(world, question.id).await, question, "all of it is read back");
    let DecisionOutcome::Done(declined) = decide(world, &question, ApprovalChoice::Decline).await else {
        panic!("not decided")
    };
    assert_eq!((declined.status, &declined.modifications), (ApprovalStatus::Approved, &None));
    assert_eq!(declined.decided_digest.as_ref(), Some(&question.digest));
    assert_eq!(declined.server_answer(), Some(ServerAnswer::Decline));
    assert_eq!(refused(world, &question).await, DecisionRefusal::Settled);
    assert_eq!(acts(world, question.id).await, ["approval.asked", "approval.declined"]);
    let again = go_on(world, started.run.id).await;
    for begun in [ApprovedCallStart::Now, ApprovedCallStart::Before] {
        let start = world.store.mark_execution_started(again.lease, question.id, &question.digest).await;
        assert_eq!(start.unwrap(), begun);
    }
    world.succeed(&again).await;
}

async fn nobody_but_a_server_is_told_no(world: &StoreHarness) {
    let (_, _, asked) = asked(world, &["c1"]).await;
    assert_eq!(refused(world, &asked[0]).await, DecisionRefusal::NotOffered);
    let as_input = |asked: &mut Approval| asked.proposal.kind = QuestionKind::Input;
    let (_, _, asked) = asked_with(world, &["c1"], as_input).await;
    assert_eq!(refused(world, &asked[0]).await, DecisionRefusal::NotOffered);
    // nor is a call of a server approved by its question
    let (_, question) = waiting(world).await;
    let approved = decide(world, &question, ApprovalChoice::Approve).await;
    assert!(matches!(approved, DecisionOutcome::Refused(DecisionRefusal::NotOffered, _)), "{approved:?}");
}

async fn no_that_may_not_be_changes_nothing(world: &StoreHarness) {
    let (started, question) = waiting(world).await;
    let other = Approval { digest: "0".repeat(64), ..question.clone() };
    assert_eq!(refused(world, &other).await, DecisionRefusal::OtherDigest);
    world.store.pause_suspended(EVERY, started.run.id, "token:t").await.unwrap();
    assert_eq!(refused(world, &question).await, DecisionRefusal::Paused);
    assert_eq!(get(world, question.id).await.status, ApprovalStatus::Pending);
    let (_, question) = waiting(world).await;
    world.pass(LIMIT);
    assert_eq!(refused(world, &question).await, DecisionRefusal::Expired);
    assert_eq!(acts(world, question.id).await, ["approval.asked"]);
}

async fn next_question_of_a_server_takes_the_place_of_its_answered_one(world: &StoreHarness) {
    let (started, first) = waiting(world).await;
    decide(world, &first, ApprovalChoice::Edit).await;
    let again = go_on(world, started.run.id).await;
    let answered = get(world, first.id).await;
    let digest = answered.decided_digest.clone().unwrap();
    let start = world.store.mark_execution_started(again.lease, first.id, &digest).await.unwrap();
    assert_eq!(start, ApprovedCallStart::Now);
    // a question about the call itself has a place of its own
    let consent = question(world, &again, "c1");
    let mut second = question(world, &again, "c1");
    of_server(&mut second, 2);
    park(world, &again, &[(consent.clone(), None), (second.clone(), Some(first.id))], &[]).await;
    let mut counted = world.store.approvals_of_turn(started.run.id, 1).await.unwrap();
    counted.sort_by_key(|question| question.proposal.kind == QuestionKind::Input);
    assert_eq!(counted, [consent.clone(), second.clone()]);
    let kept = get(world, first.id).await;
    assert_eq!((kept.status, kept.modifications), (ApprovalStatus::Edited, answered.modifications));
    assert_eq!(refused(world, &first).await, DecisionRefusal::Settled);
    decide(world, &second, ApprovalChoice::Cancel).await;
    decide(world, &consent, ApprovalChoice::Approve).await;
    assert_eq!(get(world, second.id).await.server_answer(), None);
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn question_of_a_server_that_nobody_answers_lets_the_run_go_on(world: &StoreHarness) {
    let (started, question) = waiting(world).await;
    world.pass(LIMIT + 1);
    let update = WaitingUpdate { wake_at: world.now() + TimeDelta::days(1), deliveries: vec![], if_expired: vec![] };
    world.store.settle_waiting(started.run.id, &update).await.unwrap();
    assert_eq!(get(world, question.id).await.status, ApprovalStatus::Expired);
    assert_eq!(world.get_run(started.run.id).await.state, RunState::Queued);
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn answer_to_a_server_ends_no_standing_grant(world: &StoreHarness) {
    for (choice, is_kept) in
        [(ApprovalChoice::Edit, true), (ApprovalChoice::Decline, true), (ApprovalChoice::Cancel, false)]
    {
        let (task, started, asked) = asked_with(world, &["c1"], |asked| of_server(asked, 1)).await;
        let covers = grant(&task, world.now());
        world.store.create_grant(EVERY, &covers).await.unwrap();
        decide(world, &asked[0], choice).await;
        let listed = world.store.list_grants(EVERY, None, None, 50).await.unwrap().rows;
        let left = listed.into_iter().find(|grant| grant.id == covers.id).expect("the grant");
        assert_eq!(left.revoked_at.is_none(), is_kept, "{choice:?}");
        world.succeed(&go_on(world, started.run.id).await).await;
    }
}
