//! Why a credential was not used, in words for people, models and programs.

use chrono::{DateTime, Utc};

use crate::credential::{Lack, LackKind, Reference};
use crate::egress::EgressError;
use crate::run::outcome::RunFault;

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The request was denied or has failed.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// It was not used: nothing was sent.
    #[error(transparent)]
    Credential(#[from] CredentialError),
}

/// A credential that was not used, or was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct CredentialError {
    /// The trouble.
    pub trouble: Trouble,
    /// The name of the credential.
    pub reference: Reference,
    /// More of it, where there is more to say. Never a secret.
    pub why: String,
    /// When it was last used, in milliseconds; 0 where it never was. It tells one time of trouble from the next.
    pub last_used: i64,
    /// Of one that was refused: when it was sent.
    pub sent_at: Option<DateTime<Utc>>,
}

/// Troubles with a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The tenant has none of this name.
    Missing,
    /// The other side renews it no more.
    NeedsConsent,
    /// The address is none of its hosts.
    NotForHost,
    /// Nothing says how it is put into a request, or it can't be put there.
    NoInject,
    /// The request carries what it would be put in the place of.
    Taken,
    /// It was sealed with another key, it is damaged, or it can't be renewed as things stand.
    Unreadable,
    /// It can't be renewed before whoever runs this service has corrected something.
    Misconfigured,
    /// Later may do.
    Busy,
    /// It was sent, and the other side does not take it.
    Refused,
}

impl CredentialError {
    pub(super) fn new(trouble: Trouble, reference: &Reference, why: String) -> CredentialError {
        CredentialError { trouble, reference: reference.clone(), why, last_used: 0, sent_at: None }
    }

    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self.trouble {
            Trouble::Missing => "credential_missing",
            Trouble::NeedsConsent => "credential_needs_consent",
            Trouble::NotForHost => "credential_not_for_host",
            Trouble::NoInject => "credential_no_inject",
            Trouble::Taken => "credential_taken",
            Trouble::Unreadable => "credential_unreadable",
            Trouble::Misconfigured => "credential_misconfigured",
            Trouble::Busy => "credential_busy",
            Trouble::Refused => "credential_refused",
        }
    }

    /// The issue that its owner has to mend; `None`: they can't, or it passes.
    pub fn lack(&self) -> Option<Lack> {
        let kind = match self.trouble {
            Trouble::Missing => LackKind::Missing,
            Trouble::NeedsConsent => LackKind::NeedsConsent,
            Trouble::Refused => LackKind::Refused,
            Trouble::NotForHost
            | Trouble::NoInject
            | Trouble::Taken
            | Trouble::Unreadable
            | Trouble::Misconfigured
            | Trouble::Busy => return None,
        };
        Some(Lack { credential: self.reference.clone(), kind, sent_at: self.sent_at })
    }

    /// The fault of a run that can't go on because of it.
    pub fn fault(&self) -> RunFault {
        RunFault { lack: self.lack().map(Box::new), ..RunFault::new(self.code(), self.to_string()) }
    }

    fn sentence(&self) -> String {
        let name = &self.reference;
        let sentence = match self.trouble {
            Trouble::Missing => format!("Please connect {name}: there is no such credential"),
            Trouble::NeedsConsent => format!("Please connect {name} again: its access has ended"),
            Trouble::NotForHost => format!("The credential {name} may not be sent there"),
            Trouble::NoInject => format!("The credential {name} can't be put into the request"),
            Trouble::Taken => format!("The request already carries what the credential {name} is for"),
            Trouble::Unreadable => format!("The credential {name} can't be used; please save it anew"),
            Trouble::Misconfigured => {
                format!("The credential {name} can't be used before whoever runs this service has put something right")
            }
            Trouble::Busy => format!("The credential {name} can't be had now"),
            Trouble::Refused => format!("The credential {name} is refused"),
        };
        if self.why.is_empty() { sentence } else { format!("{sentence}: {}", self.why) }
    }
}

impl Trouble {
    /// The word of [`CredentialUse::outcome`](crate::credential::CredentialUse::outcome).
    pub(super) fn outcome(self) -> &'static str {
        match self {
            Trouble::Missing => "missing",
            Trouble::NeedsConsent => "needs_consent",
            Trouble::NotForHost => "not_for_host",
            Trouble::NoInject => "no_inject",
            Trouble::Taken => "taken",
            Trouble::Unreadable => "unreadable",
            Trouble::Misconfigured => "misconfigured",
            Trouble::Busy => "busy",
            Trouble::Refused => "refused",
        }
    }
}
