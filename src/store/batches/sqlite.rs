//! Batches on SQLite: statements over many rows, as lists of values, in the one transaction of the one writer.

mod appending;
mod blocked;
mod finishing;
mod firing;
mod recording;
mod starting;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::base::id::new_id;
use crate::domain::notification::NewDelivery;
use crate::store::StoreError;
use crate::store::batches::sqlite::starting::{
    PickedRuns, READY, READY_OF_TENANT, pick, restarted_rows, start_each, tenants_in_turn, with_leases,
};
use crate::store::db::sqlite_batch::{chunks, is_reusable, list, readable};
use crate::store::db::text::{document, optional, optional_document, text};
use crate::store::runs::global_limits::RunLimitsLeft;
use crate::store::runs::lease::{
    CLAIM_MARGIN, ClaimCursor, Lease, RenewedLease, RunClaim, StartedRow, StartedRows, TakeRequest, TakenRuns,
};
use crate::store::runs::shares::tenant_hash;
use crate::store::runs::starting::immediate_start::WrittenRows;
use crate::store::tasks::fires::{DueSnapshot, FireBatch, FireDue, all_moved};

pub(in crate::store) use appending::append_committed;
pub(super) use appending::{append, append_ended};
pub(super) use blocked::{lock_held_claims, lock_slots, skip_blocked};
pub(super) use finishing::finish;
pub(super) use recording::{in_windows, lock_tasks, record_events, versions};
pub(super) use starting::{TASK_OVERLAP, TASK_TIMEOUT};

/// The one writer has them all.
pub(super) async fn lock_due(conn: &mut SqliteConnection, tasks: &[Uuid]) -> Result<Vec<DueSnapshot>, StoreError> {
    let mut rows = Vec::with_capacity(tasks.len());
    for tasks in chunks(tasks) {
        let mut select = QueryBuilder::new(
            "select d.task_id, d.epoch, d.next_at, d.nominal_at, d.fire_count, t.version
               from due d join tasks t on t.id = d.task_id where d.task_id in ",
        );
        list(&mut select, tasks.iter().copied());
        let found = select.build().persistent(is_reusable(tasks.len())).fetch_all(&mut *conn).await?;
        // one that can't be read is not as it was read: it is disabled when it is read as due again
        rows.extend(readable::<DueSnapshot>(&found));
    }
    Ok(rows)
}

pub(super) async fn fire(
    conn: &mut SqliteConnection,
    batch: &FireBatch,
    ask: &FireDue,
) -> Result<WrittenRows, StoreError> {
    let mut written = WrittenRows::default();
    all_moved(firing::update_due(conn, &batch.moves).await?, batch)?;
    written.skipped = recording::insert_runs(conn, &batch.skipped.iter().collect::<Vec<_>>()).await?.len();
    firing::record(conn, &batch.runs, ask, &mut written).await?;
    settle(conn, &batch.completed, "completed", ask.now).await?;
    settle(conn, &batch.disabled, "disabled", ask.now).await?;
    Ok(written)
}

pub(super) async fn take(conn: &mut SqliteConnection, take: &TakeRequest) -> Result<TakenRuns, StoreError> {
    let mut taken = TakenRuns::default();
    let picked = match &take.fair {
        None => pick(conn, READY, take, None, take.limit).await?,
        Some(after) => {
            let room = RunLimitsLeft::of(conn, take).await?;
            let tenants = tenants_in_turn(conn, &after.0, &room, take.tenants_at_once()).await?;
            let share = room.per_tenant(tenants.len() as i64);
            let (mut picked, mut served) = (PickedRuns::default(), None);
            for tenant in &tenants {
                let left = (room.all - picked.runs.len() as i64).min(room.of_tenant(tenant));
                let of_tenant = pick(conn, READY_OF_TENANT, take, Some(tenant), share.min(left)).await?;
                served = if of_tenant.runs.is_empty() { served } else { Some(tenant.clone()) };
                picked.runs.extend(of_tenant.runs);
                picked.unreadable.extend(of_tenant.unreadable);
            }
            let (last, more) = (tenants.last(), tenants.len() as i64 == take.tenants_at_once());
            taken.turn = ClaimCursor::after(served, last.map_or("", String::as_str), more);
            picked
        }
    };
    let mut token = next_tokens(conn, picked.runs.len()).await?;
    let claims = picked.runs.into_iter().map(|(run_id, run_at, tenant_id)| {
        token += 1;
        let lease = Lease { run_id, token };
        RunClaim { lease, run_at, until: run_at.max(take.now) + CLAIM_MARGIN, tenant_hash: tenant_hash(&tenant_id) }
    });
    let claims: Vec<RunClaim> = claims.collect();
    claim(conn, &claims, take.worker).await?;
    let due: Vec<Lease> = claims.iter().filter(|claim| claim.run_at <= take.now).map(|claim| claim.lease).collect();
    let StartedRows { rows, unreadable, .. } = start_each(conn, &due, take.now, take.lease_until).await?;
    taken.started.unreadable = [picked.unreadable, unreadable].concat();
    let mut started: HashMap<Uuid, StartedRow> =
        rows.into_iter().map(|started| (started.lease.run_id, started)).collect();
    for claim in claims {
        taken.add(claim, started.remove(&claim.lease.run_id), take.now);
    }
    Ok(taken)
}

pub(super) async fn start(
    conn: &mut SqliteConnection,
    leases: &[Lease],
    now: DateTime<Utc>,
    lease_until: DateTime<Utc>,
) -> Result<StartedRows, StoreError> {
    let mut started = restarted_rows(conn, leases, lease_until).await?;
    let before: HashSet<Uuid> = started.iter().map(|started| started.lease.run_id).collect();
    let others: Vec<Lease> = leases.iter().filter(|lease| !before.contains(&lease.run_id)).copied().collect();
    let StartedRows { rows, unreadable, .. } = start_each(conn, &others, now, lease_until).await?;
    started.extend(rows);
    Ok(StartedRows { rows: started, recipients: None, unreadable })
}

pub(super) async fn beat(
    conn: &mut SqliteConnection,
    leases: &[Lease],
    lease_until: DateTime<Utc>,
) -> Result<Vec<RenewedLease>, StoreError> {
    let mut held = Vec::with_capacity(leases.len());
    for leases in chunks(leases) {
        let beats = heartbeat_statement(leases, lease_until)
            .build()
            .persistent(is_reusable(leases.len()))
            .fetch_all(&mut *conn)
            .await?;
        held.extend(readable::<RenewedLease>(&beats));
    }
    Ok(held)
}

pub(super) async fn waited_for(conn: &mut SqliteConnection, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    let mut waited_for = Vec::new();
    for tasks in chunks(tasks) {
        let mut select =
            QueryBuilder::new("select distinct task_id from parked where reason = 'overlap' and task_id in ");
        list(&mut select, tasks.iter().copied());
        select.push(" order by task_id");
        let waited: Vec<Uuid> =
            select.build_query_scalar().persistent(is_reusable(tasks.len())).fetch_all(&mut *conn).await?;
        waited_for.extend(waited);
    }
    Ok(waited_for)
}

pub(super) async fn use_conversations(
    conn: &mut SqliteConnection,
    ids: &[Uuid],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for id in ids {
        let used = "update tasks set active_since = $2 where id = $1 and trigger_type = 'chat' and active_since < $2";
        sqlx::query(used).bind(id).bind(now).execute(&mut *conn).await?;
    }
    Ok(())
}

pub(super) async fn post(
    conn: &mut SqliteConnection,
    deliveries: &[&NewDelivery],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for deliveries in chunks(deliveries) {
        let mut documents = Vec::with_capacity(deliveries.len());
        for d in deliveries {
            documents.push((document(&d.fallback)?, optional_document(d.subject_ref.as_ref())?));
        }
        let mut insert = QueryBuilder::new(
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, subject, body,
                                     fallback, state, next_at, created_at, urgency, subject_ref) ",
        );
        insert.push_values(deliveries.iter().zip(documents), |mut row, (d, (fallback, subject_ref))| {
            row.push_bind(new_id(now)).push_bind(&d.tenant_id).push_bind(&d.recipient).push_bind(text(&d.channel));
            row.push_bind(text(&d.dedupe_key)).push_bind(d.run_id).push_bind(d.kind.as_str());
            row.push_bind(optional(d.subject.as_deref())).push_bind(optional(d.text.as_deref())).push_bind(fallback);
            row.push("'pending'").push_bind(now).push_bind(now).push_bind(d.urgency.as_str()).push_bind(subject_ref);
        });
        insert.push(" on conflict (tenant_id, recipient, channel, dedupe_key) do nothing");
        insert.build().persistent(is_reusable(deliveries.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

/// The statement that renews leases.
fn heartbeat_statement(leases: &[Lease], until: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut update = with_leases(leases);
    update.push("update queue set lease_until = ").push_bind(until);
    update.push(
        " from leases l where queue.run_id = l.run_id and queue.lease_token = l.lease_token
         returning run_id, cancel_reason",
    );
    update
}

/// Leases these runs to a worker, not yet started.
async fn claim(conn: &mut SqliteConnection, claims: &[RunClaim], worker: Uuid) -> Result<(), StoreError> {
    for claims in chunks(claims) {
        let mut update = QueryBuilder::new("with claims (run_id, lease_token, until) as (");
        update.push_values(claims, |mut row, claim| {
            row.push_bind(claim.lease.run_id).push_bind(claim.lease.token).push_bind(claim.until);
        });
        update.push(
            ") update queue set state = 'claimed', lease_token = c.lease_token, lease_until = c.until, worker = ",
        );
        update.push_bind(worker).push(" from claims c where queue.run_id = c.run_id");
        update.build().persistent(is_reusable(claims.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Takes `count` lease tokens; answers the last one given before them. None are taken where none are needed: a write
/// would cost an idle service a commit to disk with each look.
pub(super) async fn next_tokens(conn: &mut SqliteConnection, count: usize) -> Result<i64, StoreError> {
    if count == 0 {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("update lease_tokens set last = last + $1 returning last - $1")
        .bind(count as i64)
        .fetch_one(conn)
        .await?)
}

async fn settle<S: AsRef<str>>(
    conn: &mut SqliteConnection,
    tasks: &[(Uuid, S)],
    status: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for (id, reason) in tasks {
        sqlx::query(
            "update tasks set status = $2, status_reason = $3, faulty_part = null, version = version + 1, updated_at = $4
              where id = $1 and status = 'active'",
        )
        .bind(id)
        .bind(status)
        .bind(text(reason.as_ref()))
        .bind(now)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
    use crate::domain::run::{RunState, Usage};
    use crate::store::db::sqlite_batch::ROWS;
    use crate::store::db::sqlite_plan;
    use crate::store::runs::lease::Finish;
    use crate::store::runs::new_entry::EntryColumns;
    use crate::store::tasks::fires::DueUpdate;

    fn entry() -> EntryColumns {
        let (at, message) = (DateTime::UNIX_EPOCH, TranscriptMessage::user("hello"));
        let (usage, duration_ms, model_call) = (Usage::default(), None, None);
        let entry = TranscriptEntry { usage, duration_ms, model_call, ..TranscriptEntry::new(0, 0, at, message) };
        EntryColumns::of(&entry).expect("an entry")
    }

    #[tokio::test]
    async fn rows_that_are_listed_are_found_by_an_index() {
        let lease = Lease { run_id: Uuid::nil(), token: 0 };
        let to = || DueUpdate { task_id: Uuid::nil(), epoch: 0, next_at: None, nominal_at: None, fires: 0 };
        let end = Finish::of(lease, None, RunState::Succeeded);
        let moves: Vec<DueUpdate> = (0..ROWS[0]).map(|_| to()).collect();
        let mut ends = QueryBuilder::new("");
        finishing::record(&mut ends, &vec![&end; ROWS[0]], DateTime::UNIX_EPOCH).expect("a statement");
        let mut entries = QueryBuilder::new("");
        appending::insert_held(&mut entries, &vec![(lease, &entry()); ROWS[0]]);
        let statements = [
            firing::due_statement(&moves),
            ends,
            entries,
            heartbeat_statement(&vec![lease; ROWS[0]], DateTime::UNIX_EPOCH),
        ];
        for statement in statements {
            let plan = sqlite_plan(statement.sql().as_str()).await;
            for table in ["due", "runs", "queue", "q"] {
                assert!(!plan.iter().any(|step| step.starts_with(&format!("SCAN {table}"))), "{plan:?}");
            }
            assert!(plan.iter().any(|step| step.starts_with("SEARCH")), "{plan:?}");
        }
    }
}
