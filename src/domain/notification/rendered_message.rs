//! The words of a delivery, made from what it refers to at the moment it is sent.

use serde_json::{Value, json};

use crate::base::secret::Secret;
use crate::domain::notification::text::cut;
use crate::domain::notification::{ApprovalQuestion, CredentialContext, DigestItem, Link, MessageLanguage};
use crate::domain::run::{Run, RunFinish, RunState};

/// A message in words for people and as data for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedMessage {
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
    /// `approval.requested`, `approval.reminder`, `approval.undo_window`, `input.requested`,
    /// `input.reminder`, `digest`, `test`, `code`.
    pub event: &'static str,
    /// Somebody is asked: the link decides or answers something, and is for that person alone.
    pub asks: bool,
    /// For `run.finished` the run as the API shows it and its task's name; else the message itself.
    pub data: Value,
}

/// The things to which a delivery refers, as they stand when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct References<'a> {
    /// The run that the message is about.
    pub run: Option<&'a Run>,
    /// `None` where the task was deleted.
    pub task_name: Option<&'a str>,
    /// The question with its link; for questions and reminders only.
    pub question: Option<&'a ApprovalQuestion>,
    /// Messages of a digest, the oldest first; empty for all else.
    pub digest: &'a [DigestItem],
    /// How many more a digest has, which are counted alone.
    pub more: usize,
    /// The digits; for codes only.
    pub code: Option<&'a Secret>,
    /// The credential that a notice is about, as it stands.
    pub credential: Option<&'a CredentialContext>,
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

/// The answer of a run, or that it has none. Where the agent was stopped at its limit of turns that comes first,
/// because the end of a long text may be cut.
pub(super) fn answer(language: MessageLanguage, run: &Run) -> String {
    let output = match run.output.as_deref().map(str::trim) {
        None | Some("") => language.pick("Done, without an answer.", "Erledigt, ohne Antwort."),
        Some(output) => output,
    };
    let stopped = language.pick(
        "The agent was stopped at its limit of turns. This is as far as it came:",
        "Der Agent wurde an seiner Grenze von Durchgängen angehalten. So weit ist er gekommen:",
    );
    match run.finish {
        Some(RunFinish::MaxTurns) => format!("{stopped}\n\n{output}"),
        Some(RunFinish::Answer) | None => output.to_owned(),
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
