//! Keys that keep a message from being made twice: `docs/keys.md`, "Messages".

use chrono::{DateTime, SecondsFormat, Utc};
use uuid::Uuid;

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

/// The batch that a question or a reminder is about.
pub fn batch_of(key: &str) -> Option<Uuid> {
    key.strip_prefix("batch:")?.split(':').next()?.parse().ok()
}

/// The `n`th notice of a kind about one thing.
pub fn notice(kind: &str, id: impl std::fmt::Display, n: i64) -> String {
    format!("notice:{kind}:{id}:{n}")
}

/// `notice:paused:…` is of the kind `paused`; what is no notice is of none.
pub fn notice_kind(key: &str) -> &str {
    key.strip_prefix("notice:").and_then(|rest| rest.split(':').next()).unwrap_or_default()
}

/// The id of the subject of a notice, where it has one.
pub fn noticed(key: &str) -> Option<Uuid> {
    key.strip_prefix("notice:")?.split(':').nth(1)?.parse().ok()
}

/// That an expression of a task looks for a field in vain: once for each expression.
pub fn missing_field(task: Uuid, expression: &str) -> String {
    notice("missing_field", task, crc32fast::hash(expression.as_bytes()).into())
}

/// That a pipeline looks for a field in vain: once for each version of its steps, by their digest.
pub fn missing_field_of_steps(task: Uuid, steps: &str) -> String {
    notice("missing_field", task, crc32fast::hash(steps.as_bytes()).into())
}

/// That a credential's other side has ended it, by the document that it happened to.
pub fn ended(credential: Uuid, generation: i64) -> String {
    notice("credential", credential, generation)
}

/// The digest that a recipient gets on a channel at an instant.
pub fn digest(channel: &str, at: DateTime<Utc>) -> String {
    format!("digest:{channel}:{}", at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// When the digest of this key is due.
pub fn digest_at(key: &str) -> Option<DateTime<Utc>> {
    key.strip_prefix("digest:")?.split_once(':')?.1.parse().ok()
}

/// A code that proves an address of a channel.
pub fn code(channel: &str, id: Uuid) -> String {
    format!("code:{channel}:{id}")
}
