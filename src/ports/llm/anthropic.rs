//! Anthropic Messages, streamed and not.
//!
//! Source of the shapes: <https://docs.anthropic.com/en/api/messages>.

mod answer;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::base::compute::ComputeTurn;
use crate::domain::run::portable_name;
use crate::domain::run::transcript::{ToolCall, TranscriptMessage};
use crate::ports::llm::anthropic::answer::AnthropicStream;
use crate::ports::llm::portable_calls::portable_calls;
use crate::ports::llm::provider_message::MessageAuthor;
use crate::ports::llm::shown_result::result_text;
use crate::ports::llm::thinking::{PromptCache, ThinkingMode, stable_part};
use crate::ports::llm::wire::{Format, ModelEndpoint, Progress, RequestBody, SseEvent, raw, system};
use crate::ports::llm::{
    LlmError, Model, ModelAnswer, ModelParts, ModelRequest, ModelSettings, OnDelta, StopReason, ToolSchema, wire,
};

const VERSION: &str = "2023-06-01";
/// Format of a kept message's raw text: the blocks of its content.
const WIRE: &str = "anthropic";
/// As often in a row a model may pause in an answer.
const PAUSES: usize = 10;

/// One model behind one key.
#[derive(Clone)]
pub struct Anthropic {
    endpoint: ModelEndpoint,
    settings: ModelSettings,
    author: MessageAuthor,
}

impl Anthropic {
    /// The model with its settings and its key.
    pub fn new(parts: &ModelParts) -> Anthropic {
        let settings = parts.settings;
        Anthropic {
            endpoint: ModelEndpoint::new(parts, "/messages"),
            settings: settings.clone(),
            author: MessageAuthor::new(WIRE, settings),
        }
    }

    /// Asks, and lets the model go on as long as it pauses: what it has written until then goes back as it is.
    async fn ask(
        &self,
        request: &ModelRequest,
        on_delta: Option<OnDelta<'_>>,
        turn: Option<&ComputeTurn>,
    ) -> Result<ModelAnswer, LlmError> {
        let mut answer = wire::ask(self, request, on_delta, turn).await?;
        for _ in 0..PAUSES {
            if answer.stop != StopReason::Paused {
                return Ok(answer);
            }
            let mut request = request.clone();
            request.messages.push(TranscriptMessage::Assistant {
                text: answer.text.clone(),
                tool_calls: answer.tool_calls.clone(),
                provider_message: answer.provider_message.clone(),
                finish: None,
            });
            answer = match wire::ask(self, &request, on_delta, turn).await {
                Ok(more) => self.joined(answer, more),
                Err(error) => return Ok(ModelAnswer::failed(error, answer.tokens)),
            };
        }
        let error = wire::transient(format!("the model has paused {PAUSES} times and has not come to an end"));
        Ok(ModelAnswer::failed(error, answer.tokens))
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
            failure: after.failure,
        };
        match blocks {
            Some(blocks) => self.with_provider_message(blocks, answer),
            None => answer,
        }
    }

    /// How the model is to think. Not within a budget where it goes on behind calls of another model: it would be
    /// refused, because its own thinking does not stand before them.
    fn thinking(&self, messages: &[TranscriptMessage]) -> Option<Value> {
        let last = messages.iter().rfind(|message| !matches!(message, TranscriptMessage::Tool { .. }));
        let is_foreign = last.is_some_and(|message| {
            matches!(message, TranscriptMessage::Assistant { .. }) && self.author.message_of(message).is_none()
        });
        let has_budget = self.settings.thinking == Some(ThinkingMode::Enabled);
        self.settings.anthropic_thinking().filter(|_| !(has_budget && is_foreign))
    }

    /// The answer with its blocks as they are to come back.
    fn with_provider_message(&self, blocks: Vec<Box<RawValue>>, answer: ModelAnswer) -> ModelAnswer {
        let provider_message = self.author.keep(raw(&blocks).to_string(), self.endpoint.key.as_ref());
        ModelAnswer { provider_message, ..answer }
    }
}

impl Format for Anthropic {
    type Gathered = AnthropicStream;

    fn endpoint(&self) -> &ModelEndpoint {
        &self.endpoint
    }

    fn post(&self, client: &reqwest::Client) -> Result<reqwest::RequestBuilder, LlmError> {
        let post = client.post(&self.endpoint.url).header("anthropic-version", VERSION);
        Ok(match &self.endpoint.key {
            Some(key) => post.header("x-api-key", wire::key_header("", key)?),
            None => post,
        })
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
        let tools = request.tools.written(WIRE, tool);
        let choice = tools.is_some().then(|| json!({ "type": request.tool_choice }));
        wire::insert(&mut body, "tool_choice", choice);
        let settings = &self.settings;
        wire::insert(&mut body, "temperature", request.temperature.or(settings.temperature));
        wire::insert(&mut body, "top_p", settings.top_p);
        wire::insert(&mut body, "top_k", settings.top_k);
        wire::insert(&mut body, "thinking", self.thinking(&request.messages));
        wire::insert(&mut body, "output_config", settings.effort.map(|effort| json!({ "effort": effort })));
        wire::insert(&mut body, "stream", stream.then_some(true));
        let portable = portable_calls(&request.messages, &self.author);
        let conversation = messages(&portable, &self.author, marker.as_ref());
        RequestBody { field: "messages", conversation, tools, rest: body }
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
        Ok(self.with_provider_message(content.into_iter().map(acceptable).collect(), gathered.answer()?))
    }

    fn add(gathered: &mut AnthropicStream, event: &SseEvent, on_delta: Option<OnDelta<'_>>) -> Progress {
        gathered.add(&event.data, on_delta)
    }

    fn streamed(&self, gathered: AnthropicStream) -> Option<Result<ModelAnswer, LlmError>> {
        let written = gathered.written();
        gathered.ended.then(|| Ok(self.with_provider_message(written, gathered.answer()?)))
    }
}

fn tool(tool: &ToolSchema) -> Value {
    let name = portable_name(&tool.name);
    json!({ "name": name, "description": tool.description, "input_schema": *tool.parameters })
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
        Box::pin(self.ask(request, on_delta, None))
    }

    fn complete_in_turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
        turn: &'a ComputeTurn,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        Box::pin(self.ask(request, on_delta, Some(turn)))
    }
}

/// Up to the block that carries it, the provider keeps the conversation for the next call; `None`: it is not asked to.
fn cache_marker(cache: PromptCache) -> Option<Value> {
    (cache != PromptCache::Off).then(|| json!({ "type": "ephemeral", "ttl": cache }))
}

/// The system message, behind the tools. The mark stands behind the part of it that all runs of an agent share, so that
/// each run after the first one finds the tools and that part in the cache.
fn system_blocks(text: String, marker: Option<&Value>) -> Value {
    let Some(marker) = marker else { return json!(text) };
    let (stable, of_run) = stable_part(&text);
    let mut blocks = vec![json!({ "type": "text", "text": stable, "cache_control": marker })];
    blocks.extend(of_run.map(|of_run| json!({ "type": "text", "text": of_run })));
    Value::Array(blocks)
}

/// Marks a block of a user. Blocks of a model's own go back as they were, without a mark.
fn mark((role, blocks): &mut (&str, Vec<Box<RawValue>>), block: usize, marker: &Value) {
    let Some(marked) = blocks.get_mut(block).filter(|_| *role == "user") else { return };
    if let Ok(Value::Object(mut block)) = serde_json::from_str(marked.get()) {
        block.insert("cache_control".into(), marker.clone());
        *marked = raw(&block);
    }
}

/// The rest, in blocks. Neighbours of one role are one message: results of one turn must stand together. The last block
/// that the next turn begins with is marked.
fn messages(messages: &[TranscriptMessage], author: &MessageAuthor, marker: Option<&Value>) -> Vec<Box<RawValue>> {
    let mut merged: Vec<(&str, Vec<Box<RawValue>>)> = Vec::new();
    // the message, and the block in it
    let mut last_lasting = None;
    for message in messages {
        let (role, blocks) = blocks(message, author);
        if blocks.is_empty() {
            continue;
        }
        match merged.last_mut() {
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => merged.push((role, blocks)),
        }
        if !message.is_ephemeral() {
            last_lasting = merged.last().map(|(_, blocks)| (merged.len() - 1, blocks.len() - 1));
        }
    }
    if let (Some(marker), Some((message, block))) = (marker, last_lasting) {
        mark(&mut merged[message], block, marker);
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
fn blocks(message: &TranscriptMessage, author: &MessageAuthor) -> (&'static str, Vec<Box<RawValue>>) {
    let kept = author.message_of(message);
    let kept = kept.and_then(|kept| serde_json::from_str::<Vec<Box<RawValue>>>(kept).ok());
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
        | TranscriptMessage::Unusable { .. }
        | TranscriptMessage::Verdict { .. }
        | TranscriptMessage::Compaction(_)
        | TranscriptMessage::Pipeline { .. }
        | TranscriptMessage::Step { .. }
        | TranscriptMessage::StepResult { .. } => ("user", vec![]),
        TranscriptMessage::User { text: said, .. } => ("user", text(said).into_iter().collect()),
        TranscriptMessage::Assistant { text: said, tool_calls, .. } => {
            let said = said.as_deref().and_then(text);
            ("assistant", said.into_iter().chain(tool_calls.iter().map(tool_use)).collect())
        }
        TranscriptMessage::Tool { call_id, name, notices, content, is_error, fetched_at, .. } => {
            let content = result_text(notices, name, *fetched_at, content, *is_error);
            let mut block = json!({ "type": "tool_result", "tool_use_id": call_id, "content": content });
            if *is_error {
                block["is_error"] = json!(true);
            }
            ("user", vec![block])
        }
    }
}

fn tool_use(call: &ToolCall) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": object(&call.args) })
}

/// A block of an answer as the provider takes it back.
fn acceptable(block: Box<RawValue>) -> Box<RawValue> {
    match serde_json::from_str::<Value>(block.get()) {
        Ok(mut call) if call["type"] == "tool_use" && !call["input"].is_object() => {
            call["input"] = object(&call["input"]);
            raw(&call)
        }
        _ => block,
    }
}

/// The API takes objects only; what the model wrote and was no JSON goes back inside one.
fn object(input: &Value) -> Value {
    match input {
        object @ Value::Object(_) => object.clone(),
        other => json!({ "not_an_object": other }),
    }
}
