//! Overlap: what becomes of a run that finds its task's slot taken, as its task's policy says. Resolved when a run is
//! about to start; [`rule`] decides, and this writes what was decided.
//!
//! The slot's row is locked before a run is judged: its holder's end then comes after that transaction and sees who
//! waits, or came before it, and the slot is free.

pub(in crate::store) mod previous;
pub(in crate::store) mod rule;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::run::RunState;
use crate::domain::trigger::Overlap;
use crate::store::runs::lease::{Lease, OverlapOutcome};
use crate::store::runs::overlap::previous::{SUPERSEDE, lock_previous, take_over};
use crate::store::runs::overlap::rule::{BlockedRow, REASON_SUPERSEDED, skipped_at_once};
use crate::store::runs::slots::{RECHECK_AFTER, close_unstarted, free, hand_over};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// Outcomes of claims that did not start.
#[derive(Debug, Default)]
pub(in crate::store) struct ResolvedClaims {
    /// Of each claim that still stood.
    pub outcomes: Vec<(Uuid, OverlapOutcome)>,
    /// Older runs that were ended for one of them.
    pub superseded: usize,
}

/// Judges the claims among `leases` that still stand (they did not start), and answers what became of each.
///
/// Locks are taken queue, runs that wait, slots, and each in the order of ids. Most are skipped, by a few statements
/// for all of them; a policy that lets a run wait, or end another one, takes some for each.
pub(in crate::store) async fn resolve_blocked(
    tx: &mut Tx<'_>,
    mut leases: Vec<Lease>,
    now: DateTime<Utc>,
) -> Result<ResolvedClaims, StoreError> {
    leases.sort_by_key(|lease| lease.run_id);
    let mut rows = tx.lock_held_claims(&leases).await?;
    rows.sort_by_key(|row| (row.task_id, row.run_id));
    let held = lock_previous(tx, &rows).await?;
    let holders = tx.lock_slots(&tasks_of(&rows)).await?;
    let (skipped, rows) = skipped_at_once(rows, &holders);
    tx.skip_blocked(&skipped, now).await?;
    let outcomes = skipped.into_iter().map(|(run_id, _)| (run_id, OverlapOutcome::Skipped)).collect();
    let mut resolved = ResolvedClaims { outcomes, superseded: 0 };
    for row in &rows {
        let mut holder: Option<Uuid> = tx.query(LOCK_SLOT).bind(row.task_id).optional_scalar().await?;
        let waiting: Vec<Uuid> = tx.query(WAITING).bind(row.task_id).scalars().await?;
        if row.takes_over(holder, &waiting, &held) {
            resolved.superseded += take_over(tx, holder, row, &waiting, now).await?;
            holder = Some(row.run_id);
        }
        let fate = row.decide(holder, &waiting, &held);
        resolved.superseded += settle_blocked(tx, row, fate, holder, &waiting, now).await?;
        resolved.outcomes.push((row.run_id, fate));
    }
    Ok(resolved)
}

/// The columns by which a claim is judged, of `queue` as `q` and `tasks` as `t`. SQLite keeps tasks as texts: one that
/// is no JSON must not hold up the others.
pub(in crate::store) const BLOCKED_ROW: Split = Split {
    postgres: sql!(BLOCKED; "{overlap}" = "t.spec -> 'trigger' ->> 'overlap'"),
    sqlite: sql!(BLOCKED; "{overlap}" = "case when json_valid(t.spec) then t.spec -> 'trigger' ->> 'overlap' end"),
};
const BLOCKED: &str = "
    q.run_id, q.task_id, q.tenant_id, q.cancel_reason, q.overlap as own_overlap,
    coalesce(q.overlap, {overlap}, 'skip') as overlap";

/// The tasks of these claims, in their order.
fn tasks_of(rows: &[BlockedRow]) -> Vec<Uuid> {
    let mut tasks: Vec<Uuid> = rows.iter().filter_map(|row| row.task_id).collect();
    tasks.dedup();
    tasks
}

/// The youngest first; runs that wait whatever the policy are in nobody's way. More than one of the others waits under
/// `queue_all` alone, which does not ask.
const WAITING: &str = "select run_id from parked where task_id = $1 and reason = 'overlap' and overlap is null
      order by run_id desc limit 100";

/// Writes what becomes of one blocked run; answers how many older ones it ended.
async fn settle_blocked(
    tx: &mut Tx<'_>,
    row: &BlockedRow,
    fate: OverlapOutcome,
    holder: Option<Uuid>,
    waiting: &[Uuid],
    now: DateTime<Utc>,
) -> Result<usize, StoreError> {
    let id = row.run_id;
    let mut superseded = 0;
    match fate {
        OverlapOutcome::Cancelled => {
            let superseded_by = waiting.first().copied().filter(|_| row.cancel_reason.is_none());
            close_unstarted(tx, id, RunState::Cancelled, row.cancel_reason(), superseded_by, now).await?;
            if let Some(task_id) = row.task_id
                && free(tx, task_id, id).await? > 0
            {
                hand_over(tx, task_id, now).await?;
            }
        }
        OverlapOutcome::Skipped => close_unstarted(tx, id, RunState::Skipped, "overlap", holder, now).await?,
        OverlapOutcome::Again => {
            tx.query(
                "update queue set state = 'ready', lease_token = 0, lease_until = null, worker = null
                  where run_id = $1",
            )
            .bind(id)
            .execute()
            .await?;
        }
        OverlapOutcome::Behind => {
            if row.policy() == Overlap::CancelPrevious {
                tx.query(SUPERSEDE).bind(holder).bind(REASON_SUPERSEDED).bind(now).execute().await?;
                for older in waiting {
                    close_unstarted(tx, *older, RunState::Cancelled, REASON_SUPERSEDED, Some(id), now).await?;
                }
                superseded = waiting.len();
            }
            tx.query("delete from queue where run_id = $1").bind(id).execute().await?;
            tx.query(PARK_BEHIND)
                .bind(id)
                .bind(row.task_id)
                .bind(&row.tenant_id)
                .bind(now + RECHECK_AFTER)
                .bind(&row.own_overlap)
                .execute()
                .await?;
        }
    }
    Ok(superseded)
}

/// Puts a run among those that wait for the slot of their task, whose row is locked. On Postgres that row is written as
/// it is: a statement that ends the holder may have begun before. It does not see the run that waits, but locks another
/// version of the row than it sees, and by that it knows.
const PARK_BEHIND: Split = Split {
    postgres: sql!("with written as (update slots set run_id = run_id where task_id = $2) ", PARK),
    sqlite: PARK,
};
const PARK: &str = "
    insert into parked (run_id, task_id, tenant_id, reason, wake_at, overlap) values ($1, $2, $3, 'overlap', $4, $5)";

/// The slots that were there are locked by now. One that somebody else has taken since is not waited for, as it would
/// be out of order: its task is tried again.
const LOCK_SLOT: Split = Split {
    postgres: "select run_id from slots where task_id = $1 for update skip locked",
    sqlite: "select run_id from slots where task_id = $1",
};
