//! Records of tasks and their runs in a database, read by statements of the checker's own.

use std::path::PathBuf;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};
use uuid::Uuid;

/// The database that is judged.
#[derive(Debug, Clone)]
pub enum Source {
    Sqlite(PathBuf),
    /// As the role of the service.
    Postgres(String),
}

#[derive(Debug, Clone, sqlx_macros::FromRow)]
pub struct TaskRow {
    pub id: Uuid,
    pub spec: Json<Value>,
    pub status: String,
    pub status_reason: Option<String>,
    pub epoch: i64,
    pub anchor_at: DateTime<Utc>,
    pub active_since: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub due_epoch: i64,
    pub fire_count: i64,
    pub next_at: Option<DateTime<Utc>>,
    pub nominal_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, sqlx_macros::FromRow)]
pub struct RunRow {
    pub id: Uuid,
    pub task_id: Option<Uuid>,
    pub tenant_id: String,
    pub fire_key: String,
    pub scheduled_for: DateTime<Utc>,
    pub state: String,
    pub reason: Option<String>,
    pub blocked_by: Option<Uuid>,
    pub attempt: i64,
    pub crashes: i64,
    pub infra_retries: i64,
    pub missed: Option<Json<Value>>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    pub output: Option<String>,
    pub error: Option<Json<Value>>,
}

#[derive(Debug, Clone, sqlx_macros::FromRow)]
pub struct QueueRow {
    pub run_id: Uuid,
    pub task_id: Option<Uuid>,
    pub state: String,
    pub lease_token: i64,
    pub has_lease: bool,
    pub has_deadline: bool,
}

#[derive(Debug, Clone, sqlx_macros::FromRow)]
pub struct DeliveryRow {
    pub tenant_id: String,
    pub recipient: String,
    pub channel: String,
    pub dedupe_key: String,
    pub state: String,
}

/// An event that the embedded bus has taken.
#[derive(Debug, Clone, sqlx_macros::FromRow)]
pub struct EventRow {
    pub event_key: String,
    pub tenant_id: String,
    pub event_type: String,
    /// It is not acknowledged yet.
    pub waits: bool,
}

/// Everything that is judged.
#[derive(Debug, Clone, Default)]
pub struct Records {
    pub tasks: Vec<TaskRow>,
    pub runs: Vec<RunRow>,
    pub queue: Vec<QueueRow>,
    /// Run and why it waits.
    pub parked: Vec<(Uuid, String)>,
    /// Task and run.
    pub slots: Vec<(Uuid, Uuid)>,
    pub deliveries: Vec<DeliveryRow>,
    pub events: Vec<EventRow>,
    /// The last lease token that was given out.
    pub last_token: i64,
}

macro_rules! read {
    ($conn:ident, $last_token:literal) => {
        Records {
            tasks: sqlx::query_as(
                "select t.id, t.spec, t.status, t.status_reason, t.epoch, t.anchor_at, t.active_since, t.created_at,
                        t.updated_at, d.epoch as due_epoch, d.fire_count, d.next_at, d.nominal_at
                   from tasks t join due d on d.task_id = t.id order by t.id",
            )
            .fetch_all(&mut $conn)
            .await?,
            runs: sqlx::query_as(
                "select id, task_id, tenant_id, fire_key, scheduled_for, state, reason, blocked_by,
                        cast(attempt as bigint) as attempt, cast(crashes as bigint) as crashes,
                        cast(infra_retries as bigint) as infra_retries, missed, created_at, started_at, finished_at,
                        output, error
                   from runs order by id",
            )
            .fetch_all(&mut $conn)
            .await?,
            queue: sqlx::query_as(
                "select run_id, task_id, state, lease_token, lease_until is not null as has_lease,
                        deadline_at is not null as has_deadline
                   from queue order by run_id",
            )
            .fetch_all(&mut $conn)
            .await?,
            parked: sqlx::query_as("select run_id, reason from parked order by run_id").fetch_all(&mut $conn).await?,
            slots: sqlx::query_as("select task_id, run_id from slots order by task_id").fetch_all(&mut $conn).await?,
            deliveries: sqlx::query_as("select tenant_id, recipient, channel, dedupe_key, state from deliveries")
                .fetch_all(&mut $conn)
                .await?,
            events: sqlx::query_as(
                "select e.event_key, e.tenant_id, e.type as event_type, q.seq is not null as waits
                   from events e left join event_queue q on q.seq = e.seq order by e.seq",
            )
            .fetch_all(&mut $conn)
            .await?,
            last_token: sqlx::query_scalar($last_token).fetch_one(&mut $conn).await?,
        }
    };
}

impl Source {
    /// Reads everything, as of one instant.
    pub async fn read(&self) -> Records {
        let read = match self {
            Source::Sqlite(file) => read_sqlite(file).await,
            Source::Postgres(url) => read_postgres(url).await,
        };
        read.unwrap_or_else(|error| panic!("{self:?} can't be judged: {error}"))
    }

    /// Changes what is stored behind the service's back.
    pub async fn damage(&self, statement: &str) {
        let Source::Sqlite(file) = self else { panic!("only a file is damaged") };
        let mut conn = sqlite(file).await.expect("the database file");
        let done = conn.execute(AssertSqlSafe(statement.to_owned())).await.expect("a statement");
        assert!(done.rows_affected() > 0, "nothing was changed by {statement}");
    }

    /// Runs still on their way: queued, started or parked.
    pub async fn unfinished(&self) -> Result<i64, sqlx::Error> {
        let count = "select (select count(*) from queue) + (select count(*) from parked)
                          + (select count(*) from event_queue)";
        self.number(count).await
    }

    /// One number.
    pub async fn number(&self, query: &'static str) -> Result<i64, sqlx::Error> {
        match self {
            Source::Sqlite(file) => sqlx::query_scalar(query).fetch_one(&mut sqlite(file).await?).await,
            Source::Postgres(url) => sqlx::query_scalar(query).fetch_one(&mut postgres(url).await?).await,
        }
    }
}

async fn sqlite(file: &std::path::Path) -> Result<SqliteConnection, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(&format!("sqlite://{}", file.display()))?;
    SqliteConnection::connect_with(&options.busy_timeout(std::time::Duration::from_secs(30))).await
}

async fn postgres(url: &str) -> Result<PgConnection, sqlx::Error> {
    let mut conn = PgConnection::connect(url).await?;
    conn.execute("set reveille.tenant = '*'").await?;
    Ok(conn)
}

async fn read_sqlite(file: &std::path::Path) -> Result<Records, sqlx::Error> {
    let mut conn = sqlite(file).await?;
    conn.execute("begin").await?;
    Ok(read!(conn, "select last from lease_tokens"))
}

async fn read_postgres(url: &str) -> Result<Records, sqlx::Error> {
    let mut conn = postgres(url).await?;
    conn.execute("begin isolation level repeatable read read only").await?;
    Ok(read!(conn, "select last_value from lease_tokens"))
}
