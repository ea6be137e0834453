//! That a credential can't be used, and who waits for it: the sentences that a delivery keeps, and the data that its
//! templates are given.
//!
//! What a delivery stores is enough to tell it. Which credential it is about stands in its subject, whom it concerns in its
//! key; the rest is looked up when it is sent, and where that is gone, the stored sentences are told.

use serde::Serialize;

use crate::credential::{LackKind, Reference};
use crate::notification::language::MessageLanguage;
use crate::notification::{Delivery, dedupe};

/// How a subject is written around the reference, in one language.
struct SubjectForm {
    /// Before it: its owner is to connect it.
    please: &'static str,
    /// Behind it: it was connected once.
    again: &'static str,
    /// Behind it: it was sent, and not taken.
    refused: &'static str,
}

const ENGLISH: SubjectForm = SubjectForm { please: "Please connect ", again: " again", refused: " is refused" };
const GERMAN: SubjectForm =
    SubjectForm { please: "Bitte verbinden Sie ", again: " noch einmal", refused: " wird nicht angenommen" };

/// Of a credential that can't be used, as the templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CredentialTelling {
    /// As tasks name it: `google`, `google/work`.
    pub reference: String,
    /// Service of the credential.
    pub service: String,
    /// Account of the service.
    pub account: String,
    /// The issue.
    pub trouble: LackKind,
    /// The name of the task that came to it, on one line; `None` where it is told for all of them.
    pub task: Option<String>,
    /// Whether that task is paused until the credential is there.
    pub paused: bool,
    /// The reason of the other side, where it has ended the credential: a sentence's end, without its full stop.
    pub reason: Option<String>,
}

impl CredentialTelling {
    /// The credential that a delivery names; `None` where it is about none.
    pub fn of(delivery: &Delivery) -> Option<CredentialTelling> {
        let subject =
            delivery.subject.as_deref().filter(|_| dedupe::notice_kind(&delivery.dedupe_key) == "credential")?;
        let (reference, trouble) = named(subject)?;
        Some(CredentialTelling {
            reference: reference.to_string(),
            service: reference.service,
            account: reference.account,
            trouble,
            task: None,
            paused: false,
            reason: None,
        })
    }
}

/// The credential that a subject of [`credential_trouble`] is about, in whichever language it was written, and its trouble.
fn named(subject: &str) -> Option<(Reference, LackKind)> {
    [ENGLISH, GERMAN].iter().find_map(|form| {
        let (name, lack) = match (subject.strip_prefix(form.please), subject.strip_suffix(form.refused)) {
            (Some(rest), _) => match rest.strip_suffix(form.again) {
                Some(name) => (name, LackKind::NeedsConsent),
                None => (rest, LackKind::Missing),
            },
            (None, Some(name)) => (name, LackKind::Refused),
            (None, None) => return None,
        };
        Some((Reference::parse(name).ok()?, lack))
    })
}

/// Subject and text of the notice that a credential can't be used, and what follows for the task that needs it (if it is
/// for a task that the notice is sent, it is paused).
pub fn credential_trouble(
    language: MessageLanguage,
    reference: &Reference,
    trouble: LackKind,
    paused_task: Option<&str>,
) -> (String, String) {
    let SubjectForm { please, again, refused } = language.pick(ENGLISH, GERMAN);
    let subject = match trouble {
        LackKind::Missing => format!("{please}{reference}"),
        LackKind::NeedsConsent => format!("{please}{reference}{again}"),
        LackKind::Refused => format!("{reference}{refused}"),
    };
    let text = match language {
        MessageLanguage::English => in_english(reference, trouble, paused_task),
        MessageLanguage::German => in_german(reference, trouble, paused_task),
    };
    (subject, text)
}

fn in_english(reference: &Reference, trouble: LackKind, paused_task: Option<&str>) -> String {
    let why = match trouble {
        LackKind::Missing => format!("There is no credential `{reference}`, and something of yours needs it."),
        LackKind::NeedsConsent => {
            format!("The account behind the credential `{reference}` refuses to be used any longer.")
        }
        LackKind::Refused => {
            format!("The other side does not take the credential `{reference}`: it may have been revoked, or changed.")
        }
    };
    let mended = match trouble {
        LackKind::Missing | LackKind::NeedsConsent => "Connect the account, and it works again.",
        LackKind::Refused => "Save it anew, or connect the account again.",
    };
    let paused = paused_task.map(|task| {
        format!(" The task \"{task}\" is paused until then, and goes on by itself once `{reference}` is saved.")
    });
    format!("{why} {mended}{}", paused.unwrap_or_default())
}

fn in_german(reference: &Reference, trouble: LackKind, paused_task: Option<&str>) -> String {
    let why = match trouble {
        LackKind::Missing => format!("Der Zugang `{reference}` fehlt, und etwas von Ihnen braucht ihn."),
        LackKind::NeedsConsent => {
            format!("Das Konto hinter dem Zugang `{reference}` lässt sich nicht länger benutzen.")
        }
        LackKind::Refused => {
            format!("Der Zugang `{reference}` wurde nicht angenommen: vielleicht wurde er widerrufen oder geändert.")
        }
    };
    let mended = match trouble {
        LackKind::Missing | LackKind::NeedsConsent => "Verbinden Sie das Konto, dann geht es weiter.",
        LackKind::Refused => "Speichern Sie ihn neu, oder verbinden Sie das Konto noch einmal.",
    };
    let paused = paused_task.map(|task| {
        format!(
            " Die Aufgabe „{task}“ ist bis dahin angehalten und läuft von selbst weiter, sobald `{reference}` gespeichert ist."
        )
    });
    format!("{why} {mended}{}", paused.unwrap_or_default())
}

/// Subject and text for a task that fires no more, or is paused for something else.
pub fn credential_trouble_of_idle(
    language: MessageLanguage,
    reference: &Reference,
    trouble: LackKind,
    task: &str,
) -> (String, String) {
    let (subject, text) = credential_trouble(language, reference, trouble, None);
    let failed = language.pick(
        format!("A run of the task \"{task}\" failed without it."),
        format!("Ein Lauf der Aufgabe „{task}“ ist ohne ihn fehlgeschlagen."),
    );
    (subject, format!("{text} {failed}"))
}

/// Subject and text of the notice that the other side has ended a credential, and what that does to the tasks that come
/// to it.
pub fn credential_ended(language: MessageLanguage, reference: &Reference, why: Option<&str>) -> (String, String) {
    let (subject, text) = credential_trouble(language, reference, LackKind::NeedsConsent, None);
    let paused = language.pick(
        "A task that comes to it before is paused until then.",
        "Eine Aufgabe, die vorher dazu kommt, wird bis dahin angehalten.",
    );
    let reason = language.pick("The reason", "Der Grund");
    let why = why.map(|why| format!(" {reason}: {why}.")).unwrap_or_default();
    (subject, format!("{text} {paused}{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::Kind;

    #[test]
    fn trouble_with_a_credential_says_what_to_do_and_what_waits_for_it() {
        let work = Reference::parse("google/work").unwrap();
        let (subject, text) =
            credential_trouble(MessageLanguage::English, &work, LackKind::Missing, Some("Morning mail"));
        assert_eq!(subject, "Please connect google/work");
        assert_eq!(
            text,
            "There is no credential `google/work`, and something of yours needs it. Connect the account, and it works \
             again. The task \"Morning mail\" is paused until then, and goes on by itself once `google/work` is saved."
        );
        let (subject, text) = credential_trouble(MessageLanguage::English, &work, LackKind::NeedsConsent, None);
        assert_eq!(subject, "Please connect google/work again");
        assert!(text.ends_with("refuses to be used any longer. Connect the account, and it works again."), "{text}");
    }

    #[test]
    fn stored_notice_names_its_credential() {
        for (name, account) in [("google", "primary"), ("google/work", "work")] {
            let kinds = [LackKind::Missing, LackKind::NeedsConsent, LackKind::Refused];
            let languages = [MessageLanguage::English, MessageLanguage::German];
            for (trouble, language) in kinds.into_iter().flat_map(|kind| languages.map(|language| (kind, language))) {
                let (subject, text) = credential_trouble(language, &Reference::parse(name).unwrap(), trouble, None);
                let notice = Delivery {
                    dedupe_key: dedupe::notice("credential", "google/work", 7),
                    subject: Some(subject),
                    text: Some(text),
                    ..Delivery::sample(Kind::Notice)
                };
                let told = CredentialTelling::of(&notice).unwrap();
                assert_eq!((told.reference.as_str(), told.account.as_str(), told.trouble), (name, account, trouble));
                let other = Delivery { dedupe_key: dedupe::notice("paused", "google", 7), ..notice };
                assert_eq!(CredentialTelling::of(&other), None);
            }
        }
    }
}
