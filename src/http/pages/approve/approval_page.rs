//! The reader of a page and the way to it, and what can be answered now.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde::Serialize;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::{Approval, ApprovalStatus, VoterIdentities};
use crate::http::HttpState;
use crate::http::pages::approve::beginning;
use crate::http::pages::approve::page_room::PageQuestion;
use crate::ports::channel::templates::phrases::Phrases;
use crate::store::StoreError;

/// The reader of a page.
#[derive(Debug)]
pub struct ApprovalReader {
    /// As the record names them: `recipient:<id>`, `token:<id>`.
    pub name: String,
    /// Their time zone.
    pub zone: Tz,
    /// In their language.
    pub words: Phrases,
}

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
    /// As the record names the reader.
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

impl ApprovalPage {
    /// The page of the questions of which this is the first.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn of(
        state: &HttpState,
        scope: &Scope,
        reader: ApprovalReader,
        first: &Approval,
    ) -> Result<ApprovalPage, StoreError> {
        let run = state.store.find_run(scope, first.run_id).await?;
        let task = match first.task_id {
            Some(task) => state.store.find_task(scope, task).await?,
            None => None,
        };
        let requester = beginning::requester(state, scope, first).await?;
        Ok(ApprovalPage {
            now: state.clock.now(),
            zone: reader.zone,
            words: reader.words,
            tenant: first.tenant_id.clone(),
            identities: state.store.voter_identities(&reader.name).await?,
            reader: reader.name,
            run_id: first.run_id,
            task: task.map(|task| task.name),
            started: run.map(|run| (beginning::of(&run, requester.is_some()), run.scheduled_for)),
            requester,
        })
    }
}

/// Whether what could be answered of these questions is paused.
///
/// # Errors
/// The store can't be read.
pub async fn is_paused(state: &HttpState, scope: &Scope, questions: &[PageQuestion]) -> Result<bool, StoreError> {
    let now = state.clock.now();
    let mut approvals = questions.iter().map(|question| &question.approval);
    let Some(open) = approvals.find(|approval| is_answerable(approval, now)) else { return Ok(false) };
    let place = state.store.locate_run(scope, open.run_id, None).await?;
    Ok(place.parked.is_some_and(|parked| parked.paused_until.is_some()))
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
