//! Rescue: what the dead have left is taken over, once, and only what they have left.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::store::{Finish, Lease, Starts, Store, StoreError, StrandedRun};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, StoreHarness, again, end_of, leases};

on_both!(
    claims_that_were_not_started_in_time_are_ready_again,
    run_whose_lease_ended_is_taken_over,
    run_that_outlived_its_time_limit_is_taken_over_after_the_grace,
    old_holder_can_not_write_any_more,
    of_two_rescuers_one_wins,
    stranded_runs_come_in_pages_the_longest_overdue_first,
    hanging_run_is_taken_over_once_and_again_when_its_rescuer_dies,
    run_that_can_not_be_read_starves_no_other,
    how_long_it_ran_is_told_from_its_lease,
    crash_is_counted_with_the_end_and_by_who_holds_the_run,
    that_someone_asked_for_its_end_is_told,
);

const GRACE: TimeDelta = TimeDelta::seconds(10);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn stranded(store: &Store, now: DateTime<Utc>) -> Vec<StrandedRun> {
    store.take_over_expired(now, GRACE, now + TimeDelta::seconds(45), 100).await.unwrap()
}

fn allowing() -> serde_json::Value {
    json!({"interval": "1h", "overlap": "allow"})
}

async fn claims_that_were_not_started_in_time_are_ready_again(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let running = world.started(&task).await;
    world.run_now(&task).await;
    let claim = world.claim().await[0];
    assert_eq!(claim.until, at(5));
    assert_eq!(world.store.requeue_expired_claims(at(5)).await.unwrap(), 0);
    assert_eq!(world.store.requeue_expired_claims(at(5) + TimeDelta::milliseconds(1)).await.unwrap(), 1);
    assert_eq!(world.store.start_runs(&[claim.lease], at(50)).await.unwrap(), Starts::default());
    assert_eq!(world.claim().await[0].lease.run_id, claim.lease.run_id);
    assert_eq!(world.store.requeue_expired_claims(at(4000)).await.unwrap(), 1);
    world.succeed(&running).await;
}

async fn run_whose_lease_ended_is_taken_over(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let started = world.started(&task).await;
    let now = at(45) + TimeDelta::milliseconds(1);
    assert_eq!(stranded(&world.store, at(45)).await, []);
    let found = stranded(&world.store, now).await;
    let [one] = <[StrandedRun; 1]>::try_from(found).unwrap();
    assert_ne!(one.lease.token, started.lease.token);
    assert_eq!(
        one,
        StrandedRun {
            lease: Lease { run_id: started.run.id, token: one.lease.token },
            run: (*started.run).clone(),
            task: Some(world.get_task(task.id).await),
            crashed: true,
            ran: Duration::from_secs(45),
            cancel_reason: None,
        }
    );
    // it has a lease again
    assert_eq!(stranded(&world.store, now + TimeDelta::seconds(45)).await, []);
    assert_eq!(world.store.cancels_asked(super::world::WORKER).await.unwrap(), []);
    let back = Finish { lease: one.lease, ..again(&started, now, true) };
    assert_eq!(world.store.finish_runs(&[back]).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!(world.get_run(started.run.id).await.state, RunState::Queued);
}

async fn run_that_outlived_its_time_limit_is_taken_over_after_the_grace(world: &StoreHarness) {
    let task = world.task_with("a", allowing(), json!({"timeout_seconds": 20})).await;
    let started = world.started(&task).await;
    world.store.heartbeat(&[started.lease], at(100)).await.unwrap();
    assert_eq!(stranded(&world.store, at(30)).await, []);
    let found = stranded(&world.store, at(30) + TimeDelta::milliseconds(1)).await;
    assert_eq!((found.len(), found[0].crashed, found[0].ran), (1, false, Duration::from_secs(20)));
}

async fn old_holder_can_not_write_any_more(world: &StoreHarness) {
    let started = world.started(&world.task(allowing()).await).await;
    let taken = stranded(&world.store, at(60)).await;
    let entry = |text: &str| TranscriptEntry::new(0, 0, START, TranscriptMessage::user(text));
    let refused = world.store.append("a", started.lease, &[entry("stale")]).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    assert_eq!(world.store.heartbeat(&[started.lease], at(99)).await.unwrap(), []);
    let refused = world.store.finish_runs(&[end_of(&started, RunState::Succeeded)]).await.unwrap();
    assert_eq!(refused, [started.run.id]);
    assert_eq!(world.store.start_runs(&[started.lease], at(99)).await.unwrap(), Starts::default());
    assert_eq!(world.get_run(started.run.id).await, *started.run);
    world.store.append("a", taken[0].lease, &[entry("fresh")]).await.unwrap();
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 9).await.unwrap(), [entry("fresh")]);
}

async fn of_two_rescuers_one_wins(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    for _ in 0..10 {
        world.started(&task).await;
    }
    let other = world.other_instance().await;
    let (ours, theirs) = tokio::join!(stranded(&world.store, at(60)), stranded(&other, at(60)));
    let mut runs: Vec<Uuid> = ours.iter().chain(&theirs).map(|s| s.run.id).collect();
    runs.sort();
    runs.dedup();
    assert_eq!((ours.len() + theirs.len(), runs.len()), (10, 10));
}

async fn stranded_runs_come_in_pages_the_longest_overdue_first(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let mut runs = Vec::new();
    for lease_until in [at(47), at(45), at(46)] {
        let started = world.started(&task).await;
        world.store.heartbeat(&[started.lease], lease_until).await.unwrap();
        runs.push(started.run.id);
    }
    let mut found = Vec::new();
    while let [one] = world.store.take_over_expired(at(60), GRACE, at(61), 1).await.unwrap().as_slice() {
        found.push(one.run.id);
    }
    assert_eq!(found, [runs[1], runs[2], runs[0]]);
    assert_eq!(world.store.take_over_expired(at(70), GRACE, at(99), 9).await.unwrap().len(), 3);
    if world.is_postgres() {
        // each commit waits for its turn among those of others
        assert_eq!(world.count("select count(distinct xmin::text) from queue").await, 1, "a page is one commit");
    }
}

async fn hanging_run_is_taken_over_once_and_again_when_its_rescuer_dies(world: &StoreHarness) {
    let task = world.task_with("a", allowing(), json!({"timeout_seconds": 20})).await;
    let started = world.started(&task).await;
    world.store.heartbeat(&[started.lease], at(100)).await.unwrap();
    let first = stranded(&world.store, at(50)).await;
    assert_eq!((first.len(), first[0].crashed), (1, false));
    assert_eq!(stranded(&world.store, at(94)).await, []);
    let second = stranded(&world.store, at(96)).await;
    assert_eq!((second.len(), second[0].crashed), (1, true));
}

async fn run_that_can_not_be_read_starves_no_other(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let unreadable = world.started(&task).await;
    world.store.heartbeat(&[unreadable.lease], at(44)).await.unwrap();
    let sound = world.started(&task).await;
    world.plant(&format!("update runs set missed = '[]' where fire_key = '{}'", unreadable.run.fire_key)).await;
    assert_eq!(stranded(&world.store, at(60)).await.iter().map(|s| s.run.id).collect::<Vec<_>>(), [sound.run.id]);
    assert_eq!(stranded(&world.store, at(61)).await, []);
}

async fn how_long_it_ran_is_told_from_its_lease(world: &StoreHarness) {
    let started = world.started(&world.task(allowing()).await).await;
    world.store.finish_runs(&[Finish { execution_ms: 5000, ..again(&started, at(0), true) }]).await.unwrap();
    let claims = leases(&world.claim().await);
    world.pass(100);
    let second = world.store.start_runs(&claims, at(145)).await.unwrap().started.remove(0);
    world.store.heartbeat(&[second.lease], at(160)).await.unwrap();
    let found = stranded(&world.store, at(1000)).await;
    // from its start at 100 s until its lease ended
    assert_eq!(found[0].ran, Duration::from_secs(60));
}

async fn crash_is_counted_with_the_end_and_by_who_holds_the_run(world: &StoreHarness) {
    let started = world.started(&world.task(allowing()).await).await;
    let taken = stranded(&world.store, at(60)).await;
    let crashed = |lease| Finish { lease, crashed: true, ..again(&started, at(60), true) };
    assert_eq!(world.store.finish_runs(&[crashed(started.lease)]).await.unwrap(), [started.run.id]);
    assert_eq!(world.get_run(started.run.id).await.crashes, 0);
    // an answer that was lost is asked for once more: it is one crash
    for lost in [vec![], vec![started.run.id]] {
        assert_eq!(world.store.finish_runs(&[crashed(taken[0].lease)]).await.unwrap(), lost);
        let run = world.get_run(started.run.id).await;
        assert_eq!((run.crashes, run.attempt, run.infra_retries), (1, 1, 0));
    }
}

async fn that_someone_asked_for_its_end_is_told(world: &StoreHarness) {
    let started = world.started(&world.task(allowing()).await).await;
    world.store.cancel_run(&Scope::Every, started.run.id, "enough").await.unwrap();
    assert_eq!(stranded(&world.store, at(60)).await[0].cancel_reason.as_deref(), Some("enough"));
}
