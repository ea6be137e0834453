//! Questions to people, and their answers. An answer, an expiry and a parking of the run each hold the run's row, so
//! that of two who settle something one sees what the other did; what has returned is recorded, with what follows.

mod decide;
pub(super) mod grants;
pub(super) mod links;
pub(super) mod overrides;
pub(super) mod questions;
mod row;
mod suspended;
mod suspension_limit;
mod voters;
mod votes;
mod waiting;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::{Approval, ApprovalStatus, ApprovedCallStart, CallOutcome, QuestionKind};
use crate::domain::notification::NewDelivery;
use crate::domain::run::Run;
use crate::domain::task::Task;
use crate::store::approvals::row::SELECT_APPROVAL;
use crate::store::db::listing::{PAGE_BYTES, RowPage, UNBOUNDED, fitting, push_page};
use crate::store::db::text::{document, text};
use crate::store::sql::sql;
use crate::store::tx::Rows;
use crate::store::{Lease, Split, Store, StoreError};

pub use suspended::{SuspendedCaller, SuspendedFilter, SuspendedRun};

pub(super) use questions::{ask, close_questions, unpark, withdraw_other_turns};

/// Which approvals to list. Newest first, after the approval `before`.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only with this status.
    pub status: Option<ApprovalStatus>,
    /// Only of this kind.
    pub kind: Option<QuestionKind>,
    /// Only of this task.
    pub task_id: Option<Uuid>,
    /// Only of this run.
    pub run_id: Option<Uuid>,
    /// Only of this batch.
    pub batch_id: Option<Uuid>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// Outcome of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum DecisionOutcome {
    /// It is the decision.
    Done(Approval),
    /// It was counted; others have to agree as well.
    Counted(Approval),
    /// It changed nothing, and how things stand.
    Refused(DecisionRefusal, Approval),
}

/// Why an answer changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionRefusal {
    /// Somebody, or the time limit, was first.
    Settled,
    /// It is open by its status, and its time is over.
    Expired,
    /// The digest is not that of the question.
    OtherDigest,
    /// The one who asked may not answer, by whatever link or token.
    Excluded,
    /// Not among the options.
    NotOffered,
    /// Its run is paused.
    Paused,
}

/// A run that waits for people, and what it waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingRun {
    /// The run that waits.
    pub run: Run,
    /// The run's task; `None` for a chat run.
    pub task: Option<Task>,
    /// All of its batch, in the order of the calls.
    pub approvals: Vec<Approval>,
}

/// The update of a run that waits for people, decided by its reader.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingUpdate {
    /// When it is looked at again, where it goes on waiting.
    pub wake_at: DateTime<Utc>,
    /// Reminders and escalations.
    pub deliveries: Vec<NewDelivery>,
    /// Messages where the run expires now.
    pub if_expired: Vec<NewDelivery>,
}

/// Outcome of the update of a run that waits for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingOutcome {
    /// It waits on.
    Waits,
    /// It was paused for the longest time, and waits as before.
    Resumed,
    /// It goes on: everything is settled, or a call may run now.
    Woken,
    /// Nobody has approved anything in time.
    Expired,
    /// It does not wait any more.
    Gone,
}

/// A link to a batch.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct ApprovalLink {
    /// The batch of questions behind the link.
    pub batch_id: Uuid,
    /// The tenant that owns the run.
    pub tenant_id: String,
    /// The recipient to whom the link was sent.
    pub recipient: String,
    /// The channel on which it was sent.
    pub channel: String,
    /// The instant from which it leads nowhere.
    pub expires_at: DateTime<Utc>,
}

/// Beginning of a page's statement: the rows that match are measured.
const MEASURED: &str = "with page as materialized (
    select a.id, octet_length(cast(a.proposal as text)) + coalesce(octet_length(cast(a.modifications as text)), 0)
                 + coalesce(octet_length(cast(a.outcome as text)), 0) + coalesce(octet_length(a.comment), 0) as bytes
      from approvals a where true";
const FITTING: Split = Split {
    postgres: fitting!(SELECT_APPROVAL.postgres, "a.id").postgres,
    sqlite: fitting!(SELECT_APPROVAL.sqlite, "a.id").sqlite,
};

impl Store {
    /// One question.
    pub async fn get_approval(&self, scope: &Scope, id: Uuid) -> Result<Approval, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let rows = read.query(ONE).bind(id).bind(scope.tenant()).rows().await?;
        read.end().await?;
        self.decode_first_row(scope, rows).await?.ok_or(StoreError::NotFound)
    }

    /// Approvals that match, newest first.
    pub async fn list_approvals(&self, scope: &Scope, filter: &ApprovalFilter) -> Result<Vec<Approval>, StoreError> {
        Ok(self.page_of_approvals(scope, filter, UNBOUNDED).await?.rows)
    }

    /// A page of approvals that match, newest first.
    pub async fn approvals_page(
        &self,
        scope: &Scope,
        filter: &ApprovalFilter,
    ) -> Result<RowPage<Approval>, StoreError> {
        self.page_of_approvals(scope, filter, PAGE_BYTES).await
    }

    async fn page_of_approvals(
        &self,
        scope: &Scope,
        filter: &ApprovalFilter,
        bound: i64,
    ) -> Result<RowPage<Approval>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
            query.push_key("a.tenant_id", text(tenant).into_owned());
            order = "a.tenant_id desc, ";
        }
        if let Some(status) = filter.status {
            // said in the text, or the index of the pending ones can't be used
            query.push(" and a.status = '").push(status.as_str()).push("'");
        }
        if let Some(kind) = filter.kind {
            // in the text, too: pending questions for input have indexes of their own
            query.push(" and a.kind = '").push(kind.as_str()).push("'");
        }
        for (column, by, id) in [
            ("a.task_id", "a.task_id desc, ", filter.task_id),
            ("a.run_id", "a.run_id desc, ", filter.run_id),
            ("a.batch_id", "a.batch_id desc, ", filter.batch_id),
        ] {
            if let Some(id) = id {
                query.push_key(column, id);
                order = by;
            }
        }
        if let Some(before) = filter.before {
            let tenant = [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten().next_back();
            match [("a.batch_id", filter.batch_id), ("a.run_id", filter.run_id), ("a.task_id", filter.task_id)]
                .into_iter()
                .find_map(|(column, id)| Some((column, id?)))
            {
                Some(key) => query.push_before(Some(key), "a.id", before),
                None => {
                    let key = tenant.map(|tenant| ("a.tenant_id", text(tenant).into_owned()));
                    query.push_before(key, "a.id", before)
                }
            };
        }
        push_page(&mut query, (order, "a.id"), filter.limit, (FITTING, bound));
        let rows = query.finish().rows().await?;
        read.end().await?;
        let (unreadable, limit) = (self.unreadable.clone(), filter.limit);
        let read = move |rows: &Rows| -> Result<RowPage<Approval>, StoreError> {
            match bound {
                // a decision about all of them must not miss one
                UNBOUNDED => RowPage::of(rows.read()?, Ok),
                _ => Ok(RowPage::from_rows(&unreadable, "approvals", rows, limit, Ok)),
            }
        };
        self.decode_rows(scope.tenant(), rows, read).await?
    }

    /// The questions about calls of one turn in their order, those that were replaced aside.
    pub async fn approvals_of_turn(&self, run_id: Uuid, turn: i64) -> Result<Vec<Approval>, StoreError> {
        Ok(self.db.read().await?.query(OF_TURN).bind(run_id).bind(turn).all().await?)
    }

    /// Marks that an approved call is about to be executed, under the run's lease. A run whose end was asked for begins
    /// nothing.
    pub async fn mark_execution_started(
        &self,
        lease: Lease,
        id: Uuid,
        digest: &str,
    ) -> Result<ApprovedCallStart, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let cancel_reason: Option<Option<String>> =
            tx.query(LOCK_LEASE).bind(lease.run_id).bind(lease.token).optional_scalar().await?;
        let ends = cancel_reason.ok_or(StoreError::LeaseLost)?.is_some();
        let now = self.settled_at(tx).await?;
        let began: Option<Option<DateTime<Utc>>> = tx
            .query("select execution_started_at from approvals where id = $1 and run_id = $2")
            .bind(id)
            .bind(lease.run_id)
            .optional_scalar()
            .await?;
        let done = match began {
            Some(Some(_)) => ApprovedCallStart::Before,
            Some(None) if !ends => {
                // found by its id: an index of questions that were not replaced has everybody's
                let begun = tx
                    .query(
                        "update approvals set execution_started_at = $2
                          where id = $1 and execution_started_at is null and status in ('approved', 'edited')
                            and coalesce(replaced_by is null, false) and decided_digest = $3
                            and (hold_until is null or hold_until <= $2)",
                    )
                    .bind(id)
                    .bind(now)
                    .bind(digest)
                    .execute()
                    .await?;
                if begun == 1 { ApprovedCallStart::Now } else { ApprovedCallStart::Refused }
            }
            _ => ApprovedCallStart::Refused,
        };
        write.commit().await?;
        Ok(done)
    }

    /// Notes what came of an approved call, for the page.
    pub async fn note_outcome(&self, id: Uuid, outcome: &CallOutcome) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let noted = write
            .query("update approvals set outcome = $2 where id = $1")
            .bind(id)
            .bind(document(outcome)?)
            .execute()
            .await?;
        write.commit().await?;
        if noted == 1 { Ok(()) } else { Err(StoreError::NotFound) }
    }
}

const ONE: Split = Split {
    postgres: sql!(sql!(SELECT_APPROVAL.postgres; "from approvals a" = WITH_LENGTH), IN_SCOPE),
    sqlite: sql!(sql!(SELECT_APPROVAL.sqlite; "from approvals a" = WITH_LENGTH), IN_SCOPE),
};
const WITH_LENGTH: &str = ", cast(a.stored_bytes as bigint) as wide from approvals a";
const IN_SCOPE: &str = "where a.id = $1 and ($2 is null or a.tenant_id = $2)";
const OF_TURN: Split = Split {
    postgres: sql!(
        SELECT_APPROVAL.postgres,
        "where a.run_id = $1 and a.turn = $2 and a.replaced_by is null order by a.id"
    ),
    sqlite: sql!(SELECT_APPROVAL.sqlite, "where a.run_id = $1 and a.turn = $2 and a.replaced_by is null order by a.id"),
};

/// The right to write for a run, held until this transaction ends.
const LOCK_LEASE: Split = Split {
    postgres: "select cancel_reason from queue
                where run_id = $1 and lease_token = $2 and state || '' = 'started' for update",
    sqlite: "select cancel_reason from queue where run_id = $1 and lease_token = $2 and state = 'started'",
};
