//! Work about people that an end leaves to be done: questions are put, a run that need not wait goes on, one whose end
//! was asked for meanwhile ends. Steps of the transaction that writes the end, which holds the run's rows.

use crate::store::hot::Taken;
use crate::store::lease::Finish;

impl Taken {
    /// Its end was asked for while it was being parked: nobody but us could hear that any more.
    pub(super) fn ends_instead(&self, end: &Finish) -> bool {
        end.park.is_some() && self.cancel_reason.is_some()
    }
}

/// Answers whether the run is in the queue again.
macro_rules! settle_park {
    ($store:ident, $conn:ident, $end:expr, $taken:expr, $now:expr) => {{
        use $crate::store::approvals::{ask, close_questions, wake};
        let end: &$crate::store::lease::Finish = $end;
        let taken: &$crate::store::hot::Taken = $taken;
        let run_id = taken.run_id;
        match &end.park {
            Some(_) if taken.ends_instead(end) => {
                sqlx::query("delete from parked where run_id = $1").bind(run_id).execute(&mut *$conn).await?;
                sqlx::query("update runs set state = 'cancelled', reason = $2, finished_at = $3 where id = $1")
                    .bind(run_id)
                    .bind(&taken.cancel_reason)
                    .bind($now)
                    .execute(&mut *$conn)
                    .await?;
                close_questions!($conn, run_id, $now);
                false
            }
            Some($crate::store::lease::Park::Approval { asks, open, .. }) => {
                // whoever answers waits for this transaction, or was before it
                let settled_at = $crate::store::connect::settled_at!($store, $conn);
                ask!($conn, asks, settled_at);
                let mut settled = false;
                for id in open {
                    let pending: Option<i32> = sqlx::query_scalar($crate::store::parking::STILL_OPEN)
                        .bind(id)
                        .bind(run_id)
                        .bind(settled_at)
                        .fetch_optional(&mut *$conn)
                        .await?;
                    settled |= pending.is_none();
                }
                settled && wake!($store.db, $conn, run_id, $now)
            }
            None if end.again.is_none() && taken.has_questions => {
                close_questions!($conn, run_id, $now);
                false
            }
            _ => false,
        }
    }};
}
pub(super) use settle_park;

/// Nobody has answered, or what was approved is held still.
pub(super) const STILL_OPEN: &str = "
    select 1 from approvals
     where id = $1 and run_id = $2 and replaced_by is null
       and (status = 'pending' or (status in ('approved', 'edited') and began_at is null and hold_until > $3))";
