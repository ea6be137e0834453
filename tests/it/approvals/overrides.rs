//! Overrides of the approval matrix over whole instances: the next call of a run is judged by them.

use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{ApprovalLevel, ApprovalOverride};
use reveille::domain::run::RunState;
use serde_json::json;
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::{World, on_both};

on_both! {
    override_of_a_task_makes_its_runs_ask_until_it_is_taken_back
}

async fn set(instance: &Instance, wanted: ApprovalOverride) -> Uuid {
    let id = wanted.id;
    instance.on(|store| async move { store.set_approval_override(&wanted, None).await }).await.expect("set");
    id
}

async fn override_of_a_task_makes_its_runs_ask_until_it_is_taken_back(mut world: World) {
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "current_time", "arguments": {} }] },
        { "turn": 2, "text": "Done." },
    ] }));
    let instance = world.instance();
    let wanted = json!({ "executor": "orchestrator", "action": { "instruction": "Go." } });
    let (task, other) = (instance.task(wanted.clone()).await, instance.task(wanted).await);
    let ends = async |task| {
        let run = instance.run_now(task).await;
        instance.settle(0).await;
        let state = instance.run(run).await.state;
        if state == RunState::PendingApproval {
            instance.cancel(run).await;
        }
        state
    };
    let now = task.created_at;
    let wanted = ApprovalOverride {
        id: new_id(now),
        tenant_id: task.tenant_id.clone(),
        task_id: Some(task.id),
        agent: None,
        tool: "current_time".into(),
        gate: ApprovalLevel::Confirm,
        when: None,
        created_at: now,
        created_by: "token:t".into(),
        expires_at: now + chrono::TimeDelta::days(30),
    };
    let id = set(&instance, wanted).await;
    assert_eq!(ends(&task).await, RunState::PendingApproval);
    assert_eq!(ends(&other).await, RunState::Succeeded, "it is for the one task");
    let removed =
        instance.on(|store| async move { store.remove_approval_override(&Scope::Every, id, "token:t").await }).await;
    removed.expect("taken back");
    assert_eq!(ends(&task).await, RunState::Succeeded);
    instance.finish(&world).await;
}
