//! Runs that wait for a foreign runtime: they are completed by it, or expire. Of two who end one, one wins; what has
//! returned is recorded, with the messages that go out because of it.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::RunNotification;
use crate::domain::run::{Run, RunEvent, RunFault, RunState};
use crate::domain::task::Task;
use crate::store::db::text::{optional, optional_document};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::runs::alerts::notifications_for;
use crate::store::runs::due_parked::WaitTarget;
use crate::store::runs::slots::{free, hand_over};
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic};

/// How a run ends that waited for a foreign runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct RunCompletion {
    /// `Succeed`, `Fail` or `Expire`.
    pub event: RunEvent,
    /// The answer of the run.
    pub output: Option<String>,
    /// The error of the run; `None`: it ended well.
    pub error: Option<RunFault>,
    /// Why it expired.
    pub reason: Option<String>,
    /// The notification of its end, as far as the alert state of its task lets it through.
    pub tells: Option<RunNotification>,
}

/// Puts a run among those that wait, with its own policy where it has one; it is looked at then at the latest.
pub(in crate::store) const PARK: &str = "
    insert into parked (run_id, task_id, tenant_id, reason, wake_at, overlap, turns)
    select id, task_id, tenant_id, $3, $2, $4, $5 from runs where id = $1";

impl Store {
    /// Ends a run that waits for completion. One that does not wait (any more) is a conflict.
    pub async fn complete_run(
        &self,
        scope: &Scope,
        id: Uuid,
        completion: &RunCompletion,
        now: DateTime<Utc>,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let next = RunState::WaitingForCompletion.on(completion.event);
        let next = next.map_err(|illegal| StoreError::Conflict(illegal.to_string()))?;
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, idempotency, now).await? {
            return Ok(answer);
        }
        take_right_to_end(tx, scope, id, completion.event, now).await?;
        let task_id = write_end(tx, id, next, completion, now).await?;
        // it has its task's slot where it counted as running
        let handed = match task_id {
            Some(task_id) if free(tx, task_id, id).await? > 0 => hand_over(tx, task_id, now).await?,
            _ => false,
        };
        let told = notifications_for(self, tx, completion.tells.iter().collect(), now).await?;
        if !told.is_empty() {
            tx.post(&told.iter().collect::<Vec<_>>(), now).await?;
        }
        write.commit().await?;
        if handed {
            self.notify(Topic::Queue);
        }
        if completion.tells.is_some() {
            self.notify(Topic::Outbox);
        }
        Ok(StoredAnswer::Done(()))
    }

    /// Runs whose completion is overdue, with their tasks, the longest overdue first, or tenants in turn where more
    /// than `limit` are.
    pub async fn overdue_completions(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<(Run, Option<Task>)>, StoreError> {
        let ids = self.due_parked(WaitTarget::Completion, now, limit).await?;
        let mut runs = self.runs_by_id(&ids).await?;
        let task_ids: Vec<Uuid> = runs.values().filter_map(|run| run.task_id).collect();
        let tasks = self.tasks_by_id(&task_ids).await?;
        let mut overdue = Vec::with_capacity(runs.len());
        for id in ids {
            match runs.remove(&id) {
                Some(run) => {
                    let task = run.task_id.and_then(|id| tasks.get(&id).cloned());
                    overdue.push((run, task));
                }
                None => self.set_aside_parked(id, &"its run can't be read").await?,
            }
        }
        Ok(overdue)
    }

    /// When the next completion is overdue, if any is waited for.
    pub async fn next_overdue(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_overdue()).await
    }

    async fn read_next_overdue(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query("select wake_at from parked where reason || '' = 'completion' order by wake_at limit 1")
            .optional_scalar()
            .await?)
    }
}

/// Deletes a run's parked row, which is the right to end the run: of two, the one that deletes it has won. A run that
/// does not wait for completion, or not any longer, is a conflict. The reason is asked in words that fit no
/// index: the index of completions has all runs that wait for one.
async fn take_right_to_end(
    tx: &mut Tx<'_>,
    scope: &Scope,
    id: Uuid,
    event: RunEvent,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let waited = tx
        .query(
            "delete from parked
                  where run_id = $1 and reason || '' = 'completion' and ($2 is null or tenant_id = $2)
                    and ($3 or wake_at > $4)",
        )
        .bind(id)
        .bind(scope.tenant())
        .bind(event == RunEvent::Expire)
        .bind(now)
        .execute()
        .await?;
    if waited == 0 { Err(refusal(tx, scope, id).await?) } else { Ok(()) }
}

/// Why a run can't be completed, by its state.
async fn refusal(tx: &mut Tx<'_>, scope: &Scope, id: Uuid) -> Result<StoreError, StoreError> {
    let state: Option<String> = tx
        .query("select state from runs where id = $1 and ($2 is null or tenant_id = $2)")
        .bind(id)
        .bind(scope.tenant())
        .optional_scalar()
        .await?;
    let state = state.ok_or(StoreError::NotFound)?;
    if state == RunState::WaitingForCompletion.as_str() {
        return Ok(StoreError::Conflict("the time limit for its completion is over".into()));
    }
    Ok(StoreError::Conflict(format!("the run is {state}, it does not wait for completion")))
}

/// Writes the end of a run that waited; the task that it is of.
async fn write_end(
    tx: &mut Tx<'_>,
    id: Uuid,
    next: RunState,
    completion: &RunCompletion,
    now: DateTime<Utc>,
) -> Result<Option<Uuid>, StoreError> {
    let task_id: Option<Option<Uuid>> = tx
        .query(
            "update runs set state = $2, output = $3, error = $4, reason = $5, finished_at = $6
                  where id = $1 and state = 'waiting_for_completion'
                 returning task_id",
        )
        .bind(id)
        .bind(next.as_str())
        .bind(optional(completion.output.as_deref()))
        .bind(optional_document(completion.error.as_ref())?)
        .bind(optional(completion.reason.as_deref()))
        .bind(now)
        .optional_scalar()
        .await?;
    Ok(task_id.flatten())
}
