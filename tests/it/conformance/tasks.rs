//! Tasks: stored, read and listed; a change takes back what was fired ahead and loses nothing that was due.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::id::Scope;
use reveille::notification::{Addresses, Kind, Recipient};
use reveille::run::{Missed, RunState};
use reveille::store::{Cancelled, DeliveryFilter, StoreError, TaskFilter};
use reveille::task::change::TaskChange;
use reveille::task::{Task, TaskStatus};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{START, WORKER, World, end_of, leases, new_task, spec};

on_both!(
    a_task_reads_back_as_it_was_stored,
    an_id_is_stored_once,
    tasks_are_listed_newest_first_by_every_filter,
    a_name_is_found_by_any_part_of_it,
    renaming_leaves_the_schedule_alone,
    an_edit_of_an_old_version_is_refused,
    a_pause_takes_back_what_was_fired_ahead,
    what_is_due_stays_when_the_task_is_paused,
    what_is_due_and_not_recorded_yet_is_fired_before_the_change,
    what_fell_due_while_paused_is_one_skipped_range,
    a_task_that_catches_up_on_resume_runs_what_it_missed,
    an_edit_keeps_the_anchor_of_an_interval,
    an_edit_of_the_limit_reopens_a_completed_task,
    an_edit_of_the_limit_alone_loses_no_spread_fire,
    a_disabled_task_waits_to_be_resumed,
    a_completed_task_is_neither_paused_nor_resumed,
    deleting_keeps_what_has_ended_and_ends_the_rest,
    a_task_that_keeps_failing_is_paused_and_its_owner_told,
    tasks_are_counted_by_status,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn change(world: &World, task: &Task, change: TaskChange) -> Task {
    let answered = world.store.change_task(&Scope::Every, task.id, &change).await.unwrap();
    assert_eq!(world.get_task(task.id).await, answered, "what is answered is what is stored");
    answered
}

async fn pause(world: &World, task: &Task) -> Task {
    change(world, task, TaskChange::Pause { reason: Some("holiday".into()) }).await
}

fn edit(task: &Task, trigger: Value, more: Value) -> TaskChange {
    TaskChange::Edit { version: task.version, name: task.name.clone(), spec: Box::new(spec(trigger, more)) }
}

async fn a_task_reads_back_as_it_was_stored(world: &World) {
    let trigger = json!({"cron": "0 8 * * *", "timezone": "Asia/Shanghai", "exclude": ["2026-12-25"], "jitter": "5m"});
    let more = json!({"output": null, "metadata": {"ü": [1, 2.5, null]}, "max_runs": 3, "pause_after_failures": 2});
    let now = START + TimeDelta::milliseconds(123);
    let (task, nominal) = new_task("a", trigger, more, now);
    world.store.create_task(&task, nominal, None).await.unwrap();
    assert_eq!(world.get_task(task.id).await, task);
    let nobody = world.store.get_task(&Scope::Every, Uuid::nil()).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)), "{nobody:?}");
}

async fn an_id_is_stored_once(world: &World) {
    let task = world.task(json!({"interval": "1m"})).await;
    let again = world.store.create_task(&task, None, None).await;
    assert!(matches!(again, Err(StoreError::Conflict(_))), "{again:?}");
    assert_eq!(world.get_task(task.id).await, task);
}

async fn tasks_are_listed_newest_first_by_every_filter(world: &World) {
    let first = world.task(json!({"interval": "1m"})).await;
    let second = world.task(json!({"interval": "1m"})).await;
    let third = world.task_with("b", json!({"interval": "1m"}), json!({})).await;
    let first = pause(world, &first).await;
    let listed = async |filter: TaskFilter| world.store.list_tasks(&Scope::Every, &filter).await.unwrap();
    let all = TaskFilter { limit: 9, ..TaskFilter::default() };
    assert_eq!(listed(all.clone()).await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(listed(TaskFilter { limit: 1, ..all.clone() }).await, std::slice::from_ref(&third));
    assert_eq!(listed(TaskFilter { before: Some(second.id), ..all.clone() }).await, std::slice::from_ref(&first));
    assert_eq!(listed(TaskFilter { tenant: Some("a".into()), ..all.clone() }).await, [second, first.clone()]);
    assert_eq!(listed(TaskFilter { status: Some(TaskStatus::Paused), ..all.clone() }).await, [first]);
    assert_eq!(listed(TaskFilter { trigger_type: Some("event".into()), ..all.clone() }).await, []);
    assert_eq!(listed(TaskFilter { trigger_type: Some("schedule".into()), ..all }).await.len(), 3);
}

async fn a_name_is_found_by_any_part_of_it(world: &World) {
    for name in ["100% sure", "100 percent", "back\\slash", "under_score", "Évening"] {
        let (mut task, nominal) = new_task("a", json!({"interval": "1m"}), json!({}), START);
        task.name = name.into();
        world.store.create_task(&task, nominal, None).await.unwrap();
    }
    let found = async |part: &str| -> Vec<String> {
        let filter = TaskFilter { q: Some(part.into()), limit: 9, ..TaskFilter::default() };
        world.store.list_tasks(&Scope::Every, &filter).await.unwrap().into_iter().map(|task| task.name).collect()
    };
    assert_eq!(found("SURE").await, ["100% sure"]);
    assert_eq!(found("%").await, ["100% sure"]);
    assert_eq!(found("\\").await, ["back\\slash"]);
    assert_eq!(found("k\\s").await, ["back\\slash"]);
    assert_eq!(found("_").await, ["under_score"]);
    assert_eq!(found("Éven").await, ["Évening"]);
    assert_eq!(found("nothing").await, Vec::<String>::new());
    assert_eq!(found("").await.len(), 5);
}

async fn renaming_leaves_the_schedule_alone(world: &World) {
    let task = world.task(json!({"interval": "10s"})).await;
    let ahead = world.store.fire_due(&world.ask(10, 9)).await.unwrap();
    world.pass(3);
    let before = world.get_task(task.id).await;
    let name = "Evening mail".to_owned();
    let rename = TaskChange::Edit { version: 1, name: name.clone(), spec: Box::new(task.spec.clone()) };
    let after = change(world, &task, rename).await;
    assert_eq!(after, Task { name, version: 2, updated_at: at(3), ..before });
    world.pass(7);
    assert_eq!(world.store.start_runs(&leases(&ahead.claims), at(60)).await.unwrap().started.len(), 1);
}

async fn an_edit_of_an_old_version_is_refused(world: &World) {
    let task = world.task(json!({"interval": "1m"})).await;
    let newer = change(world, &task, edit(&task, json!({"interval": "2m"}), json!({}))).await;
    assert_eq!((newer.version, newer.epoch, newer.next_fire_at), (2, 2, Some(at(120))));
    let stale = edit(&task, json!({"interval": "3m"}), json!({}));
    let refused = world.store.change_task(&Scope::Every, task.id, &stale).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    assert_eq!(world.get_task(task.id).await, newer);
    let nobody = world.store.change_task(&Scope::Every, Uuid::nil(), &TaskChange::Resume).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)), "{nobody:?}");
}

async fn a_pause_takes_back_what_was_fired_ahead(world: &World) {
    let task = world.task_with("a", json!({"interval": "10s"}), json!({"max_runs": 5})).await;
    let asked_for = world.run_now(&task).await;
    assert_eq!(world.store.fire_due(&world.ask(25, 1)).await.unwrap().recorded, 2);
    let paused = pause(world, &task).await;
    assert_eq!((paused.status, paused.status_reason.as_deref()), (TaskStatus::Paused, Some("holiday")));
    assert_eq!((paused.next_fire_at, paused.fired, paused.run_count, paused.epoch), (None, 0, 1, 2));
    assert_eq!(world.runs_of(&task).await.iter().map(|run| run.id).collect::<Vec<_>>(), [asked_for]);
    assert_eq!(world.store.next_due().await.unwrap(), None);
    // nothing was missed: the same instants are fired after a resume, with the same keys
    change(world, &task, TaskChange::Resume).await;
    world.pass(20);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped, fired.conflicts), (2, 0, 0));
    assert_eq!(world.get_task(task.id).await.fired, 2);
}

async fn what_is_due_stays_when_the_task_is_paused(world: &World) {
    let task = world.task(json!({"interval": "10s", "overlap": "allow"})).await;
    let ahead = world.store.fire_due(&world.ask(20, 9)).await.unwrap();
    world.pass(10);
    let paused = pause(world, &task).await;
    assert_eq!((paused.fired, paused.run_count), (1, 1));
    let runs = world.runs_of(&task).await;
    assert_eq!(runs.iter().map(|run| run.scheduled_for).collect::<Vec<_>>(), [at(10)]);
    let starts = world.store.start_runs(&leases(&ahead.claims), at(60)).await.unwrap();
    assert_eq!(starts.started.iter().map(|s| s.run.id).collect::<Vec<_>>(), [runs[0].id]);
}

async fn what_is_due_and_not_recorded_yet_is_fired_before_the_change(world: &World) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.pass(61);
    let paused = pause(world, &task).await;
    assert_eq!((paused.fired, paused.version), (1, 2));
    let runs = world.runs_of(&task).await;
    assert_eq!((runs.len(), runs[0].scheduled_for, runs[0].state), (1, at(60), RunState::Queued));
    assert_eq!(world.claim().await.len(), 1);
}

async fn what_fell_due_while_paused_is_one_skipped_range(world: &World) {
    let task = world.task(json!({"interval": "1m"})).await;
    pause(world, &task).await;
    world.pass(150);
    assert_eq!(world.fire().await.tasks, 0);
    let resumed = change(world, &task, TaskChange::Resume).await;
    assert_eq!(
        (resumed.status, resumed.next_fire_at, resumed.active_since),
        (TaskStatus::Active, Some(at(180)), at(150))
    );
    let runs = world.runs_of(&task).await;
    assert_eq!((runs.len(), runs[0].state, runs[0].reason.as_deref()), (1, RunState::Skipped, Some("paused")));
    assert_eq!(runs[0].missed, Some(Missed { from: at(60), to: at(120), count: Some(2) }));
    // a pause that nothing fell into leaves no record
    pause(world, &task).await;
    change(world, &task, TaskChange::Resume).await;
    assert_eq!(world.runs_of(&task).await.len(), 1);
    world.pass(30);
    assert_eq!(world.fire().await.recorded, 1);
}

async fn a_task_that_catches_up_on_resume_runs_what_it_missed(world: &World) {
    let task = world.task(json!({"interval": "1m", "on_resume": "catch_up", "catch_up": "all"})).await;
    pause(world, &task).await;
    world.pass(150);
    let resumed = change(world, &task, TaskChange::Resume).await;
    assert_eq!(resumed.next_fire_at, Some(at(60)));
    assert_eq!(world.fire().await.recorded, 2);
    let instants: Vec<_> = world.runs_of(&task).await.iter().map(|run| run.scheduled_for).collect();
    assert_eq!(instants, [at(60), at(120)]);
}

async fn an_edit_keeps_the_anchor_of_an_interval(world: &World) {
    let task = world.task(json!({"interval": "10m"})).await;
    world.pass(61);
    let edited = change(world, &task, edit(&task, json!({"interval": "10m", "overlap": "allow"}), json!({}))).await;
    assert_eq!((edited.anchor_at, edited.next_fire_at, edited.active_since), (START, Some(at(600)), at(61)));
    let moved = json!({"interval": "10m", "start_at": "2026-03-01T08:02:00Z"});
    let edited = change(world, &edited, edit(&edited, moved, json!({}))).await;
    assert_eq!((edited.anchor_at, edited.next_fire_at), (at(120), Some(at(120))));
}

async fn an_edit_of_the_limit_reopens_a_completed_task(world: &World) {
    let task = world.task_with("a", json!({"interval": "1m"}), json!({"max_runs": 1})).await;
    world.pass(60);
    world.fire().await;
    let done = world.get_task(task.id).await;
    assert_eq!(done.status, TaskStatus::Completed);
    let open = change(world, &done, edit(&done, json!({"interval": "1m"}), json!({"max_runs": 2}))).await;
    assert_eq!((open.status, open.status_reason.clone(), open.next_fire_at), (TaskStatus::Active, None, Some(at(120))));
    let closed = change(world, &open, edit(&open, json!({"interval": "1m"}), json!({"max_runs": 1}))).await;
    assert_eq!((closed.status, closed.next_fire_at), (TaskStatus::Completed, None));
    assert_eq!(closed.status_reason.as_deref(), Some("max_runs"));
}

async fn an_edit_of_the_limit_alone_loses_no_spread_fire(world: &World) {
    let trigger = json!({"interval": "1h", "jitter": "30m"});
    let task = world.task(trigger.clone()).await;
    let run_at = task.next_fire_at.unwrap();
    assert!(run_at > at(3600), "the case needs a fire that is spread");
    // its nominal instant is past, its own is not
    world.clock.advance(run_at - TimeDelta::milliseconds(1) - START);
    let edited = change(world, &task, edit(&task, trigger, json!({"max_runs": 9}))).await;
    assert_eq!(edited.next_fire_at, Some(run_at));
    world.clock.advance(TimeDelta::milliseconds(1));
    world.fire().await;
    assert_eq!(world.runs_of(&task).await[0].scheduled_for, at(3600));
}

async fn a_disabled_task_waits_to_be_resumed(world: &World) {
    let task = world.task(json!({"interval": "1m"})).await;
    let disabled = change(world, &task, TaskChange::Disable { reason: "no such tool".into() }).await;
    assert_eq!((disabled.status, disabled.next_fire_at), (TaskStatus::Disabled, None));
    world.pass(60);
    assert_eq!(change(world, &task, TaskChange::Resume).await.next_fire_at, Some(at(120)));
}

async fn a_completed_task_is_neither_paused_nor_resumed(world: &World) {
    let task = world.task(json!({"at": "2026-03-01T08:01:00Z"})).await;
    world.pass(60);
    world.fire().await;
    for change in [TaskChange::Pause { reason: None }, TaskChange::Resume] {
        let refused = world.store.change_task(&Scope::Every, task.id, &change).await;
        assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("completed")), "{refused:?}");
    }
}

async fn deleting_keeps_what_has_ended_and_ends_the_rest(world: &World) {
    let task = world.task(json!({"interval": "1h", "overlap": "queue_all"})).await;
    let other = world.task(json!({"interval": "1h"})).await;
    let ended = world.started(&task).await;
    world.succeed(&ended).await;
    let running = world.started(&task).await;
    let parked = world.run_now(&task).await;
    world.store.start_runs(&leases(&world.claim().await), at(45)).await.unwrap();
    let claimed = world.run_now(&task).await;
    world.claim().await;
    let ready = world.run_now(&task).await;
    let others = world.run_now(&other).await;
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    for run in [parked, claimed, ready] {
        let run = world.get_run(run).await;
        assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, Some("task_deleted")));
        assert_eq!(run.finished_at, Some(START));
    }
    assert_eq!(world.get_run(ended.run.id).await.state, RunState::Succeeded);
    assert_eq!(world.get_run(others).await.state, RunState::Queued);
    let asked = world.store.cancels_asked(WORKER).await.unwrap();
    assert_eq!((asked[0].run_id, asked[0].cancel_reason.as_deref()), (running.run.id, Some("task_deleted")));
    // its end is still recorded
    assert_eq!(world.store.finish_runs(&[end_of(&running, RunState::Cancelled)]).await.unwrap(), Vec::<Uuid>::new());
    for gone in [
        world.store.get_task(&Scope::Every, task.id).await.map(drop),
        world.store.delete_task(&Scope::Every, task.id).await,
    ] {
        assert!(matches!(gone, Err(StoreError::NotFound)), "{gone:?}");
    }
    assert_eq!(world.store.cancel_run(&Scope::Every, others, "done").await.unwrap(), Cancelled::Now);
}

async fn a_task_that_keeps_failing_is_paused_and_its_owner_told(world: &World) {
    let addresses = Addresses { email: Some("ann@example.org".into()), webhook: None };
    let recipient =
        Recipient { timezone: chrono_tz::Tz::UTC, locale: "en".into(), addresses, fallback: vec!["email".into()] };
    world.store.put_recipient(&Scope::Every, "a", &recipient, 0).await.unwrap();
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let run = async |state: RunState| {
        world.pass(1);
        let started = world.started(&task).await;
        world.store.finish_runs(&[end_of(&started, state)]).await.unwrap();
        world.store.pause_if_failing(task.id, 2).await.unwrap()
    };
    for state in [RunState::Failed, RunState::Succeeded, RunState::Failed, RunState::Cancelled] {
        assert!(!run(state).await);
    }
    // a resume begins to count anew
    pause(world, &task).await;
    change(world, &task, TaskChange::Resume).await;
    assert!(!run(RunState::Failed).await);
    assert!(run(RunState::Failed).await);
    let paused = world.get_task(task.id).await;
    assert_eq!((paused.status, paused.status_reason.as_deref()), (TaskStatus::Paused, Some("2 failed runs in a row")));
    assert!(!world.store.pause_if_failing(task.id, 2).await.unwrap(), "it is paused already");
    let all = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    let told = world.store.list_deliveries(&Scope::Every, &all).await.unwrap();
    assert_eq!((told.len(), told[0].kind, told[0].channel.as_str()), (1, Kind::Notice, "email"));
    assert!(told[0].text.as_ref().unwrap().contains("failed 2 times in a row"));
}

async fn tasks_are_counted_by_status(world: &World) {
    world.task(json!({"interval": "1m"})).await;
    world.task(json!({"interval": "1m"})).await;
    pause(world, &world.task_with("b", json!({"interval": "1m"}), json!({})).await).await;
    let counts = world.store.count_tasks(&Scope::Every).await.unwrap();
    assert_eq!(counts, [("active".into(), 2), ("paused".into(), 1)]);
}
