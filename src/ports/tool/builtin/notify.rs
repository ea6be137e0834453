//! `send_notification`: a message to the tenant's own recipient, by way of the outbox.

use serde::Deserialize;
use serde_json::json;

use crate::domain::approval::{Category, Consequence};
use crate::domain::task::Urgency;
use crate::ports::tool::builtin::BuiltinTool;
use crate::ports::tool::{Definition, ToolError, ToolNotice};

/// Name of the tool.
pub const SEND_NOTIFICATION: &str = "send_notification";

/// Arguments of `send_notification`.
#[derive(Deserialize)]
pub(super) struct Arguments {
    text: String,
    #[serde(default)]
    subject: Option<String>,
    #[serde(default)]
    channel: Option<String>,
    #[serde(default)]
    urgency: Option<Urgency>,
}

pub(super) fn send_notification() -> BuiltinTool<Arguments> {
    let definition = Definition::new(
        SEND_NOTIFICATION,
        "Send a message to the person you work for, and to nobody else. Your final answer reaches them anyway; \
             use this for what must reach them apart from it or earlier.",
        json!({
            "type": "object",
            "properties": {
                "text": { "type": "string", "minLength": 1, "maxLength": 20_000 },
                "subject": { "type": "string", "minLength": 1, "maxLength": 200 },
                "channel": {
                    "type": "string",
                    "description": "`email`, `webhook`, …; absent: what the person prefers",
                },
                "urgency": {
                    "type": "string", "enum": ["low", "normal", "high"],
                    "description": "absent: `normal`; only what can't wait is `high`: it comes at night as well",
                },
            },
            "required": ["text"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Low,
    );
    BuiltinTool {
        definition,
        act: |context, Arguments { text, subject, channel, urgency }| {
            Box::pin(async move {
                if urgency == Some(Urgency::Urgent) {
                    return Err(ToolError::arguments("urgency: expected `low`, `normal` or `high`"));
                }
                let notice = ToolNotice {
                    run_id: context.run_id,
                    channel,
                    urgency,
                    subject: subject.unwrap_or_else(|| first_line(&text)),
                    text,
                    subject_ref: None,
                    dedupe_key: format!("call:{}:{}:{}", context.run_id, context.turn, context.call_id),
                };
                Ok(context.host.notify(&context.tenant, notice).await?)
            })
        },
    }
}

/// The beginning of a text, as a subject.
fn first_line(text: &str) -> String {
    const LENGTH: usize = 80;
    let line = text.trim_start().lines().next().unwrap_or_default();
    match line.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_subject_defaults_to_the_first_line() {
        assert_eq!(first_line("\n Two mails\nfrom Ann"), "Two mails");
        assert_eq!(first_line(&"é".repeat(81)), format!("{}…", "é".repeat(80)));
    }
}
