//! Acts of people on tasks while they fire: pause, edit, run now, backfill, delete.

use reveille::base::id::{Scope, new_id};
use reveille::domain::notification::MessageKind;
use reveille::domain::run::RunState;
use reveille::domain::task::change::TaskChange;
use reveille::store::Cancelled;
use serde_json::json;

use crate::support::world::{World, at, on_both};

on_both! {
    paused_task_fires_nothing_and_says_so_when_it_is_resumed
    task_that_catches_up_on_resume_does
    edit_takes_back_what_was_recorded_ahead_and_keeps_what_is_due
    paused_task_can_be_run_now_and_that_uses_up_no_limit
    backfill_runs_each_past_instant_behind_everything_else
    task_that_keeps_failing_is_paused_and_its_owner_told_once
    success_or_a_cancellation_in_between_keeps_a_task_going
    deleted_task_ends_its_runs
}

fn pause() -> TaskChange {
    TaskChange::Pause { reason: None }
}

async fn paused_task_fires_nothing_and_says_so_when_it_is_resumed(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "max_runs": 3 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    world.advance_to("08:01:59");
    instance.fire().await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded", "08:02 queued"]);

    let paused = instance.change(&task, pause()).await;
    assert_eq!(
        (paused.fire_count, paused.run_count, paused.next_fire_at),
        (1, 1, None),
        "the fire that was taken back"
    );
    world.advance_to("08:04:30");
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded"]);

    instance.change(&task, TaskChange::Resume).await;
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded", "08:02..08:04 x3 skipped paused"]);
    for instant in ["08:05", "08:06", "08:07"] {
        world.advance_to(instant);
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&task).await[2..], ["08:05 succeeded", "08:06 succeeded"].map(String::from));
    instance.finish(&world).await;
}

async fn task_that_catches_up_on_resume_does(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "on_resume": "catch_up" });
    let task = instance.task(json!({ "trigger": trigger })).await;
    instance.change(&task, pause()).await;
    world.advance_to("08:04:30");
    instance.live(0).await;
    instance.change(&task, TaskChange::Resume).await;
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:04 succeeded +3 from 08:01..08:03 x3"]);
    instance.finish(&world).await;
}

async fn edit_takes_back_what_was_recorded_ahead_and_keeps_what_is_due(world: World) {
    let instance = world.instance();
    let every_five = json!({ "trigger": { "type": "schedule", "cron": "*/5 * * * *" } });
    let ahead = instance.task(json!({})).await;
    let unrecorded = instance.task(json!({})).await;
    let renamed = instance.task(json!({})).await;
    world.advance_to("08:00:59");
    instance.fire().await;
    assert_eq!(instance.edit(&ahead, every_five.clone()).await.next_fire_at, Some(at("08:05")));
    instance.edit(&renamed, json!({ "name": "another" })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    // due since this instant, and nobody has looked
    world.advance_to("08:02");
    instance.edit(&unrecorded, every_five).await;
    for instant in ["08:02", "08:05"] {
        world.advance_to(instant);
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&ahead).await, ["08:05 succeeded"]);
    assert_eq!(instance.lines(&unrecorded).await, ["08:01 succeeded", "08:02 succeeded", "08:05 succeeded"]);
    assert_eq!(instance.lines(&renamed).await.first().map(String::as_str), Some("08:01 succeeded"));
    instance.finish(&world).await;
}

async fn paused_task_can_be_run_now_and_that_uses_up_no_limit(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "max_runs": 1 })).await;
    instance.change(&task, pause()).await;
    world.advance_to("08:00:10");
    instance.run_now(&task).await;
    instance.live(0).await;
    instance.change(&task, TaskChange::Resume).await;
    world.advance_to("08:01");
    instance.live(0).await;
    instance.run_now(&task).await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&task).await, ["m 08:00:10 succeeded", "08:01 succeeded", "m 08:01 succeeded"]);
    let stored = instance.stored(&task).await;
    assert_eq!((stored.status.as_str(), stored.fire_count, stored.run_count), ("completed", 1, 3));
    instance.finish(&world).await;
}

async fn backfill_runs_each_past_instant_behind_everything_else(mut world: World) {
    world.settings.max_concurrent_runs = 1;
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "cron": "0 * * * *", "overlap": "allow" });
    let task = instance.task(json!({ "trigger": trigger })).await;
    let instants = task.spec.trigger.between(at("05:30"), at("08:00"), task.anchor_at, 10).unwrap();
    let (id, backfill) = (task.id, new_id(at("08:00")));
    instance
        .on(move |store| async move { store.backfill(&Scope::Every, id, backfill, &instants, None, None).await })
        .await
        .unwrap();
    instance.run_now(&task).await;
    instance.settle(0).await;
    let lines = ["b 06:00 succeeded", "b 07:00 succeeded", "m 08:00 succeeded"];
    assert_eq!(instance.lines(&task).await, lines);
    let begun = world.journal.begun();
    assert_eq!(begun.iter().map(|begun| &begun.fire_key[..1]).collect::<String>(), "mbb");
    assert_eq!(begun[1].fire_key, format!("b:{backfill}:2027-03-01T06:00:00.000Z"));
    instance.finish(&world).await;
}

async fn task_that_keeps_failing_is_paused_and_its_owner_told_once(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let retry = json!({ "max_attempts": 2, "backoff_seconds": 0 });
    let failing = json!({ "acts": ["retry"], "retry": retry, "pause_after_failures": 2, "output": null });
    let task = instance.task(failing).await;
    for minute in 1..5 {
        world.advance_to(&format!("08:0{minute}"));
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&task).await, ["08:01 failed busy", "08:02 failed busy"]);
    let paused = instance.stored(&task).await;
    assert_eq!((paused.status.as_str(), paused.status_reason.as_deref()), ("paused", Some("2 failed runs in a row")));
    let told: Vec<_> = instance.deliveries().await.into_iter().map(|d| (d.kind, d.channel, d.subject)).collect();
    assert_eq!(told, [(MessageKind::Notice, "email".into(), Some("Paused: a task".into()))]);

    // a resumed task begins to count anew
    instance.change(&task, TaskChange::Resume).await;
    world.advance_to("08:05");
    instance.live(0).await;
    assert_eq!(instance.stored(&task).await.status.as_str(), "active");
    instance.finish(&world).await;
}

async fn success_or_a_cancellation_in_between_keeps_a_task_going(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "acts": ["fail"], "pause_after_failures": 2 })).await;
    // not by an edit, with which the count begins anew
    let minute = async |act: &str, minute: u32| {
        let changed = "update tasks set version = version + 1, spec =";
        let sqlite = format!("{changed} json_set(spec, '$.action.config.acts', json('[\"{act}\"]'))");
        let postgres = format!("{changed} jsonb_set(spec, '{{action,config,acts}}', '[\"{act}\"]')");
        world.execute(&sqlite, &postgres).await;
        world.advance_to(&format!("08:0{minute}"));
        instance.fire().await;
        instance.work().await;
    };
    minute("fail", 1).await;
    instance.settle(0).await;
    minute("succeed", 2).await;
    instance.settle(0).await;
    minute("fail", 3).await;
    instance.settle(0).await;
    assert_eq!(instance.stored(&task).await.status.as_str(), "active");
    minute("hang", 4).await;
    let hanging = instance.runs(&task).await[3].id;
    assert_eq!(instance.cancel(hanging).await, Cancelled::Asked);
    instance.settle(0).await;
    assert_eq!(instance.stored(&task).await.status.as_str(), "active");
    instance.finish(&world).await;
}

async fn deleted_task_ends_its_runs(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "queue_all" });
    let task = instance.task(json!({ "trigger": trigger, "acts": ["hang"] })).await;
    for _ in 0..2 {
        world.advance(60.0);
        instance.live(1).await;
    }
    world.advance(59.0);
    instance.fire().await;
    let id = task.id;
    instance.on(move |store| async move { store.delete_task(&Scope::Every, id).await }).await.unwrap();
    instance.settle(0).await;
    assert_eq!(
        instance.lines(&task).await,
        ["08:01", "08:02", "08:03"].map(|at| format!("{at} cancelled task_deleted"))
    );
    world.advance(300.0);
    instance.live(0).await;
    assert!(instance.runs(&task).await.iter().all(|run| run.state == RunState::Cancelled));
    assert_eq!(world.journal.begun().len(), 1);
    instance.finish(&world).await;
}
