//! Standing grants: what they cover, that each use counts once, and what ends them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{Approval, ApprovalAnswer, ApprovalChoice, ApprovalStatus};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::store::{AuditFilter, DecisionOutcome, DecisionRefusal, Grant, GrantUse, StoreError};
use serde_json::{Value, json};
use uuid::Uuid;

use super::asked::{answer, asked, asked_with, go_on, proposal};
use super::world::{StoreHarness, only, spec};

on_both!(
    grant_is_kept_listed_and_revoked_once,
    grant_covers_what_it_was_given_for_and_nothing_else,
    use_counts_once_whatever_is_repeated,
    of_many_who_want_the_last_use_one_gets_it,
    call_that_no_grant_is_for_waits_for_nobody_who_writes,
    change_of_the_task_ends_its_grants,
    edit_or_a_cancel_of_such_a_call_ends_them,
    decision_and_its_grant_are_kept_together_or_not_at_all,
    answer_that_decides_nothing_gives_no_grant,
);

const EVERY: &Scope = &Scope::Every;

pub fn grant(task: &Task, now: DateTime<Utc>) -> Grant {
    Grant {
        id: new_id(now),
        tenant_id: task.tenant_id.clone(),
        task_id: task.id,
        tool: "mail.send".into(),
        epoch: task.epoch,
        args: json!({ "to": "ann" }),
        definition: proposal().definition,
        uses_left: None,
        created_at: now,
        created_by: "recipient:a".into(),
        expires_at: now + TimeDelta::days(30),
        revoked_at: None,
        revoked_by: None,
    }
}

/// A task, and a grant for it that is stored, changed by `with`.
pub async fn granted(world: &StoreHarness, with: impl FnOnce(&mut Grant)) -> (Task, Grant) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let mut grant = grant(&task, world.now());
    with(&mut grant);
    world.store.create_grant(&only("a"), &grant).await.unwrap();
    (task, grant)
}

/// A call by a run of its own.
pub async fn used(world: &StoreHarness, task: &Task, arguments: Value) -> Option<Uuid> {
    used_by(world, task, new_id(world.now()), arguments).await
}

async fn used_by(world: &StoreHarness, task: &Task, run_id: Uuid, arguments: Value) -> Option<Uuid> {
    let definition = proposal().definition;
    let call = GrantUse { arguments: &arguments, ..call(task, run_id, &definition) };
    world.store.use_grant(&call).await.unwrap()
}

static TO_ANN: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| json!({ "to": "ann", "amount": 7 }));

fn call<'a>(task: &'a Task, run_id: Uuid, definition: &'a str) -> GrantUse<'a> {
    GrantUse {
        tenant: &task.tenant_id,
        task_id: task.id,
        run_id,
        turn: 1,
        call_id: "c1",
        tool: "mail.send",
        definition,
        arguments: &TO_ANN,
    }
}

async fn acts(world: &StoreHarness, subject: Uuid) -> Vec<String> {
    let filter = AuditFilter { subject_id: Some(subject), limit: 50, ..AuditFilter::default() };
    let entries = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    entries.iter().rev().map(|entry| format!("{} by {}: {}", entry.actor, entry.via, entry.action)).collect()
}

/// The grant as it is listed.
async fn kept(world: &StoreHarness, id: Uuid) -> Grant {
    let listed = world.store.list_grants(EVERY, None, None, 50).await.unwrap().rows;
    listed.into_iter().find(|grant| grant.id == id).expect("a grant of this id")
}

async fn grant_is_kept_listed_and_revoked_once(world: &StoreHarness) {
    let (task, first) = granted(world, |_| ()).await;
    let second = Grant { id: new_id(world.now()), created_by: "token:t".into(), ..first.clone() };
    world.store.create_grant(EVERY, &second).await.unwrap();
    assert_eq!(kept(world, first.id).await, first);
    let list = async |task_id, before| {
        let found = world.store.list_grants(&only("a"), task_id, before, 9).await.unwrap();
        found.rows.into_iter().map(|grant| grant.id).collect::<Vec<_>>()
    };
    assert_eq!(list(Some(task.id), None).await, [second.id, first.id]);
    assert_eq!(list(None, Some(second.id)).await, [first.id]);
    assert_eq!(list(Some(first.id), None).await, Vec::<Uuid>::new());
    world.pass(5);
    let revoked = Grant { revoked_at: Some(world.now()), revoked_by: Some("token:t".into()), ..first.clone() };
    assert_eq!(world.store.revoke_grant(&only("a"), first.id, "token:t").await.unwrap(), revoked);
    world.pass(5);
    assert_eq!(world.store.revoke_grant(&only("a"), first.id, "token:u").await.unwrap(), revoked);
    assert_eq!(acts(world, first.id).await, ["recipient:a by link: grant.created", "token:t by api: grant.revoked"]);
    // the other one covers still, this one does not
    assert_eq!(used(world, &task, TO_ANN.clone()).await, Some(second.id));
    world.store.revoke_grant(EVERY, second.id, "token:t").await.unwrap();
    assert_eq!(used(world, &task, TO_ANN.clone()).await, None);
    for none in [
        world.store.revoke_grant(EVERY, task.id, "token:t").await,
        world.store.revoke_grant(&only("b"), first.id, "token:t").await,
    ] {
        assert!(matches!(none, Err(StoreError::NotFound)), "{none:?}");
    }
    let elsewhere = Grant { id: new_id(world.now()), tenant_id: "b".into(), ..first.clone() };
    assert!(matches!(world.store.create_grant(EVERY, &elsewhere).await, Err(StoreError::NotFound)));
    let stale = Grant { id: new_id(world.now()), epoch: task.epoch + 1, ..first };
    assert!(matches!(world.store.create_grant(EVERY, &stale).await, Err(StoreError::Conflict(_))));
}

async fn grant_covers_what_it_was_given_for_and_nothing_else(world: &StoreHarness) {
    let (task, grant) = granted(world, |grant| grant.args = json!({ "to": "ann", "cc": null })).await;
    let other = world.task(json!({ "interval": "1h" })).await;
    let to_ann = json!({ "to": "ann", "cc": null, "amount": 7 });
    assert_eq!(used(world, &task, to_ann.clone()).await, Some(grant.id), "other arguments are free");
    for other in [json!({ "to": "bob", "cc": null }), json!({ "to": "ann" }), json!({}), json!("ann"), json!(null)] {
        assert_eq!(used(world, &task, other.clone()).await, None, "{other}");
    }
    let definition = proposal().definition;
    let right = GrantUse { arguments: &to_ann, ..call(&task, new_id(world.now()), &definition) };
    for wrong in [
        GrantUse { tenant: "b", ..right },
        GrantUse { task_id: other.id, ..right },
        GrantUse { tool: "mail.sent", ..right },
        GrantUse { definition: "another", ..right },
    ] {
        assert_eq!(world.store.use_grant(&wrong).await.unwrap(), None, "{wrong:?}");
    }
    world.pass(30 * 86_400 - 1);
    assert_eq!(used(world, &task, to_ann.clone()).await, Some(grant.id));
    world.pass(1);
    assert_eq!(used(world, &task, to_ann).await, None, "its time is over");
}

async fn use_counts_once_whatever_is_repeated(world: &StoreHarness) {
    let (task, grant) = granted(world, |grant| grant.uses_left = Some(2)).await;
    let (one, two, three) = (new_id(world.now()), new_id(world.now()), new_id(world.now()));
    for _ in 0..3 {
        assert_eq!(used_by(world, &task, one, TO_ANN.clone()).await, Some(grant.id));
    }
    assert_eq!(kept(world, grant.id).await.uses_left, Some(1));
    assert_eq!(used_by(world, &task, two, TO_ANN.clone()).await, Some(grant.id));
    assert_eq!(used_by(world, &task, three, TO_ANN.clone()).await, None);
    assert_eq!(used_by(world, &task, one, TO_ANN.clone()).await, Some(grant.id), "used before");
    let expected =
        ["recipient:a by link: grant.created", "service by service: grant.used", "service by service: grant.used"];
    assert_eq!(acts(world, grant.id).await, expected);
}

async fn of_many_who_want_the_last_use_one_gets_it(world: &StoreHarness) {
    let (task, grant) = granted(world, |grant| grant.uses_left = Some(1)).await;
    let other = world.other_instance().await;
    let calls = (0..20).map(|n| {
        let (store, task) = (if n % 2 == 0 { world.store.clone() } else { other.clone() }, task.clone());
        // each call twice
        let run_id = Uuid::from_u128(n / 2);
        tokio::spawn(async move { store.use_grant(&call(&task, run_id, &proposal().definition)).await.unwrap() })
    });
    let mut covered = 0;
    for call in calls.collect::<Vec<_>>() {
        covered += usize::from(call.await.unwrap() == Some(grant.id));
    }
    assert_eq!(covered, 2, "one call, which asked twice");
    assert_eq!(kept(world, grant.id).await.uses_left, Some(0));
    assert_eq!(world.count("select count(*) from grant_uses").await, 1);
}

async fn call_that_no_grant_is_for_waits_for_nobody_who_writes(world: &StoreHarness) {
    granted(world, |_| ()).await;
    let (task, definition) = (world.task(json!({ "interval": "1h" })).await, proposal().definition);
    let other = call(&task, new_id(world.now()), &definition);
    let lock: &[&str] = match world.is_postgres() {
        true => &["begin", "lock table grants in exclusive mode"],
        false => &["begin immediate"],
    };
    for statement in lock {
        world.plant(statement).await;
    }
    let found = tokio::time::timeout(Duration::from_secs(20), world.store.use_grant(&other)).await;
    world.plant("rollback").await;
    assert_eq!(found.expect("nobody is waited for").unwrap(), None);
}

async fn change_of_the_task_ends_its_grants(world: &StoreHarness) {
    let (task, grant) = granted(world, |_| ()).await;
    let spec = Box::new(spec(json!({ "interval": "2h" }), json!({})));
    let edit = TaskChange::Edit { version: task.version, name: "n".into(), spec };
    let changed = world.store.change_task(EVERY, task.id, &edit).await.unwrap();
    assert_ne!(changed.epoch, grant.epoch);
    assert_eq!(used(world, &changed, TO_ANN.clone()).await, None);
    let (task, _) = granted(world, |_| ()).await;
    world.store.delete_task(EVERY, task.id).await.unwrap();
    assert_eq!(used(world, &task, TO_ANN.clone()).await, None);
}

async fn decision_and_its_grant_are_kept_together_or_not_at_all(world: &StoreHarness) {
    let (task, started, asked) = asked(world, &["c1"]).await;
    let one = &asked[0];
    let yes = answer(ApprovalChoice::Approve, one, "recipient:a");
    let decide = async |grant: &Grant| world.store.decide_and_grant(&only("a"), one.id, &yes, grant).await;
    // what was allowed is another task by now, or none
    let stale = Grant { epoch: task.epoch + 1, ..grant(&task, world.now()) };
    let gone = Grant { task_id: started.run.id, ..grant(&task, world.now()) };
    for grant in [&stale, &gone] {
        let refused = decide(grant).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    }
    let elsewhere = world.store.decide_and_grant(&only("b"), one.id, &yes, &grant(&task, world.now())).await;
    assert!(matches!(elsewhere, Err(StoreError::NotFound)), "{elsewhere:?}");
    assert_eq!(world.store.get_approval(EVERY, one.id).await.unwrap(), *one, "nothing was decided");
    assert_eq!(world.get_run(started.run.id).await.state, RunState::PendingApproval);
    assert_eq!(acts(world, one.id).await, ["service by service: approval.asked"]);
    assert_eq!(world.count("select count(*) from grants").await, 0);
    let kept = grant(&task, world.now());
    let decided = decide(&kept).await.unwrap();
    assert!(matches!(decided, DecisionOutcome::Done(done) if done.status == ApprovalStatus::Approved));
    assert_eq!(self::kept(world, kept.id).await, kept);
    assert_eq!(acts(world, kept.id).await, ["recipient:a by link: grant.created"]);
    assert_eq!(used(world, &task, TO_ANN.clone()).await, Some(kept.id));
    world.succeed(&go_on(world, started.run.id).await).await;
}

async fn answer_that_decides_nothing_gives_no_grant(world: &StoreHarness) {
    let two = |asked: &mut Approval| asked.proposal.approvers = 2;
    let (task, _, asked) = asked_with(world, &["c1", "c2", "c3"], two).await;
    let decide = async |of: usize, answer: &ApprovalAnswer| {
        let grant = grant(&task, world.now());
        world.store.decide_and_grant(EVERY, asked[of].id, answer, &grant).await.unwrap()
    };
    let vote = decide(0, &answer(ApprovalChoice::Approve, &asked[0], "token:t")).await;
    assert!(matches!(vote, DecisionOutcome::Counted(_)), "{vote:?}");
    let cancel = decide(1, &answer(ApprovalChoice::Cancel, &asked[1], "token:t")).await;
    assert!(matches!(cancel, DecisionOutcome::Done(_)), "{cancel:?}");
    let unseen = ApprovalAnswer { digest: "0".repeat(64), ..answer(ApprovalChoice::Approve, &asked[2], "token:t") };
    let refused = decide(2, &unseen).await;
    assert!(matches!(refused, DecisionOutcome::Refused(DecisionRefusal::OtherDigest, _)), "{refused:?}");
    assert_eq!(world.count("select count(*) from grants").await, 0);
}

async fn edit_or_a_cancel_of_such_a_call_ends_them(world: &StoreHarness) {
    for choice in [ApprovalChoice::Approve, ApprovalChoice::Edit, ApprovalChoice::Cancel] {
        let (task, started, asked) = asked(world, &["c1"]).await;
        let covers = grant(&task, world.now());
        let other_tool = Grant { id: new_id(world.now()), tool: "mail.read".into(), ..covers.clone() };
        for grant in [&covers, &other_tool] {
            world.store.create_grant(EVERY, grant).await.unwrap();
        }
        world.store.decide_approval(EVERY, asked[0].id, &answer(choice, &asked[0], "token:t")).await.unwrap();
        let left = kept(world, covers.id).await;
        let ended = (choice != ApprovalChoice::Approve).then(|| "token:t".to_owned());
        assert_eq!(left.revoked_by, ended, "{choice:?}");
        assert_eq!(acts(world, covers.id).await.len(), if ended.is_some() { 2 } else { 1 });
        assert_eq!(kept(world, other_tool.id).await.revoked_at, None);
        world.succeed(&go_on(world, started.run.id).await).await;
    }
    // a vote is no decision yet
    let (task, _, asked) = asked_with(world, &["c1"], |asked| asked.proposal.approvers = 2).await;
    let covers = grant(&task, world.now());
    world.store.create_grant(EVERY, &covers).await.unwrap();
    let vote = answer(ApprovalChoice::Edit, &asked[0], "token:t");
    world.store.decide_approval(EVERY, asked[0].id, &vote).await.unwrap();
    assert_eq!(kept(world, covers.id).await.revoked_at, None);
}
