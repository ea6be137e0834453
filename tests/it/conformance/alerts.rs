//! Ends that are told with measure: of a cause once, of a result when it changed, of the end of failures.

use chrono::TimeDelta;
use futures::future::BoxFuture;
use reveille::base::id::Scope;
use reveille::domain::notification::language::MessageLanguage;
use reveille::domain::notification::run_notification::{NotifiedOutcome, RunNotification};
use reveille::domain::notification::{
    Delivery, DeliveryClaim, DeliveryReport, HoldReason, Mark, MessageKind, NewDelivery, NoticeKind, ReportedFate,
    SubjectRef,
};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{DeliveryFilter, Finish};
use serde_json::json;
use uuid::Uuid;

use super::world::{StoreHarness, end_of};
use crate::support::outbox::claim_due;

on_both!(
    cause_is_told_once_however_many_runs_fail_at_once_and_then_that_all_is_well,
    result_is_told_when_it_changed,
    undelivered_message_counts_as_not_told,
    undelivered_message_counts_as_not_told_whatever_its_subject_and_key,
    message_that_falls_back_is_still_being_told,
    summary_that_did_not_arrive_leaves_the_next_failure_to_be_told,
    deleted_task_leaves_nothing_of_what_it_told,
    missing_field_is_told_once_for_each_version_of_the_steps_and_never_of_a_deleted_task,
);

async fn missing_field_is_told_once_for_each_version_of_the_steps_and_never_of_a_deleted_task(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let notice = |steps: &str| NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: format!("notice:missing_field:{steps}"),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Notice,
        urgency: MessageKind::Notice.urgency(),
        subject: Some(format!("missing in {steps}")),
        text: Some("a field".into()),
    };
    let tell = async |steps: &str| {
        let known = world.store.is_missing_reported(task.id, steps).await.unwrap();
        let told = world.store.report_missing(task.id, steps, &notice(steps)).await.unwrap();
        assert!(world.store.is_missing_reported(task.id, steps).await.unwrap() || !told);
        assert!(!(known && told));
        told
    };
    assert!(tell("one").await);
    assert!(!tell("one").await);
    let second = notice("two");
    let (first, second) = tokio::join!(
        world.store.report_missing(task.id, "two", &second),
        world.store.report_missing(task.id, "two", &second)
    );
    assert!(first.unwrap() != second.unwrap(), "of two at once one tells");
    assert_eq!(delivered_subjects(world).await, ["missing in one", "missing in two"]);
    // what the ends of the task's runs have told stands beside it
    ends(world, &task, failed("away")).await;
    assert!(!tell("two").await);
    assert_eq!(delivered_subjects(world).await.len(), 3);
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    assert!(!tell("three").await);
    assert_eq!(world.count("select count(*) from task_alerts").await, 0);
}

/// The end of a run that is told by email.
pub fn tells(task: &Task, run: Uuid, outcome: NotifiedOutcome) -> Option<RunNotification> {
    let kind =
        if matches!(outcome, NotifiedOutcome::Failure { .. }) { MessageKind::Failure } else { MessageKind::Result };
    let delivery = NewDelivery::of_run(&task.tenant_id, run, kind, vec!["email".into()])?;
    Some(RunNotification {
        task_id: task.id,
        task_name: task.name.clone(),
        outcome,
        language: MessageLanguage::English,
        delivery,
    })
}

fn failed(code: &str) -> NotifiedOutcome {
    NotifiedOutcome::Failure { code: code.into() }
}

fn succeeded(hash: Option<u8>) -> NotifiedOutcome {
    NotifiedOutcome::Success { wanted: true, hash: hash.map(|byte| vec![byte; 32]) }
}

async fn end(world: &StoreHarness, task: &Task, outcome: NotifiedOutcome) -> Finish {
    let started = world.started(task).await;
    let state = if matches!(outcome, NotifiedOutcome::Failure { .. }) { RunState::Failed } else { RunState::Succeeded };
    Finish { tells: tells(task, started.run.id, outcome), ..end_of(&started, state) }
}

async fn ends(world: &StoreHarness, task: &Task, outcome: NotifiedOutcome) {
    let end = end(world, task, outcome).await;
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
    world.pass(60);
}

/// Subjects, or kinds where the run makes the subject, the oldest first.
async fn delivered_subjects(world: &StoreHarness) -> Vec<String> {
    let filter = DeliveryFilter { limit: 100, ..DeliveryFilter::default() };
    let mut told = world.store.list_deliveries(&Scope::Every, &filter).await.unwrap();
    told.reverse();
    told.into_iter().map(|one| one.subject.unwrap_or_else(|| one.kind.as_str().to_owned())).collect()
}

async fn cause_is_told_once_however_many_runs_fail_at_once_and_then_that_all_is_well(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h", "overlap": "allow" })).await;
    let mut at_once = vec![];
    for _ in 0..6 {
        at_once.push(end(world, &task, failed("llm_auth")).await);
    }
    let (one, other) = at_once.split_at(3);
    let (one, other) = tokio::join!(world.store.finish_runs(one), world.store.finish_runs(other));
    assert_eq!((one.unwrap().len(), other.unwrap().len()), (0, 0));
    assert_eq!(delivered_subjects(world).await, ["failure"]);
    world.pass(24 * 3600);
    ends(world, &task, failed("llm_auth")).await;
    ends(world, &task, failed("timeout")).await;
    ends(world, &task, succeeded(None)).await;
    ends(world, &task, succeeded(None)).await;
    let name = &task.name;
    let expected = [
        "failure".to_owned(),
        format!("Still failing: {name}"),
        "failure".to_owned(),
        format!("Well again: {name}"),
        "result".to_owned(),
        "result".to_owned(),
    ];
    assert_eq!(delivered_subjects(world).await, expected);
}

async fn result_is_told_when_it_changed(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    for hash in [1, 1, 2, 2, 1] {
        ends(world, &task, succeeded(Some(hash))).await;
    }
    assert_eq!(delivered_subjects(world).await, ["result"; 3]);
}

async fn undelivered_message_counts_as_not_told(world: &StoreHarness) {
    for way in [refused, reported, in_a_digest] {
        let task = world.task(json!({ "interval": "1h" })).await;
        for expected in [1, 1] {
            ends(world, &task, succeeded(Some(1))).await;
            assert_eq!(delivered_subjects(world).await.len(), expected);
        }
        way(world).await;
        let before = delivered_subjects(world).await.len();
        ends(world, &task, succeeded(Some(1))).await;
        assert_eq!(delivered_subjects(world).await.len(), before + 1);
        world.plant("delete from deliveries").await;
    }
}

async fn undelivered_message_counts_as_not_told_whatever_its_subject_and_key(world: &StoreHarness) {
    let fail = async |claim: DeliveryClaim| {
        world.plant("update deliveries set subject = 'Bonjour', dedupe_key = 'k' || created_at").await;
        let failed = Mark::Failed { error: "no such address".into(), fall_back: None };
        world.store.mark_delivery(&claim, &failed).await.unwrap();
    };
    let task = world.task(json!({ "interval": "1h" })).await;
    for so_far in [1, 2] {
        ends(world, &task, succeeded(Some(1))).await;
        assert_eq!(delivered_subjects(world).await.len(), so_far, "of a result");
        fail(claimed(world).await).await;
    }
    ends(world, &task, failed("http_500")).await;
    world.store.mark_delivery(&claimed(world).await, &Mark::Delivered { provider_id: None }).await.unwrap();
    world.pass(25 * 3600);
    ends(world, &task, failed("http_500")).await;
    fail(claimed(world).await).await;
    ends(world, &task, failed("http_500")).await;
    assert_eq!(delivered_subjects(world).await[4..], ["failure"], "of a summary");
    // a message about the task that tells of no end
    let notice = NewDelivery {
        dedupe_key: "notice:failing:1:1".into(),
        kind: MessageKind::Notice,
        subject_ref: Some(SubjectRef::Notice { notice: NoticeKind::Recovered, task_id: task.id }),
        ..NewDelivery::of_run("a", Uuid::from_u128(1), MessageKind::Notice, vec!["sms".into()]).unwrap()
    };
    world.plant("delete from deliveries where state = 'pending'").await;
    world
        .store
        .post_delivery(&NewDelivery { run_id: world.runs_of(&task).await.first().map(|run| run.id), ..notice })
        .await
        .unwrap();
    fail(claimed(world).await).await;
    let before = delivered_subjects(world).await.len();
    ends(world, &task, failed("http_500")).await;
    assert_eq!(delivered_subjects(world).await.len(), before, "the failure was told already");
}

async fn message_that_falls_back_is_still_being_told(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    ends(world, &task, succeeded(Some(1))).await;
    let claim = claimed(world).await;
    let two_ways = Delivery { fallback: vec!["sms".into()], ..claim.delivery.clone() };
    let failed = Mark::Failed { error: "no such address".into(), fall_back: two_ways.fall_back().map(Box::new) };
    world.store.mark_delivery(&claim, &failed).await.unwrap();
    ends(world, &task, succeeded(Some(1))).await;
    assert_eq!(delivered_subjects(world).await.len(), 2);
}

async fn summary_that_did_not_arrive_leaves_the_next_failure_to_be_told(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    ends(world, &task, failed("http_500")).await;
    world.store.mark_delivery(&claimed(world).await, &Mark::Delivered { provider_id: None }).await.unwrap();
    world.pass(25 * 3600);
    ends(world, &task, failed("http_500")).await;
    let error = "no such address".into();
    world.store.mark_delivery(&claimed(world).await, &Mark::Failed { error, fall_back: None }).await.unwrap();
    ends(world, &task, failed("http_500")).await;
    assert_eq!(delivered_subjects(world).await[2..], ["failure"], "not a day later");
}

async fn claimed(world: &StoreHarness) -> DeliveryClaim {
    let mut claims = claim_due(&world.store, world.now() + TimeDelta::minutes(1), 9).await.unwrap();
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

fn refused(world: &StoreHarness) -> BoxFuture<'_, ()> {
    Box::pin(async {
        let failed = Mark::Failed { error: "no such address".into(), fall_back: None };
        world.store.mark_delivery(&claimed(world).await, &failed).await.unwrap();
    })
}

fn reported(world: &StoreHarness) -> BoxFuture<'_, ()> {
    Box::pin(async {
        let claim = claimed(world).await;
        world.store.mark_delivery(&claim, &Mark::Sent { provider_id: Some("1".into()) }).await.unwrap();
        let report = DeliveryReport {
            provider_id: Some("1".into()),
            fate: ReportedFate::Failed { why: "no such number".into() },
        };
        world.store.receive_receipt(claim.delivery.id, "email", &report).await.unwrap();
    })
}

fn in_a_digest(world: &StoreHarness) -> BoxFuture<'_, ()> {
    Box::pin(async {
        let claim = claimed(world).await;
        let digest = Box::new(claim.delivery.digest(world.now()));
        let hold = Mark::Hold { hold_reason: HoldReason::Budget, digest, at: world.now() };
        world.store.mark_delivery(&claim, &hold).await.unwrap();
        refused(world).await;
    })
}

async fn deleted_task_leaves_nothing_of_what_it_told(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    ends(world, &task, failed("x")).await;
    assert_eq!(world.count("select count(*) from task_alerts").await, 1);
    let late = end(world, &task, failed("y")).await;
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    world.store.finish_runs(&[late]).await.unwrap();
    assert_eq!(world.count("select count(*) from task_alerts").await, 0);
}
