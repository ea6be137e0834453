//! Each of the operator's templates, tried on messages as they come: a name that is not there is found at the start.

use std::path::Path;

use minijinja::Environment;

use crate::channel::templates::{Format, Templates, described, rendered};
use crate::invalid::Faults;
use crate::notification::question::QuestionTelling;
use crate::notification::telling::{DigestItem, Purpose, RunTelling, Telling};
use crate::secret::Secret;

/// Tries them all; the faults name files of `dir`.
pub fn run(templates: &Templates, dir: &Path) -> Result<(), Faults> {
    let mut faults = Faults::new();
    let Some(own) = &templates.own else { return Ok(()) };
    for telling in samples(own) {
        for (channel, format, subject) in ways(own) {
            if let Some(Err((name, error))) = rendered(own, &telling, &channel, format, subject) {
                let file = dir.join(name.trim_end_matches("#subject"));
                let message = format!("{}: {}", file.display(), described(&error));
                if !faults.0.iter().any(|fault| fault.message == message) {
                    faults.add("/channels/templates_dir", message);
                }
            }
        }
    }
    faults.or(())
}

/// Each format, for every channel that a template is named for, and for one that none is.
fn ways(own: &Environment) -> Vec<(String, Format, bool)> {
    let mut channels: Vec<String> = own
        .templates()
        .filter_map(|(name, _)| Some(name.split('.').nth(1).filter(|_| name.matches('.').count() == 2)?.to_owned()))
        .collect();
    channels.push(String::new());
    channels.sort();
    channels.dedup();
    let formats = Format::ALL.map(|format| (format, false)).into_iter().chain([(Format::Plain, true)]);
    formats
        .flat_map(|(format, subject)| channels.iter().map(move |channel| (channel.clone(), format, subject)))
        .collect()
}

/// A message of each purpose, and of each kind of notice that a template is named for.
fn samples(own: &Environment) -> Vec<Telling> {
    let notices = own.templates().filter_map(|(name, _)| name.split('.').next()?.strip_prefix("notice_"));
    let notices = notices.map(|kind| Purpose::Notice(kind.to_owned()));
    Purpose::WORDS.into_iter().map(Purpose::Of).chain(notices).map(sample).collect()
}

pub(super) fn sample(purpose: Purpose) -> Telling {
    let is = |words: &[&str]| matches!(&purpose, Purpose::Of(word) if words.contains(word));
    let item = DigestItem::new(
        "Morning mail",
        "Two mails.",
        "2026-12-24T07:00:00Z".parse().unwrap_or_default(),
        chrono_tz::Tz::Europe__Berlin,
    );
    let run = RunTelling {
        id: "0193f7a2-0000-7000-8000-000000000042".into(),
        due: "2026-12-24 08:00 CET".into(),
        what: "failed",
        attempts: 3,
    };
    let question = QuestionTelling {
        things: "2 things".into(),
        held: None,
        items: vec!["Send a mail to ann".into(), "Pay 5 to bob".into()],
        more: 0,
        until: "2026-12-24 08:30 CET".into(),
        link: Secret::new("https://wake.example.org/approvals/0123456789abcdef"),
    };
    Telling {
        tenant: "ann".into(),
        task: "Morning mail".into(),
        at: "2026-12-24 08:00 CET".into(),
        subject: Some("Morning mail".into()),
        text: "Two **mails**, none urgent.".into(),
        run: is(&["result", "failure"]).then_some(run),
        question: is(&["ask", "held", "reminder"]).then_some(question),
        digest: if is(&["digest"]) { vec![item.clone(), item] } else { vec![] },
        more: if is(&["digest"]) { 3 } else { 0 },
        whole: None,
        page: None,
        link: None,
        thread: None,
        event: "",
        data: serde_json::Value::Null,
        purpose,
    }
}
