//! Leases: claimed once, started once, kept by a renewal, ended once; a stale token changes nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::domain::notification::{MessageKind, NewDelivery};
use reveille::domain::run::outcome::RunFault;
use reveille::domain::run::{Run, RunFinish, RunState, Usage};
use reveille::domain::task::change::TaskChange;
use reveille::store::{
    Cancelled, Finish, Lease, OverlapOutcome, Park, RenewedLease, RunLimits, StartedRun, Starts, StoreError,
    TakeRequest, Topic,
};
use serde_json::json;
use uuid::Uuid;

use super::world::{LEASE, OTHER_WORKER, START, StoreHarness, WORKER, again, end_of, leases};
use crate::support::world::claim_ready;

on_both!(
    most_urgent_are_claimed_first,
    run_is_claimed_once_with_a_token_of_its_own,
    run_that_is_ready_later_is_not_claimed_now,
    started_run_is_running_on_the_record,
    claim_that_does_not_stand_any_more_does_not_start,
    starting_again_after_a_lost_answer_answers_alike,
    run_that_was_started_before_is_not_first_though_its_attempt_is_given_back,
    beat_renews_what_is_held_and_leaves_out_what_is_lost,
    cancels_are_heard_by_the_worker_that_runs,
    end_is_written_whole_with_its_deliveries,
    end_that_waits_for_the_database_is_no_older_than_its_writing,
    end_without_the_lease_writes_nothing,
    retry_uses_an_attempt_and_a_hand_back_does_not,
    time_limit_counts_all_attempts_together,
    run_whose_end_was_asked_for_is_not_tried_again,
    claims_are_given_back,
    run_that_the_infrastructure_held_up_is_counted_apart,
    ends_of_every_kind_go_in_one_batch,
    run_that_can_not_be_read_keeps_no_other_from_starting,
    commits_are_hinted,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

fn every_minute() -> serde_json::Value {
    json!({"interval": "1m", "overlap": "allow"})
}

async fn most_urgent_are_claimed_first(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10s", "catch_up": "all", "overlap": "allow"})).await;
    world.store.backfill(&Scope::Every, task.id, Uuid::from_u128(7), &[at(-60)], None, None).await.unwrap();
    world.pass(20);
    world.store.fire_due(&world.ask(0, 0)).await.unwrap();
    let asked_for = world.run_now(&task).await;
    let mut keys = Vec::new();
    while let [claim] = *claim_ready(&world.store, WORKER, world.now(), 1).await {
        keys.push(world.get_run(claim.lease.run_id).await.fire_key);
    }
    assert_eq!(
        keys,
        [
            format!("m:{asked_for}"),
            "s:2026-03-01T08:00:10.000Z".into(),
            "s:2026-03-01T08:00:20.000Z".into(),
            "b:00000000-0000-0000-0000-000000000007:2026-03-01T07:59:00.000Z".into(),
        ]
    );
}

async fn run_is_claimed_once_with_a_token_of_its_own(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    for _ in 0..40 {
        world.run_now(&task).await;
    }
    let other = world.other_instance().await;
    let (ours, theirs) = tokio::join!(
        claim_ready(&world.store, WORKER, world.now(), 25),
        claim_ready(&other, OTHER_WORKER, world.now(), 25)
    );
    let mut claims = [ours, theirs].concat();
    claims.extend(world.claim().await);
    let runs: std::collections::BTreeSet<Uuid> = claims.iter().map(|claim| claim.lease.run_id).collect();
    assert_eq!((claims.len(), runs.len()), (40, 40));
    // given back and claimed again: tokens are never given twice
    for worker in [WORKER, OTHER_WORKER] {
        world.store.release_claims(worker).await.unwrap();
    }
    claims.extend(world.claim().await);
    let tokens: std::collections::BTreeSet<i64> = claims.iter().map(|claim| claim.lease.token).collect();
    assert_eq!((claims.len(), tokens.len()), (80, 80));
    assert!(!tokens.contains(&0), "0 is no token");
}

async fn run_that_is_ready_later_is_not_claimed_now(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let started = world.started(&task).await;
    let retry_at = at(5) + TimeDelta::milliseconds(1);
    world.store.finish_runs(&[again(&started, retry_at, true)]).await.unwrap();
    assert_eq!(claim_ready(&world.store, WORKER, at(5), 9).await, []);
    let claims = claim_ready(&world.store, WORKER, retry_at, 9).await;
    assert_eq!((claims.len(), claims[0].run_at, claims[0].until), (1, retry_at, retry_at + TimeDelta::seconds(5)));
}

async fn started_run_is_running_on_the_record(world: &StoreHarness) {
    let task = world.task_with("a", every_minute(), json!({"timeout_seconds": 90})).await;
    let run_id = world.run_now(&task).await;
    let before = world.get_run(run_id).await;
    let claim = world.claim().await[0];
    world.pass(1);
    let starts = world.store.start_runs(&[claim.lease], at(46)).await.unwrap();
    let run = Run { state: RunState::Running, attempt: 1, started_at: Some(at(1)), ..before };
    let task = world.get_task(task.id).await.into_definition();
    let started = StartedRun {
        lease: claim.lease,
        run: run.clone().into(),
        task: Some(task.into()),
        recipient: None,
        lease_until: at(46),
        deadline_at: at(91),
        is_first: true,
    };
    assert_eq!(starts, Starts { started: vec![started], blocked: vec![] });
    assert_eq!(world.get_run(run_id).await, run);
}

async fn claim_that_does_not_stand_any_more_does_not_start(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10s", "overlap": "allow"})).await;
    let ahead = world.store.fire_due(&world.ask(10, 9)).await.unwrap().claims;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();

    let cancelled = world.run_now(&task).await;
    let cancelled_claim = world.claim().await;
    let done = world.store.cancel_run(&Scope::Every, cancelled, "no").await.unwrap();
    assert_eq!(done, Cancelled::Now);

    world.run_now(&task).await;
    let stolen = world.claim().await;
    world.store.release_claims(WORKER).await.unwrap();
    let theirs = claim_ready(&world.store, OTHER_WORKER, world.now(), 9).await;

    let deleted = world.task(every_minute()).await;
    world.run_now(&deleted).await;
    let deleted_claim = world.claim().await;
    world.store.delete_task(&Scope::Every, deleted.id).await.unwrap();

    let stale = leases(&[ahead, cancelled_claim, stolen, deleted_claim].concat());
    assert_eq!(stale.len(), 4);
    assert_eq!(world.store.start_runs(&stale, at(45)).await.unwrap(), Starts::default());
    assert_eq!(world.store.start_runs(&leases(&theirs), at(45)).await.unwrap().started.len(), 1);
}

async fn starting_again_after_a_lost_answer_answers_alike(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1m"})).await).await;
    world.pass(3);
    let starts = world.store.start_runs(&[started.lease], at(48)).await.unwrap();
    let again = StartedRun { lease_until: at(48), is_first: false, ..started.clone() };
    assert_eq!(starts, Starts { started: vec![again], blocked: vec![] });
    assert_eq!(world.get_run(started.run.id).await, *started.run);
    world.succeed(&started).await;
    assert_eq!(world.store.start_runs(&[started.lease], at(48)).await.unwrap(), Starts::default());
}

async fn run_that_was_started_before_is_not_first_though_its_attempt_is_given_back(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let started = world.started(&task).await;
    assert!(started.is_first);
    // no time passes: the instant of a start tells nothing
    let hand_back = again(&started, world.now(), false);
    assert!(world.store.finish_runs(&[hand_back]).await.unwrap().is_empty());
    let take = take_all(world);
    let [taken] = <[StartedRun; 1]>::try_from(world.store.take_runs(&take).await.unwrap().starts.started).unwrap();
    assert_eq!((taken.run.attempt, taken.is_first), (1, false), "taken");
    assert!(world.store.finish_runs(&[again(&taken, world.now(), false)]).await.unwrap().is_empty());
    let leases = leases(&world.claim().await);
    let starts = world.store.start_runs(&leases, world.now() + LEASE).await.unwrap();
    assert_eq!(starts.started.iter().map(|next| (next.run.attempt, next.is_first)).collect::<Vec<_>>(), [(1, false)]);
    let asked_for = world.run_now(&task).await;
    let taken = world.store.take_runs(&take).await.unwrap().starts.started;
    assert_eq!(taken.iter().map(|next| (next.run.id, next.is_first)).collect::<Vec<_>>(), [(asked_for, true)]);
}

fn take_all(world: &StoreHarness) -> TakeRequest {
    TakeRequest {
        worker: WORKER,
        now: world.now(),
        ahead: world.now(),
        lease_until: world.now() + LEASE,
        limit: 100,
        fair: None,
        limits: RunLimits::default(),
        shares: None,
    }
}

async fn beat_renews_what_is_held_and_leaves_out_what_is_lost(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let kept = world.started(&task).await;
    let asked = world.started(&task).await;
    let lost = Lease { token: kept.lease.token + 1000, ..world.started(&task).await.lease };
    world.store.cancel_run(&Scope::Every, asked.run.id, "enough").await.unwrap();
    world.pass(30);
    let mut held = world.store.heartbeat(&[kept.lease, asked.lease, lost], at(75)).await.unwrap();
    held.sort_by_key(|beat| beat.run_id);
    let beat = |run: &StartedRun, reason: Option<&str>| RenewedLease {
        run_id: run.run.id,
        cancel_reason: reason.map(Into::into),
    };
    assert_eq!(held, [beat(&kept, None), beat(&asked, Some("enough"))]);
    // the one that was not renewed is stranded, the others are not
    world.pass(16);
    let stranded = world.store.take_over_expired(at(46), TimeDelta::zero(), at(91), 9).await.unwrap();
    assert_eq!(stranded.iter().map(|s| s.run.id).collect::<Vec<_>>(), [lost.run_id]);
    assert_eq!(world.store.heartbeat(&[], at(99)).await.unwrap(), []);
}

async fn cancels_are_heard_by_the_worker_that_runs(world: &StoreHarness) {
    let started = world.started(&world.task(every_minute()).await).await;
    assert_eq!(world.store.cancels_asked(WORKER).await.unwrap(), []);
    for (reason, done) in [("first", Cancelled::Asked), ("second", Cancelled::Asked)] {
        assert_eq!(world.store.cancel_run(&Scope::Every, started.run.id, reason).await.unwrap(), done);
    }
    let asked = RenewedLease { run_id: started.run.id, cancel_reason: Some("first".into()) };
    assert_eq!(world.store.cancels_asked(WORKER).await.unwrap(), [asked]);
    assert_eq!(world.store.cancels_asked(OTHER_WORKER).await.unwrap(), []);
    assert_eq!(world.get_run(started.run.id).await.state, RunState::Running);
}

fn message(run_id: Uuid) -> NewDelivery {
    NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec!["webhook".into()],
        dedupe_key: format!("run:{run_id}:result"),
        run_id: Some(run_id),
        subject_ref: None,
        kind: MessageKind::Failure,
        urgency: MessageKind::Failure.urgency(),
        subject: None,
        text: None,
    }
}

async fn end_is_written_whole_with_its_deliveries(world: &StoreHarness) {
    let started = world.started(&world.task(every_minute()).await).await;
    world.pass(7);
    let usage = Usage { turns: 1, tool_calls: 2, input_tokens: 3, output_tokens: 4, cost_micros: 5 };
    let fault = RunFault::new("timeout", "it took too long");
    let end = Finish {
        reason: Some("why".into()),
        output: Some("good morning".into()),
        finish: Some(RunFinish::MaxTurns),
        error: Some(fault.clone()),
        usage,
        execution_ms: 7000,
        deliveries: vec![message(started.run.id)],
        ..end_of(&started, RunState::Failed)
    };
    assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    let run = Run {
        state: RunState::Failed,
        reason: Some("why".into()),
        output: Some("good morning".into()),
        finish: Some(RunFinish::MaxTurns),
        error: Some(fault),
        usage,
        finished_at: Some(at(7)),
        ..(*started.run).clone()
    };
    assert_eq!(world.get_run(started.run.id).await, run);
    let key = message(run.id).dedupe_key;
    let posted = world.store.find_delivery(&Scope::Every, "a", &key).await.unwrap();
    assert_eq!((posted.run_id, posted.fallback, posted.next_at), (Some(run.id), vec!["webhook".into()], Some(at(7))));
}

async fn end_that_waits_for_the_database_is_no_older_than_its_writing(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let (started, other) = (world.started(&task).await, world.started(&task).await);
    let ends = [end_of(&started, RunState::Succeeded)];
    // others have the one writer of SQLite, or every connection that Postgres has for batches
    let mut writers = Vec::new();
    if world.is_postgres() {
        world.plant("begin").await;
        world.plant("lock table queue in access exclusive mode").await;
        let lost = Lease { token: other.lease.token + 1000, ..other.lease };
        let batches =
            || world.store.pools().into_iter().find(|pool| pool.pool == "engine").expect("connections for batches");
        for _ in 0..batches().most {
            let (store, end) = (world.store.clone(), [Finish { lease: lost, ..end_of(&other, RunState::Succeeded) }]);
            // a lock is not waited for without an end
            writers.push(tokio::spawn(async move {
                loop {
                    match store.finish_runs(&end).await {
                        Err(StoreError::TimedOut(_) | StoreError::Unavailable(_)) => {}
                        ended => return ended,
                    }
                }
            }));
        }
        while batches().in_use < batches().most {
            reveille::base::clock::pause(Duration::from_millis(1)).await;
        }
    } else {
        world.plant("begin immediate").await;
    }
    let mut writing = std::pin::pin!(world.store.finish_runs(&ends));
    assert!(futures::poll!(writing.as_mut()).is_pending(), "it waits for its turn");
    world.pass(10);
    world.plant("rollback").await;
    assert_eq!(writing.await.unwrap(), Vec::<Uuid>::new());
    assert_eq!(world.get_run(started.run.id).await.finished_at, Some(world.now()));
    for writer in writers {
        assert_eq!(writer.await.unwrap().unwrap(), [other.run.id]);
    }
}

async fn end_without_the_lease_writes_nothing(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let (ended, lost, held) = (world.started(&task).await, world.started(&task).await, world.started(&task).await);
    world.succeed(&ended).await;
    let before = world.get_run(lost.run.id).await;
    let told = |run: &StartedRun, lease: Lease| Finish {
        lease,
        output: Some("late".into()),
        deliveries: vec![message(run.run.id)],
        ..end_of(run, RunState::Succeeded)
    };
    let stale = Lease { token: lost.lease.token + 1000, ..lost.lease };
    let ends = [told(&ended, ended.lease), told(&lost, stale), told(&held, held.lease)];
    let mut refused = world.store.finish_runs(&ends).await.unwrap();
    refused.sort();
    assert_eq!(refused, [ended.run.id, lost.run.id]);
    assert_eq!(world.get_run(lost.run.id).await, before);
    assert_eq!(world.get_run(ended.run.id).await.output, None);
    assert_eq!(world.get_run(held.run.id).await.output.as_deref(), Some("late"));
    assert_eq!(world.store.count_deliveries(&Scope::Every).await.unwrap(), 1);
    // a requeue is an end, too
    let refused = world.store.finish_runs(&[Finish { lease: stale, ..again(&lost, at(0), true) }]).await.unwrap();
    assert_eq!((refused, world.get_run(lost.run.id).await), (vec![lost.run.id], before));
}

async fn retry_uses_an_attempt_and_a_hand_back_does_not(world: &StoreHarness) {
    let first = world.started(&world.task(json!({"interval": "1m"})).await).await;
    let fault = RunFault::new("rate_limit", "try later");
    let retry = Finish { error: Some(fault.clone()), ..again(&first, at(10), true) };
    assert_eq!(world.store.finish_runs(&[retry]).await.unwrap(), Vec::<Uuid>::new());
    let waiting = Run { state: RunState::Queued, error: Some(fault), ..(*first.run).clone() };
    assert_eq!(world.get_run(first.run.id).await, waiting);

    world.pass(10);
    let claims = world.claim().await;
    let second = world.store.start_runs(&leases(&claims), at(55)).await.unwrap().started.remove(0);
    assert_eq!((second.run.attempt, second.run.started_at), (2, first.run.started_at));
    world.store.finish_runs(&[again(&second, world.now(), false)]).await.unwrap();
    assert_eq!(world.get_run(first.run.id).await.attempt, 1);

    let claims = world.claim().await;
    let third = world.store.start_runs(&leases(&claims), at(55)).await.unwrap().started.remove(0);
    assert_eq!(third.run.attempt, 2);
    world.succeed(&third).await;
}

async fn time_limit_counts_all_attempts_together(world: &StoreHarness) {
    let task = world.task_with("a", every_minute(), json!({"timeout_seconds": 60})).await;
    let mut started = world.started(&task).await;
    for (execution_ms, left) in [(40_500, 19_500), (30_000, 0)] {
        world.store.finish_runs(&[Finish { execution_ms, ..again(&started, at(0), true) }]).await.unwrap();
        let claims = world.claim().await;
        started = world.store.start_runs(&leases(&claims), at(45)).await.unwrap().started.remove(0);
        assert_eq!(started.deadline_at, world.now() + TimeDelta::milliseconds(left));
    }
}

async fn run_whose_end_was_asked_for_is_not_tried_again(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1m"})).await).await;
    world.store.cancel_run(&Scope::Every, started.run.id, "enough").await.unwrap();
    world.store.finish_runs(&[again(&started, at(0), true)]).await.unwrap();
    let claims = leases(&world.claim().await);
    let starts = world.store.start_runs(&claims, at(45)).await.unwrap();
    assert_eq!(starts, Starts { started: vec![], blocked: vec![(started.run.id, OverlapOutcome::Cancelled)] });
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, Some("enough")));
    assert_eq!(world.count("select count(*) from slots").await, 0);
}

async fn claims_are_given_back(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let running = world.started(&task).await;
    world.run_now(&task).await;
    world.run_now(&task).await;
    let claims = claim_ready(&world.store, WORKER, world.now(), 1).await;
    claim_ready(&world.store, OTHER_WORKER, world.now(), 1).await;
    assert_eq!(world.store.release_claims(WORKER).await.unwrap(), 1);
    assert_eq!(world.store.start_runs(&leases(&claims), at(45)).await.unwrap(), Starts::default());
    assert_eq!(world.claim().await[0].lease.run_id, claims[0].lease.run_id);
    assert_eq!(world.store.heartbeat(&[running.lease], world.now() + LEASE).await.unwrap().len(), 1);
}

async fn commits_are_hinted(world: &StoreHarness) {
    let topics = [Topic::Due, Topic::Queue, Topic::Cancels, Topic::Outbox];
    let mut ears = topics.map(|topic| world.store.listen(topic));
    let mut heard = || {
        ears.each_mut().map(|ear| {
            ear.has_changed().unwrap() && {
                ear.borrow_and_update();
                true
            }
        })
    };
    let task = world.task(every_minute()).await;
    assert_eq!(heard(), [true, false, false, false]);
    world.run_now(&task).await;
    assert_eq!(heard(), [false, true, false, false]);
    let leases = leases(&world.claim().await);
    let started = world.store.start_runs(&leases, at(45)).await.unwrap().started.remove(0);
    assert_eq!(heard(), [false; 4]);
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
    assert!(heard()[2]);
    let end = Finish { deliveries: vec![message(started.run.id)], ..end_of(&started, RunState::Cancelled) };
    world.store.finish_runs(&[end]).await.unwrap();
    assert_eq!(heard(), [false, false, false, true]);
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    assert_eq!(heard(), [true, true, false, false], "a change may record what was due");
}

async fn run_that_the_infrastructure_held_up_is_counted_apart(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1m"})).await).await;
    let held_up = Finish { infra_retry: true, ..again(&started, at(0), false) };
    assert_eq!(world.store.finish_runs(&[held_up]).await.unwrap(), Vec::<Uuid>::new());
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.infra_retries, run.attempt, run.crashes), (1, 0, 0));
    let leases = leases(&world.claim().await);
    let again = world.store.start_runs(&leases, at(45)).await.unwrap().started.remove(0);
    assert_eq!((again.run.infra_retries, again.run.attempt), (1, 1));
}

async fn ends_of_every_kind_go_in_one_batch(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let [ended, again_later, parked, crashed, held_up] = [
        world.started(&task).await,
        world.started(&task).await,
        world.started(&task).await,
        world.started(&task).await,
        world.started(&task).await,
    ];
    let later = |milliseconds| world.now() + TimeDelta::milliseconds(milliseconds);
    let park = Some(Park::Completion { until: later(90_017) });
    let ends = [
        Finish { finish: Some(RunFinish::Answer), ..end_of(&ended, RunState::Succeeded) },
        again(&again_later, later(2_001), true),
        Finish { park, ..end_of(&parked, RunState::WaitingForCompletion) },
        Finish { crashed: true, ..again(&crashed, later(3_999), true) },
        Finish { infra_retry: true, ..again(&held_up, later(1_503), false) },
    ];
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    for (run, state, counts) in [
        (&ended, RunState::Succeeded, (1, 0, 0)),
        (&again_later, RunState::Queued, (1, 0, 0)),
        (&parked, RunState::WaitingForCompletion, (1, 0, 0)),
        (&crashed, RunState::Queued, (1, 1, 0)),
        (&held_up, RunState::Queued, (0, 0, 1)),
    ] {
        let run = world.get_run(run.run.id).await;
        assert_eq!((run.state, (run.attempt, run.crashes, run.infra_retries)), (state, counts));
        assert_eq!(run.finished_at.is_some(), state == RunState::Succeeded);
        assert_eq!(run.finish, (state == RunState::Succeeded).then_some(RunFinish::Answer));
    }
    assert_eq!(world.pending_work().await.parked, Some(later(90_017)));
    let mut instants = Vec::new();
    world.pass(4);
    for claim in world.claim().await {
        instants.push((claim.lease.run_id, claim.run_at));
    }
    let before = |milliseconds| world.now() - TimeDelta::milliseconds(milliseconds);
    let expected = [(held_up, before(2_497)), (again_later, before(1_999)), (crashed, before(1))];
    assert_eq!(instants, expected.map(|(run, at)| (run.run.id, at)));
}

async fn run_that_can_not_be_read_keeps_no_other_from_starting(world: &StoreHarness) {
    let task = world.task(every_minute()).await;
    let (unreadable, sound) = (world.run_now(&task).await, world.run_now(&task).await);
    world.plant(&format!("update runs set missed = '[]' where fire_key = 'm:{unreadable}'")).await;
    let starts = world.store.start_runs(&leases(&world.claim().await), at(45)).await.unwrap();
    assert_eq!(starts.started.iter().map(|s| s.run.id).collect::<Vec<_>>(), [sound]);
}
