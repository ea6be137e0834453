//! Alert states of tasks, by which the end of a run is notified or not: a step of the transaction that ends it.
//!
//! The row of a task is locked before it is judged: of two runs that end at once with the same fault one is told. Rows
//! are locked in the order of their tasks, after everything else that such a transaction locks.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::notification::{Alert, AlertState, NewDelivery, RunNotification};
use crate::store::db::text::optional_document;
use crate::store::ops::unreadable::UnreadableRow;
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

impl Store {
    /// Whether the owner of a task was told of a field that these steps miss.
    pub async fn is_missing_reported(&self, task_id: Uuid, steps: &str) -> Result<bool, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query("select exists (select 1 from task_alerts where task_id = $1 and missing_field_digest = $2)")
            .bind(task_id)
            .bind(steps)
            .scalar()
            .await?)
    }

    /// Tells the owner of a task of a field that these steps miss, unless that was told of them before; answers whether
    /// it did. Of a task that is gone nothing is told.
    pub async fn report_missing(&self, task_id: Uuid, steps: &str, notice: &NewDelivery) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write_unconfined(Some(notice.tenant_id.as_str())).await?;
        write.set_rls_tenant(Some(notice.tenant_id.as_str())).await?;
        let tx = &mut write.tx();
        tx.query(INSERT_ALERTS).bind(task_id).execute().await?;
        let told = tx
            .query("update task_alerts set missing_field_digest = $2 where task_id = $1 and (missing_field_digest is null or missing_field_digest <> $2)")
            .bind(task_id)
            .bind(steps)
            .execute()
            .await?
            == 1;
        if told {
            tx.post(&[notice], now).await?;
        }
        write.commit().await?;
        if told {
            self.notify(Topic::Outbox);
        }
        Ok(told)
    }
}

/// The state of a task's messages, as it is stored.
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct AlertRow {
    output_hash: Option<Vec<u8>>,
    alerts: Option<String>,
}

impl AlertRow {
    /// The state of a task's messages; the default where it can't be read: its runs must come to their end, and the
    /// ends that are recorded with them.
    pub fn alert_state(self, task_id: Uuid, unreadable: &UnreadableRow) -> AlertState {
        let alerts = self.alerts.as_deref().map(serde_json::from_str::<BTreeMap<String, Alert>>).transpose();
        let alerts = alerts.inspect_err(|error| unreadable.report("task_alerts", task_id, error));
        AlertState { output_hash: self.output_hash, alerts: alerts.ok().flatten().unwrap_or_default() }
    }
}

pub(in crate::store) const HAS_ALERTS: &str = "select 1 from task_alerts where task_id = $1 and alerts is not null";
const LOCK_ALERTS: Split = Split { postgres: sql!(SELECT_ALERTS, " for update"), sqlite: SELECT_ALERTS };
const SELECT_ALERTS: &str = "select output_hash, cast(alerts as text) as alerts from task_alerts where task_id = $1";
/// None where the task was deleted meanwhile.
pub(in crate::store) const INSERT_ALERTS: &str = "
    insert into task_alerts (task_id, tenant_id) select id, tenant_id from tasks where id = $1
    on conflict (task_id) do nothing";
pub(in crate::store) const WRITE_ALERTS: &str =
    "update task_alerts set output_hash = $2, alerts = $3 where task_id = $1";
/// Tasks with ends that a message told which did not arrive, itself or as a digest. The messages are found first, each
/// way by its own index, and all else is asked in words that fit none: all that have failed would be walked otherwise.
pub(in crate::store) const TASKS_TO_RESET: Split = Split {
    postgres: sql!(TASKS_OF_FAILED; "{told}" = "= any (array[told.id])"; "{its}" = "= any (array[d.run_id])"),
    sqlite: sql!(TASKS_OF_FAILED; "{told}" = "= told.id"; "{its}" = "= d.run_id"),
};
const TASKS_OF_FAILED: &str = "
    select distinct r.task_id
      from (select id from deliveries where id = $1 union all select id from deliveries where digest_id = $1) told
      join deliveries d on d.id {told} join runs r on r.id {its}
     where d.state || '' = 'failed' and coalesce(r.task_id is not null, false)
       and (d.kind in ('result', 'failure') or d.subject_ref ->> 'notice' = 'failing')
     order by r.task_id";
pub(in crate::store) const RESET_ALERTS: &str =
    "update task_alerts set output_hash = null, alerts = null where task_id = $1";

/// Forgets the messages that failed through their last channel: the next end is told as if nothing had been. After
/// their state is written, so behind the delivery: nobody waits for a delivery's row with the row of a task locked
/// here.
pub(in crate::store) async fn reset_alert(tx: &mut Tx<'_>, delivery: Uuid) -> Result<(), StoreError> {
    let tasks: Vec<Uuid> = tx.query(TASKS_TO_RESET).bind(delivery).scalars().await?;
    for task in tasks {
        tx.query(RESET_ALERTS).bind(task).execute().await?;
    }
    Ok(())
}

/// The messages of these ends, by what their tasks have told before; what they have told then is written.
pub(in crate::store) async fn notifications_for(
    store: &Store,
    tx: &mut Tx<'_>,
    mut ends: Vec<&RunNotification>,
    now: DateTime<Utc>,
) -> Result<Vec<NewDelivery>, StoreError> {
    ends.sort_by_key(|end| end.task_id);
    let mut told: Vec<NewDelivery> = Vec::new();
    for end in ends {
        if end.is_stateless() {
            let alerted: Option<i32> = tx.query(HAS_ALERTS).bind(end.task_id).optional_scalar().await?;
            if alerted.is_none() {
                told.extend(end.stateless_delivery());
                continue;
            }
        }
        tx.query(INSERT_ALERTS).bind(end.task_id).execute().await?;
        let row: Option<AlertRow> = tx.query(LOCK_ALERTS).bind(end.task_id).optional().await?;
        let Some(row) = row else {
            told.extend(end.stateless_delivery());
            continue;
        };
        let (next, said) = row.alert_state(end.task_id, &store.unreadable).apply(end, now);
        let alerts = (!next.alerts.is_empty()).then_some(&next.alerts);
        tx.query(WRITE_ALERTS)
            .bind(end.task_id)
            .bind(&next.output_hash)
            .bind(optional_document(alerts)?)
            .execute()
            .await?;
        told.extend(said);
    }
    Ok(told)
}
