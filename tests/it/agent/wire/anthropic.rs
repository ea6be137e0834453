//! Anthropic Messages.

use std::sync::Mutex;
use std::time::Duration;

use chrono::TimeDelta;
use reveille::agent::{Agent, AgentResponse};
use reveille::base::template::untrusted::fenced;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::anthropic::Anthropic;
use reveille::ports::llm::thinking::{PromptCache, ThinkingMode};
use reveille::ports::llm::tokens::encoders::Encoders;
use reveille::ports::llm::{
    LlmError, Model, ModelAnswer, ModelRequest, ModelTokens, Models, OfferedTools, Settings, StopReason, ToolChoice,
};
use serde_json::{Value, json};

use super::mail_request::{request_of, two_calls};
use super::server::{End, Reply, Server, offer, settings};
use super::usable;
use crate::agent::harness::{AgentHarness, FakeTool, call, system_parts};

fn model(server: &Server) -> Anthropic {
    offer(&settings(server, |_| {}), Anthropic::new)
}

fn request() -> ModelRequest {
    let mut messages = vec![
        TranscriptMessage::system("Be brief."),
        TranscriptMessage::system("Be kind."),
        TranscriptMessage::user("Any mail?"),
    ];
    messages.extend(two_calls());
    messages.extend([
        TranscriptMessage::user("Hurry."),
        TranscriptMessage::Assistant { text: None, tool_calls: vec![], provider_message: None, finish: None },
        TranscriptMessage::user("From whom?"),
    ]);
    request_of(messages)
}

/// Marks the last block of a part of the request that the provider keeps.
fn kept() -> Value {
    json!({ "type": "ephemeral", "ttl": "5m" })
}

/// `request()` as it must go over the wire: system apart, results of a turn and what is said next in one message,
/// nothing empty, and a mark behind the system message and at the end.
fn body() -> Value {
    let text = |text: &str| json!({ "type": "text", "text": text });
    json!({
        "model": "model-7",
        "max_tokens": 500,
        "temperature": 0.5,
        "system": [{ "type": "text", "text": "Be brief.\n\nBe kind.", "cache_control": kept() }],
        "messages": [
            { "role": "user", "content": [text("Any mail?")] },
            { "role": "assistant", "content": [
                text("Let me look."),
                { "type": "tool_use", "id": "c1", "name": "read", "input": { "box": "in" } },
                { "type": "tool_use", "id": "c2", "name": "read", "input": { "not_an_object": "{broken" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "c1", "content": fenced("tool", "2 mails") },
                { "type": "tool_result", "tool_use_id": "c2", "content": fenced("tool", "Operation failed."), "is_error": true },
                text("Hurry."),
                { "type": "text", "text": "From whom?", "cache_control": kept() },
            ] },
        ],
        "tools": [{
            "name": "read", "description": "Reads mail",
            "input_schema": { "type": "object", "properties": { "box": { "type": "string" } } },
        }],
        "tool_choice": { "type": "auto" },
    })
}

fn plain() -> ModelRequest {
    ModelRequest {
        messages: vec![TranscriptMessage::user("hello")],
        tools: OfferedTools::default(),
        tool_choice: ToolChoice::Auto,
        max_tokens: None,
        temperature: None,
    }
}

/// Thinking that is passed over, text with letters of one to four bytes, two calls, a ping, cumulative usage.
const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":70,"cache_read_input_tokens":10,"cache_creation_input_tokens":2,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: ping
data: {"type":"ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Grüße, "}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"早 😀"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"d1","name":"read","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"box\": \"ö"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"n\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"d2","name":"write","input":{}}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":17,"output_tokens_details":{"thinking_tokens":4}}}

event: message_stop
data: {"type":"message_stop"}

"#;

fn whole_answer() -> Value {
    json!({
        "id": "m", "type": "message", "role": "assistant", "model": "model-7", "stop_reason": "tool_use",
        "content": [
            { "type": "text", "text": "Looking." },
            { "type": "tool_use", "id": "d1", "name": "read", "input": { "box": "out" } },
        ],
        "usage": { "input_tokens": 82, "output_tokens": 17 },
    })
}

#[tokio::test]
async fn request_goes_out_whole_and_its_answer_is_read_whole() {
    let server = Server::start(vec![Reply::json(200, &whole_answer())]).await;
    let answer = model(&server).complete(&request(), None).await.unwrap();
    assert_eq!(
        answer,
        ModelAnswer {
            text: Some("Looking.".into()),
            tool_calls: vec![call("d1", "read", json!({ "box": "out" }))],
            stop: StopReason::ToolCalls,
            tokens: ModelTokens::of(82, 17),
            provider_message: answer.provider_message.clone(),

            failure: None,
        }
    );
    let received = server.requests().remove(0);
    assert_eq!(received.line, "POST /v1/messages HTTP/1.1");
    assert_eq!(received.header("x-api-key"), Some("sk-canary"));
    assert_eq!(received.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(received.header("authorization"), None);
    assert_eq!(received.body, body());
}

#[tokio::test]
async fn stream_is_put_together_however_it_is_cut() {
    for size in [1, 2, 3, 7, 64, 5000] {
        let server = Server::start(vec![Reply::events(STREAM, size)]).await;
        let heard = Mutex::new(Vec::new());
        let on_delta = |text: &str| heard.lock().unwrap().push(text.to_owned());
        let answer = model(&server).complete(&request(), Some(&on_delta)).await.unwrap();
        assert_eq!(
            answer,
            ModelAnswer {
                text: Some("Grüße, 早 😀".into()),
                tool_calls: vec![call("d1", "read", json!({ "box": "ön" })), call("d2", "write", json!({}))],
                stop: StopReason::ToolCalls,
                tokens: ModelTokens { cache_read: 10, cache_write: 2, reasoning: 4, ..ModelTokens::of(82, 17) },
                provider_message: answer.provider_message.clone(),

                failure: None,
            },
            "pieces of {size}"
        );
        assert_eq!(*heard.lock().unwrap(), ["Grüße, ", "早 😀"]);
        let mut expected = body();
        expected["stream"] = json!(true);
        assert_eq!(server.requests().remove(0).body, expected);
    }
}

#[tokio::test]
async fn forced_answer_names_the_tools_and_forbids_them_and_a_plain_one_names_none() {
    let text = json!({ "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &text), Reply::json(200, &text)]).await;
    model(&server).complete(&ModelRequest { tool_choice: ToolChoice::None, ..request() }, None).await.unwrap();
    let answer = model(&server).complete(&plain(), None).await.unwrap();
    assert_eq!(
        (answer.text.as_deref(), answer.stop, answer.tokens),
        (Some("hi"), StopReason::Done, ModelTokens::default())
    );
    let mut expected = body();
    expected["tool_choice"] = json!({ "type": "none" });
    assert_eq!(server.requests()[0].body, expected);
    let content = json!([{ "type": "text", "text": "hello", "cache_control": kept() }]);
    assert_eq!(
        server.requests()[1].body,
        json!({ "model": "model-7", "max_tokens": 8192, "messages": [{ "role": "user", "content": content }] })
    );
}

#[tokio::test]
async fn base_address_may_leave_out_the_version() {
    let text = json!({ "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &text)]).await;
    let bare = settings(&server, |settings| {
        settings.provider = "anthropic".into();
        settings.base_url = Some(format!("{}/", server.address));
    });
    offer(&bare, Anthropic::new).complete(&plain(), None).await.unwrap();
    assert_eq!(server.requests()[0].line, "POST /v1/messages HTTP/1.1");
}

#[tokio::test]
async fn conversation_is_kept_as_long_as_the_settings_say_or_not_at_all() {
    let text = json!({ "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &text), Reply::json(200, &text)]).await;
    for cache in [PromptCache::OneHour, PromptCache::Off] {
        let settings = settings(&server, |settings| settings.prompt_cache = cache);
        offer(&settings, Anthropic::new).complete(&request(), None).await.unwrap();
    }
    let requests = server.requests();
    let hour = json!({ "type": "ephemeral", "ttl": "1h" });
    let sent = &requests[0].body;
    assert_eq!(
        (&sent["system"][0]["cache_control"], &sent["messages"][2]["content"][3]["cache_control"]),
        (&hour, &hour)
    );
    assert_eq!(sent.to_string().matches("cache_control").count(), 2);
    assert_eq!(
        (&requests[1].body["system"], requests[1].text.contains("cache_control")),
        (&json!("Be brief.\n\nBe kind."), false)
    );
}

#[tokio::test]
async fn thinking_has_a_budget_where_it_is_enabled() {
    let text = json!({ "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &text), Reply::json(200, &text)]).await;
    let settings = settings(&server, |settings| {
        settings.thinking = Some(ThinkingMode::Enabled);
        settings.thinking_budget_tokens = Some(2048);
    });
    offer(&settings, Anthropic::new).complete(&plain(), None).await.unwrap();
    let sent = &server.requests()[0].body;
    assert_eq!(sent["thinking"], json!({ "type": "enabled", "budget_tokens": 2048 }));
    assert_eq!((sent.get("output_config"), sent.get("temperature")), (None, None));
    // behind calls of another model, which its own thinking does not stand before, it would be refused
    let mut behind = request();
    behind.messages.truncate(6);
    offer(&settings, Anthropic::new).complete(&behind, None).await.unwrap();
    assert_eq!(server.requests()[1].body.get("thinking"), None);
}

async fn stopped(reason: &str) -> Result<ModelAnswer, LlmError> {
    let reply = Reply::json(200, &json!({ "content": [], "stop_reason": reason }));
    let server = Server::start(vec![reply]).await;
    model(&server).complete(&plain(), None).await.and_then(usable)
}

#[tokio::test]
async fn reason_to_stop_is_understood() {
    let reasons = ["end_turn", "stop_sequence", "max_tokens", "refusal"];
    let mut understood = Vec::new();
    for reason in reasons {
        understood.push(stopped(reason).await.unwrap().stop);
    }
    assert_eq!(understood, [StopReason::Done, StopReason::Done, StopReason::Length, StopReason::Refused]);
    let message = "the answer did not fit into the context window".into();
    assert_eq!(stopped("model_context_window_exceeded").await, Err(LlmError::Overflow { message }));
    let message = "the model stopped for a reason that is not known: `novel`".into();
    assert_eq!(stopped("novel").await, Err(LlmError::Transient { retry_after: None, message }));
}

async fn failed(reply: Reply) -> LlmError {
    let server = Server::start(vec![reply]).await;
    model(&server).complete(&plain(), Some(&|_| {})).await.and_then(usable).expect_err("it must fail")
}

#[tokio::test]
async fn every_failure_is_told_apart() {
    let error = |status, kind: &str, message: &str| {
        Reply::json(status, &json!({ "type": "error", "error": { "type": kind, "message": message } }))
    };
    let limited = failed(error(429, "rate_limit_error", "slow down").with("retry-after", "20")).await;
    let message = "429: slow down".to_owned();
    assert_eq!(limited, LlmError::RateLimited { retry_after: Some(Duration::from_secs(20)), message });
    let message = "529: Overloaded".to_owned();
    let overloaded = failed(error(529, "overloaded_error", "Overloaded")).await;
    assert_eq!(overloaded, LlmError::RateLimited { retry_after: None, message });
    let refused = failed(error(401, "authentication_error", "invalid x-api-key: sk-canary")).await;
    assert_eq!(refused, LlmError::Auth { message: "401: invalid x-api-key: [redacted]".into() });
    let message = "prompt is too long: 210000 tokens > 200000 maximum";
    let long = failed(error(400, "invalid_request_error", message)).await;
    assert_eq!(long, LlmError::Overflow { message: format!("400: {message}") });
    let large = failed(error(413, "request_too_large", "too large")).await;
    assert_eq!(large, LlmError::Overflow { message: "413: too large".into() });
    let odd = failed(error(400, "invalid_request_error", "odd")).await;
    assert_eq!(odd, LlmError::Rejected { message: "400: odd".into() });
}

#[tokio::test]
async fn stream_that_breaks_off_or_fails_on_its_way_is_no_answer() {
    let end = STREAM.find("event: message_stop").unwrap();
    let cut = failed(Reply::events(&STREAM[..end], 9)).await;
    assert_eq!(
        cut,
        LlmError::Transient { retry_after: None, message: "the stream ended before the answer did".into() }
    );
    let broken = failed(Reply::events(&STREAM[..end], 9).ending(End::Broken)).await;
    assert!(matches!(broken, LlmError::Transient { .. }), "{broken:?}");
    let erring = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let overloaded = failed(Reply::events(&format!("{}{erring}", &STREAM[..end]), 9)).await;
    assert_eq!(overloaded, LlmError::RateLimited { retry_after: None, message: "429: Overloaded".into() });
}

#[tokio::test]
async fn message_goes_through_tools_and_back_over_the_wire() {
    let first = json!({
        "content": [{ "type": "tool_use", "id": "c1", "name": "echo", "input": { "n": 1 } }],
        "stop_reason": "tool_use", "usage": { "input_tokens": 50, "output_tokens": 5 },
    });
    let second = json!({ "content": [{ "type": "text", "text": "One." }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &first), Reply::json(200, &second)]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let unable = settings(&server, |settings| {
        settings.provider = "anthropic".into();
        settings.stream = false;
    });
    let settings = Settings { models: [("main".into(), unable)].into(), ..Settings::default() };
    let models = Models::build(&settings, &Encoders::default(), stage.agent.settings.retry(), &stage.clock).unwrap();
    let agent = Agent { models, ..stage.agent.clone() };
    match agent.handle_message(&stage.incoming("Which number?")).await.unwrap() {
        AgentResponse::Answered(result) => {
            assert_eq!((result.response.as_str(), result.usage.input_tokens), ("One.", 50))
        }
        other => panic!("{other:?}"),
    }
    let [stable, of_run] = system_parts("echo");
    let tools = json!([{ "name": "echo", "description": "the tool echo", "input_schema": { "type": "object" } }]);
    let mut messages = vec![json!({ "role": "user", "content": [{ "type": "text", "text": "Which number?" }] })];
    let body = |messages: &[Value]| {
        let mut messages = messages.to_vec();
        messages.last_mut().unwrap()["content"][0]["cache_control"] = kept();
        let system = json!([
            { "type": "text", "text": stable, "cache_control": kept() },
            { "type": "text", "text": of_run },
        ]);
        json!({
            "model": "model-7", "max_tokens": 8192, "system": system, "messages": messages,
            "tools": tools, "tool_choice": { "type": "auto" },
        })
    };
    let requests = server.requests();
    assert_eq!(requests[0].body, body(&messages));
    messages.push(json!({
        "role": "assistant", "content": [{ "type": "tool_use", "id": "c1", "name": "echo", "input": { "n": 1 } }],
    }));
    messages.push(json!({
        "role": "user", "content": [{
            "type": "tool_result", "tool_use_id": "c1",
            "content": fenced("tool", "{\"tool\":\"echo\",\"fetched_at\":\"2026-12-24T07:00:00Z\",\"data\":{\"n\":1}}"),
        }],
    }));
    assert_eq!(requests[1].body, body(&messages));
}

/// An agent with a tool whose model is behind this server, and its harness.
fn agent_behind(server: &Server) -> (Agent, AgentHarness) {
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let unable = settings(server, |settings| {
        settings.provider = "anthropic".into();
        settings.stream = false;
    });
    let settings = Settings { models: [("main".into(), unable)].into(), ..Settings::default() };
    let models = Models::build(&settings, &Encoders::default(), stage.agent.settings.retry(), &stage.clock).unwrap();
    (Agent { models, ..stage.agent.clone() }, stage)
}

/// Everything up to a mark is read from the cache by a later run if it is the same to the last byte: tools, then the
/// first part of the system message.
#[tokio::test]
async fn runs_at_different_times_and_of_different_people_share_the_marked_prefix() {
    let text = json!({ "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &text), Reply::json(200, &text)]).await;
    for hours in [0, 31] {
        let (agent, stage) = agent_behind(&server);
        stage.clock.advance(TimeDelta::hours(hours));
        let mut incoming = stage.incoming("Which number?");
        if hours > 0 {
            incoming.timezone = chrono_tz::Asia::Tokyo;
        }
        assert!(matches!(agent.handle_message(&incoming).await, Ok(AgentResponse::Answered(_))));
    }
    let requests = server.requests();
    // in the order in which the provider puts a request together
    let prefix = |sent: &Value| json!([sent["tools"], sent["system"][0]]).to_string();
    let [first, second] = [&requests[0].body, &requests[1].body];
    assert_eq!(prefix(first), prefix(second));
    assert!(prefix(first).contains("cache_control") && prefix(first).contains("Be brief."), "{}", prefix(first));
    let of_run = |sent: &Value| sent["system"][1].clone();
    assert_ne!(of_run(first), of_run(second));
    assert!(of_run(second)["text"].as_str().unwrap().contains("Current time: Friday"), "{}", of_run(second));
    assert_eq!((of_run(first).get("cache_control"), of_run(first)["type"].as_str()), (None, Some("text")));
}

/// The reminder stands in one request alone: a mark on it would write to the cache what nobody reads.
#[tokio::test]
async fn last_message_that_the_next_request_has_is_marked() {
    let calls = json!({
        "content": [{ "type": "tool_use", "id": "c1", "name": "echo", "input": { "n": 1 } }], "stop_reason": "tool_use",
    });
    let done = json!({ "content": [{ "type": "text", "text": "One." }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::json(200, &calls), Reply::json(200, &done)]).await;
    let (mut agent, stage) = agent_behind(&server);
    agent.context.refocus_every_rounds = 1;
    assert!(matches!(agent.handle_message(&stage.incoming("Go.")).await, Ok(AgentResponse::Answered(_))));
    let sent = server.requests()[1].body["messages"].clone();
    let [result, reminder] = [&sent[2]["content"][0], &sent[2]["content"][1]];
    assert_eq!((&result["type"], &result["cache_control"]), (&json!("tool_result"), &kept()));
    assert!(reminder["text"].as_str().unwrap().starts_with("[Refocus] "), "{reminder}");
    assert_eq!(sent.to_string().matches("cache_control").count(), 1);
}
