//! Answers of a model in the words of each wire, in one piece and streamed, and what a request says in those words.

use serde_json::{Map, Value, json};

use super::server::Reply;

/// A protocol of models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wire {
    Chat,
    Responses,
    Anthropic,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Ending {
    /// It is whole.
    #[default]
    Whole,
    /// At the longest length.
    Length,
    /// The provider withholds it.
    Refusal,
    /// The model declines, in words that are no answer.
    Declined,
    /// For a reason that nobody knows.
    Novel,
    /// It goes on when it is sent back; Anthropic alone.
    Pause,
}

/// One reply of a provider. Each counts 100 tokens of input, 40 of them cached, and 10 of output.
#[derive(Debug, Clone, Default)]
pub struct FakeReply {
    pub thinking: Option<&'static str>,
    pub text: Option<&'static str>,
    /// Id, name and arguments as they are written.
    pub calls: Vec<(&'static str, &'static str, &'static str)>,
    pub ending: Ending,
}

pub fn said(text: &'static str) -> FakeReply {
    FakeReply { text: Some(text), ..FakeReply::default() }
}

pub fn calling(calls: &[(&'static str, &'static str, &'static str)]) -> FakeReply {
    FakeReply { calls: calls.to_vec(), ..FakeReply::default() }
}

impl FakeReply {
    pub fn ending(self, ending: Ending) -> FakeReply {
        FakeReply { ending, ..self }
    }

    pub fn thinking(self, thinking: &'static str) -> FakeReply {
        FakeReply { thinking: Some(thinking), ..self }
    }

    /// The answer over a wire, a stream in pieces that cut lines and letters.
    pub fn reply(&self, wire: Wire, stream: bool) -> Reply {
        match stream {
            true => Reply::events(&self.events(wire), 13),
            false => Reply::json(200, &self.whole(wire)),
        }
    }

    /// The answer in one piece.
    pub fn whole(&self, wire: Wire) -> Value {
        match wire {
            Wire::Chat => json!({
                "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "model-7",
                "choices": [{ "index": 0, "message": self.chat_message(), "finish_reason": self.chat_finish() }],
                "usage": chat_usage(),
            }),
            Wire::Responses => self.response(&self.items()),
            Wire::Anthropic => json!({
                "id": "msg_1", "type": "message", "role": "assistant", "model": "model-7", "content": self.blocks(true),
                "stop_reason": self.anthropic_stop(), "stop_sequence": null, "usage": anthropic_usage(10),
            }),
        }
    }

    /// The answer as server-sent events.
    pub fn events(&self, wire: Wire) -> String {
        match wire {
            Wire::Chat => self.chat_events(),
            Wire::Responses => self.response_events(),
            Wire::Anthropic => self.anthropic_events(),
        }
    }

    fn chat_message(&self) -> Value {
        let (text, refusal) = self.text_or_refusal();
        let mut message = json!({ "role": "assistant", "content": text, "refusal": refusal });
        if let Some(thinking) = self.thinking {
            message["reasoning_content"] = json!(thinking);
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.iter().map(chat_call).collect();
        }
        message
    }

    /// The text, or the words in which the model declines.
    fn text_or_refusal(&self) -> (Option<&'static str>, Option<&'static str>) {
        if self.ending == Ending::Declined { (None, self.text) } else { (self.text, None) }
    }

    fn chat_finish(&self) -> &'static str {
        match self.ending {
            Ending::Length => "length",
            Ending::Refusal => "content_filter",
            Ending::Novel => "novel_reason",
            _ if self.calls.is_empty() => "stop",
            Ending::Whole | Ending::Pause | Ending::Declined => "tool_calls",
        }
    }

    fn chat_events(&self) -> String {
        let delta = |delta: Value| chat_chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]));
        let mut events = vec![delta(json!({ "role": "assistant", "content": null }))];
        events.extend(self.thinking.map(|thinking| delta(json!({ "reasoning_content": thinking }))));
        let (text, refusal) = self.text_or_refusal();
        events.extend(halves(text.unwrap_or_default()).into_iter().map(|text| delta(json!({ "content": text }))));
        events.extend(halves(refusal.unwrap_or_default()).into_iter().map(|text| delta(json!({ "refusal": text }))));
        for (index, call) in self.calls.iter().enumerate() {
            let mut begun = chat_call(call);
            begun["index"] = json!(index);
            begun["function"]["arguments"] = json!("");
            events.push(delta(json!({ "tool_calls": [begun] })));
            for arguments in halves(call.2) {
                let piece = json!({ "index": index, "function": { "arguments": arguments } });
                events.push(delta(json!({ "tool_calls": [piece] })));
            }
        }
        events.push(chat_chunk(json!([{ "index": 0, "delta": {}, "finish_reason": self.chat_finish() }])));
        let mut usage = chat_chunk(json!([]));
        usage["usage"] = chat_usage();
        events.push(usage);
        events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
    }

    fn items(&self) -> Vec<Value> {
        let reasoning = self
            .thinking
            .map(|thinking| json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": thinking }));
        let message = self.text.map(|text| {
            let content = match self.ending {
                Ending::Declined => json!([{ "type": "refusal", "refusal": text }]),
                _ => json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }]),
            };
            json!({ "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content })
        });
        let last = self.calls.len().saturating_sub(1);
        let calls = self.calls.iter().enumerate().map(|(index, (id, name, arguments))| {
            let is_cut = self.ending == Ending::Length && index == last;
            json!({ "type": "function_call", "id": format!("fc_{index}"), "call_id": id, "name": name,
                    "arguments": arguments, "status": if is_cut { "incomplete" } else { "completed" } })
        });
        reasoning.into_iter().chain(message).chain(calls).collect()
    }

    fn response(&self, output: &[Value]) -> Value {
        let reason = match self.ending {
            Ending::Length => Some("max_output_tokens"),
            Ending::Refusal => Some("content_filter"),
            Ending::Novel => Some("novel_reason"),
            Ending::Whole | Ending::Pause | Ending::Declined => None,
        };
        json!({
            "id": "resp_1", "object": "response", "created_at": 1, "model": "model-7", "error": null, "output": output,
            "status": if reason.is_some() { "incomplete" } else { "completed" },
            "incomplete_details": reason.map(|reason| json!({ "reason": reason })),
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "usage": { "input_tokens": 100, "input_tokens_details": { "cached_tokens": 40 }, "output_tokens": 10,
                       "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 110 },
        })
    }

    fn response_events(&self) -> String {
        let items = self.items();
        let mut events = vec![json!({ "type": "response.created", "response": self.response(&[]) })];
        for (index, item) in items.iter().enumerate() {
            events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
            if item["content"][0]["type"] == "output_text" {
                events.extend(halves(self.text.unwrap_or_default()).into_iter().map(|text| {
                    json!({ "type": "response.output_text.delta", "item_id": "msg_1", "output_index": index,
                            "content_index": 0, "delta": text, "logprobs": [] })
                }));
            }
            events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
        }
        let end =
            if self.response(&[])["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        events.push(json!({ "type": end, "response": self.response(&items) }));
        for (number, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = json!(number);
        }
        named(&events)
    }

    fn blocks(&self, whole: bool) -> Vec<Value> {
        let thinking = self.thinking.map(|text| json!({ "type": "thinking", "thinking": "hm", "signature": text }));
        let text = self.text.map(|text| json!({ "type": "text", "text": text, "citations": null }));
        let calls = self.calls.iter().map(|(id, name, arguments)| {
            let read = || serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
            let input = if whole && !arguments.is_empty() { read() } else { json!({}) };
            json!({ "type": "tool_use", "id": id, "name": name, "input": input, "caller": { "type": "direct" } })
        });
        thinking.into_iter().chain(text).chain(calls).collect()
    }

    fn anthropic_stop(&self) -> &'static str {
        match self.ending {
            Ending::Length => "max_tokens",
            Ending::Refusal | Ending::Declined => "refusal",
            Ending::Novel => "novel_reason",
            Ending::Pause => "pause_turn",
            Ending::Whole if self.calls.is_empty() => "end_turn",
            Ending::Whole => "tool_use",
        }
    }

    fn anthropic_events(&self) -> String {
        let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "model-7", "content": [],
                              "stop_reason": null, "stop_sequence": null, "usage": anthropic_usage(1) });
        let mut events = vec![json!({ "type": "message_start", "message": message }), json!({ "type": "ping" })];
        let mut arguments = self.calls.iter().map(|(_, _, arguments)| *arguments);
        for (index, block) in self.blocks(false).into_iter().enumerate() {
            let mut begun = block.clone();
            let mut deltas = Vec::new();
            match block["type"].as_str().unwrap() {
                "text" => {
                    begun["text"] = json!("");
                    let pieces = halves(self.text.unwrap_or_default()).into_iter();
                    deltas.extend(pieces.map(|text| json!({ "type": "text_delta", "text": text })));
                }
                "thinking" => {
                    begun["thinking"] = json!("");
                    begun["signature"] = json!("");
                    deltas.push(json!({ "type": "thinking_delta", "thinking": block["thinking"] }));
                    deltas.push(json!({ "type": "signature_delta", "signature": block["signature"] }));
                }
                _ => {
                    let pieces = halves(arguments.next().unwrap()).into_iter();
                    deltas.extend(pieces.map(|json| json!({ "type": "input_json_delta", "partial_json": json })));
                }
            }
            events.push(json!({ "type": "content_block_start", "index": index, "content_block": begun }));
            let delta = |delta| json!({ "type": "content_block_delta", "index": index, "delta": delta });
            events.extend(deltas.into_iter().map(delta));
            events.push(json!({ "type": "content_block_stop", "index": index }));
        }
        let stop = json!({ "stop_reason": self.anthropic_stop(), "stop_sequence": null });
        events.push(json!({ "type": "message_delta", "delta": stop, "usage": { "output_tokens": 10 } }));
        events.push(json!({ "type": "message_stop" }));
        named(&events)
    }
}

fn chat_call((id, name, arguments): &(&str, &str, &str)) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn chat_chunk(choices: Value) -> Value {
    json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "model-7", "choices": choices })
}

fn chat_usage() -> Value {
    json!({ "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110,
            "prompt_tokens_details": { "cached_tokens": 40 } })
}

fn anthropic_usage(output: u64) -> Value {
    json!({ "input_tokens": 60, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 0, "output_tokens": output })
}

/// A text in two pieces.
fn halves(text: &str) -> Vec<&str> {
    let middle = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (first, second) = text.split_at(middle);
    [first, second].into_iter().filter(|piece| !piece.is_empty()).collect()
}

fn named(events: &[Value]) -> String {
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect()
}

impl Wire {
    pub const ALL: [Wire; 3] = [Wire::Chat, Wire::Responses, Wire::Anthropic];

    /// As in the settings.
    pub fn provider(self) -> &'static str {
        match self {
            Wire::Chat => "openai",
            Wire::Responses => "openai-responses",
            Wire::Anthropic => "anthropic",
        }
    }

    /// A failure with its status.
    pub fn failure(self, status: u16, message: &str) -> Reply {
        let error = json!({ "type": "some_error", "message": message, "code": null, "param": null });
        let mut body = json!({ "error": error });
        if self == Wire::Anthropic {
            body["type"] = json!("error");
        }
        Reply::json(status, &body)
    }

    /// A failure behind `200 OK`: in the middle of a stream, or as the answer.
    pub fn failure_in_answer(self, stream: bool, kind: &str, message: &str) -> Reply {
        let half = said("Half of").events(self);
        let begun = &half[..half.find("\n\n").unwrap() + 2];
        let error = json!({ "type": kind, "message": message, "code": kind, "param": null });
        let event = match self {
            Wire::Chat => json!({ "error": error }),
            Wire::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": message } }),
            Wire::Responses if stream => {
                json!({ "type": "response.failed", "response": { "status": "failed", "error": error } })
            }
            Wire::Responses => json!({ "status": "failed", "error": error, "output": [] }),
        };
        match stream {
            true => Reply::events(&format!("{begun}data: {event}\n\n"), 13),
            false => Reply::json(200, &event),
        }
    }

    /// The results of tools that a request brings, in order, without the tags that label them as data.
    pub fn results(self, body: &Value) -> Vec<(String, String)> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (field, kind, id, content) = match self {
            Wire::Chat => ("messages", ("role", "tool"), "tool_call_id", "content"),
            Wire::Responses => ("input", ("type", "function_call_output"), "call_id", "output"),
            Wire::Anthropic => ("messages", ("type", "tool_result"), "tool_use_id", "content"),
        };
        let items: Vec<Value> = match self {
            Wire::Anthropic => list(&body[field]).iter().flat_map(|message| list(&message["content"])).collect(),
            Wire::Chat | Wire::Responses => list(&body[field]),
        };
        let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let result = |item: &Value| (text(item, id), without_shape(&text(item, content)));
        items.iter().filter(|item| item[kind.0] == kind.1).map(result).collect()
    }

    /// How much thinking a request asks for.
    pub fn effort(self, body: &Value) -> &Value {
        match self {
            Wire::Chat => &body["reasoning_effort"],
            Wire::Responses => &body["reasoning"]["effort"],
            Wire::Anthropic => &body["output_config"]["effort"],
        }
    }

    /// Whether a request forbids its tools.
    pub fn forbids_tools(self, body: &Value) -> bool {
        let choice = if self == Wire::Anthropic { &body["tool_choice"]["type"] } else { &body["tool_choice"] };
        choice == "none"
    }

    /// The names of a request's fields, apart from those that every request of the wire has.
    pub fn optional_fields(self, body: &Value) -> Vec<String> {
        let always =
            ["model", "messages", "input", "system", "instructions", "store", "include", "tools", "tool_choice"];
        let fields: &Map<String, Value> = body.as_object().expect("an object");
        fields.keys().filter(|name| !always.contains(&name.as_str())).cloned().collect()
    }
}

/// The words before a result of a tool, and the result without its tags; one that has none fails the test.
fn without_tags(text: &str) -> (&str, &str) {
    let parts = text.split_once("<untrusted-").and_then(|(notice, rest)| {
        let (tag, rest) = rest.split_once(" from=\"tool\">\n")?;
        Some((notice, rest.strip_suffix(&format!("\n</untrusted-{tag}>"))?))
    });
    parts.unwrap_or_else(|| panic!("not labelled: {text}"))
}

/// A result out of its tags and of the shape in which it is sent: `{tool, fetched_at, data|error}`.
pub fn without_shape(sent: &str) -> String {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SentEnvelope<'s> {
        #[serde(rename = "tool")]
        _tool: String,
        #[serde(rename = "fetched_at")]
        _fetched_at: chrono::DateTime<chrono::Utc>,
        #[serde(borrow)]
        data: Option<&'s serde_json::value::RawValue>,
        error: Option<String>,
    }
    let (notice, sent) = without_tags(sent);
    let sent: SentEnvelope = serde_json::from_str(sent).unwrap_or_else(|error| panic!("{error}: {sent}"));
    let result = match (sent.data.map(|data| data.get()), sent.error) {
        (Some(data), None) => serde_json::from_str(data).unwrap_or_else(|_| data.to_owned()),
        (None, Some(error)) => error,
        _ => panic!("either data or an error"),
    };
    format!("{notice}{result}")
}

/// A body whose results of tools are out of their shape.
pub fn without_shapes(mut body: Value) -> Value {
    match &mut body {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_shapes(item.take())),
        Value::Object(fields) => {
            let is = |name: &str, word: &str| fields.get(name).is_some_and(|value| value == word);
            let place = match () {
                () if is("role", "tool") || is("type", "tool_result") => "content",
                () if is("type", "function_call_output") => "output",
                () => "",
            };
            for (name, value) in fields.iter_mut() {
                *value = match value.as_str() {
                    Some(sent) if name == place => Value::String(without_shape(sent)),
                    _ => without_shapes(value.take()),
                };
            }
        }
        _ => {}
    }
    body
}
