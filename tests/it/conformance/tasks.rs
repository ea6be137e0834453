//! Tasks: stored, read and listed; a change takes back what was fired ahead and loses nothing that was due.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::domain::credential::{CredentialIssue, CredentialIssueKind, Reference};
use reveille::domain::notification::{Addresses, MessageKind, Recipient};
use reveille::domain::run::{MissedInstants, Run, RunState};
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Task, TaskStatus};
use reveille::domain::trigger::Trigger;
use reveille::store::{
    COUNTED_TO, Cancelled, DeliveryFilter, NewTask, PauseResult, SCANNED_TASKS, StoreError, TaskFilter,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{START, StoreHarness, WORKER, end_of, leases, new_task, only, spec};

on_both!(
    task_reads_back_as_it_was_stored,
    id_is_stored_once,
    tasks_are_listed_newest_first_by_every_filter,
    name_is_found_by_any_part_of_it,
    tasks_are_looked_for_among_the_newest_and_the_list_goes_on_behind_them,
    renaming_leaves_the_schedule_alone,
    edit_of_an_old_version_is_refused,
    pause_takes_back_what_was_fired_ahead,
    recorded_run_stays_when_the_task_is_paused,
    due_instant_that_is_not_recorded_is_fired_before_the_change,
    instants_missed_while_paused_are_one_skipped_range,
    task_that_catches_up_on_resume_runs_what_it_missed,
    edit_keeps_the_anchor_of_an_interval,
    edit_of_the_limit_reopens_a_completed_task,
    edit_of_the_limit_alone_loses_no_spread_fire,
    edit_loses_no_instant_that_waits_out_its_jitter,
    whenever_tasks_are_edited_every_instant_has_one_record,
    last_fire_can_be_paused_and_edited_until_its_instant_has_come,
    skip_that_is_recorded_ahead_is_taken_back_by_a_change,
    skip_ahead_is_known_by_its_fields_and_not_by_its_key,
    disabled_task_is_the_operators_to_resume,
    edit_of_its_trigger_mends_a_disabled_task,
    completed_task_is_neither_paused_nor_resumed,
    deleting_keeps_what_has_ended_and_ends_the_rest,
    task_that_keeps_failing_is_paused_and_its_owner_told,
    task_that_lacks_a_credential_is_paused_and_its_owner_told_for_each_time,
    owner_of_a_task_that_is_over_is_told_of_its_credential_too,
    tasks_are_counted_by_status,
    tasks_are_counted_up_to_a_bound,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn change(world: &StoreHarness, task: &Task, change: TaskChange) -> Task {
    let answered = world.store.change_task(&Scope::Every, task.id, &change).await.unwrap();
    assert_eq!(world.get_task(task.id).await, answered, "what is answered is what is stored");
    answered
}

async fn pause(world: &StoreHarness, task: &Task) -> Task {
    change(world, task, TaskChange::Pause { reason: Some("holiday".into()) }).await
}

fn edit(task: &Task, trigger: Value, more: Value) -> TaskChange {
    TaskChange::Edit { version: task.version, name: task.name.clone(), spec: Box::new(spec(trigger, more)) }
}

async fn task_reads_back_as_it_was_stored(world: &StoreHarness) {
    let trigger = json!({"cron": "0 8 * * *", "timezone": "Asia/Shanghai", "exclude": ["2026-12-25"], "jitter": "5m"});
    let more = json!({"output": null, "metadata": {"ü": [1, 2.5, null]}, "max_runs": 3, "pause_after_failures": 2});
    let now = START + TimeDelta::milliseconds(123);
    let (task, nominal) = new_task("a", trigger, more, now);
    world.store.create_task(&task, nominal, None).await.unwrap();
    assert_eq!(world.get_task(task.id).await, task);
    let nobody = world.store.get_task(&Scope::Every, Uuid::nil()).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)), "{nobody:?}");
}

async fn id_is_stored_once(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let again = world.store.create_task(&task, None, None).await;
    assert!(matches!(again, Err(StoreError::Conflict(_))), "{again:?}");
    assert_eq!(world.get_task(task.id).await, task);
}

async fn tasks_are_listed_newest_first_by_every_filter(world: &StoreHarness) {
    let first = world.task(json!({"interval": "1m"})).await;
    let second = world.task(json!({"interval": "1m"})).await;
    let third = world.task_with("b", json!({"interval": "1m"}), json!({})).await;
    let first = pause(world, &first).await;
    let listed = async |filter: TaskFilter| world.store.list_tasks(&Scope::Every, &filter).await.unwrap();
    let all = TaskFilter { limit: 9, ..TaskFilter::default() };
    assert_eq!(listed(all.clone()).await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(listed(TaskFilter { limit: 1, ..all.clone() }).await, std::slice::from_ref(&third));
    let page = world.store.tasks_page(&Scope::Every, &all).await.unwrap();
    assert_eq!((page.rows, page.is_cut), (listed(all.clone()).await, false));
    assert_eq!(listed(TaskFilter { before: Some(second.id), ..all.clone() }).await, std::slice::from_ref(&first));
    assert_eq!(listed(TaskFilter { tenant: Some("a".into()), ..all.clone() }).await, [second, first.clone()]);
    assert_eq!(listed(TaskFilter { status: Some(TaskStatus::Paused), ..all.clone() }).await, [first]);
    assert_eq!(listed(TaskFilter { trigger_type: Some("event".into()), ..all.clone() }).await, []);
    assert_eq!(listed(TaskFilter { trigger_type: Some("schedule".into()), ..all }).await.len(), 3);
}

async fn tasks_are_looked_for_among_the_newest_and_the_list_goes_on_behind_them(world: &StoreHarness) {
    let (mut old, nominal) = new_task("a", json!({"interval": "1m"}), json!({}), world.now());
    old.name = "Rare".into();
    world.store.create_task(&old, nominal, None).await.unwrap();
    world.pass(1);
    let newer: Vec<NewTask> =
        (0..SCANNED_TASKS).map(|_| new_task("a", json!({"interval": "1m"}), json!({}), world.now())).collect();
    let rare = TaskFilter { q: Some("rare".into()), limit: 9, ..TaskFilter::default() };
    let found = async |scope: &Scope, before: Option<Uuid>| {
        let page = world.store.tasks_page(scope, &TaskFilter { before, ..rare.clone() }).await.unwrap();
        (page.rows.into_iter().map(|task| task.id).collect::<Vec<_>>(), page.behind)
    };
    let last = SCANNED_TASKS as usize - 1;
    for batch in newer[..last].chunks(1_000) {
        world.store.create_tasks(batch).await.unwrap();
    }
    for scope in [&Scope::Every, &only("a")] {
        assert_eq!(found(scope, None).await, (vec![old.id], Some(old.id)), "as many as are looked through");
        assert_eq!(found(scope, Some(old.id)).await, (vec![], None));
    }
    world.store.create_tasks(&newer[last..]).await.unwrap();
    for scope in [&Scope::Every, &only("a")] {
        let (none, behind) = found(scope, None).await;
        assert_eq!((none, behind.is_some()), (vec![], true), "one more is in front of it");
        assert_eq!(found(scope, behind).await, (vec![old.id], None));
    }
    assert_eq!(world.store.list_tasks(&Scope::Every, &rare).await.unwrap().len(), 1, "the engine's lists are whole");
    let old = pause(world, &old).await;
    let paused = TaskFilter { status: Some(TaskStatus::Paused), limit: 9, ..TaskFilter::default() };
    for scope in [&Scope::Every, &only("a")] {
        let page = world.store.tasks_page(scope, &paused).await.unwrap();
        assert_eq!((page.rows, page.behind), (vec![old.clone()], None), "those that fire hide none that does not");
    }
}

async fn name_is_found_by_any_part_of_it(world: &StoreHarness) {
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

async fn renaming_leaves_the_schedule_alone(world: &StoreHarness) {
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

async fn edit_of_an_old_version_is_refused(world: &StoreHarness) {
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

async fn pause_takes_back_what_was_fired_ahead(world: &StoreHarness) {
    let task = world.task_with("a", json!({"interval": "10s"}), json!({"max_runs": 5})).await;
    let asked_for = world.run_now(&task).await;
    assert_eq!(world.store.fire_due(&world.ask(25, 1)).await.unwrap().recorded, 2);
    let paused = pause(world, &task).await;
    assert_eq!((paused.status, paused.status_reason.as_deref()), (TaskStatus::Paused, Some("holiday")));
    assert_eq!((paused.next_fire_at, paused.fire_count, paused.run_count, paused.epoch), (None, 0, 1, 2));
    assert_eq!(world.runs_of(&task).await.iter().map(|run| run.id).collect::<Vec<_>>(), [asked_for]);
    assert_eq!(world.store.next_due().await.unwrap(), None);
    // nothing was missed: the same instants are fired after a resume, with the same keys
    change(world, &task, TaskChange::Resume).await;
    world.pass(20);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped, fired.conflicts), (1, 0, 0));
    assert_eq!(world.get_task(task.id).await.fire_count, 1, "the newest runs for both");
}

async fn recorded_run_stays_when_the_task_is_paused(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10s", "overlap": "allow"})).await;
    let ahead = world.store.fire_due(&world.ask(20, 9)).await.unwrap();
    world.pass(10);
    let paused = pause(world, &task).await;
    assert_eq!((paused.fire_count, paused.run_count), (1, 1));
    let runs = world.runs_of(&task).await;
    assert_eq!(runs.iter().map(|run| run.scheduled_for).collect::<Vec<_>>(), [at(10)]);
    let starts = world.store.start_runs(&leases(&ahead.claims), at(60)).await.unwrap();
    assert_eq!(starts.started.iter().map(|s| s.run.id).collect::<Vec<_>>(), [runs[0].id]);
}

async fn due_instant_that_is_not_recorded_is_fired_before_the_change(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.pass(61);
    let paused = pause(world, &task).await;
    assert_eq!((paused.fire_count, paused.version), (1, 2));
    let runs = world.runs_of(&task).await;
    assert_eq!((runs.len(), runs[0].scheduled_for, runs[0].state), (1, at(60), RunState::Queued));
    assert_eq!(world.claim().await.len(), 1);
}

async fn instants_missed_while_paused_are_one_skipped_range(world: &StoreHarness) {
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
    assert_eq!(runs[0].missed, Some(MissedInstants { from: at(60), to: at(120), count: Some(2) }));
    // a pause that nothing fell into leaves no record
    pause(world, &task).await;
    change(world, &task, TaskChange::Resume).await;
    assert_eq!(world.runs_of(&task).await.len(), 1);
    world.pass(30);
    assert_eq!(world.fire().await.recorded, 1);
}

async fn task_that_catches_up_on_resume_runs_what_it_missed(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m", "on_resume": "catch_up", "catch_up": "all"})).await;
    pause(world, &task).await;
    world.pass(150);
    let resumed = change(world, &task, TaskChange::Resume).await;
    assert_eq!(resumed.next_fire_at, Some(at(60)));
    assert_eq!(world.fire().await.recorded, 2);
    let instants: Vec<_> = world.runs_of(&task).await.iter().map(|run| run.scheduled_for).collect();
    assert_eq!(instants, [at(60), at(120)]);
}

async fn edit_keeps_the_anchor_of_an_interval(world: &StoreHarness) {
    let task = world.task(json!({"interval": "10m"})).await;
    world.pass(61);
    let edited = change(world, &task, edit(&task, json!({"interval": "10m", "overlap": "allow"}), json!({}))).await;
    assert_eq!((edited.anchor_at, edited.next_fire_at, edited.active_since), (START, Some(at(600)), at(61)));
    let moved = json!({"interval": "10m", "start_at": "2026-03-01T08:02:00Z"});
    let edited = change(world, &edited, edit(&edited, moved, json!({}))).await;
    assert_eq!((edited.anchor_at, edited.next_fire_at), (at(120), Some(at(120))));
}

async fn edit_of_the_limit_reopens_a_completed_task(world: &StoreHarness) {
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

async fn edit_of_the_limit_alone_loses_no_spread_fire(world: &StoreHarness) {
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

/// The record of each instant of a task: `+seconds state reason`, in order.
async fn records(world: &StoreHarness, task: &Task) -> Vec<String> {
    let mut runs = world.runs_of(task).await;
    runs.sort_by_key(|run| (run.scheduled_for, run.id));
    let line = |run: &Run| {
        let reason = run.reason.as_ref().map(|reason| format!(" {reason}")).unwrap_or_default();
        format!("{} {}{reason}", since_start(run.scheduled_for), run.state.as_str())
    };
    runs.iter().map(line).collect()
}

fn since_start(instant: DateTime<Utc>) -> String {
    format!("+{}", (instant - START).num_seconds())
}

/// A new task of an hour's interval, a second before its first time to run and some time after its nominal instant,
/// which is answered, too.
async fn waiting_task(world: &StoreHarness, trigger: &Value, more: Value) -> (Task, DateTime<Utc>) {
    loop {
        let task = world.task_with("a", trigger.clone(), more.clone()).await;
        let (nominal, run_at) = (world.now() + TimeDelta::hours(1), task.next_fire_at.unwrap());
        if run_at > nominal + TimeDelta::seconds(2) {
            world.clock.advance(run_at - TimeDelta::seconds(1) - world.now());
            return (task, nominal);
        }
        world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    }
}

async fn edit_loses_no_instant_that_waits_out_its_jitter(world: &StoreHarness) {
    let old = json!({"interval": "1h", "jitter": "30m"});
    // an instant of the old trigger is past, its time to run is not: what the edit makes of it, recorded ahead or not
    for recorded in [false, true] {
        let (task, nominal) = waiting_task(world, &old, json!({"max_runs": 5})).await;
        let run_at = task.next_fire_at.unwrap();
        if recorded {
            assert_eq!(world.store.fire_due(&world.ask(1, 1)).await.unwrap().recorded, 1);
        }
        let now = world.now();
        let with = |fields: Value| {
            let mut trigger = old.clone();
            trigger.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            trigger
        };
        // the new trigger has it, with the same jitter: it stays
        let kept = change(world, &task, edit(&task, with(json!({"overlap": "allow"})), json!({"max_runs": 5}))).await;
        assert_eq!((kept.next_fire_at, kept.active_since, kept.fire_count), (Some(run_at), nominal, 0));
        assert_eq!(records(world, &task).await, Vec::<String>::new());
        // the same without a jitter: it runs at once
        let at_once = change(world, &kept, edit(&kept, json!({"interval": "1h"}), json!({"max_runs": 5}))).await;
        assert_eq!(at_once.next_fire_at, Some(nominal + TimeDelta::hours(1)));
        assert_eq!((at_once.fire_count, at_once.run_count, at_once.active_since), (1, 1, now));
        assert_eq!(records(world, &task).await, [format!("{} queued", since_start(nominal))]);
        assert_eq!(world.claim().await.len(), 1);
        pause(world, &task).await;
    }
    // the new trigger lacks it: that has its record
    let (task, nominal) = waiting_task(world, &old, json!({})).await;
    let edited = change(world, &task, edit(&task, json!({"interval": "7h"}), json!({}))).await;
    assert_eq!((edited.fire_count, edited.next_fire_at), (0, Some(nominal + TimeDelta::hours(6))));
    assert_eq!(records(world, &task).await, [format!("{} skipped edited", since_start(nominal))]);
    // it would run by now, and is excluded
    let (task, nominal) = waiting_task(world, &old, json!({})).await;
    change(world, &task, edit(&task, json!({"interval": "1h", "exclude": ["* * * * *"]}), json!({}))).await;
    assert_eq!(records(world, &task).await, [format!("{} skipped excluded", since_start(nominal))]);
    // it is the last that max_runs allows
    let (task, nominal) = waiting_task(world, &old, json!({})).await;
    let last = change(world, &task, edit(&task, json!({"interval": "1h"}), json!({"max_runs": 1}))).await;
    assert_eq!(
        (last.status, last.status_reason.as_deref(), last.fire_count),
        (TaskStatus::Completed, Some("max_runs"), 1)
    );
    assert_eq!(records(world, &task).await, [format!("{} queued", since_start(nominal))]);
}

struct EditedTask {
    task: Task,
    triggers: [Value; 3],
    /// When the second and the third trigger took the place of the one before.
    from: [DateTime<Utc>; 2],
}

async fn whenever_tasks_are_edited_every_instant_has_one_record(world: &StoreHarness) {
    let mut random = fastrand::Rng::with_seed(20_260_301);
    let mut trigger = || {
        let when = *random.choice(&["5s", "6s", "10s", "12s"]).unwrap();
        let jitter = *random.choice(&["1s", "4s", "9s", "30s"]).unwrap();
        let mut trigger = json!({"interval": when, "overlap": "allow"});
        if random.u8(..4) > 0 {
            trigger["jitter"] = json!(jitter);
        }
        if random.u8(..3) == 0 {
            trigger["exclude"] = json!(["*/12 * * * * *"]);
        }
        trigger
    };
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let triggers = [trigger(), trigger(), trigger()];
        tasks.push(EditedTask { task: world.task(triggers[0].clone()).await, triggers, from: [START; 2] });
    }
    let mut random = fastrand::Rng::with_seed(20_260_302);
    let mut edits: Vec<(i64, usize, usize)> = Vec::new();
    for index in 0..tasks.len() {
        let first = random.i64(1..30_000);
        edits.extend([(first, index, 0), (first + random.i64(1..30_000), index, 1)]);
    }
    edits.sort_unstable();
    let mut edits = edits.into_iter().peekable();
    let ask = || reveille::store::FireDue { horizon: std::time::Duration::from_millis(1500), ..world.ask(0, 1000) };
    let end = START + TimeDelta::seconds(90);
    while world.now() < end {
        assert_eq!(world.store.fire_due(&ask()).await.unwrap().conflicts, 0);
        let to = (world.now() + TimeDelta::milliseconds(random.i64(100..1_400))).min(end);
        while let Some((at, index, which)) = edits.next_if(|edit| START + TimeDelta::milliseconds(edit.0) <= to) {
            world.clock.advance(START + TimeDelta::milliseconds(at) - world.now());
            let edited = &mut tasks[index];
            let stored = world.get_task(edited.task.id).await;
            edited.from[which] = world.now();
            change(world, &stored, edit(&stored, edited.triggers[which + 1].clone(), json!({}))).await;
        }
        world.clock.advance(to - world.now());
    }
    // what waits out its jitter still
    for _ in 0..13 {
        world.pass(1);
        world.store.fire_due(&ask()).await.unwrap();
    }
    for EditedTask { task, triggers, from } in tasks {
        let reached = world.get_task(task.id).await.next_fire_at.unwrap();
        let spans = [(START, from[0]), (from[0], from[1]), (from[1], end)];
        let mut expected = Vec::new();
        for (trigger, (after, until)) in triggers.iter().zip(spans) {
            let trigger: Trigger = spec(trigger.clone(), json!({})).trigger;
            let Trigger::Schedule(schedule) = trigger else { panic!("a schedule") };
            let table = schedule.compile(START).unwrap();
            let all = std::iter::successors(table.next_after(after), |last| table.next_after(*last));
            expected.extend(all.take_while(|nominal| *nominal <= until));
        }
        assert!(reached > end, "the task goes on");
        let mut recorded: Vec<_> = Vec::new();
        for run in world.runs_of(&task).await {
            assert!(run.fire_key.starts_with("s:"), "{run:?}");
            assert!(run.state == RunState::Skipped || run.missed.is_none(), "{run:?}");
            recorded.push(run.scheduled_for);
        }
        recorded.sort_unstable();
        recorded.retain(|instant| *instant <= end);
        assert_eq!(recorded, expected, "{triggers:?} from {from:?}: {:?}", records(world, &task).await);
    }
}

async fn last_fire_can_be_paused_and_edited_until_its_instant_has_come(world: &StoreHarness) {
    let once = json!({"at": "2026-03-01T08:01:00Z"});
    let lasting = world.task(once.clone()).await;
    let paused = world.task(once.clone()).await;
    let edited = world.task_with("a", json!({"interval": "1m"}), json!({"max_runs": 1})).await;
    let excluded = world.task(json!({"at": "2026-03-01T08:01:00Z", "exclude": ["2026-03-01"]})).await;
    world.pass(59);
    let ahead = world.store.fire_due(&world.ask(1, 9)).await.unwrap();
    assert_eq!((ahead.recorded, ahead.skipped), (3, 1));
    for task in [&lasting, &paused, &edited, &excluded] {
        let seen = world.get_task(task.id).await;
        assert_eq!((seen.status, seen.next_fire_at, seen.version), (TaskStatus::Active, None, 1));
    }
    assert_eq!(world.store.next_due().await.unwrap(), Some(at(61)), "they are looked at when their instant has come");
    assert_eq!(world.store.fire_due(&world.ask(1, 9)).await.unwrap().tasks, 0);

    assert_eq!(pause(world, &paused).await.fire_count, 0);
    assert_eq!(records(world, &paused).await, Vec::<String>::new());
    let more = edit(&edited, json!({"interval": "1m", "overlap": "allow"}), json!({"max_runs": 2}));
    assert_eq!(change(world, &edited, more).await.next_fire_at, Some(at(60)));
    assert_eq!(change(world, &paused, TaskChange::Resume).await.next_fire_at, Some(at(60)));
    change(world, &excluded, edit(&excluded, once, json!({}))).await;

    world.pass(1);
    let done = world.store.fire_due(&world.ask(1, 9)).await.unwrap();
    assert_eq!((done.tasks, done.recorded, done.conflicts), (4, 3, 0));
    for (task, status) in [
        (&lasting, TaskStatus::Completed),
        (&paused, TaskStatus::Completed),
        (&excluded, TaskStatus::Completed),
        (&edited, TaskStatus::Active),
    ] {
        assert_eq!(world.get_task(task.id).await.status, status);
        assert_eq!(records(world, task).await, ["+60 queued"]);
    }
}

async fn skip_that_is_recorded_ahead_is_taken_back_by_a_change(world: &StoreHarness) {
    let excluding = json!({"interval": "1m", "exclude": ["* * * * *"]});
    let edited = world.task(excluding.clone()).await;
    let renamed = world.task(excluding.clone()).await;
    let limited = world.task(excluding.clone()).await;
    world.pass(59);
    assert_eq!(world.store.fire_due(&world.ask(1, 9)).await.unwrap().skipped, 3);
    let after = change(world, &edited, edit(&edited, json!({"interval": "1m"}), json!({}))).await;
    assert_eq!(after.next_fire_at, Some(at(60)));
    let limit = edit(&limited, excluding.clone(), json!({"max_runs": 3}));
    assert_eq!(change(world, &limited, limit).await.next_fire_at, Some(at(60)), "it is recorded anew");
    let name = TaskChange::Edit { version: 1, name: "another".into(), spec: Box::new(renamed.spec.clone()) };
    assert_eq!(change(world, &renamed, name).await.next_fire_at, Some(at(120)));
    world.pass(1);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped, fired.conflicts), (1, 1, 0));
    assert_eq!(records(world, &edited).await, ["+60 queued"]);
    for task in [&renamed, &limited] {
        assert_eq!(records(world, task).await, ["+60 skipped excluded"]);
    }
    // what has had its instant stays
    pause(world, &renamed).await;
    assert_eq!(records(world, &renamed).await, ["+60 skipped excluded"]);
}

async fn skip_ahead_is_known_by_its_fields_and_not_by_its_key(world: &StoreHarness) {
    let excluding = json!({"interval": "1m", "exclude": ["* * * * *"]});
    let range = r#"missed = '{"from": "2026-03-01T08:01:00Z", "to": "2026-03-01T08:02:00Z", "count": 2}'"#;
    let cases = [
        ("a", "fire_key = 'of another form'", false),
        ("b", "origin = 'backfill'", true),
        ("c", "trigger_type = 'event'", true),
        ("d", range, true),
    ];
    let mut tasks = Vec::new();
    for (tenant, ..) in cases {
        tasks.push(world.task_with(tenant, excluding.clone(), json!({})).await);
    }
    world.pass(59);
    assert_eq!(world.store.fire_due(&world.ask(1, 9)).await.unwrap().skipped, 4);
    for (task, (tenant, planted, stays)) in tasks.iter().zip(cases) {
        world.plant(&format!("update runs set {planted} where tenant_id = '{tenant}'")).await;
        change(world, task, edit(task, json!({"interval": "1h"}), json!({}))).await;
        let expected: &[&str] = if stays { &["+60 skipped excluded"] } else { &[] };
        assert_eq!(records(world, task).await, expected, "{planted}");
    }
}

/// Puts another zone into every stored task, as a zone database that lacks one would.
async fn move_all_to(world: &StoreHarness, from: &str, to: &str) {
    let spec = format!("replace(cast(spec as text), '{from}', '{to}')");
    let spec = if world.is_postgres() { format!("({spec})::jsonb") } else { spec };
    world.plant(&format!("update tasks set spec = {spec}")).await;
}

async fn disabled_task_is_the_operators_to_resume(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m", "timezone": "Europe/Berlin"})).await;
    move_all_to(world, "Europe/Berlin", "Europe/Atlantis").await;
    world.pass(60);
    world.fire().await;
    move_all_to(world, "Europe/Atlantis", "Europe/Berlin").await;
    let disabled = world.get_task(task.id).await;
    assert_eq!((disabled.status, disabled.next_fire_at), (TaskStatus::Disabled, None));
    for refused in [TaskChange::Resume, TaskChange::Pause { reason: None }] {
        let told = world.store.change_task(&only("a"), task.id, &refused).await;
        assert!(matches!(&told, Err(StoreError::Conflict(why)) if why.contains("the task is disabled")), "{told:?}");
    }
    assert_eq!(world.get_task(task.id).await, disabled);
    assert_eq!(change(world, &task, TaskChange::Resume).await.next_fire_at, Some(at(120)));
}

async fn edit_of_its_trigger_mends_a_disabled_task(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m", "timezone": "Europe/Berlin"})).await;
    move_all_to(world, "Europe/Berlin", "Europe/Atlantis").await;
    world.pass(61);
    world.fire().await;
    let disabled = world.get_task(task.id).await;
    assert_eq!(disabled.status, TaskStatus::Disabled);
    let unreadable = world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await;
    assert!(
        matches!(&unreadable, Err(StoreError::Conflict(why)) if why.contains("/trigger/timezone")),
        "{unreadable:?}"
    );
    let mended = edit(&disabled, json!({"interval": "1m"}), json!({}));
    let mended = world.store.change_task(&only("a"), task.id, &mended).await.unwrap();
    assert_eq!(
        (mended.status, mended.status_reason.as_deref(), mended.next_fire_at),
        (TaskStatus::Active, None, Some(at(120)))
    );
    assert_eq!(records(world, &task).await, ["+60 skipped paused"]);
}

async fn completed_task_is_neither_paused_nor_resumed(world: &StoreHarness) {
    let task = world.task(json!({"at": "2026-03-01T08:01:00Z"})).await;
    world.pass(60);
    world.fire().await;
    for change in [TaskChange::Pause { reason: None }, TaskChange::Resume] {
        let refused = world.store.change_task(&Scope::Every, task.id, &change).await;
        assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("completed")), "{refused:?}");
    }
}

async fn deleting_keeps_what_has_ended_and_ends_the_rest(world: &StoreHarness) {
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

async fn task_that_keeps_failing_is_paused_and_its_owner_told(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let recipient =
        Recipient { locale: "en".into(), addresses, fallback: vec!["email".into()], ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.unwrap();
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
    assert_eq!((told.len(), told[0].kind, told[0].channel.as_str()), (1, MessageKind::Notice, "email"));
    assert!(told[0].text.as_ref().unwrap().contains("failed 2 times in a row"));
}

async fn task_that_lacks_a_credential_is_paused_and_its_owner_told_for_each_time(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let recipient = Recipient {
        timezone: chrono_tz::Tz::UTC,
        locale: "en".into(),
        addresses,
        fallback: vec![],
        quiet: Default::default(),
        verified: Default::default(),
    };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.unwrap();
    let task = world.task(json!({"interval": "1h"})).await;
    let lack = async |kind| world.store.pause_for_credential(task.id, &lacks(kind)).await.unwrap();
    assert_eq!(lack(CredentialIssueKind::Missing).await, PauseResult::Paused);
    let paused = world.get_task(task.id).await;
    assert_eq!((paused.status, paused.status_reason.as_deref()), (TaskStatus::Paused, Some("credential:google/work")));
    assert_eq!(paused.awaited_credential, Some(lacks(CredentialIssueKind::Missing).credential));
    assert_eq!(lack(CredentialIssueKind::Missing).await, PauseResult::Notified, "it is paused already");
    for kind in [CredentialIssueKind::NeedsConsent, CredentialIssueKind::Missing] {
        change(world, &task, TaskChange::Resume).await;
        assert_eq!(lack(kind).await, PauseResult::Paused);
    }
    let gone = world.store.pause_for_credential(Uuid::nil(), &lacks(CredentialIssueKind::Missing)).await.unwrap();
    assert_eq!(gone, PauseResult::Resolved);
    let all = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    let told = world.store.list_deliveries(&Scope::Every, &all).await.unwrap();
    let told: Vec<_> = told.iter().rev().map(|told| (told.kind, told.subject.as_deref().unwrap())).collect();
    assert_eq!(
        told,
        [
            (MessageKind::Notice, "Please connect google/work"),
            (MessageKind::Notice, "Please connect google/work again"),
            (MessageKind::Notice, "Please connect google/work"),
        ]
    );
}

fn lacks(kind: CredentialIssueKind) -> CredentialIssue {
    CredentialIssue { credential: Reference::parse("google/work").unwrap(), kind, sent_at: None }
}

async fn owner_of_a_task_that_is_over_is_told_of_its_credential_too(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let recipient = Recipient { addresses, fallback: vec!["email".into()], ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.unwrap();
    let task = world.task(json!({"at": "2026-03-01T08:01:00Z"})).await;
    world.pass(60);
    world.fire().await;
    let before = world.get_task(task.id).await;
    assert_eq!(before.status, TaskStatus::Completed);
    for _ in 0..2 {
        let told = world.store.pause_for_credential(task.id, &lacks(CredentialIssueKind::Missing)).await.unwrap();
        assert_eq!(told, PauseResult::Notified);
    }
    assert_eq!(world.get_task(task.id).await, before, "it stays as it is");
    let all = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    let told = world.store.list_deliveries(&Scope::Every, &all).await.unwrap();
    let subjects: Vec<_> = told.iter().map(|told| (told.kind, told.subject.as_deref().unwrap())).collect();
    assert_eq!(subjects, [(MessageKind::Notice, "Please connect google/work")], "once");
    assert!(
        told[0].text.as_ref().unwrap().ends_with("A run of the task \"Morning mail\" failed without it."),
        "{told:?}"
    );
}

async fn tasks_are_counted_by_status(world: &StoreHarness) {
    world.task(json!({"interval": "1m"})).await;
    world.task(json!({"interval": "1m"})).await;
    pause(world, &world.task_with("b", json!({"interval": "1m"}), json!({})).await).await;
    let counts = world.store.count_tasks(&Scope::Every).await.unwrap();
    assert_eq!(counts, [("active".into(), 2), ("paused".into(), 1)]);
}

async fn tasks_are_counted_up_to_a_bound(world: &StoreHarness) {
    let new = |_| new_task("a", json!({"interval": "1m"}), json!({}), world.now());
    let tasks: Vec<NewTask> = (0..COUNTED_TO + 1).map(new).collect();
    let (mut from, bound) = (0, COUNTED_TO as usize);
    for (to, counted) in [(bound - 1, COUNTED_TO - 1), (bound, COUNTED_TO), (bound + 1, COUNTED_TO)] {
        for batch in tasks[from..to].chunks(1_000) {
            let stored = world.store.create_tasks(batch).await.unwrap();
            assert!(stored.into_iter().all(|stored| stored));
        }
        for scope in [&Scope::Every, &only("a")] {
            assert_eq!(world.store.count_tasks(scope).await.unwrap(), [("active".into(), counted)], "of {to} tasks");
        }
        from = to;
    }
}
