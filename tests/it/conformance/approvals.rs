//! Questions to people: put with the parking of the run, settled once, with their consequences for the run.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::voter::{Vote, VoterIdentities};
use reveille::domain::approval::{
    Approval, ApprovalAnswer, ApprovalChoice, ApprovalStatus, ApprovedCallStart, CallOutcome, OnExpiry, Proposal,
    QuestionKind, Via,
};
use reveille::domain::notification::{MessageKind, NewDelivery};
use reveille::domain::run::RunState;
use reveille::store::{
    ApprovalFilter, ApprovalLink, AuditFilter, BatchQuestion, Cancelled, DecisionOutcome, DecisionRefusal,
    DeliveryFilter, StartedRun, StoreError, WaitingOutcome, WaitingUpdate,
};
use serde_json::json;
use sqlx::{Connection, PgConnection, SqliteConnection};
use uuid::Uuid;

use super::asked::{LIMIT, answer, asked, asked_with, go_on, park, parked, question};
use super::world::{StoreHarness, end_of, only};
use ApprovalChoice::{Approve, Cancel, Edit};

on_both!(
    run_that_asks_is_parked_and_its_questions_are_found,
    answer_is_the_decision_once_and_the_run_goes_on,
    answer_that_may_not_be_changes_nothing,
    edited_call_runs_as_edited_and_not_otherwise,
    approved_proposal_has_the_same_hash_when_it_is_read,
    approved_call_wakes_the_run_and_a_cancelled_one_waits_for_the_others,
    question_settled_while_the_run_goes_on_keeps_it_from_being_parked,
    as_many_as_are_wanted_have_to_agree_to_the_same,
    approved_call_is_held_and_can_be_stopped,
    held_call_runs_when_its_time_has_come,
    call_without_a_question_is_held_and_runs_after_its_time,
    call_without_a_question_can_be_stopped_and_not_approved,
    held_call_of_a_cancelled_run_is_withdrawn,
    held_call_of_a_run_that_ends_meanwhile_is_withdrawn,
    nobody_answers_and_the_run_expires,
    expired_question_is_a_no_and_the_rest_goes_on,
    waiting_run_is_checked_again_and_reminded_once,
    question_takes_the_place_of_another,
    call_is_asked_about_once,
    run_that_has_ended_asks_nothing_any_more,
    run_that_goes_on_waits_for_its_turn_and_is_not_skipped,
    run_whose_end_was_asked_for_is_not_parked,
    link_leads_to_its_batch_until_its_time_is_over,
    batch_is_read_whole_up_to_its_bound_and_beyond_it_by_beginnings,
    approvals_are_deleted_with_their_run,
    of_a_hundred_answers_one_has_its_effect,
    of_an_answer_and_an_expiry_one_wins,
    pending_approvals_are_found_among_many_decided,
);

const EVERY: &Scope = &Scope::Every;

async fn decide(world: &StoreHarness, to: &Approval, choice: ApprovalChoice) -> DecisionOutcome {
    world.store.decide_approval(EVERY, to.id, &answer(choice, to, "token:t")).await.unwrap()
}

async fn get(world: &StoreHarness, id: Uuid) -> Approval {
    world.store.get_approval(EVERY, id).await.unwrap()
}

async fn state(world: &StoreHarness, started: &StartedRun) -> RunState {
    world.get_run(started.run.id).await.state
}

/// The acts on record about a subject, oldest first, as `actor: action`.
async fn acts(world: &StoreHarness, subject: Uuid) -> Vec<String> {
    let filter = AuditFilter { subject_id: Some(subject), limit: 50, ..AuditFilter::default() };
    let entries = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    entries.iter().rev().map(|entry| format!("{}: {}", entry.actor, entry.action)).collect()
}

/// Those who have agreed, in order.
fn voters(approval: &Approval) -> Vec<&str> {
    approval.votes.iter().map(|vote| vote.by.as_str()).collect()
}

fn update(world: &StoreHarness) -> WaitingUpdate {
    WaitingUpdate { wake_at: world.now() + TimeDelta::days(1), deliveries: vec![], if_expired: vec![] }
}

fn refused(decided: DecisionOutcome) -> DecisionRefusal {
    match decided {
        DecisionOutcome::Refused(refusal, _) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

async fn run_that_asks_is_parked_and_its_questions_are_found(world: &StoreHarness) {
    assert_eq!(world.store.next_waiting_at().await.unwrap(), None);
    let (task, started, asked) = asked(world, &["c1", "c2"]).await;
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.state, run.finished_at, run.attempt), (RunState::PendingApproval, None, 1));
    assert_eq!(world.count("select count(*) from slots").await, 0);
    assert_eq!(world.count("select count(*) from parked where reason = 'approval'").await, 1);
    assert_eq!(world.store.get_approval(&only("a"), asked[0].id).await.unwrap(), asked[0]);
    assert_eq!(world.store.approvals_of_turn(run.id, 1).await.unwrap(), asked);
    assert_eq!(world.store.approvals_of_turn(run.id, 2).await.unwrap(), []);
    assert_eq!(acts(world, asked[0].id).await, ["service: approval.asked"]);
    // newest first, and only what is asked for
    let list = async |filter: ApprovalFilter| {
        let filter = ApprovalFilter { limit: 10, ..filter };
        let found = world.store.list_approvals(&only("a"), &filter).await.unwrap();
        found.iter().map(|approval| approval.id).collect::<Vec<_>>()
    };
    let (first, second) = (asked[0].id, asked[1].id);
    assert_eq!(list(ApprovalFilter::default()).await, [second, first]);
    let filter = ApprovalFilter { limit: 10, ..ApprovalFilter::default() };
    let page = world.store.approvals_page(&only("a"), &filter).await.unwrap();
    assert_eq!((page.rows, page.is_cut), (world.store.list_approvals(&only("a"), &filter).await.unwrap(), false));
    assert_eq!(list(ApprovalFilter { before: Some(second), ..Default::default() }).await, [first]);
    for one in [
        ApprovalFilter { tenant: Some("a".into()), ..Default::default() },
        ApprovalFilter { status: Some(ApprovalStatus::Pending), ..Default::default() },
        ApprovalFilter { kind: Some(QuestionKind::Approval), ..Default::default() },
        ApprovalFilter { task_id: Some(task.id), ..Default::default() },
        ApprovalFilter { run_id: Some(run.id), ..Default::default() },
        ApprovalFilter { batch_id: Some(asked[0].batch_id), ..Default::default() },
    ] {
        assert_eq!(list(one).await, [second, first]);
    }
    for none in [
        ApprovalFilter { tenant: Some("b".into()), ..Default::default() },
        ApprovalFilter { status: Some(ApprovalStatus::Approved), ..Default::default() },
        ApprovalFilter { kind: Some(QuestionKind::Input), ..Default::default() },
        ApprovalFilter { task_id: Some(run.id), ..Default::default() },
    ] {
        assert_eq!(list(none).await, Vec::<Uuid>::new());
    }
    let due = world.now() + TimeDelta::seconds(LIMIT / 2);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(due));
    assert_eq!(world.store.waiting_for_people(due - TimeDelta::seconds(1), 9).await.unwrap(), []);
    let waiting = world.store.waiting_for_people(due, 9).await.unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!((waiting[0].run.id, waiting[0].task.as_ref().unwrap().id), (run.id, task.id));
    assert_eq!(waiting[0].approvals, asked);
}

async fn answer_is_the_decision_once_and_the_run_goes_on(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    world.pass(5);
    let answered =
        ApprovalAnswer { comment: Some("go\0 on".into()), via: Via::Link, ..answer(Approve, &asked[0], "recipient:a") };
    let decided = world.store.decide_approval(&only("a"), asked[0].id, &answered).await.unwrap();
    let expected = Approval {
        status: ApprovalStatus::Approved,
        decided_at: Some(world.now()),
        decided_by: Some("recipient:a".into()),
        decided_via: Some(Via::Link),
        comment: Some("go\u{FFFD} on".into()),
        decided_digest: Some(asked[0].digest.clone()),
        ..asked[0].clone()
    };
    assert_eq!(decided, DecisionOutcome::Done(expected.clone()));
    assert_eq!(get(world, asked[0].id).await, expected);
    for choice in [Approve, Edit, Cancel] {
        assert_eq!(
            decide(world, &asked[0], choice).await,
            DecisionOutcome::Refused(DecisionRefusal::Settled, expected.clone())
        );
    }
    assert_eq!(acts(world, asked[0].id).await, ["service: approval.asked", "recipient:a: approval.approved"]);
    assert_eq!(state(world, &started).await, RunState::Queued);
    // going on is no new attempt
    let again = go_on(world, started.run.id).await;
    assert_eq!(again.run.attempt, 1);
    let begin =
        async |digest: &str| world.store.mark_execution_started(again.lease, asked[0].id, digest).await.unwrap();
    assert_eq!(begin("another").await, ApprovedCallStart::Refused);
    assert_eq!(begin(&asked[0].digest).await, ApprovedCallStart::Now);
    assert_eq!(begin(&asked[0].digest).await, ApprovedCallStart::Before);
    let late = world.store.mark_execution_started(started.lease, asked[0].id, &asked[0].digest).await;
    assert!(matches!(late, Err(StoreError::LeaseLost)), "{late:?}");
    let outcome = CallOutcome { is_error: false, text: "sent".into() };
    world.store.note_outcome(asked[0].id, &outcome).await.unwrap();
    let noted = get(world, asked[0].id).await;
    assert_eq!((noted.execution_started_at, noted.outcome), (Some(world.now()), Some(outcome.clone())));
    let nothing = world.store.note_outcome(started.run.id, &outcome).await;
    assert!(matches!(nothing, Err(StoreError::NotFound)), "{nothing:?}");
    world.succeed(&again).await;
}

async fn answer_that_may_not_be_changes_nothing(world: &StoreHarness) {
    let (_, started, asked) = asked_with(world, &["c1"], |asked| {
        asked.proposal.excluded_approver = Some("recipient:a".into());
        asked.proposal.options = vec![Approve, Cancel];
    })
    .await;
    let one = &asked[0];
    let ask = async |answer: &ApprovalAnswer| world.store.decide_approval(&only("a"), one.id, answer).await.unwrap();
    let other_digest = ApprovalAnswer { digest: "0".repeat(64), ..answer(Approve, one, "token:t") };
    assert_eq!(ask(&other_digest).await, DecisionOutcome::Refused(DecisionRefusal::OtherDigest, one.clone()));
    assert_eq!(refused(ask(&answer(Approve, one, "recipient:a")).await), DecisionRefusal::Excluded);
    assert_eq!(refused(ask(&answer(Edit, one, "token:t")).await), DecisionRefusal::NotOffered);
    let other_tenant = world.store.decide_approval(&only("b"), one.id, &answer(Approve, one, "token:t")).await;
    assert!(matches!(other_tenant, Err(StoreError::NotFound)), "{other_tenant:?}");
    assert!(matches!(world.store.get_approval(&only("b"), one.id).await, Err(StoreError::NotFound)));
    let all = ApprovalFilter { limit: 9, ..ApprovalFilter::default() };
    assert_eq!(world.store.list_approvals(&only("b"), &all).await.unwrap(), []);
    // at its last instant it is over, whether anybody has noticed it or not
    world.pass(LIMIT);
    assert_eq!(
        ask(&answer(Approve, one, "token:t")).await,
        DecisionOutcome::Refused(DecisionRefusal::Expired, one.clone())
    );
    assert_eq!(
        ask(&answer(Cancel, one, "token:t")).await,
        DecisionOutcome::Refused(DecisionRefusal::Expired, one.clone())
    );
    assert_eq!(state(world, &started).await, RunState::PendingApproval);
    assert_eq!(acts(world, one.id).await, ["service: approval.asked"]);
}

async fn edited_call_runs_as_edited_and_not_otherwise(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    let one = &asked[0];
    let edit = answer(Edit, one, "token:t");
    let (arguments, digest) = edit.edited.clone().unwrap();
    let without = ApprovalAnswer { edited: None, ..edit.clone() };
    assert_eq!(
        refused(world.store.decide_approval(EVERY, one.id, &without).await.unwrap()),
        DecisionRefusal::NotOffered
    );
    let DecisionOutcome::Done(edited) = decide(world, one, Edit).await else { panic!("not decided") };
    assert_eq!(edited.status, ApprovalStatus::Edited);
    assert_eq!((edited.arguments(), edited.decided_digest.as_ref()), (&arguments, Some(&digest)));
    assert_eq!(edited.proposal.arguments, one.proposal.arguments);
    let again = go_on(world, started.run.id).await;
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Refused
    );
    assert_eq!(world.store.mark_execution_started(again.lease, one.id, &digest).await.unwrap(), ApprovedCallStart::Now);
    world.succeed(&again).await;
}

async fn approved_proposal_has_the_same_hash_when_it_is_read(world: &StoreHarness) {
    let odd = json!({ "to\0": "a\0n", "amounts": [1.0, 1e3, "\0", "\\u0000"] });
    for choice in [Approve, Edit] {
        let (_, started, asked) = asked_with(world, &["c1"], |asked| {
            asked.proposal.arguments = odd.clone();
            asked.digest = asked.proposal.digest(&asked.identity(), &odd);
        })
        .await;
        let one = get(world, asked[0].id).await;
        assert_ne!(one.proposal.arguments, odd, "the databases take no NUL");
        let mut to_one = answer(choice, &one, "token:t");
        let other = json!({ "to\0": "b\0b" });
        to_one.edited = (choice == Edit).then(|| (other.clone(), one.proposal.digest(&one.identity(), &other)));
        world.store.decide_approval(EVERY, one.id, &to_one).await.unwrap();
        // as it is computed again before it is executed
        let decided = get(world, one.id).await;
        let now = decided.proposal.digest(&decided.identity(), decided.arguments());
        assert_eq!(decided.decided_digest.as_ref(), Some(&now), "{choice:?}");
        let again = go_on(world, started.run.id).await;
        assert_eq!(
            world.store.mark_execution_started(again.lease, one.id, &now).await.unwrap(),
            ApprovedCallStart::Now
        );
        world.succeed(&again).await;
    }
}

async fn approved_call_wakes_the_run_and_a_cancelled_one_waits_for_the_others(world: &StoreHarness) {
    let (_, started, both) = asked(world, &["c1", "c2"]).await;
    decide(world, &both[0], Cancel).await;
    assert_eq!(state(world, &started).await, RunState::PendingApproval);
    decide(world, &both[1], Cancel).await;
    assert_eq!(state(world, &started).await, RunState::Queued);
    let again = go_on(world, started.run.id).await;
    assert_eq!(
        world.store.mark_execution_started(again.lease, both[0].id, &both[0].digest).await.unwrap(),
        ApprovedCallStart::Refused
    );
    world.succeed(&again).await;
    let (_, started, both) = asked(world, &["c1", "c2"]).await;
    decide(world, &both[1], Approve).await;
    assert_eq!(state(world, &started).await, RunState::Queued);
    assert_eq!(get(world, both[0].id).await.status, ApprovalStatus::Pending);
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn question_settled_while_the_run_goes_on_keeps_it_from_being_parked(world: &StoreHarness) {
    let (_, started, both) = asked(world, &["c1", "c2"]).await;
    decide(world, &both[0], Approve).await;
    let again = go_on(world, started.run.id).await;
    // nothing has happened: it is parked for the other one
    park(world, &again, &[], &[both[1].id]).await;
    assert_eq!(state(world, &started).await, RunState::PendingApproval);
    assert_eq!(
        world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(),
        WaitingOutcome::Woken,
        "one may run"
    );
    let again = go_on(world, started.run.id).await;
    decide(world, &both[1], Cancel).await;
    assert_eq!(state(world, &started).await, RunState::Running);
    park(world, &again, &[], &[both[1].id]).await;
    assert_eq!(state(world, &started).await, RunState::Queued);
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn as_many_as_are_wanted_have_to_agree_to_the_same(world: &StoreHarness) {
    let two = |asked: &mut Approval| asked.proposal.approvers = 2;
    let (_, started, asked) = asked_with(world, &["c1"], two).await;
    let one = &asked[0];
    let vote = async |choice, by| world.store.decide_approval(EVERY, one.id, &answer(choice, one, by)).await.unwrap();
    let given = Vote { by: "token:t".into(), identities: VoterIdentities::of_name("token:t") };
    let counted = DecisionOutcome::Counted(Approval { votes: vec![given], ..one.clone() });
    assert_eq!(vote(Approve, "token:t").await, counted);
    assert_eq!(vote(Approve, "token:t").await, counted, "a person has one vote");
    assert!(matches!(vote(Edit, "token:u").await, DecisionOutcome::Counted(_)), "to something else");
    assert_eq!(state(world, &started).await, RunState::PendingApproval);
    world.pass(1);
    let DecisionOutcome::Done(done) = vote(Edit, "token:t").await else { panic!("not decided") };
    assert_eq!((done.status, voters(&done)), (ApprovalStatus::Edited, vec!["token:u", "token:t"]));
    assert_eq!(done.decided_digest, answer(Edit, one, "").edited.map(|(_, digest)| digest));
    assert_eq!(state(world, &started).await, RunState::Queued);
    let expected =
        ["service: approval.asked", "token:t: approval.voted", "token:u: approval.voted", "token:t: approval.edited"];
    assert_eq!(acts(world, one.id).await, expected);
    world.succeed(&go_on(world, started.run.id).await).await;
    // one no is enough
    let (_, started, asked) = asked_with(world, &["c1"], two).await;
    let one = &asked[0];
    assert!(matches!(decide(world, one, Approve).await, DecisionOutcome::Counted(_)));
    let no = world.store.decide_approval(EVERY, one.id, &answer(Cancel, one, "token:u")).await.unwrap();
    assert!(matches!(no, DecisionOutcome::Done(done) if done.status == ApprovalStatus::Cancelled));
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn approved_call_is_held_and_can_be_stopped(world: &StoreHarness) {
    let (_, started, asked) = asked_with(world, &["c1"], |asked| asked.proposal.undo_seconds = Some(60)).await;
    let one = &asked[0];
    let DecisionOutcome::Done(done) = decide(world, one, Approve).await else { panic!("not decided") };
    assert_eq!(done.hold_until, Some(world.now() + TimeDelta::seconds(60)));
    let again = go_on(world, started.run.id).await;
    world.pass(59);
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Refused
    );
    park(world, &again, &[], &[one.id]).await;
    assert_eq!(state(world, &started).await, RunState::PendingApproval, "it waits for the end of the hold");
    assert_eq!(refused(decide(world, one, Approve).await), DecisionRefusal::Settled);
    let DecisionOutcome::Done(stopped) = decide(world, one, Cancel).await else { panic!("not stopped") };
    assert_eq!((stopped.status, stopped.decided_digest), (ApprovalStatus::Cancelled, None));
    assert_eq!(state(world, &started).await, RunState::Queued);
    let again = go_on(world, started.run.id).await;
    world.pass(60);
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Refused
    );
    assert_eq!(acts(world, one.id).await[1..], ["token:t: approval.approved", "token:t: approval.stopped"]);
    world.succeed(&again).await;
}

async fn held_call_runs_when_its_time_has_come(world: &StoreHarness) {
    let (_, started, asked) = asked_with(world, &["c1"], |asked| asked.proposal.undo_seconds = Some(60)).await;
    let one = &asked[0];
    decide(world, one, Approve).await;
    park(world, &go_on(world, started.run.id).await, &[], &[]).await;
    let until = world.now() + TimeDelta::seconds(60);
    assert_eq!(world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(), WaitingOutcome::Waits);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(until), "no later than the hold ends");
    world.pass(60);
    assert_eq!(refused(decide(world, one, Cancel).await), DecisionRefusal::Settled, "too late to stop it");
    assert_eq!(world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(), WaitingOutcome::Woken);
    // had it ended while the run was being parked, the run would not have been
    park(world, &go_on(world, started.run.id).await, &[], &[one.id]).await;
    let again = go_on(world, started.run.id).await;
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Now
    );
    world.succeed(&again).await;
}

/// Runs parked with a call that nobody is asked about, held for a minute.
async fn park_held_call(world: &StoreHarness) -> (StartedRun, Approval) {
    let (_, started, held) = asked_with(world, &["c1"], |asked| {
        let ids = (asked.id, asked.batch_id);
        let proposal = Proposal { undo_seconds: Some(60), ..asked.proposal.clone() };
        // who asks for it has a clock of his own: what counts is the database's
        let asked_at = world.now() - TimeDelta::seconds(30);
        let of = asked.identity();
        *asked = Approval::new_hold(ids, of, asked.task_id, proposal, (TimeDelta::seconds(60), asked_at));
    })
    .await;
    (started, held.into_iter().next().unwrap())
}

async fn call_without_a_question_is_held_and_runs_after_its_time(world: &StoreHarness) {
    let (started, put) = park_held_call(world).await;
    let until = world.now() + TimeDelta::seconds(60);
    let one = get(world, put.id).await;
    let expected = Approval {
        decided_at: Some(world.now()),
        hold_until: Some(until),
        expires_at: until,
        status: ApprovalStatus::Approved,
        decided_by: Some("policy".into()),
        decided_via: Some(Via::Service),
        decided_digest: Some(put.digest.clone()),
        ..put.clone()
    };
    assert_eq!(one, expected);
    assert_eq!(state(world, &started).await, RunState::PendingApproval);
    assert_eq!(acts(world, put.id).await, ["policy: approval.held"]);
    assert_eq!(world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(), WaitingOutcome::Waits);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(until));
    world.pass(59);
    assert_eq!(world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(), WaitingOutcome::Waits);
    world.pass(1);
    assert_eq!(refused(decide(world, &one, Cancel).await), DecisionRefusal::Settled, "too late to stop it");
    assert_eq!(world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(), WaitingOutcome::Woken);
    let again = go_on(world, started.run.id).await;
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Now
    );
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Before
    );
    assert_eq!(acts(world, put.id).await.len(), 1, "nobody has voted for it");
    world.succeed(&again).await;
}

async fn call_without_a_question_can_be_stopped_and_not_approved(world: &StoreHarness) {
    let (started, one) = park_held_call(world).await;
    world.pass(30);
    for choice in [Approve, Edit] {
        assert_eq!(refused(decide(world, &one, choice).await), DecisionRefusal::Settled);
    }
    let DecisionOutcome::Done(stopped) = decide(world, &one, Cancel).await else { panic!("not stopped") };
    assert_eq!((stopped.status, stopped.decided_by.as_deref()), (ApprovalStatus::Cancelled, Some("token:t")));
    assert_eq!(acts(world, one.id).await, ["policy: approval.held", "token:t: approval.stopped"]);
    let again = go_on(world, started.run.id).await;
    world.pass(60);
    assert_eq!(
        world.store.mark_execution_started(again.lease, one.id, &one.digest).await.unwrap(),
        ApprovedCallStart::Refused
    );
    world.succeed(&again).await;
}

async fn held_call_of_a_cancelled_run_is_withdrawn(world: &StoreHarness) {
    let (started, one) = park_held_call(world).await;
    world.store.cancel_run(EVERY, started.run.id, "no longer needed").await.unwrap();
    assert_eq!(state(world, &started).await, RunState::Cancelled);
    let left = get(world, one.id).await;
    assert_eq!((left.status, left.decided_by.as_deref()), (ApprovalStatus::Cancelled, Some("service")));
    assert_eq!(acts(world, one.id).await, ["policy: approval.held", "service: approval.cancelled"]);
}

async fn held_call_of_a_run_that_ends_meanwhile_is_withdrawn(world: &StoreHarness) {
    let (_, started, asked) = asked_with(world, &["c1", "c2"], |asked| {
        if asked.call_id == "c2" {
            let (ids, of) = ((asked.id, asked.batch_id), asked.identity());
            let proposal = Proposal { undo_seconds: Some(60), ..asked.proposal.clone() };
            *asked = Approval::new_hold(ids, of, asked.task_id, proposal, (TimeDelta::seconds(60), world.now()));
        }
    })
    .await;
    decide(world, &asked[0], ApprovalChoice::Approve).await;
    let again = go_on(world, started.run.id).await;
    world.succeed(&again).await;
    let left = get(world, asked[1].id).await;
    assert_eq!((left.status, left.execution_started_at), (ApprovalStatus::Cancelled, None));
    assert_eq!(acts(world, left.id).await, ["policy: approval.held", "service: approval.cancelled"]);
}

async fn nobody_answers_and_the_run_expires(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1", "c2"]).await;
    decide(world, &asked[0], Cancel).await;
    world.pass(LIMIT - 1);
    assert_eq!(world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(), WaitingOutcome::Waits);
    world.pass(1);
    let if_expired =
        NewDelivery::of_run("a", started.run.id, MessageKind::Result, vec!["email".into()]).into_iter().collect();
    let update = WaitingUpdate { if_expired, ..update(world) };
    assert_eq!(world.store.settle_waiting(started.run.id, &update).await.unwrap(), WaitingOutcome::Expired);
    let run = world.get_run(started.run.id).await;
    assert_eq!(
        (run.state, run.reason.as_deref(), run.finished_at),
        (RunState::Expired, Some("approval_expired"), Some(world.now()))
    );
    let left = get(world, asked[1].id).await;
    assert_eq!((left.status, left.decided_at), (ApprovalStatus::Expired, Some(world.now())));
    assert_eq!(acts(world, asked[1].id).await[1..], ["service: approval.expired"]);
    assert_eq!(refused(decide(world, &asked[1], Approve).await), DecisionRefusal::Settled);
    let filter = DeliveryFilter { limit: 10, ..DeliveryFilter::default() };
    assert_eq!(world.store.list_deliveries(EVERY, &filter).await.unwrap().len(), 1);
    assert_eq!(world.store.settle_waiting(started.run.id, &update).await.unwrap(), WaitingOutcome::Gone);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), None);
}

async fn expired_question_is_a_no_and_the_rest_goes_on(world: &StoreHarness) {
    // told to go on, a chat, and one of which a part may run
    let cases: [fn(&mut Approval); 3] = [
        |asked| asked.proposal.on_expiry = OnExpiry::Cancel,
        |asked| asked.proposal.source = "chat".into(),
        |asked| {
            if asked.call_id == "c1" {
                asked.expires_at += TimeDelta::days(1);
            }
        },
    ];
    for (case, with) in cases.into_iter().enumerate() {
        let (_, started, asked) = asked_with(world, &["c1", "c2"], with).await;
        world.pass(LIMIT);
        if case == 2 {
            assert_eq!(
                world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(),
                WaitingOutcome::Waits
            );
            assert_eq!(get(world, asked[1].id).await.status, ApprovalStatus::Expired);
            decide(world, &asked[0], Approve).await;
        } else {
            assert_eq!(
                world.store.settle_waiting(started.run.id, &update(world)).await.unwrap(),
                WaitingOutcome::Woken
            );
        }
        assert_eq!(state(world, &started).await, RunState::Queued);
        world.succeed(&go_on(world, started.run.id).await).await;
    }
}

async fn waiting_run_is_checked_again_and_reminded_once(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    let reminder = NewDelivery {
        dedupe_key: format!("batch:{}:reminder:1", asked[0].batch_id),
        ..NewDelivery::of_run("a", started.run.id, MessageKind::Result, vec!["email".into()]).unwrap()
    };
    let soon = world.now() + TimeDelta::seconds(100);
    let update = WaitingUpdate { wake_at: soon, deliveries: vec![reminder], if_expired: vec![] };
    for _ in 0..2 {
        assert_eq!(world.store.settle_waiting(started.run.id, &update).await.unwrap(), WaitingOutcome::Waits);
    }
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(soon));
    assert_eq!(world.count("select count(*) from deliveries").await, 1);
    let late = WaitingUpdate { wake_at: soon + TimeDelta::days(1), ..update };
    assert_eq!(world.store.settle_waiting(started.run.id, &late).await.unwrap(), WaitingOutcome::Waits);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(asked[0].expires_at), "no later than it expires");
}

async fn question_takes_the_place_of_another(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    let old = &asked[0];
    decide(world, old, Approve).await;
    let again = go_on(world, started.run.id).await;
    let mut new = question(world, &again, "c1");
    new.digest = "e".repeat(64);
    park(world, &again, &[(new.clone(), Some(old.id))], &[]).await;
    assert_eq!(world.store.approvals_of_turn(started.run.id, 1).await.unwrap(), [new.clone()]);
    assert_eq!(get(world, old.id).await.status, ApprovalStatus::Approved, "what was decided stays on record");
    assert_eq!(refused(decide(world, old, Cancel).await), DecisionRefusal::Settled);
    decide(world, &new, Approve).await;
    let again = go_on(world, started.run.id).await;
    assert_eq!(
        world.store.mark_execution_started(again.lease, old.id, &old.digest).await.unwrap(),
        ApprovedCallStart::Refused
    );
    assert_eq!(
        world.store.mark_execution_started(again.lease, new.id, &new.digest).await.unwrap(),
        ApprovedCallStart::Now
    );
    world.succeed(&again).await;
}

async fn call_is_asked_about_once(world: &StoreHarness) {
    let (_, started, both) = asked(world, &["c1", "c2"]).await;
    decide(world, &both[1], Approve).await;
    let again = go_on(world, started.run.id).await;
    // one that did not know of the question asks again: it has it already, and is told by going on at once
    let twice = question(world, &again, "c1");
    park(world, &again, &[(twice.clone(), None)], &[twice.id]).await;
    assert_eq!(state(world, &started).await, RunState::Queued);
    assert!(matches!(world.store.get_approval(EVERY, twice.id).await, Err(StoreError::NotFound)));
    assert_eq!(world.store.approvals_of_turn(started.run.id, 1).await.unwrap()[0], both[0]);
    // replaced while it is open
    let again = go_on(world, started.run.id).await;
    let new = question(world, &again, "c1");
    park(world, &again, &[(new.clone(), Some(both[0].id))], &[]).await;
    let old = get(world, both[0].id).await;
    assert_eq!((old.status, old.decided_by.as_deref()), (ApprovalStatus::Cancelled, Some("service")));
    assert_eq!(refused(decide(world, &both[0], Approve).await), DecisionRefusal::Settled);
    assert_eq!(get(world, new.id).await.status, ApprovalStatus::Pending);
}

async fn run_that_has_ended_asks_nothing_any_more(world: &StoreHarness) {
    let closed = async |asked: &Approval| {
        let left = get(world, asked.id).await;
        assert_eq!((left.status, left.decided_by.as_deref()), (ApprovalStatus::Cancelled, Some("service")));
        assert_eq!(refused(decide(world, asked, Approve).await), DecisionRefusal::Settled);
        assert_eq!(acts(world, asked.id).await.last().unwrap(), "service: approval.cancelled");
    };
    let (_, started, cancelled) = asked(world, &["c1"]).await;
    assert_eq!(world.store.cancel_run(EVERY, started.run.id, "no").await.unwrap(), Cancelled::Now);
    closed(&cancelled[0]).await;
    let (task, started, deleted) = asked(world, &["c1"]).await;
    world.store.delete_task(EVERY, task.id).await.unwrap();
    assert_eq!(state(world, &started).await, RunState::Cancelled);
    closed(&deleted[0]).await;
    let (_, started, both) = asked(world, &["c1", "c2"]).await;
    decide(world, &both[0], Approve).await;
    world.succeed(&go_on(world, started.run.id).await).await;
    closed(&both[1]).await;
}

async fn run_that_goes_on_waits_for_its_turn_and_is_not_skipped(world: &StoreHarness) {
    let (task, started, one) = asked(world, &["c1"]).await;
    let other = world.started(&task).await;
    decide(world, &one[0], Approve).await;
    let lease = world.claim().await[0].lease;
    let starts = world.store.start_runs(&[lease], world.now() + TimeDelta::seconds(45)).await.unwrap();
    assert_eq!(starts.started, []);
    assert_eq!(state(world, &started).await, RunState::Queued);
    world.succeed(&other).await;
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn run_whose_end_was_asked_for_is_not_parked(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    assert_eq!(world.store.cancel_run(EVERY, started.run.id, "no").await.unwrap(), Cancelled::Asked);
    let one = question(world, &started, "c1");
    let told = NewDelivery::of_run("a", started.run.id, MessageKind::Result, vec!["email".into()]);
    let mut end = parked(world, &started, &[(one.clone(), None)], &[]);
    end.deliveries = told.into_iter().collect();
    assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    let run = world.get_run(started.run.id).await;
    assert_eq!(
        (run.state, run.reason.as_deref(), run.finished_at),
        (RunState::Cancelled, Some("no"), Some(world.now()))
    );
    assert_eq!(world.count("select count(*) from approvals").await, 0);
    assert_eq!(world.count("select count(*) from deliveries").await, 0);
    // nor does it begin what was approved before
    let (_, started, asked) = asked(world, &["c1"]).await;
    decide(world, &asked[0], Approve).await;
    let again = go_on(world, started.run.id).await;
    world.store.cancel_run(EVERY, started.run.id, "no").await.unwrap();
    let begun = world.store.mark_execution_started(again.lease, asked[0].id, &asked[0].digest).await.unwrap();
    assert_eq!(begun, ApprovedCallStart::Refused);
    world.store.finish_runs(&[end_of(&again, RunState::Cancelled)]).await.unwrap();
}

async fn link_leads_to_its_batch_until_its_time_is_over(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1", "c2"]).await;
    let mut link = ApprovalLink {
        batch_id: asked[0].batch_id,
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        expires_at: world.now() + TimeDelta::seconds(60),
    };
    let find = async |hash: [u8; 32]| world.store.approvals_by_link(&hash, world.now()).await;
    assert!(matches!(find([7; 32]).await, Err(StoreError::NotFound)));
    for _ in 0..2 {
        world.store.remember_link(&[7; 32], &link).await.unwrap();
    }
    let whole = |approvals: Vec<Approval>| -> Vec<BatchQuestion> {
        approvals.into_iter().map(|approval| BatchQuestion { approval, left_out: None }).collect()
    };
    assert_eq!(find([7; 32]).await.unwrap(), (link.clone(), whole(asked.clone())));
    assert_eq!(world.store.tenant_of_batch(asked[0].batch_id).await.unwrap().as_deref(), Some("a"));
    assert_eq!(world.store.tenant_of_batch(Uuid::from_u128(9)).await.unwrap(), None);
    world.pass(60);
    assert!(matches!(find([7; 32]).await, Err(StoreError::NotFound)));
    link.expires_at += TimeDelta::seconds(60);
    world.store.remember_link(&[7; 32], &link).await.unwrap();
    assert_eq!(find([7; 32]).await.unwrap().0, link);
    // what was replaced is not shown
    decide(world, &asked[0], Approve).await;
    let again = go_on(world, started.run.id).await;
    let new = question(world, &again, "c1");
    park(world, &again, &[(new.clone(), Some(asked[0].id))], &[]).await;
    assert_eq!(find([7; 32]).await.unwrap().1, whole(vec![asked[1].clone(), new]));
    let elsewhere = ApprovalLink { tenant_id: "b".into(), ..link };
    world.store.remember_link(&[8; 32], &elsewhere).await.unwrap();
    assert_eq!(find([8; 32]).await.unwrap().1, [], "a link of another tenant leads nowhere");
}

async fn batch_is_read_whole_up_to_its_bound_and_beyond_it_by_beginnings(world: &StoreHarness) {
    const BATCH_BYTES: usize = 1_048_576;
    let text = |bytes: usize| json!({ "to": "é".repeat(bytes / 2), "more": "x".repeat(bytes % 2) });
    let stored = "select cast(max(octet_length(cast(proposal as text))) as bigint) from approvals";
    asked_with(world, &["c1"], |asked| asked.proposal.arguments = text(0)).await;
    let bare = usize::try_from(world.count(stored).await).unwrap();
    // one fills the room to its last byte, and would be a byte too large
    for (more, left_out) in [(0, None), (1, Some(()))] {
        let large = text(BATCH_BYTES - bare + more);
        let (_, _, asked) = asked_with(world, &["c1"], |asked| asked.proposal.arguments = large.clone()).await;
        let [read] = <[_; 1]>::try_from(world.store.approvals_of_batch("a", asked[0].batch_id).await.unwrap()).unwrap();
        assert_eq!(read.left_out.map(|_| ()), left_out, "{more}");
        assert_eq!(read.approval == asked[0], left_out.is_none(), "{more}");
    }
    // the open ones are first, and a small one has room behind a large one
    let (_, _, asked) = asked_with(world, &["c1", "c2", "c3"], |asked| {
        asked.proposal.summary = "s".repeat(2_000);
        asked.proposal.precheck = Some(json!("found"));
        let bytes = if asked.call_id == "c3" { 10 } else { 700_000 };
        asked.proposal.arguments = json!({ "to": "é".repeat(bytes / 2) });
    })
    .await;
    let read = async || world.store.approvals_of_batch("a", asked[0].batch_id).await.unwrap();
    let lengths = |read: &[BatchQuestion]| read.iter().map(|one| one.left_out).collect::<Vec<_>>();
    // PostgreSQL writes a space behind a colon
    let length = 700_000 + r#"{"to":""}"#.len() as i64 + i64::from(world.is_postgres());
    let first = read().await;
    assert_eq!(lengths(&first), [None, Some(length), None]);
    let (cut, whole) = (&first[1].approval, &asked[1]);
    assert_eq!((cut.id, &cut.digest, cut.proposal.summary.len()), (whole.id, &whole.digest, 1_000));
    assert_eq!((&cut.proposal.parameters, &cut.proposal.precheck), (&json!(null), &None));
    let beginning = cut.proposal.arguments.as_str().unwrap();
    assert!(beginning.chars().count() == 1_000 && beginning.starts_with("{\"to\":"), "{beginning}");
    decide(world, &asked[0], Approve).await;
    assert_eq!(lengths(&read().await), [Some(length), None, None]);
    // of one that was edited it is the arguments that run
    decide(world, &asked[1], Edit).await;
    let small = json!({ "to": "ann", "amount": 5 }).to_string().len() as i64 + if world.is_postgres() { 3 } else { 0 };
    let read = read().await;
    assert_eq!(lengths(&read), [None, Some(small), None]);
    assert!(read[1].approval.arguments().as_str().unwrap().contains("ann"));
}

async fn approvals_are_deleted_with_their_run(world: &StoreHarness) {
    let (_, started, asked) = asked_with(world, &["c1"], |asked| asked.proposal.approvers = 2).await;
    let link = |days| ApprovalLink {
        batch_id: if days == 0 { new_id(world.now()) } else { asked[0].batch_id },
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        expires_at: world.now() + TimeDelta::days(days),
    };
    world.store.remember_link(&[1; 32], &link(9)).await.unwrap();
    world.store.remember_link(&[2; 32], &link(0)).await.unwrap();
    decide(world, &asked[0], Approve).await;
    world.store.cancel_run(EVERY, started.run.id, "no").await.unwrap();
    let written = world.count("select count(*) from audit").await;
    world.pass(1);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 1);
    assert_eq!(world.store.forget_links(world.now(), 9).await.unwrap(), 1, "of what is not there any more");
    for table in ["approvals", "approval_votes", "approval_links"] {
        assert_eq!(world.count(&format!("select count(*) from {table}")).await, 0, "{table}");
    }
    assert_eq!((world.count("select count(*) from audit").await, written), (3, 3));
}

async fn of_a_hundred_answers_one_has_its_effect(world: &StoreHarness) {
    let other = world.other_instance().await;
    let (_, started, asked) = asked(world, &["c1"]).await;
    let answers = (0..100).map(|n| {
        let store = if n % 2 == 0 { world.store.clone() } else { other.clone() };
        let answer = answer(if n % 3 == 0 { Cancel } else { Approve }, &asked[0], &format!("token:{n}"));
        let id = asked[0].id;
        tokio::spawn(async move { store.decide_approval(EVERY, id, &answer).await.unwrap() })
    });
    let answers: Vec<_> = answers.collect();
    let mut done = Vec::new();
    for decided in answers {
        match decided.await.unwrap() {
            DecisionOutcome::Done(approval) => done.push(approval),
            told => assert_eq!(refused(told), DecisionRefusal::Settled),
        }
    }
    assert_eq!(done, [get(world, asked[0].id).await]);
    assert_eq!(acts(world, asked[0].id).await.len(), 2);
    assert_eq!(world.count("select count(*) from queue").await, 1);
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn of_an_answer_and_an_expiry_one_wins(world: &StoreHarness) {
    let other = world.other_instance().await;
    for _ in 0..10 {
        let (_, started, asked) = asked(world, &["c1"]).await;
        world.pass(LIMIT - 1);
        let (run, update, answer) = (started.run.id, update(world), answer(Approve, &asked[0], "token:t"));
        let expiry = async {
            world.pass(1);
            other.settle_waiting(run, &update).await.unwrap()
        };
        let (decided, attended) = tokio::join!(world.store.decide_approval(EVERY, asked[0].id, &answer), expiry);
        let outcome = (matches!(decided, Ok(DecisionOutcome::Done(_))), attended, state(world, &started).await);
        let expected =
            [(true, WaitingOutcome::Gone, RunState::Queued), (false, WaitingOutcome::Expired, RunState::Expired)];
        assert!(expected.contains(&outcome), "{outcome:?}");
        if outcome.0 {
            world.succeed(&go_on(world, run).await).await;
        }
    }
}

async fn pending_approvals_are_found_among_many_decided(world: &StoreHarness) {
    let (_, _, asked) = asked(world, &["c1"]).await;
    let (numbers, key) = match world.is_postgres() {
        true => ("select n from generate_series(1, 20000) as n (n)", "md5(cast(n.n as text))::uuid"),
        false => (
            "with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000) select n from n",
            "unhex(printf('%032x', n.n))",
        ),
    };
    world
        .plant(&format!(
            "insert into approvals (id, batch_id, run_id, task_id, tenant_id, turn, call_id, tool, digest, proposal, status,
                                    created_at, expires_at, decided_at, decided_by)
             select {key}, a.batch_id, {key}, a.task_id, a.tenant_id, a.turn, a.call_id, a.tool, a.digest, a.proposal,
                    'approved', a.created_at, a.expires_at, a.created_at, 'token:t'
               from approvals a, ({numbers}) as n where a.tool = 'mail.send'"
        ))
        .await;
    world.plant("analyze").await;
    for scope in [only("a"), Scope::Every] {
        let filter = ApprovalFilter { status: Some(ApprovalStatus::Pending), limit: 50, ..Default::default() };
        assert_eq!(world.store.list_approvals(&scope, &filter).await.unwrap(), asked);
    }
    // the statements of the list, as both databases would go about them
    for more in ["and a.tenant_id = 'a'", ""] {
        let list = format!(
            "select a.id from approvals a where true {more} and a.status = 'pending' order by a.id desc limit 50"
        );
        let plan = plan(world, &list).await;
        let of_pending_ones = ["approvals_pending", "approvals_open"].iter().any(|index| plan.contains(index));
        assert!(of_pending_ones && !plan.contains("Seq Scan"), "{plan}");
        let of_kind = list.replace("'pending'", "'pending' and a.kind = 'input'");
        let plan = self::plan(world, &of_kind).await;
        let of_pending_ones =
            ["approvals_pending", "approvals_open", "approvals_inputs"].iter().any(|index| plan.contains(index));
        assert!(of_pending_ones && !plan.contains("Seq Scan"), "{plan}");
    }
}

pub async fn plan(world: &StoreHarness, statement: &str) -> String {
    plan_under(world, &[], statement).await
}

/// The plan where the engine's own connections ask, which have no way to scan.
pub async fn quick_plan(world: &StoreHarness, statement: &str) -> String {
    let settings = ["set enable_seqscan = off", "set enable_bitmapscan = off", "set enable_sort = off"];
    plan_under(world, &settings, statement).await
}

async fn plan_under(world: &StoreHarness, settings: &[&'static str], statement: &str) -> String {
    let url = world.url();
    if world.is_postgres() {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::query("set reveille.tenant = '*'").execute(&mut connection).await.unwrap();
        for setting in settings {
            sqlx::query(*setting).execute(&mut connection).await.unwrap();
        }
        let explain = sqlx::AssertSqlSafe(format!("explain {statement}"));
        let lines: Vec<String> = sqlx::query_scalar(explain).fetch_all(&mut connection).await.unwrap();
        lines.join("\n") + "\n"
    } else {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        let explain = sqlx::AssertSqlSafe(format!("explain query plan {statement}"));
        let lines: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(&mut connection).await.unwrap();
        lines.into_iter().map(|line| line.3 + "\n").collect()
    }
}
