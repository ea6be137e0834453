//! Overlap: one run of a task at a time, unless its policy says otherwise, and nobody waits for ever.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{Cancelled, Finish, OverlapOutcome, StartedRun, Starts};
use serde_json::json;
use uuid::Uuid;

use super::world::{LEASE, START, StoreHarness, again, end_of, leases};

on_both!(
    skip_records_who_was_in_the_way,
    where_a_run_is_and_who_is_in_its_way_is_told_to_its_tenant,
    allow_lets_all_run,
    queue_one_lets_one_wait_and_skips_further_ones,
    queue_all_hands_the_slot_over_in_order,
    cancel_previous_asks_the_running_one_to_end_and_only_the_youngest_follows,
    older_run_does_not_supersede_a_younger_one_that_waits,
    of_two_in_one_batch_the_older_starts,
    tasks_do_not_wait_for_each_other,
    run_that_waits_for_its_next_attempt_keeps_the_slot,
    cancelling_who_has_the_slot_hands_it_over,
    parked_run_that_is_cancelled_is_passed_over,
    lost_hand_over_is_found,
    wait_that_is_long_goes_on_behind_a_slot_that_is_taken,
    slot_that_nobody_has_is_freed,
    backfill_runs_each_in_turn_under_every_policy,
    late_fires_that_are_all_caught_up_run_each_in_turn,
    policy_that_was_changed_meanwhile_leaves_nobody_waiting,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn where_a_run_is_and_who_is_in_its_way_is_told_to_its_tenant(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    let second = world.run_now(&task).await;
    let ready = world.store.locate_run(&Scope::Every, second, Some(task.id)).await.unwrap();
    assert_eq!(ready.queued.map(|queued| (queued.state, queued.run_at)), Some(("ready".into(), world.now())));
    let leases = leases(&world.claim().await);
    world.store.start_runs(&leases, world.now() + LEASE).await.unwrap();
    let behind = world.store.locate_run(&Scope::Every, second, Some(task.id)).await.unwrap();
    assert_eq!((behind.queued, behind.parked.map(|parked| parked.reason)), (None, Some("overlap".into())));
    let holder = world.store.slot_holder(&Scope::Every, task.id).await.unwrap();
    assert_eq!(behind.holder, holder);
    let holder = holder.expect("a holder");
    assert_eq!((holder.run_id, holder.state.as_str(), holder.started_at), (first.run.id, "running", Some(world.now())));
    let others = super::world::only("b");
    assert_eq!(world.store.locate_run(&others, second, Some(task.id)).await.unwrap(), Default::default());
    world.succeed(&first).await;
}

async fn overlapping(world: &StoreHarness, policy: &str) -> Task {
    world.task(json!({"interval": "1h", "overlap": policy})).await
}

/// The run that starts when everything that is ready is claimed.
async fn next(world: &StoreHarness) -> StartedRun {
    let starts = world.start_all().await;
    let [started] = <[StartedRun; 1]>::try_from(starts.started).unwrap();
    started
}

async fn skip_records_who_was_in_the_way(world: &StoreHarness) {
    let task = overlapping(world, "skip").await;
    let first = world.started(&task).await;
    world.pass(1);
    let (run, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Skipped);
    assert_eq!((run.state, run.reason.as_deref(), run.attempt), (RunState::Skipped, Some("overlap"), 0));
    assert_eq!((run.blocked_by, run.finished_at, run.started_at), (Some(first.run.id), Some(at(1)), None));
    world.succeed(&first).await;
    world.started(&task).await;
}

async fn allow_lets_all_run(world: &StoreHarness) {
    let task = overlapping(world, "allow").await;
    for _ in 0..3 {
        world.run_now(&task).await;
    }
    let starts = world.start_all().await;
    assert_eq!((starts.started.len(), starts.blocked), (3, vec![]));
    assert_eq!(world.count("select count(*) from slots").await, 0);
}

async fn queue_one_lets_one_wait_and_skips_further_ones(world: &StoreHarness) {
    let task = overlapping(world, "queue_one").await;
    let first = world.started(&task).await;
    let (second, fate) = world.blocked(&task).await;
    assert_eq!((fate, second.state), (OverlapOutcome::Behind, RunState::Queued));
    let (third, fate) = world.blocked(&task).await;
    assert_eq!((fate, third.state, third.blocked_by), (OverlapOutcome::Skipped, RunState::Skipped, Some(first.run.id)));
    assert_eq!(world.start_all().await, Starts::default());
    world.succeed(&first).await;
    let started = next(world).await;
    assert_eq!(started.run.id, second.id);
    // it runs, so another one may wait
    assert_eq!(world.blocked(&task).await.1, OverlapOutcome::Behind);
}

async fn queue_all_hands_the_slot_over_in_order(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let mut running = world.started(&task).await;
    let mut waiting: Vec<Uuid> = Vec::new();
    for _ in 0..3 {
        let (run, fate) = world.blocked(&task).await;
        assert_eq!(fate, OverlapOutcome::Behind);
        waiting.push(run.id);
    }
    for expected in waiting {
        world.succeed(&running).await;
        // a younger run can't get in between
        assert_eq!(
            world.store.count_runs(&Scope::Every).await.unwrap().iter().find(|(state, _)| state == "ready"),
            Some(&("ready".into(), 1))
        );
        let younger = world.run_now(&task).await;
        let starts = world.start_all().await;
        assert_eq!(starts.started.iter().map(|s| s.run.id).collect::<Vec<_>>(), [expected]);
        assert_eq!(starts.blocked, [(younger, OverlapOutcome::Behind)]);
        world.store.cancel_run(&Scope::Every, younger, "aside").await.unwrap();
        running = starts.started.into_iter().next().unwrap();
    }
    world.succeed(&running).await;
    assert_eq!(world.count("select count(*) from slots").await, 0);
}

async fn cancel_previous_asks_the_running_one_to_end_and_only_the_youngest_follows(world: &StoreHarness) {
    let task = overlapping(world, "cancel_previous").await;
    let first = world.started(&task).await;
    let (second, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    let asked = world.store.cancels_asked(super::world::WORKER).await.unwrap();
    assert_eq!((asked[0].run_id, asked[0].cancel_reason.as_deref()), (first.run.id, Some("superseded")));
    let (third, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    let second = world.get_run(second.id).await;
    assert_eq!((second.state, second.reason.as_deref()), (RunState::Cancelled, Some("superseded")));
    assert_eq!(second.blocked_by, Some(third.id));
    let end = Finish { reason: Some("superseded".into()), ..end_of(&first, RunState::Cancelled) };
    world.store.finish_runs(&[end]).await.unwrap();
    assert_eq!(next(world).await.run.id, third.id);
}

async fn older_run_does_not_supersede_a_younger_one_that_waits(world: &StoreHarness) {
    let task = overlapping(world, "cancel_previous").await;
    let first = world.started(&task).await;
    let older = world.run_now(&task).await;
    let late = leases(&world.claim().await);
    let (younger, _) = world.blocked(&task).await;
    let starts = world.store.start_runs(&late, at(45)).await.unwrap();
    assert_eq!(starts.blocked, [(older, OverlapOutcome::Cancelled)]);
    let older = world.get_run(older).await;
    assert_eq!((older.reason.as_deref(), older.blocked_by), (Some("superseded"), Some(younger.id)));
    world.store.finish_runs(&[end_of(&first, RunState::Cancelled)]).await.unwrap();
    assert_eq!(next(world).await.run.id, younger.id);
}

async fn of_two_in_one_batch_the_older_starts(world: &StoreHarness) {
    let task = overlapping(world, "skip").await;
    let (older, younger) = (world.run_now(&task).await, world.run_now(&task).await);
    let starts = world.start_all().await;
    assert_eq!(starts.started.iter().map(|s| s.run.id).collect::<Vec<_>>(), [older]);
    assert_eq!(starts.blocked, [(younger, OverlapOutcome::Skipped)]);
}

async fn tasks_do_not_wait_for_each_other(world: &StoreHarness) {
    for policy in ["skip", "skip", "queue_one", "queue_all", "cancel_previous"] {
        world.started(&overlapping(world, policy).await).await;
    }
}

async fn run_that_waits_for_its_next_attempt_keeps_the_slot(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    world.store.finish_runs(&[again(&first, at(10), true)]).await.unwrap();
    let (behind, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    world.pass(10);
    let second = next(world).await;
    assert_eq!((second.run.id, second.run.attempt), (first.run.id, 2));
    world.succeed(&second).await;
    assert_eq!(next(world).await.run.id, behind.id);
}

async fn cancelling_who_has_the_slot_hands_it_over(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    world.store.finish_runs(&[again(&first, at(10), true)]).await.unwrap();
    let (behind, _) = world.blocked(&task).await;
    let (last, _) = world.blocked(&task).await;
    // the first waits for its next attempt, the second for its start: both have not been started, and have the slot
    for (id, heir) in [(first.run.id, Some(behind.id)), (behind.id, Some(last.id)), (last.id, None)] {
        assert_eq!(world.store.cancel_run(&Scope::Every, id, "no").await.unwrap(), Cancelled::Now);
        assert_eq!(world.get_run(id).await.state, RunState::Cancelled);
        let holders = "select count(*) from slots s join queue q on q.run_id = s.run_id where q.state = 'ready'";
        assert_eq!(world.count(holders).await, i64::from(heir.is_some()));
    }
    world.started(&task).await;
}

async fn parked_run_that_is_cancelled_is_passed_over(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    let (second, _) = world.blocked(&task).await;
    let (third, _) = world.blocked(&task).await;
    assert_eq!(world.store.cancel_run(&Scope::Every, second.id, "no").await.unwrap(), Cancelled::Now);
    world.succeed(&first).await;
    assert_eq!(next(world).await.run.id, third.id);
}

async fn lost_hand_over_is_found(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    let (second, _) = world.blocked(&task).await;
    let (third, _) = world.blocked(&task).await;
    // as if the hand-over had been lost
    let ended = "update runs set state = 'succeeded', finished_at = created_at where state = 'running'";
    for lose in ["delete from slots", "delete from queue where state = 'started'", ended] {
        world.plant(lose).await;
    }
    assert_eq!(world.get_run(first.run.id).await.state, RunState::Succeeded);
    world.pass(59);
    assert_eq!(world.store.wake_parked(world.now(), 9).await.unwrap(), 0);
    world.pass(1);
    assert_eq!(world.store.wake_parked(world.now(), 9).await.unwrap(), 1);
    let started = next(world).await;
    assert_eq!(started.run.id, second.id);
    world.succeed(&started).await;
    assert_eq!(next(world).await.run.id, third.id);
}

async fn wait_that_is_long_goes_on_behind_a_slot_that_is_taken(world: &StoreHarness) {
    let task = overlapping(world, "queue_one").await;
    let first = world.started(&task).await;
    let (second, _) = world.blocked(&task).await;
    for _ in 0..3 {
        world.pass(60);
        assert_eq!(world.store.wake_parked(world.now(), 9).await.unwrap(), 0);
        assert_eq!(world.store.wake_parked(world.now(), 9).await.unwrap(), 0);
        assert_eq!(world.start_all().await, Starts::default());
        assert_eq!(world.blocked(&task).await.1, OverlapOutcome::Skipped);
    }
    world.succeed(&first).await;
    assert_eq!(next(world).await.run.id, second.id);
}

async fn slot_that_nobody_has_is_freed(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    let (second, _) = world.blocked(&task).await;
    assert_eq!(world.store.free_lost_slots(world.now(), 9).await.unwrap(), 0);
    world.plant("delete from queue where state = 'started'").await;
    world.plant("update runs set state = 'failed', finished_at = created_at where state = 'running'").await;
    assert_eq!(world.store.free_lost_slots(world.now(), 9).await.unwrap(), 1);
    assert_eq!(next(world).await.run.id, second.id);
    assert_eq!(world.get_run(first.run.id).await.state, RunState::Failed);
}

/// Starts and ends whatever can be started; answers the instants in the order in which they ran.
async fn run_all(world: &StoreHarness) -> Vec<DateTime<Utc>> {
    let mut ran = Vec::new();
    loop {
        let starts = world.start_all().await;
        assert!(starts.started.len() <= 1, "one at a time");
        let Some(started) = starts.started.first() else { return ran };
        assert!(starts.blocked.iter().all(|(_, fate)| *fate == OverlapOutcome::Behind), "{:?}", starts.blocked);
        world.succeed(started).await;
        ran.push(started.run.scheduled_for);
    }
}

async fn backfill_runs_each_in_turn_under_every_policy(world: &StoreHarness) {
    for policy in ["skip", "allow", "queue_one", "queue_all", "cancel_previous"] {
        let task = overlapping(world, policy).await;
        let instants = [1, 2, 3, 4, 5].map(|hour| at(hour * 3600 - 36_000));
        world.store.backfill(&Scope::Every, task.id, task.id, &instants, None, None).await.unwrap();
        let first = next_of(world, &instants[0]).await;
        // a run in between goes by its own policy, and takes nobody's place
        let between = world.run_now(&task).await;
        let starts = world.start_all().await;
        let fate = starts.blocked.iter().find(|(id, _)| *id == between).map(|(_, fate)| *fate);
        let (expected, more) = match policy {
            "skip" => (Some(OverlapOutcome::Skipped), 0),
            "allow" => (None, 0),
            _ => (Some(OverlapOutcome::Behind), 1),
        };
        assert_eq!(fate, expected, "{policy}");
        for started in &starts.started {
            world.succeed(started).await;
        }
        assert_eq!(world.store.cancels_asked(super::world::WORKER).await.unwrap(), [], "{policy}");
        world.succeed(&first).await;
        let mut ran = run_all(world).await;
        if more == 1 {
            assert_eq!(ran.pop(), Some(world.now()), "{policy}");
        }
        assert_eq!(ran, instants[1..], "{policy}");
    }
}

/// Starts what is ready, which is one run, of this instant.
async fn next_of(world: &StoreHarness, instant: &DateTime<Utc>) -> StartedRun {
    let starts = world.start_all().await;
    let [started] = <[StartedRun; 1]>::try_from(starts.started).unwrap();
    assert_eq!(started.run.scheduled_for, *instant);
    started
}

async fn late_fires_that_are_all_caught_up_run_each_in_turn(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10s", "catch_up": "all"})).await;
    world.pass(62);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped), (6, 0));
    let starts = world.store.start_runs(&leases(&fired.claims), at(110)).await.unwrap();
    let [first] = <[StartedRun; 1]>::try_from(starts.started).unwrap();
    assert_eq!((first.run.scheduled_for, starts.blocked.len()), (at(10), 5));
    world.succeed(&first).await;
    assert_eq!(run_all(world).await, [20, 30, 40, 50, 60].map(at));
    // on time again, the task's own policy holds
    let running = world.started(&task).await;
    world.pass(8);
    let fired = world.fire().await;
    let starts = world.store.start_runs(&leases(&fired.claims), at(120)).await.unwrap();
    assert_eq!(starts.blocked, [(fired.claims[0].lease.run_id, OverlapOutcome::Skipped)]);
    world.succeed(&running).await;
}

async fn policy_that_was_changed_meanwhile_leaves_nobody_waiting(world: &StoreHarness) {
    let task = overlapping(world, "queue_all").await;
    let first = world.started(&task).await;
    let (second, _) = world.blocked(&task).await;
    let spec = Box::new(super::world::spec(json!({"interval": "1h", "overlap": "skip"}), json!({})));
    let edit = reveille::domain::task::change::TaskChange::Edit { version: 1, name: "n".into(), spec };
    world.store.change_task(&Scope::Every, task.id, &edit).await.unwrap();
    world.succeed(&first).await;
    assert_eq!(next(world).await.run.id, second.id);
}
