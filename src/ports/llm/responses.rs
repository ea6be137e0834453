//! The Responses API, streamed and not: OpenAI, and all servers that speak Open Responses.
//!
//! Source of the shapes: <https://platform.openai.com/docs/api-reference/responses>, <https://www.openresponses.org>.
//! Nothing is kept at the provider: each request brings the whole conversation along, reasoning included.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::base::compute::ComputeTurn;
use crate::domain::run::portable_name;
use crate::domain::run::transcript::{ToolCall, TranscriptMessage};
use crate::ports::llm::portable_calls::portable_calls;
use crate::ports::llm::provider_message::MessageAuthor;
use crate::ports::llm::shown_result::result_text;
use crate::ports::llm::thinking::ThinkingMode;
use crate::ports::llm::wire::{
    Format, ModelEndpoint, Progress, RequestBody, SseEvent, arguments, raw, system, written_arguments,
};
use crate::ports::llm::{
    LlmError, Model, ModelAnswer, ModelParts, ModelRequest, ModelSettings, ModelTokens, OnDelta, StopReason,
    ToolSchema, failure, wire,
};

/// Format of a kept message's raw text: the items of an output.
const WIRE: &str = "openai-responses";
/// The least that the API takes as the longest answer, in tokens.
const LEAST_OUTPUT: u32 = 16;

/// One model behind one key.
#[derive(Clone)]
pub struct Responses {
    endpoint: ModelEndpoint,
    settings: ModelSettings,
    author: MessageAuthor,
}

impl Responses {
    /// The model with its settings and its key.
    pub fn new(parts: &ModelParts) -> Responses {
        let settings = parts.settings;
        Responses {
            endpoint: ModelEndpoint::new(parts, "/responses"),
            settings: settings.clone(),
            author: MessageAuthor::new(WIRE, settings),
        }
    }

    /// The items of a message. What this model wrote itself goes back as it was: its reasoning is encrypted, and stands
    /// before the calls that it led to.
    fn items(&self, message: &TranscriptMessage) -> Vec<Box<RawValue>> {
        let kept = self.author.message_of(message);
        let kept = kept.and_then(|kept| serde_json::from_str::<Vec<Box<RawValue>>>(kept).ok());
        match kept {
            Some(kept) => kept.into_iter().filter(|item| !is_empty_reasoning(item)).collect(),
            None => own_items(message).iter().map(raw).collect(),
        }
    }

    /// The answer with its items as they are to come back.
    fn with_provider_message(&self, items: &[Box<RawValue>], answer: ModelAnswer) -> ModelAnswer {
        let provider_message = self.author.keep(raw(&items).to_string(), self.endpoint.key.as_ref());
        ModelAnswer { provider_message, ..answer }
    }

    /// Reads a response with the items that came with it, or before it.
    fn read(&self, response: &Value, items: Vec<Box<RawValue>>) -> Result<ModelAnswer, LlmError> {
        if !response["error"].is_null() {
            return Err(failure::stated_error(response, self.endpoint.key.as_ref()));
        }
        let read = items.iter().map(|item| serde_json::from_str(item.get())).collect::<Result<Vec<Value>, _>>();
        let read = read.map_err(|error| wire::transient(format!("an item of the answer is no JSON: {error}")))?;
        Ok(self.with_provider_message(&items, answer(response, &read)?))
    }
}

impl Format for Responses {
    type Gathered = ResponseStream;

    fn endpoint(&self) -> &ModelEndpoint {
        &self.endpoint
    }

    fn body(&self, request: &ModelRequest, stream: bool) -> RequestBody {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.settings.model));
        body.insert("store".into(), json!(false));
        if self.settings.thinking != Some(ThinkingMode::Disabled) {
            body.insert("include".into(), json!(["reasoning.encrypted_content"]));
        }
        if let Some(system) = system(&request.messages) {
            body.insert("instructions".into(), json!(system));
        }
        let tools = request.tools.written(WIRE, tool);
        wire::insert(&mut body, "tool_choice", tools.is_some().then_some(request.tool_choice));
        let settings = &self.settings;
        let limit = request.max_tokens.or(settings.max_output_tokens).map(|limit| limit.max(LEAST_OUTPUT));
        wire::insert(&mut body, "max_output_tokens", limit);
        wire::insert(&mut body, "temperature", request.temperature.or(settings.temperature));
        wire::insert(&mut body, "top_p", settings.top_p);
        wire::insert(&mut body, "reasoning", settings.effort.map(|effort| json!({ "effort": effort })));
        wire::insert(&mut body, "prompt_cache_key", settings.prompt_cache_key.as_ref());
        wire::insert(&mut body, "stream", stream.then_some(true));
        let messages = portable_calls(&request.messages, &self.author);
        let conversation = messages.iter().flat_map(|message| self.items(message)).collect();
        RequestBody { field: "input", conversation, tools, rest: body }
    }

    fn whole(&self, body: &Value, text: &[u8]) -> Result<ModelAnswer, LlmError> {
        let ResponseOutput { output } =
            serde_json::from_slice(text).map_err(|_| wire::transient("the answer has no output"))?;
        self.read(body, output)
    }

    fn add(gathered: &mut ResponseStream, event: &SseEvent, on_delta: Option<OnDelta<'_>>) -> Progress {
        gathered.add(event, on_delta)
    }

    fn streamed(&self, gathered: ResponseStream) -> Option<Result<ModelAnswer, LlmError>> {
        if let Some(error) = gathered.error {
            return Some(Err(failure::stated_error(&error, self.endpoint.key.as_ref())));
        }
        let response = gathered.response?;
        let items = match gathered.items.is_empty() {
            // some servers tell of items at the end alone
            true => response["output"].as_array().into_iter().flatten().map(raw).collect(),
            false => gathered.items.into_values().collect(),
        };
        Some(self.read(&response, items))
    }
}

/// The items of an answer, byte for byte.
#[derive(Deserialize)]
struct ResponseOutput {
    output: Vec<Box<RawValue>>,
}

impl Model for Responses {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        Box::pin(wire::ask(self, request, on_delta, None))
    }

    fn complete_in_turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
        turn: &'a ComputeTurn,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        Box::pin(wire::ask(self, request, on_delta, Some(turn)))
    }
}

/// Reasoning that the provider keeps to itself: it can't be found again, and is refused.
fn is_empty_reasoning(item: &RawValue) -> bool {
    let read: Value = serde_json::from_str(item.get()).unwrap_or_default();
    let has_content = read["content"].as_array().is_some_and(|content| !content.is_empty());
    read["type"] == "reasoning" && !read["encrypted_content"].is_string() && !has_content
}

/// A message in items of our own words. The system message stands elsewhere.
fn own_items(message: &TranscriptMessage) -> Vec<Value> {
    match message {
        TranscriptMessage::User { text, .. } => vec![json!({ "type": "message", "role": "user", "content": text })],
        TranscriptMessage::Assistant { text, tool_calls, .. } => {
            let said = text.as_deref().filter(|text| !text.is_empty()).map(|text| {
                let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
                json!({ "type": "message", "role": "assistant", "content": content })
            });
            said.into_iter().chain(tool_calls.iter().map(call)).collect()
        }
        TranscriptMessage::Tool { call_id, name, notices, content, is_error, fetched_at, .. } => {
            let content = result_text(notices, name, *fetched_at, content, *is_error);
            vec![json!({ "type": "function_call_output", "call_id": call_id, "output": content })]
        }
        TranscriptMessage::System { .. }
        | TranscriptMessage::Unusable { .. }
        | TranscriptMessage::Verdict { .. }
        | TranscriptMessage::Compaction(_)
        | TranscriptMessage::Pipeline { .. }
        | TranscriptMessage::Step { .. }
        | TranscriptMessage::StepResult { .. } => vec![],
    }
}

fn call(call: &ToolCall) -> Value {
    json!({
        "type": "function_call", "call_id": call.id, "name": call.name,
        "arguments": written_arguments(&call.args),
    })
}

fn tool(tool: &ToolSchema) -> Value {
    // strict schemas may have no optional fields; ours may
    json!({
        "type": "function", "name": portable_name(&tool.name), "description": tool.description,
        "parameters": *tool.parameters, "strict": false,
    })
}

/// An answer, as far as it has come.
#[derive(Default)]
pub struct ResponseStream {
    /// Items that are whole, by their place.
    items: BTreeMap<u64, Box<RawValue>>,
    /// The response as it stands at its end.
    response: Option<Value>,
    /// The event that has broken it off.
    error: Option<Value>,
}

impl ResponseStream {
    fn add(&mut self, event: &SseEvent, on_delta: Option<OnDelta<'_>>) -> Progress {
        let data = &event.data;
        match data["type"].as_str().unwrap_or_default() {
            "response.output_text.delta" => {
                let text = data["delta"].as_str().filter(|text| !text.is_empty());
                if let (Some(on_delta), Some(text)) = (on_delta, text) {
                    on_delta(text);
                }
            }
            "response.output_item.done" => {
                if let Ok(DoneItem { output_index, item }) = serde_json::from_str(&event.text) {
                    self.items.insert(output_index, item);
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.response = Some(data["response"].clone());
                return Progress::Ended;
            }
            "error" => {
                // OpenAI's own has its fields in the event itself
                self.error = Some(json!({ "error": data }));
                return Progress::Ended;
            }
            _ => {} // pieces of items, which come whole, and what is yet to be invented
        }
        Progress::GoesOn
    }
}

/// An item as it was written.
#[derive(Deserialize)]
struct DoneItem {
    output_index: u64,
    item: Box<RawValue>,
}

fn answer(response: &Value, items: &[Value]) -> Result<ModelAnswer, LlmError> {
    let of_type = |kind: &'static str| items.iter().filter(move |item| item["type"] == kind);
    let mut tool_calls: Vec<ToolCall> = of_type("function_call").map(read_call).collect();
    let messages: Vec<&Value> = of_type("message").collect();
    let tokens = tokens(&response["usage"]);
    let stop = match stop_reason(response, &messages, !tool_calls.is_empty()) {
        Ok(stop) => stop,
        Err(error) => return Ok(ModelAnswer::failed(error, tokens)),
    };
    let ends_with_a_call =
        items.last().is_some_and(|last| last["type"] == "function_call" && last["status"] != "completed");
    if let (StopReason::Length, true, Some(last)) = (stop, ends_with_a_call, tool_calls.last_mut()) {
        last.truncated = true;
    }
    Ok(ModelAnswer { text: text(&messages), tool_calls, stop, tokens, provider_message: None, failure: None })
}

fn read_call(item: &Value) -> ToolCall {
    let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let truncated = item["status"] == "incomplete";
    ToolCall { truncated, ..ToolCall::new(text("call_id"), text("name"), arguments(&text("arguments"))) }
}

/// The parts of messages: texts, or refusals.
fn parts<'a>(messages: &'a [&Value], kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let parts = messages.iter().flat_map(|message| message["content"].as_array().into_iter().flatten());
    parts.filter(move |part| part["type"] == kind)
}

/// The text of the final answer; of remarks on the way where there is none.
fn text(messages: &[&Value]) -> Option<String> {
    let last: Vec<&Value> = messages.iter().copied().filter(|message| message["phase"] == "final_answer").collect();
    let spoken = if last.is_empty() { messages } else { &last };
    let text: String = parts(spoken, "output_text").filter_map(|part| part["text"].as_str()).collect();
    Some(text).filter(|text| !text.is_empty())
}

fn stop_reason(response: &Value, messages: &[&Value], calls: bool) -> Result<StopReason, LlmError> {
    let status = response["status"].as_str().unwrap_or_default();
    let reason = response["incomplete_details"]["reason"].as_str().unwrap_or_default();
    match (status, reason) {
        ("incomplete", "max_output_tokens") => Ok(StopReason::Length),
        ("incomplete", "content_filter") => Ok(StopReason::Refused),
        ("incomplete", other) => Err(wire::unknown_stop(other)),
        ("completed" | "", _) if parts(messages, "refusal").next().is_some() => Ok(StopReason::Refused),
        ("completed" | "", _) if calls => Ok(StopReason::ToolCalls),
        ("completed" | "", _) => Ok(StopReason::Done),
        (other, _) => Err(wire::unknown_stop(other)),
    }
}

fn tokens(usage: &Value) -> ModelTokens {
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_i64).unwrap_or_default().max(0);
    ModelTokens {
        input: count("/input_tokens"),
        output: count("/output_tokens"),
        cache_read: count("/input_tokens_details/cached_tokens"),
        cache_write: count("/input_tokens_details/cache_write_tokens"),
        reasoning: count("/output_tokens_details/reasoning_tokens"),
    }
}
