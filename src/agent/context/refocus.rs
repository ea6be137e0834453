//! The reminder after so many rounds of calls: what the model has decided, and what came of its calls. It stands at the
//! end of one request alone, so that it is neither stored nor repeated.

use crate::agent::context::cut::beginning;
use crate::agent::verify::is_asked_again;
use crate::base::template::untrusted::fenced;
use crate::domain::run::{TranscriptEntry, TranscriptMessage};

/// Decisions and results that it names, the last ones.
const NAMED: usize = 10;
/// Longest decision or result in it, in characters.
const LENGTH: usize = 160;

/// The reminder that is due behind these entries; `None`: none is.
pub fn reminder(entries: &[TranscriptEntry], every: u32) -> Option<TranscriptMessage> {
    let is_question = |entry: &TranscriptEntry| {
        matches!(entry.message, TranscriptMessage::User { .. }) && !is_asked_again(&entry.message)
    };
    let since = entries.iter().rposition(is_question).map_or(entries, |question| &entries[question + 1..]);
    let rounds = since.iter().filter(|entry| makes_calls(&entry.message)).count();
    if every == 0 || rounds == 0 || !rounds.is_multiple_of(every as usize) {
        return None;
    }
    let (decisions, results) = (lines(since, decision), lines(since, outcome));
    let so_far = fenced("conversation", &format!("Decisions:\n{decisions}\nResults:\n{results}"));
    let text = format!(
        "[Refocus] {rounds} rounds of calls are done. Keep to the task in the last message that you were sent. What you have decided \
         and what came of your calls, the latest at the end:\n{so_far}\nDo what is missing, or answer if nothing is."
    );
    Some(TranscriptMessage::ephemeral(text))
}

fn makes_calls(message: &TranscriptMessage) -> bool {
    matches!(message, TranscriptMessage::Assistant { tool_calls, .. } if !tool_calls.is_empty())
}

/// The last lines that messages give.
fn lines(entries: &[TranscriptEntry], line: fn(&TranscriptMessage) -> Option<String>) -> String {
    let all: Vec<String> = entries.iter().filter_map(|entry| line(&entry.message)).collect();
    let last: Vec<String> = all[all.len().saturating_sub(NAMED)..].iter().map(|line| format!("- {line}")).collect();
    if last.is_empty() { "- none".into() } else { last.join("\n") }
}

fn decision(message: &TranscriptMessage) -> Option<String> {
    match message {
        TranscriptMessage::Assistant { text: Some(text), .. } if !text.trim().is_empty() => {
            Some(beginning(text, LENGTH))
        }
        _ => None,
    }
}

fn outcome(message: &TranscriptMessage) -> Option<String> {
    match message {
        TranscriptMessage::Tool { name, content, is_error, .. } => {
            let outcome = if *is_error { "failed" } else { "done" };
            Some(format!("{name} {outcome}: {}", beginning(content, LENGTH)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;

    use super::*;
    use crate::domain::run::ToolCall;

    fn entries(messages: Vec<TranscriptMessage>) -> Vec<TranscriptEntry> {
        let entry = |(seq, message)| TranscriptEntry::new(seq, 0, DateTime::UNIX_EPOCH, message);
        (0..).zip(messages).map(entry).collect()
    }

    /// A question, and so many rounds behind it.
    fn rounds(count: usize) -> Vec<TranscriptMessage> {
        let round = |n: usize| {
            let said = TranscriptMessage::Assistant {
                text: n.is_multiple_of(2).then(|| format!("I look at {n}.")),
                tool_calls: vec![ToolCall::new("c", "read", json!({}))],
                provider_message: None,
                finish: None,
            };
            let result = TranscriptMessage::Tool {
                call_id: "c".into(),
                name: "read".into(),
                notices: vec![],
                content: format!("page\n{n}"),
                is_error: n == 3,
                reasons: vec![],
                fetched_at: None,
            };
            [said, result]
        };
        std::iter::once(TranscriptMessage::user("Find it.")).chain((1..=count).flat_map(round)).collect()
    }

    #[test]
    fn reminder_is_due_after_so_many_rounds_since_the_last_question() {
        let due: Vec<usize> = (0..=15).filter(|count| reminder(&entries(rounds(*count)), 5).is_some()).collect();
        assert_eq!(due, [5, 10, 15]);
        assert_eq!(reminder(&entries(rounds(5)), 0), None, "switched off");
        let again = [rounds(5), rounds(4)].concat();
        assert_eq!(reminder(&entries(again), 5), None, "a question begins the count anew");
    }

    #[test]
    fn reminder_names_decisions_and_results_as_data() {
        let Some(TranscriptMessage::User { text, .. }) = reminder(&entries(rounds(5)), 5) else { panic!("none") };
        let so_far = "Decisions:\n- I look at 2.\n- I look at 4.\nResults:\n- read done: page 1\n- read done: page 2\n\
                      - read failed: page 3\n- read done: page 4\n- read done: page 5";
        assert!(text.starts_with("[Refocus] 5 rounds of calls are done."), "{text}");
        assert!(text.contains(&fenced("conversation", so_far)), "{text}");
        let Some(TranscriptMessage::User { text, .. }) = reminder(&entries(rounds(40)), 5) else { panic!("none") };
        assert_eq!(text.matches("\n- ").count(), 2 * NAMED, "the last ones");
    }
}
