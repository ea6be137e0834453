//! Runs as people see them: reading, listing, run now, backfill, retry, cancel.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::QueryBuilder;
use sqlx::types::Json;
use uuid::Uuid;

use crate::id::{Scope, new_id};
use crate::run::outcome::RunFault;
use crate::run::{Missed, Run, RunEvent, RunState, Usage};
use crate::store::db::Db;
use crate::store::idempotency::{Answer, Idempotency, once};
use crate::store::slots::{EACH_IN_TURN, LOCK_QUEUED, free, hand_over};
use crate::store::text::text;
use crate::store::{Split, Store, StoreError, Topic};
use crate::task::Task;

/// Which runs to list. Newest first, after the run `before`.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    pub tenant: Option<String>,
    pub task_id: Option<Uuid>,
    pub state: Option<RunState>,
    /// Created at or after.
    pub since: Option<DateTime<Utc>>,
    /// Created before.
    pub until: Option<DateTime<Utc>>,
    pub before: Option<Uuid>,
    pub limit: i64,
}

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not been started; it is cancelled.
    Now,
    /// It is running; its worker has been asked.
    Asked,
}

/// A run to be recorded. The parts of a fire that differ; all else is as for every new run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NewRun {
    pub id: Uuid,
    pub task_id: Uuid,
    pub tenant_id: String,
    pub fire_key: String,
    pub trigger_type: String,
    pub scheduled_for: DateTime<Utc>,
    pub state: RunState,
    pub reason: Option<String>,
    pub missed: Option<Missed>,
    pub retry_of: Option<Uuid>,
    pub input: Option<Value>,
    pub created_at: DateTime<Utc>,
}

impl NewRun {
    /// Waits in the queue.
    pub(super) fn queued(task: &Task, fire_key: String, scheduled_for: DateTime<Utc>, now: DateTime<Utc>) -> NewRun {
        NewRun {
            id: new_id(now),
            task_id: task.id,
            tenant_id: task.tenant_id.clone(),
            fire_key,
            trigger_type: task.spec.trigger.kind().to_owned(),
            scheduled_for,
            state: RunState::Queued,
            reason: None,
            missed: None,
            retry_of: None,
            input: None,
            created_at: now,
        }
    }

    /// Instants that were considered and do not run.
    pub(super) fn skipped(task: &Task, missed: &Missed, reason: &str, now: DateTime<Utc>) -> NewRun {
        NewRun {
            state: RunState::Skipped,
            reason: Some(reason.to_owned()),
            missed: Some(missed.clone()),
            ..NewRun::queued(task, missed_key(missed), missed.to, now)
        }
    }

    pub(super) fn finished_at(&self) -> Option<DateTime<Utc>> {
        self.state.is_final().then_some(self.created_at)
    }
}

/// How an instant is written in a fire key.
pub(super) fn key_instant(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// One instant has the key that its fire would have had, a range one of its own.
pub(super) fn missed_key(missed: &Missed) -> String {
    if missed.count == Some(1) || missed.from == missed.to {
        format!("s:{}", key_instant(missed.from))
    } else {
        format!("r:{}/{}", key_instant(missed.from), key_instant(missed.to))
    }
}

/// Records one run, off the hot path; answers how many rows that made: none where the fire has its record already.
macro_rules! insert_run {
    ($conn:ident, $run:expr) => {{
        let run: &$crate::store::runs::NewRun = &$run;
        sqlx::query($crate::store::runs::INSERT_RUN)
            .bind(run.id)
            .bind(run.task_id)
            .bind(&run.tenant_id)
            .bind(&run.fire_key)
            .bind(&run.trigger_type)
            .bind(run.scheduled_for)
            .bind(run.state.as_str())
            .bind(&run.reason)
            .bind($crate::store::text::optional_document(run.missed.as_ref())?)
            .bind(run.retry_of)
            .bind($crate::store::text::optional_document(run.input.as_ref())?)
            .bind(run.created_at)
            .bind(run.finished_at())
            .execute(&mut *$conn)
            .await?
            .rows_affected()
    }};
}
pub(super) use insert_run;

pub(super) const INSERT_RUN: &str = "
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, retry_of,
                      input, created_at, finished_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    on conflict (task_id, fire_key) do nothing";

/// Locks `due`, the first in the order, so that a task that is being deleted gets no run.
pub(super) const LOCK_DUE: Split = Split {
    postgres: "select epoch from due where task_id = $1 for update",
    sqlite: "select epoch from due where task_id = $1",
};

/// Records runs that are not automatic fires and puts them into the queue, ready now; they count in `run_count` only.
/// A run that has its record already is left as it is.
macro_rules! record {
    ($db:expr, $conn:ident, $task_id:expr, $runs:expr, $run_at:expr, $priority:expr, $overlap:expr) => {{
        let epoch: Option<i64> =
            sqlx::query_scalar($db.text(LOCK_DUE)).bind($task_id).fetch_optional(&mut *$conn).await?;
        let epoch = epoch.ok_or(StoreError::NotFound)?;
        let mut made = 0_i64;
        for run in $runs {
            if insert_run!($conn, run) == 1 {
                made += 1;
                enqueue!($conn, run, epoch, $run_at, $priority, $overlap);
            }
        }
        sqlx::query("update due set run_count = run_count + $2 where task_id = $1")
            .bind($task_id)
            .bind(made)
            .execute(&mut *$conn)
            .await?;
    }};
}

/// A run moves between queue and parked ones once in a while, and not this often while one looks.
const CANCEL_TRIES: usize = 5;
const UNPARK: &str = "delete from parked where run_id = $1";

/// Puts a recorded run into the queue, ready at `run_at`.
macro_rules! enqueue {
    ($conn:ident, $run:expr, $epoch:expr, $run_at:expr, $priority:expr, $overlap:expr) => {{
        let overlap: Option<&str> = $overlap;
        sqlx::query(
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, overlap)
             values ($1, $2, $3, $4, $5, $6, 'ready', $7)",
        )
        .bind($run.id)
        .bind($run.task_id)
        .bind(&$run.tenant_id)
        .bind($epoch)
        .bind($run_at)
        .bind($priority)
        .bind(overlap)
        .execute(&mut *$conn)
        .await?
    }};
}

#[derive(sqlx::FromRow)]
struct RunRow {
    id: Uuid,
    task_id: Option<Uuid>,
    tenant_id: String,
    fire_key: String,
    trigger_type: String,
    scheduled_for: DateTime<Utc>,
    state: String,
    reason: Option<String>,
    blocked_by: Option<Uuid>,
    attempt: i32,
    crashes: i32,
    infra_retries: i32,
    missed: Option<Json<Missed>>,
    retry_of: Option<Uuid>,
    event_ids: Option<Json<Vec<String>>>,
    input: Option<Json<Value>>,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    output: Option<String>,
    error: Option<Json<RunFault>>,
    turns: i64,
    tool_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    cost_micros: i64,
}

impl RunRow {
    fn run(self) -> Result<Run, StoreError> {
        let state = RunState::parse(&self.state)
            .ok_or_else(|| StoreError::Corrupt(format!("run {} has the state {}", self.id, self.state)))?;
        Ok(Run {
            id: self.id,
            task_id: self.task_id,
            tenant_id: self.tenant_id,
            fire_key: self.fire_key,
            trigger_type: self.trigger_type,
            scheduled_for: self.scheduled_for,
            state,
            reason: self.reason,
            blocked_by: self.blocked_by,
            attempt: self.attempt,
            crashes: self.crashes,
            infra_retries: self.infra_retries,
            missed: self.missed.map(|json| json.0),
            retry_of: self.retry_of,
            event_ids: self.event_ids.map(|json| json.0).unwrap_or_default(),
            input: self.input.map(|json| json.0),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            output: self.output,
            error: self.error.map(|json| json.0),
            usage: Usage {
                turns: self.turns,
                tool_calls: self.tool_calls,
                input_tokens: self.input_tokens,
                output_tokens: self.output_tokens,
                cost_micros: self.cost_micros,
            },
        })
    }
}

macro_rules! select_run {
    ($rest:literal) => {
        concat!(
            "select r.id, r.task_id, r.tenant_id, r.fire_key, r.trigger_type, r.scheduled_for, r.state, r.reason,
                    r.blocked_by, r.attempt, r.crashes, r.infra_retries, r.missed, r.retry_of, r.event_ids, r.input,
                    r.created_at, r.started_at, r.finished_at, r.output, r.error, r.turns, r.tool_calls,
                    r.input_tokens, r.output_tokens, r.cost_micros
               from runs r ",
            $rest
        )
    };
}

impl Store {
    /// One run.
    pub async fn get_run(&self, scope: &Scope, id: Uuid) -> Result<Run, StoreError> {
        let row: Option<RunRow> = on_read!(self.db, |conn| {
            sqlx::query_as(select_run!("where r.id = $1 and ($2 is null or r.tenant_id = $2)"))
                .bind(id)
                .bind(scope.tenant())
                .fetch_optional(conn)
                .await?
        });
        row.ok_or(StoreError::NotFound)?.run()
    }

    /// Runs by their ids; those that are gone or can't be read are left out: one must not keep the others from starting.
    pub(super) async fn runs_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Run>, StoreError> {
        match self.all_runs_by_id(ids).await {
            Err(StoreError::Corrupt(_)) => {}
            read => return read,
        }
        let mut readable = HashMap::with_capacity(ids.len());
        for id in ids {
            match self.all_runs_by_id(&[*id]).await {
                Err(StoreError::Corrupt(why)) => tracing::error!(run_id = %id, why, "a run can't be read"),
                read => readable.extend(read?),
            }
        }
        Ok(readable)
    }

    async fn all_runs_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Run>, StoreError> {
        let rows: Vec<RunRow> = match &self.db {
            Db::Postgres(pool) => sqlx::query_as(select_run!("where r.id = any($1)")).bind(ids).fetch_all(pool).await?,
            Db::Sqlite { readers, .. } => {
                let mut rows = Vec::with_capacity(ids.len());
                for id in ids {
                    rows.extend(sqlx::query_as(select_run!("where r.id = $1")).bind(id).fetch_optional(readers).await?);
                }
                rows
            }
        };
        rows.into_iter().map(|row| Ok((row.id, row.run()?))).collect()
    }

    /// The newest run of each of these tasks.
    pub async fn last_runs(&self, tasks: &[Uuid]) -> Result<Vec<Run>, StoreError> {
        let mut rows: Vec<RunRow> = Vec::new();
        on_read!(self.db, |conn| {
            for task in tasks {
                let last = sqlx::query_as(select_run!("where r.task_id = $1 order by r.id desc limit 1"))
                    .bind(task)
                    .fetch_optional(&mut *conn)
                    .await?;
                rows.extend(last);
            }
        });
        rows.into_iter().map(RunRow::run).collect()
    }

    /// Runs that match, newest first.
    pub async fn list_runs(&self, scope: &Scope, filter: &RunFilter) -> Result<Vec<Run>, StoreError> {
        let rows: Vec<RunRow> = on_read!(self.db, |conn| {
            let mut query = QueryBuilder::new(select_run!("where true"));
            for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
                query.push(" and r.tenant_id = ").push_bind(text(tenant).into_owned());
            }
            if let Some(task_id) = filter.task_id {
                query.push(" and r.task_id = ").push_bind(task_id);
            }
            if let Some(state) = filter.state {
                query.push(" and r.state = ").push_bind(state.as_str());
            }
            if let Some(since) = filter.since {
                query.push(" and r.created_at >= ").push_bind(since);
            }
            if let Some(until) = filter.until {
                query.push(" and r.created_at < ").push_bind(until);
            }
            if let Some(before) = filter.before {
                query.push(" and r.id < ").push_bind(before);
            }
            query.push(" order by r.id desc limit ").push_bind(filter.limit);
            query.build_query_as().fetch_all(conn).await?
        });
        rows.into_iter().map(RunRow::run).collect()
    }

    /// Records a run of the task now, whatever its status and limits; overlap is resolved when it starts.
    /// `run_id` and `now` come from the caller, who answers with them.
    pub async fn run_now(
        &self,
        scope: &Scope,
        task_id: Uuid,
        run_id: Uuid,
        input: Option<Value>,
        now: DateTime<Utc>,
        idempotency: Option<&Idempotency>,
    ) -> Result<Answer<()>, StoreError> {
        let task = self.get_task(scope, task_id).await?;
        on_write!(self.db, scope, |conn| {
            once!(conn, idempotency, now);
            let run = NewRun { id: run_id, input, ..NewRun::queued(&task, format!("m:{run_id}"), now, now) };
            record!(self.db, conn, task_id, [run], now, 1_i32, None);
        });
        self.hint(Topic::Queue);
        Ok(Answer::Done(()))
    }

    /// Records a run for each of these past instants, behind everything else that is due; each waits for the one before
    /// it, whatever the task's overlap policy.
    pub async fn backfill(
        &self,
        scope: &Scope,
        task_id: Uuid,
        backfill_id: Uuid,
        instants: &[DateTime<Utc>],
        idempotency: Option<&Idempotency>,
    ) -> Result<Answer<()>, StoreError> {
        let now = self.clock.now();
        let task = self.get_task(scope, task_id).await?;
        on_write!(self.db, scope, |conn| {
            once!(conn, idempotency, now);
            let runs = instants.iter().map(|instant| {
                NewRun::queued(&task, format!("b:{backfill_id}:{}", key_instant(*instant)), *instant, now)
            });
            record!(self.db, conn, task_id, runs, now, -1_i32, Some(EACH_IN_TURN));
        });
        self.hint(Topic::Queue);
        Ok(Answer::Done(()))
    }

    /// Records a new run for a final one. The old one stays as it is. `run_id` and `now` come from the caller, who answers
    /// with them.
    pub async fn retry_run(
        &self,
        scope: &Scope,
        id: Uuid,
        run_id: Uuid,
        now: DateTime<Utc>,
        idempotency: Option<&Idempotency>,
    ) -> Result<Answer<()>, StoreError> {
        let old = self.get_run(scope, id).await?;
        if !old.state.is_final() {
            return Err(StoreError::Conflict(format!("the run is {}, so it can't be retried yet", old.state.as_str())));
        }
        let task_id = old.task_id.ok_or_else(|| StoreError::Conflict("the run has no task".into()))?;
        let task = self.get_task(scope, task_id).await.map_err(|error| match error {
            StoreError::NotFound => StoreError::Conflict("the task of the run was deleted".into()),
            other => other,
        })?;
        on_write!(self.db, scope, |conn| {
            once!(conn, idempotency, now);
            let key = format!("t:{id}:{run_id}");
            let run = NewRun {
                id: run_id,
                retry_of: Some(id),
                missed: old.missed,
                input: old.input,
                ..NewRun::queued(&task, key, old.scheduled_for, now)
            };
            record!(self.db, conn, task_id, [run], now, 1_i32, None);
        });
        self.hint(Topic::Queue);
        Ok(Answer::Done(()))
    }

    /// Cancels a run that has not been started, or asks the worker of a running one to end it.
    pub async fn cancel_run(&self, scope: &Scope, id: Uuid, reason: &str) -> Result<Cancelled, StoreError> {
        self.get_run(scope, id).await?;
        for _ in 0..CANCEL_TRIES {
            if let Some(done) = self.try_cancel(id, reason).await? {
                self.hint(Topic::Cancels);
                self.hint(Topic::Queue);
                return Ok(done);
            }
        }
        Err(StoreError::Unavailable(format!("the run {id} is neither queued nor parked nor ended")))
    }

    /// One try; `None` where the run went from the queue to the parked ones or back while it was looked for.
    async fn try_cancel(&self, id: Uuid, reason: &str) -> Result<Option<Cancelled>, StoreError> {
        let now = self.clock.now();
        Ok(on_write!(self.db, |conn| {
            let queued: Option<String> =
                sqlx::query_scalar(self.db.text(LOCK_QUEUED)).bind(id).fetch_optional(&mut *conn).await?;
            if queued.as_deref() == Some("started") {
                sqlx::query("update queue set cancel_reason = coalesce(cancel_reason, $2) where run_id = $1")
                    .bind(id)
                    .bind(text(reason))
                    .execute(&mut *conn)
                    .await?;
                Some(Cancelled::Asked)
            } else {
                let place = if queued.is_some() { "delete from queue where run_id = $1" } else { UNPARK };
                let left = sqlx::query(place).bind(id).execute(&mut *conn).await?.rows_affected();
                let (task_id, state): (Option<Uuid>, String) =
                    sqlx::query_as("select task_id, state from runs where id = $1")
                        .bind(id)
                        .fetch_one(&mut *conn)
                        .await?;
                let state = RunState::parse(&state).ok_or_else(|| StoreError::Corrupt(format!("run {id}: {state}")))?;
                let next = state.on(RunEvent::Cancel).map_err(|illegal| StoreError::Conflict(illegal.to_string()))?;
                if left == 0 {
                    return Ok(None);
                }
                sqlx::query("update runs set state = $2, reason = $3, finished_at = $4 where id = $1")
                    .bind(id)
                    .bind(next.as_str())
                    .bind(text(reason))
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
                // one that waits for its next attempt, or was handed the slot, has it still
                if let Some(task_id) = task_id
                    && free!(conn, task_id, id) > 0
                {
                    hand_over!(conn, task_id, now);
                }
                Some(Cancelled::Now)
            }
        }))
    }

    /// How many runs wait, are claimed, and run now; and how many are parked.
    pub async fn count_runs(&self, scope: &Scope) -> Result<Vec<(String, i64)>, StoreError> {
        Ok(on_read!(self.db, |conn| {
            sqlx::query_as(
                "select state, count(*) from queue where ($1 is null or tenant_id = $1) group by state
                 union all
                 select 'parked', count(*) from parked where ($1 is null or tenant_id = $1)",
            )
            .bind(scope.tenant())
            .fetch_all(conn)
            .await?
        }))
    }
}
