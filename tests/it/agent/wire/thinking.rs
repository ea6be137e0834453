//! Models that think: what they wrote goes back as it was, or the provider refuses the second turn of a tool loop.

use std::sync::Arc;

use chrono::TimeDelta;
use reveille::agent::{Agent, AgentResponse, ApprovalContext};
use reveille::domain::approval::ApprovalStatus;
use reveille::domain::approval::matrix::Category;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::{ProviderMessage, TranscriptMessage};
use reveille::ports::llm::tokens::encoders::Encoders;
use reveille::ports::llm::{ModelSettings, Models, Settings};
use reveille::ports::tool::UsedSecrets;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::server::{Reply, Server, settings};
use crate::agent::harness::{AgentHarness, FakeTool, Memory, call};

/// A provider whose second turn needs what its first one said.
struct Vendor {
    provider: &'static str,
    /// The first answer, in one piece and streamed.
    whole: String,
    streamed: String,
    /// Bytes that the second request must hold, after each form of the first answer.
    wanted: [&'static [&'static str]; 2],
}

/// Blocks in an order of their own; fields in an order that no map keeps, with spaces and a number that none writes so.
const ANTHROPIC: &str = r#"{"type":"thinking","thinking":"I \u0077onder","signature":"c2ln+/=="},{"type":"redacted_thinking","data":"b3BhcXVl"},{"type":"text","text":"Looking."},{ "type":"tool_use","name":"echo","id":"c1","input":{"z": 1.0e2,"a":1},"caller":{"type":"direct"} }"#;

fn anthropic() -> Vendor {
    let event = |value: Value| format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap());
    let begin = |index: u64, block: Value| {
        event(json!({ "type": "content_block_start", "index": index, "content_block": block }))
    };
    let delta =
        |index: u64, delta: Value| event(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    let streamed = [
        event(json!({ "type": "message_start", "message": { "usage": { "input_tokens": 5 } } })),
        begin(0, json!({ "type": "thinking", "thinking": "", "signature": "" })),
        delta(0, json!({ "type": "thinking_delta", "thinking": "I " })),
        delta(0, json!({ "type": "thinking_delta", "thinking": "wonder" })),
        delta(0, json!({ "type": "signature_delta", "signature": "c2ln+/==" })),
        begin(1, json!({ "type": "redacted_thinking", "data": "b3BhcXVl" })),
        begin(2, json!({ "type": "text", "text": "" })),
        delta(2, json!({ "type": "text_delta", "text": "Looking." })),
        begin(
            3,
            json!({ "type": "tool_use", "id": "c1", "name": "echo", "input": {}, "caller": { "type": "direct" } }),
        ),
        delta(3, json!({ "type": "input_json_delta", "partial_json": "{\"z\": 1.0" })),
        delta(3, json!({ "type": "input_json_delta", "partial_json": "e2,\"a\":1}" })),
        event(
            json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 7 } }),
        ),
        event(json!({ "type": "message_stop" })),
    ];
    Vendor {
        provider: "anthropic",
        whole: format!(r#"{{"role":"assistant","content":[{ANTHROPIC}],"stop_reason":"tool_use"}}"#),
        streamed: streamed.concat(),
        wanted: [
            &[ANTHROPIC],
            &[concat!(
                r#"[{"signature":"c2ln+/==","thinking":"I wonder","type":"thinking"},"#,
                r#"{"data":"b3BhcXVl","type":"redacted_thinking"},{"text":"Looking.","type":"text"},"#,
                r#"{"caller":{"type":"direct"},"id":"c1","input":{"z": 1.0e2,"a":1},"name":"echo","type":"tool_use"}]"#,
            )],
        ],
    }
}

/// A chat completion whose message is this, and the same in pieces.
fn completion(message: &str, pieces: &[Value]) -> (String, String) {
    let whole = format!(r#"{{"choices":[{{"index":0,"message":{message},"finish_reason":"tool_calls"}}]}}"#);
    let piece = |delta: &Value| format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": delta }] }));
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] });
    (whole, format!("{}data: {end}\n\ndata: [DONE]\n\n", pieces.iter().map(piece).collect::<String>()))
}

const GEMINI: &str = r#"{"role":"assistant","tool_calls":[{"type":"function","id":"c1","function":{"name":"echo","arguments":"{\"z\": 1.0e2}"},"extra_content":{"google":{"thought_signature":"c2ln+/=="}}}]}"#;

fn gemini() -> Vendor {
    let (whole, streamed) = completion(
        GEMINI,
        &[json!({ "role": "assistant", "tool_calls": [{
            "index": 0, "type": "function", "id": "c1", "function": { "name": "echo", "arguments": "{\"z\": 1.0e2}" },
            "extra_content": { "google": { "thought_signature": "c2ln+/==" } },
        }] })],
    );
    let signature = r#""extra_content":{"google":{"thought_signature":"c2ln+/=="}}"#;
    Vendor { provider: "openai", whole, streamed, wanted: [&[GEMINI], Box::leak(Box::new([signature]))] }
}

const DEEPSEEK: &str = r#"{"role":"assistant","reasoning_content":"I wonder","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"echo","arguments":"{\"z\": 1.0e2}"}}],"novel":[1,{"b":2,"a":1}]}"#;

fn deepseek() -> Vendor {
    let call = |piece: Value| json!({ "tool_calls": [piece] });
    let (whole, streamed) = completion(
        DEEPSEEK,
        &[
            json!({ "role": "assistant", "content": null, "reasoning_content": "" }),
            json!({ "content": null, "reasoning_content": "I " }),
            json!({ "content": null, "reasoning_content": "wonder" }),
            json!({ "content": "", "reasoning_content": null, "novel": [1, { "a": 1, "b": 2 }] }),
            call(
                json!({ "index": 0, "id": "c1", "type": "function", "function": { "name": "echo", "arguments": "" } }),
            ),
            call(json!({ "index": 0, "function": { "arguments": "{\"z\": 1" } })),
            call(json!({ "index": 0, "function": { "arguments": ".0e2}" } })),
        ],
    );
    let wanted = concat!(
        r#"{"content":"","novel":[1,{"a":1,"b":2}],"reasoning_content":"I wonder","role":"assistant","tool_calls":["#,
        r#"{"function":{"arguments":"{\"z\": 1.0e2}","name":"echo"},"id":"c1","type":"function"}]}"#,
    );
    Vendor { provider: "openai", whole, streamed, wanted: [&[DEEPSEEK], Box::leak(Box::new([wanted]))] }
}

const RESPONSES: &str = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"c2ln+/=="},{ "type":"message","role":"assistant","phase":"commentary","id":"msg_1","status":"completed","content":[{"type":"output_text","text":"Looking.","annotations":[]}] },{"type":"function_call","status":"completed","name":"echo","id":"fc_1","call_id":"c1","arguments":"{\"z\": 1.0e2}"}"#;

fn openai_responses() -> Vendor {
    let items: Vec<Box<RawValue>> = serde_json::from_str(&format!("[{RESPONSES}]")).unwrap();
    let done = |(index, item): (usize, &RawValue)| {
        format!("data: {{\"type\":\"response.output_item.done\",\"output_index\":{index},\"item\":{}}}\n\n", item.get())
    };
    let items: String = items.iter().map(AsRef::as_ref).enumerate().map(done).collect();
    // what is said of the items at the end lacks the encrypted reasoning
    let end = json!({ "type": "response.completed", "response": { "status": "completed", "output": [] } });
    Vendor {
        provider: "openai-responses",
        whole: format!(r#"{{"status":"completed","error":null,"output":[{RESPONSES}]}}"#),
        streamed: format!("{items}data: {end}\n\n"),
        wanted: [&[RESPONSES], &[RESPONSES]],
    }
}

fn vendors() -> [Vendor; 4] {
    [anthropic(), gemini(), deepseek(), openai_responses()]
}

/// The last answer of a provider.
fn done(provider: &str) -> Reply {
    Reply::json(
        200,
        &match provider {
            "anthropic" => json!({ "content": [{ "type": "text", "text": "Done." }], "stop_reason": "end_turn" }),
            "openai-responses" => {
                let content = json!([{ "type": "output_text", "text": "Done.", "annotations": [] }]);
                let message = json!({ "type": "message", "role": "assistant", "content": content });
                json!({ "status": "completed", "error": null, "output": [message] })
            }
            _ => {
                json!({ "choices": [{ "message": { "role": "assistant", "content": "Done." }, "finish_reason": "stop" }] })
            }
        },
    )
}

fn first(vendor: &Vendor, stream: bool) -> Reply {
    match stream {
        true => Reply::events(&vendor.streamed, 11),
        false => Reply { body: vec![vendor.whole.clone().into_bytes()], ..Reply::json(200, &json!({})) },
    }
}

/// Refuses a conversation that goes on behind a result without what it has to hold.
async fn strict(vendor: &Vendor, stream: bool, replies: Vec<Reply>) -> Server {
    let wanted = vendor.wanted[usize::from(stream)];
    Server::strict(replies, move |request| {
        let lacks = request.text.contains("100.0") && !wanted.iter().all(|wanted| request.text.contains(wanted));
        let message = "the thinking of the last turn must be passed back";
        lacks.then(|| Reply::json(400, &json!({ "error": { "message": message } })))
    })
    .await
}

fn one(server: &Server, vendor: &Vendor, stream: bool) -> ModelSettings {
    settings(server, |settings| {
        settings.provider = vendor.provider.into();
        settings.stream = stream;
    })
}

fn agent(stage: &AgentHarness, models: Vec<(&str, ModelSettings)>) -> Agent {
    let fallback = models.iter().skip(1).map(|(name, _)| (*name).to_owned()).collect();
    let default = models[0].0.to_owned();
    let models = models.into_iter().map(|(name, model)| (name.to_owned(), model)).collect();
    let settings = Settings { models, default, fallback };
    let models = Models::build(&settings, &Encoders::default(), stage.agent.settings.retry(), &stage.clock).unwrap();
    Agent { models, ..stage.agent.clone() }
}

async fn answer(agent: &Agent, stage: &AgentHarness) -> Result<String, RunError> {
    match agent.handle_message(&stage.incoming("Go.")).await? {
        AgentResponse::Answered(result) => {
            stage.store.end();
            Ok(result.response)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn thinking_model_gets_back_what_it_wrote_so_its_tool_loop_goes_on() {
    for vendor in vendors() {
        for stream in [false, true] {
            let server = strict(&vendor, stream, vec![first(&vendor, stream), done(vendor.provider)]).await;
            let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
            let agent = agent(&stage, vec![("main", one(&server, &vendor, stream))]);
            let came = answer(&agent, &stage).await;
            let sent = server.requests().pop().unwrap().text;
            assert_eq!(came, Ok("Done.".into()), "{} stream {stream}: {sent}", vendor.provider);
            assert_eq!(server.requests().len(), 2);
            assert_eq!(stage.results().len(), 1, "the call was understood, too");
        }
    }
}

#[tokio::test]
async fn run_that_is_resumed_elsewhere_sends_the_same_back() {
    for vendor in vendors() {
        let replies = vec![first(&vendor, true), done(vendor.provider), done(vendor.provider)];
        let server = strict(&vendor, true, replies).await;
        let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
        let model = one(&server, &vendor, true);
        answer(&agent(&stage, vec![("main", model.clone())]), &stage).await.unwrap();
        // another instance finds what was stored before the calls ran
        let stored = stage.store.entries.lock().unwrap()[..3].to_vec();
        let other =
            AgentHarness { store: Memory::of(stored), ..AgentHarness::new(vec![], vec![FakeTool::echo("echo")]) };
        assert_eq!(answer(&agent(&other, vec![("main", model)]), &other).await, Ok("Done.".into()));
        assert_eq!(server.requests().len(), 3);
    }
}

/// A person takes a day to agree to the call, and another instance goes on: with the bytes of the first turn.
#[tokio::test]
async fn thinking_waits_for_an_approval_of_a_day_and_goes_back() {
    for vendor in vendors() {
        let writes = || FakeTool::echo("echo").with(|tool| tool.category = Category::SideEffect);
        let server = strict(&vendor, true, vec![first(&vendor, true), done(vendor.provider)]).await;
        let stage = AgentHarness::new(vec![], vec![writes()]);
        let model = one(&server, &vendor, true);
        let mut incoming = stage.incoming("Go.");
        incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: None };
        let waiting = agent(&stage, vec![("main", model.clone())]).handle_message(&incoming).await;
        let Ok(AgentResponse::Suspended(suspension)) = waiting else { panic!("{waiting:?}") };
        let (mut approval, _) = suspension.asks.into_iter().next().unwrap();
        approval.status = ApprovalStatus::Approved;
        approval.decided_digest = Some(approval.digest.clone());
        stage.store.approvals.lock().unwrap().push(approval);

        let other = AgentHarness { store: stage.store.clone(), ..AgentHarness::new(vec![], vec![writes()]) };
        other.clock.advance(TimeDelta::days(1));
        let mut incoming = other.incoming("Go.");
        incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: None };
        let answered = agent(&other, vec![("main", model)]).handle_message(&incoming).await;
        let Ok(AgentResponse::Answered(result)) = answered else { panic!("{answered:?}") };
        assert_eq!((result.response.as_str(), server.requests().len()), ("Done.", 2), "{}", vendor.provider);
    }
}

#[tokio::test]
async fn thinking_is_no_answer_and_nobody_reads_it() {
    for vendor in [anthropic(), deepseek(), openai_responses()] {
        for stream in [false, true] {
            let server = Server::start(vec![first(&vendor, stream), done(vendor.provider)]).await;
            let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
            answer(&agent(&stage, vec![("main", one(&server, &vendor, stream))]), &stage).await.unwrap();
            let told = format!("{:?}", stage.told.lock().unwrap());
            let shown = serde_json::to_string(&*stage.store.entries.lock().unwrap()).unwrap();
            for text in [told, shown] {
                assert!(text.contains("Done."), "{text}");
                assert!(!text.contains("wonder") && !text.contains("c2ln"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn echo_is_rewritten_for_another_model() {
    let vendors = [anthropic(), deepseek(), openai_responses()];
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0), (0, 2), (2, 1)] {
        let (first_vendor, next) = (&vendors[from], &vendors[to]);
        let down = Reply::json(401, &json!({ "error": { "message": "no" } }));
        let server = Server::start(vec![first(first_vendor, true), down]).await;
        let spare = Server::start(vec![done(next.provider)]).await;
        let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
        let models = vec![("main", one(&server, first_vendor, true)), ("spare", one(&spare, next, true))];
        assert_eq!(answer(&agent(&stage, models), &stage).await, Ok("Done.".into()));
        let sent = spare.requests().remove(0).text;
        assert!(!sent.contains("wonder") && !sent.contains("c2ln") && sent.contains("c1"), "{sent}");
    }
}

#[tokio::test]
async fn same_protocol_with_another_model_is_another_model() {
    let vendor = deepseek();
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let down = Reply::json(401, &json!({ "error": { "message": "no" } }));
    let server = Server::start(vec![first(&vendor, false), down]).await;
    let spare = Server::start(vec![done(vendor.provider)]).await;
    let other = ModelSettings { model: "model-8".into(), ..one(&spare, &vendor, false) };
    let models = vec![("main", one(&server, &vendor, false)), ("spare", other)];
    assert_eq!(answer(&agent(&stage, models), &stage).await, Ok("Done.".into()));
    let message = &spare.requests()[0].body["messages"][2];
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "echo", "arguments": "{\"z\":100.0}" } });
    assert_eq!(*message, json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
}

/// As with OpenAI and Azure: what one has signed is nothing to the other.
#[tokio::test]
async fn same_model_at_another_address_is_another_model() {
    for vendor in vendors() {
        let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
        let down = Reply::json(401, &json!({ "error": { "message": "no" } }));
        let server = Server::start(vec![first(&vendor, false), down]).await;
        let spare = Server::start(vec![done(vendor.provider)]).await;
        let models = vec![("main", one(&server, &vendor, false)), ("spare", one(&spare, &vendor, false))];
        assert_eq!(models[0].1.model, models[1].1.model);
        assert_eq!(answer(&agent(&stage, models), &stage).await, Ok("Done.".into()), "{}", vendor.provider);
        let sent = spare.requests().remove(0).text;
        assert!(!sent.contains("wonder") && !sent.contains("c2ln") && sent.contains("c1"), "{sent}");
        let own = server.requests().remove(1).text;
        assert!(own.contains("c2ln") || own.contains("wonder"), "{own}");
    }
}

/// A run that an earlier release has begun goes on with what it stored, which names no address.
#[tokio::test]
async fn message_that_was_stored_without_its_address_goes_back_as_before() {
    for vendor in vendors() {
        let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
        let server = strict(&vendor, false, vec![first(&vendor, false), done(vendor.provider)]).await;
        answer(&agent(&stage, vec![("main", one(&server, &vendor, false))]), &stage).await.unwrap();
        let mut stored = stage.store.entries.lock().unwrap()[..3].to_vec();
        let TranscriptMessage::Assistant { provider_message: Some(kept), .. } = &mut stored[2].message else {
            panic!("no message is kept")
        };
        assert!(kept.address.is_some());
        *kept = Arc::new(ProviderMessage { address: None, ..(**kept).clone() });
        let server = strict(&vendor, false, vec![done(vendor.provider)]).await;
        let other =
            AgentHarness { store: Memory::of(stored), ..AgentHarness::new(vec![], vec![FakeTool::echo("echo")]) };
        let came = answer(&agent(&other, vec![("main", one(&server, &vendor, false))]), &other).await;
        assert_eq!((came, server.requests().len()), (Ok("Done.".into()), 1), "{}", vendor.provider);
    }
}

#[tokio::test]
async fn message_with_a_secret_in_it_is_not_stored_as_it_was() {
    let vendor = deepseek();
    let server = Server::start(vec![first(&vendor, true), done(vendor.provider)]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let agent = agent(&stage, vec![("main", one(&server, &vendor, true))]);
    let used_secrets = UsedSecrets::default();
    used_secrets.add(["I wonder"]);
    let mut incoming = stage.incoming("Go.");
    incoming.used_secrets = used_secrets;
    assert!(matches!(agent.handle_message(&incoming).await, Ok(AgentResponse::Answered(_))));
    stage.store.end();
    let kept: Vec<Option<Arc<ProviderMessage>>> = stage
        .store
        .messages()
        .into_iter()
        .filter_map(|message| match message {
            TranscriptMessage::Assistant { provider_message, .. } => Some(provider_message),
            _ => None,
        })
        .collect();
    assert_eq!((kept[0].is_none(), kept[1].is_some(), kept.len()), (true, true, 2));
    assert!(!server.requests()[1].text.contains("wonder"));
}

#[tokio::test]
async fn message_that_is_too_large_to_keep_goes_back_in_our_own_words() {
    let long = "x".repeat(1024 * 1024);
    let message = json!({ "role": "assistant", "content": null, "reasoning_content": long, "tool_calls": [
        { "id": "c1", "type": "function", "function": { "name": "echo", "arguments": "{}" } },
    ] });
    let whole = json!({ "choices": [{ "message": message, "finish_reason": "tool_calls" }] });
    let server = Server::start(vec![Reply::json(200, &whole), done("openai")]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let agent = agent(&stage, vec![("main", one(&server, &deepseek(), false))]);
    assert_eq!(answer(&agent, &stage).await, Ok("Done.".into()));
    assert_eq!(server.requests()[1].body["messages"][2].get("reasoning_content"), None);
    assert_eq!(
        stage.store.messages()[2],
        TranscriptMessage::Assistant {
            text: None,
            tool_calls: vec![call("c1", "echo", json!({}))],
            provider_message: None,
            finish: None
        }
    );
}

#[tokio::test]
async fn empty_blocks_that_the_provider_writes_and_refuses_do_not_go_back() {
    let content = json!([
        { "type": "thinking", "thinking": "", "signature": "s" }, { "type": "text", "text": "\n" },
        { "type": "tool_use", "id": "c1", "name": "echo", "input": {} },
    ]);
    let whole = json!({ "content": content, "stop_reason": "tool_use" });
    let server = Server::start(vec![Reply::json(200, &whole), done("anthropic")]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let agent = agent(&stage, vec![("main", one(&server, &anthropic(), false))]);
    answer(&agent, &stage).await.unwrap();
    let sent = &server.requests()[1].body["messages"][1]["content"];
    assert_eq!(*sent, json!([content[0], content[2]]));
}

/// A call whose arguments are no JSON, behind signed thinking: the signature goes back, the arguments inside an object.
#[tokio::test]
async fn thinking_before_a_broken_call_goes_back_with_it() {
    let vendor = anthropic();
    let broken = vendor.streamed.replace(r#"e2,\"a\":1}"#, "");
    assert_ne!(broken, vendor.streamed);
    let server = Server::start(vec![Reply::events(&broken, 4096), done("anthropic")]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    answer(&agent(&stage, vec![("main", one(&server, &vendor, true))]), &stage).await.unwrap();
    let sent = &server.requests()[1].body["messages"][1]["content"];
    assert_eq!(sent[0]["signature"], "c2ln+/==");
    assert_eq!(sent[3]["input"], json!({ "not_an_object": "{\"z\": 1.0" }));
}
