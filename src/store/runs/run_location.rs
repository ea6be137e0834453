//! Where a run is that is not over, and who has its task's slot: for those who ask why. And how far runs have come, for
//! those who follow them. Each look is by a primary key.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::RunState;
use crate::store::{Store, StoreError};

/// A run in the queue.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct QueuedPlace {
    /// `ready`, `claimed` or `started`.
    pub state: String,
    /// When it may start, or could have.
    pub run_at: DateTime<Utc>,
    /// The instance that has claimed it.
    pub worker: Option<Uuid>,
    /// The end of its lease.
    pub lease_until: Option<DateTime<Utc>>,
    /// The run's time limit.
    pub deadline_at: Option<DateTime<Utc>>,
    /// The reason for which it is to stop, if it is.
    pub cancel_reason: Option<String>,
}

/// A run that waits outside the queue.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct ParkedRun {
    /// `overlap`, `completion` or `approval`.
    pub reason: String,
    /// When it is looked at again; for a completion, when its time is over.
    pub wake_at: DateTime<Utc>,
    /// Until when it is paused at the latest, if it is.
    pub paused_until: Option<DateTime<Utc>>,
}

/// The run that has the slot of its task.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct Holder {
    /// The run with the slot.
    pub run_id: Uuid,
    /// State of its queue row.
    pub state: String,
    /// The instant at which it was started.
    pub started_at: Option<DateTime<Utc>>,
}

/// Where a run is; all empty: it is over, or is just moving.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLocation {
    /// Its row in the queue.
    pub queued: Option<QueuedPlace>,
    /// Its row among the parked runs.
    pub parked: Option<ParkedRun>,
    /// The run with the task's slot; it may be the run itself.
    pub holder: Option<Holder>,
}

/// How far the record of a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunProgress {
    /// Its state.
    pub state: RunState,
    /// Its attempt.
    pub attempt: i32,
    /// The number of the last entry of its transcript; `None`: there is none.
    pub last_seq: Option<i64>,
}

impl Store {
    /// How far these runs of any tenant have come, in one look. Those that are gone, or whose state a newer release has
    /// written, are left out.
    pub async fn run_progress(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, RunProgress>, StoreError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut read = self.db.read_in(&Scope::Every).await?;
        let mut query = read.build(
            "select r.id, r.state, r.attempt, (select max(t.seq) from turns t where t.run_id = r.id)
               from runs r where r.id in (",
        );
        query.list(ids.iter()).push(")");
        // planned each time, as pages of transcripts are
        let found: Vec<(Uuid, String, i32, Option<i64>)> = query.finish().persistent(false).all().await?;
        read.end().await?;
        let progress = |(id, state, attempt, last_seq): (Uuid, String, i32, Option<i64>)| {
            Some((id, RunProgress { state: RunState::parse(&state)?, attempt, last_seq }))
        };
        Ok(found.into_iter().filter_map(progress).collect())
    }

    /// Where this run is.
    pub async fn locate_run(
        &self,
        scope: &Scope,
        run_id: Uuid,
        task_id: Option<Uuid>,
    ) -> Result<RunLocation, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let tx = &mut read.tx();
        let queued: Option<QueuedPlace> = tx
            .query(
                "select state, run_at, worker, lease_until, deadline_at, cancel_reason
                   from queue where run_id = $1 and ($2 is null or tenant_id = $2)",
            )
            .bind(run_id)
            .bind(scope.tenant())
            .optional()
            .await?;
        let parked: Option<ParkedRun> = tx
            .query(
                "select reason, wake_at, paused_until from parked where run_id = $1 and ($2 is null or tenant_id = $2)",
            )
            .bind(run_id)
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        let holder = match task_id {
            Some(task_id) => self.slot_holder(scope, task_id).await?,
            None => None,
        };
        Ok(RunLocation { queued, parked, holder })
    }

    /// The run that has this task's slot; `None`: it is free.
    pub async fn slot_holder(&self, scope: &Scope, task_id: Uuid) -> Result<Option<Holder>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found = read
            .query(
                "select s.run_id, r.state, r.started_at from slots s join runs r on r.id = s.run_id
                  where s.task_id = $1 and ($2 is null or r.tenant_id = $2)",
            )
            .bind(task_id)
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        Ok(found)
    }
}
