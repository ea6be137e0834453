//! Which ready runs are taken on SQLite, and how one starts.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::hot::{Going, TENANTS_AT_ONCE};
use crate::store::lease::Lease;
use crate::store::limits::Room;
use crate::store::starting::Take;

pub(super) const READY: &str = "
    select run_id, run_at, tenant_id from queue where state = 'ready' and run_at <= $1 and $2 is null
     order by priority desc, run_at limit $3";
pub(super) const READY_OF_TENANT: &str = "
    select run_id, run_at, tenant_id from queue where state = 'ready' and run_at <= $1 and tenant_id = $2
     order by priority desc, run_at limit $3";

pub(in crate::store::hot) async fn pick(
    conn: &mut SqliteConnection,
    statement: &'static str,
    take: &Take,
    tenant: Option<&String>,
    limit: i64,
) -> Result<Vec<(Uuid, DateTime<Utc>, String)>, StoreError> {
    if limit <= 0 {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_as(statement).bind(take.ahead).bind(tenant).bind(limit).fetch_all(conn).await?)
}

/// Tenants that have ready runs, and may have more under way, by one look into the index each.
pub(in crate::store::hot) async fn tenants_in_turn(
    conn: &mut SqliteConnection,
    after: &str,
    room: &Room,
) -> Result<Vec<String>, StoreError> {
    let mut tenants: Vec<String> = Vec::new();
    let mut last = after.to_owned();
    while (tenants.len() as i64) < TENANTS_AT_ONCE {
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

/// Starts a claim if it still stands, was not cancelled, and has its task's slot.
pub(in crate::store::hot) async fn start_one(
    conn: &mut SqliteConnection,
    lease: &Lease,
    now: DateTime<Utc>,
    lease_until: DateTime<Utc>,
) -> Result<Option<Going>, StoreError> {
    let asked: Option<(Option<Uuid>, String, String, i64, i64)> = sqlx::query_as(
        "select q.task_id, q.tenant_id, coalesce(q.overlap, t.spec -> 'trigger' ->> 'overlap', 'skip'),
                coalesce(t.spec ->> 'timeout_seconds', 600), r.ran_ms
           from queue q join runs r on r.id = q.run_id left join tasks t on t.id = q.task_id
          where q.run_id = $1 and q.lease_token = $2 and q.state = 'claimed' and q.cancel_reason is null
            and r.state = 'queued'",
    )
    .bind(lease.run_id)
    .bind(lease.token)
    .fetch_optional(&mut *conn)
    .await?;
    let Some((task_id, tenant_id, overlap, timeout_seconds, ran_ms)) = asked else { return Ok(None) };
    if let Some(task_id) = task_id
        && overlap != "allow"
        && !take_slot(conn, task_id, lease.run_id).await?
    {
        return Ok(None);
    }
    let deadline_at = now + TimeDelta::milliseconds((timeout_seconds * 1000 - ran_ms).max(0));
    sqlx::query("update queue set state = 'started', lease_until = $2, deadline_at = $3 where run_id = $1")
        .bind(lease.run_id)
        .bind(lease_until)
        .bind(deadline_at)
        .execute(&mut *conn)
        .await?;
    sqlx::query(
        "update runs set state = 'running', attempt = attempt + 1, started_at = coalesce(started_at, $2)
          where id = $1",
    )
    .bind(lease.run_id)
    .bind(now)
    .execute(&mut *conn)
    .await?;
    Ok(Some(Going { run_id: lease.run_id, task_id, tenant_id, lease_token: lease.token, deadline_at }))
}

/// Whether the run has its task's slot now: free till now, or its own already.
pub(in crate::store::hot) async fn take_slot(
    conn: &mut SqliteConnection,
    task_id: Uuid,
    run_id: Uuid,
) -> Result<bool, StoreError> {
    sqlx::query("insert into slots (task_id, run_id) values ($1, $2) on conflict (task_id) do nothing")
        .bind(task_id)
        .bind(run_id)
        .execute(&mut *conn)
        .await?;
    let holder: Uuid =
        sqlx::query_scalar("select run_id from slots where task_id = $1").bind(task_id).fetch_one(conn).await?;
    Ok(holder == run_id)
}
