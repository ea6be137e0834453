//! Keys that keep a message from being made twice: `docs/keys.md`, "Messages".
//!
//! Keys are made and compared, and never read: what a message is about stands in its
//! [`SubjectRef`](crate::domain::notification::SubjectRef).

use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use uuid::Uuid;

use crate::domain::notification::NoticeKind;

/// Characters of a definition's hash in a key.
const DEFINITION_CHARS: usize = 12;

/// Key of a run's result or failure: a run tells one of them.
pub fn run_result(run: Uuid) -> String {
    format!("run:{run}:result")
}

/// Key of a message that a tool call of a run sends.
pub fn call(run: Uuid, turn: i64, call: &str) -> String {
    format!("call:{run}:{turn}:{call}")
}

/// Key of a message that a step of a pipeline sends, or one item of it.
pub fn step(run: Uuid, step: &str, index: Option<u32>) -> String {
    format!("step:{run}:{step}:{}", index.unwrap_or(0))
}

/// The question about a batch of calls.
pub fn ask(batch: Uuid) -> String {
    format!("batch:{batch}:ask")
}

/// Its `n`th reminder.
pub fn reminder(batch: Uuid, n: usize) -> String {
    format!("batch:{batch}:reminder:{n}")
}

/// The `n`th notice of a kind about one thing.
pub fn notice(kind: NoticeKind, id: impl std::fmt::Display, n: i64) -> String {
    format!("notice:{}:{id}:{n}", kind.as_str())
}

/// That most of a budget of a day is used, or all of it; `whose` is the task, or the tenant.
pub fn budget(kind: NoticeKind, whose: impl std::fmt::Display, day: NaiveDate) -> String {
    format!("notice:{}:{whose}:{day}", kind.as_str())
}

/// That most of a run's budget is used.
pub fn run_budget(run_id: Uuid) -> String {
    notice(NoticeKind::BudgetWarning, run_id, 1)
}

/// A message that somebody asked for to see that a channel works.
pub fn test(id: Uuid) -> String {
    format!("notice:test:{id}:1")
}

/// That a credential's other side has ended it, by the document that it happened to.
pub fn credential_ended(credential: Uuid, generation: i64) -> String {
    notice(NoticeKind::Credential, credential, generation)
}

/// That the definition of a tool has changed; `hash` is the new one's.
pub fn tool_changed(tool: &str, hash: &str) -> String {
    let definition: String = hash.chars().take(DEFINITION_CHARS).collect();
    format!("notice:{}:{tool}:{definition}", NoticeKind::ToolChanged.as_str())
}

/// The digest that a recipient gets on a channel at an instant.
pub fn digest(channel: &str, at: DateTime<Utc>) -> String {
    format!("digest:{channel}:{}", at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// A code that proves an address of a channel.
pub fn code(channel: &str, id: Uuid) -> String {
    format!("code:{channel}:{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_changed_tool_is_that_of_its_definition() {
        let key = tool_changed("github.merge", "0123456789abcdef");
        assert_eq!(key, "notice:tool_changed:github.merge:0123456789ab");
        assert_ne!(tool_changed("github.merge", "ffff"), key);
    }
}
