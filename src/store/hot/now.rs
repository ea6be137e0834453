//! A run that somebody asks for, recorded and started in as few statements as can be.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::hot::Going;
use crate::store::hot::sqlite::{next_tokens, take_slots};
use crate::store::tasks::{TaskRow, select_task};
use crate::store::text::optional_document;

/// Who asks, for what, and who would execute it.
pub(in crate::store) struct RunNow<'a> {
    /// Of whose tasks; `None`: anybody's.
    pub tenant: Option<&'a str>,
    pub task_id: Uuid,
    pub run_id: Uuid,
    pub fire_key: &'a str,
    pub input: Option<&'a Value>,
    pub now: DateTime<Utc>,
    pub priority: i32,
    /// The worker that could start it now, and until when it would have its lease.
    pub worker: Option<(Uuid, DateTime<Utc>)>,
}

/// The task as it is, the run if it has started, and who is told of it then, as it is stored.
pub(in crate::store) struct Requested {
    pub task: TaskRow,
    pub going: Option<Going>,
    pub recipient: Option<Value>,
}

pub(in crate::store) trait HotNow {
    /// Records a run of the task and starts it if it may; `None` where there is no such task.
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<Option<Requested>, StoreError>;
}

#[derive(sqlx::FromRow)]
struct RequestedRow {
    #[sqlx(flatten)]
    task: TaskRow,
    lease_token: Option<i64>,
    deadline_at: Option<DateTime<Utc>>,
    recipient: Option<Json<Value>>,
}

impl HotNow for PgConnection {
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<Option<Requested>, StoreError> {
        let row: Option<RequestedRow> = sqlx::query_as(include_str!("../sql/run_now.postgres.sql"))
            .bind(ask.task_id)
            .bind(ask.tenant)
            .bind(ask.run_id)
            .bind(ask.fire_key)
            .bind(ask.now)
            .bind(optional_document(ask.input)?)
            .bind(ask.worker.map(|(worker, _)| worker))
            .bind(ask.worker.map(|(_, lease_until)| lease_until))
            .bind(ask.priority)
            .fetch_optional(self)
            .await?;
        Ok(row.map(|row| {
            let going = row.lease_token.zip(row.deadline_at).map(|(lease_token, deadline_at)| Going {
                run_id: ask.run_id,
                task_id: Some(ask.task_id),
                tenant_id: row.task.tenant_id.clone(),
                lease_token,
                deadline_at,
            });
            Requested { task: row.task, going, recipient: row.recipient.map(|body| body.0) }
        }))
    }
}

impl HotNow for SqliteConnection {
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<Option<Requested>, StoreError> {
        let row: Option<TaskRow> = sqlx::query_as(select_task!("where t.id = $1 and ($2 is null or t.tenant_id = $2)"))
            .bind(ask.task_id)
            .bind(ask.tenant)
            .fetch_optional(&mut *self)
            .await?;
        let Some(task) = row else { return Ok(None) };
        let known: Option<i32> = sqlx::query_scalar("select 1 from runs where task_id = $1 and fire_key = $2")
            .bind(ask.task_id)
            .bind(ask.fire_key)
            .fetch_optional(&mut *self)
            .await?;
        if known.is_some() {
            return Ok(Some(Requested { task, going: None, recipient: None }));
        }
        let wanted = (ask.worker.is_some() && !task.spec.0.trigger.may_overlap()).then_some((ask.task_id, ask.run_id));
        let holders = take_slots(self, wanted.as_slice()).await?;
        let free = wanted.is_none_or(|(task_id, run_id)| holders.get(&task_id) == Some(&run_id));
        let started = ask.worker.filter(|_| free);
        let token = match started {
            Some(_) => next_tokens(self, 1).await? + 1,
            None => 0,
        };
        let deadline_at = started.map(|_| ask.now + TimeDelta::seconds(task.spec.0.timeout_seconds as i64));
        sqlx::query(
            "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at,
                               attempt, started_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $6, $9, $10)",
        )
        .bind(ask.run_id)
        .bind(ask.task_id)
        .bind(&task.tenant_id)
        .bind(ask.fire_key)
        .bind(task.spec.0.trigger.kind())
        .bind(ask.now)
        .bind(if started.is_some() { "running" } else { "queued" })
        .bind(optional_document(ask.input)?)
        .bind(i32::from(started.is_some()))
        .bind(started.map(|_| ask.now))
        .execute(&mut *self)
        .await?;
        sqlx::query(
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until,
                                worker, deadline_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(ask.run_id)
        .bind(ask.task_id)
        .bind(&task.tenant_id)
        .bind(task.epoch)
        .bind(ask.now)
        .bind(ask.priority)
        .bind(if started.is_some() { "started" } else { "ready" })
        .bind(token)
        .bind(started.map(|(_, lease_until)| lease_until))
        .bind(started.map(|(worker, _)| worker))
        .bind(deadline_at)
        .execute(&mut *self)
        .await?;
        sqlx::query("update due set run_count = run_count + 1 where task_id = $1")
            .bind(ask.task_id)
            .execute(&mut *self)
            .await?;
        let going = deadline_at.map(|deadline_at| Going {
            run_id: ask.run_id,
            task_id: Some(ask.task_id),
            tenant_id: task.tenant_id.clone(),
            lease_token: token,
            deadline_at,
        });
        let recipient: Option<Json<Value>> = match going {
            Some(_) => {
                sqlx::query_scalar("select body from recipients where tenant_id = $1")
                    .bind(&task.tenant_id)
                    .fetch_optional(&mut *self)
                    .await?
            }
            None => None,
        };
        Ok(Some(Requested { task, going, recipient: recipient.map(|body| body.0) }))
    }
}
