//! Claims that find their task's slot taken, on SQLite.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{QueryBuilder, SqliteConnection};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::batches::sqlite::starting::with_leases;
use crate::store::db::sqlite_batch::{chunks, is_reusable, list, readable};
use crate::store::runs::lease::Lease;
use crate::store::runs::overlap::BLOCKED_ROW;
use crate::store::runs::overlap::rule::BlockedRow;
use crate::store::sql::sql;

pub(in crate::store::batches) async fn lock_held_claims(
    conn: &mut SqliteConnection,
    leases: &[Lease],
) -> Result<Vec<BlockedRow>, StoreError> {
    let mut standing = Vec::new();
    for leases in chunks(leases) {
        let mut select = with_leases(leases);
        select.push(sql!(
            "select ",
            BLOCKED_ROW.sqlite,
            " from leases l cross join queue q
                on q.run_id = l.run_id and q.lease_token = l.lease_token and q.state = 'claimed'
              left join tasks t on t.id = q.task_id"
        ));
        let rows = select.build().persistent(is_reusable(leases.len())).fetch_all(&mut *conn).await?;
        // a claim that can't be read runs out, and is set aside when it is taken again
        standing.extend(readable::<BlockedRow>(&rows));
    }
    Ok(standing)
}

pub(in crate::store::batches) async fn lock_slots(
    conn: &mut SqliteConnection,
    tasks: &[Uuid],
) -> Result<HashMap<Uuid, Uuid>, StoreError> {
    let mut holders = HashMap::new();
    for tasks in chunks(tasks) {
        let mut select = QueryBuilder::new("select task_id, run_id from slots where task_id in ");
        list(&mut select, tasks.iter().copied());
        let rows = select.build().persistent(is_reusable(tasks.len())).fetch_all(&mut *conn).await?;
        holders.extend(readable::<(Uuid, Uuid)>(&rows));
    }
    Ok(holders)
}

pub(in crate::store::batches) async fn skip_blocked(
    conn: &mut SqliteConnection,
    skipped: &[(Uuid, Uuid)],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for skipped in chunks(skipped) {
        let mut delete = QueryBuilder::new("delete from queue where run_id in ");
        list(&mut delete, skipped.iter().map(|(run_id, _)| *run_id));
        delete.build().persistent(is_reusable(skipped.len())).execute(&mut *conn).await?;
        let mut update = QueryBuilder::new("with skipped (run_id, holder) as (");
        update.push_values(skipped, |mut row, (run_id, holder)| {
            row.push_bind(*run_id).push_bind(*holder);
        });
        update.push(") update runs set state = 'skipped', reason = 'overlap', blocked_by = s.holder, finished_at = ");
        update.push_bind(now).push(" from skipped s where runs.id = s.run_id and runs.state = 'queued'");
        update.build().persistent(is_reusable(skipped.len())).execute(&mut *conn).await?;
    }
    Ok(())
}
