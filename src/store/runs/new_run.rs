//! A run to be recorded.

mod skip_tallies;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::new_id;
use crate::domain::run::{MissedInstants, Run, RunOrigin, RunState};
use crate::domain::task::Task;
use crate::store::StoreError;
use crate::store::db::text::StoredJson;
use crate::store::tx::Tx;

pub(in crate::store) use skip_tallies::{SkipTallies, SkipTally, tally_hour_key};

/// The parts of a fire that differ; all else is as for every new run.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) struct NewRun {
    pub id: Uuid,
    pub task_id: Uuid,
    pub tenant_id: String,
    pub fire_key: String,
    pub trigger_type: String,
    pub origin: RunOrigin,
    pub scheduled_for: DateTime<Utc>,
    pub state: RunState,
    pub reason: Option<String>,
    pub missed: Option<MissedInstants>,
    pub retry_of: Option<Uuid>,
    pub event_ids: Vec<String>,
    /// A [`Cause`](crate::domain::run::cause::Cause).
    pub cause: Option<StoredJson>,
    pub input: Option<Value>,
    pub created_at: DateTime<Utc>,
}

impl NewRun {
    /// Waits in the queue.
    pub(in crate::store) fn queued(
        task: &Task,
        fire_key: String,
        scheduled_for: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> NewRun {
        NewRun::of(task.id, &task.tenant_id, task.spec.trigger.kind(), fire_key, scheduled_for, now)
    }

    /// A new run of a task of which only these facts are known.
    pub(in crate::store) fn of(
        task_id: Uuid,
        tenant_id: &str,
        trigger_type: &str,
        fire_key: String,
        scheduled_for: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> NewRun {
        NewRun {
            id: new_id(now),
            task_id,
            tenant_id: tenant_id.to_owned(),
            fire_key,
            trigger_type: trigger_type.to_owned(),
            origin: RunOrigin::Trigger,
            scheduled_for,
            state: RunState::Queued,
            reason: None,
            missed: None,
            retry_of: None,
            event_ids: Vec::new(),
            cause: None,
            input: None,
            created_at: now,
        }
    }

    /// Instants that were considered and do not run.
    pub(in crate::store) fn skipped(task: &Task, missed: &MissedInstants, reason: &str, now: DateTime<Utc>) -> NewRun {
        NewRun {
            state: RunState::Skipped,
            reason: Some(reason.to_owned()),
            missed: Some(missed.clone()),
            ..NewRun::queued(task, missed_key(missed), missed.to, now)
        }
    }

    /// The record of one that started with it, without its cause: that may be long, and is read once this is committed.
    pub(in crate::store) fn running(&self, now: DateTime<Utc>) -> Run {
        let run = self.clone();
        Run {
            origin: run.origin,
            state: RunState::Running,
            attempt: 1,
            missed: run.missed,
            retry_of: run.retry_of,
            event_ids: run.event_ids,
            input: run.input,
            started_at: Some(now),
            ..Run::queued(
                run.task_id,
                run.id,
                run.tenant_id,
                run.fire_key,
                &run.trigger_type,
                run.scheduled_for,
                run.created_at,
            )
        }
    }

    pub(in crate::store) fn finished_at(&self) -> Option<DateTime<Utc>> {
        self.state.is_final().then_some(self.created_at)
    }

    /// When it started, if it did with its record; that is its first attempt.
    pub(in crate::store) fn started_at(&self) -> Option<DateTime<Utc>> {
        (self.state == RunState::Running).then_some(self.created_at)
    }
}

/// How an instant is written in a fire key.
pub(in crate::store) fn key_instant(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// One instant has the key that its fire would have had, a range one of its own.
pub(in crate::store) fn missed_key(missed: &MissedInstants) -> String {
    if missed.is_single_instant() {
        format!("s:{}", key_instant(missed.from))
    } else {
        format!("r:{}/{}", key_instant(missed.from), key_instant(missed.to))
    }
}

/// Puts a recorded run into the queue, ready at `run_at`.
pub(in crate::store) async fn enqueue(
    tx: &mut Tx<'_>,
    run: &NewRun,
    epoch: i64,
    run_at: DateTime<Utc>,
    priority: i32,
    overlap: Option<&str>,
) -> Result<(), StoreError> {
    tx.query(
        "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, overlap)
         values ($1, $2, $3, $4, $5, $6, 'ready', $7)",
    )
    .bind(run.id)
    .bind(run.task_id)
    .bind(&run.tenant_id)
    .bind(epoch)
    .bind(run_at)
    .bind(priority)
    .bind(overlap)
    .execute()
    .await?;
    Ok(())
}
