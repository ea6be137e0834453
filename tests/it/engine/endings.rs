//! How runs end: attempts, limits, cancellation, and executors that misbehave. None of it concerns another run.

use std::time::Duration;

use reveille::domain::notification::MessageKind;
use reveille::domain::run::RunState;
use reveille::domain::task::change::TaskChange;
use reveille::store::Cancelled;
use serde_json::json;
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::journal::RecordedEnd;
use crate::support::world::{World, at, on_both};

on_both! {
    failed_attempt_is_tried_again_within_its_back_off
    wish_to_be_left_alone_for_a_while_is_honoured
    attempts_that_are_used_up_end_the_run_and_its_owner_hears_of_it
    failed_run_is_not_fired_again_until_its_next_instant
    failed_one_shot_ends_and_never_runs_again
    run_ends_at_its_time_limit_whatever_it_does
    run_that_was_not_started_is_cancelled_at_once
    executing_run_is_cancelled_by_asking_first
    panic_ends_its_run_alone
    executor_that_is_gone_fails_the_run
    task_that_can_not_be_read_fails_its_run_alone
    executor_may_refuse_a_run
    output_with_a_nul_does_not_keep_a_run_from_ending
    end_that_the_database_refuses_becomes_a_failure_and_holds_up_no_other
    result_is_told_unless_nobody_wants_it
    two_hundred_slow_runs_delay_no_other
    end_of_a_run_wakes_the_worker_where_another_waits_for_its_place
}

fn attempts(world: &World, run: Uuid) -> Vec<i32> {
    world.journal.begun().iter().filter(|begun| begun.run_id == run).map(|begun| begun.attempt).collect()
}

async fn only_run(instance: &Instance, task: &reveille::domain::task::Task) -> reveille::domain::run::Run {
    let mut runs = instance.runs(task).await;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    runs.remove(0)
}

async fn failed_attempt_is_tried_again_within_its_back_off(world: World) {
    let instance = world.instance();
    let retry = json!({ "max_attempts": 3, "backoff_seconds": 10 });
    let task = instance.task(json!({ "acts": ["retry", "retry", "succeed"], "retry": retry, "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    let run = only_run(&instance, &task).await;
    assert_eq!((run.state, run.attempt, run.error.unwrap().code.as_str()), (RunState::Queued, 1, "busy"));
    // full jitter: at some time up to 10 s, then up to 20 s
    world.advance(10.0);
    instance.live(0).await;
    assert_eq!(attempts(&world, run.id), [1, 2]);
    world.advance(20.0);
    instance.live(0).await;
    assert_eq!(attempts(&world, run.id), [1, 2, 3]);
    let run = only_run(&instance, &task).await;
    assert_eq!((run.state, run.attempt, run.error), (RunState::Succeeded, 3, None));
    assert_eq!((run.started_at, run.finished_at), (Some(at("08:01")), Some(at("08:01:30"))));
    instance.finish(&world).await;
}

async fn wish_to_be_left_alone_for_a_while_is_honoured(world: World) {
    let instance = world.instance();
    let retry = json!({ "max_attempts": 2, "backoff_seconds": 1 });
    let task = instance.task(json!({ "acts": ["retry:300", "succeed"], "retry": retry, "max_runs": 1 })).await;
    for instant in ["08:01", "08:05:59"] {
        world.advance_to(instant);
        instance.live(0).await;
    }
    let run = only_run(&instance, &task).await;
    assert_eq!(attempts(&world, run.id), [1]);
    world.advance_to("08:06");
    instance.live(0).await;
    assert_eq!(attempts(&world, run.id), [1, 2]);
    instance.finish(&world).await;
}

async fn attempts_that_are_used_up_end_the_run_and_its_owner_hears_of_it(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let retry = json!({ "max_attempts": 2, "backoff_seconds": 0 });
    let task = instance.task(json!({ "acts": ["retry"], "retry": retry, "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    let run = only_run(&instance, &task).await;
    assert_eq!((run.state, run.attempt), (RunState::Failed, 2));
    assert_eq!(run.error.unwrap().message, "try again");
    let told: Vec<_> = instance.deliveries().await.into_iter().map(|d| (d.kind, d.run_id, d.dedupe_key)).collect();
    assert_eq!(told, [(MessageKind::Failure, Some(run.id), format!("run:{}:result", run.id))]);
    instance.finish(&world).await;
}

async fn failed_run_is_not_fired_again_until_its_next_instant(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "acts": ["fail"] })).await;
    world.advance_to("08:01");
    for _ in 0..5 {
        instance.live(0).await;
        world.advance(10.0);
    }
    assert_eq!(instance.lines(&task).await, ["08:01 failed broken"]);
    world.advance_to("08:02");
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 failed broken", "08:02 failed broken"]);
    instance.finish(&world).await;
}

async fn failed_one_shot_ends_and_never_runs_again(world: World) {
    let first = world.instance();
    let trigger = json!({ "type": "schedule", "at": "2027-03-01T08:01:00Z" });
    let task = first.task(json!({ "trigger": trigger, "acts": ["fail"] })).await;
    world.advance_to("08:01");
    first.live(0).await;
    first.crash();
    let second = world.instance();
    for instant in ["08:02", "09:00", "02 08:01"] {
        world.advance_to(instant);
        second.rescue().await;
        second.live(0).await;
    }
    assert_eq!(second.lines(&task).await, ["08:01 failed broken"]);
    assert_eq!(second.stored(&task).await.status.as_str(), "completed");
    second.finish(&world).await;
}

async fn run_ends_at_its_time_limit_whatever_it_does(world: World) {
    let instance = world.instance();
    let retry = json!({ "max_attempts": 3 });
    let task = instance.task(json!({ "acts": ["deaf"], "timeout_seconds": 5, "retry": retry, "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(1).await;
    world.journal.until_begun(only_run(&instance, &task).await.id).await;
    world.advance(4.999);
    instance.settle(1).await;
    world.advance(0.001);
    instance.settle(0).await;
    let run = only_run(&instance, &task).await;
    assert_eq!((run.state, run.error.unwrap().code.as_str()), (RunState::Failed, "timeout"));
    assert_eq!(world.journal.ended(run.id), [RecordedEnd::Dropped]);
    instance.finish(&world).await;
}

async fn run_that_was_not_started_is_cancelled_at_once(world: World) {
    let instance = world.instance();
    let ready = instance.task(json!({})).await;
    instance.change(&ready, TaskChange::Pause { reason: None }).await;
    let id = instance.run_now(&ready).await;
    assert_eq!(instance.cancel(id).await, Cancelled::Now);
    let claimed = instance.task(json!({ "max_runs": 1 })).await;
    world.advance_to("08:00:59");
    instance.fire().await;
    let id = instance.runs(&claimed).await[0].id;
    assert_eq!(instance.cancel(id).await, Cancelled::Now);
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&ready).await, ["m 08:00 cancelled no longer needed"]);
    assert_eq!(instance.lines(&claimed).await, ["08:01 cancelled no longer needed"]);
    assert_eq!(world.journal.begun(), []);
    instance.finish(&world).await;
}

async fn executing_run_is_cancelled_by_asking_first(world: World) {
    let instance = world.instance();
    let mut runs = Vec::new();
    for act in ["hang", "give_up", "deaf"] {
        let retry = json!({ "max_attempts": 3 });
        let task = instance.task(json!({ "acts": [act], "retry": retry, "max_runs": 1 })).await;
        runs.push(instance.run_now(&task).await);
        instance.change(&task, TaskChange::Pause { reason: None }).await;
    }
    instance.settle(3).await;
    for id in &runs {
        assert_eq!(instance.cancel(*id).await, Cancelled::Asked);
    }
    instance.work().await;
    for id in &runs {
        let run = instance.until(*id, |run| run.state.is_final()).await;
        assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, Some("no longer needed")));
    }
    let ended = runs.iter().map(|id| world.journal.ended(*id)).collect::<Vec<_>>();
    assert_eq!(ended, [vec![RecordedEnd::ByItself], vec![RecordedEnd::ByItself], vec![RecordedEnd::Dropped]]);
    instance.finish(&world).await;
}

async fn panic_ends_its_run_alone(world: World) {
    let instance = world.instance();
    let retry = json!({ "max_attempts": 3 });
    let panicking = instance.task(json!({ "acts": ["panic"], "retry": retry, "max_runs": 1 })).await;
    let sound = instance.task(json!({ "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&panicking).await, ["08:01 failed panicked"]);
    assert_eq!(instance.lines(&sound).await, ["08:01 succeeded"]);
    instance.finish(&world).await;
}

async fn executor_that_is_gone_fails_the_run(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "max_runs": 1 })).await;
    world
        .execute(
            "update tasks set spec = json_set(spec, '$.executor', 'gone')",
            "update tasks set spec = jsonb_set(spec, '{executor}', '\"gone\"')",
        )
        .await;
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 failed executor_unknown"]);
    assert_eq!(only_run(&instance, &task).await.error.unwrap().message, "there is no executor `gone` in this service");
    instance.finish(&world).await;
}

async fn task_that_can_not_be_read_fails_its_run_alone(world: World) {
    let instance = world.instance();
    let damaged = instance.task(json!({ "name": "damaged", "max_runs": 1 })).await;
    let sound = instance.task(json!({ "max_runs": 1 })).await;
    world
        .execute(
            "update tasks set spec = json_remove(spec, '$.action') where name = 'damaged'",
            "update tasks set spec = spec - 'action' where name = 'damaged'",
        )
        .await;
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&damaged).await, ["08:01 failed no_task"]);
    assert_eq!(instance.lines(&sound).await, ["08:01 succeeded"]);
    instance.finish(&world).await;
}

async fn executor_may_refuse_a_run(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let task = instance.task(json!({ "acts": ["skip"], "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 skipped quota"]);
    assert_eq!(instance.deliveries().await, []);
    instance.finish(&world).await;
}

async fn output_with_a_nul_does_not_keep_a_run_from_ending(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "acts": ["nul"], "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    let run = only_run(&instance, &task).await;
    assert_eq!((run.state, run.output.as_deref()), (RunState::Succeeded, Some("a\u{FFFD}b")));
    instance.finish(&world).await;
}

async fn end_that_the_database_refuses_becomes_a_failure_and_holds_up_no_other(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    world
        .define(
            "create trigger refuse before update on runs when new.output = 'refused' begin select raise(abort, 'no'); end",
            "alter table runs add constraint refuse check (output <> 'refused')",
        )
        .await;
    let refused = instance.task(json!({ "acts": ["say:refused"], "max_runs": 1 })).await;
    let sound = instance.task(json!({ "output": null, "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&refused).await, ["08:01 failed unrecordable"]);
    assert_eq!(instance.lines(&sound).await, ["08:01 succeeded"]);
    let told: Vec<_> = instance.deliveries().await.into_iter().map(|d| d.kind).collect();
    assert_eq!(told, [MessageKind::Failure]);
    instance.finish(&world).await;
}

async fn result_is_told_unless_nobody_wants_it(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    instance.task(json!({ "acts": ["say:quiet"], "output": null, "max_runs": 1 })).await;
    let told = instance.task(json!({ "acts": ["say:loud"], "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    let run = only_run(&instance, &told).await;
    assert_eq!(run.output.as_deref(), Some("loud"));
    let told: Vec<_> = instance.deliveries().await.into_iter().map(|d| (d.kind, d.run_id, d.channel)).collect();
    assert_eq!(told, [(MessageKind::Result, Some(run.id), "email".into())]);
    instance.finish(&world).await;
}

async fn two_hundred_slow_runs_delay_no_other(mut world: World) {
    world.settings.max_concurrent_runs = 256;
    let instance = world.instance();
    for _ in 0..200 {
        instance.task(json!({ "acts": ["hang"], "max_runs": 1 })).await;
    }
    let quick = instance.task(json!({})).await;
    for minute in 1..4 {
        world.advance_to(&format!("08:0{minute}"));
        instance.live(200).await;
    }
    assert_eq!(instance.lines(&quick).await, ["08:01", "08:02", "08:03"].map(|at| format!("{at} succeeded")));
    instance.crash();
}

async fn end_of_a_run_wakes_the_worker_where_another_waits_for_its_place(mut world: World) {
    world.settings.max_concurrent_runs = 2;
    let instance = world.instance();
    let mut runs = Vec::new();
    for seconds in [60, 300, 60] {
        let task = instance.task(json!({ "acts": [format!("sleep:{seconds}")], "trigger": far_ahead() })).await;
        runs.push(instance.run_now(&task).await);
        instance.settle(runs.len().min(2) as i64).await;
    }
    let waiting = instance.worker_hint();
    world.advance(60.0);
    let woken = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert_eq!(woken, Ok(()), "there is a slot for the third");
    instance.settle(2).await;
    world.advance(60.0);
    instance.until(runs[2], |run| run.state == RunState::Succeeded).await;
    instance.settle(1).await;

    let mut waiting = instance.worker_hint();
    world.advance(180.0);
    instance.until(runs[1], |run| run.state == RunState::Succeeded).await;
    assert!(futures::poll!(&mut waiting).is_pending(), "there is nothing that it could do");
    instance.finish(&world).await;
}

fn far_ahead() -> serde_json::Value {
    json!({ "type": "schedule", "at": "2027-04-01T00:00:00Z" })
}
