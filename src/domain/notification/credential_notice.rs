//! That a credential can't be used, and who waits for it: the sentences that a delivery keeps, and the data that its
//! templates are given.
//!
//! What a delivery stores is enough to tell it. The credential, its issue and whom it concerns stand in its
//! [`SubjectRef`]; the rest is looked up when it is sent, and where that is gone, the stored sentences are told.

use serde::Serialize;

use crate::domain::credential::{CredentialIssueKind, Reference};
use crate::domain::notification::{Delivery, MessageLanguage, SubjectRef};

/// Of a credential that can't be used, as the templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CredentialContext {
    /// As tasks name it: `google`, `google/work`.
    pub reference: String,
    /// Service of the credential.
    pub service: String,
    /// Account of the service.
    pub account: String,
    /// The issue.
    pub issue: CredentialIssueKind,
    /// The name of the task that came to it, on one line; `None` where it is told for all of them.
    pub task: Option<String>,
    /// Whether that task is paused until the credential is there.
    pub paused: bool,
    /// The reason of the other side, where it has ended the credential: a sentence's end, without its full stop.
    pub reason: Option<String>,
}

impl CredentialContext {
    /// The credential that a delivery names; `None` where it is about none.
    pub fn of(delivery: &Delivery) -> Option<CredentialContext> {
        let Some(SubjectRef::Credential { credential, issue, .. }) = &delivery.subject_ref else { return None };
        Some(CredentialContext {
            reference: credential.to_string(),
            service: credential.service.clone(),
            account: credential.account.clone(),
            issue: *issue,
            task: None,
            paused: false,
            reason: None,
        })
    }
}

/// Subject and text of the notice that a credential can't be used, and what follows for the task that needs it (if it
/// is for a task that the notice is sent, it is paused).
pub fn issue_notice(
    language: MessageLanguage,
    reference: &Reference,
    issue: CredentialIssueKind,
    paused_task: Option<&str>,
) -> (String, String) {
    match language {
        MessageLanguage::English => {
            let subject = match issue {
                CredentialIssueKind::Missing => format!("Please connect {reference}"),
                CredentialIssueKind::NeedsConsent => format!("Please connect {reference} again"),
                CredentialIssueKind::Refused => format!("{reference} is refused"),
            };
            (subject, in_english(reference, issue, paused_task))
        }
        MessageLanguage::German => {
            let subject = match issue {
                CredentialIssueKind::Missing => format!("Bitte verbinden Sie {reference}"),
                CredentialIssueKind::NeedsConsent => format!("Bitte verbinden Sie {reference} noch einmal"),
                CredentialIssueKind::Refused => format!("{reference} wird nicht angenommen"),
            };
            (subject, in_german(reference, issue, paused_task))
        }
    }
}

fn in_english(reference: &Reference, issue: CredentialIssueKind, paused_task: Option<&str>) -> String {
    let why = match issue {
        CredentialIssueKind::Missing => {
            format!("There is no credential `{reference}`, and something of yours needs it.")
        }
        CredentialIssueKind::NeedsConsent => {
            format!("The account behind the credential `{reference}` refuses to be used any longer.")
        }
        CredentialIssueKind::Refused => {
            format!("The other side does not take the credential `{reference}`: it may have been revoked, or changed.")
        }
    };
    let remedy = match issue {
        CredentialIssueKind::Missing | CredentialIssueKind::NeedsConsent => "Connect the account, and it works again.",
        CredentialIssueKind::Refused => "Save it anew, or connect the account again.",
    };
    let paused = paused_task.map(|task| {
        format!(" The task \"{task}\" is paused until then, and goes on by itself once `{reference}` is saved.")
    });
    format!("{why} {remedy}{}", paused.unwrap_or_default())
}

fn in_german(reference: &Reference, issue: CredentialIssueKind, paused_task: Option<&str>) -> String {
    let why = match issue {
        CredentialIssueKind::Missing => format!("Der Zugang `{reference}` fehlt, und etwas von Ihnen braucht ihn."),
        CredentialIssueKind::NeedsConsent => {
            format!("Das Konto hinter dem Zugang `{reference}` lässt sich nicht länger benutzen.")
        }
        CredentialIssueKind::Refused => {
            format!("Der Zugang `{reference}` wurde nicht angenommen: vielleicht wurde er widerrufen oder geändert.")
        }
    };
    let remedy = match issue {
        CredentialIssueKind::Missing | CredentialIssueKind::NeedsConsent => {
            "Verbinden Sie das Konto, dann geht es weiter."
        }
        CredentialIssueKind::Refused => "Speichern Sie ihn neu, oder verbinden Sie das Konto noch einmal.",
    };
    let paused = paused_task.map(|task| {
        format!(
            " Die Aufgabe „{task}“ ist bis dahin angehalten und läuft von selbst weiter, sobald `{reference}` gespeichert ist."
        )
    });
    format!("{why} {remedy}{}", paused.unwrap_or_default())
}

/// Subject and text for a task that fires no more, or is paused for something else.
pub fn idle_issue_notice(
    language: MessageLanguage,
    reference: &Reference,
    issue: CredentialIssueKind,
    task: &str,
) -> (String, String) {
    let (subject, text) = issue_notice(language, reference, issue, None);
    let failed = language.pick(
        format!("A run of the task \"{task}\" failed without it."),
        format!("Ein Lauf der Aufgabe „{task}“ ist ohne ihn fehlgeschlagen."),
    );
    (subject, format!("{text} {failed}"))
}

/// Subject and text of the notice that the other side has ended a credential, and what that does to the tasks that come
/// to it.
pub fn credential_ended(language: MessageLanguage, reference: &Reference, why: Option<&str>) -> (String, String) {
    let (subject, text) = issue_notice(language, reference, CredentialIssueKind::NeedsConsent, None);
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
    use uuid::Uuid;

    use super::*;
    use crate::domain::notification::{MessageKind, NoticeKind, dedupe};

    #[test]
    fn issue_of_a_credential_says_what_to_do_and_what_waits_for_it() {
        let work = Reference::parse("google/work").unwrap();
        let (subject, text) =
            issue_notice(MessageLanguage::English, &work, CredentialIssueKind::Missing, Some("Morning mail"));
        assert_eq!(subject, "Please connect google/work");
        assert_eq!(
            text,
            "There is no credential `google/work`, and something of yours needs it. Connect the account, and it works \
             again. The task \"Morning mail\" is paused until then, and goes on by itself once `google/work` is saved."
        );
        let (subject, text) = issue_notice(MessageLanguage::English, &work, CredentialIssueKind::NeedsConsent, None);
        assert_eq!(subject, "Please connect google/work again");
        assert!(text.ends_with("refuses to be used any longer. Connect the account, and it works again."), "{text}");
    }

    #[test]
    fn stored_notice_names_its_credential_whatever_its_subject_and_key_say() {
        for (name, account) in [("google", "primary"), ("google/work", "work")] {
            let reference = Reference::parse(name).unwrap();
            for issue in [CredentialIssueKind::Missing, CredentialIssueKind::NeedsConsent, CredentialIssueKind::Refused]
            {
                let (about, _) = SubjectRef::credential_missing(&reference, issue, Uuid::from_u128(7), 2);
                let notice = Delivery {
                    dedupe_key: "a key".into(),
                    subject_ref: Some(about),
                    subject: Some("Veuillez connecter votre compte".into()),
                    text: Some("…".into()),
                    ..Delivery::sample(MessageKind::Notice)
                };
                let told = CredentialContext::of(&notice).unwrap();
                assert_eq!((told.reference.as_str(), told.account.as_str(), told.issue), (name, account, issue));
            }
        }
        let words = issue_notice(
            MessageLanguage::English,
            &Reference::parse("google").unwrap(),
            CredentialIssueKind::Missing,
            None,
        );
        let (about, _) = SubjectRef::notice(NoticeKind::Paused, Uuid::from_u128(7), 2);
        for subject_ref in [None, Some(about)] {
            let other = Delivery {
                dedupe_key: dedupe::notice(NoticeKind::Credential, Uuid::from_u128(7), 2),
                subject_ref,
                subject: Some(words.0.clone()),
                ..Delivery::sample(MessageKind::Notice)
            };
            assert_eq!(CredentialContext::of(&other), None);
        }
    }
}
