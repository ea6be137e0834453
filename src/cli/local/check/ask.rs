//! `reveille check --ask`: puts one harmless question with a tool to each model, and names what is refused.
//!
//! The question costs a few tokens, so it is put only when asked for. It goes on behind the tool's result: that is where
//! models refuse a conversation that lacks what they wrote before.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use super::Finding;
use crate::base::clock::Clock;
use crate::config::Loaded;
use crate::domain::run::transcript::{ModelTokens, ToolCall, TranscriptMessage};
use crate::ports::llm::fallback::{Chain, Completed, RetryWait};
use crate::ports::llm::thinking::PromptCache;
use crate::ports::llm::tokens::encoders::Encoders;
use crate::ports::llm::{LlmError, ModelRequest, ModelSettings, Models, Settings, ToolChoice, ToolSchema};

const TOOL: &str = "current_time";
const QUESTION: &str = "Call the tool `current_time` once. Then say in one short sentence which time it tells.";
/// The tool's answer.
const TIME: &str = "12:00";

/// Settings of a model that it can do without: each with the model's settings without it, if it is set.
type OptionalSetting = (&'static str, fn(&ModelSettings) -> Option<ModelSettings>);

const OPTIONAL: [OptionalSetting; 10] = [
    ("temperature", |model| model.temperature.map(|_| ModelSettings { temperature: None, ..model.clone() })),
    ("top_p", |model| model.top_p.map(|_| ModelSettings { top_p: None, ..model.clone() })),
    ("top_k", |model| model.top_k.map(|_| ModelSettings { top_k: None, ..model.clone() })),
    ("effort", |model| model.effort.map(|_| ModelSettings { effort: None, ..model.clone() })),
    ("thinking", |model| {
        let without = ModelSettings { thinking: None, thinking_budget_tokens: None, ..model.clone() };
        model.thinking.map(|_| without)
    }),
    ("max_output_tokens", |model| {
        model.max_output_tokens.map(|_| ModelSettings { max_output_tokens: None, ..model.clone() })
    }),
    ("prompt_cache_key", |model| {
        model.prompt_cache_key.as_ref().map(|_| ModelSettings { prompt_cache_key: None, ..model.clone() })
    }),
    ("prompt_cache", |model| {
        let is_sent = model.provider == "anthropic" && model.prompt_cache != PromptCache::Off;
        is_sent.then(|| ModelSettings { prompt_cache: PromptCache::Off, ..model.clone() })
    }),
    ("stream_usage", |model| model.stream_usage.then(|| ModelSettings { stream_usage: false, ..model.clone() })),
    ("stream", |model| model.stream.then(|| ModelSettings { stream: false, ..model.clone() })),
];

/// Asks all models that are somewhere else, each by every key.
pub async fn all(loaded: &Loaded) -> Vec<Finding> {
    let models = loaded.config.llm.models.iter().filter(|(_, settings)| settings.endpoint().is_some());
    let asked = models.flat_map(|(name, settings)| by_key(name, settings));
    join_all(asked.map(async |(title, settings)| one(title, &settings).await)).await
}

/// The model with each of its keys alone, under a title.
fn by_key(name: &str, settings: &ModelSettings) -> Vec<(String, ModelSettings)> {
    let keys: Vec<_> = settings.keys().cloned().collect();
    if keys.len() < 2 {
        return vec![(format!("answer {name}"), settings.clone())];
    }
    let alone = |key| ModelSettings { api_key: Some(key), api_keys: vec![], ..settings.clone() };
    let numbered = (1..).zip(keys).map(|(number, key)| (format!("answer {name}, key {number}"), alone(key)));
    numbered.collect()
}

async fn one(title: String, settings: &ModelSettings) -> Finding {
    match ask(settings, true).await {
        Ok(ModelReply { called: true, tokens }) => {
            Finding::ok(&title, format!("called the tool and went on; {} + {} tokens", tokens.input, tokens.output))
        }
        Ok(ModelReply { called: false, .. }) => {
            Finding::warning(&title, "answered without the tool that it was to call")
                .hint("an agent needs a model that calls tools")
        }
        Err(error) => {
            let finding = Finding::error(&title, error.to_string());
            match refused_setting(settings, &error).await {
                Some(hint) => finding.hint(hint),
                None => finding,
            }
        }
    }
}

/// The outcome of a question.
struct ModelReply {
    /// Whether it called the tool.
    called: bool,
    tokens: ModelTokens,
}

/// Finds out what a model refuses, by asking it again without one thing after the other.
async fn refused_setting(settings: &ModelSettings, error: &LlmError) -> Option<String> {
    if !matches!(error, LlmError::Rejected { .. }) {
        return None;
    }
    for (name, without) in OPTIONAL {
        let Some(without) = without(settings) else { continue };
        if ask(&without, true).await.is_ok() {
            return Some(format!("`{name}` is refused: without it the model answers"));
        }
    }
    let answers = ask(settings, false).await.is_ok();
    answers.then(|| "tools are refused: without them the model answers; an agent needs one that calls tools".to_owned())
}

/// One question, and where the tool is called, what the model makes of its result.
async fn ask(settings: &ModelSettings, with_tool: bool) -> Result<ModelReply, LlmError> {
    let chain = chain_of(settings)?;
    let mut messages =
        vec![TranscriptMessage::system("This is a test of a connection."), TranscriptMessage::user(QUESTION)];
    let first = complete(&chain, &messages, with_tool).await?;
    if first.answer.tool_calls.is_empty() {
        return Ok(ModelReply { called: false, tokens: first.answer.tokens });
    }
    let calls = first.answer.tool_calls;
    let results: Vec<TranscriptMessage> = calls.iter().map(result).collect();
    let provider_message = first.answer.provider_message;
    messages.push(TranscriptMessage::Assistant {
        text: first.answer.text,
        tool_calls: calls,
        provider_message,
        finish: None,
    });
    messages.extend(results);
    let second = complete(&chain, &messages, with_tool).await?;
    Ok(ModelReply { called: true, tokens: first.answer.tokens + second.answer.tokens })
}

/// The model alone, each key asked once.
fn chain_of(settings: &ModelSettings) -> Result<Chain, LlmError> {
    let name = "model".to_owned();
    let models = [(name.clone(), settings.clone())].into();
    let alone = Settings { default: name, fallback: vec![], models };
    let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
    let rejected = |message| LlmError::Rejected { message };
    let models = Models::build(&alone, &Encoders::default(), retry, &Clock::system())
        .map_err(|faults| rejected(faults.to_string()))?;
    models.chain(None, "").ok_or_else(|| rejected("there is no such model".into()))
}

async fn complete(chain: &Chain, messages: &[TranscriptMessage], with_tool: bool) -> Result<Completed, LlmError> {
    let tool = ToolSchema {
        name: TOOL.into(),
        description: "Tells the current time.".into(),
        parameters: Arc::new(json!({ "type": "object", "properties": {} })),
    };
    let request = ModelRequest {
        messages: messages.to_vec(),
        tools: if with_tool { vec![tool] } else { vec![] }.into(),
        tool_choice: ToolChoice::Auto,
        max_tokens: None,
        temperature: None,
    };
    chain.complete(&request, &|_| {}).await
}

fn result(call: &ToolCall) -> TranscriptMessage {
    TranscriptMessage::Tool {
        call_id: call.id.clone(),
        name: call.name.clone(),
        notice: None,
        content: TIME.into(),
        is_error: false,
        reasons: vec![],
        fetched_at: None,
    }
}
