//! Anthropic Messages, streamed and not.
//!
//! Source of the shapes: <https://docs.anthropic.com/en/api/messages>.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::llm::{LlmError, Model, ModelAnswer, ModelRequest, Offer, OnDelta, StopReason, Tokens, ToolChoice, wire};
use crate::run::transcript::{Message, ToolCall};
use crate::secret::Secret;

pub(super) const DEFAULT_BASE_URL: &str = "https://api.anthropic.com/v1";
const VERSION: &str = "2023-06-01";
/// The API wants a number.
const DEFAULT_MAX_TOKENS: u32 = 8192;

/// One model behind one key.
pub struct Anthropic {
    client: reqwest::Client,
    url: String,
    model: String,
    key: Option<Secret>,
    max_tokens: u32,
    temperature: Option<f64>,
    stream: bool,
}

impl Anthropic {
    pub fn new(offer: &Offer) -> Anthropic {
        let settings = offer.settings;
        let base_url = settings.base_url.as_deref().unwrap_or(DEFAULT_BASE_URL).trim_end_matches('/');
        // Anthropic's own clients leave the version out of the base address; both spellings are known
        let version = if base_url.ends_with("/v1") { "" } else { "/v1" };
        Anthropic {
            client: offer.client.clone(),
            url: format!("{base_url}{version}/messages"),
            model: settings.model.clone(),
            key: offer.key.cloned(),
            max_tokens: settings.max_output_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            temperature: settings.temperature,
            stream: settings.stream,
        }
    }

    fn body(&self, request: &ModelRequest, stream: bool) -> Value {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert("max_tokens".into(), json!(request.max_tokens.unwrap_or(self.max_tokens)));
        if let Some(system) = system(&request.messages) {
            body.insert("system".into(), json!(system));
        }
        body.insert("messages".into(), json!(messages(&request.messages)));
        if !request.tools.is_empty() {
            let tools: Vec<Value> = request
                .tools
                .iter()
                .map(|tool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters }))
                .collect();
            let choice = match request.tool_choice {
                ToolChoice::Auto => "auto",
                ToolChoice::None => "none",
            };
            body.insert("tools".into(), json!(tools));
            body.insert("tool_choice".into(), json!({ "type": choice }));
        }
        if let Some(temperature) = request.temperature.or(self.temperature) {
            body.insert("temperature".into(), json!(temperature));
        }
        if stream {
            body.insert("stream".into(), json!(true));
        }
        Value::Object(body)
    }

    async fn ask(&self, request: &ModelRequest, on_delta: Option<OnDelta<'_>>) -> Result<ModelAnswer, LlmError> {
        let stream = self.stream && on_delta.is_some();
        let mut post = self.client.post(&self.url).header("anthropic-version", VERSION);
        if let Some(key) = &self.key {
            post = post.header("x-api-key", wire::key_header("", key)?);
        }
        let response = wire::send(post.json(&self.body(request, stream)), self.key.as_ref()).await?;
        if stream && wire::is_event_stream(&response) {
            return self.streamed(response, on_delta).await;
        }
        let answer = whole(&wire::json(response, self.key.as_ref()).await?)?;
        if let (Some(on_delta), Some(text)) = (on_delta, &answer.text) {
            on_delta(text);
        }
        Ok(answer)
    }

    async fn streamed(
        &self,
        response: reqwest::Response,
        on_delta: Option<OnDelta<'_>>,
    ) -> Result<ModelAnswer, LlmError> {
        let mut events = wire::events(response, self.key.as_ref());
        let mut gathered = Gathered::default();
        while let Some(event) = events.next().await {
            if gathered.add(&event?, on_delta) == Progress::Ended {
                return gathered.answer();
            }
        }
        Err(wire::transient("the stream ended before the answer did"))
    }
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

/// All system messages; the API has one place for them.
fn system(messages: &[Message]) -> Option<String> {
    let texts = messages.iter().filter_map(|message| match message {
        Message::System { text } => Some(text.as_str()),
        _ => None,
    });
    Some(texts.collect::<Vec<_>>().join("\n\n")).filter(|text| !text.is_empty())
}

/// The rest, in blocks. Neighbours of one role are one message: results of one turn must stand together.
fn messages(messages: &[Message]) -> Vec<Value> {
    let mut merged: Vec<(&str, Vec<Value>)> = Vec::new();
    for (role, blocks) in messages.iter().map(blocks).filter(|(_, blocks)| !blocks.is_empty()) {
        match merged.last_mut() {
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => merged.push((role, blocks)),
        }
    }
    merged.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
}

fn blocks(message: &Message) -> (&'static str, Vec<Value>) {
    // empty text blocks are refused by the API
    let text = |text: &str| (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    match message {
        Message::System { .. } | Message::Pipeline { .. } | Message::Step { .. } | Message::StepResult { .. } => {
            ("user", vec![])
        }
        Message::User { text: said, .. } => ("user", text(said).into_iter().collect()),
        Message::Assistant { text: said, tool_calls } => {
            let said = said.as_deref().and_then(text);
            ("assistant", said.into_iter().chain(tool_calls.iter().map(tool_use)).collect())
        }
        Message::Tool { call_id, content, is_error, .. } => {
            let mut block = json!({ "type": "tool_result", "tool_use_id": call_id, "content": content });
            if *is_error {
                block["is_error"] = json!(true);
            }
            ("user", vec![block])
        }
    }
}

fn tool_use(call: &ToolCall) -> Value {
    // the API takes objects only; what the model wrote and was no JSON goes back inside one
    let input = match &call.arguments {
        object @ Value::Object(_) => object.clone(),
        other => json!({ "not_an_object": other }),
    };
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
}

/// An answer that came in one piece.
fn whole(body: &Value) -> Result<ModelAnswer, LlmError> {
    let blocks = body["content"].as_array().ok_or_else(|| wire::transient("the answer has no content"))?;
    let mut gathered = Gathered::default();
    gathered.usage(&body["usage"]);
    for (index, block) in blocks.iter().enumerate() {
        gathered.begin(index as u64, block);
    }
    gathered.stop_reason = body["stop_reason"].as_str().map(str::to_owned);
    gathered.answer()
}

#[derive(PartialEq)]
enum Progress {
    GoesOn,
    Ended,
}

/// An answer, as far as it has come.
#[derive(Default)]
struct Gathered {
    blocks: BTreeMap<u64, Block>,
    stop_reason: Option<String>,
    tokens: Tokens,
}

enum Block {
    Text(String),
    /// `written` is the input as it was streamed; empty: the input came whole.
    Call {
        id: String,
        name: String,
        input: Value,
        written: String,
    },
    /// Thinking, and what is yet to be invented.
    Other,
}

impl Gathered {
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
            "message_stop" => return Progress::Ended,
            _ => {} // ping, content_block_stop, and what is yet to be invented
        }
        Progress::GoesOn
    }

    fn begin(&mut self, index: u64, block: &Value) {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let begun = match block["type"].as_str() {
            Some("text") => Block::Text(text("text")),
            Some("tool_use") => {
                let input = if block["input"].is_null() { json!({}) } else { block["input"].clone() };
                Block::Call { id: text("id"), name: text("name"), input, written: String::new() }
            }
            _ => Block::Other,
        };
        self.blocks.insert(index, begun);
    }

    fn extend(&mut self, index: u64, delta: &Value, on_delta: Option<OnDelta<'_>>) {
        match self.blocks.get_mut(&index) {
            Some(Block::Text(text)) => {
                let piece = delta["text"].as_str().unwrap_or_default();
                text.push_str(piece);
                if let Some(on_delta) = on_delta.filter(|_| !piece.is_empty()) {
                    on_delta(piece);
                }
            }
            Some(Block::Call { written, .. }) => written.push_str(delta["partial_json"].as_str().unwrap_or_default()),
            Some(Block::Other) | None => {}
        }
    }

    /// The counts are cumulative; what is read from a cache is input, too.
    fn usage(&mut self, usage: &Value) {
        let count = |name: &str| usage[name].as_i64().map(|count| count.max(0));
        if let Some(input) = count("input_tokens") {
            let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"].map(|n| count(n).unwrap_or(0));
            self.tokens.input = input + cached.iter().sum::<i64>();
        }
        if let Some(output) = count("output_tokens") {
            self.tokens.output = output;
        }
    }

    fn answer(self) -> Result<ModelAnswer, LlmError> {
        if self.stop_reason.as_deref() == Some("model_context_window_exceeded") {
            return Err(LlmError::Overflow { message: "the answer did not fit into the context window".into() });
        }
        let (mut text, mut tool_calls) = (String::new(), Vec::new());
        for block in self.blocks.into_values() {
            match block {
                Block::Text(piece) => text.push_str(&piece),
                Block::Call { id, name, input, written } => {
                    let arguments = match written.trim() {
                        "" => input,
                        json => serde_json::from_str(json).unwrap_or(Value::String(written)),
                    };
                    tool_calls.push(ToolCall { id, name, arguments });
                }
                Block::Other => {}
            }
        }
        let stop = match self.stop_reason.as_deref() {
            Some("max_tokens") => StopReason::Length,
            Some("refusal") => StopReason::Refused,
            _ if !tool_calls.is_empty() => StopReason::ToolCalls,
            _ => StopReason::Done,
        };
        let text = Some(text).filter(|text| !text.is_empty());
        Ok(ModelAnswer { text, tool_calls, stop, tokens: self.tokens })
    }
}
