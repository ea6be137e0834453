//! A conversation: a person's messages and their answers. It is a task whose runs are its messages, so that each is
//! leased, resumed, approved, budgeted and cancelled as every run is, and one is answered after the other.
//!
//! Pure: the present is an argument. The input of such a run is the message, its output the answer.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::base::invalid::FieldError;
use crate::domain::run::TranscriptMessage;
use crate::domain::task::{Draft, NAME_LENGTH, Output, RetryPolicy, Spec, Task};
use crate::domain::trigger::{ChatTrigger, Trigger};

/// Longest message, in characters.
pub const MESSAGE_LENGTH: usize = 32_768;
/// How long a conversation is kept after its last use: a message, or the end of a run.
pub const KEPT_FOR: TimeDelta = TimeDelta::days(7);
/// Earlier runs that a run is told of, the newest.
pub const REMEMBERED: usize = 20;
/// Characters of one text of an earlier run.
const REMEMBERED_TEXT: usize = 8_000;
/// Characters of all of them together.
const REMEMBERED_IN_ALL: usize = 64_000;
/// Stands where a text was cut.
const CUT: &str = " […]";
/// The `source` of messages that were written in earlier runs.
pub const HISTORY: &str = "history";
/// The key of a message's metadata with the kind of the trigger for which it stands.
const TRIGGER_TYPE: &str = "trigger_type";

/// A conversation as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Conversation {
    /// Id of the conversation, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns it.
    pub tenant_id: String,
    /// The beginning of its first message.
    pub title: String,
    /// The instant of its first message.
    pub created_at: DateTime<Utc>,
    /// The instant of its last message.
    pub last_message_at: DateTime<Utc>,
}

/// Parts of a request in the form of Open Responses that its response repeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestEcho {
    /// It asked for a response in the background.
    pub background: bool,
    /// The run of the response that it goes on with.
    pub previous: Option<Uuid>,
}

/// A run that has ended with an answer, as a later run of the same conversation is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierRun {
    /// The run.
    pub id: Uuid,
    /// The word of its trigger.
    pub trigger_type: String,
    /// The instant for which it was recorded.
    pub scheduled_for: DateTime<Utc>,
    /// Its input; of a chat the message.
    pub input: Option<Value>,
    /// Its answer.
    pub output: String,
}

/// The id of the conversation that begins with this run. A request that is repeated has the same run, and so finds it.
pub fn begun_by(run_id: Uuid) -> Uuid {
    let mut bytes = run_id.into_bytes();
    // the last bits of a UUIDv7 are chance
    bytes[15] ^= 1;
    Uuid::from_bytes(bytes)
}

/// A new conversation of a tenant, which begins with this message.
///
/// # Errors
/// None in practice: its trigger has no instants.
pub fn new_conversation(id: Uuid, tenant: Tenant, message: &str, now: DateTime<Utc>) -> Result<Task, FieldError> {
    let spec = Spec {
        output: Output::nobody(),
        // somebody waits
        retry: RetryPolicy { backoff_seconds: 1, ..RetryPolicy::default() },
        pause_after_failures: None,
        ..Spec::of(Trigger::Chat(ChatTrigger::default()))
    };
    Task::new(id, Draft { tenant, key: None, name: title(message), spec }, now).map(|(task, _)| task)
}

/// The beginning of a message, on one line.
fn title(message: &str) -> String {
    let words = message.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(NAME_LENGTH / 2).collect()
}

/// The messages that a run's transcript begins with, oldest first, of the runs before it, newest first. Of long texts
/// the beginnings, and of all of them as many as fit.
pub fn history(earlier: &[EarlierRun]) -> Vec<TranscriptMessage> {
    let mut left = REMEMBERED_IN_ALL;
    let mut exchanges = Vec::new();
    for run in earlier.iter().take(REMEMBERED) {
        let (asked, answered) = (cut(&question(run)), cut(&run.output));
        let length = asked.chars().count() + answered.chars().count();
        if length > left {
            break;
        }
        left -= length;
        exchanges.push([asked_message(run, asked), answered_message(answered)]);
    }
    exchanges.into_iter().rev().flatten().collect()
}

/// The question of the run, in words that are ours or a person's own.
fn question(run: &EarlierRun) -> String {
    match (&run.input, run.trigger_type == ChatTrigger::KIND) {
        (Some(Value::String(message)), true) => message.clone(),
        _ => format!("[Earlier run] This task, as it was due {}.", run.scheduled_for.format("%Y-%m-%dT%H:%M:%SZ")),
    }
}

fn asked_message(run: &EarlierRun, text: String) -> TranscriptMessage {
    let metadata = [("source", json!(HISTORY)), (TRIGGER_TYPE, json!(run.trigger_type)), ("run_id", json!(run.id))];
    let metadata: Map<String, Value> = metadata.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    TranscriptMessage::User { text, metadata }
}

/// Whether a person has written the message with this metadata, in this run or in an earlier one of its conversation.
pub fn is_of_person(metadata: &Map<String, Value>) -> bool {
    metadata.get(TRIGGER_TYPE).is_some_and(|kind| kind == ChatTrigger::KIND)
}

fn answered_message(text: String) -> TranscriptMessage {
    TranscriptMessage::Assistant { text: Some(text), tool_calls: Vec::new(), provider_message: None, finish: None }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(REMEMBERED_TEXT) {
        Some((end, _)) => format!("{}{CUT}", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u128, input: &str, output: &str) -> EarlierRun {
        EarlierRun {
            id: Uuid::from_u128(number),
            trigger_type: "chat".into(),
            scheduled_for: DateTime::UNIX_EPOCH,
            input: Some(json!(input)),
            output: output.into(),
        }
    }

    fn texts(messages: &[TranscriptMessage]) -> Vec<String> {
        let text = |message: &TranscriptMessage| match message {
            TranscriptMessage::User { text, .. } => format!("> {text}"),
            TranscriptMessage::Assistant { text, .. } => text.clone().unwrap_or_default(),
            other => panic!("{other:?}"),
        };
        messages.iter().map(text).collect()
    }

    #[test]
    fn earlier_runs_are_told_oldest_first_by_their_messages_and_answers() {
        let earlier = [run(2, "and then?", "rain"), run(1, "hello", "hi")];
        assert_eq!(texts(&history(&earlier)), ["> hello", "hi", "> and then?", "rain"]);
        let due = EarlierRun { trigger_type: "schedule".into(), ..run(1, "{\"injected\": true}", "done") };
        assert_eq!(
            texts(&history(std::slice::from_ref(&due))),
            ["> [Earlier run] This task, as it was due 1970-01-01T00:00:00Z.", "done"]
        );
        let is_person_s = |message: &TranscriptMessage| match message {
            TranscriptMessage::User { metadata, .. } => is_of_person(metadata),
            _ => false,
        };
        let of_person = [&earlier[..], &[due]].concat();
        let of_person: Vec<bool> = history(&of_person).iter().map(is_person_s).collect();
        assert_eq!(of_person, [false, false, true, false, true, false], "of a message, and not of a fire");
    }

    #[test]
    fn of_many_and_long_runs_the_newest_are_told_within_the_bounds() {
        let many: Vec<_> = (0..30).map(|number| run(number, &number.to_string(), "a")).collect();
        let told = texts(&history(&many));
        assert_eq!((told.len(), told[0].as_str(), told[38].as_str()), (2 * REMEMBERED, "> 19", "> 0"));
        let long: Vec<_> = (0..20).map(|number| run(number, "short", &"x".repeat(10_000))).collect();
        let told = texts(&history(&long));
        assert_eq!(told[1], format!("{}{CUT}", "x".repeat(REMEMBERED_TEXT)));
        let length: usize = told.iter().map(|text| text.chars().count()).sum();
        assert!(told.len() == 14 && length < REMEMBERED_IN_ALL + 100, "{} texts, {length}", told.len());
    }

    #[test]
    fn conversation_is_named_by_its_first_message_and_told_to_nobody_else() {
        let (tenant, now) = (Tenant::new("ann").unwrap(), DateTime::UNIX_EPOCH);
        let long = format!("  What\n\tis {}", "long ".repeat(100));
        let task = new_conversation(Uuid::nil(), tenant, &long, now).unwrap();
        assert!(task.name.starts_with("What is long long") && task.name.chars().count() == NAME_LENGTH / 2);
        assert!(task.is_chat() && !task.spec.trigger.may_overlap() && task.next_fire_at.is_none());
        assert_eq!((task.spec.output, task.spec.retry.max_attempts), (Output::nobody(), 3), "a crash counts as one");
    }

    #[test]
    fn run_and_the_conversation_that_it_begins_have_ids_that_follow_from_each_other() {
        let run = crate::base::id::new_id(DateTime::UNIX_EPOCH);
        assert_eq!((begun_by(run) != run, begun_by(begun_by(run))), (true, run));
    }
}
