//! The reader of a page and the way to it, and what can be answered now.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde::Serialize;
use uuid::Uuid;

use crate::domain::approval::{Approval, ApprovalStatus, VoterIdentities};
use crate::ports::channel::templates::phrases::Phrases;

/// The reader of a page, and the way to it.
#[derive(Debug)]
pub struct ApprovalPage {
    /// The instant for which the page is made.
    pub now: DateTime<Utc>,
    /// The reader's time zone.
    pub zone: Tz,
    /// In the reader's language.
    pub words: Phrases,
    /// The owner of the run.
    pub tenant: String,
    /// As the record names the reader: `recipient:<id>`.
    pub reader: String,
    /// By what else the reader is known.
    pub identities: VoterIdentities,
    /// The run that asks.
    pub run_id: Uuid,
    /// The name of the task, as far as there is one.
    pub task: Option<String>,
    /// The cause of the run, as the name of a phrase, and its instant.
    pub started: Option<(&'static str, DateTime<Utc>)>,
    /// By whom it was asked for by hand, as far as that is known: the name of a token.
    pub requester: Option<String>,
}

/// Where the form goes, and its proof that it came from here. `None`: nothing can be answered on this page.
#[derive(Debug, Serialize)]
pub struct FormState {
    /// Path of the link.
    pub action: String,
    /// The proof.
    pub nonce: String,
}

/// Whether the question can be answered now.
pub fn is_open(approval: &Approval, now: DateTime<Utc>) -> bool {
    approval.status == ApprovalStatus::Pending && now < approval.expires_at
}

/// Whether anything can be answered now: an open question, or a held call that can be stopped.
pub fn is_answerable(approval: &Approval, now: DateTime<Utc>) -> bool {
    is_open(approval, now) || approval.is_held(now)
}

/// Whether nobody has answered in time.
pub fn is_expired(approval: &Approval) -> bool {
    matches!(approval.status, ApprovalStatus::Pending | ApprovalStatus::Expired)
}
