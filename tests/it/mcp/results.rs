//! Answers of MCP tools: data and texts, what is named and kept beside them, failures in the words of the tool, and
//! questions to a person.

use std::sync::Arc;

use reveille::domain::approval::{CallContinuation, ServerAnswer};
use reveille::ports::tool::{HostError, NeededInput, ToolCaller, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};
use uuid::Uuid;

use super::harness::{McpHarness, by_command, text};
use crate::agent::harness::RUN;
use crate::support::mcp::{McpFixture, everything_command};

/// The reference server, as `all`.
async fn everything() -> McpHarness {
    McpHarness::start(&[by_command("all", &everything_command())]).await
}

/// The data of a call that goes well.
async fn data(harness: &McpHarness, tool: &str, arguments: Value) -> Value {
    harness.call(tool, arguments).await.unwrap_or_else(|error| panic!("{tool}: {error}")).data
}

#[tokio::test]
async fn structured_output_is_the_data() {
    let fixture = McpFixture::new();
    let servers = [by_command("new", &fixture.command()), by_command("old", &everything_command())];
    let harness = McpHarness::start(&servers).await;
    assert_eq!(data(&harness, "new.measure", json!({})).await, json!({ "grams": 7 }));
    let weather = data(&harness, "old.get-structured-content", json!({ "location": "Chicago" })).await;
    assert_eq!(weather, json!({ "temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82 }));
    harness.stop().await;
}

#[tokio::test]
async fn resource_links_and_images_are_named_and_kept() {
    let harness = everything().await;
    let link = |kind: &str, name: &str, n: u32| {
        json!({
            "uri": format!("demo://resource/dynamic/{kind}/{n}"), "name": format!("{name} Resource {n}"),
            "description": format!("Resource {n}: plaintext resource"), "media_type": "text/plain",
        })
    };
    assert_eq!(
        data(&harness, "all.get-resource-links", json!({ "count": 2 })).await,
        json!({
            "result": "Here are 2 resource links to resources available in this server:",
            "links": [link("blob", "Blob", 1), link("text", "Text", 2)],
        })
    );
    assert_eq!(
        data(&harness, "all.get-tiny-image", json!({})).await,
        json!({
            "result": "Here's the image you requested:\n\nThe image above is the MCP logo.",
            "files": [{ "kind": "image", "media_type": "image/png", "bytes": 4033, "file": Uuid::from_u128(1) }],
        })
    );
    let kept = harness.host.files.lock().unwrap().remove(0);
    assert_eq!((kept.run_id, kept.tool.as_str(), &*kept.media_type), (RUN, "all.get-tiny-image", "image/png;base64"));
    assert_eq!(kept.summary, "image of 4033 bytes, base64");
    assert!(kept.content.starts_with("iVBORw0KGgo") && kept.content.len() == 5380, "{}", kept.content.len());
    harness.stop().await;
}

#[tokio::test]
async fn embedded_text_stands_among_the_texts_and_embedded_data_is_kept() {
    let harness = everything().await;
    let embedded = |kind: &str| json!({ "resourceType": kind, "resourceId": 2 });
    let told = text(harness.call("all.get-resource-reference", embedded("Text")).await);
    let begins =
        "Returning resource reference for Resource 2:\n\n[demo://resource/dynamic/text/2]\nResource 2: This is";
    assert!(told.starts_with(begins), "{told}");
    let blob = data(&harness, "all.get-resource-reference", embedded("Blob")).await;
    let file = &blob["files"][0];
    assert_eq!((&file["kind"], &file["media_type"]), (&json!("resource"), &json!("text/plain")), "{blob}");
    assert_eq!((&file["uri"], &file["file"]), (&json!("demo://resource/dynamic/blob/2"), &json!(Uuid::from_u128(1))));
    assert_eq!(harness.host.files.lock().unwrap()[0].media_type, "text/plain;base64");
    harness.stop().await;
}

/// How an answer names its image, which is called for in this context.
async fn image(harness: &McpHarness, context: &ToolContext) -> Value {
    let answer = harness.call_in(context, "all.get-tiny-image", json!({})).await.unwrap();
    answer.data["files"][0].clone()
}

#[tokio::test]
async fn attachment_that_is_not_kept_is_named_with_the_reason() {
    let harness = everything().await;
    let unkept =
        |why: &str| json!({ "kind": "image", "media_type": "image/png", "bytes": 4033, "kept": false, "why": why });
    let mut poll = harness.context("ann");
    poll.called_by = ToolCaller::Poll;
    assert_eq!(image(&harness, &poll).await, unkept("only runs keep files"));
    let knowing = harness.context("ann");
    knowing.used_secrets.add(["iVBORw0KGgoAAAAN"]);
    assert_eq!(image(&harness, &knowing).await, unkept("it may hold a secret"));
    assert!(harness.host.files.lock().unwrap().is_empty());
    *harness.host.failure.lock().unwrap() = Some(HostError::Conflict("there is no room".into()));
    assert_eq!(image(&harness, &harness.context("ann")).await, unkept("there is no room"));
    harness.stop().await;
}

#[tokio::test]
async fn failed_tool_is_an_observation_in_its_words() {
    let harness = everything().await;
    let arguments = json!({ "resourceType": "Text", "resourceId": 0 });
    let failed = harness.call("all.get-resource-reference", arguments).await.unwrap_err();
    assert_eq!(failed.code(), "mcp_tool_error");
    assert!(!failed.is_unsent());
    let told = failed.to_string();
    assert!(told.starts_with("execution_error: ") && told.contains("Invalid resourceId: 0."), "{told}");
    harness.stop().await;
}

/// The question by which a call ends.
pub fn needed(called: Result<ToolOutput, ToolError>) -> NeededInput {
    match called {
        Err(ToolError::NeedsInput(needed)) => *needed,
        other => panic!("no question: {other:?}"),
    }
}

#[tokio::test]
async fn tool_that_asks_a_person_ends_with_its_question_and_goes_on_with_the_answer() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("new", &fixture.command())]).await;
    let arguments = || json!({ "env": "prod" });
    let asked = needed(harness.call("new.confirm", arguments()).await);
    assert_eq!(asked.form.question, "Deploy to prod?");
    assert_eq!(asked.form.parameters["properties"]["sure"]["type"], "boolean");
    assert_eq!(asked.form.parameters["required"], json!(["sure"]));
    assert_eq!((asked.question.server.as_str(), asked.question.request_state().as_deref()), ("new", Some("s-prod")));
    assert_eq!(fixture.noted("answer"), [Value::Null], "it was called once, and had no answer");
    let go_on = |answer| {
        let continuation = CallContinuation { question: asked.question.clone(), answer };
        ToolContext { continuation: Some(Arc::new(continuation)), ..harness.context("ann") }
    };
    let accepted = go_on(ServerAnswer::Accept(json!({ "sure": true })));
    assert_eq!(text(harness.call_in(&accepted, "new.confirm", arguments()).await), "deployed to prod");
    assert_eq!(fixture.noted("answer"), [Value::Null, json!({ "sure": true })]);
    let declined = go_on(ServerAnswer::Decline);
    let again = needed(harness.call_in(&declined, "new.confirm", arguments()).await);
    assert_eq!(again.question.continuation.round, 2, "it asks once more");
    let metrics = harness.metrics.text();
    for line in [
        r#"reveille_mcp_questions_total{server="new",outcome="asked"} 2"#,
        r#"reveille_mcp_calls_total{server="new",outcome="asked"} 2"#,
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn step_and_condition_are_told_of_the_question_and_nobody_is_asked() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("new", &fixture.command())]).await;
    for called_by in [ToolCaller::Step, ToolCaller::Poll] {
        let context = ToolContext { called_by, ..harness.context("ann") };
        let failed = harness.call_in(&context, "new.confirm", json!({ "env": "prod" })).await.unwrap_err();
        let (_, code, message) = failed.model_message().expect("a failure");
        assert_eq!(code, "mcp_needs_input");
        assert!(message.contains("a run of an agent can wait") && message.ends_with("Deploy to prod?"), "{message}");
    }
    assert!(harness.metrics.text().contains(r#"reveille_mcp_questions_total{server="new",outcome="refused"} 2"#));
    harness.stop().await;
}

#[tokio::test]
async fn question_with_a_secret_in_its_state_is_put_to_nobody() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("new", &fixture.command())]).await;
    let context = harness.context("ann");
    context.used_secrets.add(["s-prod"]);
    let failed = harness.call_in(&context, "new.confirm", json!({ "env": "prod" })).await.unwrap_err();
    let (_, code, message) = failed.model_message().expect("a failure");
    assert_eq!(code, "mcp_needs_input");
    assert!(message.contains("with a secret in its question"), "{message}");
    harness.stop().await;
}
