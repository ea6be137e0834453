//! OpenAI-compatible chat completions, streamed and not: OpenAI, Ollama, vLLM, OpenRouter, Azure and many more.
//!
//! Source of the shapes: <https://platform.openai.com/docs/api-reference/chat>.

pub mod embedding;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::base::compute::ComputeTurn;
use crate::domain::run::portable_name;
use crate::domain::run::transcript::{ToolCall, TranscriptMessage};
use crate::ports::llm::portable_calls::portable_calls;
use crate::ports::llm::provider_message::MessageAuthor;
use crate::ports::llm::settings::ModelSettings;
use crate::ports::llm::shown_result::result_text;
use crate::ports::llm::wire::{
    Format, ModelEndpoint, Progress, RequestBody, SseEvent, arguments, raw, written_arguments,
};
use crate::ports::llm::{
    LlmError, Model, ModelAnswer, ModelParts, ModelRequest, ModelTokens, OnDelta, StopReason, ToolSchema,
    provider_message, wire,
};

/// Format of a kept message's raw text: the message of a choice.
const WIRE: &str = "openai";

/// One model behind one key.
#[derive(Clone)]
pub struct OpenAi {
    endpoint: ModelEndpoint,
    settings: ModelSettings,
    author: MessageAuthor,
}

impl OpenAi {
    /// The model with its settings and its key.
    pub fn new(parts: &ModelParts) -> OpenAi {
        let settings = parts.settings;
        OpenAi {
            endpoint: ModelEndpoint::new(parts, "/chat/completions"),
            settings: settings.clone(),
            author: MessageAuthor::new(WIRE, settings),
        }
    }

    /// A message as it is sent. What this model wrote itself goes back as it was, foreign fields included: some models
    /// go on with their calls only when they get their thinking back.
    fn message(&self, message_in: &TranscriptMessage) -> Box<RawValue> {
        let kept = self.author.message_of(message_in).and_then(|kept| RawValue::from_string(kept.to_owned()).ok());
        kept.unwrap_or_else(|| raw(&message(message_in)))
    }

    /// The answer with its message as it is to come back.
    fn keeping(&self, written: Option<String>, answer: ModelAnswer) -> ModelAnswer {
        let provider_message = written.and_then(|raw| self.author.keep(raw, self.endpoint.key.as_ref()));
        ModelAnswer { provider_message, ..answer }
    }
}

impl Format for OpenAi {
    type Gathered = ChatStream;

    fn endpoint(&self) -> &ModelEndpoint {
        &self.endpoint
    }

    fn body(&self, request: &ModelRequest, stream: bool) -> RequestBody {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.settings.model));
        let tools = request.tools.written(WIRE, tool);
        wire::insert(&mut body, "tool_choice", tools.is_some().then_some(request.tool_choice));
        let settings = &self.settings;
        let limit = request.max_tokens.or(settings.max_output_tokens);
        wire::insert(&mut body, settings.sent_max_tokens_field().as_str(), limit);
        wire::insert(&mut body, "temperature", request.temperature.or(settings.temperature));
        wire::insert(&mut body, "top_p", settings.top_p);
        wire::insert(&mut body, "reasoning_effort", settings.effort);
        wire::insert(&mut body, "prompt_cache_key", settings.prompt_cache_key.as_ref());
        wire::insert(&mut body, "stream", stream.then_some(true));
        let usage = (stream && settings.stream_usage).then(|| json!({ "include_usage": true }));
        wire::insert(&mut body, "stream_options", usage);
        let messages = portable_calls(&request.messages, &self.author);
        let said = messages.iter().filter(|message| message.is_conversation());
        let conversation = said.map(|message| self.message(message)).collect();
        RequestBody { field: "messages", conversation, tools, rest: body }
    }

    fn whole(&self, body: &Value, text: &[u8]) -> Result<ModelAnswer, LlmError> {
        Ok(self.keeping(written(text), whole(body)?))
    }

    fn add(gathered: &mut ChatStream, chunk: &SseEvent, on_delta: Option<OnDelta<'_>>) -> Progress {
        gathered.add(&chunk.data, on_delta);
        // the count of tokens comes behind the end of the answer
        Progress::GoesOn
    }

    fn streamed(&self, mut gathered: ChatStream) -> Option<Result<ModelAnswer, LlmError>> {
        gathered.finish_reason.as_ref()?;
        let written = gathered.written();
        Some(gathered.answer().map(|answer| self.keeping(written, answer)))
    }
}

/// The message of an answer that came in one piece, byte for byte; `None`: it does not say whose it is.
fn written(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ChatAnswer {
        choices: Vec<ChatChoice>,
    }
    #[derive(Deserialize)]
    struct ChatChoice {
        message: Box<RawValue>,
    }
    let ChatAnswer { choices } = serde_json::from_slice(text).ok()?;
    let raw = choices.into_iter().next()?.message.to_string();
    let message: Value = serde_json::from_str(&raw).ok()?;
    (message["role"] == "assistant").then_some(raw)
}

impl Model for OpenAi {
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

fn message(message: &TranscriptMessage) -> Value {
    match message {
        TranscriptMessage::System { text, .. } => json!({ "role": "system", "content": text }),
        TranscriptMessage::User { text, .. } => json!({ "role": "user", "content": text }),
        TranscriptMessage::Assistant { text, tool_calls, .. } if tool_calls.is_empty() => {
            json!({ "role": "assistant", "content": text.as_deref().unwrap_or_default() })
        }
        TranscriptMessage::Assistant { text, tool_calls, .. } => {
            let calls: Vec<Value> = tool_calls.iter().map(call).collect();
            json!({ "role": "assistant", "content": text, "tool_calls": calls })
        }
        TranscriptMessage::Tool { call_id, name, notices, content, is_error, fetched_at, .. } => {
            let content = result_text(notices, name, *fetched_at, content, *is_error);
            json!({ "role": "tool", "tool_call_id": call_id, "content": content })
        }
        // no part of a conversation: left out before
        TranscriptMessage::Pipeline { .. }
        | TranscriptMessage::Step { .. }
        | TranscriptMessage::StepResult { .. }
        | TranscriptMessage::Unusable { .. }
        | TranscriptMessage::Verdict { .. }
        | TranscriptMessage::Compaction(_) => Value::Null,
    }
}

fn call(call: &ToolCall) -> Value {
    let arguments = written_arguments(&call.args);
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
}

fn tool(tool: &ToolSchema) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": portable_name(&tool.name), "description": tool.description, "parameters": *tool.parameters,
        },
    })
}

/// An answer that came in one piece.
fn whole(body: &Value) -> Result<ModelAnswer, LlmError> {
    let choice = body["choices"].get(0).ok_or_else(|| wire::transient("the answer has no choices"))?;
    let mut gathered = ChatStream { tokens: tokens(&body["usage"]), ..ChatStream::default() };
    gathered.text.push_str(choice["message"]["content"].as_str().unwrap_or_default());
    gathered.refused = choice["message"]["refusal"].is_string();
    for call in choice["message"]["tool_calls"].as_array().into_iter().flatten() {
        gathered.calls.push(PartialCall::default());
        gathered.calls.last_mut().expect("just pushed").add(call);
    }
    gathered.finish_reason = choice["finish_reason"].as_str().map(str::to_owned);
    gathered.answer()
}

/// An answer, as far as it has come.
#[derive(Default)]
pub struct ChatStream {
    /// All that was streamed of the message.
    message: Map<String, Value>,
    text: String,
    calls: Vec<PartialCall>,
    finish_reason: Option<String>,
    refused: bool,
    tokens: ModelTokens,
}

#[derive(Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl PartialCall {
    fn add(&mut self, delta: &Value) {
        let take = |place: &mut String, value: &Value| place.push_str(value.as_str().unwrap_or_default());
        // id and name come whole, and some servers repeat them in every piece
        if self.id.is_empty() {
            take(&mut self.id, &delta["id"]);
        }
        if self.name.is_empty() {
            take(&mut self.name, &delta["function"]["name"]);
        }
        match &delta["function"]["arguments"] {
            object @ Value::Object(_) => self.arguments = object.to_string(),
            text => take(&mut self.arguments, text),
        }
    }

    fn whole(self) -> ToolCall {
        ToolCall::new(self.id, self.name, arguments(&self.arguments))
    }
}

impl ChatStream {
    fn add(&mut self, chunk: &Value, on_delta: Option<OnDelta<'_>>) {
        if chunk["usage"].is_object() {
            self.tokens = tokens(&chunk["usage"]);
        }
        let Some(choice) = chunk["choices"].get(0) else { return };
        if let Some(piece) = choice["delta"].as_object() {
            provider_message::add(&mut self.message, piece);
        }
        if let Some(text) = choice["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
            self.text.push_str(text);
            if let Some(on_delta) = on_delta {
                on_delta(text);
            }
        }
        self.refused |= choice["delta"]["refusal"].is_string();
        for delta in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            self.call(delta).add(delta);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
    }

    /// The call that a piece belongs to: by its index, or, from servers that send none, a new one with each new id.
    fn call(&mut self, delta: &Value) -> &mut PartialCall {
        let index = delta["index"].as_u64();
        let id = delta["id"].as_str().unwrap_or_default();
        let known = match index {
            Some(_) => self.calls.iter().position(|call| call.index == index),
            None if id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().position(|call| call.id == id),
        };
        let place = known.unwrap_or_else(|| {
            self.calls.push(PartialCall { index, ..PartialCall::default() });
            self.calls.len() - 1
        });
        &mut self.calls[place]
    }

    /// The message as it would have come in one piece.
    fn written(&mut self) -> Option<String> {
        let mut message = std::mem::take(&mut self.message);
        if message.is_empty() {
            return None;
        }
        message.insert("role".into(), json!("assistant"));
        message.entry("content").or_insert(Value::Null);
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
            // it orders the pieces, and is no part of a whole message
            call.remove("index");
            call.entry("type").or_insert(json!("function"));
        }
        Some(Value::Object(message).to_string())
    }

    fn answer(self) -> Result<ModelAnswer, LlmError> {
        let mut tool_calls: Vec<ToolCall> = self.calls.into_iter().map(PartialCall::whole).collect();
        let stop = match self.refused {
            true => Ok(StopReason::Refused),
            false => stop_reason(self.finish_reason.as_deref(), !tool_calls.is_empty()),
        };
        let stop = match stop {
            Ok(stop) => stop,
            Err(error) => return Ok(ModelAnswer::failed(error, self.tokens)),
        };
        if let (StopReason::Length, Some(last)) = (stop, tool_calls.last_mut()) {
            last.truncated = true;
        }
        let text = Some(self.text).filter(|text| !text.is_empty());
        Ok(ModelAnswer { text, tool_calls, stop, tokens: self.tokens, provider_message: None, failure: None })
    }
}

/// Servers that speak this format have words of their own for the end of an answer, and some say `stop` though there
/// are calls.
fn stop_reason(finish: Option<&str>, has_calls: bool) -> Result<StopReason, LlmError> {
    const LENGTH: [&str; 3] = ["length", "max_tokens", "model_length"];
    const ENDS: [&str; 9] =
        ["", "stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence", "eos", "complete"];
    let finish = finish.unwrap_or_default();
    match finish.to_lowercase().as_str() {
        "content_filter" => Ok(StopReason::Refused),
        word if LENGTH.contains(&word) => Ok(StopReason::Length),
        word if ENDS.contains(&word) && has_calls => Ok(StopReason::ToolCalls),
        word if ENDS.contains(&word) => Ok(StopReason::Done),
        _ => Err(wire::unknown_stop(finish)),
    }
}

fn tokens(usage: &Value) -> ModelTokens {
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_i64).map(|count| count.max(0));
    // DeepSeek counts what its cache held beside the rest
    let cache_read = count("/prompt_tokens_details/cached_tokens").or_else(|| count("/prompt_cache_hit_tokens"));
    ModelTokens {
        input: count("/prompt_tokens").unwrap_or_default(),
        output: count("/completion_tokens").unwrap_or_default(),
        cache_read: cache_read.unwrap_or_default(),
        cache_write: count("/prompt_tokens_details/cache_write_tokens").unwrap_or_default(),
        reasoning: count("/completion_tokens_details/reasoning_tokens").unwrap_or_default(),
    }
}
