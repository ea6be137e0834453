//! Runs that wait for a foreign runtime: parked by their end, completed once, found when they are overdue.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::notification::run_notification::NotifiedOutcome;
use reveille::domain::run::outcome::RunFault;
use reveille::domain::run::{RunEvent, RunState};
use reveille::domain::task::Task;
use reveille::store::{
    Cancelled, DeliveryFilter, Finish, Idempotency, Park, RunCompletion, StartedRun, StoreError, StoredAnswer,
};
use serde_json::json;

use super::alerts::tells;
use super::world::{StoreHarness, end_of, only};

on_both!(
    parked_run_has_no_slot_and_no_lease_and_waits,
    completion_is_recorded_once_with_its_deliveries,
    failure_and_an_expiry_are_recorded_with_their_reasons,
    run_that_does_not_wait_or_is_another_tenants_is_not_completed,
    overdue_completions_are_found_longest_first,
    of_two_who_end_one_one_wins,
    repeated_request_is_answered_alike,
);

async fn waiting(world: &StoreHarness, seconds: i64) -> (Task, StartedRun) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    park_for_completion(world, &started, seconds).await;
    (task, started)
}

pub async fn park_for_completion(world: &StoreHarness, started: &StartedRun, seconds: i64) {
    let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(seconds) });
    let end = Finish { park, execution_ms: 1200, ..end_of(started, RunState::WaitingForCompletion) };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
}

fn succeeded() -> RunCompletion {
    let output = Some("Booked.".into());
    RunCompletion { event: RunEvent::Succeed, output, error: None, reason: None, tells: None }
}

async fn parked_run_has_no_slot_and_no_lease_and_waits(world: &StoreHarness) {
    let (task, started) = waiting(world, 60).await;
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.state, run.finished_at, run.attempt), (RunState::WaitingForCompletion, None, 1));
    assert_eq!(world.count("select count(*) from queue").await, 0);
    assert_eq!(world.count("select count(*) from slots").await, 0);
    assert_eq!(world.count("select count(*) from parked where reason = 'completion'").await, 1);
    assert_eq!(world.store.count_runs(&Scope::Every).await.unwrap(), [("parked".to_owned(), 1)]);
    // its task's next run is not held up by it
    let next = world.started(&task).await;
    world.succeed(&next).await;
    // nor is it taken for one that waits for its slot
    world.pass(3600);
    assert_eq!(world.store.wake_parked(world.now(), 10).await.unwrap(), 0);
    assert_eq!(world.store.cancel_run(&Scope::Every, run.id, "no").await.unwrap(), Cancelled::Now);
    assert_eq!(world.get_run(run.id).await.state, RunState::Cancelled);
}

async fn completion_is_recorded_once_with_its_deliveries(world: &StoreHarness) {
    let (task, started) = waiting(world, 60).await;
    let id = started.run.id;
    let tells = tells(&task, id, NotifiedOutcome::Success { wanted: true, hash: None });
    let completion = RunCompletion { tells, ..succeeded() };
    world.pass(5);
    let answer = world.store.complete_run(&only("a"), id, &completion, world.now(), None).await.unwrap();
    assert_eq!(answer, StoredAnswer::Done(()));
    let run = world.get_run(id).await;
    assert_eq!(
        (run.state, run.output.as_deref(), run.finished_at),
        (RunState::Succeeded, Some("Booked."), Some(world.now()))
    );
    let filter = DeliveryFilter { limit: 10, ..DeliveryFilter::default() };
    assert_eq!(world.store.list_deliveries(&Scope::Every, &filter).await.unwrap().len(), 1);
    let again = world.store.complete_run(&only("a"), id, &completion, world.now(), None).await;
    assert!(matches!(again, Err(StoreError::Conflict(why)) if why.contains("succeeded")));
    assert_eq!(world.count("select count(*) from parked").await, 0);
}

async fn failure_and_an_expiry_are_recorded_with_their_reasons(world: &StoreHarness) {
    let fault = RunFault::new("no_table", "all are taken");
    let failed = RunCompletion { event: RunEvent::Fail, output: None, error: Some(fault.clone()), ..succeeded() };
    let (_, started) = waiting(world, 60).await;
    world.store.complete_run(&Scope::Every, started.run.id, &failed, world.now(), None).await.unwrap();
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.state, run.error), (RunState::Failed, Some(fault)));
    let reason = Some("completion_timeout".into());
    let expired = RunCompletion { event: RunEvent::Expire, output: None, reason: reason.clone(), ..succeeded() };
    let (_, started) = waiting(world, 60).await;
    world.store.complete_run(&Scope::Every, started.run.id, &expired, world.now(), None).await.unwrap();
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.state, run.reason), (RunState::Expired, reason));
}

async fn run_that_does_not_wait_or_is_another_tenants_is_not_completed(world: &StoreHarness) {
    let (_, waits) = waiting(world, 60).await;
    let other = world.store.complete_run(&only("b"), waits.run.id, &succeeded(), world.now(), None).await;
    assert!(matches!(other, Err(StoreError::NotFound)), "{other:?}");
    assert_eq!(world.get_run(waits.run.id).await.state, RunState::WaitingForCompletion);
    let task = world.task(json!({ "interval": "1h" })).await;
    let runs = world.started(&task).await;
    let early = world.store.complete_run(&only("a"), runs.run.id, &succeeded(), world.now(), None).await;
    assert!(matches!(early, Err(StoreError::Conflict(why)) if why.contains("running")));
    let illegal = RunCompletion { event: RunEvent::Skip, ..succeeded() };
    let refused = world.store.complete_run(&only("a"), waits.run.id, &illegal, world.now(), None).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    world.succeed(&runs).await;
    world.store.complete_run(&only("a"), waits.run.id, &succeeded(), world.now(), None).await.unwrap();
}

async fn overdue_completions_are_found_longest_first(world: &StoreHarness) {
    assert_eq!(world.store.next_overdue().await.unwrap(), None);
    let (_, later) = waiting(world, 60).await;
    let (task, sooner) = waiting(world, 30).await;
    assert_eq!(world.store.next_overdue().await.unwrap(), Some(world.now() + TimeDelta::seconds(30)));
    assert_eq!(world.pending_work().await.parked, Some(world.now() + TimeDelta::seconds(30)));
    assert_eq!(world.store.overdue_completions(world.now() + TimeDelta::seconds(29), 10).await.unwrap(), []);
    world.pass(60);
    let overdue = world.store.overdue_completions(world.now(), 10).await.unwrap();
    let ids: Vec<_> = overdue.iter().map(|(run, _)| run.id).collect();
    assert_eq!(ids, [sooner.run.id, later.run.id]);
    assert_eq!(overdue[0].1.as_ref().map(|task| task.id), Some(task.id));
    assert_eq!(world.store.overdue_completions(world.now(), 1).await.unwrap().len(), 1);
    let expired = RunCompletion { event: RunEvent::Expire, output: None, ..succeeded() };
    for id in ids {
        // its time is over, whether anybody has noticed it or not
        let late = world.store.complete_run(&Scope::Every, id, &succeeded(), world.now(), None).await;
        assert!(matches!(late, Err(StoreError::Conflict(why)) if why == "the time limit for its completion is over"));
        world.store.complete_run(&Scope::Every, id, &expired, world.now(), None).await.unwrap();
    }
}

async fn of_two_who_end_one_one_wins(world: &StoreHarness) {
    let other = world.other_instance().await;
    for _ in 0..5 {
        let (_, started) = waiting(world, 60).await;
        let id = started.run.id;
        let failed = RunCompletion { event: RunEvent::Fail, output: None, ..succeeded() };
        let (scope, won) = (only("a"), succeeded());
        let (a, b, c) = tokio::join!(
            world.store.complete_run(&scope, id, &won, world.now(), None),
            other.complete_run(&scope, id, &failed, world.now(), None),
            other.cancel_run(&scope, id, "no"),
        );
        let state = world.get_run(id).await.state;
        assert_eq!([a.is_ok(), b.is_ok(), c.is_ok()].iter().filter(|done| **done).count(), 1);
        let expected =
            [(a.is_ok(), RunState::Succeeded), (b.is_ok(), RunState::Failed), (c.is_ok(), RunState::Cancelled)];
        assert!(expected.contains(&(true, state)), "{state:?}");
    }
}

async fn repeated_request_is_answered_alike(world: &StoreHarness) {
    let (_, started) = waiting(world, 60).await;
    let once = Idempotency {
        tenant: "a".into(),
        key: "k".into(),
        digest: vec![1],
        status: 200,
        body: json!({ "state": "succeeded" }).into(),
    };
    let now = world.now();
    let ask = || world.store.complete_run(&Scope::Every, started.run.id, &COMPLETION, now, Some(&once));
    assert_eq!(ask().await.unwrap(), StoredAnswer::Done(()));
    assert_eq!(ask().await.unwrap(), StoredAnswer::Replayed { status: 200, body: json!({ "state": "succeeded" }) });
}

static COMPLETION: RunCompletion =
    RunCompletion { event: RunEvent::Succeed, output: None, error: None, reason: None, tells: None };
