//! Whole request bodies of tool loops: each request of a loop, to its last field, as the documents of the providers say
//! that it is written.

use serde_json::{Value, json};

use super::{Case, PlayedCase, play};
use crate::agent::harness::{system_message, system_parts};
use crate::agent::wire::fakes::{FakeReply, Wire, calling, said, without_shapes};
use crate::agent::wire::server::Reply;

/// A turn: the answer of the model, and the results of its calls, each with whether it is an error.
type Turn = (FakeReply, &'static [(&'static str, &'static str, bool)]);

const TOOLS: &str = "echo, count, long, empty, fails, panics, hangs";
const CLOSING: &str = "You have executed enough steps. Please provide a final answer based on the information gathered so \
                       far.";
const BROKEN: &str = "Operation failed.\ntype: execution_error\ncode: broken\nmessage: it is broken\ncall: c2";
const UNKNOWN: &str = "Operation failed.\ntype: not_found\ncode: unknown_tool\nmessage: there is no tool `ehco`; did you mean \
                       `echo`?; available: echo, count, long, empty, fails, panics, hangs\ncall: c1";

/// A request behind these turns, with the closing sentence or not.
fn body(wire: Wire, stream: bool, turns: &[Turn], closes: bool) -> Value {
    let choice = if closes { "none" } else { "auto" };
    let conversation = conversation(wire, turns, closes);
    let mut body = match wire {
        Wire::Chat => {
            json!({ "model": "model-7", "messages": conversation, "tools": tools(wire), "tool_choice": choice })
        }
        Wire::Responses => json!({
            "model": "model-7", "store": false, "include": ["reasoning.encrypted_content"], "instructions": system_message(TOOLS),
            "input": conversation, "tools": tools(wire), "tool_choice": choice,
        }),
        Wire::Anthropic => json!({
            "model": "model-7", "max_tokens": 8192, "system": system_blocks(),
            "messages": conversation, "tools": tools(wire), "tool_choice": { "type": choice },
        }),
    };
    if stream {
        body["stream"] = json!(true);
    }
    if stream && wire == Wire::Chat {
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

fn marker() -> Value {
    json!({ "type": "ephemeral", "ttl": "5m" })
}

fn system_blocks() -> Value {
    let [stable, of_run] = system_parts(TOOLS);
    json!([{ "type": "text", "text": stable, "cache_control": marker() }, { "type": "text", "text": of_run }])
}

fn tools(wire: Wire) -> Vec<Value> {
    let tool = |name: &str| {
        let parameters = match name {
            "count" => json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] }),
            _ => json!({ "type": "object" }),
        };
        let description = format!("the tool {name}");
        match wire {
            Wire::Chat => {
                let function = json!({ "name": name, "description": description, "parameters": parameters });
                json!({ "type": "function", "function": function })
            }
            Wire::Responses => json!({ "type": "function", "name": name, "description": description,
                                       "parameters": parameters, "strict": false }),
            Wire::Anthropic => json!({ "name": name, "description": description, "input_schema": parameters }),
        }
    };
    ["echo", "count", "long", "empty", "fails", "panics", "hangs"].map(tool).into()
}

fn conversation(wire: Wire, turns: &[Turn], closes: bool) -> Vec<Value> {
    match wire {
        Wire::Chat => {
            let mut messages = vec![
                json!({ "role": "system", "content": system_message(TOOLS) }),
                json!({ "role": "user", "content": "Go." }),
            ];
            for (said, results) in turns {
                messages.push(said.whole(wire)["choices"][0]["message"].clone());
                let result =
                    |(id, text, _): &(&str, &str, bool)| json!({ "role": "tool", "tool_call_id": id, "content": text });
                messages.extend(results.iter().map(result));
            }
            messages.extend(closes.then(|| json!({ "role": "user", "content": CLOSING })));
            messages
        }
        Wire::Responses => {
            let user = |text: &str| json!({ "type": "message", "role": "user", "content": text });
            let mut items = vec![user("Go.")];
            for (said, results) in turns {
                items.extend(said.whole(wire)["output"].as_array().cloned().expect("items"));
                let result = |(id, text, _): &(&str, &str, bool)| json!({ "type": "function_call_output", "call_id": id, "output": text });
                items.extend(results.iter().map(result));
            }
            items.extend(closes.then(|| user(CLOSING)));
            items
        }
        Wire::Anthropic => {
            let text = |text: &str| json!({ "type": "text", "text": text });
            let mut messages = vec![json!({ "role": "user", "content": [text("Go.")] })];
            for (said, results) in turns {
                messages.push(json!({ "role": "assistant", "content": said.whole(wire)["content"] }));
                let result = |(id, text, is_error): &(&str, &str, bool)| {
                    let mut block = json!({ "type": "tool_result", "tool_use_id": id, "content": text });
                    if *is_error {
                        block["is_error"] = json!(true);
                    }
                    block
                };
                messages.push(json!({ "role": "user", "content": results.iter().map(result).collect::<Vec<_>>() }));
            }
            let last = messages.last_mut().and_then(|last| last["content"].as_array_mut()).expect("blocks");
            last.last_mut().expect("a block")["cache_control"] = marker();
            // no later request has it
            last.extend(closes.then(|| text(CLOSING)));
            messages
        }
    }
}

/// A message of a stream does not name what it has nothing of.
fn without_empty_refusals(mut body: Value) -> Value {
    for message in body["messages"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        message.retain(|name, value| name != "refusal" || !value.is_null());
    }
    body
}

/// Each request brings the turns before it, whole.
fn bring(played: &PlayedCase, turns: &[Turn], closes: bool) {
    assert_eq!(played.requests.len(), turns.len() + 1);
    for (index, request) in played.requests.iter().enumerate() {
        let closes = closes && index == turns.len();
        let expected = body(played.wire, played.stream, &turns[..index], closes);
        let sent = without_shapes(without_empty_refusals(request.body.clone()));
        let expected = without_empty_refusals(expected);
        assert_eq!(sent, expected, "request {index}");
    }
}

fn replies(turns: &[Turn], wire: Wire, stream: bool) -> Vec<Reply> {
    let answer = said("Fine.").reply(wire, stream);
    turns.iter().map(|(said, _)| said.reply(wire, stream)).chain([answer]).collect()
}

fn one_call() -> Vec<Turn> {
    vec![(calling(&[("c1", "echo", r#"{"n":1}"#)]), &[("c1", r#"{"n":1}"#, false)])]
}

fn parallel_calls() -> Vec<Turn> {
    let calls = calling(&[("c1", "echo", r#"{"n":1}"#), ("c2", "fails", "{}"), ("c3", "empty", "{}")]);
    vec![(calls, &[("c1", r#"{"n":1}"#, false), ("c2", BROKEN, true), ("c3", "", false)])]
}

fn unknown_tool() -> Vec<Turn> {
    vec![(calling(&[("c1", "ehco", "{}")]), &[("c1", UNKNOWN, true)])]
}

fn thinking() -> Vec<Turn> {
    let first = FakeReply { text: Some("Let me look."), ..calling(&[("c1", "echo", r#"{"n":1}"#)]) };
    let second = calling(&[("c2", "fails", "{}"), ("c3", "echo", r#"{"t":"é早😀"}"#)]);
    vec![
        (first.thinking("b25l"), &[("c1", r#"{"n":1}"#, false)]),
        (second.thinking("dHdv"), &[("c2", BROKEN, true), ("c3", r#"{"t":"é早😀"}"#, false)]),
    ]
}

pub static CASES: [Case; 6] = [
    Case::new("the body of a question", |w, s| replies(&[], w, s), Ok("Fine."), 1)
        .holds(|played| bring(played, &[], false)),
    Case::new("the bodies of a call", |w, s| replies(&one_call(), w, s), Ok("Fine."), 2)
        .holds(|played| bring(played, &one_call(), false)),
    Case::new("the bodies of calls of which one fails", |w, s| replies(&parallel_calls(), w, s), Ok("Fine."), 2)
        .holds(|played| bring(played, &parallel_calls(), false)),
    Case::new("the bodies of an unknown tool", |w, s| replies(&unknown_tool(), w, s), Ok("Fine."), 2)
        .holds(|played| bring(played, &unknown_tool(), false)),
    Case::new("the bodies of two turns with thinking", |w, s| replies(&thinking(), w, s), Ok("Fine."), 3)
        .holds(|played| bring(played, &thinking(), false)),
    Case::new("the bodies of the last turn", |w, s| replies(&one_call(), w, s), Ok("Fine."), 2)
        .react(|react| react.max_turns = 1)
        .holds(|played| bring(played, &one_call(), true)),
];

#[tokio::test]
async fn bodies_of_a_tool_loop_are_whole_over_every_wire() {
    play(&CASES).await;
}
