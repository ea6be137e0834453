//! Outcome of a message: the answer, and the account of its tokens, tools and cost.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::domain::run::{RunFinish, Usage};

/// Longest value in a summary of arguments, in characters.
const SUMMARY_LENGTH: usize = 100;
/// Parts of names whose values no summary shows.
const SECRET_NAMES: [&str; 6] = ["password", "passwd", "secret", "token", "api_key", "authorization"];

/// The outcome of the loop; its JSON form is the chat's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReactLoopResult {
    /// The answer.
    pub response: String,
    /// How the model came to it.
    pub finish: RunFinish,
    /// Turns of the model.
    pub turns: i64,
    /// Time of all executions, in milliseconds.
    pub duration_ms: i64,
    /// Tokens of all calls of models.
    pub token_usage: TokenUsage,
    /// Calls of tools, in order.
    pub tool_calls: Vec<ToolRecord>,
    /// Usage in the form of a run, cost included.
    #[serde(skip)]
    pub usage: Usage,
}

/// Tokens of several calls of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenUsage {
    /// Tokens that models read.
    pub input_tokens: i64,
    /// Tokens that models wrote.
    pub output_tokens: i64,
    /// The sum of both.
    pub total: i64,
}

/// One tool call of the loop.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolRecord {
    /// Name of the tool.
    pub name: String,
    /// Arguments, long values shortened.
    pub args_summary: Value,
    /// Time of the call, in milliseconds.
    pub duration_ms: i64,
    /// The call did not fail.
    pub success: bool,
    /// Before truncation; of a call before a restart, as it was stored.
    pub result_chars: usize,
}

impl From<Usage> for TokenUsage {
    fn from(usage: Usage) -> TokenUsage {
        let Usage { input_tokens, output_tokens, .. } = usage;
        TokenUsage { input_tokens, output_tokens, total: input_tokens + output_tokens }
    }
}

/// Arguments short enough for a list, without what looks like a secret.
pub fn args_summary(arguments: &Value) -> Value {
    match arguments {
        Value::Object(fields) => {
            let short = |(name, value): (&String, &Value)| (name.clone(), summary(name, value));
            Value::Object(fields.iter().map(short).collect::<Map<_, _>>())
        }
        other => json!({ "arguments": shortened(other) }),
    }
}

fn summary(name: &str, value: &Value) -> Value {
    let name = name.to_lowercase();
    if SECRET_NAMES.iter().any(|secret| name.contains(secret)) {
        return json!(crate::base::secret::REDACTED);
    }
    match value {
        Value::Object(fields) => json!(format!("{{{} fields}}", fields.len())),
        Value::Array(items) => json!(format!("[{} items]", items.len())),
        other => shortened(other),
    }
}

fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(SUMMARY_LENGTH) {
            Some((end, _)) => json!(format!("{}…", &text[..end])),
            None => value.clone(),
        },
        other => other.clone(),
    }
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
        assert_eq!(args_summary(&json!("{broken")), json!({ "arguments": "{broken" }));
    }

    #[test]
    fn result_has_the_form_of_the_contract() {
        let usage = Usage { turns: 3, tool_calls: 1, input_tokens: 20, output_tokens: 4, cost_micros: 9 };
        let record = ToolRecord {
            name: "current_time".into(),
            args_summary: json!({}),
            duration_ms: 5,
            success: true,
            result_chars: 120,
        };
        let result = ReactLoopResult {
            response: "done".into(),
            finish: RunFinish::Answer,
            turns: 3,
            duration_ms: 812,
            token_usage: usage.into(),
            tool_calls: vec![record],
            usage,
        };
        assert_eq!(
            serde_json::to_value(result).unwrap(),
            json!({
                "response": "done", "finish": "answer", "turns": 3, "duration_ms": 812,
                "token_usage": { "input_tokens": 20, "output_tokens": 4, "total": 24 },
                "tool_calls": [{
                    "name": "current_time", "args_summary": {}, "duration_ms": 5, "success": true,
                    "result_chars": 120,
                }],
            })
        );
    }
}
