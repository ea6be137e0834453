//! Outcome of a message: the answer, and the account of its tokens, tools and cost.

use serde::Serialize;

use crate::domain::run::token_usage::TokenUsage;
use crate::domain::run::{RunFinish, ToolRecord, TranscriptMessage, Usage};

/// The outcome of the loop; its JSON form is the chat's answer, and part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ReactLoopResult {
    /// The answer.
    pub response: String,
    /// How the model came to it; absent as long as there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<RunFinish>,
    /// Turns of the model.
    pub turns: i64,
    /// Time of all executions, in milliseconds.
    pub duration_ms: i64,
    /// Tokens of all calls of models.
    pub token_usage: TokenUsage,
    /// Calls of tools, in order.
    pub tool_calls: Vec<ToolRecord>,
    /// Warnings of calls of tools, and then findings of verifiers about the answers, each in order; those for which an
    /// answer did not go out are among them.
    pub tool_warnings: Vec<ToolWarning>,
    /// Usage in the form of a run, cost included.
    #[serde(skip)]
    pub usage: Usage,
}

/// A warning of a call of a tool, or a finding of a verifier, as the stream tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ToolWarning {
    /// Name of the tool, or of the verifier, such as `I-0001`.
    pub tool: String,
    /// The warning.
    pub message: String,
}

impl ToolWarning {
    /// The warnings of calls of tools, in the order of these records.
    pub fn of_calls(records: &[ToolRecord]) -> impl Iterator<Item = ToolWarning> {
        records.iter().flat_map(|record| {
            let warning = move |message: &String| ToolWarning { tool: record.name.clone(), message: message.clone() };
            record.warnings.iter().map(warning)
        })
    }

    /// The findings that an entry of a transcript holds.
    pub fn of(entry: &TranscriptMessage) -> Vec<ToolWarning> {
        let TranscriptMessage::Verdict { warnings, flags, .. } = entry else { return Vec::new() };
        let parts = |finding: &String| {
            let (tool, message) = finding.split_once(": ").unwrap_or(("", finding));
            ToolWarning { tool: tool.to_owned(), message: message.to_owned() }
        };
        warnings.iter().chain(flags).map(parts).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::run::tool_record::ToolAttribution;

    #[test]
    fn verdict_says_whether_the_answer_passes_and_one_of_an_older_release_is_read() {
        let form = |flags: &[&str]| {
            let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            serde_json::to_value(TranscriptMessage::verdict(vec!["U-0001: not certain".into()], flags)).unwrap()
        };
        let passed = json!({ "role": "verdict", "pass": true, "warnings": ["U-0001: not certain"] });
        assert_eq!(form(&[]), passed);
        let flagged = form(&["R-0001: a secret"]);
        assert_eq!((&flagged["pass"], &flagged["flags"]), (&json!(false), &json!(["R-0001: a secret"])));
        let older = json!({ "role": "verdict", "flags": ["R-0001: a secret"] });
        let read: TranscriptMessage = serde_json::from_value(older.clone()).unwrap();
        let warning = ToolWarning { tool: "R-0001".into(), message: "a secret".into() };
        assert_eq!(ToolWarning::of(&read), [warning]);
        assert_eq!(serde_json::to_value(read).unwrap(), older);
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
            attribution: ToolAttribution { agent: Some("orchestrator".into()), step: None, turn: 2 },
            result_status: None,
            token_attribution: None,
            is_known: true,
            warnings: Vec::new(),
        };
        let warnings = vec!["I-0001: too long: 16 characters".into()];
        let verdict = TranscriptMessage::verdict(warnings, vec!["R-0001: a secret".into()]);
        let result = ReactLoopResult {
            response: "done".into(),
            finish: Some(RunFinish::Answer),
            turns: 3,
            duration_ms: 812,
            token_usage: usage.into(),
            tool_calls: vec![record],
            tool_warnings: ToolWarning::of(&verdict),
            usage,
        };
        assert_eq!(
            serde_json::to_value(result).unwrap(),
            json!({
                "response": "done", "finish": "answer", "turns": 3, "duration_ms": 812,
                "token_usage": { "input_tokens": 20, "output_tokens": 4, "total": 24 },
                "tool_calls": [{
                    "name": "current_time", "args_summary": {}, "duration_ms": 5, "success": true,
                    "result_chars": 120, "attribution": { "agent": "orchestrator", "turn": 2 },
                }],
                "tool_warnings": [
                    { "tool": "I-0001", "message": "too long: 16 characters" },
                    { "tool": "R-0001", "message": "a secret" },
                ],
            })
        );
    }
}
