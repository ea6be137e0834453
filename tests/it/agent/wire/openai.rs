//! OpenAI-compatible chat completions.

use std::sync::Mutex;
use std::time::Duration;

use reveille::agent::{Agent, AgentResponse};
use reveille::base::compute::{Compute, ComputeTurn};
use reveille::base::template::untrusted::fenced;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::openai::OpenAi;
use reveille::ports::llm::settings::MaxTokensField;
use reveille::ports::llm::thinking::ThinkingEffort;
use reveille::ports::llm::tokens::encoders::Encoders;
use reveille::ports::llm::{
    LlmError, Model, ModelAnswer, ModelRequest, ModelTokens, Models, OfferedTools, OnDelta, Settings, StopReason,
    ToolChoice,
};
use serde_json::{Value, json};

use super::mail_request::{request_of, result, two_calls};
use super::server::{End, Reply, Server, offer, settings};
use super::usable;
use crate::agent::harness::{AgentHarness, FakeTool, call, system_message};
use crate::support::computing::{HeldThreads, until_waiting};

fn model(server: &Server) -> OpenAi {
    offer(&settings(server, |_| {}), OpenAi::new)
}

fn request() -> ModelRequest {
    let said = |text: Option<&str>, tool_calls| TranscriptMessage::Assistant {
        text: text.map(str::to_owned),
        tool_calls,
        provider_message: None,
        finish: None,
    };
    let mut messages = vec![TranscriptMessage::system("Be brief."), TranscriptMessage::user("Any mail?")];
    messages.extend(two_calls());
    messages.extend([
        said(None, vec![call("c3", "read", json!({}))]),
        result("c3", "none", false),
        said(Some("Two."), vec![]),
        TranscriptMessage::user("From whom?"),
    ]);
    request_of(messages)
}

/// `request()` as it must go over the wire.
fn body() -> Value {
    json!({
        "model": "model-7",
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Any mail?" },
            { "role": "assistant", "content": "Let me look.", "tool_calls": [
                { "id": "c1", "type": "function", "function": { "name": "read", "arguments": "{\"box\":\"in\"}" } },
                { "id": "c2", "type": "function", "function": { "name": "read", "arguments": "{broken" } },
            ] },
            { "role": "tool", "tool_call_id": "c1", "content": fenced("tool", "2 mails") },
            { "role": "tool", "tool_call_id": "c2", "content": fenced("tool", "Operation failed.") },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "c3", "type": "function", "function": { "name": "read", "arguments": "{}" } },
            ] },
            { "role": "tool", "tool_call_id": "c3", "content": fenced("tool", "none") },
            { "role": "assistant", "content": "Two." },
            { "role": "user", "content": "From whom?" },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "read", "description": "Reads mail",
            "parameters": { "type": "object", "properties": { "box": { "type": "string" } } },
        } }],
        "tool_choice": "auto",
        "max_tokens": 500,
        "temperature": 0.5,
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

fn whole_answer() -> Value {
    json!({
        "id": "x", "object": "chat.completion", "model": "model-7",
        "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": null, "tool_calls": [
                { "id": "d1", "type": "function", "function": { "name": "read", "arguments": "{\"box\": \"out\"}" } },
                { "id": "d2", "type": "function", "function": { "name": "read", "arguments": "" } },
            ],
        } }],
        "usage": {
            "prompt_tokens": 82, "completion_tokens": 17, "total_tokens": 99,
            "prompt_tokens_details": { "cached_tokens": 60 }, "completion_tokens_details": { "reasoning_tokens": 9 },
        },
    })
}

/// Text with letters of one to four bytes, two interleaved calls, usage in a chunk of its own.
const STREAM: &str = r#": keep-alive

data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"content":"Grüße, "},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"content":"早 😀"},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"d1","type":"function","function":{"name":"read","arguments":""}}]}}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"d2","type":"function","function":{"name":"write","arguments":"{\"a\""}}]}}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"box\":"}}]}}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":": 1}"}},{"index":0,"function":{"arguments":"\"ön\"}"}}]}}]}

data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"x","choices":[],"usage":{"prompt_tokens":82,"completion_tokens":17,"total_tokens":99}}

data: [DONE]

"#;

#[tokio::test]
async fn request_goes_out_whole_and_its_answer_is_read_whole() {
    let server = Server::start(vec![Reply::json(200, &whole_answer())]).await;
    let answer = model(&server).complete(&request(), None).await.unwrap();
    assert_eq!(
        answer,
        ModelAnswer {
            text: None,
            tool_calls: vec![call("d1", "read", json!({ "box": "out" })), call("d2", "read", json!({}))],
            stop: StopReason::ToolCalls,
            tokens: ModelTokens { cache_read: 60, reasoning: 9, ..ModelTokens::of(82, 17) },
            provider_message: answer.provider_message.clone(),

            failure: None,
        }
    );
    let received = server.requests().remove(0);
    assert_eq!(received.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(received.header("authorization"), Some("Bearer sk-canary"));
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
                tool_calls: vec![call("d1", "read", json!({ "box": "ön" })), call("d2", "write", json!({ "a": 1 }))],
                stop: StopReason::ToolCalls,
                tokens: ModelTokens::of(82, 17),
                provider_message: answer.provider_message.clone(),

                failure: None,
            },
            "pieces of {size}"
        );
        assert_eq!(*heard.lock().unwrap(), ["Grüße, ", "早 😀"]);
        let mut expected = body();
        expected["stream"] = json!(true);
        expected["stream_options"] = json!({ "include_usage": true });
        assert_eq!(server.requests().remove(0).body, expected);
    }
}

#[tokio::test]
async fn long_requests_are_written_and_long_answers_read_in_the_turn_of_their_tenant() {
    let text = "x".repeat(60_000);
    let answer = json!({ "choices": [{ "message": { "content": text }, "finish_reason": "stop" }] });
    let event = json!({ "choices": [{ "delta": { "content": text }, "finish_reason": "stop" }] });
    let stream = format!("data: {event}\n\ndata: [DONE]\n\n");
    let long = ModelRequest { messages: vec![TranscriptMessage::user(text.as_str())], ..plain() };
    let compute = Compute::new(1);
    let turn = ComputeTurn::new(&compute, "ann");
    let hear = |_: &str| {};
    for (reply, request, on_delta, computations) in [
        (Reply::json(200, &answer), plain(), None, 1),
        // the request is written before the answer is read
        (Reply::json(200, &answer), long, None, 2),
        // the event is read, and then the answer is put together
        (Reply::events(&stream, 10_000), plain(), Some(&hear as OnDelta<'_>), 2),
    ] {
        let server = Server::start(vec![reply]).await;
        let model = model(&server);
        let mut threads = HeldThreads::all_of(&compute, "ann").await;
        let meanwhile = async {
            for _ in 0..computations {
                until_waiting(&compute, 1).await;
                threads.let_pass().await;
            }
        };
        let (answered, ()) = tokio::join!(model.complete_in_turn(&request, on_delta, &turn), meanwhile);
        assert_eq!(answered.unwrap().text.as_ref(), Some(&text));
        drop(threads);
    }
}

#[tokio::test]
async fn forced_answer_names_the_tools_and_forbids_them_and_a_plain_one_names_none() {
    let reply =
        || Reply::json(200, &json!({ "choices": [{ "message": { "content": "hi" }, "finish_reason": "stop" }] }));
    let server = Server::start(vec![reply(), reply()]).await;
    let forced = ModelRequest { tool_choice: ToolChoice::None, ..request() };
    model(&server).complete(&forced, None).await.unwrap();
    let answer = model(&server).complete(&plain(), None).await.unwrap();
    assert_eq!(
        (answer.text.as_deref(), answer.stop, answer.tokens),
        (Some("hi"), StopReason::Done, ModelTokens::default())
    );
    let mut expected = body();
    expected["tool_choice"] = json!("none");
    assert_eq!(server.requests()[0].body, expected);
    assert_eq!(
        server.requests()[1].body,
        json!({ "model": "model-7", "messages": [{ "role": "user", "content": "hello" }] })
    );
}

#[tokio::test]
async fn model_s_own_limits_go_along_and_a_model_without_key_sends_none() {
    let reply = Reply::json(200, &json!({ "choices": [{ "message": { "content": "" }, "finish_reason": "length" }] }));
    let server = Server::start(vec![reply]).await;
    let settings = settings(&server, |settings| {
        settings.api_key = None;
        settings.max_output_tokens = Some(64);
        settings.temperature = Some(0.0);
    });
    let answer = offer(&settings, OpenAi::new).complete(&plain(), None).await.unwrap();
    assert_eq!((answer.text, answer.stop), (None, StopReason::Length));
    let received = server.requests().remove(0);
    assert_eq!(received.header("authorization"), None);
    assert_eq!(
        received.body,
        json!({
            "model": "model-7", "messages": [{ "role": "user", "content": "hello" }],
            "max_tokens": 64, "temperature": 0.0,
        })
    );
}

#[tokio::test]
async fn settings_of_a_server_are_kept_to_the_letter() {
    let reply =
        || Reply::json(200, &json!({ "choices": [{ "message": { "content": "hi" }, "finish_reason": "stop" }] }));
    let server = Server::start(vec![reply()]).await;
    let settings = settings(&server, |settings| {
        settings.max_output_tokens = Some(64);
        settings.max_tokens_field = Some(MaxTokensField::MaxCompletionTokens);
        settings.stream_usage = false;
        settings.effort = Some(ThinkingEffort::Minimal);
        settings.top_p = Some(0.25);
        settings.prompt_cache_key = Some("ours".into());
    });
    offer(&settings, OpenAi::new).complete(&plain(), Some(&|_| {})).await.unwrap();
    assert_eq!(
        server.requests().remove(0).body,
        json!({
            "model": "model-7", "messages": [{ "role": "user", "content": "hello" }], "stream": true,
            "max_completion_tokens": 64, "reasoning_effort": "minimal", "top_p": 0.25, "prompt_cache_key": "ours",
        })
    );
}

#[tokio::test]
async fn reason_to_stop_is_understood_in_the_words_of_many_servers() {
    let stopped = async |reason: &str| {
        let message = json!({ "role": "assistant", "content": "hi" });
        let reply = json!({ "choices": [{ "message": message, "finish_reason": reason }] });
        let server = Server::start(vec![Reply::json(200, &reply)]).await;
        model(&server).complete(&plain(), None).await.and_then(usable).map(|answer| answer.stop)
    };
    for (reason, stop) in [
        ("stop", StopReason::Done),
        ("STOP", StopReason::Done),
        ("eos", StopReason::Done),
        ("length", StopReason::Length),
        ("model_length", StopReason::Length),
        ("content_filter", StopReason::Refused),
    ] {
        assert_eq!(stopped(reason).await, Ok(stop), "{reason}");
    }
    let message = "the model stopped for a reason that is not known: `MALFORMED_FUNCTION_CALL`".into();
    assert_eq!(stopped("MALFORMED_FUNCTION_CALL").await, Err(LlmError::Transient { retry_after: None, message }));
}

#[tokio::test]
async fn server_that_can_t_stream_is_heard_in_one_piece() {
    let whole = json!({ "choices": [{ "message": { "content": "one piece" }, "finish_reason": "stop" }] });
    let server = Server::start(vec![Reply::json(200, &whole), Reply::json(200, &whole)]).await;
    let unable = settings(&server, |settings| settings.stream = false);
    for (model, streams) in [(offer(&unable, OpenAi::new), false), (model(&server), true)] {
        let heard = Mutex::new(Vec::new());
        let on_delta = |text: &str| heard.lock().unwrap().push(text.to_owned());
        let answer = model.complete(&plain(), Some(&on_delta)).await.unwrap();
        assert_eq!(answer.text.as_deref(), Some("one piece"));
        assert_eq!(*heard.lock().unwrap(), ["one piece"]);
        assert_eq!(server.requests().pop().unwrap().body.get("stream").is_some(), streams);
    }
}

#[tokio::test]
async fn calls_without_an_index_are_told_apart_by_their_ids() {
    let stream = r#"data: {"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"read","arguments":"{\"n\":"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"1}"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"id":"b","function":{"name":"read","arguments":"{\"n\":2}"}}]},"finish_reason":"stop"}]}

data: [DONE]

"#;
    let server = Server::start(vec![Reply::events(stream, 11)]).await;
    let answer = model(&server).complete(&plain(), Some(&|_| {})).await.unwrap();
    assert_eq!(answer.tool_calls, [call("a", "read", json!({ "n": 1 })), call("b", "read", json!({ "n": 2 }))]);
    assert_eq!(answer.stop, StopReason::ToolCalls);
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
    let long = json!({ "error": { "message": "too many tokens", "code": "context_length_exceeded" } });
    assert_eq!(failed(Reply::json(400, &long)).await, LlmError::Overflow { message: "400: too many tokens".into() });
    assert_eq!(failed(error(400, "odd")).await, LlmError::Rejected { message: "400: odd".into() });
    assert_eq!(
        failed(error(500, "ouch")).await,
        LlmError::Transient { retry_after: None, message: "500: ouch".into() }
    );
    let hidden = failed(Reply::json(200, &json!({ "error": { "code": 503, "message": "upstream" } }))).await;
    assert_eq!(hidden, LlmError::Transient { retry_after: None, message: "503: upstream".into() });
}

#[tokio::test]
async fn answer_that_breaks_off_or_makes_no_sense_is_none() {
    let half = "data: {\"choices\":[{\"delta\":{\"content\":\"half an an\"}}]}\n\n";
    let transient = |error: LlmError| match error {
        LlmError::Transient { retry_after: None, message } => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(transient(failed(Reply::events(half, 9)).await), "the stream ended before the answer did");
    let broken = transient(failed(Reply::events(half, 9).ending(End::Broken)).await);
    assert!(!broken.is_empty());
    let garbled = transient(failed(Reply::events("data: {\"choices\n\n", 9)).await);
    assert!(garbled.starts_with("the stream is malformed: "), "{garbled}");
    let erring = "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\"}}\n\n";
    assert_eq!(transient(failed(Reply::events(erring, 9)).await), "500: overloaded");
    assert_eq!(transient(failed(Reply::json(200, &json!({}))).await), "the answer has no choices");
}

#[tokio::test]
async fn server_that_hangs_or_is_not_there_is_told_apart() {
    let server = Server::start(vec![Reply::events("data: {}\n\n", 9).ending(End::Hangs)]).await;
    let hasty = settings(&server, |settings| settings.timeout_seconds = 1);
    let late = offer(&hasty, OpenAi::new).complete(&plain(), Some(&|_| {})).await.and_then(usable);
    assert_eq!(late, Err(LlmError::Timeout { message: "the provider did not answer in time".into() }));
    let gone = settings(&server, |settings| settings.base_url = Some("http://127.0.0.1:1/v1".into()));
    let error = offer(&gone, OpenAi::new).complete(&plain(), None).await.unwrap_err();
    assert!(
        matches!(&error, LlmError::Transient { retry_after: None, message } if message.contains("onnect")),
        "{error:?}"
    );
}

#[tokio::test]
async fn message_goes_through_tools_and_back_over_the_wire() {
    let first = r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"echo","arguments":"{\"n\":1}"}}]},"finish_reason":"tool_calls"}]}

data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":5}}

data: [DONE]

"#;
    let second =
        "data: {\"choices\":[{\"delta\":{\"content\":\"One.\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let server = Server::start(vec![Reply::events(first, 13), Reply::events(second, 13)]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let settings = Settings { models: [("main".into(), settings(&server, |_| {}))].into(), ..Settings::default() };
    let models = Models::build(&settings, &Encoders::default(), stage.agent.settings.retry(), &stage.clock).unwrap();
    let agent = Agent { models, ..stage.agent.clone() };
    match agent.handle_message(&stage.incoming("Which number?")).await.unwrap() {
        AgentResponse::Answered(result) => {
            assert_eq!((result.response.as_str(), result.usage.input_tokens), ("One.", 50))
        }
        other => panic!("{other:?}"),
    }
    let system = system_message("echo");
    let tools = json!([{ "type": "function", "function": {
        "name": "echo", "description": "the tool echo", "parameters": { "type": "object" },
    } }]);
    let mut messages =
        vec![json!({ "role": "system", "content": system }), json!({ "role": "user", "content": "Which number?" })];
    let body = |messages: &[Value]| {
        json!({
            "model": "model-7", "messages": messages, "tools": tools, "tool_choice": "auto",
            "stream": true, "stream_options": { "include_usage": true },
        })
    };
    let requests = server.requests();
    assert_eq!(requests[0].body, body(&messages));
    let function = json!({ "name": "echo", "arguments": "{\"n\":1}" });
    messages.push(json!({
        "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function", "function": function }],
    }));
    messages.push(json!({
        "role": "tool", "tool_call_id": "c1",
        "content": fenced("tool", "{\"tool\":\"echo\",\"fetched_at\":\"2026-12-24T07:00:00Z\",\"data\":{\"n\":1}}"),
    }));
    assert_eq!(requests[1].body, body(&messages));
}
