//! The record of one call of a tool: who called it with which arguments, how long it took, and how it ended.
//!
//! It is stored beside the result of the call, bounded in its size, and never holds the result or a value that looks
//! like a secret.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::words::words;
use crate::domain::run::token_usage::TokenUsage;

/// Longest text in a record, in characters.
const SUMMARY_LENGTH: usize = 100;
/// Most arguments in a record.
const SUMMARY_FIELDS: usize = 20;
/// Longest warning in a record, in characters.
const WARNING_LENGTH: usize = 300;
/// Most warnings in a record.
const MOST_WARNINGS: usize = 10;
/// Parts of names whose values no summary shows.
const SECRET_NAMES: [&str; 6] = ["password", "passwd", "secret", "token", "api_key", "authorization"];

words! {
    /// How a call of an agent stands.
    #[derive(utoipa::ToSchema)]
    pub enum AgentCallStatus {
        /// The agent has answered.
        Completed = "COMPLETED",
        /// A person is asked for what it lacks.
        WaitingForInput = "WAITING_FOR_INPUT",
        /// A person is asked about a call.
        WaitingForApproval = "WAITING_FOR_APPROVAL",
        /// It failed.
        Error = "ERROR",
    }
}

/// One call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolRecord {
    /// Name of the tool, as it was called; a long one is shortened.
    pub name: String,
    /// Arguments, long values shortened.
    #[schema(value_type = Object)]
    pub args_summary: Value,
    /// Time of the call, in milliseconds.
    pub duration_ms: i64,
    /// The call did not fail.
    pub success: bool,
    /// Length of the result before truncation, in characters.
    pub result_chars: usize,
    /// The caller.
    pub attribution: ToolAttribution,
    /// How a call of an agent ended; absent for other tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub result_status: Option<AgentCallStatus>,
    /// Tokens that a call of an agent took, with those of agents that it has called; absent for other tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub token_attribution: Option<TokenUsage>,
    /// There is a tool of this name; absent where there is.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[schema(required = false)]
    pub is_known: bool,
    /// Warnings of the call, in order, as the stream has told them; absent where there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub warnings: Vec<String>,
}

/// The caller of a tool within its run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolAttribution {
    /// Name of the agent; absent where a step calls the tool itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name of the step, in a pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The turn that asked for the call, as the transcript counts it; in a pipeline the place of a step that calls
    /// itself.
    pub turn: i64,
}

impl ToolRecord {
    /// The record of a call that has ended, with the length of its result in characters.
    pub fn new(
        (name, is_known): (&str, bool),
        arguments: &Value,
        duration_ms: i64,
        (success, result_chars): (bool, usize),
        attribution: ToolAttribution,
    ) -> ToolRecord {
        let (name, args_summary) = (shortened(name), args_summary(arguments));
        ToolRecord {
            name,
            args_summary,
            duration_ms,
            success,
            result_chars,
            attribution,
            result_status: None,
            token_attribution: None,
            is_known,
            warnings: Vec::new(),
        }
    }

    /// Adds a warning of the call. A long one is shortened, and of many the first are kept.
    pub fn warn(&mut self, message: &str) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(shortened_to(message, WARNING_LENGTH));
        }
    }

    /// The record where the tool is an agent, with the tokens that it took.
    pub fn of_agent(self, tokens: TokenUsage) -> ToolRecord {
        let status = if self.success { AgentCallStatus::Completed } else { AgentCallStatus::Error };
        ToolRecord { result_status: Some(status), token_attribution: Some(tokens), ..self }
    }
}

/// Arguments short enough for a list, without what looks like a secret.
fn args_summary(arguments: &Value) -> Value {
    let Value::Object(fields) = arguments else { return json!({ "args": short_value(arguments) }) };
    let short = |(name, value): (&String, &Value)| (shortened(name), summary(name, value));
    let mut summary: Map<String, Value> = fields.iter().take(SUMMARY_FIELDS).map(short).collect();
    if let more @ 1.. = fields.len().saturating_sub(SUMMARY_FIELDS) {
        summary.insert("…".into(), json!(format!("{more} more")));
    }
    Value::Object(summary)
}

fn summary(name: &str, value: &Value) -> Value {
    let name = name.to_lowercase();
    if SECRET_NAMES.iter().any(|secret| name.contains(secret)) {
        return json!(crate::base::secret::REDACTED);
    }
    match value {
        Value::Object(fields) => json!(format!("{{{} fields}}", fields.len())),
        Value::Array(items) => json!(format!("[{} items]", items.len())),
        other => short_value(other),
    }
}

fn short_value(value: &Value) -> Value {
    match value {
        Value::String(text) => json!(shortened(text)),
        other => other.clone(),
    }
}

fn shortened(text: &str) -> String {
    shortened_to(text, SUMMARY_LENGTH)
}

fn shortened_to(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_short_and_keeps_secrets() {
        let arguments = json!({
            "url": "https://example.org", "count": 3, "text": "é".repeat(200), "headers": { "a": 1, "b": 2 },
            "list": [1, 2, 3], "API_Key": "canary", "access_token": { "deep": "canary" },
        });
        assert_eq!(
            args_summary(&arguments),
            json!({
                "url": "https://example.org", "count": 3, "text": format!("{}…", "é".repeat(100)),
                "headers": "{2 fields}", "list": "[3 items]", "API_Key": "[redacted]", "access_token": "[redacted]",
            })
        );
        assert_eq!(args_summary(&json!("{broken")), json!({ "args": "{broken" }));
    }

    #[test]
    fn record_is_bounded_whatever_the_model_calls() {
        let of = |fields: usize| (0..fields).map(|n| (format!("{n:03}"), json!(n))).collect::<Map<_, _>>();
        let fields = |count| args_summary(&Value::Object(of(count))).as_object().map(Map::len);
        assert_eq!((fields(SUMMARY_FIELDS), fields(SUMMARY_FIELDS + 5)), (Some(20), Some(21)));
        assert_eq!(args_summary(&Value::Object(of(25)))["…"], "5 more");
        let (long, caller) = ("n".repeat(5_000), ToolAttribution::default());
        let record = ToolRecord::new((&long, false), &json!({ &long: 1 }), 0, (false, 0), caller);
        assert_eq!((record.name.chars().count(), record.args_summary.to_string().len() < 200), (101, true));
    }

    #[test]
    fn warnings_of_a_record_are_bounded_and_a_record_without_any_has_no_such_field() {
        let mut record = ToolRecord::new(("look", true), &json!({}), 0, (true, 0), ToolAttribution::default());
        assert_eq!(serde_json::to_value(&record).unwrap().get("warnings"), None);
        for _ in 0..MOST_WARNINGS + 1 {
            record.warn(&"é".repeat(WARNING_LENGTH + 1));
        }
        let lengths: Vec<usize> = record.warnings.iter().map(|warning| warning.chars().count()).collect();
        assert_eq!(lengths, [WARNING_LENGTH + 1; MOST_WARNINGS], "each ends with an ellipsis");
        let read: ToolRecord = serde_json::from_value(serde_json::to_value(&record).unwrap()).unwrap();
        assert_eq!(read, record);
    }
}
