//! The run before, which `cancel_previous` ends: asked to where a worker has it, ended here where it only waits for
//! a person or a completion, with what it asks withdrawn and its slot taken over.
//!
//! Its row is locked before any slot: queue, or else parked. What someone else has locked is being moved or settled at
//! this moment, and the task is tried again.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::run::RunState;
use crate::domain::trigger::Overlap;
use crate::store::approvals::close_questions;
use crate::store::runs::overlap::rule::{BlockedRow, LockedHolder, REASON_SUPERSEDED};
use crate::store::runs::slots::close_unstarted;
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// Locks the rows of the runs that may have to end; answers those. Locks of `queue` are taken in the order of ids, and
/// these come after younger ones: so one that someone else has is not waited for, and its task is tried again.
pub(super) async fn lock_previous(tx: &mut Tx<'_>, rows: &[BlockedRow]) -> Result<Vec<LockedHolder>, StoreError> {
    let mut holders: Vec<Uuid> = Vec::new();
    for row in rows.iter().filter(|row| row.policy() == Overlap::CancelPrevious) {
        let holder: Option<Uuid> =
            tx.query("select run_id from slots where task_id = $1").bind(row.task_id).optional_scalar().await?;
        holders.extend(holder);
    }
    let mut held: Vec<LockedHolder> = Vec::new();
    for run_id in holders {
        let queued: Option<Uuid> = tx.query(LOCK_QUEUED_IF_FREE).bind(run_id).optional_scalar().await?;
        if queued.is_some() {
            held.push(LockedHolder { run_id, waits: false });
            continue;
        }
        let waits: Option<bool> = tx.query(LOCK_WAITING_IF_FREE).bind(run_id).optional_scalar().await?;
        held.extend(waits.map(|waits| LockedHolder { run_id, waits }));
    }
    Ok(held)
}

/// Ends the run that has the slot and only waits, and those that wait behind it; the slot is `row`'s. Answers how many
/// it ended.
pub(super) async fn take_over(
    tx: &mut Tx<'_>,
    holder: Option<Uuid>,
    row: &BlockedRow,
    waiting: &[Uuid],
    now: DateTime<Utc>,
) -> Result<usize, StoreError> {
    let Some(holder) = holder else { return Ok(0) };
    tx.query("delete from parked where run_id = $1").bind(holder).execute().await?;
    tx.query(CANCEL_WAITING).bind(holder).bind(REASON_SUPERSEDED).bind(row.run_id).bind(now).execute().await?;
    close_questions(tx, holder, now).await?;
    for older in waiting {
        close_unstarted(tx, *older, RunState::Cancelled, REASON_SUPERSEDED, Some(row.run_id), now).await?;
    }
    tx.query("update slots set run_id = $2 where task_id = $1").bind(row.task_id).bind(row.run_id).execute().await?;
    Ok(1 + waiting.len())
}

pub(in crate::store) const CANCEL_WAITING: &str = "
    update runs set state = 'cancelled', reason = $2, blocked_by = $3, finished_at = $4
     where id = $1 and state in ('waiting_for_input', 'pending_approval', 'waiting_for_completion')";

/// Asks a holder that a worker has, or will have, to end. One that only waits for its next attempt has no worker that
/// could: its instant is now, and its start finds it cancelled.
pub(in crate::store) const SUPERSEDE: &str = "
    update queue
       set cancel_reason = $2, run_at = case when state = 'ready' and run_at > $3 then $3 else run_at end
     where run_id = $1 and cancel_reason is null and overlap is null";

/// Locks the queue row of one run and answers it, unless someone else has the lock.
pub(in crate::store) const LOCK_QUEUED_IF_FREE: Split = Split {
    postgres: "select run_id from queue where run_id = $1 for update skip locked",
    sqlite: "select run_id from queue where run_id = $1",
};

/// Locks the row of a run that waits for a person or a completion; answers whether it goes by its task's policy.
pub(in crate::store) const LOCK_WAITING_IF_FREE: Split = Split {
    postgres: "select overlap is null from parked where run_id = $1 and reason <> 'overlap' for update skip locked",
    sqlite: "select overlap is null from parked where run_id = $1 and reason <> 'overlap'",
};

/// Locks those of a task's runs that wait for a person or a completion.
pub(in crate::store) const LOCK_WAITING: Split = Split {
    postgres: "select run_id from parked where task_id = $1 and reason <> 'overlap' order by run_id for update",
    sqlite: "select run_id from parked where task_id = $1 and reason <> 'overlap' order by run_id",
};
