//! The words of a delivery, made from what it refers to at the moment it is sent.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use crate::expr::MissingField;
use crate::notification::Delivery;
use crate::notification::question::Question;
use crate::notification::telling::{DigestItem, Telling};
use crate::notification::trouble::CredentialTelling;
use crate::run::{Run, RunState};
use crate::secret::Secret;
use crate::task::change::is_of_action;
use crate::trigger::condition::Failing;
use crate::trigger::zone::{Release, Zone};

/// Longest subject, in characters.
const SUBJECT_LENGTH: usize = 200;

/// What is said, in words for people and as data for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// One line.
    pub subject: String,
    /// In the form that the channel takes (plain, or its own markup, escaped), within its length.
    pub text: String,
    /// The same as HTML, for email alone.
    pub html: Option<String>,
    /// Where there is more to read or something to decide, for channels that have buttons; it is in `text` as well.
    pub link: Option<Link>,
    /// What messages of one conversation share: the batch of a question, the task of a result.
    pub thread: Option<String>,
    /// What happened, for channels that speak to programs: `run.finished`, `message`, `notice`, `approval.requested`,
    /// `approval.reminder`, `approval.held`, `digest`, `test`, `code`.
    pub event: &'static str,
    /// For `run.finished` the run as the API shows it and its task's name; else the message itself.
    pub data: Value,
}

impl Words {
    /// Whether somebody is asked, so that the link decides something.
    pub fn asks(&self) -> bool {
        self.event.starts_with("approval.")
    }
}

/// A link to be shown as a button. Whoever has the address may decide, or read, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Link {
    /// `Decide`, `Stop it`; `Open` to read what was cut.
    pub label: String,
    pub url: String,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("label", &self.label).finish_non_exhaustive()
    }
}

/// What a delivery refers to, as it stands when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct References<'a> {
    pub run: Option<&'a Run>,
    /// `None` where the task was deleted.
    pub task_name: Option<&'a str>,
    /// What is asked, with its link; for questions and reminders only.
    pub question: Option<&'a Question>,
    /// What a digest tells, the oldest first; empty for all else.
    pub digest: &'a [DigestItem],
    /// How many more a digest has, which are counted alone.
    pub more: usize,
    /// The digits; for codes only.
    pub code: Option<&'a Secret>,
    /// The credential that a notice is about, as it stands.
    pub credential: Option<&'a CredentialTelling>,
    /// Where all of it can be read, if it has to be cut; for what is told, not for what is asked.
    pub whole: Option<&'a Secret>,
}

/// Subject and text of the notice that a task keeps failing and is paused.
pub fn paused(task_name: &str, failures: u32) -> (String, String) {
    let text = format!(
        "The task \"{task_name}\" failed {failures} times in a row and is paused now. It fires again once it is resumed."
    );
    (format!("Paused: {task_name}"), text)
}

/// Subject and text of the notice that a task can't go on as it is stored and is disabled.
pub fn disabled(task_name: &str, why: &str) -> (String, String) {
    let (what, part) = match is_of_action(why) {
        true => ("run", "action"),
        false => ("scheduled", "trigger"),
    };
    let text = format!(
        "The task \"{task_name}\" can't be {what} any more and is disabled now: {why}. It fires again once its {part} is \
         corrected."
    );
    (format!("Disabled: {task_name}"), text)
}

/// Subject and text of the notice that a task goes on failing as it was told.
pub fn still_failing(task_name: &str, count: i64, code: &str) -> (String, String) {
    let text = format!(
        "The task \"{task_name}\" has failed {count} times now for the same reason ({code}), without a success in between. You hear \
         of it once a day, and when it works again."
    );
    (format!("Still failing: {task_name}"), text)
}

/// Subject and text of the notice that a task works again.
pub fn recovered(task_name: &str, count: i64) -> (String, String) {
    let failures = if count == 1 { "1 failure".to_owned() } else { format!("{count} failures") };
    (format!("Well again: {task_name}"), format!("The task \"{task_name}\" works again, after {failures}."))
}

/// Subject and text of the notice that what a condition polls keeps failing.
pub fn poll_failing(task_name: &str, failing: &Failing) -> (String, String) {
    let text = format!(
        "What the task \"{task_name}\" polls has failed {} times in a row: {}. It is polled on, less often; it does not \
         fire meanwhile, and you will hear when it answers again.",
        failing.count, failing.error.message
    );
    (format!("Failing: {task_name}"), text)
}

/// Subject and text of the notice that an expression looks for a field that what came, an event or an answer, does not have.
pub fn missing_field(task_name: &str, came: &str, missing: &MissingField) -> (String, String) {
    let hint = missing.did_you_mean.as_ref().map_or(String::new(), |name| format!(" Did you mean `{name}`?"));
    let text = format!(
        "{came} has come for the task \"{task_name}\" in which there is no `{}`. Its expression `{}` looks for it, and does not \
         make it fire without it.{hint} Where the field is not always there, ask with `has(…)` first. This is told once.",
        missing.field, missing.expression
    );
    (format!("A field is missing: {task_name}"), text)
}

/// Subject and text of the notice that it answers again.
pub fn poll_recovered(task_name: &str, failing: &Failing) -> (String, String) {
    let text = format!("What the task \"{task_name}\" polls answers again, after {} failing polls.", failing.count);
    (format!("Well again: {task_name}"), text)
}

/// Subject and text of the notice that a task fires at another instant, because the rules of its zone have changed.
pub fn zone_rules(
    task_name: &str,
    (zone, release): (&Zone, &Release),
    was: DateTime<Utc>,
    becomes: Option<DateTime<Utc>>,
) -> (String, String) {
    let local = |at: DateTime<Utc>| {
        let (here, abbreviation) = (zone.shows(at).format("%Y-%m-%d %H:%M"), zone.abbreviation(at));
        format!("{here} {abbreviation} ({} UTC)", at.format("%Y-%m-%d %H:%M"))
    };
    let next = match becomes {
        Some(at) => format!("It fires next at {}; it was planned for {}.", local(at), local(was)),
        None => format!("It was planned for {}, and has no further fire.", local(was)),
    };
    let text = format!(
        "The rules of the time zone {} have changed (release {release}), so the task \"{task_name}\" is planned anew. {next}",
        zone.name()
    );
    (format!("Moved: {task_name}"), text)
}

/// Subject and text of a message with a code that proves an address.
pub(super) fn ownership_code(code: &Secret) -> (Option<String>, String) {
    let text = format!(
        "{} is the code that proves that this address is yours. It is good for 10 minutes. If you did not ask for it, \
         do nothing.",
        code.expose()
    );
    (Some("Your code".into()), text)
}

/// The answer of a run, or that it has none.
pub(super) fn answer(run: &Run) -> String {
    match run.output.as_deref().map(str::trim) {
        None | Some("") => "Done, without an answer.".into(),
        Some(output) => output.to_owned(),
    }
}

/// What became of a run that did not succeed, and why.
pub(super) fn failure(run: &Run) -> (&'static str, String) {
    let what = match run.state {
        RunState::Expired => "expired",
        RunState::Cancelled => "was cancelled",
        RunState::Skipped => "was skipped",
        _ => "failed",
    };
    let why = match (&run.error, &run.reason) {
        (Some(fault), _) => format!("{} ({})", fault.message, fault.code),
        (None, Some(reason)) => reason.clone(),
        (None, None) => "no reason was recorded".into(),
    };
    (what, why)
}

pub(super) fn run_data(run: &Run, task_name: Option<&str>, limit: usize) -> Value {
    let mut data = serde_json::to_value(run).unwrap_or_default();
    data["task_name"] = json!(task_name);
    if let Some(output) = &run.output {
        data["output"] = json!(cut(output, limit, Some(&format!("the whole is in run {}", run.id))));
    }
    data
}

/// The messages of a digest for programs.
pub(super) fn digest_data(tenant_id: &str, items: &[DigestItem], more: usize) -> Value {
    let item = |item: &DigestItem| {
        let at = item.created_at.to_rfc3339_opts(SecondsFormat::Millis, true);
        json!({ "subject": item.subject, "text": item.text, "created_at": at })
    };
    json!({ "tenant_id": tenant_id, "items": items.iter().map(item).collect::<Vec<_>>(), "more": more })
}

pub(super) fn message_data(delivery: &Delivery, telling: &Telling, limit: usize) -> Value {
    let subject = telling.subject.clone().unwrap_or_else(|| format!("Message from {}", telling.task));
    json!({
        "tenant_id": delivery.tenant_id, "run_id": delivery.run_id, "subject": one_line(&subject),
        "text": cut(&telling.text, limit, None),
    })
}

/// `text` within `limit` characters, its end given up for a note where it is longer.
pub fn cut(text: &str, limit: usize, whole: Option<&str>) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let whole = whole.map(|place| format!("; {place}")).unwrap_or_default();
    let note = format!("\n\n[cut: {length} characters, {limit} at most{whole}]");
    match limit.checked_sub(note.chars().count()) {
        Some(room) => format!("{}{note}", beginning(text, room)),
        None => shortened(text, limit),
    }
}

/// A text within so many characters; where its end is given up, an ellipsis says so.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let ellipsis = if limit == 0 { "" } else { "…" };
    format!("{}{ellipsis}", beginning(text, limit.saturating_sub(1)))
}

/// The first characters of a text. A whole line looks better, where that does not cost half of what there is room for.
fn beginning(text: &str, room: usize) -> &str {
    let end = text.char_indices().nth(room).map_or(text.len(), |(end, _)| end);
    let head = &text[..end];
    head[..head.rfind('\n').filter(|end| *end > head.len() / 2).unwrap_or(head.len())].trim_end()
}

/// A text as a subject: one line, without control characters, not too long.
pub fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    match line.chars().count() {
        n if n > SUBJECT_LENGTH => line.chars().take(SUBJECT_LENGTH - 1).chain(['…']).collect(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_line_with_a_note_and_stays_within_the_limit() {
        assert_eq!(cut("short", 5, None), "short");
        let text = "0123456789\n".repeat(30);
        let cut_text = cut(&text, 200, Some("the whole is in run 42"));
        assert!(cut_text.chars().count() <= 200, "{}", cut_text.chars().count());
        assert!(
            cut_text.ends_with("0123456789\n\n[cut: 330 characters, 200 at most; the whole is in run 42]"),
            "{cut_text}"
        );
        let wide = cut(&"é".repeat(500), 100, None);
        assert_eq!(wide.chars().count(), 100);
        assert!(wide.ends_with("[cut: 500 characters, 100 at most]"), "{wide}");
        assert_eq!(cut("0123456789", 4, None).chars().count(), 4);
    }

    #[test]
    fn a_subject_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\r\nBcc: b@c\u{7}  d"), "a Bcc: b@c d");
        assert_eq!(one_line(&"x".repeat(300)).chars().count(), 200);
    }
}
