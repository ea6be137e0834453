//! Runs as people see and ask for them: reading, run now, backfill, retry, cancel.

use std::collections::HashMap;
use std::pin::pin;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::{Scope, new_id};
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{Run, RunOrigin, RunState};
use reveille::domain::task::TaskStatus;
use reveille::domain::task::change::TaskChange;
use reveille::store::{Cancelled, RunFilter, RunProgress, StoreError, StoredAnswer};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, StoreHarness, end_of, leases, only};
use crate::support::computing::{HeldThreads, until_waiting};

on_both!(
    run_that_is_not_there_is_not_found,
    run_that_is_long_is_read_in_the_turn_of_its_tenant,
    runs_are_listed_newest_first_by_every_filter,
    newest_run_of_each_task_is_found,
    progress_of_runs_is_their_state_their_attempt_and_their_last_entry,
    run_now_ignores_pause_and_limits_and_keeps_its_input,
    nothing_is_run_for_a_task_that_is_gone,
    backfill_makes_a_run_for_each_instant,
    retry_is_a_new_run_that_names_the_old,
    run_that_has_not_ended_is_not_retried,
    retries_of_a_run_are_numbered_whoever_asks_at_once,
    run_is_cancelled_in_every_state_that_has_not_ended,
    runs_are_counted_by_where_they_are,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

fn allowing() -> serde_json::Value {
    json!({"interval": "1h", "overlap": "allow"})
}

fn missing<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::NotFound)), "{answer:?}");
}

fn conflict<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Conflict(why)) => why,
        other => panic!("{other:?}"),
    }
}

async fn run_that_is_not_there_is_not_found(world: &StoreHarness) {
    let nobody = Uuid::from_u128(1);
    missing(world.store.get_run(&Scope::Every, nobody).await);
    missing(world.store.cancel_run(&Scope::Every, nobody, "no").await);
    missing(world.store.retry_run(&Scope::Every, nobody, new_id(START), START, |_| Ok(None), None).await);
}

async fn run_that_is_long_is_read_in_the_turn_of_its_tenant(world: &StoreHarness) {
    let (task, own) = (world.task(allowing()).await, only("a"));
    let (short, long) = (world.run_now(&task).await, new_id(world.now()));
    let input = json!({ "text": "x".repeat(20_000) });
    world.store.run_now(&own, task.id, long, Some(input.clone()), world.now(), None).await.unwrap();
    let computing = world.store.computing().clone();
    let threads = HeldThreads::all_of(&computing, "a").await;
    assert_eq!(world.store.get_run(&own, short).await.unwrap().id, short);
    let mut reading = pin!(world.store.get_run(&own, long));
    tokio::select! {
        read = &mut reading => panic!("it was read where it is asked for: {read:?}"),
        () = until_waiting(&computing, 1) => {}
    }
    drop(threads);
    assert_eq!(reading.await.unwrap().input, Some(input));
}

async fn runs_are_listed_newest_first_by_every_filter(world: &StoreHarness) {
    let (ours, theirs) = (world.task(allowing()).await, world.task_with("b", allowing(), json!({})).await);
    let first = world.started(&ours).await;
    world.succeed(&first).await;
    world.pass(10);
    let second = world.run_now(&ours).await;
    let third = world.run_now(&theirs).await;
    let first = first.run.id;
    let listed = async |filter: RunFilter| -> Vec<Uuid> {
        let runs = world.store.list_runs(&Scope::Every, &filter).await.unwrap();
        runs.into_iter().map(|run| run.id).collect()
    };
    let all = RunFilter { limit: 9, ..RunFilter::default() };
    assert_eq!(listed(all.clone()).await, [third, second, first]);
    let whole = world.store.list_runs(&Scope::Every, &all).await.unwrap();
    let page = world.store.run_summaries(&Scope::Every, &all).await.unwrap();
    assert!(!page.is_cut);
    for (summary, run) in page.rows.iter().zip(&whole) {
        assert_eq!(summary.run, Run { input: None, ..run.clone() }, "a short output is whole");
        assert_eq!(summary.output_bytes, run.output.as_ref().map(|output| output.len() as i64));
        assert_eq!(summary.input_bytes.is_some(), run.input.is_some());
    }
    assert_eq!(listed(RunFilter { limit: 2, ..all.clone() }).await, [third, second]);
    assert_eq!(listed(RunFilter { before: Some(second), ..all.clone() }).await, [first]);
    assert_eq!(listed(RunFilter { task_id: Some(ours.id), ..all.clone() }).await, [second, first]);
    assert_eq!(listed(RunFilter { tenant: Some("b".into()), ..all.clone() }).await, [third]);
    assert_eq!(listed(RunFilter { state: Some(RunState::Succeeded), ..all.clone() }).await, [first]);
    assert_eq!(listed(RunFilter { since: Some(at(10)), ..all.clone() }).await, [third, second]);
    assert_eq!(listed(RunFilter { until: Some(at(10)), ..all.clone() }).await, [first]);
    let later = at(10) + TimeDelta::milliseconds(1);
    assert_eq!(listed(RunFilter { since: Some(later), ..all.clone() }).await, Vec::<Uuid>::new());
    assert_eq!(listed(RunFilter { until: Some(later), ..all.clone() }).await.len(), 3);
    // a part of the millisecond in which they were recorded
    let just = at(10) + TimeDelta::microseconds(1);
    assert_eq!(listed(RunFilter { since: Some(just), ..all.clone() }).await, Vec::<Uuid>::new());
    assert_eq!(listed(RunFilter { until: Some(just), ..all.clone() }).await.len(), 3);
    // before all that an id can carry, and the last instant that a request can name
    let old = DateTime::UNIX_EPOCH - TimeDelta::days(9);
    let far: DateTime<Utc> = "9999-12-31T23:59:59Z".parse().unwrap();
    assert_eq!(listed(RunFilter { since: Some(old), until: Some(far), ..all.clone() }).await.len(), 3);
    assert_eq!(listed(RunFilter { until: Some(old), ..all.clone() }).await, Vec::<Uuid>::new());
    assert_eq!(listed(RunFilter { since: Some(far), ..all }).await, Vec::<Uuid>::new());
}

async fn newest_run_of_each_task_is_found(world: &StoreHarness) {
    let (first, second, third) =
        (world.task(allowing()).await, world.task(allowing()).await, world.task(allowing()).await);
    world.run_now(&first).await;
    let newest = [world.run_now(&first).await, world.run_now(&second).await];
    let found = async |scope: &Scope| {
        let found = world.store.last_runs(scope, &[first.id, second.id, third.id]).await.unwrap();
        let mut found: Vec<Uuid> = found.iter().map(|run| run.id).collect();
        found.sort();
        found
    };
    assert_eq!(found(&Scope::Every).await, newest);
    assert_eq!(found(&only("a")).await, newest);
    assert_eq!(found(&only("b")).await, Vec::<Uuid>::new());
    assert_eq!(world.store.last_runs(&Scope::Every, &[]).await.unwrap(), []);
}

async fn progress_of_runs_is_their_state_their_attempt_and_their_last_entry(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let started = world.started(&task).await;
    let (id, queued) = (started.lease.run_id, world.run_now(&task).await);
    let progress = async || world.store.run_progress(&[id, queued, Uuid::nil()]).await.unwrap();
    let of = |state, attempt, last_seq| RunProgress { state, attempt, last_seq };
    let expected = [(id, of(RunState::Running, 1, None)), (queued, of(RunState::Queued, 0, None))];
    assert_eq!(progress().await, HashMap::from(expected));
    let entries = [0, 1].map(|seq| TranscriptEntry::new(seq, 0, world.now(), TranscriptMessage::user("hello")));
    world.store.append("a", started.lease, &entries).await.unwrap();
    assert_eq!(progress().await[&id], of(RunState::Running, 1, Some(1)));
    world.succeed(&started).await;
    assert_eq!(progress().await[&id], of(RunState::Succeeded, 1, Some(1)));
    assert_eq!(world.store.run_progress(&[]).await.unwrap(), HashMap::new());
}

async fn run_now_ignores_pause_and_limits_and_keeps_its_input(world: &StoreHarness) {
    let task = world.task_with("a", json!({"interval": "1m"}), json!({"max_runs": 1})).await;
    world.pass(60);
    let fired = world.fire().await;
    let starts = world.store.start_runs(&leases(&fired.claims), at(105)).await.unwrap();
    world.succeed(&starts.started[0]).await;
    assert_eq!(world.get_task(task.id).await.status, TaskStatus::Completed);
    let (id, input) = (new_id(world.now()), json!({"city": "Łódź", "n": 1.5, "deep": [null, {"x": false}]}));
    let answer = world.store.run_now(&Scope::Every, task.id, id, Some(input.clone()), world.now(), None).await.unwrap();
    assert_eq!(answer, StoredAnswer::Done(()));
    let expected = Run {
        id,
        fire_key: format!("m:{id}"),
        origin: RunOrigin::Request,
        scheduled_for: at(60),
        created_at: at(60),
        state: RunState::Queued,
        attempt: 0,
        started_at: None,
        finished_at: None,
        input: Some(input),
        ..world.get_run(starts.started[0].run.id).await
    };
    assert_eq!(world.get_run(id).await, expected);
    let after = world.get_task(task.id).await;
    assert_eq!((after.run_count, after.fire_count), (2, 1));
    assert_eq!(world.claim().await.len(), 1);
}

async fn nothing_is_run_for_a_task_that_is_gone(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let ended = world.started(&task).await;
    world.succeed(&ended).await;
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    missing(world.store.run_now(&Scope::Every, task.id, new_id(START), None, START, None).await);
    missing(world.store.backfill(&Scope::Every, task.id, Uuid::nil(), &[START], None, None).await);
    let why =
        conflict(world.store.retry_run(&Scope::Every, ended.run.id, new_id(START), START, |_| Ok(None), None).await);
    assert_eq!(why, "the task of the run was deleted");
    assert_eq!(world.runs_of(&task).await.len(), 1);
}

async fn backfill_makes_a_run_for_each_instant(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let id = Uuid::from_u128(0xBF);
    let instants = [at(-7200), at(-3600) + TimeDelta::milliseconds(5)];
    world.store.backfill(&Scope::Every, task.id, id, &instants, None, None).await.unwrap();
    let runs = world.runs_of(&task).await;
    assert!(runs.iter().all(|run| run.origin == RunOrigin::Backfill), "{runs:?}");
    let told: Vec<_> = runs.iter().map(|run| (run.fire_key.clone(), run.scheduled_for, run.created_at)).collect();
    let expected = ["06:00:00.000Z", "07:00:00.005Z"].map(|time| format!("b:{id}:2026-03-01T{time}"));
    assert_eq!(told, [(expected[0].clone(), instants[0], START), (expected[1].clone(), instants[1], START)]);
    assert_eq!(world.claim().await.len(), 2);
    let after = world.get_task(task.id).await;
    assert_eq!((after.run_count, after.fire_count, after.next_fire_at), (2, 0, task.next_fire_at));
    // the same again (its answer was lost) makes no second run
    world.store.backfill(&Scope::Every, task.id, id, &instants, None, None).await.unwrap();
    assert_eq!(world.runs_of(&task).await.len(), 2);
    assert_eq!(world.get_task(task.id).await.run_count, 2);
}

async fn retry_is_a_new_run_that_names_the_old(world: &StoreHarness) {
    world.task(json!({"interval": "1m"})).await;
    world.pass(180);
    let fired = world.fire().await;
    let started = world.store.start_runs(&leases(&fired.claims), at(225)).await.unwrap().started.remove(0);
    world.store.finish_runs(&[end_of(&started, RunState::Failed)]).await.unwrap();
    let old = world.get_run(started.run.id).await;
    world.pass(5);
    let id = new_id(world.now());
    world.store.retry_run(&Scope::Every, old.id, id, world.now(), |_| Ok(None), None).await.unwrap();
    assert!(old.missed.is_some());
    let expected = Run {
        id,
        fire_key: format!("t:{}:1", old.id),
        origin: RunOrigin::Retry,
        retry_of: Some(old.id),
        state: RunState::Queued,
        attempt: 0,
        created_at: at(185),
        started_at: None,
        finished_at: None,
        ..old.clone()
    };
    assert_eq!(world.get_run(id).await, expected);
    assert_eq!(world.get_run(old.id).await, old);
    assert_eq!(world.claim().await[0].lease.run_id, id);
}

async fn run_that_has_not_ended_is_not_retried(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let queued = world.run_now(&task).await;
    let retry = |id: Uuid| world.store.retry_run(&Scope::Every, id, Uuid::from_u128(9), START, |_| Ok(None), None);
    assert_eq!(conflict(retry(queued).await), "the run is queued, so it can't be retried yet");
    let starts = world.store.start_runs(&leases(&world.claim().await), at(45)).await.unwrap();
    assert_eq!(conflict(retry(queued).await), "the run is running, so it can't be retried yet");
    world.succeed(&starts.started[0]).await;
    retry(queued).await.unwrap();
}

async fn retries_of_a_run_are_numbered_whoever_asks_at_once(world: &StoreHarness) {
    let task = world.task(allowing()).await;
    let old = world.started(&task).await;
    world.succeed(&old).await;
    let id = old.run.id;
    let other = world.other_instance().await;
    for round in 0..4 {
        let retry = |store: reveille::store::Store| async move {
            store.retry_run(&Scope::Every, id, new_id(START), START, |_| Ok(None), None).await.unwrap()
        };
        let (one, two) = tokio::join!(retry(world.store.clone()), retry(other.clone()));
        let mut keys = [one, two].map(|answer| match answer {
            StoredAnswer::Done(key) => key,
            other => panic!("{other:?}"),
        });
        keys.sort();
        assert_eq!(keys, [2 * round + 1, 2 * round + 2].map(|n| format!("t:{id}:{n}")));
    }
    assert_eq!(world.get_task(task.id).await.run_count, 9);
}

async fn run_is_cancelled_in_every_state_that_has_not_ended(world: &StoreHarness) {
    let cancel = async |id: Uuid| world.store.cancel_run(&Scope::Every, id, "not today").await;
    let task = world.task(json!({"interval": "1h", "overlap": "queue_all"})).await;
    let running = world.started(&task).await;
    let parked = world.run_now(&task).await;
    world.store.start_runs(&leases(&world.claim().await), at(45)).await.unwrap();
    let claimed = world.run_now(&task).await;
    world.claim().await;
    let ready = world.run_now(&task).await;
    for id in [ready, claimed, parked] {
        assert_eq!(cancel(id).await.unwrap(), Cancelled::Now);
        let run = world.get_run(id).await;
        assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, Some("not today")));
        assert_eq!((run.finished_at, run.attempt), (Some(START), 0));
        assert_eq!(conflict(cancel(id).await), "a run that is cancelled can't Cancel");
    }
    assert_eq!(cancel(running.run.id).await.unwrap(), Cancelled::Asked);
    assert_eq!(world.get_run(running.run.id).await.state, RunState::Running);
    world.succeed(&running).await;
    assert_eq!(conflict(cancel(running.run.id).await), "a run that is succeeded can't Cancel");
}

async fn runs_are_counted_by_where_they_are(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "queue_all"})).await;
    world.started(&task).await;
    world.run_now(&task).await;
    world.store.start_runs(&leases(&world.claim().await), at(45)).await.unwrap();
    world.run_now(&task).await;
    world.claim().await;
    world.run_now(&task).await;
    let mut counted = world.store.count_runs(&Scope::Every).await.unwrap();
    counted.sort();
    let one = ["claimed", "parked", "ready", "started"].map(|place| (place.to_owned(), 1));
    assert_eq!(counted, one);
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
}
