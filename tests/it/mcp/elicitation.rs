//! Questions in the middle of a call of servers of the old era: a call that hangs can't wait for a person, so it is told
//! that nobody made a choice, and made again with the answer where that does no harm.

use std::sync::Arc;

use reveille::domain::approval::{CallContinuation, ContinuationKind, PartMode, ServerAnswer};
use reveille::ports::tool::{NeededInput, ToolContext, ToolOutput};
use serde_json::{Value, json};

use super::harness::{McpHarness, by_command, by_url, code, text, with};
use super::results::needed;
use crate::support::mcp::{McpHttpServer, everything_command, everything_http, hostile_command};

/// The tool of the reference server that asks by a form, and the one that sends to a page.
const BY_FORM: &str = "trigger-elicitation-request";
const BY_PAGE: &str = "trigger-url-elicitation";

/// The reference server over standard input and output, and over HTTP; its calls that ask are made again.
async fn everything() -> (McpHarness, McpHttpServer) {
    let http = everything_http().await;
    let again = || json!({ "repeats_for_input": true });
    let tools = || json!({ "tools": { BY_FORM: again(), BY_PAGE: again() } });
    let servers = [with(by_command("stdio", &everything_command()), tools()), with(by_url("http", &http.url), tools())];
    (McpHarness::start(&servers).await, http)
}

/// The reference server, as `plain`: none of its calls is made again.
async fn plain() -> McpHarness {
    McpHarness::start(&[by_command("plain", &everything_command())]).await
}

/// The context of a call that goes on with this answer.
fn with_answer(harness: &McpHarness, asked: &NeededInput, answer: ServerAnswer) -> ToolContext {
    let continuation = CallContinuation { question: asked.question.clone(), answer };
    ToolContext { continuation: Some(Arc::new(continuation)), ..harness.context("ann") }
}

/// Arguments of the tool that sends to a page.
fn page(url: &str, error_path: bool) -> Value {
    json!({ "url": url, "message": "Please open it.", "errorPath": error_path })
}

/// The words that a model is told beside an answer.
fn notice(output: &ToolOutput) -> &str {
    output.instructions.as_deref().unwrap_or_else(|| panic!("no notice: {output:?}"))
}

#[tokio::test]
async fn form_in_mid_call_becomes_a_question_and_the_call_is_made_again_with_the_answer() {
    let (harness, _http) = everything().await;
    for name in ["stdio", "http"] {
        let tool = format!("{name}.{BY_FORM}");
        let asked = needed(harness.call(&tool, json!({})).await);
        assert_eq!(asked.form.question, "Please provide inputs for the following fields:");
        let continuation = &asked.question.continuation;
        assert_eq!((asked.question.server.as_str(), continuation.kind), (name, ContinuationKind::Repeat));
        assert_eq!((continuation.round, &continuation.request_state), (1, &None));
        let names: Vec<&str> = asked.question.field_names().take(3).collect();
        assert_eq!(names, ["name", "check", "firstLine"], "in the order of the server");

        let values = json!({ "name": "Ann", "check": true, "integer": 7, "untitledMultipleSelectEnum": ["Piano"] });
        let accepted = with_answer(&harness, &asked, ServerAnswer::Accept(values));
        let told = text(harness.call_in(&accepted, &tool, json!({})).await);
        for line in ["- Name: Ann", "- Agreed to terms: true", "- Favorite Integer: 7", "\"Piano\""] {
            assert!(told.contains(line), "no {line} in {told}");
        }
        let declined = with_answer(&harness, &asked, ServerAnswer::Decline);
        let told = text(harness.call_in(&declined, &tool, json!({})).await);
        assert!(told.contains("User declined"), "{told}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn result_of_a_call_that_is_not_made_again_says_that_nobody_chose() {
    let harness = plain().await;
    for (tool, arguments) in [(BY_FORM, json!({})), (BY_PAGE, page("https://example.org/start", false))] {
        let output = harness.call(&format!("plain.{tool}"), arguments).await.unwrap();
        assert!(notice(&output).contains("nobody made a choice"), "{output:?}");
        assert!(output.data.as_str().is_some_and(|told| told.contains("User cancelled")), "{output:?}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn page_that_has_to_be_seen_first_is_a_question_for_every_tool_and_the_call_goes_on_behind_it() {
    let harness = plain().await;
    let tool = format!("plain.{BY_PAGE}");
    let arguments = || page("https://example.org/start", true);
    let asked = needed(harness.call(&tool, arguments()).await);
    let hosts: Vec<&str> = asked.question.links().map(|(_, host)| host).collect();
    assert_eq!((hosts, asked.question.has_form()), (vec!["modelcontextprotocol.io"], false));
    assert_eq!(asked.question.continuation.kind, ContinuationKind::Repeat);
    assert!(asked.form.question.starts_with("Open this link"), "{:?}", asked.form);
    let seen = with_answer(&harness, &asked, ServerAnswer::Accept(json!({})));
    let output = harness.call_in(&seen, &tool, arguments()).await.unwrap();
    assert!(output.data.as_str().is_some_and(|told| told.contains("cancelled the URL elicitation")), "{output:?}");
    assert!(notice(&output).contains("nobody made a choice"), "for the page that it asks for next: {output:?}");
    harness.stop().await;
}

#[tokio::test]
async fn question_over_http_belongs_to_the_call_on_whose_stream_it_came() {
    let (harness, _http) = everything().await;
    let tool = format!("http.{BY_PAGE}");
    let urls = ["a", "b", "c"].map(|name| format!("https://example.org/{name}"));
    let calls = urls.iter().map(|url| harness.call(&tool, page(url, false)));
    let asked: Vec<NeededInput> = futures::future::join_all(calls).await.into_iter().map(needed).collect();
    for (asked, url) in asked.iter().zip(&urls) {
        let [part] = asked.question.parts.as_slice() else { panic!("{asked:?}") };
        assert_eq!(part.mode, PartMode::Url { url: url.clone(), host: "example.org".to_owned() });
    }
    let seen = asked.iter().map(|asked| with_answer(&harness, asked, ServerAnswer::Accept(json!({}))));
    let seen: Vec<ToolContext> = seen.collect();
    let calls = seen.iter().zip(&urls).map(|(context, url)| harness.call_in(context, &tool, page(url, false)));
    for (called, url) in futures::future::join_all(calls).await.into_iter().zip(&urls) {
        let told = text(called);
        assert!(told.contains("User completed") && told.contains(url), "{told}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn question_that_could_be_of_either_of_two_calls_is_put_to_neither() {
    let looks = json!({ "tools": { "ask": { "category": "read", "consequence": "low" } } });
    let servers =
        [with(by_command("looks", &hostile_command("asks")), looks), by_command("acts", &hostile_command("asks"))];
    let harness = McpHarness::start(&servers).await;
    let both = async |tool: &str| {
        let (ann, ben) = (harness.context("ann"), harness.context("ben"));
        let (of_ann, of_ben) = tokio::join!(
            harness.call_in(&ann, tool, json!({ "text": "a" })),
            harness.call_in(&ben, tool, json!({ "text": "b" }))
        );
        [of_ann, of_ben]
    };
    for called in both("looks.ask").await {
        assert_eq!(code(called), "mcp_asked_among_others");
    }
    for called in both("acts.ask").await {
        let output = called.unwrap();
        assert_eq!(output.data, "cancel");
        assert!(notice(&output).contains("nobody made a choice"), "{output:?}");
    }
    let unplaced = r#"reveille_mcp_questions_total{server="looks",outcome="unplaced"} 2"#;
    assert!(harness.metrics.text().contains(unplaced), "{}", harness.metrics.text());
    harness.stop().await;
}
