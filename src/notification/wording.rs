//! The words of a delivery, made from what it refers to at the moment it is sent.

use chrono::SecondsFormat;
use serde_json::{Value, json};

use crate::notification::Delivery;
use crate::notification::language::MessageLanguage;
use crate::notification::question::Question;
use crate::notification::telling::{DigestItem, Telling};
use crate::notification::trouble::CredentialTelling;
use crate::run::{Run, RunState};
use crate::secret::Secret;

/// Longest subject, in characters.
const SUBJECT_LENGTH: usize = 200;

/// A message in words for people and as data for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// One line.
    pub subject: String,
    /// In the form that the channel takes (plain, or its own markup, escaped), within its length.
    pub text: String,
    /// The text as HTML, for email alone.
    pub html: Option<String>,
    /// Where there is more to read or something to decide, for channels that have buttons; it is in `text` as well.
    pub link: Option<Link>,
    /// Key that messages of one conversation share: the batch of a question, the task of a result.
    pub thread: Option<String>,
    /// The type of the event, for channels that speak to programs: `run.finished`, `message`, `notice`,
    /// `approval.requested`, `approval.reminder`, `approval.held`, `digest`, `test`, `code`.
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

/// A link to be shown as a button. Anybody who has the address may decide, or read, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Link {
    /// `Decide`, `Stop it`; `Open` to read what was cut.
    pub label: String,
    /// Address of the link.
    pub url: String,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("label", &self.label).finish_non_exhaustive()
    }
}

/// The things to which a delivery refers, as they stand when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct References<'a> {
    /// The run that the message is about.
    pub run: Option<&'a Run>,
    /// `None` where the task was deleted.
    pub task_name: Option<&'a str>,
    /// The question with its link; for questions and reminders only.
    pub question: Option<&'a Question>,
    /// Messages of a digest, the oldest first; empty for all else.
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

/// Subject and text of a message with a code that proves an address.
pub(super) fn ownership_code(language: MessageLanguage, code: &Secret) -> (Option<String>, String) {
    let code = code.expose();
    match language {
        MessageLanguage::English => {
            let text = format!(
                "{code} is the code that proves that this address is yours. It is good for 10 minutes. If you did not ask for \
                 it, do nothing."
            );
            (Some("Your code".into()), text)
        }
        MessageLanguage::German => {
            let text = format!(
                "{code} ist der Code, der zeigt, dass diese Adresse Ihre ist. Er gilt 10 Minuten. Wenn Sie ihn nicht verlangt \
                 haben, tun Sie nichts."
            );
            (Some("Ihr Code".into()), text)
        }
    }
}

/// The answer of a run, or that it has none.
pub(super) fn answer(language: MessageLanguage, run: &Run) -> String {
    match run.output.as_deref().map(str::trim) {
        None | Some("") => language.pick("Done, without an answer.", "Erledigt, ohne Antwort.").into(),
        Some(output) => output.to_owned(),
    }
}

/// The outcome of a run that did not succeed, and the reason.
pub(super) fn failure(language: MessageLanguage, run: &Run) -> (&'static str, String) {
    let what = match run.state {
        RunState::Expired => language.pick("expired", "ist abgelaufen"),
        RunState::Cancelled => language.pick("was cancelled", "wurde abgebrochen"),
        RunState::Skipped => language.pick("was skipped", "wurde übersprungen"),
        _ => language.pick("failed", "ist fehlgeschlagen"),
    };
    let why = match (&run.error, &run.reason) {
        (Some(fault), _) => format!("{} ({})", fault.message, fault.code),
        (None, Some(reason)) => reason.clone(),
        (None, None) => language.pick("no reason was recorded", "ein Grund ist nicht verzeichnet").into(),
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
    cut_in(MessageLanguage::English, text, limit, whole)
}

/// A text cut to `limit` characters, with a note in this language at its end.
pub fn cut_in(language: MessageLanguage, text: &str, limit: usize, whole: Option<&str>) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let whole = whole.map(|place| format!("; {place}")).unwrap_or_default();
    let note = match language {
        MessageLanguage::English => format!("\n\n[cut: {length} characters, {limit} at most{whole}]"),
        MessageLanguage::German => format!("\n\n[gekürzt: {length} Zeichen, höchstens {limit}{whole}]"),
    };
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

    #[test]
    fn note_of_a_cut_text_is_written_in_the_language_of_its_reader() {
        let cut_text = cut_in(MessageLanguage::German, &"é".repeat(500), 100, None);
        assert!(cut_text.ends_with("[gekürzt: 500 Zeichen, höchstens 100]"), "{cut_text}");
        assert_eq!(cut_text.chars().count(), 100);
    }
}
