//! The report of a foreign runtime about a run: in its answer, or later through `complete`.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::domain::run::{RunError, RunFault, RunOutcome, Usage};
use crate::ports::vault::credentials::UsedSecrets;

/// The code of a failure that names none.
const CODE: &str = "runtime_failed";
/// Longest code and message, in characters.
const CODE_LENGTH: usize = 100;
const MESSAGE_LENGTH: usize = 2_000;

/// How the run ended there.
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeReport {
    /// The run ended well.
    Succeeded {
        /// The answer of the run.
        output: String,
    },
    /// The run failed.
    Failed {
        /// The error of the run.
        error: RunFault,
    },
}

/// How a run ended that a foreign runtime executed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"state": "succeeded", "output": "Booked for eight."}))]
pub struct Completion {
    /// `succeeded` or `failed`.
    state: String,
    /// The answer, told to the recipient; one that is no text is stored as JSON.
    output: Option<Value>,
    /// A sentence, or `{"code", "message"}`.
    error: Option<Value>,
}

impl RuntimeReport {
    /// Reads a [`Completion`].
    pub fn parse(value: &Value) -> Result<RuntimeReport, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let Some(Completion { state, output, error: why }) = typed::read(value, "", &mut faults) else {
            return Err(faults);
        };
        let report = match state.as_str() {
            "succeeded" => {
                if why.is_some() {
                    faults.add("/error", "a run that succeeded has no error");
                }
                RuntimeReport::Succeeded { output: text(output.as_ref()) }
            }
            "failed" => RuntimeReport::Failed { error: error(why.as_ref(), &mut faults) },
            _ => return Err(ValidationErrors::one("/state", "must be `succeeded` or `failed`")),
        };
        faults.into_result(report)
    }

    /// The body of an answer: a report where it is one, `{"output": …}`, or else whatever it is as the output.
    pub fn of_answer(body: &[u8]) -> RuntimeReport {
        let whole = || RuntimeReport::Succeeded { output: String::from_utf8_lossy(body).trim().to_owned() };
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Object(fields)) if fields.contains_key("state") => {
                // a failure stays one, however it is written
                let failed = fields.get("state").is_some_and(|state| state == "failed");
                let fault = failed.then(|| error(fields.get("error"), &mut ValidationErrors::new()));
                match RuntimeReport::parse(&Value::Object(fields)) {
                    Ok(report) => report,
                    Err(_) => fault.map_or_else(whole, |error| RuntimeReport::Failed { error }),
                }
            }
            Ok(Value::Object(fields)) if is_output(&fields) => {
                RuntimeReport::Succeeded { output: text(fields.get("output")) }
            }
            _ => whole(),
        }
    }

    /// The report without known secrets: a runtime that was sent one may repeat it. A long text is read on a computing
    /// thread, in the turn of the run's tenant.
    pub async fn redacted(self, used_secrets: &UsedSecrets) -> RuntimeReport {
        match self {
            RuntimeReport::Succeeded { output } => {
                RuntimeReport::Succeeded { output: used_secrets.cleaned(output).await }
            }
            RuntimeReport::Failed { error } => {
                let (code, message) =
                    (used_secrets.cleaned(error.code).await, used_secrets.cleaned(error.message).await);
                RuntimeReport::Failed { error: RunFault::new(code, message) }
            }
        }
    }

    /// The outcome of the run that the report stands for.
    pub fn outcome(self) -> Result<RunOutcome, RunError> {
        match self {
            RuntimeReport::Succeeded { output } => {
                Ok(RunOutcome::Succeeded { output, finish: None, usage: Usage::default() })
            }
            RuntimeReport::Failed { error } => Err(RunError::Fail { fault: error }),
        }
    }
}

fn is_output(fields: &Map<String, Value>) -> bool {
    fields.len() == 1 && fields.contains_key("output")
}

/// A text as it is, anything else as JSON.
fn text(output: Option<&Value>) -> String {
    match output {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A sentence, or `{"code", "message"}`.
fn error(written: Option<&Value>, faults: &mut ValidationErrors) -> RunFault {
    let cut = |text: &str, length| text.chars().take(length).collect::<String>();
    match written {
        None | Some(Value::Null) => RunFault::new(CODE, "the runtime reported a failure"),
        Some(Value::String(message)) => RunFault::new(CODE, cut(message, MESSAGE_LENGTH)),
        Some(Value::Object(fields)) => {
            let code = fields.get("code").and_then(Value::as_str).unwrap_or(CODE);
            let message = fields.get("message").and_then(Value::as_str).unwrap_or("the runtime reported a failure");
            RunFault::new(cut(code, CODE_LENGTH), cut(message, MESSAGE_LENGTH))
        }
        Some(_) => {
            faults.add("/error", "must be a text, or an object with `code` and `message`");
            RunFault::new(CODE, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn succeeded(output: &str) -> RuntimeReport {
        RuntimeReport::Succeeded { output: output.into() }
    }

    #[test]
    fn answer_is_a_report_an_output_or_itself() {
        let of = |body: &str| RuntimeReport::of_answer(body.as_bytes());
        assert_eq!(of(""), succeeded(""));
        assert_eq!(of(" all done\n"), succeeded("all done"));
        assert_eq!(of(r#"{"output":"all done"}"#), succeeded("all done"));
        let failed = RuntimeReport::Failed { error: RunFault::new("x", "y") };
        assert_eq!(of(r#"{"state":"failed","error":{"code":"x","message":"y"},"run_id":"r1"}"#), failed);
        assert!(matches!(of(r#"{"state":"failed","error":7}"#), RuntimeReport::Failed { .. }));
        assert_eq!(of(r#"{"output":{"a":1}}"#), succeeded(r#"{"a":1}"#));
        assert_eq!(of(r#"{"ok":true}"#), succeeded(r#"{"ok":true}"#));
        assert_eq!(of(r#"{"state":"succeeded","output":"x"}"#), succeeded("x"));
        let failed = RuntimeReport::Failed { error: RunFault::new("no_money", "the card was declined") };
        assert_eq!(of(r#"{"state":"failed","error":{"code":"no_money","message":"the card was declined"}}"#), failed);
    }

    #[test]
    fn report_says_how_it_ended() {
        assert_eq!(RuntimeReport::parse(&json!({ "state": "succeeded" })).unwrap(), succeeded(""));
        let failed = RuntimeReport::parse(&json!({ "state": "failed", "error": "it broke" })).unwrap();
        assert_eq!(failed, RuntimeReport::Failed { error: RunFault::new("runtime_failed", "it broke") });
        let places = |value: Value| {
            let faults = RuntimeReport::parse(&value).unwrap_err();
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        assert_eq!(places(json!({})), ["/state"]);
        assert_eq!(places(json!({ "state": "running" })), ["/state"]);
        assert_eq!(places(json!({ "state": "failed", "error": 7, "outptu": 1 })), ["/outptu", "/error"]);
        assert_eq!(places(json!({ "state": "succeeded", "error": "x" })), ["/error"]);
        assert_eq!(places(json!([])), [""]);
    }
}
