//! Questions to people, as cases put them: a proposal, a run that is parked for it, an answer.

use chrono::TimeDelta;
use reveille::base::id::new_id;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::domain::approval::proposal::Proposal;
use reveille::domain::approval::{
    Approval, ApprovalAnswer, ApprovalChoice, OnExpiry, OpenQuestion, ProposalIdentity, QuestionKind, Via,
};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{Finish, Park, StartedRun};
use serde_json::json;
use uuid::Uuid;

use super::world::{LEASE, StoreHarness, end_of};

/// How long there is to answer, in seconds.
pub const LIMIT: i64 = 1800;

pub fn proposal() -> Proposal {
    Proposal {
        kind: Default::default(),
        tool: "mail.send".into(),
        version: "1.0.0".into(),
        definition: "d".repeat(64),
        summary: "Sends a mail to ann".into(),
        description: "Sends a mail".into(),
        arguments: json!({ "to": "ann", "amount": 100 }),
        parameters: json!({ "type": "object" }),
        lacks: vec![],
        server: None,
        category: Category::SideEffect,
        consequence: Consequence::High,
        reasons: vec!["side effects of high consequence are asked about".into()],
        reason_codes: vec![],
        options: vec![ApprovalChoice::Approve, ApprovalChoice::Edit, ApprovalChoice::Cancel],
        allow_modification: true,
        source: "trigger".into(),
        delegation_chain: vec!["main".into()],
        step: Some("pay:3".into()),
        on_expiry: OnExpiry::Expire,
        approvers: 1,
        excluded_approver: None,
        confirmation: None,
        undo_seconds: None,
        precheck: None,
        timeout_seconds: LIMIT as u64,
    }
}

/// A question about a call of the first turn of a run; not put yet.
pub fn question(world: &StoreHarness, started: &StartedRun, call: &str) -> Approval {
    let run = &started.run;
    let of = ProposalIdentity { tenant: &run.tenant_id, run_id: run.id, turn: 1, call_id: call };
    let ids = (new_id(world.now()), run.id);
    Approval {
        expires_at: world.now() + TimeDelta::seconds(LIMIT),
        ..Approval::asked(ids, of, run.task_id, proposal(), world.now())
    }
}

/// The end of an execution that waits for people.
pub fn parked(world: &StoreHarness, started: &StartedRun, asks: &[(Approval, Option<Uuid>)], open: &[Uuid]) -> Finish {
    let wake_at = world.now() + TimeDelta::seconds(LIMIT / 2);
    let question = |id: &Uuid| OpenQuestion { id: *id, turn: 1, kind: QuestionKind::Approval };
    let open = open.iter().map(question).collect();
    let park = Park::Approval { wake_at, asks: asks.to_vec(), open };
    Finish { park: Some(park), ..end_of(started, RunState::PendingApproval) }
}

pub async fn park(world: &StoreHarness, started: &StartedRun, asks: &[(Approval, Option<Uuid>)], open: &[Uuid]) {
    let end = parked(world, started, asks, open);
    assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
}

/// A run of a new task that is parked with a question for each of these calls, changed by `with`.
pub async fn asked_with(
    world: &StoreHarness,
    calls: &[&str],
    with: impl Fn(&mut Approval),
) -> (Task, StartedRun, Vec<Approval>) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    let mut asks = Vec::new();
    for call in calls {
        let mut asked = question(world, &started, call);
        with(&mut asked);
        asks.push((asked, None));
    }
    park(world, &started, &asks, &[]).await;
    (task, started, asks.into_iter().map(|(asked, _)| asked).collect())
}

pub async fn asked(world: &StoreHarness, calls: &[&str]) -> (Task, StartedRun, Vec<Approval>) {
    asked_with(world, calls, |_| ()).await
}

pub fn answer(choice: ApprovalChoice, to: &Approval, by: &str) -> ApprovalAnswer {
    let arguments = json!({ "to": "ann", "amount": 5 });
    let edited = (choice == ApprovalChoice::Edit).then(|| {
        let digest = to.proposal.digest(&to.identity(), &arguments);
        (arguments, digest)
    });
    ApprovalAnswer { choice, digest: to.digest.clone(), edited, comment: None, by: by.into(), via: Via::Api }
}

/// Starts a run that was woken, and is alone in the queue.
pub async fn go_on(world: &StoreHarness, id: Uuid) -> StartedRun {
    let claims = world.claim().await;
    let lease = claims.into_iter().map(|claim| claim.lease).find(|lease| lease.run_id == id).expect("it is queued");
    let mut starts = world.store.start_runs(&[lease], world.now() + LEASE).await.unwrap();
    assert_eq!(starts.blocked, []);
    starts.started.remove(0)
}
