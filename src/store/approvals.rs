//! Questions to people, and their answers. An answer, an expiry and a parking of the run each hold the run's row, so
//! that of two who settle something one sees what the other did; what has returned is recorded, with what follows.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::approval::{Answer, Approval, ApprovalStatus, Begun, CallOutcome};
use crate::id::Scope;
use crate::notification::NewDelivery;
use crate::run::Run;
use crate::store::{Lease, Store, StoreError};
use crate::task::Task;

/// Which approvals to list. Newest first, after the approval `before`.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    pub tenant: Option<String>,
    pub status: Option<ApprovalStatus>,
    pub task_id: Option<Uuid>,
    pub run_id: Option<Uuid>,
    pub batch_id: Option<Uuid>,
    pub before: Option<Uuid>,
    pub limit: i64,
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Decided {
    /// It is the decision.
    Done(Approval),
    /// It was counted; others have to agree as well.
    Counted(Approval),
    /// It changed nothing, and how things stand.
    Refused(Refusal, Approval),
}

/// Why an answer changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody, or the time limit, was first.
    Settled,
    /// It is open by its status, and its time is over.
    Expired,
    /// What was shown is not what is asked.
    OtherDigest,
    /// The one who asked may not answer.
    Barred,
    /// Not among the options.
    NotOffered,
}

/// A run that waits for people, and what it waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub run: Run,
    pub task: Option<Task>,
    /// All of its batch, in the order of the calls.
    pub approvals: Vec<Approval>,
}

/// What is done about a run that waits, decided by whoever read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attend {
    /// When it is looked at again, where it goes on waiting.
    pub wake_at: DateTime<Utc>,
    /// Reminders and escalations.
    pub deliveries: Vec<NewDelivery>,
    /// What is told where the run expires now.
    pub if_expired: Vec<NewDelivery>,
}

/// What became of a run that was attended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    /// It waits on.
    Waits,
    /// It goes on: everything is settled, or a call may run now.
    Woken,
    /// Nobody has approved anything in time.
    Expired,
    /// It does not wait any more.
    Gone,
}

/// A link to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalLink {
    pub batch_id: Uuid,
    pub tenant_id: String,
    pub recipient: String,
    pub channel: String,
    pub expires_at: DateTime<Utc>,
}

impl Store {
    pub async fn get_approval(&self, _scope: &Scope, _id: Uuid) -> Result<Approval, StoreError> {
        Err(StoreError::NotFound)
    }

    /// Approvals that match, newest first.
    pub async fn list_approvals(&self, _scope: &Scope, _filter: &ApprovalFilter) -> Result<Vec<Approval>, StoreError> {
        Ok(Vec::new())
    }

    /// The questions about calls of one turn, those that were replaced aside.
    pub async fn approvals_of_turn(&self, _run_id: Uuid, _turn: i64) -> Result<Vec<Approval>, StoreError> {
        Ok(Vec::new())
    }

    /// Settles a question, at most once, by the database's own time; wakes the run where that lets it go on.
    pub async fn decide_approval(&self, _scope: &Scope, _id: Uuid, _answer: &Answer) -> Result<Decided, StoreError> {
        Err(StoreError::NotFound)
    }

    /// Marks that an approved call is about to be executed, under the run's lease.
    pub async fn begin_approved(&self, _lease: Lease, _id: Uuid, _digest: &str) -> Result<Begun, StoreError> {
        Ok(Begun::Refused)
    }

    /// Notes what came of an approved call, for the page.
    pub async fn note_outcome(&self, _id: Uuid, _outcome: &CallOutcome) -> Result<(), StoreError> {
        Ok(())
    }

    /// Runs that wait for people and want to be looked at, the longest due first.
    pub async fn waiting_for_people(&self, _now: DateTime<Utc>, _limit: i64) -> Result<Vec<Waiting>, StoreError> {
        Ok(Vec::new())
    }

    /// When the next one wants to be looked at.
    pub async fn next_waiting(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(None)
    }

    /// Settles what is overdue by the database's own time, and does what follows.
    pub async fn attend(&self, _run_id: Uuid, _attend: &Attend) -> Result<Attended, StoreError> {
        Ok(Attended::Gone)
    }

    /// Keeps the hash of a link's token; once more is the same.
    pub async fn remember_link(&self, _token_hash: &[u8; 32], _link: &ApprovalLink) -> Result<(), StoreError> {
        Ok(())
    }

    /// The batch that a link leads to.
    pub async fn approvals_by_link(
        &self,
        _token_hash: &[u8; 32],
        _now: DateTime<Utc>,
    ) -> Result<(ApprovalLink, Vec<Approval>), StoreError> {
        Err(StoreError::NotFound)
    }
}
