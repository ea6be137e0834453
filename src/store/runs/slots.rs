//! The slot that each task has, which one of its runs holds while it is under way unless the task allows overlap.
//!
//! A slot goes over in the transaction that frees it, to the oldest run that waits, so no younger one can get in
//! between. Should that ever be lost, the rescuer finds it.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::domain::run::{Run, RunState};
use crate::domain::task::Task;
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

/// The line that the log has of a run that ends outside of an execution, once its end is on the record: in the form of
/// an execution's. Its time is counted from when it was first started; without a start it is 0.
pub fn log_end_outside_execution(
    run: &Run,
    task: Option<&Task>,
    state: RunState,
    why: Option<&str>,
    now: DateTime<Utc>,
) {
    let Run { id, tenant_id, attempt, .. } = run;
    let (task_id, name) = (run.task_id.map(tracing::field::display), task.map(|task| task.name.as_str()));
    let duration_ms = run.started_at.map_or(0, |began| (now - began).num_milliseconds().max(0) as u64);
    let is_bad = matches!(state, RunState::Failed | RunState::Expired);
    let state = state.as_str();
    match is_bad {
        true => tracing::warn!(
            run_id = %id, task_id, task = name, tenant_id, state, duration_ms, attempt, why, "run ended outside of an execution"
        ),
        false => tracing::info!(
            run_id = %id, task_id, task = name, tenant_id, state, duration_ms, attempt, why, "run ended outside of an execution"
        ),
    }
}

/// The line that the log has of runs that end together outside of an execution, once their ends are on the record; none
/// of no run.
pub(in crate::store) fn log_ends_outside_execution(
    runs: usize,
    state: RunState,
    task_id: Option<Uuid>,
    why: Option<&str>,
) {
    if runs > 0 {
        let (task_id, state) = (task_id.map(tracing::field::display), state.as_str());
        tracing::info!(runs, task_id, state, why, "runs ended outside of an execution");
    }
}

/// Locks the queue row of one run and answers its state there.
pub(in crate::store) const LOCK_QUEUED: Split = Split {
    postgres: "select state from queue where run_id = $1 for update",
    sqlite: "select state from queue where run_id = $1",
};
