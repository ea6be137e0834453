//! Overlap: one slot per task, and what becomes of a run that finds it taken. Resolved when a run is about to start.
//!
//! The slot's row is locked before a run is judged: its holder's end then comes after that transaction and sees who
//! waits, or came before it, and the slot is free. A slot goes over in the transaction that frees it, to the oldest
//! run that waits, so no younger one can get in between. Should that ever be lost, the rescuer finds it.

pub(in crate::store) mod previous;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::domain::run::RunState;
use crate::store::hot::Hot;
use crate::store::runs::blocked::BlockedRow;
use crate::store::runs::blocked::REASON_SUPERSEDED;
use crate::store::runs::lease::Blocked;
use crate::store::runs::lease::Lease;
use crate::store::runs::slots::previous::{SUPERSEDE, lock_previous, take_over};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// Waiting for a slot is ended by the run before; this is only how long a lost hand-over can last.
pub(in crate::store) const RECHECK_AFTER: TimeDelta = TimeDelta::seconds(60);

/// Gives a task's free slot to the oldest run that waits for it, which enters the queue; answers whether one did.
pub(in crate::store) async fn hand_over(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    loop {
        let oldest: Option<Uuid> = tx.query(NEXT_IN_LINE).bind(task_id).optional_scalar().await?;
        let Some(oldest) = oldest else { return Ok(false) };
        let taken = tx
            .query("insert into slots (task_id, run_id) values ($1, $2) on conflict (task_id) do nothing")
            .bind(task_id)
            .bind(oldest)
            .execute()
            .await?;
        if taken == 0 {
            return Ok(false);
        }
        if unpark(tx, oldest, now).await? {
            return Ok(true);
        }
        // it was cancelled meanwhile
        free(tx, task_id, oldest).await?;
    }
}

pub(in crate::store) const NEXT_IN_LINE: &str = "
    select p.run_id from parked p
     where p.task_id = $1 and p.reason = 'overlap' and not exists (select 1 from slots s where s.task_id = $1)
     order by p.run_id limit 1";

/// Frees the task's slot if this run has it; answers how many slots that were: one or none.
pub(in crate::store) async fn free(tx: &mut Tx<'_>, task_id: Uuid, run_id: Uuid) -> Result<u64, StoreError> {
    let freed = tx.query("delete from slots where task_id = $1 and run_id = $2").bind(task_id).bind(run_id);
    Ok(freed.execute().await?)
}

/// Moves a parked run to the queue, ready now; answers whether it was parked still.
pub(in crate::store) async fn unpark(tx: &mut Tx<'_>, run_id: Uuid, now: DateTime<Utc>) -> Result<bool, StoreError> {
    let parked: Option<(Option<Uuid>, String, Option<String>)> = tx
        .query("delete from parked where run_id = $1 returning task_id, tenant_id, overlap")
        .bind(run_id)
        .optional()
        .await?;
    let Some((task_id, tenant_id, overlap)) = parked else { return Ok(false) };
    tx.query(
        "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, overlap)
         values ($1, $2, $3, coalesce((select d.epoch from due d where d.task_id = $2), 0), $4, 0, 'ready', $5)",
    )
    .bind(run_id)
    .bind(task_id)
    .bind(tenant_id)
    .bind(now)
    .bind(overlap)
    .execute()
    .await?;
    Ok(true)
}

/// Ends a run that has not been started, with its reason.
pub(in crate::store) async fn close_unstarted(
    tx: &mut Tx<'_>,
    run_id: Uuid,
    state: RunState,
    reason: &str,
    blocked_by: Option<Uuid>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for statement in ["delete from queue where run_id = $1", "delete from parked where run_id = $1"] {
        tx.query(statement).bind(run_id).execute().await?;
    }
    tx.query(
        "update runs set state = $2, reason = $3, blocked_by = $4, finished_at = $5
          where id = $1 and state = 'queued'",
    )
    .bind(run_id)
    .bind(state.as_str())
    .bind(reason)
    .bind(blocked_by)
    .bind(now)
    .execute()
    .await?;
    Ok(())
}

/// Judges the claims among `leases` that still stand (they did not start), and answers what became of each.
///
/// Locks are taken queue, runs that wait, slots, and each in the order of ids. Most are skipped, by a few statements
/// for all of them; a policy that lets a run wait, or end another one, takes some for each.
pub(in crate::store) async fn resolve_blocked(
    tx: &mut Tx<'_>,
    mut leases: Vec<Lease>,
    now: DateTime<Utc>,
) -> Result<Vec<(Uuid, Blocked)>, StoreError> {
    leases.sort_by_key(|lease| lease.run_id);
    let mut rows = tx.standing(&leases).await?;
    rows.sort_by_key(|row| (row.task_id, row.run_id));
    let held = lock_previous(tx, &rows).await?;
    let holders = tx.lock_slots(&tasks_of(&rows)).await?;
    let (skipped, rows) = skipped_at_once(rows, &holders);
    tx.skip_blocked(&skipped, now).await?;
    let mut blocked: Vec<(Uuid, Blocked)> = skipped.into_iter().map(|(run_id, _)| (run_id, Blocked::Skipped)).collect();
    for row in &rows {
        let mut holder: Option<Uuid> = tx.query(LOCK_SLOT).bind(row.task_id).optional_scalar().await?;
        let waiting: Vec<Uuid> = tx.query(WAITING).bind(row.task_id).scalars().await?;
        if row.takes_over(holder, &waiting, &held) {
            take_over(tx, holder, row, &waiting, now).await?;
            holder = Some(row.run_id);
        }
        let fate = row.decide(holder, &waiting, &held);
        settle_blocked(tx, row, fate, holder, &waiting, now).await?;
        blocked.push((row.run_id, fate));
    }
    Ok(blocked)
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
pub(in crate::store) fn tasks_of(rows: &[BlockedRow]) -> Vec<Uuid> {
    let mut tasks: Vec<Uuid> = rows.iter().filter_map(|row| row.task_id).collect();
    tasks.dedup();
    tasks
}

/// The claims that are skipped because another run has their task's slot, each with that one; and the others. A run
/// that has a slot and is judged here, too, may give it up: that is looked at one by one.
pub(in crate::store) fn skipped_at_once(
    rows: Vec<BlockedRow>,
    holders: &HashMap<Uuid, Uuid>,
) -> (Vec<(Uuid, Uuid)>, Vec<BlockedRow>) {
    let judged: HashSet<Uuid> = rows.iter().map(|row| row.run_id).collect();
    let holder = |row: &BlockedRow| holders.get(&row.task_id?).copied().filter(|holder| !judged.contains(holder));
    let mut skipped = Vec::new();
    let others = rows.into_iter().filter_map(|row| {
        let holder = holder(&row).filter(|_| row.is_skipped_by_any());
        match holder {
            Some(holder) => {
                skipped.push((row.run_id, holder));
                None
            }
            None => Some(row),
        }
    });
    let others = others.collect();
    (skipped, others)
}

/// The youngest first; runs that wait whatever the policy are in nobody's way. More than one of the others waits under
/// `queue_all` alone, which does not ask.
pub(in crate::store) const WAITING: &str =
    "select run_id from parked where task_id = $1 and reason = 'overlap' and overlap is null
      order by run_id desc limit 100";

/// Writes what becomes of one blocked run.
async fn settle_blocked(
    tx: &mut Tx<'_>,
    row: &BlockedRow,
    fate: Blocked,
    holder: Option<Uuid>,
    waiting: &[Uuid],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let id = row.run_id;
    match fate {
        Blocked::Cancelled => {
            let superseded_by = waiting.first().copied().filter(|_| row.cancel_reason.is_none());
            close_unstarted(tx, id, RunState::Cancelled, row.cancel_reason(), superseded_by, now).await?;
            if let Some(task_id) = row.task_id
                && free(tx, task_id, id).await? > 0
            {
                hand_over(tx, task_id, now).await?;
            }
        }
        Blocked::Skipped => close_unstarted(tx, id, RunState::Skipped, "overlap", holder, now).await?,
        Blocked::Again => {
            tx.query(
                "update queue set state = 'ready', lease_token = 0, lease_until = null, worker = null
                  where run_id = $1",
            )
            .bind(id)
            .execute()
            .await?;
        }
        Blocked::Behind => {
            if row.overlap == "cancel_previous" {
                tx.query(SUPERSEDE).bind(holder).bind(REASON_SUPERSEDED).bind(now).execute().await?;
                for older in waiting {
                    close_unstarted(tx, *older, RunState::Cancelled, REASON_SUPERSEDED, Some(id), now).await?;
                }
            }
            tx.query("delete from queue where run_id = $1").bind(id).execute().await?;
            tx.query(
                "insert into parked (run_id, task_id, tenant_id, reason, wake_at, overlap)
                 values ($1, $2, $3, 'overlap', $4, $5)",
            )
            .bind(id)
            .bind(row.task_id)
            .bind(&row.tenant_id)
            .bind(now + RECHECK_AFTER)
            .bind(&row.own_overlap)
            .execute()
            .await?;
        }
    }
    Ok(())
}

/// The slots that were there are locked by now. One that somebody else has taken since is not waited for, as it would
/// be out of order: its task is tried again.
pub(in crate::store) const LOCK_SLOT: Split = Split {
    postgres: "select run_id from slots where task_id = $1 for update skip locked",
    sqlite: "select run_id from slots where task_id = $1",
};

/// Locks the queue row of one run and answers its state there.
pub(in crate::store) const LOCK_QUEUED: Split = Split {
    postgres: "select state from queue where run_id = $1 for update",
    sqlite: "select state from queue where run_id = $1",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::runs::blocked::Previous;

    const HOLDER: Uuid = Uuid::from_u128(1);
    const OLDER: Uuid = Uuid::from_u128(2);
    const OWN: Uuid = Uuid::from_u128(3);
    const YOUNGER: Uuid = Uuid::from_u128(4);

    fn row(overlap: &str) -> BlockedRow {
        BlockedRow {
            run_id: OWN,
            task_id: Some(Uuid::nil()),
            tenant_id: "a".into(),
            cancel_reason: None,
            own_overlap: None,
            overlap: overlap.into(),
        }
    }

    fn previous(run_id: Uuid, waits: bool) -> Previous {
        Previous { run_id, waits }
    }

    fn fates(overlap: &str) -> [Blocked; 4] {
        let fate = |waiting: &[Uuid]| row(overlap).decide(Some(HOLDER), waiting, &[previous(HOLDER, false)]);
        [fate(&[]), fate(&[OLDER]), fate(&[YOUNGER]), row(overlap).decide(None, &[], &[])]
    }

    #[test]
    fn each_policy_judges_by_who_waits() {
        use Blocked::*;
        assert_eq!(fates("skip"), [Skipped, Skipped, Skipped, Again]);
        assert_eq!(fates("queue_one"), [Behind, Skipped, Skipped, Again]);
        assert_eq!(fates("queue_all"), [Behind, Behind, Behind, Again]);
        assert_eq!(fates("cancel_previous"), [Behind, Behind, Cancelled, Again]);
    }

    #[test]
    fn claims_are_skipped_together_where_another_run_has_the_slot_and_nobody_waits_by_their_policy() {
        let of = |run: u128, task: u128, overlap: &str| BlockedRow {
            run_id: Uuid::from_u128(run),
            task_id: Some(Uuid::from_u128(task)),
            ..row(overlap)
        };
        let cancelled = BlockedRow { cancel_reason: Some("no".into()), ..of(15, 1, "skip") };
        let rows = vec![
            of(10, 1, "skip"),
            of(11, 1, "queue_one"),
            of(12, 2, "skip"),
            of(13, 2, "skip"),
            of(14, 3, "skip"),
            cancelled,
        ];
        let holders = [(1, 1), (2, 12)].map(|(task, run)| (Uuid::from_u128(task), Uuid::from_u128(run))).into();
        let (skipped, others) = skipped_at_once(rows, &holders);
        assert_eq!(skipped, [(Uuid::from_u128(10), Uuid::from_u128(1))]);
        let others: Vec<u128> = others.iter().map(|row| row.run_id.as_u128()).collect();
        assert_eq!(others, [11, 12, 13, 14, 15], "run 12 has the slot of run 13 and may give it up");
    }

    #[test]
    fn cancelled_one_is_cancelled_whoever_has_the_slot() {
        let cancelled = BlockedRow { cancel_reason: Some("no".into()), ..row("skip") };
        for holder in [None, Some(OWN), Some(HOLDER)] {
            assert_eq!(cancelled.decide(holder, &[], &[]), Blocked::Cancelled);
        }
    }

    #[test]
    fn run_is_never_in_its_own_way_and_only_a_locked_holder_is_asked_to_end() {
        assert_eq!(row("skip").decide(Some(OWN), &[], &[]), Blocked::Again);
        assert_eq!(row("cancel_previous").decide(Some(HOLDER), &[], &[previous(OLDER, false)]), Blocked::Again);
    }

    #[test]
    fn slot_is_taken_only_from_one_that_waits_by_the_youngest_that_nobody_has_cancelled() {
        let (waits, works) = ([previous(HOLDER, true)], [previous(HOLDER, false)]);
        let takes = |row: &BlockedRow, waiting: &[Uuid], held: &[Previous]| row.takes_over(Some(HOLDER), waiting, held);
        let own = row("cancel_previous");
        assert!(takes(&own, &[], &waits) && takes(&own, &[OLDER], &waits));
        assert!(!takes(&own, &[], &works) && !takes(&own, &[], &[]) && !takes(&own, &[YOUNGER], &waits));
        assert!(!own.takes_over(None, &[], &waits) && !own.takes_over(Some(OLDER), &[], &waits));
        let cancelled = BlockedRow { cancel_reason: Some("no".into()), ..row("cancel_previous") };
        assert!(!takes(&cancelled, &[], &waits));
        for policy in ["skip", "queue_one", "queue_all"] {
            assert!(!takes(&row(policy), &[], &waits), "{policy}");
        }
    }
}
