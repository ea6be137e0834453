//! Runs whose task has another one running: all five policies, end to end.

use reveille::base::id::Scope;
use reveille::domain::approval::{ApprovalAnswer, ApprovalChoice, ApprovalStatus, Via};
use reveille::domain::run::RunState;
use reveille::store::ApprovalFilter;
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::journal::RecordedEnd;
use crate::support::world::{World, on_both};

on_both! {
    skip_records_which_run_was_in_the_way
    queue_one_lets_one_wait_and_skips_the_others
    queue_all_runs_each_in_turn_the_oldest_first
    allow_runs_them_side_by_side
    cancel_previous_ends_the_one_before_and_takes_its_place
    cancel_previous_does_not_wait_for_a_back_off
    run_that_waits_for_its_next_attempt_keeps_its_place
    run_behind_goes_on_though_its_task_changed_its_mind
    run_that_waits_for_people_is_in_nobodys_way
    run_that_waits_for_people_and_counts_is_in_the_way
    run_that_waits_and_counts_is_superseded_with_what_it_asks
    run_that_waits_for_its_completion_and_counts_is_in_the_way_until_it_expires
}

fn every_minute(overlap: &str, acts: Value) -> Value {
    json!({ "trigger": { "type": "schedule", "interval": "1m", "overlap": overlap }, "acts": acts })
}

async fn skip_records_which_run_was_in_the_way(world: World) {
    let instance = world.instance();
    let task = instance.task(every_minute("skip", json!(["wait"]))).await;
    for _ in 0..3 {
        world.advance(60.0);
        instance.live(1).await;
    }
    world.journal.open_gate();
    instance.settle(0).await;
    world.advance(60.0);
    instance.live(0).await;
    assert_eq!(
        instance.lines(&task).await,
        ["08:01 succeeded", "08:02 skipped overlap", "08:03 skipped overlap", "08:04 succeeded"]
    );
    let runs = instance.runs(&task).await;
    assert_eq!(runs[1].blocked_by, Some(runs[0].id));
    instance.finish(&world).await;
}

async fn queue_one_lets_one_wait_and_skips_the_others(world: World) {
    let instance = world.instance();
    let task = instance.task(every_minute("queue_one", json!(["wait"]))).await;
    for _ in 0..4 {
        world.advance(60.0);
        instance.live(1).await;
    }
    assert_eq!(instance.queue().await, [("parked".into(), 1), ("started".into(), 1)]);
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(
        instance.lines(&task).await,
        ["08:01 succeeded", "08:02 succeeded", "08:03 skipped overlap", "08:04 skipped overlap"]
    );
    instance.finish(&world).await;
}

async fn queue_all_runs_each_in_turn_the_oldest_first(world: World) {
    let instance = world.instance();
    let task = instance.task(every_minute("queue_all", json!(["wait"]))).await;
    for _ in 0..4 {
        world.advance(60.0);
        instance.live(1).await;
    }
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01", "08:02", "08:03", "08:04"].map(|at| format!("{at} succeeded")));
    let order: Vec<_> = world.journal.begun().iter().map(|begun| begun.run_id).collect();
    assert_eq!(order, instance.runs(&task).await.iter().map(|run| run.id).collect::<Vec<_>>());
    instance.finish(&world).await;
}

async fn allow_runs_them_side_by_side(world: World) {
    let instance = world.instance();
    let task = instance.task(every_minute("allow", json!(["wait"]))).await;
    for running in 1..4 {
        world.advance(60.0);
        instance.live(running).await;
    }
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01", "08:02", "08:03"].map(|at| format!("{at} succeeded")));
    instance.finish(&world).await;
}

async fn cancel_previous_ends_the_one_before_and_takes_its_place(world: World) {
    let instance = world.instance();
    let task = instance.task(every_minute("cancel_previous", json!(["hang"]))).await;
    let mut before = None;
    for _ in 0..3 {
        world.advance(60.0);
        instance.fire().await;
        instance.work().await;
        if let Some(before) = before {
            instance.work().await;
            instance.until(before, |run| run.state == RunState::Cancelled).await;
        }
        instance.settle(1).await;
        before = instance.runs(&task).await.last().map(|run| run.id);
    }
    let lines = ["08:01 cancelled superseded", "08:02 cancelled superseded", "08:03 running"];
    assert_eq!(instance.lines(&task).await, lines);
    let runs = instance.runs(&task).await;
    assert_eq!(world.journal.ended(runs[0].id), [RecordedEnd::ByItself], "the executor was asked, and ended");
    instance.cancel(runs[2].id).await;
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn cancel_previous_does_not_wait_for_a_back_off(world: World) {
    let instance = world.instance();
    let mut task = every_minute("cancel_previous", json!(["retry:3000", "succeed"]));
    task["retry"] = json!({ "max_attempts": 2 });
    task["max_runs"] = json!(2);
    let task = instance.task(task).await;
    world.advance(60.0);
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 queued busy"]);
    world.advance(60.0);
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 cancelled superseded", "08:02 queued busy"]);
    world.advance(3000.0);
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 cancelled superseded", "08:02 succeeded"]);
    instance.finish(&world).await;
}

async fn run_that_waits_for_its_next_attempt_keeps_its_place(world: World) {
    let instance = world.instance();
    let mut task = every_minute("skip", json!(["retry:90", "succeed"]));
    task["retry"] = json!({ "max_attempts": 2, "backoff_seconds": 0 });
    let task = instance.task(task).await;
    for instant in ["08:01", "08:02", "08:02:29"] {
        world.advance_to(instant);
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&task).await, ["08:01 queued busy", "08:02 skipped overlap"]);
    world.advance_to("08:02:30");
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded", "08:02 skipped overlap"]);
    instance.crash();
}

async fn run_behind_goes_on_though_its_task_changed_its_mind(world: World) {
    let instance = world.instance();
    let mut task = every_minute("queue_all", json!(["wait"]));
    task["max_runs"] = json!(2);
    let task = instance.task(task).await;
    for _ in 0..2 {
        world.advance(60.0);
        instance.live(1).await;
    }
    instance.edit(&task, json!({ "trigger": every_minute("skip", json!([]))["trigger"] })).await;
    world.journal.open_gate();
    instance.settle(0).await;
    world.advance(61.0);
    instance.rescue().await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded", "08:02 succeeded"]);
    instance.finish(&world).await;
}

/// Fires each minute; its first run asks two things or waits for its completion, and counts as running meanwhile or
/// not.
fn waiting_each_minute(overlap: &str, counts: bool, act: &str) -> Value {
    let mut task = every_minute(overlap, json!([act]));
    task["trigger"]["overlap_counts_waiting"] = json!(counts);
    task
}

/// Lives through these minutes.
async fn minutes(world: &World, instance: &Instance, count: usize) {
    for _ in 0..count {
        world.advance(60.0);
        instance.attend().await;
        instance.expire().await;
        instance.live(0).await;
    }
}

/// Answers everything that is open with a yes.
async fn approve_all(instance: &Instance) {
    let open = ApprovalFilter { status: Some(ApprovalStatus::Pending), limit: 9, ..ApprovalFilter::default() };
    let decide = |store: reveille::store::Store| async move {
        for asked in store.list_approvals(&Scope::Every, &open).await.expect("approvals") {
            let answer = ApprovalAnswer {
                choice: ApprovalChoice::Approve,
                digest: asked.digest,
                edited: None,
                comment: None,
                by: "ann".into(),
                via: Via::Api,
            };
            store.decide_approval(&Scope::Every, asked.id, &answer).await.expect("an answer");
        }
    };
    instance.on(decide).await;
}

async fn run_that_waits_for_people_is_in_nobodys_way(world: World) {
    let instance = world.instance();
    for policy in ["skip", "queue_one", "cancel_previous"] {
        let mut task = waiting_each_minute(policy, false, "ask:1800");
        task["trigger"]["interval"] = json!("10m");
        let task = instance.task(task).await;
        world.advance(600.0);
        instance.live(0).await;
        world.advance(600.0);
        instance.live(0).await;
        let states: Vec<RunState> = instance.runs(&task).await.iter().map(|run| run.state).collect();
        assert_eq!(states, [RunState::PendingApproval; 2], "{policy}");
        approve_all(&instance).await;
        instance.settle(0).await;
        let states: Vec<RunState> = instance.runs(&task).await.iter().map(|run| run.state).collect();
        assert_eq!(states, [RunState::Succeeded; 2], "{policy}");
        instance
            .on(move |store| async move { store.delete_task(&Scope::Every, task.id).await })
            .await
            .expect("deleted");
    }
    instance.finish(&world).await;
}

async fn run_that_waits_for_people_and_counts_is_in_the_way(world: World) {
    let instance = world.instance();
    let skips = instance.task(waiting_each_minute("skip", true, "ask:1800")).await;
    let queues = instance.task(waiting_each_minute("queue_one", true, "ask:1800")).await;
    minutes(&world, &instance, 3).await;
    assert_eq!(
        instance.lines(&skips).await,
        ["08:01 pending_approval", "08:02 skipped overlap", "08:03 skipped overlap"]
    );
    assert_eq!(instance.lines(&queues).await, ["08:01 pending_approval", "08:02 queued", "08:03 skipped overlap"]);
    approve_all(&instance).await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&skips).await[0], "08:01 succeeded");
    assert_eq!(
        instance.lines(&queues).await,
        ["08:01 succeeded", "08:02 pending_approval", "08:03 skipped overlap"],
        "who waited behind has its turn"
    );
    instance.crash();
}

async fn run_that_waits_and_counts_is_superseded_with_what_it_asks(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let task = instance.task(waiting_each_minute("cancel_previous", true, "ask:1800")).await;
    minutes(&world, &instance, 3).await;
    assert_eq!(
        instance.lines(&task).await,
        ["08:01 cancelled superseded", "08:02 cancelled superseded", "08:03 pending_approval"]
    );
    let runs = instance.runs(&task).await;
    assert_eq!((runs[0].blocked_by, runs[1].blocked_by), (Some(runs[1].id), Some(runs[2].id)));
    let all = ApprovalFilter { limit: 9, ..ApprovalFilter::default() };
    let asked = instance.on(|store| async move { store.list_approvals(&Scope::Every, &all).await }).await;
    let open = asked.expect("approvals").into_iter().filter(|asked| asked.status == ApprovalStatus::Pending);
    assert_eq!(open.map(|asked| asked.run_id).collect::<Vec<_>>(), [runs[2].id; 2]);
    let told: Vec<&str> = instance.deliveries().await.iter().map(|delivery| delivery.kind.as_str()).collect();
    assert_eq!(told, ["ask", "ask", "ask"], "of what was cancelled nobody is told");
    approve_all(&instance).await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&task).await[2], "08:03 succeeded");
    instance.finish(&world).await;
}

async fn run_that_waits_for_its_completion_and_counts_is_in_the_way_until_it_expires(world: World) {
    let instance = world.instance();
    let task = instance.task(waiting_each_minute("skip", true, "foreign:90")).await;
    minutes(&world, &instance, 3).await;
    let lines = ["08:01 expired completion_timeout", "08:02 skipped overlap", "08:03 waiting_for_completion"];
    assert_eq!(instance.lines(&task).await, lines);
    instance.crash();
}
