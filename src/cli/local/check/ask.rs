//! `reveille check --ask`: puts one harmless question with a tool to each model, and names what is refused.
//!
//! The question costs a few tokens, so it is put only when asked for. It goes on behind the tool's result: that is
//! where models refuse a conversation that lacks what they wrote before. Nothing is asked again with less, as a run
//! would: a refusal is to be seen. A model that only makes vectors is asked for one.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use super::Finding;
use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::config::{Config, LoadedConfig};
use crate::domain::run::transcript::{ModelTokens, ToolCall, TranscriptMessage};
use crate::ports::llm::openai::embedding::Embeddings;
use crate::ports::llm::settings::MaxTokensField;
use crate::ports::llm::thinking::PromptCache;
use crate::ports::llm::{
    LlmError, ModelAnswer, ModelRequest, ModelSettings, ToolChoice, ToolSchema, ask_as_configured,
};

const TOOL: &str = "current_time";
const QUESTION: &str = "Call the tool `current_time` once. Then say in one short sentence which time it tells.";
/// The tool's answer.
const TIME: &str = "12:00";
/// The setting that has another value in place of none.
const MAX_TOKENS_FIELD: &str = "max_tokens_field";
/// A longest answer that every model takes, in tokens.
const SMALL_ANSWER: u32 = 1024;

/// Settings of a model that it can do without: each with the model's settings without it, if it is set.
type OptionalSetting = (&'static str, fn(&ModelSettings) -> Option<ModelSettings>);

/// They are put back from the last one on: a setting that is sent with another one alone stands before it.
const OPTIONAL: [OptionalSetting; 12] = [
    ("temperature", |model| model.temperature.map(|_| ModelSettings { temperature: None, ..model.clone() })),
    ("top_p", |model| model.top_p.map(|_| ModelSettings { top_p: None, ..model.clone() })),
    ("top_k", |model| model.top_k.map(|_| ModelSettings { top_k: None, ..model.clone() })),
    ("effort", |model| model.effort.map(|_| ModelSettings { effort: None, ..model.clone() })),
    ("thinking", |model| {
        let without = ModelSettings { thinking: None, thinking_budget_tokens: None, ..model.clone() };
        model.thinking.map(|_| without)
    }),
    // a smaller number first: where that will do, its name is not what is refused
    ("max_output_tokens", |model| {
        let is_large = model.provider == "openai" && model.max_output_tokens.is_some_and(|most| most > SMALL_ANSWER);
        is_large.then(|| ModelSettings { max_output_tokens: Some(SMALL_ANSWER), ..model.clone() })
    }),
    (MAX_TOKENS_FIELD, |model| {
        let is_sent = model.provider == "openai" && model.max_output_tokens.is_some();
        is_sent.then(|| ModelSettings { max_tokens_field: Some(other_field(model)), ..model.clone() })
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

/// The other name of the longest answer.
fn other_field(model: &ModelSettings) -> MaxTokensField {
    match model.sent_max_tokens_field() {
        MaxTokensField::MaxCompletionTokens => MaxTokensField::MaxTokens,
        MaxTokensField::MaxTokens => MaxTokensField::MaxCompletionTokens,
    }
}

/// Asks all models that are somewhere else, each by every key.
pub async fn all(loaded: &LoadedConfig) -> Vec<Finding> {
    let config = &loaded.config;
    let models = || config.llm.models.iter().filter(|(_, settings)| settings.endpoint().is_some());
    let speaking = models().filter(|(name, _)| !makes_only_vectors(config, name));
    let speaking = speaking.flat_map(|(name, settings)| by_key("answer", name, settings));
    let embedder = config.memory.embedding_model.as_deref();
    let embedding = models().filter(|(name, _)| embedder == Some(name.as_str()));
    let embedding = embedding.flat_map(|(name, settings)| by_key("vector", name, settings));
    let dimensions = config.memory.embedding_dimensions;
    let (mut findings, vectors) = tokio::join!(
        join_all(speaking.map(async |(title, settings)| one(title, &settings).await)),
        join_all(embedding.map(|(title, settings)| async move { one_vector(title, &settings, dimensions).await })),
    );
    findings.extend(vectors);
    findings
}

/// Whether nothing in the configuration asks this model a question.
fn makes_only_vectors(config: &Config, name: &str) -> bool {
    let beside = [&config.memory.model, &config.context.summary_model].into_iter();
    let of_agents = config.agents.iter().map(|agent| &agent.model);
    let mut asked = beside.chain(of_agents).flatten().chain(&config.llm.fallback).chain([&config.llm.default]);
    config.memory.embedding_model.as_deref() == Some(name) && !asked.any(|asked| asked == name)
}

/// The model with each of its keys alone, under a title.
fn by_key(asked_for: &str, name: &str, settings: &ModelSettings) -> Vec<(String, ModelSettings)> {
    let keys: Vec<_> = settings.keys().cloned().collect();
    if keys.len() < 2 {
        return vec![(format!("{asked_for} {name}"), settings.clone())];
    }
    let alone = |key| ModelSettings { api_key: Some(key), api_keys: vec![], ..settings.clone() };
    let numbered = (1..).zip(keys).map(|(number, key)| (format!("{asked_for} {name}, key {number}"), alone(key)));
    numbered.collect()
}

async fn one_vector(title: String, settings: &ModelSettings, dimensions: Option<u32>) -> Finding {
    let error = match embed(settings, dimensions).await {
        Ok(length) => return Finding::ok(&title, format!("made a vector of {length} numbers")),
        Err(error) => error,
    };
    let finding = Finding::error(&title, error.to_string());
    let may_be_length = matches!(error, LlmError::Rejected { .. }) && dimensions.is_some();
    match may_be_length && embed(settings, None).await.is_ok() {
        true => finding.hint("`[memory] embedding_dimensions` is refused: without it the model makes a vector"),
        false => finding,
    }
}

/// The length of one vector.
async fn embed(settings: &ModelSettings, dimensions: Option<u32>) -> Result<usize, LlmError> {
    let rejected = |message| LlmError::Rejected { message };
    let embeddings = Embeddings::new(settings, dimensions, Clock::system(), Compute::new(1))
        .ok_or_else(|| rejected(format!("provider `{}` makes no vectors", settings.provider)))?;
    let within = Duration::from_secs(settings.timeout_seconds);
    let vectors = embeddings.embed("", &[QUESTION], within).await?;
    let vector = vectors.into_iter().flatten().next();
    Ok(vector.ok_or_else(|| rejected("the vector has no direction".to_owned()))?.dimensions())
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
            match refused_settings(settings, &error).await {
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

/// Finds out what a model refuses: by asking it again without one thing after the other, then without all settings that
/// it can do without, of which each is put back that is not refused.
async fn refused_settings(settings: &ModelSettings, error: &LlmError) -> Option<String> {
    if !matches!(error, LlmError::Rejected { .. }) {
        return None;
    }
    let mut refused: Vec<OptionalSetting> =
        OPTIONAL.into_iter().filter(|(_, without)| without(settings).is_some()).collect();
    for setting in &refused {
        if ask(&without_all(settings, &[*setting]), true).await.is_ok() {
            return Some(hint(settings, &[*setting]));
        }
    }
    if ask(settings, false).await.is_ok() {
        let hint = "tools are refused: without them the model answers; an agent needs one that calls tools";
        return Some(hint.to_owned());
    }
    if refused.len() < 2 || ask(&without_all(settings, &refused), true).await.is_err() {
        return None;
    }
    for index in (0..refused.len()).rev() {
        let mut fewer = refused.clone();
        fewer.remove(index);
        if ask(&without_all(settings, &fewer), true).await.is_ok() {
            refused = fewer;
        }
    }
    Some(hint(settings, &refused))
}

fn without_all(settings: &ModelSettings, removed: &[OptionalSetting]) -> ModelSettings {
    removed.iter().fold(settings.clone(), |settings, (_, without)| without(&settings).unwrap_or(settings))
}

/// The settings that are refused, and what the model answers with in their place.
fn hint(settings: &ModelSettings, refused: &[OptionalSetting]) -> String {
    let field = |field: MaxTokensField| format!("`{MAX_TOKENS_FIELD} = \"{}\"`", field.as_str());
    let name = |(name, _): &OptionalSetting| match *name {
        MAX_TOKENS_FIELD => field(settings.sent_max_tokens_field()),
        name => format!("`{name}`"),
    };
    let names = refused.iter().map(name).collect::<Vec<_>>().join(" and ");
    let (verb, without) = if refused.len() == 1 { ("is", "without it") } else { ("are", "without them") };
    let way = match refused.iter().any(|(name, _)| *name == MAX_TOKENS_FIELD) {
        false => without.to_owned(),
        true if refused.len() == 1 => format!("with {}", field(other_field(settings))),
        true => format!("{without}, and with {},", field(other_field(settings))),
    };
    format!("{names} {verb} refused: {way} the model answers")
}

/// One question, and where the tool is called, what the model makes of its result.
async fn ask(settings: &ModelSettings, with_tool: bool) -> Result<ModelReply, LlmError> {
    let mut messages =
        vec![TranscriptMessage::system("This is a test of a connection."), TranscriptMessage::user(QUESTION)];
    let first = complete(settings, &messages, with_tool).await?;
    if first.tool_calls.is_empty() {
        return Ok(ModelReply { called: false, tokens: first.tokens });
    }
    let results: Vec<TranscriptMessage> = first.tool_calls.iter().map(result).collect();
    messages.push(TranscriptMessage::Assistant {
        text: first.text,
        tool_calls: first.tool_calls,
        provider_message: first.provider_message,
        finish: None,
    });
    messages.extend(results);
    let second = complete(settings, &messages, with_tool).await?;
    Ok(ModelReply { called: true, tokens: first.tokens + second.tokens })
}

async fn complete(
    settings: &ModelSettings,
    messages: &[TranscriptMessage],
    with_tool: bool,
) -> Result<ModelAnswer, LlmError> {
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
    ask_as_configured(settings, &request, &Clock::system()).await
}

fn result(call: &ToolCall) -> TranscriptMessage {
    TranscriptMessage::Tool {
        call_id: call.id.clone(),
        name: call.name.clone(),
        notices: vec![],
        content: TIME.into(),
        is_error: false,
        reasons: vec![],
        fetched_at: None,
    }
}
