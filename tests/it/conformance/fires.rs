//! Firing: each due instant has one record, and the task moves on.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::domain::run::{MissedInstants, Run, RunState};
use reveille::domain::task::TaskStatus;
use reveille::store::{CLAIM_MARGIN, FireDue, FireResult, ImmediateStart, PendingWork, RunClaim, StoreError};
use serde_json::json;
use sqlx::Connection;

use super::world::{OTHER_WORKER, START, StoreHarness, leases};
use crate::support::world::claim_ready;

on_both!(
    due_instant_becomes_one_leased_run_and_the_task_waits_for_the_next,
    fire_without_room_is_ready_for_anyone,
    instants_within_the_horizon_are_recorded_ahead,
    nothing_is_due_before_its_millisecond,
    limit_takes_the_earliest_tasks_first,
    few_that_are_due_last_fire_with_each_batch_of_the_earliest,
    firing_again_what_is_recorded_already_makes_no_second_run,
    recorded_instant_holds_up_nothing_else_of_its_batch,
    skips_that_are_recorded_already_are_not_recorded_again,
    two_instances_firing_at_once_never_double,
    task_that_another_instance_holds_is_passed_over,
    missed_instants_are_one_run_that_is_told_how_many,
    skipped_instants_are_recorded_with_their_reason,
    last_fire_completes_the_task,
    max_runs_completes_the_task,
    trigger_that_can_not_be_read_disables_its_task_and_harms_no_other,
    hostile_schedules_are_disabled_alone_and_their_owners_are_told_once,
    long_specification_is_read_when_its_run_starts,
    trigger_beyond_the_bytes_of_a_batch_disables_its_task,
    computation_that_panics_is_an_error_and_the_next_one_is_done,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn due_instant_becomes_one_leased_run_and_the_task_waits_for_the_next(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    assert_eq!(world.store.next_due().await.unwrap(), Some(at(60)));
    assert_eq!(world.pending_work().await, PendingWork { fire: Some(at(60)), ..PendingWork::default() });
    world.pass(60);
    let fired = world.fire().await;
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    let claim = fired.claims[0];
    assert_eq!(
        fired,
        FireResult {
            tasks: 1,
            recorded: 1,
            claims: vec![RunClaim {
                lease: claim.lease,
                run_at: at(60),
                until: at(60) + CLAIM_MARGIN,
                tenant_hash: claim.tenant_hash
            }],
            ..FireResult::default()
        }
    );
    assert_eq!(claim.lease.run_id, run.id);
    assert_eq!(run, Run::queued(task.id, run.id, "a", "s:2026-03-01T08:01:00.000Z", "schedule", at(60), at(60)));
    let after = world.get_task(task.id).await;
    assert_eq!((after.next_fire_at, after.fire_count, after.run_count, after.version), (Some(at(120)), 1, 1, 1));
    assert_eq!(world.store.next_due().await.unwrap(), Some(at(120)));
    assert_eq!(world.fire().await, FireResult::default());
}

async fn fire_without_room_is_ready_for_anyone(world: &StoreHarness) {
    world.task(json!({"interval": "1m"})).await;
    world.task(json!({"interval": "1m"})).await;
    world.pass(60);
    let fired = world.store.fire_due(&world.ask(0, 1)).await.unwrap();
    assert_eq!((fired.recorded, fired.claims.len()), (2, 1));
    let claims = claim_ready(&world.store, OTHER_WORKER, world.now(), 10).await;
    assert_eq!(claims.len(), 1);
    assert_ne!(claims[0].lease.run_id, fired.claims[0].lease.run_id);
}

async fn instants_within_the_horizon_are_recorded_ahead(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10s"})).await;
    let fired = world.store.fire_due(&world.ask(25, 9)).await.unwrap();
    let instants: Vec<_> = fired.claims.iter().map(|claim| (claim.run_at, claim.until)).collect();
    assert_eq!(instants, [(at(10), at(10) + CLAIM_MARGIN), (at(20), at(20) + CLAIM_MARGIN)]);
    assert_eq!(world.get_task(task.id).await.next_fire_at, Some(at(30)));
}

async fn nothing_is_due_before_its_millisecond(world: &StoreHarness) {
    // with and without a fraction: on SQLite instants are compared as text
    for fraction in [0, 1, 10, 999] {
        let instant = at(60) + TimeDelta::milliseconds(fraction);
        let at_text = instant.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true);
        let task = world.task(json!({"at": at_text})).await;
        assert_eq!(world.get_task(task.id).await.next_fire_at, Some(instant));
        let mut ask = world.ask(0, 9);
        for (early, due) in [(60_000, 0), (1_000, 0), (1, 0), (0, 1)] {
            ask.now = instant - TimeDelta::milliseconds(early);
            let fired = world.store.fire_due(&ask).await.unwrap();
            assert_eq!(fired.recorded, due, "{early} ms before {instant}");
        }
        assert_eq!(world.runs_of(&task).await[0].scheduled_for, instant);
    }
}

async fn limit_takes_the_earliest_tasks_first(world: &StoreHarness) {
    for interval in ["3s", "1s", "2s"] {
        world.task(json!({"interval": interval, "catch_up": "latest"})).await;
    }
    world.pass(3);
    let mut ask = world.ask(0, 9);
    ask.limit = 1;
    let fired = world.store.fire_due(&ask).await.unwrap();
    assert_eq!((fired.tasks, fired.claims.last().unwrap().run_at), (1, at(3)));
    assert_eq!(world.store.next_due().await.unwrap(), Some(at(2)));
}

async fn few_that_are_due_last_fire_with_each_batch_of_the_earliest(world: &StoreHarness) {
    for _ in 0..40 {
        world.task(json!({"at": "2026-03-01T08:01:00Z"})).await;
    }
    let last = world.task(json!({"at": "2026-03-01T08:01:01Z"})).await;
    world.pass(61);
    let mut ask = world.ask(0, 99);
    ask.limit = 10;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(world.store.fire_due(&ask).await.unwrap().tasks);
        assert_eq!(world.runs_of(&last).await.len(), 1, "behind those that are late");
    }
    // and those that are due at one instant are not taken twice
    assert_eq!(tasks, [11, 10, 10, 10, 0]);
}

async fn firing_again_what_is_recorded_already_makes_no_second_run(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.pass(60);
    world.fire().await;
    // as if the run had been recorded without its task moving on
    world.plant("update due set next_at = '2026-03-01T08:01:00+00:00', nominal_at = '2026-03-01T08:01:00+00:00'").await;
    let start = ImmediateStart { slots: 9, lease_until: at(90), shares: None };
    let fired = world.store.fire_due(&FireDue { start: Some(start), ..world.ask(0, 9) }).await.unwrap();
    assert_eq!(fired, FireResult { tasks: 1, conflicts: 1, ..FireResult::default() });
    assert_eq!(world.runs_of(&task).await.len(), 1);
    assert_eq!(world.count("select count(*) from slots").await, 0, "for a run that is none");
    assert_eq!(world.count("select count(*) from queue").await, 1);
}

async fn recorded_instant_holds_up_nothing_else_of_its_batch(world: &StoreHarness) {
    for _ in 0..3 {
        world.task(json!({"interval": "1m"})).await;
    }
    world.pass(60);
    let first = world.store.fire_due(&FireDue { limit: 1, ..world.ask(0, 9) }).await.unwrap();
    assert_eq!((first.tasks, first.recorded), (1, 1));
    world.plant("update due set next_at = '2026-03-01T08:01:00+00:00', nominal_at = '2026-03-01T08:01:00+00:00'").await;
    let start = ImmediateStart { slots: 9, lease_until: at(90), shares: None };
    let fired = world.store.fire_due(&FireDue { start: Some(start), ..world.ask(0, 9) }).await.unwrap();
    assert_eq!((fired.tasks, fired.recorded, fired.conflicts), (3, 2, 1));
    assert_eq!((fired.started.len(), fired.claims.len()), (2, 0));
    for started in &fired.started {
        assert_eq!(world.get_run(started.run.id).await, *started.run);
    }
    assert_eq!(world.count("select count(*) from runs").await, 3);
    assert_eq!(world.count("select count(*) from slots").await, 2, "none for the run that was not recorded");
    assert_eq!(world.count("select count(*) from queue where state = 'started'").await, 2);
    assert_eq!(world.count("select count(*) from queue").await, 3);
}

async fn skips_that_are_recorded_already_are_not_recorded_again(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m", "catch_up": "skip"})).await;
    world.pass(10 * 60 + 1);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped, fired.conflicts), (1, 1, 0));
    world.plant("update due set next_at = '2026-03-01T08:01:00+00:00', nominal_at = '2026-03-01T08:01:00+00:00'").await;
    assert_eq!(world.fire().await, FireResult { tasks: 1, conflicts: 2, ..FireResult::default() });
    assert_eq!(world.runs_of(&task).await.len(), 2);
}

async fn two_instances_firing_at_once_never_double(world: &StoreHarness) {
    let mut tasks = Vec::new();
    for _ in 0..60 {
        tasks.push(world.task(json!({"interval": "1m"})).await);
    }
    world.pass(60);
    let other = world.other_instance().await;
    let ask = FireDue { limit: 7, ..world.ask(0, 100) };
    let fire_all = async |store: &reveille::store::Store| {
        let mut recorded = 0;
        loop {
            let fired = store.fire_due(&ask).await.unwrap();
            assert_eq!(fired.conflicts, 0);
            recorded += fired.recorded;
            if fired.tasks == 0 && store.next_due().await.unwrap() > Some(ask.now) {
                return recorded;
            }
        }
    };
    let (ours, theirs) = tokio::join!(fire_all(&world.store), fire_all(&other));
    assert_eq!(ours + theirs, 60);
    for task in tasks {
        assert_eq!(world.runs_of(&task).await.len(), 1);
    }
}

async fn task_that_another_instance_holds_is_passed_over(world: &StoreHarness) {
    if !world.is_postgres() {
        return; // one writer: there is nobody to hold it
    }
    let held = world.task(json!({"interval": "1m"})).await;
    let free = world.task(json!({"interval": "1m"})).await;
    world.pass(60);
    let mut other = sqlx::PgConnection::connect(&world.url()).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    let lock = "select 1 from due where task_id = $1 for update";
    sqlx::query(lock).bind(held.id).execute(&mut *transaction).await.unwrap();
    let fired = world.fire().await;
    assert_eq!((fired.tasks, fired.lost, fired.recorded), (1, 1, 1));
    assert_eq!((world.runs_of(&held).await.len(), world.runs_of(&free).await.len()), (0, 1));
    transaction.rollback().await.unwrap();
    assert_eq!(world.fire().await.recorded, 1);
}

async fn missed_instants_are_one_run_that_is_told_how_many(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.pass(10 * 60 + 1);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped), (1, 0));
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    assert_eq!(run.scheduled_for, at(600));
    assert_eq!(run.missed, Some(MissedInstants { from: at(60), to: at(540), count: Some(9) }));
    assert_eq!(world.get_task(task.id).await.next_fire_at, Some(at(660)));
}

async fn skipped_instants_are_recorded_with_their_reason(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m", "catch_up": "skip"})).await;
    world.pass(10 * 60 + 1);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped, fired.claims.len()), (1, 1, 1));
    let [skipped, run] = <[Run; 2]>::try_from(by_instant(world.runs_of(&task).await)).unwrap();
    assert_eq!(run.scheduled_for, at(600));
    assert_eq!((skipped.state, skipped.reason.as_deref()), (RunState::Skipped, Some("catch_up_skip")));
    assert_eq!(skipped.missed, Some(MissedInstants { from: at(60), to: at(540), count: Some(9) }));
    assert_eq!(skipped.fire_key, "r:2026-03-01T08:01:00.000Z/2026-03-01T08:09:00.000Z");
    assert_eq!((skipped.created_at, skipped.finished_at), (world.now(), Some(world.now())));
    assert_eq!(world.get_task(task.id).await.fire_count, 1);
}

fn by_instant(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_by_key(|run| run.scheduled_for);
    runs
}

async fn last_fire_completes_the_task(world: &StoreHarness) {
    let task = world.task(json!({"at": "2026-03-01T08:01:00Z"})).await;
    world.pass(60);
    let fired = world.fire().await;
    let after = world.get_task(task.id).await;
    assert_eq!((after.status, after.status_reason.as_deref()), (TaskStatus::Completed, Some("ended")));
    assert_eq!((after.next_fire_at, after.epoch, after.version), (None, 1, 2));
    assert_eq!(world.store.next_due().await.unwrap(), None);
    // its run is not void for it
    let starts = world.store.start_runs(&leases(&fired.claims), at(100)).await.unwrap();
    assert_eq!(starts.started.len(), 1);
}

async fn max_runs_completes_the_task(world: &StoreHarness) {
    let task = world.task_with("a", json!({"interval": "1m"}), json!({"max_runs": 2})).await;
    for _ in 0..3 {
        world.pass(60);
        world.fire().await;
    }
    assert_eq!(world.runs_of(&task).await.len(), 2);
    let after = world.get_task(task.id).await;
    assert_eq!(
        (after.status, after.status_reason.as_deref(), after.fire_count),
        (TaskStatus::Completed, Some("max_runs"), 2)
    );
}

async fn trigger_that_can_not_be_read_disables_its_task_and_harms_no_other(world: &StoreHarness) {
    let broken = world.task(json!({"cron": "30 9 * * *", "timezone": "Europe/Berlin"})).await;
    let sound = world.task(json!({"interval": "1m"})).await;
    let spec = "replace(cast(spec as text), 'Europe/Berlin', 'Europe/Atlantis')";
    let spec = if world.is_postgres() { format!("({spec})::jsonb") } else { spec.into() };
    world.plant(&format!("update tasks set spec = {spec}")).await;
    world.pass(3600);
    let fired = world.fire().await;
    assert_eq!((fired.tasks, fired.disabled.len(), fired.disabled[0].0), (2, 1, broken.id));
    let after = world.get_task(broken.id).await;
    assert_eq!((after.status, after.next_fire_at), (TaskStatus::Disabled, None));
    assert!(after.status_reason.unwrap().starts_with("/trigger/timezone: "), "says where");
    assert_eq!(world.runs_of(&sound).await.len(), 1);
}

/// Replaces a text in every specification.
async fn rewrite(world: &StoreHarness, from: &str, to: &str) {
    let spec = format!("replace(cast(spec as text), '{from}', '{to}')");
    let spec = if world.is_postgres() { format!("({spec})::jsonb") } else { spec };
    world.plant(&format!("update tasks set spec = {spec}")).await;
}

async fn hostile_schedules_are_disabled_alone_and_their_owners_are_told_once(world: &StoreHarness) {
    let told = json!({"output": {"channel": "email"}});
    let mut hostile = Vec::new();
    for _ in 0..10 {
        let trigger = json!({"cron": "* * * * * *", "exclude": ["59 59 23 31 12 *"]});
        hostile.push(world.task_with("hostile", trigger, told.clone()).await);
    }
    let quiet = world.task(json!({"interval": "1h"})).await;
    // it takes a step for each of these at each of the seconds, and no second is left
    let exclusions: Vec<String> = (0..199).map(|n| format!("\"{} 0 1 1 *\"", n % 60)).collect();
    rewrite(world, "\"59 59 23 31 12 *\"", &format!("{}, \"* * * * *\"", exclusions.join(", "))).await;
    world.pass(3600);
    let fired = world.fire().await;
    assert_eq!((fired.tasks, fired.recorded, fired.disabled.len()), (11, 1, 10));
    assert_eq!(world.runs_of(&quiet).await.len(), 1, "in the first batch");
    for task in &hostile {
        let after = world.get_task(task.id).await;
        assert_eq!((after.status, after.next_fire_at), (TaskStatus::Disabled, None));
        let reason = after.status_reason.unwrap();
        assert!(reason.starts_with("/trigger/exclude: takes too many steps"), "{reason}");
    }
    let notices = "select count(*) from deliveries where kind = 'notice' and dedupe_key like 'notice:disabled:%'";
    assert_eq!(world.count(notices).await, 10);
    // whoever starts later finds nothing to compute
    let restarted = world.other_instance().await;
    world.pass(3600);
    let ask = world.ask(0, 100);
    let fired = restarted.fire_due(&ask).await.unwrap();
    assert_eq!((fired.tasks, fired.recorded, fired.disabled), (1, 1, vec![]));
    assert_eq!(world.count(notices).await, 10);
}

async fn long_specification_is_read_when_its_run_starts(world: &StoreHarness) {
    let long = json!({"action": {"instruction": "x".repeat(100_000)}});
    let long = world.task_with("a", json!({"interval": "1m"}), long).await;
    let short = world.task(json!({"interval": "1m"})).await;
    world.pass(30);
    let ahead = world.store.fire_due(&world.ask(30, 9)).await.unwrap();
    assert_eq!((ahead.recorded, ahead.claims.len()), (2, 2));
    world.pass(30);
    let starts = world.store.start_runs(&leases(&ahead.claims), at(100)).await.unwrap();
    let started: Vec<_> = starts.started.iter().filter_map(|run| run.task.as_ref()).map(|task| task.id).collect();
    assert!(started.contains(&long.id) && started.contains(&short.id), "{started:?}");
    world.pass(60);
    let start = ImmediateStart { slots: 9, lease_until: at(180), shares: None };
    let fired = world.store.fire_due(&FireDue { start: Some(start), ..world.ask(0, 9) }).await.unwrap();
    assert_eq!((fired.tasks, fired.disabled), (2, vec![]));
}

async fn trigger_beyond_the_bytes_of_a_batch_disables_its_task(world: &StoreHarness) {
    let task = world.task(json!({"cron": "0 9 * * *"})).await;
    rewrite(world, "0 9 * * *", &"0".repeat(70_000)).await;
    world.pass(3600);
    let fired = world.fire().await;
    assert_eq!(fired.disabled, [(task.id, "the trigger is longer than 64 KiB".to_owned())]);
}

async fn computation_that_panics_is_an_error_and_the_next_one_is_done(world: &StoreHarness) {
    let broken = world.store.compute("ann", || -> u8 { panic!("on purpose") }).await;
    assert!(matches!(broken, Err(StoreError::Corrupt(_))), "{broken:?}");
    assert_eq!(world.store.compute("ann", || 7).await.unwrap(), 7);
}
