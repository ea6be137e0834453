//! Messages by their importance: what people wrote, results and errors are whole in whatever takes their place; of what
//! the model said and of the arguments of its calls the beginnings do.

use crate::agent::context::cut::beginning;
use crate::domain::run::{ToolCall, TranscriptMessage};

/// As much of what the model said is kept, in characters.
const THOUGHT: usize = 100;
/// As much of the arguments of a call is kept, in characters.
const ARGUMENTS: usize = 200;

/// A message in few words; `None`: there is nothing to say of it.
pub fn extract(message: &TranscriptMessage) -> Option<String> {
    match message {
        TranscriptMessage::User { text, .. } => Some(format!("Message: {text}")),
        TranscriptMessage::Assistant { text, tool_calls, .. } => {
            let said = text.as_deref().filter(|text| !text.trim().is_empty());
            let said = said.map(|text| format!("You said: {}", beginning(text, THOUGHT)));
            let lines: Vec<String> = said.into_iter().chain(tool_calls.iter().map(call_line)).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        }
        TranscriptMessage::Tool { name, content, is_error, .. } => {
            let kind = if *is_error { "Error" } else { "Result" };
            Some(format!("{kind} of {name}: {content}"))
        }
        TranscriptMessage::System { .. }
        | TranscriptMessage::Unusable { .. }
        | TranscriptMessage::Verdict { .. }
        | TranscriptMessage::Compaction(_)
        | TranscriptMessage::Pipeline { .. }
        | TranscriptMessage::Step { .. }
        | TranscriptMessage::StepResult { .. } => None,
    }
}

fn call_line(call: &ToolCall) -> String {
    format!("You called {} with {}", call.name, beginning(&call.args.to_string(), ARGUMENTS))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::run::ResultNotice;

    #[test]
    fn messages_of_people_results_and_errors_are_whole_and_the_models_are_short() {
        let long = "word ".repeat(1000);
        let result = |is_error| TranscriptMessage::Tool {
            call_id: "1".into(),
            name: "read".into(),
            notices: vec![ResultNotice::other("Changed.\n\n")],
            content: long.clone(),
            is_error,
            reasons: vec![],
            fetched_at: None,
        };
        assert_eq!(extract(&TranscriptMessage::user(long.clone())).unwrap(), format!("Message: {long}"));
        assert_eq!(extract(&result(false)).unwrap(), format!("Result of read: {long}"));
        assert_eq!(extract(&result(true)).unwrap(), format!("Error of read: {long}"));
        let said = |text: &str| TranscriptMessage::Assistant {
            text: Some(text.into()),
            tool_calls: vec![ToolCall::new("1", "read", json!({ "box": long }))],
            provider_message: None,
            finish: None,
        };
        let short = extract(&said(&long)).unwrap();
        let (thought, call) = short.split_once('\n').unwrap();
        assert_eq!(thought, format!("You said: {}…", "word ".repeat(20)));
        assert!(call.starts_with("You called read with {\"box\":\"word word") && call.chars().count() < 230, "{call}");
        assert!(extract(&said(" \n")).unwrap().starts_with("You called"), "nothing was said");
        assert_eq!(extract(&TranscriptMessage::system("s")), None);
    }
}
