//! Calls of agents in steps of pipelines: held for a while and then done once, stopped, or asked about and never
//! answered.

use reveille::domain::run::RunState;
use serde_json::{Value, json};
use uuid::Uuid;

use super::undo_window::filing;
use crate::support::app::Instance;
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    held_call_of_an_agent_in_a_step_is_done_once_after_its_time
    held_call_of_an_agent_in_a_step_that_is_stopped_is_told_to_it
    question_of_an_agent_in_a_step_that_nobody_answers_lets_the_run_expire
}

/// A run whose agent, in the second of three steps, has asked its model, and waits.
async fn waiting(instance: &Instance) -> Uuid {
    instance.recipient().await;
    let steps = json!([
        { "name": "begun", "map": "'begun'" },
        { "name": "noted", "agent": { "instruction": "File the note" } },
        { "name": "all", "map": "steps.begun + ', ' + steps.noted" },
    ]);
    let task = json!({
        "name": "Notes", "trigger": { "type": "schedule", "at": "2027-03-09T08:00:00Z" }, "executor": "pipeline",
        "action": { "config": { "steps": steps, "approvals": { "tell": { "gate": "confirm" } } } }, "output": null,
    });
    let task = instance.task(task).await;
    let run = instance.run_now(&task).await;
    instance.settle(0).await;
    let parked = instance.run(run).await;
    assert_eq!(parked.state, RunState::PendingApproval, "{parked:#?}");
    instance.attend().await;
    run
}

/// Lets it be this time, and everything be done that is due.
async fn at(world: &World, instance: &Instance, time: &str) {
    world.advance_to(time);
    instance.attend().await;
    instance.settle(0).await;
}

async fn calls(instance: &Instance, run: Uuid) -> Vec<Value> {
    let (status, listed) = instance.ask("GET", &format!("/v1/approvals?run_id={run}"), ADMIN, None).await;
    assert_eq!(status, 200, "{listed}");
    listed["items"].as_array().expect("approvals").clone()
}

async fn held_call_of_an_agent_in_a_step_is_done_once_after_its_time(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    let instance = world.instance();
    let run = waiting(&instance).await;
    at(&world, &instance, "08:00:59").await;
    assert_eq!((instance.run(run).await.state, deeds.lock().unwrap().len()), (RunState::PendingApproval, 0));
    at(&world, &instance, "08:01").await;
    let ended = instance.run(run).await;
    let output = ended.output.as_deref();
    assert_eq!((ended.state, output), (RunState::Succeeded, Some("begun, All is settled: it is done")));
    assert_eq!(*deeds.lock().unwrap(), [json!({ "note": "one" })]);
    assert_eq!(calls(&instance, run).await[0]["outcome"]["text"], "it is done");
    instance.finish(&world).await;
}

async fn held_call_of_an_agent_in_a_step_that_is_stopped_is_told_to_it(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    let instance = world.instance();
    let run = waiting(&instance).await;
    let call = &calls(&instance, run).await[0];
    let path = format!("/v1/approvals/{}/decision", call["id"].as_str().unwrap());
    let stop = json!({ "decision": "cancel", "digest": call["digest"], "comment": "not today" });
    let (status, answered) = instance.ask("POST", &path, ADMIN, Some(stop)).await;
    assert_eq!(status, 200, "{answered}");
    at(&world, &instance, "08:02").await;
    let ended = instance.run(run).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:#?}");
    assert!(ended.output.as_deref().is_some_and(|output| output.contains("not today")), "{:?}", ended.output);
    assert_eq!(*deeds.lock().unwrap(), [Value::Null; 0]);
    instance.finish(&world).await;
}

async fn question_of_an_agent_in_a_step_that_nobody_answers_lets_the_run_expire(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "tell", "args": { "note": "two" } }] },
        { "turn": 2, "text": "All is settled: {{ tell }}" },
    ] }));
    let instance = world.instance();
    let run = waiting(&instance).await;
    at(&world, &instance, "08:29:59").await;
    assert_eq!(instance.run(run).await.state, RunState::PendingApproval);
    at(&world, &instance, "08:30").await;
    let ended = instance.run(run).await;
    assert_eq!((ended.state, ended.output), (RunState::Expired, None));
    assert_eq!(calls(&instance, run).await[0]["status"], "expired");
    assert_eq!(*deeds.lock().unwrap(), [Value::Null; 0]);
    instance.finish(&world).await;
}
