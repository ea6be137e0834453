//! Which ready runs are taken on SQLite, and how they start.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, QueryBuilder, Row, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::domain::run::Run;
use crate::store::StoreError;
use crate::store::db::sqlite_batch::{chunks, is_reusable, list, readable};
use crate::store::ops::unreadable::RETRY_AFTER;
use crate::store::runs::global_limits::RunLimitsLeft;
use crate::store::runs::lease::{Lease, StartedRow, StartedRows, TakeRequest};
use crate::store::runs::run_in;
use crate::store::sql::sql;

pub(super) const READY: &str = "
    select run_id, run_at, tenant_id, rowid as place from queue where state = 'ready' and run_at <= $1 and $2 is null
     order by priority desc, run_at limit $3";
pub(super) const READY_OF_TENANT: &str = "
    select run_id, run_at, tenant_id, rowid as place from queue where state = 'ready' and run_at <= $1 and tenant_id = $2
     order by priority desc, run_at limit $3";

/// Ready runs with their instants and tenants, and those among them whose rows can't be read.
#[derive(Default)]
pub(in crate::store::batches) struct PickedRuns {
    pub runs: Vec<(Uuid, DateTime<Utc>, String)>,
    pub unreadable: Vec<(Uuid, String)>,
}

pub(in crate::store::batches) async fn pick(
    conn: &mut SqliteConnection,
    statement: &'static str,
    take: &TakeRequest,
    tenant: Option<&String>,
    limit: i64,
) -> Result<PickedRuns, StoreError> {
    let mut picked = PickedRuns::default();
    if limit <= 0 {
        return Ok(picked);
    }
    let rows = sqlx::query(statement).bind(take.ahead).bind(tenant).bind(limit).fetch_all(&mut *conn).await?;
    for row in &rows {
        match <(Uuid, DateTime<Utc>, String)>::from_row(row) {
            Ok(run) => picked.runs.push(run),
            Err(error) => picked.unreadable.push(set_aside(conn, row, error, take.now).await?),
        }
    }
    Ok(picked)
}

/// Sets a row of the queue aside, at its `place`: the run is ready again in an hour, at an instant that can be read.
/// Answers the run and the reason, which is to be told once that is committed.
async fn set_aside(
    conn: &mut SqliteConnection,
    row: &SqliteRow,
    why: sqlx::Error,
    now: DateTime<Utc>,
) -> Result<(Uuid, String), StoreError> {
    let place: i64 = row.try_get("place")?;
    sqlx::query(
        "update queue set state = 'ready', run_at = $2, lease_token = 0, lease_until = null, worker = null
          where rowid = $1",
    )
    .bind(place)
    .bind(now + RETRY_AFTER)
    .execute(conn)
    .await?;
    Ok((row.try_get("run_id").unwrap_or_default(), why.to_string()))
}

/// Tenants that have ready runs, and may have more under way, by one look into the index each, and no more than `most`.
pub(in crate::store::batches) async fn tenants_in_turn(
    conn: &mut SqliteConnection,
    after: &str,
    room: &RunLimitsLeft,
    most: i64,
) -> Result<Vec<String>, StoreError> {
    let mut tenants: Vec<String> = Vec::new();
    let mut last = after.to_owned();
    while (tenants.len() as i64) < most {
        let next: Option<String> = sqlx::query_scalar(
            "select tenant_id from queue where state = 'ready' and tenant_id > $1 order by tenant_id limit 1",
        )
        .bind(&last)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(next) = next else { break };
        last.clone_from(&next);
        if room.of_tenant(&next) > 0 {
            tenants.push(next);
        }
    }
    Ok(tenants)
}

/// A claim that may start, and what bounds it.
#[derive(sqlx_macros::FromRow)]
struct StartCandidate {
    #[sqlx(flatten)]
    lease: Lease,
    task_id: Option<Uuid>,
    tenant_id: String,
    overlap: String,
    timeout_seconds: i64,
    execution_ms: i64,
    is_first: bool,
    task_version: Option<i64>,
}

impl StartCandidate {
    /// The rest of the time limit.
    fn left_ms(&self) -> i64 {
        (limit_seconds(self.timeout_seconds) * 1000 - self.execution_ms).max(0)
    }
}

/// The time limit of a task as it is stored, in seconds; one that no release can have written counts as the usual one.
pub(in crate::store::batches) fn limit_seconds(stored: i64) -> i64 {
    if stored < 1_000_000_000 { stored } else { 600 }
}

/// The overlap policy of a task `t`, and the time limit of its runs in seconds, as far as its text can be read.
pub(in crate::store::batches) const TASK_OVERLAP: &str =
    "case when json_valid(t.spec) then t.spec -> 'trigger' ->> 'overlap' end";
pub(in crate::store::batches) const TASK_TIMEOUT: &str =
    "case when json_valid(t.spec) and t.spec -> 'timeout_seconds' glob '[0-9]*'
          then cast(t.spec ->> 'timeout_seconds' as integer) else 600 end";

/// Starts those claims that still stand, were not cancelled, and have their task's slot. One whose rows can't be read
/// is set aside.
pub(in crate::store::batches) async fn start_each(
    conn: &mut SqliteConnection,
    leases: &[Lease],
    now: DateTime<Utc>,
    lease_until: DateTime<Utc>,
) -> Result<StartedRows, StoreError> {
    let (asked, unreadable) = start_candidates(conn, leases, now).await?;
    let needs_slot = asked.iter().filter(|asked| asked.overlap != "allow");
    let wanted: Vec<(Uuid, Uuid)> = needs_slot.filter_map(|asked| Some((asked.task_id?, asked.lease.run_id))).collect();
    let holders = take_slots(conn, &wanted).await?;
    let may = |asked: &StartCandidate| {
        asked.overlap == "allow" || asked.task_id.is_none_or(|task| holders.get(&task) == Some(&asked.lease.run_id))
    };
    let started = asked.into_iter().filter(may).map(|asked| StartedRow {
        lease: asked.lease,
        deadline_at: now + TimeDelta::milliseconds(asked.left_ms()),
        task_id: asked.task_id,
        tenant_id: asked.tenant_id,
        is_first: asked.is_first,
        task_version: asked.task_version,
        run: None,
        cause: None,
        task: None,
    });
    let mut started: Vec<StartedRow> = started.collect();
    let mut runs = mark_running(conn, &started, now, lease_until).await?;
    started.iter_mut().for_each(|started| started.run = runs.remove(&started.lease.run_id));
    Ok(StartedRows { rows: started, recipients: None, unreadable })
}

/// The claims that may start; and those whose rows can't be read, which are set aside.
async fn start_candidates(
    conn: &mut SqliteConnection,
    leases: &[Lease],
    now: DateTime<Utc>,
) -> Result<(Vec<StartCandidate>, Vec<(Uuid, String)>), StoreError> {
    let (mut asked, mut unreadable) = (Vec::with_capacity(leases.len()), Vec::new());
    for leases in chunks(leases) {
        let mut select = with_leases(leases);
        select.push(sql!(
            "select q.run_id, q.lease_token, q.task_id, q.tenant_id, coalesce(q.overlap, ",
            TASK_OVERLAP,
            ", 'skip') as overlap, ",
            TASK_TIMEOUT,
            " as timeout_seconds,
                    case when typeof(r.execution_ms) = 'integer' then r.execution_ms else 0 end as execution_ms,
                    r.started_at is null as is_first, t.version as task_version, q.rowid as place
               from leases l cross join queue q
                 on q.run_id = l.run_id and q.lease_token = l.lease_token and q.state = 'claimed'
                    and q.cancel_reason is null
               join runs r on r.id = q.run_id and r.state = 'queued'
               left join tasks t on t.id = q.task_id"
        ));
        let rows = select.build().persistent(is_reusable(leases.len())).fetch_all(&mut *conn).await?;
        for row in &rows {
            match StartCandidate::from_row(row) {
                Ok(candidate) => asked.push(candidate),
                Err(error) => unreadable.push(set_aside(conn, row, error, now).await?),
            }
        }
    }
    Ok((asked, unreadable))
}

/// Answers the records as they are then; one that can't be read is left out.
async fn mark_running(
    conn: &mut SqliteConnection,
    started: &[StartedRow],
    now: DateTime<Utc>,
    lease_until: DateTime<Utc>,
) -> Result<HashMap<Uuid, Run>, StoreError> {
    let mut running = HashMap::with_capacity(started.len());
    for started in chunks(started) {
        // both on one way to the connection's thread
        let mut text = QueryBuilder::new("with going (run_id, deadline_at) as (");
        text.push_values(started, |mut row, started| {
            row.push_bind(started.lease.run_id).push_bind(started.deadline_at);
        });
        text.push(") update queue set state = 'started', lease_until = ").push_bind(lease_until);
        text.push(", deadline_at = g.deadline_at from going g where queue.run_id = g.run_id;");
        text.push("update runs set state = 'running', attempt = attempt + 1, started_at = coalesce(started_at, ");
        text.push_bind(now).push(") where id in ");
        list(&mut text, started.iter().map(|started| started.lease.run_id));
        text.push(" returning *");
        let rows = text.build().persistent(is_reusable(started.len())).fetch_all(&mut *conn).await?;
        running.extend(rows.iter().filter_map(run_in).map(|run| (run.id, run)));
    }
    Ok(running)
}

/// Those that were started with these leases before, their time renewed. One that can't be read is left to its lease.
pub(in crate::store::batches) async fn restarted_rows(
    conn: &mut SqliteConnection,
    leases: &[Lease],
    lease_until: DateTime<Utc>,
) -> Result<Vec<StartedRow>, StoreError> {
    let mut again = Vec::new();
    for leases in chunks(leases) {
        let mut update = with_leases(leases);
        update.push("update queue set lease_until = ").push_bind(lease_until);
        update.push(
            " from leases l
              where queue.run_id = l.run_id and queue.lease_token = l.lease_token and queue.state = 'started'
             returning run_id, task_id, tenant_id, lease_token, deadline_at, false as is_first",
        );
        let rows = update.build().persistent(is_reusable(leases.len())).fetch_all(&mut *conn).await?;
        again.extend(readable::<StartedRow>(&rows));
    }
    Ok(again)
}

/// `with leases (run_id, lease_token) as (…) `
pub(super) fn with_leases(leases: &[Lease]) -> QueryBuilder<Sqlite> {
    let mut statement = QueryBuilder::new("");
    push_leases(&mut statement, leases);
    statement
}

/// Adds `with leases (run_id, lease_token) as (…) ` to a text.
pub(super) fn push_leases(text: &mut QueryBuilder<Sqlite>, leases: &[Lease]) {
    text.push("with leases (run_id, lease_token) as (");
    text.push_values(leases, |mut row, lease| {
        row.push_bind(lease.run_id).push_bind(lease.token);
    });
    text.push(") ");
}

/// Takes the slots of these tasks for these runs where they are free, the first of a task first; answers who has them.
pub(in crate::store::batches) async fn take_slots(
    conn: &mut SqliteConnection,
    wanted: &[(Uuid, Uuid)],
) -> Result<HashMap<Uuid, Uuid>, StoreError> {
    let mut holders = HashMap::with_capacity(wanted.len());
    for wanted in chunks(wanted) {
        let mut insert = QueryBuilder::new("insert into slots (task_id, run_id) ");
        insert.push_values(wanted, |mut row, (task_id, run_id)| {
            row.push_bind(*task_id).push_bind(*run_id);
        });
        insert.push(" on conflict (task_id) do nothing");
        let taken = insert.build().persistent(is_reusable(wanted.len())).execute(&mut *conn).await?.rows_affected();
        if taken == wanted.len() as u64 {
            holders.extend(wanted.iter().copied());
            continue;
        }
        let mut select = QueryBuilder::new("select task_id, run_id from slots where task_id in ");
        list(&mut select, wanted.iter().map(|(task_id, _)| *task_id));
        let rows = select.build().persistent(is_reusable(wanted.len())).fetch_all(&mut *conn).await?;
        holders.extend(readable::<(Uuid, Uuid)>(&rows));
    }
    Ok(holders)
}
