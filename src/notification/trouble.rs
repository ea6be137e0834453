//! That a credential can't be used, and who waits for it: the sentences that a delivery keeps, and the data that its
//! templates are given.
//!
//! What a delivery stores is enough to tell it. Which credential it is about stands in its subject, whom it concerns in its
//! key; the rest is looked up when it is sent, and where that is gone, the stored sentences are told.

use serde::Serialize;

use crate::credential::{LackKind, Reference};
use crate::notification::{Delivery, dedupe};

/// Before the reference in a subject: its owner is to connect it.
const PLEASE: &str = "Please connect ";
/// Behind it: it was connected once.
const AGAIN: &str = " again";
/// Behind it: it was sent, and not taken.
const REFUSED: &str = " is refused";

/// Of a credential that can't be used, as the templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CredentialTelling {
    /// As tasks name it: `google`, `google/work`.
    pub reference: String,
    pub service: String,
    pub account: String,
    pub trouble: LackKind,
    /// The name of the task that came to it, on one line; `None` where it is told for all of them.
    pub task: Option<String>,
    /// Whether that task is paused until the credential is there.
    pub paused: bool,
    /// What the other side said, where it has ended it: a sentence's end, without its full stop.
    pub reason: Option<String>,
}

impl CredentialTelling {
    /// What a delivery says of itself; `None` where it is about no credential.
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

/// What a subject of [`credential_trouble`] is about.
fn named(subject: &str) -> Option<(Reference, LackKind)> {
    let (name, lack) = match (subject.strip_prefix(PLEASE), subject.strip_suffix(REFUSED)) {
        (Some(rest), _) => match rest.strip_suffix(AGAIN) {
            Some(name) => (name, LackKind::NeedsConsent),
            None => (rest, LackKind::Missing),
        },
        (None, Some(name)) => (name, LackKind::Refused),
        (None, None) => return None,
    };
    Some((Reference::parse(name).ok()?, lack))
}

/// Subject and text of the notice that a credential can't be used, and what follows for the task that needs it (if it is
/// for a task that the notice is sent, it is paused).
pub fn credential_trouble(reference: &Reference, trouble: LackKind, paused_task: Option<&str>) -> (String, String) {
    let (subject, why) = match trouble {
        LackKind::Missing => (
            format!("{PLEASE}{reference}"),
            format!("There is no credential `{reference}`, and something of yours needs it."),
        ),
        LackKind::NeedsConsent => (
            format!("{PLEASE}{reference}{AGAIN}"),
            format!("The account behind the credential `{reference}` refuses to be used any longer."),
        ),
        LackKind::Refused => (
            format!("{reference}{REFUSED}"),
            format!(
                "What the credential `{reference}` was sent to does not take it: it may have been revoked, or changed."
            ),
        ),
    };
    let paused = paused_task.map(|task| {
        format!(" The task \"{task}\" is paused until then, and goes on by itself once `{reference}` is saved.")
    });
    let mended = match trouble {
        LackKind::Missing | LackKind::NeedsConsent => "Connect the account, and it works again.",
        LackKind::Refused => "Save it anew, or connect the account again.",
    };
    (subject, format!("{why} {mended}{}", paused.unwrap_or_default()))
}

/// The same for a task that fires no more, or is paused for something else.
pub fn credential_trouble_of_idle(reference: &Reference, trouble: LackKind, task: &str) -> (String, String) {
    let (subject, text) = credential_trouble(reference, trouble, None);
    (subject, format!("{text} A run of the task \"{task}\" failed without it."))
}

/// Subject and text of the notice that the other side has ended a credential, and what that does to the tasks that come
/// to it.
pub fn credential_ended(reference: &Reference, why: Option<&str>) -> (String, String) {
    let (subject, text) = credential_trouble(reference, LackKind::NeedsConsent, None);
    let why = why.map(|why| format!(" The reason: {why}.")).unwrap_or_default();
    (subject, format!("{text} A task that comes to it before is paused until then.{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::Kind;

    #[test]
    fn trouble_with_a_credential_says_what_to_do_and_what_waits_for_it() {
        let work = Reference::parse("google/work").unwrap();
        let (subject, text) = credential_trouble(&work, LackKind::Missing, Some("Morning mail"));
        assert_eq!(subject, "Please connect google/work");
        assert_eq!(
            text,
            "There is no credential `google/work`, and something of yours needs it. Connect the account, and it works \
             again. The task \"Morning mail\" is paused until then, and goes on by itself once `google/work` is saved."
        );
        let (subject, text) = credential_trouble(&work, LackKind::NeedsConsent, None);
        assert_eq!(subject, "Please connect google/work again");
        assert!(text.ends_with("refuses to be used any longer. Connect the account, and it works again."), "{text}");
    }

    #[test]
    fn what_was_stored_says_which_credential_it_is_about() {
        for (name, account) in [("google", "primary"), ("google/work", "work")] {
            for trouble in [LackKind::Missing, LackKind::NeedsConsent, LackKind::Refused] {
                let (subject, text) = credential_trouble(&Reference::parse(name).unwrap(), trouble, None);
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
