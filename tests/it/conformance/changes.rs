//! Changes of tasks: what tenants wrote is computed before anything is locked, and what others change meanwhile stands.

use reveille::base::id::Scope;
use reveille::domain::credential::{CredentialIssue, CredentialIssueKind, Reference};
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Task, TaskStatus};
use reveille::store::{PauseResult, StoreError};
use serde_json::json;

use super::credentials::credential;
use super::world::{StoreHarness, spec};
use crate::support::computing::{HeldThreads, until_waiting};

on_both!(
    change_is_computed_before_its_task_is_locked,
    edit_between_reading_and_locking_is_not_lost,
    edit_of_a_version_that_is_gone_by_the_lock_is_refused,
    instant_that_moves_between_reading_and_locking_is_planned_anew,
    task_that_is_another_at_each_try_is_refused_in_the_end,
    credential_is_saved_after_the_tasks_that_wait_for_it_are_planned,
);

fn pause() -> TaskChange {
    TaskChange::Pause { reason: None }
}

/// Makes a change, and another by the database's own words while the change is computed.
async fn changed(world: &StoreHarness, task: &Task, change: TaskChange, meanwhile: &str) -> Result<Task, StoreError> {
    let computing = world.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let (store, id) = (world.store.clone(), task.id);
    let asked = tokio::spawn(async move { store.change_task(&Scope::Every, id, &change).await });
    until_waiting(&computing, 1).await;
    // on its own connection: it would wait for a lock that is held here, and for ever
    world.plant(&format!("{meanwhile} = {}", world.id(task.id))).await;
    drop(threads);
    asked.await.unwrap()
}

async fn change_is_computed_before_its_task_is_locked(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let edit = |version| {
        let spec = Box::new(spec(json!({"cron": "0 8 * * *"}), json!({})));
        TaskChange::Edit { version, name: "edited".into(), spec }
    };
    let touch = "update due set run_count = run_count where task_id";
    for (change, status) in
        [(pause(), TaskStatus::Paused), (TaskChange::Resume, TaskStatus::Active), (edit(3), TaskStatus::Active)]
    {
        let changed = changed(world, &task, change.clone(), touch).await.unwrap();
        assert_eq!(changed.status, status, "{change:?}");
        assert_eq!(world.get_task(task.id).await, changed);
    }
}

async fn edit_between_reading_and_locking_is_not_lost(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let renamed = "update tasks set name = 'renamed', version = version + 1 where id";
    let paused = changed(world, &task, pause(), renamed).await.unwrap();
    assert_eq!((paused.name.as_str(), paused.status, paused.version), ("renamed", TaskStatus::Paused, 3));
    assert_eq!(world.get_task(task.id).await, paused);
}

async fn edit_of_a_version_that_is_gone_by_the_lock_is_refused(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let spec = Box::new(spec(json!({"interval": "5m"}), json!({})));
    let edit = TaskChange::Edit { version: task.version, name: "mine".into(), spec };
    let renamed = "update tasks set name = 'renamed', version = version + 1 where id";
    let refused = changed(world, &task, edit, renamed).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("version 2")), "{refused:?}");
    assert_eq!(world.get_task(task.id).await.name, "renamed");
}

async fn instant_that_moves_between_reading_and_locking_is_planned_anew(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let ahead = world.task(json!({"at": "2026-03-01T08:02:00Z"})).await;
    // as if it had fired, and waited for what the other waits for
    let moved = format!(
        "update due set next_at = (select next_at from due where task_id = {0}),
                        nominal_at = (select nominal_at from due where task_id = {0}) where task_id",
        world.id(ahead.id)
    );
    changed(world, &task, pause(), &moved).await.unwrap();
    let kept = format!(
        "select count(*) from due a, due b where a.task_id = {} and b.task_id = {} and a.nominal_at = b.nominal_at",
        world.id(task.id),
        world.id(ahead.id)
    );
    assert_eq!(world.count(&kept).await, 1, "the first instant that is not considered is the one that it was moved to");
}

async fn task_that_is_another_at_each_try_is_refused_in_the_end(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let computing = world.store.computing().clone();
    let mut threads = HeldThreads::all_of(&computing, "a").await;
    let (store, id) = (world.store.clone(), task.id);
    let asked = tokio::spawn(async move { store.change_task(&Scope::Every, id, &pause()).await });
    let tries = 20;
    for _ in 0..tries {
        until_waiting(&computing, 1).await;
        world.plant(&format!("update tasks set version = version + 1 where id = {}", world.id(id))).await;
        threads.let_pass().await;
    }
    let refused = asked.await.unwrap();
    assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("all the time")), "{refused:?}");
    let after = world.get_task(id).await;
    assert_eq!((after.status, after.version), (TaskStatus::Active, 1 + tries));
}

async fn credential_is_saved_after_the_tasks_that_wait_for_it_are_planned(world: &StoreHarness) {
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    let hourly = || json!({"interval": "1h"});
    let (first, second) = (world.task(hourly()).await, world.task(hourly()).await);
    assert_eq!(world.store.pause_for_credential(first.id, &lack).await.unwrap(), PauseResult::Paused);
    let computing = world.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let store = world.store.clone();
    let saving = tokio::spawn(async move { store.put_credential(&Scope::Every, &credential("a"), 0).await });
    until_waiting(&computing, 1).await;
    // one is edited, and one more comes to wait, while the first is planned
    world.plant(&format!("update tasks set name = 'renamed' where id = {}", world.id(first.id))).await;
    world.plant(&format!("update tasks set version = version + 1 where id = {}", world.id(first.id))).await;
    let waits = "set status = 'paused', awaited_service = 'google', awaited_account = 'work', version = version + 1";
    world.plant(&format!("update tasks {waits} where id = {}", world.id(second.id))).await;
    world.plant(&format!("update due set next_at = null where task_id = {}", world.id(second.id))).await;
    drop(threads);
    let saved = saving.await.unwrap().unwrap();
    assert_eq!(saved.resumed.len(), 2);
    for (task, name) in [(&first, "renamed"), (&second, second.name.as_str())] {
        let after = world.get_task(task.id).await;
        assert_eq!((after.status, after.name.as_str()), (TaskStatus::Active, name));
        assert_eq!(after.next_fire_at, task.next_fire_at);
    }
}
