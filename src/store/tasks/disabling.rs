//! Tasks that can't go on as they are stored: disabled with the reason, and their owner told, in one transaction.
//!
//! A stored part that exceeds a bound is found by whoever would compute it. Its task is disabled at once, so that it is
//! found once: not again with the next event, poll or run, and not after a restart.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::{NewDelivery, NoticeKind, Recipient, SubjectRef, notices};
use crate::domain::task::Output;
use crate::domain::task::change::FaultyPart;
use crate::store::events::event_index::index_event_task;
use crate::store::events::matches::LockedTask;
use crate::store::runs::requests::LOCK_DUE;
use crate::store::sql::sql;
use crate::store::tasks::conditions::disable;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// A task as far as it takes to tell its owner; all else of it may be what can't be read.
#[derive(sqlx_macros::FromRow)]
struct NamedTaskRow {
    tenant_id: String,
    name: String,
    version: i64,
    trigger_type: String,
    output: Option<Json<Value>>,
}

const NAMED_BY: &str = "
    select tenant_id, name, version, trigger_type, {output} as output from tasks where id = $1";
/// Without what it says of messages where it is no JSON, as a text of SQLite may be.
const NAMED: Split = Split {
    postgres: sql!(NAMED_BY; "{output}" = "spec -> 'output'"),
    sqlite: sql!(NAMED_BY; "{output}" = "case when json_valid(spec) then spec -> 'output' end"),
};

/// The columns of a task that is locked to be fired by events.
const LOCKED: &str = "select task_id, epoch, fire_count from due where task_id = $1";

/// Why a task is disabled whose stored row no release up to this one can have written.
pub(in crate::store) const UNREADABLE: &str = "the stored task can't be read";

/// Stops a task that is active or paused and disables it, one row or none; its `due` row is locked already.
pub(in crate::store) async fn stop_and_disable(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    fault: (FaultyPart, &str),
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    tx.query("update due set next_at = null, claimed_until = null where task_id = $1").bind(task_id).execute().await?;
    disable(tx, task_id, fault, now).await
}

impl Store {
    /// Disables a task for `why`, if it is active or paused, and still as it was seen. Its owner is told once. Answers
    /// whether it did; an edit of the faulty part mends it.
    pub async fn disable_task(
        &self,
        id: Uuid,
        seen: SeenTask,
        part: FaultyPart,
        why: &str,
    ) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let Some(task) = self.named(id).await? else { return Ok(false) };
        let notice = self.notice_of_disabled(id, &task, (part, why)).await?;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let epoch: Option<i64> = tx.query(LOCK_DUE).bind(id).optional_scalar().await?;
        let version: Option<i64> =
            tx.query("select version from tasks where id = $1").bind(id).optional_scalar().await?;
        let is_as_seen = match seen {
            SeenTask::Epoch(seen) => epoch == Some(seen),
            SeenTask::Version(seen) => version == Some(seen),
        };
        // the notice is of this version
        if !is_as_seen || version != Some(task.version) || stop_and_disable(tx, id, (part, why), now).await? == 0 {
            return Ok(false);
        }
        if let Some(notice) = &notice {
            tx.post(&[notice], now).await?;
        }
        if task.trigger_type == "event" {
            index_event_task(tx, id, &task.tenant_id, false, now).await?;
        }
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(true)
    }

    /// Disables those of these event tasks, in the order of their ids, whose `due` row can't be read, and takes them
    /// out of the index of event tasks; answers how many.
    pub(in crate::store) async fn disable_unreadable_event_tasks(&self, tasks: &[Uuid]) -> Result<usize, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let mut disabled = 0;
        for id in tasks {
            tx.query(LOCK_DUE).bind(id).execute().await?;
            let rows = tx.query(LOCKED).bind(id).rows().await?;
            let (_, others) = self.unreadable.partition_readable::<LockedTask, _, Uuid>("tasks", &rows, Ok);
            if others.is_empty() {
                continue;
            }
            disabled += 1;
            stop_and_disable(tx, *id, (FaultyPart::Trigger, UNREADABLE), now).await?;
            let tenant: Option<String> =
                tx.query("select tenant_id from tasks where id = $1").bind(id).optional_scalar().await?;
            if let Some(tenant) = tenant {
                index_event_task(tx, *id, &tenant, false, now).await?;
            }
        }
        write.commit().await?;
        Ok(disabled)
    }

    /// The message to the owner of a task that is disabled now for its trigger; `None` where nobody can be told.
    pub(in crate::store) async fn disabled_notice(
        &self,
        id: Uuid,
        why: &str,
    ) -> Result<Option<NewDelivery>, StoreError> {
        match self.named(id).await? {
            Some(task) => self.notice_of_disabled(id, &task, (FaultyPart::Trigger, why)).await,
            None => Ok(None),
        }
    }

    async fn named(&self, id: Uuid) -> Result<Option<NamedTaskRow>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read.query(NAMED).bind(id).optional().await?)
    }

    async fn notice_of_disabled(
        &self,
        id: Uuid,
        task: &NamedTaskRow,
        (part, why): (FaultyPart, &str),
    ) -> Result<Option<NewDelivery>, StoreError> {
        let recipients = self.recipients_by_tenant(&[&task.tenant_id]).await?;
        let output = task.output.as_ref().and_then(|written| Output::deserialize(&written.0).ok()).unwrap_or_default();
        let about = SubjectRef::notice(NoticeKind::Disabled, id, task.version);
        let recipient = recipients.get(&task.tenant_id);
        let words = notices::disabled(Recipient::language_of(recipient), &task.name, part, why);
        Ok(NewDelivery::notice_of(&task.tenant_id, &output, recipient, about, words))
    }
}

/// By what a task is known to be still the one that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenTask {
    /// Its trigger is.
    Epoch(i64),
    /// All of it is.
    Version(i64),
}
