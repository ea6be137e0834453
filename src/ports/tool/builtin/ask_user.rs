//! `ask_user`: a question that the model itself has, to the person it works for. The run waits for the answer.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::domain::approval::{Category, Consequence, InputForm};
use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput, ToolSource};

/// Name of the tool.
pub const ASK_USER: &str = "ask_user";
/// The argument that the answer becomes.
const ANSWER: &str = "answer";
/// Longest answer, in characters.
const LONGEST_ANSWER: usize = 10_000;

/// The tool.
pub(super) struct AskUser(Definition);

pub(super) fn ask_user() -> AskUser {
    AskUser(Definition::new(
        ASK_USER,
        "Ask the person you work for, and wait for the answer, which may take hours. Use it only for what you can't go on \
         without and can't find out otherwise.",
        json!({
            "type": "object",
            "properties": {
                "question": { "type": "string", "minLength": 1, "maxLength": 2_000 },
                "options": {
                    "type": "array", "minItems": 2, "maxItems": 20, "uniqueItems": true,
                    "items": { "type": "string", "minLength": 1, "maxLength": 200 },
                    "description": "absent: the answer is free text",
                },
            },
            "required": ["question"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Low,
    ))
}

/// The person's answer in a result of the tool. `None`: there is none that can be read, such as in a result that was
/// cut.
pub fn answer_in(result: &str) -> Option<String> {
    let result: Value = serde_json::from_str(result).ok()?;
    result.get(ANSWER)?.as_str().map(str::to_owned)
}

impl Tool for AskUser {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn source(&self) -> ToolSource {
        ToolSource::Builtin
    }

    fn may_need_input(&self) -> bool {
        true
    }

    fn input(&self, arguments: &Value) -> Option<InputForm> {
        let mut answer = json!({ "type": "string", "minLength": 1, "maxLength": LONGEST_ANSWER });
        if let Some(options) = arguments.get("options").filter(|options| options.is_array()) {
            answer = json!({ "type": "string", "enum": options });
        }
        Some(InputForm {
            question: arguments["question"].as_str().unwrap_or_default().to_owned(),
            description: String::new(),
            parameters: json!({
                "type": "object", "properties": { ANSWER: answer }, "required": [ANSWER], "additionalProperties": false,
            }),
            values: json!({}),
            lacks: Vec::new(),
        })
    }

    fn call<'a>(&'a self, _: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { Ok(ToolOutput::json(json!({ ANSWER: arguments[ANSWER] }))) })
    }
}
