//! Answers of Anthropic Messages: blocks, in one piece or put together from a stream, and why they end.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::domain::run::transcript::ToolCall;
use crate::ports::llm::anthropic::object;
use crate::ports::llm::wire::{self, Progress, raw};
use crate::ports::llm::{LlmError, ModelAnswer, ModelTokens, OnDelta, StopReason};

/// An answer, as far as it has come.
#[derive(Default)]
pub struct AnthropicStream {
    blocks: BTreeMap<u64, Block>,
    pub stop_reason: Option<String>,
    tokens: ModelTokens,
    /// Tokens of the input that no cache has had part in.
    uncached: i64,
    /// The stream has said that it is all.
    pub ended: bool,
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
    /// Takes in one event of the stream.
    pub fn add(&mut self, event: &Value, on_delta: Option<OnDelta<'_>>) -> Progress {
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

    /// Takes in the beginning of a block.
    pub fn begin(&mut self, index: u64, block: &Value) {
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
    pub fn usage(&mut self, usage: &Value) {
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
    pub fn written(&self) -> Vec<Box<RawValue>> {
        self.blocks.values().map(Block::whole).collect()
    }

    /// The answer that the blocks make.
    pub fn answer(self) -> Result<ModelAnswer, LlmError> {
        if self.stop_reason.as_deref() == Some("model_context_window_exceeded") {
            let error = LlmError::Overflow { message: "the answer did not fit into the context window".into() };
            return Ok(ModelAnswer::failed(error, self.tokens));
        }
        let text: String =
            self.blocks.values().filter(|block| block.is("text")).map(|block| block.text("text")).collect();
        let mut tool_calls: Vec<ToolCall> =
            self.blocks.values().filter(|block| block.is("tool_use")).map(Block::call).collect();
        let stop = match stop_reason(self.stop_reason.as_deref(), !tool_calls.is_empty()) {
            Ok(stop) => stop,
            Err(error) => return Ok(ModelAnswer::failed(error, self.tokens)),
        };
        let ends_with_a_call = self.blocks.values().next_back().is_some_and(|last| last.is("tool_use"));
        if let (StopReason::Length, true, Some(last)) = (stop, ends_with_a_call, tool_calls.last_mut()) {
            last.truncated = true;
        }
        let text = Some(text).filter(|text| !text.is_empty());
        Ok(ModelAnswer { text, tool_calls, stop, tokens: self.tokens, provider_message: None, failure: None })
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
