//! Everything that is kept. The only place that knows a database.
//!
//! One method is one transaction, and no network is awaited inside one. Each change of state is guarded in the
//! `where`, and the count of rows is looked at; uniqueness is in the schema. What a method has returned survives a
//! crash; what it has not may have happened, and may be asked again.
//! Locks are taken in one order everywhere: due, queue, slots, parked, runs, approvals. Rows of `parked` that wait for
//! people or a completion come before slots.

mod approvals;
mod batches;
mod columns;
mod conversations;
mod credentials;
mod data_files;
mod db;
mod deliveries;
mod events;
mod memory;
mod ops;
mod runs;
mod sql;
mod tasks;
mod tenants_without;
mod tx;

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use uuid::Uuid;

use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::domain::quota::ExceededQuota;
use crate::store::db::Db;
use crate::store::db::store_metrics::StoreMetrics;
use crate::store::db::wakeup::Wakeups;
use crate::store::db::write_batcher::WriteBatcher;
use crate::store::ops::unreadable::UnreadableRow;
use crate::store::tasks::tenant_turns::TenantCursor;

pub use approvals::grants::{Grant, GrantUse};
pub use approvals::links::BatchQuestion;
pub use approvals::overrides::OverrideFilter;
pub use approvals::{
    ApprovalFilter, ApprovalLink, DecisionOutcome, DecisionRefusal, SuspendedCaller, SuspendedFilter, SuspendedRun,
    WaitingOutcome, WaitingRun, WaitingUpdate,
};
pub use conversations::ConversationFilter;
pub use credentials::{
    CredentialFilter, CredentialRowDraft, SavedCredential, SealedDocument, SealedRow, StoredCredential, UseFilter,
    next_generation,
};
pub use data_files::CHUNK_BYTES;
pub use db::connect::{OpenError, ServerFacts, Settings};
pub use db::examine::{DatabaseFacts, SqliteFile, examine, sqlite_version};
pub use db::listing::{PAGE_BYTES, RowPage, SUMMARY_LENGTH};
pub use db::store_metrics::PoolUse;
pub use db::wakeup::Topic;
pub use db::with_timeout;
pub use deliveries::live::LiveMessage;
pub use deliveries::recipients::{ListedRecipient, RecipientFilter, StoredRecipient};
pub use deliveries::referred::ReferredRecords;
pub use deliveries::verifications::{CodeCheck, Verification};
pub use deliveries::{DeliveryFilter, DeliverySummary, QueuedDelivery};
pub use events::closing::HeldEvents;
pub use events::dead_letters::{NewDeadLetter, StoredDeadLetter, StoredDeadLetterFilter};
pub use events::due_windows::{DueRelease, DueWindow, EventRelease};
pub use events::event_index::{EVENT_SHARDS, EventTask, EventTaskChanges, event_shard};
pub use events::matches::{EventsRecorded, Match};
pub use events::matching::{EventsFired, FireEvents};
pub use events::{EventBacklog, EventFilter, LeasedEntries, LeasedEvent};
pub use memory::{
    EMBEDDED_AT_ONCE, EmbeddedFact, EmbeddingPlace, ExtractionCall, ExtractionClaim, ExtractionEnd, FactFilter,
    MOST_QUEUED, NotedFact, NotingKind, RecalledFacts, UnembeddedFact, VECTORS_AT_ONCE,
};
pub use ops::audit::{AuditEntry, AuditFilter};
pub use ops::budgets::reservation::{Reservation, ReservationOutcome};
pub use ops::budgets::settlement::{BudgetEnd, Settlement};
pub use ops::budgets::{BudgetUsage, LedgerStanding};
pub use ops::depths::{COUNTED_TO, Depths};
pub use ops::halts::HaltPage;
pub use ops::idempotency::{AnswerBody, Idempotency, StoredAnswer};
pub use ops::instances::InstanceRecord;
pub use ops::login_links::{MOST_LINKS, StoredLoginLink};
pub use ops::pending_work::PendingWork;
pub use ops::quotas::QuotaUsage;
pub use ops::tokens::{MOST_TOKENS, StoredToken};
pub use ops::tool_pins::{ToolOwner, UntoldTool};
pub use ops::ui_sessions::{MOST_SESSIONS, UiSession};
pub use ops::usage::run_account::{RunAccount, TOOL_RECORDS};
pub use ops::usage::{UsageFilter, UsageGroup, UsageOrder, UsageSum};
pub use runs::completions::RunCompletion;
pub use runs::lease::{
    CLAIM_MARGIN, ClaimCursor, Finish, Lease, OverlapOutcome, Park, RenewedLease, RequeuedRun, RunClaim, RunLimits,
    TakeRequest,
};
pub use runs::pages::{RunFilter, RunOverview, SCANNED};
pub use runs::recorded::SurroundingRuns;
pub use runs::requests::{Cancelled, RunRequest};
pub use runs::rescue::StrandedRun;
pub use runs::run_location::{Holder, ParkedRun, QueuedPlace, RunLocation, RunProgress};
pub use runs::shares::{Occupant, Shares, TenantShares, count_by_tenant, tenant_hash, tenant_share};
pub use runs::slots::log_end_outside_execution;
pub use runs::starting::immediate_start::ImmediateStart;
pub use runs::starting::local_starter::{LocalStarter, ReservedStart};
pub use runs::starting::{StartedRun, Starts, TakeResult};
pub use tasks::conditions::{DuePoll, PollClaim, RecordedPoll};
pub use tasks::creating::NewTask;
pub use tasks::disabling::SeenTask;
pub use tasks::failing::PauseResult;
pub use tasks::fires::{FireDue, FireResult};
pub use tasks::names::TaskName;
pub use tasks::task_state::STATE_NAMES;
pub use tasks::upcoming::UpcomingFire;
pub use tasks::zones::{NewestZones, PlannedTask, ZonedTasks};
pub use tasks::{SCANNED_TASKS, TaskFilter};

/// The store. Cheap to clone; all clones share the same connections.
#[derive(Clone)]
pub struct Store {
    db: Db,
    clock: Clock,
    wakeups: Wakeups,
    counts: StoreMetrics,
    unreadable: UnreadableRow,
    /// Tasks that callers store one by one.
    creating: WriteBatcher<tasks::creating::WrittenTask<'static>, Result<(), StoreError>>,
    marks: deliveries::MarkBatcher,
    appends: runs::transcript::AppendBatcher,
    requests: runs::requests::run_now::RequestBatcher,
    reservations: ops::budgets::reserving::ReservationBatcher,
    fact_revisions: memory::revisions::RevisionBatcher,
    last_pending_work: ops::pending_work::LastPendingWork,
    /// Where a write goes on whose caller may go away, and whose threads give way to nobody.
    runtime: Handle,
    /// Threads for what tenants wrote and the store has to compute before it writes: never in a transaction.
    computing: Compute,
    batch_offsets: Arc<tasks::fires::BatchOffsets>,
    /// The tenants whose runs are looked after next, of those that wait for people, and for other systems.
    parked_cursors: Arc<[TenantCursor; 2]>,
    /// The tenant whose kept events were forwarded last.
    outbox_cursor: Arc<TenantCursor>,
    /// The tenants whose windows were looked at last, of those that close, and of those that are released.
    window_cursors: Arc<[TenantCursor; 2]>,
    /// The tenant whose tasks were resumed last.
    resumption_cursor: Arc<TenantCursor>,
    quotas: ops::quotas::KnownAllowances,
    budgets: ops::budgets::KnownBudgets,
    rates: ops::rates::RateCounters,
    halts: ops::halts::SharedHalts,
    /// Executes runs in this process that callers' writes have started.
    local_starts: runs::starting::local_starter::LocalStarts,
    bulk: ops::bulk::Bulk,
    paces: Arc<db::pace::Paces>,
    task_cache: tasks::task_cache::TaskCache,
    without_overrides: tenants_without::TenantsWithout,
    without_facts: tenants_without::TenantsWithout,
    /// The id of the instance that this process is, once it has said that it lives.
    own_instance: Arc<OnceLock<Uuid>>,
}

/// Why the store could not do what was asked, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing, or none in this scope.
    #[error("not found")]
    NotFound,
    /// It is there, but not as the caller thought; the sentence says how it is.
    #[error("{0}")]
    Conflict(String),
    /// It would be more than the tenant may have; nothing was written.
    #[error("{0}")]
    Quota(Box<ExceededQuota>),
    /// Somebody else holds it now; nothing was written.
    #[error("the lease is lost")]
    LeaseLost,
    /// The database can't be asked now; the same call may work later, and may have taken effect.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database gave the statement up, because it took too long. Nothing was written; the same call may work later,
    /// and one that asks for less is more likely to.
    #[error("the database took too long: {0}")]
    TimedOut(String),
    /// A newer release wrote it in a form that this one does not know. It stays as it is.
    #[error("it was stored by a newer release: its format is {found}, and this one reads up to {newest}")]
    UnknownFormat {
        /// The format that is stored.
        found: i16,
        /// The newest that is known.
        newest: i16,
    },
    /// A stored value can't be read; a person has to look.
    #[error("stored data can't be read: {0}")]
    Corrupt(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> StoreError {
        use sqlx::Error as E;
        if let E::Database(database) = &error
            && let Some(exceeded) = ExceededQuota::parse(database.message())
        {
            return StoreError::Quota(Box::new(exceeded));
        }
        match &error {
            E::RowNotFound => StoreError::NotFound,
            E::ColumnDecode { .. } | E::Decode(_) | E::ColumnNotFound(_) | E::TypeNotFound { .. } => {
                StoreError::Corrupt(error.to_string())
            }
            E::Database(database) if database.is_unique_violation() => StoreError::Conflict(database.to_string()),
            E::Database(database) if database.code().as_deref() == Some(GIVEN_UP) => {
                StoreError::TimedOut(error.to_string())
            }
            E::Database(database) if is_our_fault(database.code().as_deref()) => StoreError::Corrupt(error.to_string()),
            _ => StoreError::Unavailable(error.to_string()),
        }
    }
}

/// Postgres, SQLSTATE `query_canceled`: the statement came to `statement_timeout`. SQLite has no such limit.
const GIVEN_UP: &str = "57014";

/// Whether the error stays when the statement is repeated. Postgres, SQLSTATE classes: data (22), constraints (23),
/// syntax and names (42). SQLite, primary result codes: syntax and names (1), a damaged file (11, 26), too big (18),
/// constraints (19), types (20).
fn is_our_fault(code: Option<&str>) -> bool {
    match code {
        Some(state) if state.len() == 5 => ["22", "23", "42"].contains(&&state[..2]),
        Some(extended) => extended.parse().is_ok_and(|code: u32| [1, 11, 18, 19, 20, 26].contains(&(code & 0xff))),
        None => false,
    }
}

/// One statement whose text must differ; both take the same parameters and answer the same columns.
#[derive(Clone, Copy)]
struct Split {
    postgres: &'static str,
    sqlite: &'static str,
}

/// The two sibling files of a statement in `store/sql/`.
macro_rules! split {
    ($name:literal) => {
        $crate::store::Split {
            postgres: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sql/", $name, ".postgres.sql")),
            sqlite: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sql/", $name, ".sqlite.sql")),
        }
    };
}
use split;

/// A lease token, never given before and never again.
const NEXT_TOKEN: Split = split!("next_token");
