//! Agents in steps ask people, with the real binary on both databases: the run waits, a death lies between any two
//! answers, and the step goes on where it was. What stood before it is not done again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::postgres::Database;
use crate::support::talking_model::{TOKEN, TalkingModel};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn on_sqlite_agents_in_steps_ask_people() {
    let model = TalkingModel::start().await;
    agents_in_steps_ask_people(&model, model.service(None)).await;
}

#[tokio::test]
async fn on_postgres_agents_in_steps_ask_people() {
    let (model, database) = (TalkingModel::start().await, Database::empty().await);
    agents_in_steps_ask_people(&model, model.service(Some(&database.url))).await;
}

async fn agents_in_steps_ask_people(model: &TalkingModel, mut service: Service) {
    service.start().await;
    let mut reborn = async || {
        service.kill().await;
        service.start().await;
        Api::new(service.url(), TOKEN)
    };
    let api = reborn().await;
    let seat = |seat: &str| json!({ "method": "POST", "url": model.url("hold"), "body": { "seat": seat } });
    let steps = json!([
        { "name": "begun", "http": seat("0A") },
        { "name": "booked", "agent": { "instruction": "Book a flight" } },
        { "name": "window", "agent": { "instruction": "hold one" } },
        { "name": "all", "map": "steps.booked + ' / ' + steps.window" },
    ]);
    let task = run_now(&api, json!({ "steps": steps.clone() })).await;

    // a field that a configured agent lacks, which the agent of the step has called
    let waiting = api.until_run(&task, "waiting_for_input", PATIENCE).await;
    let run = waiting["id"].as_str().unwrap().to_owned();
    assert_eq!(model.held(), ["0A"]);
    let pool = api.get("/v1/agents/suspended?tenant_id=ann").await;
    assert_eq!((&pool["items"][0]["id"], &pool["items"][0]["agents"][0]["questions"]), (&json!(run), &json!(1)));
    let api = reborn().await;
    api.post(&format!("/v1/runs/{run}/input"), &json!({ "fields": { "destination": "NYC" } })).await;

    // a call of the innermost one
    let api = reborn_when(&api, &task, "pending_approval", &mut reborn).await;
    let question = question(&api, &run).await;
    assert_eq!((&question["agent_name"], &question["source"]), (&json!("pay"), &json!("trigger")), "{question:#}");
    assert_eq!((&question["delegation_chain"], &question["step"]), (&json!(["FlightAgent"]), &json!("booked")));
    decide(&api, &question, json!({ "decision": "approve" })).await;

    // the agent of the next step, whose call is edited
    let api = until_question_other_than(&api, &question, &mut reborn).await;
    let seat = self::question(&api, &run).await;
    assert_eq!((&seat["agent_name"], &seat["delegation_chain"]), (&json!("hold"), &json!([])), "{seat:#}");
    assert_eq!(seat["step"], "window");
    decide(&api, &seat, json!({ "decision": "edit", "modifications": { "seat": "14C" } })).await;

    let api = reborn().await;
    let run = api.until_run(&task, "succeeded", PATIENCE).await;
    let output = run["output"].as_str().unwrap();
    assert!(
        output.contains("your flight is booked") && output.contains("/ told: ") && output.contains("14C"),
        "{output}"
    );
    assert_eq!((model.paid(), model.held()), (1, vec!["0A".to_owned(), "14C".to_owned()]), "each once");
    // each answer of a model is counted once
    assert_eq!((&run["usage"]["turns"], &run["usage"]["input_tokens"]), (&json!(6), &json!(60)), "{}", run["usage"]);

    let api = configured_agent_asks_for_its_fields(api, model, &mut reborn).await;
    call_that_the_task_lets_through_is_asked_of_nobody(&api, model).await;
    refused_call_is_told_to_the_model(&api, model).await;
    changed_rules_do_not_end_the_run(&api).await;
    run_that_stores_counts_as_running_while_it_waits(&api).await;
    changed_steps_end_the_run(&api, steps).await;
    service.kill().await;
}

/// A configured agent in a step lacks a field, and then asks about a call of its own.
async fn configured_agent_asks_for_its_fields(
    api: Api,
    model: &TalkingModel,
    reborn: &mut impl AsyncFnMut() -> Api,
) -> Api {
    let args = json!({ "origin": "SFO", "destination": "{{ task.name }}" });
    let agent = json!({ "name": "FlightAgent", "instruction": "Book it", "args": args });
    let task = run_now(&api, json!({ "steps": [{ "name": "flight", "agent": agent }] })).await;
    let waiting = api.until_run(&task, "waiting_for_input", PATIENCE).await;
    let (run, paid) = (waiting["id"].as_str().unwrap().to_owned(), model.paid());
    let lacking = question(&api, &run).await;
    assert_eq!((&lacking["kind"], &lacking["agent_name"]), (&json!("input"), &json!("FlightAgent")), "{lacking:#}");
    assert_eq!((&lacking["step"], &lacking["delegation_chain"]), (&json!("flight"), &json!([])), "{lacking:#}");
    let api = reborn().await;
    api.post(&format!("/v1/runs/{run}/input"), &json!({ "fields": { "destination": "NYC" } })).await;

    let api = reborn_when(&api, &task, "pending_approval", reborn).await;
    let pay = question(&api, &run).await;
    assert_eq!((&pay["agent_name"], &pay["step"]), (&json!("pay"), &json!("flight")), "{pay:#}");
    decide(&api, &pay, json!({ "decision": "approve" })).await;
    let ended = api.until_run(&task, "succeeded", PATIENCE).await;
    assert_eq!((ended["output"].as_str(), model.paid()), (Some("your flight is booked"), paid + 1), "{ended:#}");
    api
}

async fn call_that_the_task_lets_through_is_asked_of_nobody(api: &Api, model: &TalkingModel) {
    let steps = json!([{ "name": "window", "agent": { "instruction": "hold one" } }]);
    let task = run_now(api, json!({ "steps": steps, "approvals": { "hold": { "gate": "auto" } } })).await;
    api.until_run(&task, "succeeded", PATIENCE).await;
    assert_eq!(model.held().last().unwrap(), "12A");
}

async fn refused_call_is_told_to_the_model(api: &Api, model: &TalkingModel) {
    let held = model.held();
    let task = run_now(api, json!({ "steps": [{ "name": "window", "agent": { "instruction": "hold one" } }] })).await;
    let waiting = api.until_run(&task, "pending_approval", PATIENCE).await;
    let question = question(api, waiting["id"].as_str().unwrap()).await;
    decide(api, &question, json!({ "decision": "cancel", "comment": "not that seat" })).await;
    let run = api.until_run(&task, "succeeded", PATIENCE).await;
    assert!(run["output"].as_str().unwrap().contains("not that seat"), "{}", run["output"]);
    assert_eq!(model.held(), held);
}

/// Rules about consent and money may be changed while a person is asked.
async fn changed_rules_do_not_end_the_run(api: &Api) {
    let steps = json!([{ "name": "window", "agent": { "instruction": "hold one" } }]);
    let task = run_now(api, json!({ "steps": steps })).await;
    let waiting = api.until_run(&task, "pending_approval", PATIENCE).await;
    let question = question(api, waiting["id"].as_str().unwrap()).await;
    let rules = json!({ "pay": { "gate": "confirm" } });
    let config = json!({ "steps": steps, "approvals": rules, "budget": { "tokens": 1_000_000 } });
    api.patch(&format!("/v1/tasks/{task}"), &json!({ "action": { "config": config } })).await;
    decide(api, &question, json!({ "decision": "approve" })).await;
    api.until_run(&task, "succeeded", PATIENCE).await;
}

/// A run that has read what earlier runs have stored lets no other one store something newer while it waits.
async fn run_that_stores_counts_as_running_while_it_waits(api: &Api) {
    let steps = json!([
        { "name": "window", "agent": { "instruction": "hold one" } },
        { "name": "count", "store": { "name": "seen", "expression": "has(state.seen) ? state.seen + 1 : 1" } },
    ]);
    let task = run_now(api, json!({ "steps": steps })).await;
    let waiting = api.until_run(&task, "pending_approval", PATIENCE).await;
    let first = waiting["id"].as_str().unwrap();
    api.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    let second = api.until_run(&task, "skipped", PATIENCE).await;
    assert_eq!(second["reason"], "overlap", "{second:#}");
    decide(api, &question(api, first).await, json!({ "decision": "approve" })).await;
    let begun = tokio::time::Instant::now();
    while api.get(&format!("/v1/runs/{first}")).await["state"] != "succeeded" {
        assert!(begun.elapsed() < PATIENCE, "it does not go on");
        reveille::base::clock::pause(Duration::from_millis(20)).await;
    }
}

/// The steps that a person was asked in are not there any more: the owner is told.
async fn changed_steps_end_the_run(api: &Api, steps: Value) {
    let task = run_now(api, json!({ "steps": [{ "name": "window", "agent": { "instruction": "hold one" } }] })).await;
    let waiting = api.until_run(&task, "pending_approval", PATIENCE).await;
    let question = question(api, waiting["id"].as_str().unwrap()).await;
    api.patch(&format!("/v1/tasks/{task}"), &json!({ "action": { "config": { "steps": steps } } })).await;
    decide(api, &question, json!({ "decision": "approve" })).await;
    let run = api.until_run(&task, "failed", PATIENCE).await;
    assert_eq!(run["error"]["code"], "pipeline_changed");
}

/// Runs a task of this configuration now; answers its id.
async fn run_now(api: &Api, config: Value) -> String {
    let task = json!({
        "tenant_id": "ann", "name": "Trip", "output": null, "executor": "pipeline", "action": { "config": config },
        "trigger": { "type": "schedule", "interval": "1h" },
    });
    let task = api.post("/v1/tasks", &task).await;
    let id = task["id"].as_str().unwrap().to_owned();
    api.post(&format!("/v1/tasks/{id}/run"), &json!({})).await;
    id
}

/// The open question of a run.
async fn question(api: &Api, run: &str) -> Value {
    let asked = api.get(&format!("/v1/approvals?run_id={run}&status=pending")).await;
    let [question] = asked["items"].as_array().unwrap().as_slice() else { panic!("{asked:#}") };
    question.clone()
}

async fn decide(api: &Api, question: &Value, mut decision: Value) {
    decision["digest"] = question["digest"].clone();
    api.post(&format!("/v1/approvals/{}/decision", question["id"].as_str().unwrap()), &decision).await;
}

/// Waits for the state, and lets the process die in it.
async fn reborn_when(api: &Api, task: &str, state: &str, reborn: &mut impl AsyncFnMut() -> Api) -> Api {
    api.until_run(task, state, PATIENCE).await;
    reborn().await
}

/// Waits for the next question of the run, and lets the process die before it is answered.
async fn until_question_other_than(api: &Api, known: &Value, reborn: &mut impl AsyncFnMut() -> Api) -> Api {
    let run = known["run_id"].as_str().unwrap();
    let begun = tokio::time::Instant::now();
    loop {
        let asked = api.get(&format!("/v1/approvals?run_id={run}&status=pending")).await;
        if asked["items"].as_array().unwrap().iter().any(|question| question["id"] != known["id"]) {
            return reborn().await;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody was asked: {asked:#}");
        reveille::base::clock::pause(Duration::from_millis(20)).await;
    }
}
