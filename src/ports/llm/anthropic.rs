//! Anthropic Messages, streamed and not.
//!
//! Source of the shapes: <https://docs.anthropic.com/en/api/messages>.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::base::secret::Secret;
use crate::domain::run::transcript::{ToolCall, TranscriptMessage};
use crate::ports::llm::thinking::PromptCache;
use crate::ports::llm::wire::{Format, Progress, RequestBody, SseEvent, raw, system};
use crate::ports::llm::{
    LlmError, Model, ModelAnswer, ModelRequest, ModelSettings, ModelTokens, OnDelta, StopReason, ToolOffer,
    provider_message, wire,
};

pub(super) const DEFAULT_BASE_URL: &str = "https://api.anthropic.com/v1";
const VERSION: &str = "2023-06-01";
/// Format of a kept message's raw text: the blocks of its content.
const WIRE: &str = "anthropic";
/// As often in a row a model may pause in an answer.
const PAUSES: usize = 10;

/// One model behind one key.
pub struct Anthropic {
    client: reqwest::Client,
    url: String,
    key: Option<Secret>,
    settings: ModelSettings,
}

impl Anthropic {
    /// The model with its settings and its key.
    pub fn new(offer: &ToolOffer) -> Anthropic {
        let settings = offer.settings;
        let base_url = settings.base_url.as_deref().unwrap_or(DEFAULT_BASE_URL).trim_end_matches('/');
        // Anthropic's own clients leave the version out of the base address; both spellings are known
        let version = if base_url.ends_with("/v1") { "" } else { "/v1" };
        Anthropic {
            client: offer.client.clone(),
            url: format!("{base_url}{version}/messages"),
            key: offer.key.cloned(),
            settings: settings.clone(),
        }
    }

    /// Asks, and lets the model go on as long as it pauses: what it has written until then goes back as it is.
    async fn ask(&self, request: &ModelRequest, on_delta: Option<OnDelta<'_>>) -> Result<ModelAnswer, LlmError> {
        let mut answer = wire::ask(self, request, on_delta).await?;
        for _ in 0..PAUSES {
            if answer.stop != StopReason::Paused {
                return Ok(answer);
            }
            let mut request = request.clone();
            request.messages.push(TranscriptMessage::Assistant {
                text: answer.text.clone(),
                tool_calls: answer.tool_calls.clone(),
                provider_message: answer.provider_message.clone(),
            });
            let more = wire::ask(self, &request, on_delta).await?;
            answer = self.joined(answer, more);
        }
        Err(wire::transient(format!("the model has paused {PAUSES} times and has not come to an end")))
    }

    /// One answer of what the model wrote before and after a pause.
    fn joined(&self, before: ModelAnswer, after: ModelAnswer) -> ModelAnswer {
        let kept = |answer: &ModelAnswer| -> Option<Vec<Box<RawValue>>> {
            serde_json::from_str(&answer.provider_message.as_ref()?.raw).ok()
        };
        let blocks = kept(&before).zip(kept(&after)).map(|(before, after)| [before, after].concat());
        let text = before.text.unwrap_or_default() + after.text.as_deref().unwrap_or_default();
        let answer = ModelAnswer {
            text: Some(text).filter(|text| !text.is_empty()),
            tool_calls: [before.tool_calls, after.tool_calls].concat(),
            stop: after.stop,
            tokens: before.tokens + after.tokens,
            provider_message: None,
        };
        match blocks {
            Some(blocks) => self.with_provider_message(blocks, answer),
            None => answer,
        }
    }

    /// The answer with its blocks as they are to come back.
    fn with_provider_message(&self, blocks: Vec<Box<RawValue>>, answer: ModelAnswer) -> ModelAnswer {
        let provider_message =
            provider_message::new(WIRE, &self.settings.model, raw(&blocks).to_string(), self.key.as_ref());
        ModelAnswer { provider_message, ..answer }
    }
}

impl Format for Anthropic {
    type Gathered = AnthropicStream;

    fn post(&self) -> Result<reqwest::RequestBuilder, LlmError> {
        let post = self.client.post(&self.url).header("anthropic-version", VERSION);
        Ok(match &self.key {
            Some(key) => post.header("x-api-key", wire::key_header("", key)?),
            None => post,
        })
    }

    fn key(&self) -> Option<&Secret> {
        self.key.as_ref()
    }

    fn streams(&self) -> bool {
        self.settings.stream
    }

    fn body(&self, request: &ModelRequest, stream: bool) -> RequestBody {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.settings.model));
        body.insert("max_tokens".into(), json!(request.max_tokens.unwrap_or(self.settings.most_output_tokens())));
        let marker = cache_marker(self.settings.prompt_cache);
        wire::insert(
            &mut body,
            "system",
            system(&request.messages).map(|system| system_blocks(system, marker.as_ref())),
        );
        if !request.tools.is_empty() {
            let tools: Vec<Value> = request
                .tools
                .iter()
                .map(|tool| json!({ "name": tool.name, "description": tool.description, "input_schema": *tool.parameters }))
                .collect();
            body.insert("tools".into(), json!(tools));
            body.insert("tool_choice".into(), json!({ "type": request.tool_choice }));
        }
        let settings = &self.settings;
        wire::insert(&mut body, "temperature", request.temperature.or(settings.temperature));
        wire::insert(&mut body, "top_p", settings.top_p);
        wire::insert(&mut body, "top_k", settings.top_k);
        wire::insert(&mut body, "thinking", settings.anthropic_thinking());
        wire::insert(&mut body, "output_config", settings.effort.map(|effort| json!({ "effort": effort })));
        wire::insert(&mut body, "stream", stream.then_some(true));
        let conversation = messages(&request.messages, &settings.model, marker.as_ref());
        RequestBody { field: "messages", conversation, rest: body }
    }

    fn whole(&self, body: &Value, text: &[u8]) -> Result<ModelAnswer, LlmError> {
        let blocks = body["content"].as_array().ok_or_else(|| wire::transient("the answer has no content"))?;
        let mut gathered = AnthropicStream::default();
        gathered.usage(&body["usage"]);
        for (index, block) in blocks.iter().enumerate() {
            gathered.begin(index as u64, block);
        }
        gathered.stop_reason = body["stop_reason"].as_str().map(str::to_owned);
        let AnthropicAnswer { content } =
            serde_json::from_slice(text).map_err(|error| wire::transient(error.to_string()))?;
        Ok(self.with_provider_message(content, gathered.answer()?))
    }

    fn add(gathered: &mut AnthropicStream, event: &SseEvent, on_delta: Option<OnDelta<'_>>) -> Progress {
        gathered.add(&event.data, on_delta)
    }

    fn streamed(&self, gathered: AnthropicStream) -> Option<Result<ModelAnswer, LlmError>> {
        let written = gathered.written();
        gathered.ended.then(|| Ok(self.with_provider_message(written, gathered.answer()?)))
    }
}

/// The blocks of an answer, byte for byte.
#[derive(Deserialize)]
struct AnthropicAnswer {
    content: Vec<Box<RawValue>>,
}

impl Model for Anthropic {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        Box::pin(self.ask(request, on_delta))
    }
}

/// Up to the block that carries it, the provider keeps the conversation for the next call; `None`: it is not asked to.
fn cache_marker(cache: PromptCache) -> Option<Value> {
    (cache != PromptCache::Off).then(|| json!({ "type": "ephemeral", "ttl": cache }))
}

/// The system message, behind the tools: with them it is the same in all turns of a run.
fn system_blocks(text: String, marker: Option<&Value>) -> Value {
    match marker {
        Some(marker) => json!([{ "type": "text", "text": text, "cache_control": marker }]),
        None => json!(text),
    }
}

/// Marks the last block of a conversation, which the next turn begins with. Blocks of a model's own go back as they
/// were, without a mark.
fn mark_last(merged: &mut [(&str, Vec<Box<RawValue>>)], marker: &Value) {
    let Some((role, blocks)) = merged.last_mut() else { return };
    let Some(last) = blocks.last_mut().filter(|_| *role == "user") else { return };
    if let Ok(Value::Object(mut block)) = serde_json::from_str(last.get()) {
        block.insert("cache_control".into(), marker.clone());
        *last = raw(&block);
    }
}

/// The rest, in blocks. Neighbours of one role are one message: results of one turn must stand together.
fn messages(messages: &[TranscriptMessage], model: &str, marker: Option<&Value>) -> Vec<Box<RawValue>> {
    let mut merged: Vec<(&str, Vec<Box<RawValue>>)> = Vec::new();
    let said = messages.iter().map(|message| blocks(message, model));
    for (role, blocks) in said.filter(|(_, blocks)| !blocks.is_empty()) {
        match merged.last_mut() {
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => merged.push((role, blocks)),
        }
    }
    if let Some(marker) = marker {
        mark_last(&mut merged, marker);
    }
    merged.into_iter().map(|(role, content)| raw(&AnthropicMessage { role, content })).collect()
}

#[derive(Serialize)]
struct AnthropicMessage<'a> {
    role: &'a str,
    content: Vec<Box<RawValue>>,
}

/// A message in blocks. What this model wrote itself goes back as it was: its thinking is signed, and the order of its
/// blocks is part of it.
fn blocks(message: &TranscriptMessage, model: &str) -> (&'static str, Vec<Box<RawValue>>) {
    let kept = provider_message::message_of(message, WIRE, model)
        .and_then(|kept| serde_json::from_str::<Vec<Box<RawValue>>>(kept).ok());
    if let Some(kept) = kept {
        return ("assistant", kept.into_iter().filter(|block| !is_empty_text(block)).collect());
    }
    let (role, blocks) = own_blocks(message);
    (role, blocks.iter().map(raw).collect())
}

/// The API writes empty text blocks and refuses them.
fn is_empty_text(block: &RawValue) -> bool {
    let read: Result<Value, _> = serde_json::from_str(block.get());
    read.is_ok_and(|block| block["type"] == "text" && block["text"].as_str().is_none_or(|text| text.trim().is_empty()))
}

fn own_blocks(message: &TranscriptMessage) -> (&'static str, Vec<Value>) {
    // empty text blocks are refused by the API
    let text = |text: &str| (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    match message {
        TranscriptMessage::System { .. }
        | TranscriptMessage::Pipeline { .. }
        | TranscriptMessage::Step { .. }
        | TranscriptMessage::StepResult { .. } => ("user", vec![]),
        TranscriptMessage::User { text: said, .. } => ("user", text(said).into_iter().collect()),
        TranscriptMessage::Assistant { text: said, tool_calls, .. } => {
            let said = said.as_deref().and_then(text);
            ("assistant", said.into_iter().chain(tool_calls.iter().map(tool_use)).collect())
        }
        TranscriptMessage::Tool { call_id, content, is_error, .. } => {
            let mut block = json!({ "type": "tool_result", "tool_use_id": call_id, "content": content });
            if *is_error {
                block["is_error"] = json!(true);
            }
            ("user", vec![block])
        }
    }
}

fn tool_use(call: &ToolCall) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": object(&call.arguments) })
}

/// The API takes objects only; what the model wrote and was no JSON goes back inside one.
fn object(input: &Value) -> Value {
    match input {
        object @ Value::Object(_) => object.clone(),
        other => json!({ "not_an_object": other }),
    }
}

/// An answer, as far as it has come.
#[derive(Default)]
pub struct AnthropicStream {
    blocks: BTreeMap<u64, Block>,
    stop_reason: Option<String>,
    tokens: ModelTokens,
    /// Tokens of the input that no cache has had part in.
    uncached: i64,
    /// The stream has said that it is all.
    ended: bool,
}

/// Text, a call, thinking, or what is yet to be invented.
struct Block {
    fields: Map<String, Value>,
    /// The input of a call as it was streamed; empty: the input came whole.
    written: String,
}

impl Block {
    fn is(&self, kind: &str) -> bool {
        self.fields.get("type").is_some_and(|value| value == kind)
    }

    fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Adds a piece: fields of texts go on, whichever they are; the two whose pieces have names of their own are known.
    fn add(&mut self, delta: &Map<String, Value>) {
        for (name, value) in delta {
            match (name.as_str(), value) {
                ("type", _) => {}
                ("partial_json", piece) => self.written.push_str(piece.as_str().unwrap_or_default()),
                ("citation", citation) => {
                    let place = self.fields.entry("citations").or_insert(Value::Null);
                    match place {
                        Value::Array(citations) => citations.push(citation.clone()),
                        place => *place = json!([citation]),
                    }
                }
                (name, value) => match (self.fields.get_mut(name), value) {
                    (Some(Value::String(text)), Value::String(piece)) => text.push_str(piece),
                    _ => drop(self.fields.insert(name.to_owned(), value.clone())),
                },
            }
        }
    }

    /// The arguments of a call; a text that is no JSON stays text, which no tool's schema accepts.
    fn input(&self) -> Value {
        let whole = || self.fields.get("input").filter(|input| !input.is_null()).cloned();
        match self.written.trim() {
            "" => whole().unwrap_or_else(|| json!({})),
            json => serde_json::from_str(json).unwrap_or_else(|_| Value::String(self.written.clone())),
        }
    }

    fn call(&self) -> ToolCall {
        ToolCall::new(self.text("id").to_owned(), self.text("name").to_owned(), self.input())
    }

    /// The block as it would have come in one piece.
    fn whole(&self) -> Box<RawValue> {
        let mut fields: BTreeMap<&str, Box<RawValue>> =
            self.fields.iter().map(|(name, value)| (name.as_str(), raw(value))).collect();
        if !self.written.trim().is_empty() {
            let written = serde_json::from_str(&self.written).ok().filter(|_| self.input().is_object());
            fields.insert("input", written.unwrap_or_else(|| raw(&object(&self.input()))));
        }
        raw(&fields)
    }
}

impl AnthropicStream {
    fn add(&mut self, event: &Value, on_delta: Option<OnDelta<'_>>) -> Progress {
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.usage(&event["message"]["usage"]),
            "content_block_start" => self.begin(index, &event["content_block"]),
            "content_block_delta" => self.extend(index, &event["delta"], on_delta),
            "message_delta" => {
                self.usage(&event["usage"]);
                self.stop_reason = event["delta"]["stop_reason"].as_str().map(str::to_owned);
            }
            "message_stop" => {
                self.ended = true;
                return Progress::Ended;
            }
            _ => {} // ping, content_block_stop, and what is yet to be invented
        }
        Progress::GoesOn
    }

    fn begin(&mut self, index: u64, block: &Value) {
        let fields = block.as_object().cloned().unwrap_or_default();
        self.blocks.insert(index, Block { fields, written: String::new() });
    }

    fn extend(&mut self, index: u64, delta: &Value, on_delta: Option<OnDelta<'_>>) {
        let (Some(block), Some(piece)) = (self.blocks.get_mut(&index), delta.as_object()) else { return };
        block.add(piece);
        let text = delta["text"].as_str().filter(|text| block.is("text") && !text.is_empty());
        if let (Some(on_delta), Some(text)) = (on_delta, text) {
            on_delta(text);
        }
    }

    /// Takes the counts of an event. They are cumulative, and an event names those that it knows.
    fn usage(&mut self, usage: &Value) {
        let update = |place: &mut i64, pointer: &str| {
            if let Some(count) = usage.pointer(pointer).and_then(Value::as_i64) {
                *place = count.max(0);
            }
        };
        update(&mut self.uncached, "/input_tokens");
        update(&mut self.tokens.cache_write, "/cache_creation_input_tokens");
        update(&mut self.tokens.cache_read, "/cache_read_input_tokens");
        update(&mut self.tokens.output, "/output_tokens");
        update(&mut self.tokens.reasoning, "/output_tokens_details/thinking_tokens");
        // what the cache holds is input, too
        self.tokens.input = self.uncached + self.tokens.cache_write + self.tokens.cache_read;
    }

    /// The blocks as they would have come in one piece.
    fn written(&self) -> Vec<Box<RawValue>> {
        self.blocks.values().map(Block::whole).collect()
    }

    fn answer(self) -> Result<ModelAnswer, LlmError> {
        if self.stop_reason.as_deref() == Some("model_context_window_exceeded") {
            return Err(LlmError::Overflow { message: "the answer did not fit into the context window".into() });
        }
        let text: String =
            self.blocks.values().filter(|block| block.is("text")).map(|block| block.text("text")).collect();
        let mut tool_calls: Vec<ToolCall> =
            self.blocks.values().filter(|block| block.is("tool_use")).map(Block::call).collect();
        let stop = stop_reason(self.stop_reason.as_deref(), !tool_calls.is_empty())?;
        let ends_with_a_call = self.blocks.values().next_back().is_some_and(|last| last.is("tool_use"));
        if let (StopReason::Length, true, Some(last)) = (stop, ends_with_a_call, tool_calls.last_mut()) {
            last.truncated = true;
        }
        let text = Some(text).filter(|text| !text.is_empty());
        Ok(ModelAnswer { text, tool_calls, stop, tokens: self.tokens, provider_message: None })
    }
}

/// Some servers that speak this format say `end_turn` though there are calls.
fn stop_reason(reason: Option<&str>, has_calls: bool) -> Result<StopReason, LlmError> {
    match reason {
        Some("max_tokens") => Ok(StopReason::Length),
        Some("refusal") => Ok(StopReason::Refused),
        Some("pause_turn") => Ok(StopReason::Paused),
        None | Some("end_turn" | "stop_sequence" | "tool_use") => match has_calls {
            true => Ok(StopReason::ToolCalls),
            false => Ok(StopReason::Done),
        },
        Some(other) => Err(wire::unknown_stop(other)),
    }
}
