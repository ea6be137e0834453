//! Batches on Postgres: a statement each, and one more for what few of them have.
//!
//! A plan is made once, when a table may be empty or nothing be going on, and kept. So no text here leaves a choice:
//! rows are looked up by `key = any (array[listed.key])`, which is an index lookup for each listed row or nothing,
//! while of `key = listed.key` a planner that believes in few rows makes a walk through the whole index, to be merged.
//! Their order is that of the list, not of the key. And a condition that is that of a narrow index (`state`) is asked
//! of the rows that were found, else that index is walked.

mod appending;
mod events;
mod finishing;
mod firing;

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};
use uuid::Uuid;

use crate::base::id::new_id;
use crate::domain::notification::NewDelivery;
use crate::domain::run::Run;
use crate::store::StoreError;
use crate::store::db::text::{document, optional, optional_document, text};
use crate::store::runs::global_limits::lock_takes;
use crate::store::runs::lease::{
    CLAIM_MARGIN, ClaimCursor, Lease, RenewedLease, RunClaim, StartedRow, StartedRows, TakeRequest, TakenRuns,
};
use crate::store::runs::overlap::BLOCKED_ROW;
use crate::store::runs::overlap::rule::BlockedRow;
use crate::store::runs::run_in;
use crate::store::runs::shares::tenant_hash;
use crate::store::runs::starting::immediate_start::WrittenRows;
use crate::store::sql::sql;
use crate::store::tasks::fires::{DueSnapshot, FireBatch, FireDue};

pub(super) use appending::{append, append_budgeted, append_ended};
pub(in crate::store) use events::record_guarded;
pub(super) use events::{in_windows, lock_tasks, record_events, versions};
pub(in crate::store) use finishing::finish_alone;
pub(super) use finishing::{finish, waited_for};

/// A row that `take` answers, which holds the whole run where that has started; without a run: the last tenant whose
/// turn it was, and how many there were.
#[derive(sqlx_macros::FromRow)]
struct TakenRow {
    id: Option<Uuid>,
    task_id: Option<Uuid>,
    tenant_id: Option<String>,
    run_at: Option<DateTime<Utc>>,
    lease_token: i64,
    lease_until: Option<DateTime<Utc>>,
    deadline_at: Option<DateTime<Utc>>,
    task_version: Option<i64>,
    is_first: bool,
}

impl TakenRow {
    fn add_to(self, taken: &mut TakenRuns, run_id: Uuid, run: Option<Run>, now: DateTime<Utc>) {
        let lease = Lease { run_id, token: self.lease_token };
        let tenant_id = self.tenant_id.unwrap_or_default();
        let (run_at, until) = (self.run_at.unwrap_or(now), self.lease_until.unwrap_or(now));
        let claim = RunClaim { lease, run_at, until, tenant_hash: tenant_hash(&tenant_id) };
        let (task_id, task_version, is_first) = (self.task_id, self.task_version, self.is_first);
        let started = self.deadline_at.map(|deadline_at| StartedRow {
            lease,
            task_id,
            tenant_id,
            deadline_at,
            is_first,
            task_version,
            run,
            cause: None,
            task: None,
        });
        taken.add(claim, started, now);
    }
}

pub(super) async fn lock_due(conn: &mut PgConnection, tasks: &[Uuid]) -> Result<Vec<DueSnapshot>, StoreError> {
    let locked = sqlx::query_as(include_str!("../sql/lock_due.postgres.sql"));
    Ok(locked.bind(tasks).fetch_all(conn).await?)
}

pub(super) async fn fire(conn: &mut PgConnection, batch: &FireBatch, ask: &FireDue) -> Result<WrittenRows, StoreError> {
    let mut written = WrittenRows::default();
    if batch.moves.is_empty() {
        return Ok(written);
    }
    written.skipped = firing::record_skipped(conn, &batch.skipped, ask.now).await?;
    firing::record(conn, batch, ask, &mut written).await?;
    settle(conn, &batch.completed, "completed", ask.now).await?;
    settle(conn, &batch.disabled, "disabled", ask.now).await?;
    Ok(written)
}

pub(super) async fn take(conn: &mut PgConnection, take: &TakeRequest) -> Result<TakenRuns, StoreError> {
    if take.limits.any() {
        lock_takes(conn).await?;
    }
    let less = take.shares.iter().flat_map(|shares| &shares.less);
    let less_left: Vec<i64> = less.clone().map(|(_, left)| *left).collect();
    let rows = sqlx::query(with_failpoints(include_str!("../sql/take.postgres.sql")))
        .bind(take.now)
        .bind(take.ahead)
        .bind(take.limit)
        .bind(take.lease_until)
        .bind(take.worker)
        .bind(take.fair.is_some())
        .bind(take.fair.as_ref().map_or("", |turn| turn.0.as_str()))
        .bind(take.tenants_at_once())
        .bind(CLAIM_MARGIN.num_milliseconds())
        .bind(take.limits.per_tenant)
        .bind(take.limits.total)
        .bind(less.map(|(tenant, _)| text(tenant)).collect::<Vec<_>>())
        .bind(less_left)
        .bind(take.shares.as_ref().map(|shares| shares.usual))
        .bind(take.shares.as_ref().map(|shares| shares.free))
        .bind(take.limits.own)
        .fetch_all(conn)
        .await?;
    let mut taken = TakenRuns::default();
    let (mut served, mut last, mut tenants, mut recipients) = (None, String::new(), 0, Vec::new());
    for whole in rows {
        if let Some(recipient) = recipient_in(&whole)? {
            recipients.push(recipient);
            continue;
        }
        let row = TakenRow::from_row(&whole)?;
        match row.id {
            Some(run_id) => {
                served = served.max(row.tenant_id.clone());
                let run = row.deadline_at.and_then(|_| run_in(&whole));
                row.add_to(&mut taken, run_id, run, take.now);
            }
            None => (last, tenants) = (row.tenant_id.unwrap_or_default(), row.lease_token),
        }
    }
    if take.fair.is_some() {
        taken.turn = ClaimCursor::after(served, &last, tenants == take.tenants_at_once());
    }
    taken.started.recipients = Some(recipients);
    Ok(taken)
}

pub(super) async fn start(
    conn: &mut PgConnection,
    leases: &[Lease],
    now: DateTime<Utc>,
    lease_until: DateTime<Utc>,
) -> Result<StartedRows, StoreError> {
    let start = include_str!("../sql/start.postgres.sql");
    let rows = sqlx::query(
        failpoint_text!("no_slot", start, "where a.task_id is null or a.overlap = 'allow'" => "where true"),
    )
    .bind(leases.iter().map(|lease| lease.run_id).collect::<Vec<_>>())
    .bind(leases.iter().map(|lease| lease.token).collect::<Vec<_>>())
    .bind(now)
    .bind(lease_until)
    .fetch_all(conn)
    .await?;
    let (mut started, mut recipients) = (Vec::with_capacity(rows.len()), Vec::new());
    for whole in rows {
        match recipient_in(&whole)? {
            Some(recipient) => recipients.push(recipient),
            None => started.push(StartedRow { run: run_in(&whole), ..StartedRow::from_row(&whole)? }),
        }
    }
    Ok(StartedRows { rows: started, recipients: Some(recipients), ..StartedRows::default() })
}

pub(super) async fn lock_held_claims(conn: &mut PgConnection, leases: &[Lease]) -> Result<Vec<BlockedRow>, StoreError> {
    // the state is looked at behind the locks: an index on states would be read from its beginning to its end
    let select = sql!(
        "with listed as (
             select q.run_id, q.task_id, q.tenant_id, q.cancel_reason, q.overlap, q.state
               from unnest($1::uuid[], $2::bigint[]) as l (run_id, lease_token)
               join queue q on q.run_id = any (array[l.run_id]) and q.lease_token = l.lease_token
              order by l.run_id
                for update of q
         )
         select ",
        BLOCKED_ROW.postgres,
        "  from listed q
           left join tasks t on t.id = any (array[q.task_id])
          where q.state = 'claimed'"
    );
    Ok(sqlx::query_as(select)
        .bind(leases.iter().map(|lease| lease.run_id).collect::<Vec<_>>())
        .bind(leases.iter().map(|lease| lease.token).collect::<Vec<_>>())
        .fetch_all(conn)
        .await?)
}

pub(super) async fn lock_slots(conn: &mut PgConnection, tasks: &[Uuid]) -> Result<HashMap<Uuid, Uuid>, StoreError> {
    let lock = "select s.task_id, s.run_id
                  from unnest($1::uuid[]) as t (task_id)
                  join slots s on s.task_id = any (array[t.task_id])
                 order by t.task_id
                   for update of s";
    let held: Vec<(Uuid, Uuid)> = sqlx::query_as(lock).bind(tasks).fetch_all(conn).await?;
    Ok(held.into_iter().collect())
}

pub(super) async fn skip_blocked(
    conn: &mut PgConnection,
    skipped: &[(Uuid, Uuid)],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if skipped.is_empty() {
        return Ok(());
    }
    let skip = "with gone as (
                    delete from queue q
                     using unnest($1::uuid[]) as s (run_id)
                     where q.run_id = any (array[s.run_id])
                )
                update runs r
                   set state = 'skipped', reason = 'overlap', blocked_by = s.holder, finished_at = $3
                  from unnest($1::uuid[], $2::uuid[]) as s (run_id, holder)
                 where r.id = any (array[s.run_id]) and r.state = 'queued'";
    sqlx::query(skip)
        .bind(skipped.iter().map(|(run_id, _)| *run_id).collect::<Vec<_>>())
        .bind(skipped.iter().map(|(_, holder)| *holder).collect::<Vec<_>>())
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn beat(
    conn: &mut PgConnection,
    leases: &[Lease],
    lease_until: DateTime<Utc>,
) -> Result<Vec<RenewedLease>, StoreError> {
    Ok(sqlx::query_as(include_str!("../sql/beat.postgres.sql"))
        .bind(leases.iter().map(|lease| lease.run_id).collect::<Vec<_>>())
        .bind(leases.iter().map(|lease| lease.token).collect::<Vec<_>>())
        .bind(lease_until)
        .fetch_all(conn)
        .await?)
}

pub(super) async fn use_conversations(
    conn: &mut PgConnection,
    ids: &[Uuid],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    let used = "update tasks set active_since = $2
          where id = any (array(select t.id
                                  from unnest($1::uuid[]) as used (id)
                                 cross join lateral (select t.id from tasks t
                                                      where t.id = any (array[used.id]) and t.trigger_type = 'chat'
                                                        and t.active_since < $2
                                                        for no key update skip locked) t))";
    sqlx::query(used).bind(ids).bind(now).execute(conn).await?;
    Ok(())
}

pub(super) async fn post(
    conn: &mut PgConnection,
    deliveries: &[&NewDelivery],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let fallbacks = deliveries.iter().map(|d| document(&d.fallback)).collect::<Result<Vec<_>, _>>()?;
    let subjects = deliveries.iter().map(|d| optional_document(d.subject_ref.as_ref()));
    let subjects = subjects.collect::<Result<Vec<_>, _>>()?;
    sqlx::query(include_str!("../sql/post.postgres.sql"))
        .bind(deliveries.iter().map(|_| new_id(now)).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| d.tenant_id.as_str()).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| d.recipient.as_str()).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| text(&d.channel)).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| text(&d.dedupe_key)).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| d.run_id).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| d.kind.as_str()).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| optional(d.subject.as_deref())).collect::<Vec<_>>())
        .bind(deliveries.iter().map(|d| optional(d.text.as_deref())).collect::<Vec<_>>())
        .bind(fallbacks)
        .bind(now)
        .bind(deliveries.iter().map(|d| d.urgency.as_str()).collect::<Vec<_>>())
        .bind(subjects)
        .execute(conn)
        .await?;
    Ok(())
}

/// The tenant and its recipient, where a row of `take` or `start` holds one.
fn recipient_in(row: &PgRow) -> Result<Option<(String, String)>, StoreError> {
    let recipient: Option<String> = row.try_get("recipient")?;
    recipient.map(|recipient| Ok::<_, StoreError>((row.try_get("tenant_id")?, recipient))).transpose()
}

/// Where a bug is planted: takes runs without the lock that keeps others from them, and lingers between the look and
/// the take for as long as somebody else holds an advisory lock; or takes them without their tasks' slots.
fn with_failpoints(take: &'static str) -> &'static str {
    let lingers = failpoint_text!("no_skip_locked", take, "left join tasks t on" => "cross join lateral (select pg_advisory_xact_lock_shared(length('no_skip_locked')) where q.run_id is not null) as late left join tasks t on");
    let unlocked = failpoint_text!("no_skip_locked", lingers, "for update skip locked" => "");
    failpoint_text!("no_slot", unlocked, "a.may_start and (a.task_id is null or a.overlap = 'allow')" => "a.may_start")
}

async fn settle<S: AsRef<str>>(
    conn: &mut PgConnection,
    tasks: &[(Uuid, S)],
    status: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if tasks.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "update tasks t set status = $3, status_reason = s.reason, faulty_part = null, version = version + 1,
                updated_at = $4
           from unnest($1::uuid[], $2::text[]) as s (id, reason)
          where t.id = any (array[s.id]) and t.status = 'active'",
    )
    .bind(tasks.iter().map(|(id, _)| *id).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, reason)| text(reason.as_ref())).collect::<Vec<_>>())
    .bind(status)
    .bind(now)
    .execute(conn)
    .await?;
    Ok(())
}
