//! Each of the operator's templates, tried on messages as they come: a name that is not there is found at the start.

use std::collections::BTreeSet;
use std::path::Path;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::credential::CredentialIssueKind;
use crate::domain::notification::{
    CredentialContext, DigestItem, MessageContext, MessageLanguage, NoticeKind, Purpose, QuestionContext, RunContext,
    WholeMessageLink,
};
use crate::ports::channel::templates::MessageFormat;
use crate::ports::channel::templates::name::{NOTICE, TemplateName};
use crate::ports::channel::templates::set::{LANGUAGE, TemplateKind, TemplateSet};

/// Tries them all; the faults name files of `dir`.
pub fn run(own: &TemplateSet, dir: &Path) -> Result<(), ValidationErrors> {
    let mut faults = ValidationErrors::new();
    for context in samples(own) {
        for (channel, format, part) in ways(own) {
            if let Some(Err((name, error))) = own.render(&context, channel, format, part) {
                let message = format!("{}: {error}", dir.join(name).display());
                if !faults.0.iter().any(|fault| fault.message == message) {
                    faults.add("/channels/templates_dir", message);
                }
            }
        }
    }
    faults.into_result(())
}

/// The parsed names of the operator's templates.
fn names(own: &TemplateSet) -> impl Iterator<Item = TemplateName<'_>> {
    own.own().filter_map(|file| TemplateName::read(file).ok())
}

/// Each format, for every channel that a template is named for, and for one that none is.
fn ways(own: &TemplateSet) -> Vec<(&str, MessageFormat, TemplateKind)> {
    let channels: BTreeSet<&str> = names(own).filter_map(|name| name.channel).chain([""]).collect();
    let parts = MessageFormat::ALL
        .map(|format| (format, TemplateKind::Body))
        .into_iter()
        .chain([(MessageFormat::Plain, TemplateKind::Subject)]);
    parts.flat_map(|(format, part)| channels.iter().map(move |channel| (*channel, format, part))).collect()
}

/// A message of each purpose, and of each kind of notice that a template is named for, in each language that one is
/// named for and in none; whole, and cut.
fn samples(own: &TemplateSet) -> Vec<MessageContext> {
    let notices: BTreeSet<&str> =
        own.own().filter_map(|file| TemplateName::read(file).ok()?.purpose.strip_prefix(NOTICE)).collect();
    let notices = notices.into_iter().filter_map(NoticeKind::parse).map(Purpose::Notice);
    let locales: BTreeSet<&str> = names(own).filter_map(|name| name.locale).chain([""]).collect();
    let mut samples = Vec::new();
    for context in Purpose::WORDS.into_iter().map(Purpose::Of).chain(notices).map(sample) {
        for locale in &locales {
            let sample = MessageContext { locale: (*locale).to_owned(), ..context.clone() };
            let note = "The whole, 9000 characters".to_owned();
            let link = Secret::new("https://wake.example.org/messages/0123456789abcdef");
            samples.push(MessageContext {
                whole: Some(WholeMessageLink { note, label: "Open".into(), link }),
                ..sample.clone()
            });
            samples.push(sample);
        }
    }
    samples
}

pub(super) fn sample(purpose: Purpose) -> MessageContext {
    let is = |words: &[&str]| matches!(&purpose, Purpose::Of(word) if words.contains(word));
    let item = DigestItem::new(
        "Morning mail",
        "Two mails.",
        "2026-12-24T07:00:00Z".parse().unwrap_or_default(),
        chrono_tz::Tz::Europe__Berlin,
    );
    let run = RunContext {
        id: "0193f7a2-0000-7000-8000-000000000042".into(),
        due: "2026-12-24 08:00 CET".into(),
        what: "failed",
        attempts: 3,
    };
    let question = QuestionContext {
        things: "2 things".into(),
        undoable: None,
        items: vec!["Send a mail to ann".into(), "Pay 5 to bob".into()],
        more: 0,
        until: "2026-12-24 08:30 CET".into(),
        link: Secret::new("https://wake.example.org/approvals/0123456789abcdef"),
    };
    let credential = CredentialContext {
        reference: "google/work".into(),
        service: "google".into(),
        account: "work".into(),
        issue: CredentialIssueKind::Missing,
        task: Some("Morning mail".into()),
        paused: true,
        reason: None,
    };
    MessageContext {
        tenant: "ann".into(),
        locale: LANGUAGE.into(),
        task: "Morning mail".into(),
        at: "2026-12-24 08:00 CET".into(),
        subject: Some("Morning mail".into()),
        text: "Two **mails**, none urgent.".into(),
        run: is(&["result", "failure"]).then_some(run),
        question: is(&["ask", "input", "undo_window", "reminder"]).then_some(question),
        credential: (purpose == Purpose::Notice(NoticeKind::Credential)).then_some(credential),
        digest: if is(&["digest"]) { vec![item.clone(), item] } else { vec![] },
        more: if is(&["digest"]) { 3 } else { 0 },
        whole: None,
        page: None,
        link: None,
        thread: None,
        event: "",
        data: serde_json::Value::Null,
        language: MessageLanguage::English,
        translated: None,
        purpose,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::domain::notification::Addresses;

    const DOCUMENTED: &str = include_str!("../../../../docs/templates.md");

    /// The words in backticks at the beginning of the rows of a table.
    fn first_column(heading: &str) -> BTreeSet<String> {
        let section = DOCUMENTED.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        rows.map(|(name, _)| name.to_owned()).collect()
    }

    fn names_of(value: &Value, place: &str, names: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                let dot = if place.is_empty() { "" } else { "." };
                fields.iter().for_each(|(name, value)| names_of(value, &format!("{place}{dot}{name}"), names));
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().for_each(|item| names_of(item, &format!("{place}[]"), names));
            }
            _ => drop(names.insert(place.to_owned())),
        }
    }

    #[test]
    fn page_about_templates_names_every_variable_and_no_other() {
        let set = TemplateSet::embedded(&[]);
        let mut own = set.clone();
        own.add_own("notice_credential.txt", "Subject: x").expect("a template");
        let mut there = BTreeSet::from(["lang".to_owned()]);
        for context in samples(&own) {
            names_of(&serde_json::to_value(&context).expect("data"), "", &mut there);
        }
        // a group of one message may be absent in another
        let groups: Vec<String> =
            there.iter().filter_map(|name| Some(name.split_once(['.', '['])?.0.to_owned())).collect();
        there.retain(|name| !groups.contains(name));
        assert_eq!(first_column("Variables"), there);
    }

    #[test]
    fn page_about_templates_names_every_word_that_a_name_may_have() {
        let endings = MessageFormat::ALL.map(MessageFormat::ending);
        let notices = Purpose::NOTICES.map(|kind| format!("{NOTICE}{kind}"));
        let words = Purpose::WORDS.into_iter().chain(Addresses::KINDS).chain(endings).map(str::to_owned).chain(notices);
        let missing: Vec<String> = words.filter(|word| !DOCUMENTED.contains(&format!("`{word}`"))).collect();
        assert_eq!(missing, [""; 0]);
        for filter in first_column("Filters") {
            let mut set = TemplateSet::embedded(&[]);
            set.add_own("message.txt", &format!("Subject: x\n{{{{ text | {filter} }}}}")).expect("a template");
            let sample = set.render(&sample(Purpose::Of("message")), "", MessageFormat::Plain, TemplateKind::Body);
            assert_eq!(sample, Some(Ok("Two **mails**, none urgent.".into())), "{filter}");
        }
    }
}
