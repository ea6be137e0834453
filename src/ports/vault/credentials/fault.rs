//! Why a credential was not used, in words for people, models and programs.

use chrono::{DateTime, Utc};

use crate::domain::credential::{CredentialIssue, CredentialIssueKind, Reference};
use crate::domain::run::RunFault;
use crate::ports::egress::EgressError;

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
    /// The kind of fault.
    pub kind: CredentialFault,
    /// The name of the credential.
    pub reference: Reference,
    /// More of it, where there is more to say. Never a secret.
    pub why: String,
    /// When it was last used, in milliseconds; 0 where it never was. It tells one occurrence of the fault from the
    /// next.
    pub last_used: i64,
    /// Of one that was refused: when it was sent.
    pub sent_at: Option<DateTime<Utc>>,
}

/// Kinds of faults with a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialFault {
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
    /// With it the run would use more secrets than are looked for in what it reads.
    TooMany,
    /// It was sent, and the other side does not take it.
    Refused,
}

impl CredentialError {
    pub(super) fn new(kind: CredentialFault, reference: &Reference, why: String) -> CredentialError {
        CredentialError { kind, reference: reference.clone(), why, last_used: 0, sent_at: None }
    }

    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self.kind {
            CredentialFault::Missing => "credential_missing",
            CredentialFault::NeedsConsent => "credential_needs_consent",
            CredentialFault::NotForHost => "credential_not_for_host",
            CredentialFault::NoInject => "credential_no_inject",
            CredentialFault::Taken => "credential_taken",
            CredentialFault::Unreadable => "credential_unreadable",
            CredentialFault::Misconfigured => "credential_misconfigured",
            CredentialFault::Busy => "credential_busy",
            CredentialFault::TooMany => "credential_too_many",
            CredentialFault::Refused => "credential_refused",
        }
    }

    /// The issue that its owner has to mend; `None`: they can't, or it passes.
    pub fn owner_issue(&self) -> Option<CredentialIssue> {
        let kind = match self.kind {
            CredentialFault::Missing => CredentialIssueKind::Missing,
            CredentialFault::NeedsConsent => CredentialIssueKind::NeedsConsent,
            CredentialFault::Refused => CredentialIssueKind::Refused,
            CredentialFault::NotForHost
            | CredentialFault::NoInject
            | CredentialFault::Taken
            | CredentialFault::Unreadable
            | CredentialFault::Misconfigured
            | CredentialFault::Busy
            | CredentialFault::TooMany => return None,
        };
        Some(CredentialIssue { credential: self.reference.clone(), kind, sent_at: self.sent_at })
    }

    /// The fault of a run that can't go on because of it.
    pub fn fault(&self) -> RunFault {
        RunFault { credential_issue: self.owner_issue().map(Box::new), ..RunFault::new(self.code(), self.to_string()) }
    }

    fn sentence(&self) -> String {
        let name = &self.reference;
        let sentence = match self.kind {
            CredentialFault::Missing => format!("Please connect {name}: there is no such credential"),
            CredentialFault::NeedsConsent => format!("Please connect {name} again: its access has ended"),
            CredentialFault::NotForHost => format!("The credential {name} may not be sent there"),
            CredentialFault::NoInject => format!("The credential {name} can't be put into the request"),
            CredentialFault::Taken => format!("The request already carries what the credential {name} is for"),
            CredentialFault::Unreadable => format!("The credential {name} can't be used; please save it anew"),
            CredentialFault::Misconfigured => {
                format!("The credential {name} can't be used before whoever runs this service has put something right")
            }
            CredentialFault::Busy => format!("The credential {name} can't be had now"),
            CredentialFault::TooMany => format!("The credential {name} can't be used in this run any more"),
            CredentialFault::Refused => format!("The credential {name} is refused"),
        };
        if self.why.is_empty() { sentence } else { format!("{sentence}: {}", self.why) }
    }
}

impl CredentialFault {
    /// The word of [`CredentialUse::outcome`](crate::domain::credential::CredentialUse::outcome).
    pub(super) fn outcome(self) -> &'static str {
        match self {
            CredentialFault::Missing => "missing",
            CredentialFault::NeedsConsent => "needs_consent",
            CredentialFault::NotForHost => "not_for_host",
            CredentialFault::NoInject => "no_inject",
            CredentialFault::Taken => "taken",
            CredentialFault::Unreadable => "unreadable",
            CredentialFault::Misconfigured => "misconfigured",
            CredentialFault::Busy => "busy",
            CredentialFault::TooMany => "too_many",
            CredentialFault::Refused => "refused",
        }
    }
}
