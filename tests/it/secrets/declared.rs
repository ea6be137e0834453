//! Declared tools through the agent's loop: a person is asked, and what was agreed to is sent, with the credential.

use reveille::domain::run::RunState;
use serde_json::{Value, json};

use super::{echo, open, received, save, sent, traces};
use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    declared_tool_is_asked_about_and_sent_once_with_its_credential
    with_another_credential_it_is_asked_about_again
    with_a_status_it_is_offered_warned_of_or_gone
    result_is_kept_until_its_credential_changes
}

const SECRET: &str = "n0tes-key-4711";

/// A world whose model calls `send_note` once, and then says that it did.
fn noting(world: World, host: &str, credential: &str) -> World {
    let mut world = open(world);
    let path = world.dir().join("scenario.toml");
    let scenario = "[[steps]]\nturn = 1\ntext = \"I tell them.\"\n[[steps.calls]]\ntool = \"send_note\"\n\
                    args = { room = \"the lobby/1\", text = \"It is \\\"done\\\"\" }\n[[steps]]\ntext = \"Told.\"\n";
    std::fs::write(&path, scenario).unwrap();
    world.llm =
        serde_json::from_value(json!({ "models": { "main": { "provider": "scripted", "scenario": path } } })).unwrap();
    world.declared = tools(host, credential);
    world
}

fn tools(host: &str, credential: &str) -> Vec<reveille::ports::tool::http::HttpToolDefinition> {
    serde_json::from_value(json!([{
        "name": "send_note", "description": "Send a note to a room.", "category": "side_effect", "consequence": "high",
        "requires_confirmation": true, "summary": "Send a note to {room}",
        "parameters": {
            "type": "object", "required": ["room", "text"], "additionalProperties": false,
            "properties": { "room": { "type": "string" }, "text": { "type": "string" }, "tone": { "type": "string" } },
        },
        "http": {
            "method": "POST", "url": format!("{host}/rooms/{{{{ args.room }}}}"), "credential": credential,
            "query": { "tone": "{{ args.tone }}", "from": "reveille" }, "headers": { "X-Room": "{{ args.room }}" },
            "body": { "text": "{{ args.text }}", "tone": "{{ args.tone }}", "loud": false },
        },
    }]))
    .unwrap()
}

async fn asked(instance: &Instance) -> Value {
    let (status, asked) = instance.ask("GET", "/v1/approvals?status=pending", ADMIN, None).await;
    assert_eq!((status, asked["items"].as_array().map(Vec::len)), (200, Some(1)), "{asked}");
    asked["items"][0].clone()
}

async fn approve(instance: &Instance, approval: &Value) {
    let path = format!("/v1/approvals/{}/decision", approval["id"].as_str().unwrap());
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, answer) = instance.ask("POST", &path, ADMIN, Some(decision)).await;
    assert_eq!(status, 200, "{answer}");
    instance.attend().await;
}

/// The offer to a model of a tool with this status, and the result of its call.
async fn called_with(world: World, status: &str) -> (World, Value, String) {
    let server = echo("").await;
    let mut world = noting(world, &server.uri(), "notes");
    let mut declared = serde_json::to_value(&world.declared).unwrap();
    declared[0]["status"] = json!(status);
    declared[0]["requires_confirmation"] = json!(false);
    declared[0]["category"] = json!("read");
    declared[0]["consequence"] = json!("low");
    declared[0]["http"].as_object_mut().unwrap().remove("credential");
    world.declared = serde_json::from_value(declared).unwrap();
    let instance = world.instance();
    let (code, listed) = instance.ask("GET", "/v1/tools", ADMIN, None).await;
    assert_eq!(code, 200, "{listed}");
    let task = instance.task(agent()).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state.is_final()).await;
    let transcript = instance.page(&format!("/v1/runs/{id}/transcript")).await;
    let sent = received(&server).await.len();
    instance.finish(&world).await;
    (world, listed, format!("{sent} {transcript}"))
}

async fn with_a_status_it_is_offered_warned_of_or_gone(world: World) {
    let listed = |tools: &Value| -> Option<String> {
        let tools = tools["items"].as_array().or(tools.as_array()).expect("tools");
        let note = tools.iter().find(|tool| tool["name"] == "send_note")?;
        note["status"].as_str().map(str::to_owned)
    };
    let (world, tools, came) = called_with(world, "deprecated").await;
    assert_eq!(listed(&tools).as_deref(), Some("deprecated"), "{tools}");
    assert!(came.starts_with("1 "), "one that a model knows from before still works: {came}");
    let (_, tools, came) = called_with(world, "removed").await;
    assert!(listed(&tools).is_none_or(|status| status == "removed"), "{tools}");
    assert!(came.starts_with("0 ") && came.contains("send_note"), "{came}");
    let refused = serde_json::from_value::<reveille::ports::tool::ToolStatus>(json!("retired"));
    assert!(refused.is_err(), "no such status");
}

fn agent() -> Value {
    json!({ "executor": "orchestrator", "action": { "instruction": "Tell them." } })
}

async fn declared_tool_is_asked_about_and_sent_once_with_its_credential(world: World) {
    let server = echo("").await;
    let world = noting(world, &server.uri(), "notes");
    let instance = world.instance();
    instance.recipient().await;
    save(&world, &instance, "notes", json!({ "as": "bearer", "from": "/key" }), json!({ "key": SECRET })).await;
    let task = instance.task(agent()).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state == RunState::PendingApproval).await;
    let approval = asked(&instance).await;
    assert_eq!(approval["action_summary"], "Send a note to the lobby/1");
    assert!(received(&server).await.is_empty());
    approve(&instance, &approval).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.output.as_deref()), (RunState::Succeeded, Some("Told.")), "{:?}", run.error);
    let requests = received(&server).await;
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!((request.url.path(), request.url.query()), ("/rooms/the%20lobby%2F1", Some("from=reveille")));
    assert_eq!(
        serde_json::from_slice::<Value>(&request.body).unwrap(),
        json!({ "text": "It is \"done\"", "loud": false })
    );
    assert_eq!((sent(request).as_str(), &request.headers["x-room"]), (SECRET, &"the lobby/1".parse().unwrap()));
    assert_eq!(request.headers["idempotency-key"].len(), 64);
    let transcript = instance.page(&format!("/v1/runs/{id}/transcript")).await;
    assert!(transcript.contains("[redacted]"), "{transcript}");
    assert_eq!(traces(SECRET, transcript.as_bytes()), Vec::<String>::new());
    let listed = instance.page("/v1/tools").await;
    assert!(listed.contains("\"credential\":\"notes\""), "{listed}");
    instance.finish(&world).await;
}

async fn with_another_credential_it_is_asked_about_again(world: World) {
    let server = echo("").await;
    let mut world = noting(world, &server.uri(), "notes");
    let instance = world.instance();
    instance.recipient().await;
    save(&world, &instance, "notes/other", json!({ "as": "bearer", "from": "/key" }), json!({ "key": SECRET })).await;
    let task = instance.task(agent()).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state == RunState::PendingApproval).await;
    let first = asked(&instance).await;
    instance.crash();

    // the operator changes whose secret is sent
    world.declared = tools(&server.uri(), "notes/other");
    let instance = world.instance();
    approve(&instance, &first).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state == RunState::PendingApproval).await;
    let second = asked(&instance).await;
    assert_ne!(first["digest"], second["digest"]);
    assert!(received(&server).await.is_empty());
    approve(&instance, &second).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state.is_final()).await;
    assert_eq!(received(&server).await.iter().map(sent).collect::<Vec<_>>(), [SECRET]);
    instance.finish(&world).await;
}

async fn result_is_kept_until_its_credential_changes(world: World) {
    let server = echo("").await;
    let mut world = noting(world, &server.uri(), "notes");
    let mut declared = serde_json::to_value(&world.declared).unwrap();
    let changes = json!({ "category": "read", "consequence": "low", "requires_confirmation": false, "cache": true });
    declared[0].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    declared[0]["http"]["method"] = json!("GET");
    declared[0]["http"].as_object_mut().unwrap().remove("body");
    world.declared = serde_json::from_value(declared).unwrap();
    let instance = world.instance();
    let put = async |key: &str| {
        save(&world, &instance, "notes", json!({ "as": "bearer", "from": "/key" }), json!({ "key": key })).await;
    };
    let ask = async || {
        let task = instance.task(agent()).await;
        let id = instance.run_now(&task).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        assert_eq!(run.output.as_deref(), Some("Told."), "{:?}", run.error);
        let transcript = instance.page(&format!("/v1/runs/{id}/transcript")).await;
        assert!(transcript.contains("\"is_error\":false"), "{transcript}");
        received(&server).await.len()
    };
    put(SECRET).await;
    assert_eq!([ask().await, ask().await], [1, 1], "the second run has the result of the first");
    put("an0ther-key-4712").await;
    assert_eq!([ask().await, ask().await], [2, 2]);
    instance.finish(&world).await;
}
