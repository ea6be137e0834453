//! Work about people that an end leaves to be done: questions are put, a run that need not wait goes on, one whose end
//! was asked for meanwhile ends. Steps of the transaction that writes the end, which holds the run's rows.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::approval::OpenQuestion;
use crate::domain::run::RunState;
use crate::store::approvals::{ask, close_questions, unpark, withdraw_other_turns};
use crate::store::runs::lease::{Finish, FinishedRow, Park};
use crate::store::tx::Tx;
use crate::store::{Store, StoreError};

impl FinishedRow {
    /// Its end was asked for while it was being parked: nobody but us could hear that any more.
    pub(in crate::store) fn must_end(&self, end: &Finish) -> bool {
        end.park.is_some() && self.cancel_reason.is_some()
    }
}

/// Answers whether the run is in the queue again.
pub(in crate::store) async fn settle_park(
    store: &Store,
    tx: &mut Tx<'_>,
    end: &Finish,
    taken: &FinishedRow,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let run_id = taken.lease.run_id;
    Ok(match &end.park {
        Some(_) if taken.must_end(end) => {
            tx.query("delete from parked where run_id = $1").bind(run_id).execute().await?;
            tx.query("update runs set state = 'cancelled', reason = $2, finished_at = $3 where id = $1")
                .bind(run_id)
                .bind(&taken.cancel_reason)
                .bind(now)
                .execute()
                .await?;
            close_questions(tx, run_id, now).await?;
            false
        }
        Some(park @ Park::Approval { asks, open, .. }) => {
            // whoever answers waits for this transaction, or was before it
            let settled_at = store.settled_at(tx).await?;
            ask(tx, asks, settled_at).await?;
            if let Some(turns) = park.turns() {
                withdraw_other_turns(tx, run_id, &turns, settled_at).await?;
            }
            let mut settled = false;
            for OpenQuestion { id, .. } in open {
                let pending: Option<i32> =
                    tx.query(STILL_OPEN).bind(id).bind(run_id).bind(settled_at).optional_scalar().await?;
                settled |= pending.is_none();
            }
            settled && unpark(tx, run_id, now).await?
        }
        None if end.again.is_none() && taken.has_questions => {
            close_questions(tx, run_id, now).await?;
            false
        }
        _ => false,
    })
}

/// The line that the log has of each run whose end was asked for while it was being parked, once that is on the record.
pub(in crate::store) fn log_cancelled_parks(ended: &[(&Finish, &FinishedRow)]) {
    for (end, taken) in ended.iter().filter(|(end, taken)| taken.must_end(end)) {
        let (task_id, state) = (end.task_id.map(tracing::field::display), RunState::Cancelled.as_str());
        let why = taken.cancel_reason.as_deref();
        tracing::info!(run_id = %taken.lease.run_id, task_id, state, why, "run ended outside of an execution");
    }
}

/// The line that the log has of each run that is not parked, because as many of its tenant wait for people as may.
pub(in crate::store) fn log_refused_parks(refused: &HashSet<Uuid>) {
    for run_id in refused {
        tracing::info!(%run_id, "a run does not wait for people, because as many of its tenant wait as may; it goes on");
    }
}

/// Nobody has answered, or what was approved is held still.
pub(in crate::store) const STILL_OPEN: &str = "
    select 1 from approvals
     where id = $1 and run_id = $2 and replaced_by is null
       and (status = 'pending' or (status in ('approved', 'edited') and execution_started_at is null and hold_until > $3))";
