//! The words of a delivery, made from what it refers to at the moment it is sent.

use chrono_tz::Tz;
use serde_json::{Value, json};

use crate::notification::{Delivery, Kind};
use crate::run::{Run, RunState};

/// Longest subject, in characters.
const SUBJECT_LENGTH: usize = 200;
/// What a task is called that is no longer there.
const NAMELESS: &str = "a task";

/// What is said, in words for people and as data for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// One line.
    pub subject: String,
    pub text: String,
    /// What happened, for channels that speak to programs: `run.finished`, `message`, `notice`.
    pub event: &'static str,
    /// For `run.finished` the run as the API shows it and its task's name; else the message itself.
    pub data: Value,
}

/// What a delivery refers to, as it stands when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct References<'a> {
    pub run: Option<&'a Run>,
    /// `None` where the task was deleted.
    pub task_name: Option<&'a str>,
}

impl Words {
    /// The words for a delivery, the text no longer than `limit` characters. An error says what is gone.
    pub fn of(delivery: &Delivery, about: References, timezone: Tz, limit: usize) -> Result<Words, String> {
        let name = about.task_name.unwrap_or(NAMELESS);
        let (subject, text) = match (delivery.kind, about.run) {
            (Kind::Message | Kind::Notice, _) => literal(delivery, name),
            (Kind::Result, Some(run)) => (name.to_owned(), answer(run)),
            (Kind::Failure, Some(run)) => failure(run, name, timezone),
            (Kind::Result | Kind::Failure, None) => return Err("the run that it tells of is no longer there".into()),
        };
        let whole = about.run.map(|run| format!("the whole is in run {}", run.id));
        let text = cut(&text, limit, whole.as_deref());
        let subject = one_line(&subject);
        let (event, data) = match (delivery.kind, about.run) {
            (Kind::Result | Kind::Failure, Some(run)) => ("run.finished", run_data(run, about.task_name, limit)),
            (Kind::Notice, _) => ("notice", message_data(delivery, &subject, &text)),
            _ => ("message", message_data(delivery, &subject, &text)),
        };
        Ok(Words { subject, text, event, data })
    }
}

fn literal(delivery: &Delivery, name: &str) -> (String, String) {
    let subject = delivery.subject.clone().unwrap_or_else(|| format!("Message from {name}"));
    (subject, delivery.text.clone().unwrap_or_default())
}

fn answer(run: &Run) -> String {
    match run.output.as_deref().map(str::trim) {
        None | Some("") => "Done, without an answer.".into(),
        Some(output) => output.to_owned(),
    }
}

fn failure(run: &Run, name: &str, timezone: Tz) -> (String, String) {
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
    let due = run.scheduled_for.with_timezone(&timezone).format("%Y-%m-%d %H:%M %Z");
    let attempts = match run.attempt {
        ..=1 => String::new(),
        n => format!(" It was tried {n} times."),
    };
    let text = format!("\"{name}\", due {due}, {what}: {why}.{attempts}\n\nRun {}", run.id);
    (format!("{name} {what}"), text)
}

fn run_data(run: &Run, task_name: Option<&str>, limit: usize) -> Value {
    let mut data = serde_json::to_value(run).unwrap_or_default();
    data["task_name"] = json!(task_name);
    if let Some(output) = &run.output {
        data["output"] = json!(cut(output, limit, Some(&format!("the whole is in run {}", run.id))));
    }
    data
}

fn message_data(delivery: &Delivery, subject: &str, text: &str) -> Value {
    json!({ "tenant_id": delivery.tenant_id, "run_id": delivery.run_id, "subject": subject, "text": text })
}

/// `text` within `limit` characters, its end given up for a note where it is longer.
pub fn cut(text: &str, limit: usize, whole: Option<&str>) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let whole = whole.map(|place| format!("; {place}")).unwrap_or_default();
    let note = format!("\n\n[cut: {length} characters, {limit} at most{whole}]");
    let room = limit.saturating_sub(note.chars().count());
    let head: String = text.chars().take(room).collect();
    // a whole line looks better, where that does not cost half of what there is room for
    let end = head.rfind('\n').filter(|end| *end > head.len() / 2).unwrap_or(head.len());
    let cut = format!("{}{note}", head[..end].trim_end());
    cut.chars().take(limit).collect()
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    match line.chars().count() {
        n if n > SUBJECT_LENGTH => line.chars().take(SUBJECT_LENGTH - 1).chain(['…']).collect(),
        _ => line,
    }
}
