//! Overlap: one slot per task, and what becomes of a run that finds it taken. Resolved when a run is about to start.

/// What a blocked run has to be judged by.
#[derive(sqlx::FromRow)]
pub(super) struct BlockedRow {
    pub task_id: Option<uuid::Uuid>,
    pub tenant_id: String,
    pub cancel_reason: Option<String>,
    pub overlap: String,
}

/// Waiting for a slot is ended by the run before; this is only how long a lost hand-over can last.
pub(super) const LOOK_AGAIN: chrono::TimeDelta = chrono::TimeDelta::seconds(60);

/// Why a run that `cancel_previous` ended was cancelled.
pub(super) const REASON_SUPERSEDED: &str = "superseded";

/// Frees nothing itself: gives a task's free slot to the oldest run that waits for it, which enters the queue.
/// The slot goes over in the same transaction, so no younger run can get in between.
macro_rules! hand_over {
    ($conn:ident, $task_id:expr, $now:expr) => {{
        let next: Option<uuid::Uuid> = sqlx::query_scalar(
            "select p.run_id from parked p
              where p.task_id = $1 and p.why = 'overlap' and not exists (select 1 from slots s where s.task_id = $1)
              order by p.run_id limit 1",
        )
        .bind($task_id)
        .fetch_optional(&mut *$conn)
        .await?;
        if let Some(next) = next {
            sqlx::query("insert into slots (task_id, run_id) values ($1, $2) on conflict (task_id) do nothing")
                .bind($task_id)
                .bind(next)
                .execute(&mut *$conn)
                .await?;
            $crate::store::slots::unpark!($conn, next, $now);
        }
    }};
}
pub(super) use hand_over;

/// Moves a parked run to the queue, ready now.
macro_rules! unpark {
    ($conn:ident, $run_id:expr, $now:expr) => {{
        sqlx::query(
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state)
             select p.run_id, p.task_id, p.tenant_id,
                    coalesce((select d.epoch from due d where d.task_id = p.task_id), 0), $2, 0, 'ready'
               from parked p where p.run_id = $1",
        )
        .bind($run_id)
        .bind($now)
        .execute(&mut *$conn)
        .await?;
        sqlx::query("delete from parked where run_id = $1").bind($run_id).execute(&mut *$conn).await?;
    }};
}
pub(super) use unpark;

/// Takes the slot from a run that has ended.
macro_rules! free_slot {
    ($conn:ident, $task_id:expr, $run_id:expr) => {{
        sqlx::query("delete from slots where task_id = $1 and run_id = $2")
            .bind($task_id)
            .bind($run_id)
            .execute(&mut *$conn)
            .await?;
    }};
}
pub(super) use free_slot;

/// Ends a run that has not been started, with its reason.
macro_rules! close_unstarted {
    ($conn:ident, $run_id:expr, $state:expr, $reason:expr, $blocked_by:expr, $now:expr) => {{
        let state: $crate::run::RunState = $state;
        for statement in ["delete from queue where run_id = $1", "delete from parked where run_id = $1"] {
            sqlx::query(statement).bind($run_id).execute(&mut *$conn).await?;
        }
        let blocked_by: Option<uuid::Uuid> = $blocked_by;
        sqlx::query(
            "update runs set state = $2, reason = $3, blocked_by = $4, finished_at = $5
              where id = $1 and state = 'queued'",
        )
        .bind($run_id)
        .bind(state.as_str())
        .bind($reason)
        .bind(blocked_by)
        .bind($now)
        .execute(&mut *$conn)
        .await?;
    }};
}
pub(super) use close_unstarted;

/// Judges one claim that did not start, and pushes what became of it.
///
/// The slot's row is locked first: its holder's finish then comes after this transaction and sees who waits.
macro_rules! resolve_blocked {
    ($db:expr, $conn:ident, $lease:expr, $now:expr, $blocked:ident) => {{
        use $crate::run::RunState;
        use $crate::store::lease::Blocked;
        use $crate::store::slots::{BlockedRow, LOOK_AGAIN, REASON_SUPERSEDED, close_unstarted};
        let id = $lease.run_id;
        let row: Option<BlockedRow> = sqlx::query_as(
            "select q.task_id, q.tenant_id, q.cancel_reason,
                    coalesce(t.spec -> 'trigger' ->> 'overlap', 'skip') as overlap
               from queue q left join tasks t on t.id = q.task_id
              where q.run_id = $1 and q.lease_token = $2 and q.state = 'claimed'",
        )
        .bind(id)
        .bind($lease.token)
        .fetch_optional(&mut *$conn)
        .await?;
        if let Some(row) = row {
            let mut holder: Option<uuid::Uuid> = sqlx::query_scalar($db.text($crate::store::slots::LOCK_SLOT))
                .bind(row.task_id)
                .fetch_optional(&mut *$conn)
                .await?;
            let waiting: Vec<uuid::Uuid> =
                sqlx::query_scalar("select run_id from parked where task_id = $1 and why = 'overlap' order by run_id")
                    .bind(row.task_id)
                    .fetch_all(&mut *$conn)
                    .await?;
            if let (None, Some(previous), "cancel_previous") = (&row.cancel_reason, holder, row.overlap.as_str()) {
                // a holder that waits for its next attempt has no worker that could end it
                let waits = sqlx::query("delete from queue where run_id = $1 and state <> 'started'")
                    .bind(previous)
                    .execute(&mut *$conn)
                    .await?;
                if waits.rows_affected() > 0 {
                    close_unstarted!($conn, previous, RunState::Cancelled, Some(REASON_SUPERSEDED), Some(id), $now);
                    $crate::store::slots::free_slot!($conn, row.task_id, previous);
                    holder = None;
                }
                for older in &waiting {
                    close_unstarted!($conn, *older, RunState::Cancelled, Some(REASON_SUPERSEDED), Some(id), $now);
                }
            }
            let fate = match (&row.cancel_reason, holder, row.overlap.as_str()) {
                (Some(_), ..) => Blocked::Cancelled,
                (None, None, _) => Blocked::Again,
                (None, Some(_), "queue_all" | "cancel_previous") => Blocked::Behind,
                (None, Some(_), "queue_one") if waiting.is_empty() => Blocked::Behind,
                _ => Blocked::Skipped,
            };
            match fate {
                Blocked::Cancelled => {
                    close_unstarted!($conn, id, RunState::Cancelled, row.cancel_reason.as_deref(), None, $now);
                    if holder == Some(id) {
                        $crate::store::slots::free_slot!($conn, row.task_id, id);
                        $crate::store::slots::hand_over!($conn, row.task_id, $now);
                    }
                }
                Blocked::Skipped => {
                    close_unstarted!($conn, id, RunState::Skipped, Some("overlap"), holder, $now);
                }
                Blocked::Again => {
                    sqlx::query(
                        "update queue set state = 'ready', lease_token = 0, lease_until = null, worker = null
                          where run_id = $1",
                    )
                    .bind(id)
                    .execute(&mut *$conn)
                    .await?;
                }
                Blocked::Behind => {
                    if row.overlap == "cancel_previous" {
                        sqlx::query("update queue set cancel_reason = $2 where run_id = $1 and cancel_reason is null")
                            .bind(holder)
                            .bind(REASON_SUPERSEDED)
                            .execute(&mut *$conn)
                            .await?;
                    }
                    sqlx::query("delete from queue where run_id = $1").bind(id).execute(&mut *$conn).await?;
                    sqlx::query(
                        "insert into parked (run_id, task_id, tenant_id, why, wake_at) values ($1, $2, $3, 'overlap', $4)",
                    )
                    .bind(id)
                    .bind(row.task_id)
                    .bind(&row.tenant_id)
                    .bind($now + LOOK_AGAIN)
                    .execute(&mut *$conn)
                    .await?;
                }
            }
            $blocked.push((id, fate));
        }
    }};
}
pub(super) use resolve_blocked;

pub(super) const LOCK_SLOT: crate::store::Split = crate::store::Split {
    postgres: "select run_id from slots where task_id = $1 for update",
    sqlite: "select run_id from slots where task_id = $1",
};
