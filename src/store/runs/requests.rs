//! Requests of people for runs: backfill, retry, cancel. Run now is in `run_now`, automatic fires are in `fires`.
//!
//! A run whose request has returned is recorded and in the queue, with the answer of its idempotency key. Asking again
//! for the same run makes no second one.

pub(in crate::store) mod run_now;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::json::length::bytes_of;
use crate::domain::conversation::RequestEcho;
use crate::domain::run::{RunEvent, RunOrigin, RunState};
use crate::domain::trigger::ChatTrigger;
use crate::store::approvals::close_questions;
use crate::store::db::text::{StoredJson, text};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::runs::overlap::rule::EACH_IN_TURN;
use crate::store::runs::slots::{LOCK_QUEUED, free, hand_over, log_end_outside_execution};
use crate::store::runs::{NewRun, enqueue, insert_run, key_instant};
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// Result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not been started; it is cancelled.
    Now,
    /// It is running; its worker has been asked.
    Asked,
}

/// Locks `due`, the first in the order, so that a task that is being deleted gets no run.
pub(in crate::store) const LOCK_DUE: Split = Split {
    postgres: "select epoch from due where task_id = $1 for update",
    sqlite: "select epoch from due where task_id = $1",
};

/// Records runs that are not automatic fires and puts them into the queue, ready now; they count in `run_count` only.
/// A run that has its record already is left as it is.
async fn record(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    runs: &[NewRun],
    run_at: DateTime<Utc>,
    priority: i32,
    overlap: Option<&str>,
) -> Result<i64, StoreError> {
    let epoch: i64 = tx.query(LOCK_DUE).bind(task_id).scalar().await?;
    let mut made = 0_i64;
    for run in runs {
        if insert_run(tx, run).await? == 1 {
            made += 1;
            enqueue(tx, run, epoch, run_at, priority, overlap).await?;
        }
    }
    tx.query("update due set run_count = run_count + $2 where task_id = $1").bind(task_id).bind(made).execute().await?;
    Ok(made)
}

/// How often a retry looks for a number again that another one took meanwhile.
const RETRY_TRIES: usize = 5;

/// The least number that no retry of a run has: one look into the unique index per retry that it had.
const NEXT_RETRY: &str = "
    with recursive taken (n) as (
        select 0
        union all
        select n + 1 from taken
         where exists (select 1 from runs where task_id = $1 and fire_key = $2 || cast(taken.n + 1 as text))
    )
    select cast(max(n) + 1 as bigint) from taken";

/// A run moves between queue and parked ones once in a while, and not this often while one looks.
const CANCEL_TRIES: usize = 5;
const UNPARK: &str = "delete from parked where run_id = $1";

/// The request for a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunRequest {
    /// Input for the executor, any JSON.
    pub input: Option<Value>,
    /// By whom, as the record names them: the token that theirs descends from.
    pub requested_by: Option<String>,
    /// The parts that a response to it repeats.
    pub echo: RequestEcho,
}

impl From<Option<Value>> for RunRequest {
    fn from(input: Option<Value>) -> RunRequest {
        RunRequest { input, ..RunRequest::default() }
    }
}

/// Notes by whom a run was asked for, in the transaction that records it.
pub(in crate::store) async fn note_requester(tx: &mut Tx<'_>, run: Uuid, by: Option<&str>) -> Result<(), StoreError> {
    if let Some(by) = by {
        tx.query("update runs set requested_by = $2 where id = $1").bind(run).bind(by).execute().await?;
    }
    Ok(())
}

impl Store {
    /// By whom a run was asked for, where somebody has asked for it.
    pub async fn requester_of(&self, scope: &Scope, run_id: Uuid) -> Result<Option<String>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found: Option<Option<String>> = read
            .query("select requested_by from runs where id = $1 and ($2 is null or tenant_id = $2)")
            .bind(run_id)
            .bind(scope.tenant())
            .optional_scalar()
            .await?;
        read.end().await?;
        Ok(found.flatten())
    }

    /// Records a run for each of these past instants, behind everything else that is due.
    pub async fn backfill(
        &self,
        scope: &Scope,
        task_id: Uuid,
        backfill_id: Uuid,
        instants: &[DateTime<Utc>],
        idempotency: Option<&Idempotency>,
        requested_by: Option<&str>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let now = self.clock.now();
        let task = self.get_task(scope, task_id).await?;
        self.admit_once(&task.tenant_id, 0, idempotency, now).await?;
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, idempotency, now).await? {
            return Ok(answer);
        }
        let run = |instant: &DateTime<Utc>| {
            let key = format!("b:{backfill_id}:{}", key_instant(*instant));
            NewRun { origin: RunOrigin::Backfill, ..NewRun::queued(&task, key, *instant, now) }
        };
        let runs: Vec<NewRun> = instants.iter().map(run).collect();
        record(tx, task_id, &runs, now, -1, Some(EACH_IN_TURN)).await?;
        for run in &runs {
            note_requester(tx, run.id, requested_by).await?;
        }
        write.commit().await?;
        self.notify(Topic::Queue);
        Ok(StoredAnswer::Done(()))
    }

    /// Records a new run for a final one, which stays as it is; answers the new one's fire key, `t:<run id>:<n>`.
    /// `run_id` and `now` come from the caller; `answer_of` makes the answer that is remembered, once the key is known.
    pub async fn retry_run(
        &self,
        scope: &Scope,
        id: Uuid,
        run_id: Uuid,
        now: DateTime<Utc>,
        answer_of: impl Fn(&str) -> Result<Option<Idempotency>, StoreError> + Send + Sync,
        requested_by: Option<&str>,
    ) -> Result<StoredAnswer<String>, StoreError> {
        let old = self.get_run(scope, id).await?;
        if !old.state.is_final() {
            return Err(StoreError::Conflict(format!("the run is {}, so it can't be retried yet", old.state.as_str())));
        }
        let task_id = old.task_id.ok_or_else(|| StoreError::Conflict("the run has no task".into()))?;
        let task = self.find_task(scope, task_id).await?;
        let task = task.ok_or_else(|| StoreError::Conflict("the task of the run was deleted".into()))?;
        self.admit_bytes(&task.tenant_id, bytes_of(&(&old.input, &old.cause))).await?;
        let retry = NewRun {
            id: run_id,
            origin: RunOrigin::Retry,
            retry_of: Some(id),
            missed: old.earlier_instants(),
            event_ids: old.event_ids,
            cause: old.cause.as_ref().map(StoredJson::of).transpose()?,
            input: old.input,
            ..NewRun::queued(&task, String::new(), old.scheduled_for, now)
        };
        for _ in 0..RETRY_TRIES {
            let answer = match self.try_retry(scope, task_id, (&retry, requested_by), &answer_of).await? {
                StoredAnswer::Done(None) => continue,
                StoredAnswer::Done(Some(key)) => StoredAnswer::Done(key),
                StoredAnswer::Replayed { status, body } => StoredAnswer::Replayed { status, body },
                StoredAnswer::Mismatch => StoredAnswer::Mismatch,
            };
            self.notify(Topic::Queue);
            return Ok(answer);
        }
        Err(StoreError::Conflict("the run is being retried by others all the time".into()))
    }

    /// One try; `None` where another retry took the number meanwhile: nothing was written.
    async fn try_retry(
        &self,
        scope: &Scope,
        task_id: Uuid,
        (retry, requested_by): (&NewRun, Option<&str>),
        answer_of: &(impl Fn(&str) -> Result<Option<Idempotency>, StoreError> + Send + Sync),
    ) -> Result<StoredAnswer<Option<String>>, StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let prefix = format!("t:{}:", retry.retry_of.unwrap_or_default());
        let n: i64 = tx.query(NEXT_RETRY).bind(task_id).bind(&prefix).scalar().await?;
        let key = format!("{prefix}{n}");
        let idempotency = answer_of(&key)?;
        if let Some(answer) = once(tx, idempotency.as_ref(), retry.created_at).await? {
            return Ok(answer);
        }
        let run = NewRun { fire_key: key.clone(), ..retry.clone() };
        if record(tx, task_id, &[run], retry.created_at, 1, None).await? == 0 {
            return Ok(StoredAnswer::Done(None));
        }
        note_requester(tx, retry.id, requested_by).await?;
        write.commit().await?;
        Ok(StoredAnswer::Done(Some(key)))
    }

    /// Cancels a run that has not been started, or asks the worker of a running one to end it.
    pub async fn cancel_run(&self, scope: &Scope, id: Uuid, reason: &str) -> Result<Cancelled, StoreError> {
        let run = self.get_run(scope, id).await?;
        for _ in 0..CANCEL_TRIES {
            if let Some(done) = self.try_cancel(id, reason).await? {
                if done == Cancelled::Now {
                    log_end_outside_execution(&run, None, RunState::Cancelled, Some(reason), self.clock.now());
                }
                self.notify(Topic::Cancels);
                self.notify(Topic::Queue);
                return Ok(done);
            }
        }
        Err(StoreError::Unavailable(format!("the run {id} is neither queued nor parked nor ended")))
    }

    /// One try; `None` where the run went from the queue to the parked ones or back while it was looked for.
    async fn try_cancel(&self, id: Uuid, reason: &str) -> Result<Option<Cancelled>, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let queued: Option<String> = tx.query(LOCK_QUEUED).bind(id).optional_scalar().await?;
        let done = if queued.as_deref() == Some("started") {
            tx.query("update queue set cancel_reason = coalesce(cancel_reason, $2) where run_id = $1")
                .bind(id)
                .bind(text(reason))
                .execute()
                .await?;
            Some(Cancelled::Asked)
        } else {
            let place = if queued.is_some() { "delete from queue where run_id = $1" } else { UNPARK };
            let left = tx.query(place).bind(id).execute().await?;
            let (task_id, state, trigger): (Option<Uuid>, String, String) =
                tx.query("select task_id, state, trigger_type from runs where id = $1").bind(id).one().await?;
            let state = RunState::parse(&state).ok_or_else(|| StoreError::Corrupt(format!("run {id}: {state}")))?;
            let next = state.on(RunEvent::Cancel).map_err(|illegal| StoreError::Conflict(illegal.to_string()))?;
            if left == 0 {
                return Ok(None);
            }
            tx.query("update runs set state = $2, reason = $3, finished_at = $4 where id = $1")
                .bind(id)
                .bind(next.as_str())
                .bind(text(reason))
                .bind(now)
                .execute()
                .await?;
            close_questions(tx, id, now).await?;
            // one that waits for its next attempt, or was handed the slot, has it still
            if let Some(task_id) = task_id
                && free(tx, task_id, id).await? > 0
            {
                hand_over(tx, task_id, now).await?;
            }
            if let Some(conversation) = task_id.filter(|_| trigger == ChatTrigger::KIND) {
                tx.use_conversations(&[conversation], now).await?;
            }
            Some(Cancelled::Now)
        };
        write.commit().await?;
        Ok(done)
    }
}
