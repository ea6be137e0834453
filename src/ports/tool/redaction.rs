//! Results of tools without the secrets that their run has used: a tool in Rust may have read them itself.

use serde_json::Value;

use crate::base::redact::JointRedaction;
use crate::base::secret::REDACTED;
use crate::ports::tool::{NeededInput, ToolError, ToolFailure, ToolOutput, UsedSecrets};

impl UsedSecrets {
    /// The result of a call without what is known.
    pub async fn clean(&self, called: Result<ToolOutput, ToolError>) -> Result<ToolOutput, ToolError> {
        match called {
            Ok(output) => Ok(self.clean_output(output).await),
            Err(error) => Err(self.clean_error(error).await),
        }
    }

    /// The finding of a tool's own look before a call, without what is known.
    pub async fn clean_finding(&self, found: Result<Value, ToolError>) -> Result<Value, ToolError> {
        match found {
            Ok(found) => Ok(self.clean_output(ToolOutput::json(found)).await.data),
            Err(error) => Err(self.clean_error(error).await),
        }
    }

    /// The error of a call without what is known.
    pub async fn clean_error(&self, error: ToolError) -> ToolError {
        match error {
            ToolError::Tell { kind, code, message } => {
                ToolError::Tell { kind, code: self.cleaned(code).await, message: self.cleaned(message).await }
            }
            ToolError::Unsent { code, message } => {
                ToolError::Unsent { code: self.cleaned(code).await, message: self.cleaned(message).await }
            }
            ToolError::Abort { code, message } => {
                ToolError::Abort { code: self.cleaned(code).await, message: self.cleaned(message).await }
            }
            ToolError::NeedsInput(needed) => self.clean_needed(needed).await,
            error @ ToolError::Credential(_) => error,
        }
    }

    /// A question to a person without what is known. Keys, state and addresses stay as they are: a call whose server
    /// has put something known into one of them is refused before.
    async fn clean_needed(&self, needed: Box<NeededInput>) -> ToolError {
        if self.is_empty() {
            return ToolError::NeedsInput(needed);
        }
        let cleaned = self.read_off_thread(move |redactor| {
            let mut reading = redactor.together();
            let NeededInput { mut form, mut question } = *needed;
            form.question = reading.text(&form.question).into_owned();
            form.description = reading.text(&form.description).into_owned();
            form.parameters = clean_value(&mut reading, form.parameters);
            for part in &mut question.parts {
                part.message = reading.text(&part.message).into_owned();
            }
            NeededInput { form, question }
        });
        match cleaned.await {
            Some(needed) => ToolError::NeedsInput(Box::new(needed)),
            None => {
                let message = "the tool asks a person, and its question could not be read";
                ToolError::for_model(ToolFailure::ExecutionError, "mcp_needs_input", message)
            }
        }
    }

    /// An output without what is known; on a thread of its own, where anything is: it may be long. Its texts have their
    /// steps together.
    pub async fn clean_output(&self, output: ToolOutput) -> ToolOutput {
        if self.is_empty() {
            return output;
        }
        let cleaned = self.read_off_thread(move |redactor| {
            let mut reading = redactor.together();
            ToolOutput {
                data: clean_value(&mut reading, output.data),
                text: output.text.map(|text| reading.text(&text).into_owned()),
                instructions: output.instructions.map(|text| reading.text(&text).into_owned()),
            }
        });
        // where it can't be cleaned, nothing of it is shown
        cleaned.await.unwrap_or_else(|| ToolOutput::text(REDACTED))
    }
}

fn clean_value(reading: &mut JointRedaction<'_>, value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(reading.text(&text).into_owned()),
        Value::Array(items) => items.into_iter().map(|item| clean_value(reading, item)).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (reading.text(&name).into_owned(), clean_value(reading, value)))
            .collect(),
        other => {
            let text = other.to_string();
            if reading.text(&text) == text { other } else { Value::String(REDACTED.to_owned()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::approval::InputForm;

    #[tokio::test]
    async fn result_of_a_tool_has_none_of_the_secrets_that_its_run_has_used() {
        let used_secrets = UsedSecrets::default();
        let shown = || ToolOutput {
            data: json!({ "list": [1, "the key is s3cret-key"], "s3cret-key": 987_654_321 }),
            text: Some("s3cret-key!".into()),
            instructions: None,
        };
        assert_eq!(used_secrets.clean(Ok(shown())).await, Ok(shown()), "nothing is known");
        used_secrets.add(["s3cret-key", "987654321"]);
        let clean = used_secrets.clean(Ok(shown())).await.unwrap();
        assert_eq!(clean.data, json!({ "list": [1, "the key is [redacted]"], "[redacted]": "[redacted]" }));
        assert_eq!(clean.text.as_deref(), Some("[redacted]!"));
        let failed = ToolError::for_model(ToolFailure::ExecutionError, "no", "401 with s3cret-key");
        let told = used_secrets.clean(Err(failed)).await.unwrap_err();
        assert_eq!(told, ToolError::for_model(ToolFailure::ExecutionError, "no", "401 with [redacted]"));
        let unsent = |message: &str| ToolError::Unsent { code: "away".into(), message: message.into() };
        let told = used_secrets.clean(Err(unsent("no way with s3cret-key"))).await.unwrap_err();
        assert_eq!(told, unsent("no way with [redacted]"));
    }

    #[tokio::test]
    async fn question_of_a_server_has_none_of_the_secrets_that_its_run_has_used() {
        let asked = |word: &str| {
            let question = json!({
                "server": "shop",
                "parts": [{ "key": "k", "message": format!("Is it {word}?"), "mode": "form",
                            "fields": [{ "name": "sure", "field": "sure" }] }],
                "continuation": { "kind": "continue", "round": 1, "request_state": "cw==" },
            });
            let form = InputForm {
                question: format!("Is it {word}?"),
                description: format!("Or {word}."),
                parameters: json!({ "properties": { "sure": { "type": "string", "title": word } } }),
                values: json!({}),
                lacks: Vec::new(),
            };
            let question = serde_json::from_value(question).unwrap();
            ToolError::NeedsInput(Box::new(NeededInput { form, question }))
        };
        let used_secrets = UsedSecrets::default();
        assert_eq!(used_secrets.clean_error(asked("s3cret-key")).await, asked("s3cret-key"), "nothing is known");
        used_secrets.add(["s3cret-key"]);
        assert_eq!(used_secrets.clean_error(asked("s3cret-key")).await, asked("[redacted]"));
    }
}
