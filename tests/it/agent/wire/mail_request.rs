//! A conversation about mail, in parts, and the request that is made of it. Each wire has a test of the body that it
//! writes for such a request.

use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::{ModelRequest, ToolChoice, ToolSchema};
use serde_json::json;

use crate::agent::harness::call;

/// A request with this conversation, one tool, and every setting of a request.
pub fn request_of(messages: Vec<TranscriptMessage>) -> ModelRequest {
    let parameters = json!({ "type": "object", "properties": { "box": { "type": "string" } } });
    ModelRequest {
        messages,
        tools: vec![ToolSchema {
            name: "read".into(),
            description: "Reads mail".into(),
            parameters: parameters.into(),
        }]
        .into(),
        tool_choice: ToolChoice::Auto,
        max_tokens: Some(500),
        temperature: Some(0.5),
    }
}

/// A turn of two calls, the second of which has arguments that are no JSON, and their results.
pub fn two_calls() -> [TranscriptMessage; 3] {
    let calls = TranscriptMessage::Assistant {
        text: Some("Let me look.".into()),
        tool_calls: vec![call("c1", "read", json!({ "box": "in" })), call("c2", "read", json!("{broken"))],
        provider_message: None,
        finish: None,
    };
    [calls, result("c1", "2 mails", false), result("c2", "Operation failed.", true)]
}

/// The result of a call.
pub fn result(id: &str, content: &str, is_error: bool) -> TranscriptMessage {
    TranscriptMessage::Tool {
        call_id: id.into(),
        name: "read".into(),
        notices: vec![],
        content: content.into(),
        is_error,
        reasons: vec![],
        fetched_at: None,
    }
}
