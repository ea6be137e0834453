//! Overrides of the approval matrix over whole instances: the next call of a run is judged by them.

use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{ApprovalLevel, ApprovalOverride};
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    override_of_a_task_makes_its_runs_ask_until_it_is_taken_back
    override_of_an_agent_or_a_tenant_holds_for_its_calls_until_it_is_taken_back
    override_of_an_agent_or_a_tenant_ends_with_its_time
}

const PLACE: &str = "/v1/approval-overrides";

/// Models look at the clock once, and are done.
fn looking_at_the_clock(world: &mut World) {
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "current_time", "args": {} }] },
        { "turn": 2, "text": "Done." },
    ] }));
}

/// The state in which a run of the task ends, or asks.
async fn end_of(instance: &Instance, task: &Task) -> RunState {
    let run = instance.run_now(task).await;
    instance.settle(0).await;
    let state = instance.run(run).await.state;
    if state == RunState::PendingApproval {
        instance.cancel(run).await;
    }
    state
}

async fn set(instance: &Instance, wanted: ApprovalOverride) -> Uuid {
    let id = wanted.id;
    instance.on(|store| async move { store.set_approval_override(&wanted, None).await }).await.expect("set");
    id
}

async fn override_of_a_task_makes_its_runs_ask_until_it_is_taken_back(mut world: World) {
    looking_at_the_clock(&mut world);
    let instance = world.instance();
    let wanted = json!({ "executor": "orchestrator", "action": { "instruction": "Go." } });
    let (task, other) = (instance.task(wanted.clone()).await, instance.task(wanted).await);
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
    assert_eq!(end_of(&instance, &task).await, RunState::PendingApproval);
    assert_eq!(end_of(&instance, &other).await, RunState::Succeeded, "it is for the one task");
    let removed =
        instance.on(|store| async move { store.remove_approval_override(&Scope::Every, id, "token:t").await }).await;
    removed.expect("taken back");
    assert_eq!(end_of(&instance, &task).await, RunState::Succeeded);
    instance.finish(&world).await;
}

/// Tasks whose runs look at the clock: by the configured agent `clerk` of ann, by another agent of ann, and by one of
/// bob.
struct Lookers([Task; 3]);

impl Lookers {
    async fn of(world: &mut World) -> (Instance, Lookers) {
        looking_at_the_clock(world);
        let clerk = json!({ "name": "clerk", "instruction": "You keep the time." });
        world.agents = vec![serde_json::from_value(clerk).expect("an agent")];
        let instance = world.instance();
        let steps = json!([{ "name": "look", "agent": { "name": "clerk", "instruction": "Go." } }]);
        let by_clerk = json!({ "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": null });
        let other = json!({ "executor": "orchestrator", "action": { "instruction": "Go." } });
        let mut foreign = other.clone();
        foreign["tenant_id"] = json!("bob");
        let tasks = [instance.task(by_clerk).await, instance.task(other).await, instance.task(foreign).await];
        (instance, Lookers(tasks))
    }

    /// Which of them ask a person first.
    async fn asking(&self, instance: &Instance) -> Vec<bool> {
        let mut asking = Vec::new();
        for task in &self.0 {
            asking.push(match end_of(instance, task).await {
                RunState::PendingApproval => true,
                RunState::Succeeded => false,
                state => panic!("{}: {}", task.tenant_id, state.as_str()),
            });
        }
        asking
    }
}

/// Sets an override over HTTP by which a person is asked before ann's clock is looked at; its address.
async fn asked(instance: &Instance, more: Value) -> String {
    let mut wanted = json!({ "tenant_id": "ann", "tool": "current_time", "gate": "confirm" });
    wanted.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let (status, set) = instance.ask("POST", PLACE, ADMIN, Some(wanted)).await;
    assert_eq!(status, 201, "{set}");
    format!("{PLACE}/{}", set["id"].as_str().expect("an id"))
}

async fn override_of_an_agent_or_a_tenant_holds_for_its_calls_until_it_is_taken_back(mut world: World) {
    let (instance, lookers) = Lookers::of(&mut world).await;
    assert_eq!(lookers.asking(&instance).await, [false, false, false]);
    for (more, asking) in [(json!({ "agent": "clerk" }), [true, false, false]), (json!({}), [true, true, false])] {
        let place = asked(&instance, more).await;
        assert_eq!(lookers.asking(&instance).await, asking, "{place}");
        let (status, answer) = instance.ask("DELETE", &place, ADMIN, None).await;
        assert_eq!(status, 204, "{answer}");
        assert_eq!(lookers.asking(&instance).await, [false, false, false], "it is taken back");
    }
    // the agent's outweighs that of its tenant
    asked(&instance, json!({})).await;
    asked(&instance, json!({ "agent": "clerk", "gate": "auto" })).await;
    assert_eq!(lookers.asking(&instance).await, [false, true, false]);
    instance.finish(&world).await;
}

async fn override_of_an_agent_or_a_tenant_ends_with_its_time(mut world: World) {
    let (instance, lookers) = Lookers::of(&mut world).await;
    asked(&instance, json!({ "expires_at": "2027-03-01T08:10:00Z" })).await;
    asked(&instance, json!({ "agent": "clerk", "expires_at": "2027-03-01T08:20:00Z" })).await;
    for (time, asking) in [
        ("08:09:59", [true, true, false]),
        ("08:10", [true, false, false]),
        ("08:19:59", [true, false, false]),
        ("08:20", [false, false, false]),
    ] {
        world.advance_to(time);
        assert_eq!(lookers.asking(&instance).await, asking, "{time}");
    }
    let (_, listed) = instance.ask("GET", PLACE, ADMIN, None).await;
    assert_eq!(listed["items"], json!([]), "{listed}");
    instance.finish(&world).await;
}
