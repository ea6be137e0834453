//! The Responses API.

use std::sync::Mutex;
use std::time::Duration;

use reveille::base::template::untrusted::fenced;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::responses::Responses;
use reveille::ports::llm::{
    LlmError, Model, ModelAnswer, ModelRequest, ModelTokens, OfferedTools, StopReason, ToolChoice,
};
use serde_json::{Value, json};

use super::mail_request::{request_of, two_calls};
use super::server::{End, Reply, Server, offer, settings};
use super::usable;
use crate::agent::harness::call;

fn model(server: &Server) -> Responses {
    offer(&settings(server, |settings| settings.provider = "openai-responses".into()), Responses::new)
}

fn request() -> ModelRequest {
    let mut messages = vec![TranscriptMessage::system("Be brief."), TranscriptMessage::user("Any mail?")];
    messages.extend(two_calls());
    messages.push(TranscriptMessage::user("From whom?"));
    request_of(messages)
}

/// `request()` as it must go over the wire.
fn body() -> Value {
    let output = |text: &str| json!([{ "type": "output_text", "text": text, "annotations": [] }]);
    json!({
        "model": "model-7", "store": false, "include": ["reasoning.encrypted_content"], "instructions": "Be brief.",
        "input": [
            { "type": "message", "role": "user", "content": "Any mail?" },
            { "type": "message", "role": "assistant", "content": output("Let me look.") },
            { "type": "function_call", "call_id": "c1", "name": "read", "arguments": "{\"box\":\"in\"}" },
            { "type": "function_call", "call_id": "c2", "name": "read", "arguments": "{broken" },
            { "type": "function_call_output", "call_id": "c1", "output": fenced("tool", "2 mails") },
            { "type": "function_call_output", "call_id": "c2", "output": fenced("tool", "Operation failed.") },
            { "type": "message", "role": "user", "content": "From whom?" },
        ],
        "tools": [{
            "type": "function", "name": "read", "description": "Reads mail", "strict": false,
            "parameters": { "type": "object", "properties": { "box": { "type": "string" } } },
        }],
        "tool_choice": "auto", "max_output_tokens": 500, "temperature": 0.5,
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

fn said(text: &str) -> Value {
    let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
    json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content })
}

fn response(output: &[Value]) -> Value {
    let usage = json!({
        "input_tokens": 82, "input_tokens_details": { "cached_tokens": 60 },
        "output_tokens": 17, "output_tokens_details": { "reasoning_tokens": 9 }, "total_tokens": 99,
    });
    json!({
        "id": "resp_1", "object": "response", "status": "completed", "model": "model-7", "error": null,
        "incomplete_details": null, "output": output, "usage": usage,
    })
}

fn output() -> Vec<Value> {
    let function = |id: &str, name: &str, arguments: &str| {
        json!({ "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name,
                "arguments": arguments, "status": "completed" })
    };
    vec![
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl" }),
        said("Grüße, 早 😀"),
        function("d1", "read", r#"{"box": "ön"}"#),
        function("d2", "write", ""),
    ]
}

fn answered(answer: &ModelAnswer) -> ModelAnswer {
    ModelAnswer {
        text: Some("Grüße, 早 😀".into()),
        tool_calls: vec![call("d1", "read", json!({ "box": "ön" })), call("d2", "write", json!({}))],
        stop: StopReason::ToolCalls,
        tokens: ModelTokens { cache_read: 60, reasoning: 9, ..ModelTokens::of(82, 17) },
        provider_message: answer.provider_message.clone(),

        failure: None,
    }
}

fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect()
}

/// The stream of an output: created, pieces of the text, each item whole, the end.
fn stream(output: &[Value], end: &Value) -> String {
    let mut all = vec![json!({ "type": "response.created", "sequence_number": 0, "response": { "output": [] } })];
    for text in ["Grüße, ", "早 😀"] {
        all.push(json!({ "type": "response.output_text.delta", "output_index": 1, "delta": text }));
    }
    for (index, item) in output.iter().enumerate() {
        all.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
    }
    all.push(end.clone());
    events(&all)
}

#[tokio::test]
async fn request_goes_out_whole_and_its_answer_is_read_whole() {
    let server = Server::start(vec![Reply::json(200, &response(&output()))]).await;
    let answer = model(&server).complete(&request(), None).await.unwrap();
    assert_eq!(answer, answered(&answer));
    let received = server.requests().remove(0);
    assert_eq!(received.line, "POST /v1/responses HTTP/1.1");
    assert_eq!(received.header("authorization"), Some("Bearer sk-canary"));
    assert_eq!(received.body, body());
}

#[tokio::test]
async fn stream_is_put_together_however_it_is_cut() {
    let end = json!({ "type": "response.completed", "response": response(&[]) });
    for size in [1, 3, 64, 5000] {
        let server = Server::start(vec![Reply::events(&stream(&output(), &end), size)]).await;
        let heard = Mutex::new(Vec::new());
        let on_delta = |text: &str| heard.lock().unwrap().push(text.to_owned());
        let answer = model(&server).complete(&request(), Some(&on_delta)).await.unwrap();
        assert_eq!(answer, answered(&answer), "pieces of {size}");
        assert_eq!(*heard.lock().unwrap(), ["Grüße, ", "早 😀"]);
        let mut expected = body();
        expected["stream"] = json!(true);
        assert_eq!(server.requests().remove(0).body, expected);
    }
}

#[tokio::test]
async fn items_that_are_told_of_at_the_end_alone_are_read_there() {
    let end = json!({ "type": "response.completed", "response": response(&output()) });
    let server = Server::start(vec![Reply::events(&events(&[end]), 64)]).await;
    let answer = model(&server).complete(&plain(), Some(&|_| {})).await.unwrap();
    assert_eq!(answer, answered(&answer));
}

#[tokio::test]
async fn remark_on_the_way_is_no_part_of_the_final_answer() {
    let phase = |text: &str, phase: &str| {
        let mut message = said(text);
        message["phase"] = json!(phase);
        message
    };
    let both = response(&[phase("Looking.", "commentary"), phase("Two mails.", "final_answer")]);
    let alone = response(&[phase("Looking.", "commentary")]);
    let server = Server::start(vec![Reply::json(200, &both), Reply::json(200, &alone)]).await;
    let first = model(&server).complete(&plain(), None).await.unwrap();
    assert_eq!(first.text.as_deref(), Some("Two mails."));
    assert!(first.provider_message.unwrap().raw.contains(r#""phase":"commentary""#), "both go back");
    assert_eq!(model(&server).complete(&plain(), None).await.unwrap().text.as_deref(), Some("Looking."));
}

#[tokio::test]
async fn reasoning_that_the_provider_keeps_to_itself_does_not_go_back() {
    let items = json!([{ "type": "reasoning", "id": "rs_1", "summary": [] }, said("Done.")]);
    let first = response(items.as_array().unwrap());
    let server = Server::start(vec![Reply::json(200, &first), Reply::json(200, &first)]).await;
    let answer = model(&server).complete(&plain(), None).await.unwrap();
    let message = TranscriptMessage::Assistant {
        text: answer.text,
        tool_calls: vec![],
        provider_message: answer.provider_message,
        finish: None,
    };
    let messages = vec![TranscriptMessage::user("hello"), message, TranscriptMessage::user("and?")];
    model(&server).complete(&ModelRequest { messages, ..plain() }, None).await.unwrap();
    let input = &server.requests()[1].body["input"];
    assert_eq!((input[1].clone(), input.as_array().unwrap().len()), (items[1].clone(), 3));
}

#[tokio::test]
async fn forced_answer_names_the_tools_and_forbids_them_and_a_plain_one_names_none() {
    let reply = || Reply::json(200, &response(&[said("hi")]));
    let server = Server::start(vec![reply(), reply()]).await;
    model(&server).complete(&ModelRequest { tool_choice: ToolChoice::None, ..request() }, None).await.unwrap();
    let answer = model(&server).complete(&plain(), None).await.unwrap();
    assert_eq!((answer.text.as_deref(), answer.stop), (Some("hi"), StopReason::Done));
    let mut expected = body();
    expected["tool_choice"] = json!("none");
    assert_eq!(server.requests()[0].body, expected);
    let input = json!([{ "type": "message", "role": "user", "content": "hello" }]);
    assert_eq!(
        server.requests()[1].body,
        json!({ "model": "model-7", "store": false, "include": ["reasoning.encrypted_content"], "input": input })
    );
}

async fn stopped(status: &str, reason: Value, output: &[Value]) -> Result<StopReason, LlmError> {
    let mut response = response(output);
    response["status"] = json!(status);
    response["incomplete_details"] = reason;
    let server = Server::start(vec![Reply::json(200, &response)]).await;
    model(&server).complete(&plain(), None).await.and_then(usable).map(|answer| answer.stop)
}

#[tokio::test]
async fn reason_to_stop_is_understood_and_an_unknown_one_is_named() {
    let incomplete = |reason: &str| json!({ "reason": reason });
    assert_eq!(stopped("incomplete", incomplete("max_output_tokens"), &[]).await, Ok(StopReason::Length));
    assert_eq!(stopped("incomplete", incomplete("content_filter"), &[]).await, Ok(StopReason::Refused));
    let mut refusal = said("");
    refusal["content"] = json!([{ "type": "refusal", "refusal": "no" }]);
    assert_eq!(stopped("completed", Value::Null, &[refusal]).await, Ok(StopReason::Refused));
    for (status, reason, named) in
        [("incomplete", incomplete("novel"), "novel"), ("cancelled", Value::Null, "cancelled")]
    {
        let message = format!("the model stopped for a reason that is not known: `{named}`");
        assert_eq!(stopped(status, reason, &[]).await, Err(LlmError::Transient { retry_after: None, message }));
    }
}

async fn failed(reply: Reply) -> LlmError {
    let server = Server::start(vec![reply]).await;
    model(&server).complete(&plain(), Some(&|_| {})).await.and_then(usable).expect_err("it must fail")
}

#[tokio::test]
async fn every_failure_is_told_apart() {
    let error = |status, message: &str| Reply::json(status, &json!({ "error": { "message": message } }));
    let limited = failed(error(429, "slow down").with("retry-after", "20")).await;
    let message = "429: slow down".to_owned();
    assert_eq!(limited, LlmError::RateLimited { retry_after: Some(Duration::from_secs(20)), message });
    let refused = failed(error(401, "Incorrect API key provided: sk-canary.")).await;
    assert_eq!(refused, LlmError::Auth { message: "401: Incorrect API key provided: [redacted].".into() });
    let failing = |code: &str, message: &str| {
        let mut response = response(&[]);
        response["status"] = json!("failed");
        response["error"] = json!({ "code": code, "message": message });
        response
    };
    let whole = failed(Reply::json(200, &failing("server_error", "ouch"))).await;
    assert_eq!(whole, LlmError::Transient { retry_after: None, message: "500: ouch".into() });
    let streamed = |event: Value| Reply::events(&events(&[event]), 64);
    let event = json!({ "type": "response.failed", "response": failing("rate_limit_exceeded", "slow") });
    assert_eq!(failed(streamed(event)).await, LlmError::RateLimited { retry_after: None, message: "429: slow".into() });
    let event = json!({ "type": "response.failed", "response": failing("context_length_exceeded", "too long") });
    assert_eq!(failed(streamed(event)).await, LlmError::Overflow { message: "400: too long".into() });
    // OpenAI's shape, and that of Open Responses
    let event = json!({ "type": "error", "code": "server_error", "message": "ouch", "param": null });
    assert_eq!(failed(streamed(event)).await, LlmError::Transient { retry_after: None, message: "500: ouch".into() });
    let error = json!({ "type": "invalid_request_error", "code": null, "message": "odd", "param": null });
    let event = json!({ "type": "error", "error": error });
    assert_eq!(failed(streamed(event)).await, LlmError::Rejected { message: "400: odd".into() });
}

#[tokio::test]
async fn answer_that_breaks_off_or_makes_no_sense_is_none() {
    let half = stream(&output(), &json!({ "type": "response.in_progress" }));
    let transient = |error: LlmError| match error {
        LlmError::Transient { retry_after: None, message } => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(transient(failed(Reply::events(&half, 9)).await), "the stream ended before the answer did");
    assert!(!transient(failed(Reply::events(&half, 9).ending(End::Broken)).await).is_empty());
    assert_eq!(transient(failed(Reply::json(200, &json!({}))).await), "the answer has no output");
}
