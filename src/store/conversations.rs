//! Conversations: rows of `tasks` of a kind of their own, and their runs. `active_since` is when one was used last.

mod posting;
pub(super) mod request_echo;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::conversation::{Conversation, EarlierRun};
use crate::domain::run::{Run, RunState};
use crate::domain::task::Task;
use crate::store::approvals::close_questions;
use crate::store::db::listing::{PAGE_BYTES, RowPage, fitting, push_page};
use crate::store::db::text::text;
use crate::store::runs::SELECT_RUN;
use crate::store::runs::requests::LOCK_DUE;
use crate::store::runs::slots::log_ends_outside_execution;
use crate::store::sql::{CHOSEN, sql};
use crate::store::{Split, Store, StoreError, Topic};

/// Runs, or files, that one transaction of a deletion takes.
const AT_ONCE: i64 = 200;
/// Runs that are looked through for those with an answer.
const LOOKED_THROUGH: i64 = 200;
/// One that is due to be deleted and has a run under way is looked at again after this long.
const LOOK_AGAIN: TimeDelta = TimeDelta::days(1);
/// Why runs of a conversation that was deleted ended.
const REASON_DELETED: &str = "conversation_deleted";

const SELECT: &str = "
    select t.id, t.tenant_id, t.name as title, t.created_at,
           coalesce((select r.created_at from runs r where r.task_id {of} order by r.task_id desc, r.id desc limit 1),
                    t.created_at) as last_message_at
      from tasks t where t.trigger_type = 'chat'";
/// As with [`StatementBuilder::push_key`](crate::store::tx::StatementBuilder).
const SELECT_BOTH: Split =
    Split { postgres: sql!(SELECT; "{of}" = "= any (array[t.id])"), sqlite: sql!(SELECT; "{of}" = "= t.id") };

const ONE: Split = Split {
    postgres: sql!(SELECT_BOTH.postgres, " and t.id = $1 and ($2 is null or t.tenant_id = $2)"),
    sqlite: sql!(SELECT_BOTH.sqlite, " and t.id = $1 and ($2 is null or t.tenant_id = $2)"),
};

/// Of messages that two instances record at once, the one with the later id may be answered first. The runs are found
/// by their task alone: by a bound of ids, or by their tenant, Postgres would go through everybody's, or all of the
/// tenant's, if it had made its plan when there were few.
const EARLIER: &str = "
    select id, trigger_type, scheduled_for, input, output from (
        select * from (select r.id, r.tenant_id, r.trigger_type, r.scheduled_for, r.input, r.output, r.state
                         from runs r where {before}
                        order by r.task_id desc, r.id desc limit $4) recorded_before
        union all
        select * from (select r.id, r.tenant_id, r.trigger_type, r.scheduled_for, r.input, r.output, r.state
                         from runs r where {behind}
                        order by r.task_id, r.id limit $4) recorded_behind) answered
     where tenant_id = $2 and state = 'succeeded' and output is not null
     order by id desc limit $5";
const EARLIER_BOTH: Split = Split {
    postgres: sql!(
        EARLIER;
        "{before}" = "r.task_id = any (array[$1]) and (r.task_id, r.id) < ($1, $3)";
        "{behind}" = "r.task_id = any (array[$1]) and (r.task_id, r.id) > ($1, $3)"
    ),
    sqlite: sql!(EARLIER; "{before}" = "r.task_id = $1 and r.id < $3"; "{behind}" = "r.task_id = $1 and r.id > $3"),
};

/// Beginning of a page's statement: the runs that match are measured.
const MEASURED: &str = "with page as materialized (
    select r.id, coalesce(octet_length(cast(r.input as text)), 0) + coalesce(octet_length(r.output), 0)
                 + coalesce(octet_length(cast(r.error as text)), 0) as bytes
      from runs r where true";
const FITTING: Split = fitting!(SELECT_RUN, "r.id");

const LOCK_RUNS: Split = Split {
    postgres: "select run_id from queue where task_id = $1 order by run_id for update",
    sqlite: "select run_id from queue where task_id = $1 order by run_id",
};

/// Which conversations to list. Newest first, after the one `before`.
#[derive(Debug, Clone, Default)]
pub struct ConversationFilter {
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

#[derive(sqlx_macros::FromRow)]
struct ConversationRow {
    id: Uuid,
    tenant_id: String,
    title: String,
    created_at: DateTime<Utc>,
    last_message_at: DateTime<Utc>,
}

impl From<ConversationRow> for Conversation {
    fn from(row: ConversationRow) -> Conversation {
        let ConversationRow { id, tenant_id, title, created_at, last_message_at } = row;
        Conversation { id, tenant_id, title, created_at, last_message_at }
    }
}

#[derive(sqlx_macros::FromRow)]
struct EarlierRow {
    id: Uuid,
    trigger_type: String,
    scheduled_for: DateTime<Utc>,
    #[sqlx(json(nullable))]
    input: Option<Value>,
    output: String,
}

impl Store {
    /// Stores a new conversation; one that is there already stays as it is.
    pub async fn begin_conversation(&self, conversation: &Task) -> Result<(), StoreError> {
        match self.create_task(conversation, None, None).await {
            Ok(_) | Err(StoreError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The other runs of a task that have an answer by now, newest first.
    pub async fn earlier_runs(
        &self,
        tenant: &str,
        task_id: Uuid,
        run_id: Uuid,
        limit: usize,
    ) -> Result<Vec<EarlierRun>, StoreError> {
        let tenant = Tenant::stored(tenant).map_err(StoreError::Corrupt)?;
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let rows: Vec<EarlierRow> = read
            .query(EARLIER_BOTH)
            .bind(task_id)
            .bind(tenant.as_str())
            .bind(run_id)
            .bind(LOOKED_THROUGH)
            .bind(limit as i64)
            .all()
            .await?;
        read.end().await?;
        let run = |EarlierRow { id, trigger_type, scheduled_for, input, output }| EarlierRun {
            id,
            trigger_type,
            scheduled_for,
            input,
            output,
        };
        Ok(rows.into_iter().map(run).collect())
    }

    /// One conversation.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn get_conversation(&self, scope: &Scope, id: Uuid) -> Result<Conversation, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let row: Option<ConversationRow> = read.query(ONE).bind(id).bind(scope.tenant()).optional().await?;
        read.end().await?;
        row.map(Conversation::from).ok_or(StoreError::NotFound)
    }

    /// Conversations, newest first.
    pub async fn list_conversations(
        &self,
        scope: &Scope,
        filter: &ConversationFilter,
    ) -> Result<Vec<Conversation>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(SELECT_BOTH), "");
        if let Some(tenant) = scope.tenant() {
            query.push_key("t.tenant_id", text(tenant).into_owned());
            order = "t.tenant_id desc, ";
        }
        if let Some(before) = filter.before {
            let key = scope.tenant().map(|tenant| ("t.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "t.id", before);
        }
        query.push(" order by ").push(order).push("t.id desc limit ").push_bind(filter.limit);
        let rows: Vec<ConversationRow> = query.finish().all().await?;
        read.end().await?;
        Ok(rows.into_iter().map(Conversation::from).collect())
    }

    /// A page of the runs of a conversation, newest first: as many as have so many bytes together.
    pub async fn conversation_messages(
        &self,
        scope: &Scope,
        conversation: Uuid,
        filter: &ConversationFilter,
    ) -> Result<RowPage<Run>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(MEASURED);
        query.push_key("r.task_id", conversation);
        if let Some(tenant) = scope.tenant() {
            query.push(" and r.tenant_id = ").push_bind(text(tenant).into_owned());
        }
        if let Some(before) = filter.before {
            query.push_before(Some(("r.task_id", conversation)), "r.id", before);
        }
        push_page(&mut query, ("r.task_id desc, ", "r.id"), filter.limit, (FITTING, PAGE_BYTES));
        let rows = query.finish().rows().await?;
        read.end().await?;
        Ok(RowPage::from_rows(&self.unreadable, "runs", &rows, filter.limit, Ok))
    }

    /// Deletes a conversation with its runs, their transcripts, files and messages. A run that is under way loses its
    /// lease. Broken off in the middle, it is done again by another call.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn delete_conversation(&self, scope: &Scope, id: Uuid) -> Result<(), StoreError> {
        self.get_conversation(scope, id).await?;
        loop {
            self.end_conversation(id).await?;
            while self.forget_by(FORGET_FILES, id, AT_ONCE).await? > 0 {}
            while self.forget_runs_of(id, AT_ONCE).await? > 0 {}
            // a message may have come meanwhile
            if self.remove_conversation(id).await? {
                self.notify(Topic::Cancels);
                return Ok(());
            }
        }
    }

    /// Ends every run that is not over; no message is taken from then on.
    async fn end_conversation(&self, id: Uuid) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(LOCK_DUE).bind(id).execute().await?;
        tx.query("update tasks set status = 'disabled' where id = $1").bind(id).execute().await?;
        tx.query(LOCK_RUNS).bind(id).execute().await?;
        let mut open: Vec<Uuid> = Vec::new();
        for statement in [
            "delete from parked where task_id = $1 and reason <> 'overlap' returning run_id",
            "delete from queue where task_id = $1 returning run_id",
            "delete from slots where task_id = $1 returning run_id",
            "delete from parked where task_id = $1 returning run_id",
        ] {
            open.extend(tx.query(statement).bind(id).scalars::<Uuid>().await?);
        }
        open.sort_unstable();
        open.dedup();
        for run_id in open.iter().copied() {
            tx.query("update runs set state = 'cancelled', reason = $2, finished_at = $3 where id = $1")
                .bind(run_id)
                .bind(REASON_DELETED)
                .bind(now)
                .execute()
                .await?;
            close_questions(tx, run_id, now).await?;
        }
        write.commit().await?;
        log_ends_outside_execution(open.len(), RunState::Cancelled, Some(id), Some(REASON_DELETED));
        Ok(())
    }

    /// Removes a conversation that has no run; whether it had none.
    async fn remove_conversation(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(LOCK_DUE).bind(id).execute().await?;
        let left: Option<Uuid> =
            tx.query("select id from runs where task_id = $1 limit 1").bind(id).optional_scalar().await?;
        if left.is_some() {
            return Ok(false);
        }
        for statement in [
            "delete from due where task_id = $1",
            "delete from task_alerts where task_id = $1",
            "delete from approval_overrides where task_id = $1",
            FORGET_GRANTS,
            "delete from tasks where id = $1 and trigger_type = 'chat'",
        ] {
            tx.query(statement).bind(id).execute().await?;
        }
        write.commit().await?;
        Ok(true)
    }

    /// Deletes up to `limit` conversations that were used last before `before`, unless a run of them is under way or
    /// waits: those are looked at again a day later. Answers how many were looked at.
    pub async fn expire_conversations(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        let due: Vec<(Uuid, bool)> = self
            .db
            .read()
            .await?
            .query(
                "select id, exists (select 1 from queue q where q.task_id = oldest.id)
                            or exists (select 1 from parked p where p.task_id = oldest.id)
                   from (select id, active_since from tasks where trigger_type = 'chat' and active_since < $1
                          order by active_since, id limit $2) oldest
                  order by active_since, id",
            )
            .bind(before)
            .bind(limit)
            .all()
            .await?;
        for (id, is_open) in &due {
            match *is_open || !self.is_unused(*id, before).await? {
                true => self.keep_conversation(*id, before).await?,
                false => match self.delete_conversation(&Scope::Every, *id).await {
                    Ok(()) | Err(StoreError::NotFound) => {}
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(due.len() as u64)
    }

    /// Whether it is unused even now. The end of a run that met a lock is not noted as a use: the newest run tells of
    /// it.
    async fn is_unused(&self, id: Uuid, before: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut read = self.db.read().await?;
        let found: Option<Uuid> = read.query(UNUSED).bind(id).bind(before).optional_scalar().await?;
        read.end().await?;
        Ok(found.is_some())
    }

    async fn keep_conversation(&self, id: Uuid, before: DateTime<Utc>) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query("update tasks set active_since = $3 where id = $1 and active_since < $2")
            .bind(id)
            .bind(before)
            .bind(before + LOOK_AGAIN)
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }
}

/// A conversation that was used last before an instant.
const UNUSED: &str = "
    select id from tasks
     where id = $1 and active_since < $2
       and not exists (select 1 from (select finished_at from runs where task_id = $1 order by id desc limit 1) newest
                        where newest.finished_at >= $2)";

/// Files of a conversation's runs. They are looked for among those of its tenant, which are few: most go after a day.
const FORGET_FILES: Split = Split {
    postgres: sql!(sql!("delete from data_files", CHOSEN.postgres); "{ids}" = FILES),
    sqlite: sql!(sql!("delete from data_files", CHOSEN.sqlite); "{ids}" = FILES),
};
/// Takes away the grants that were given in it, with their arguments. They are looked for among the grants of its
/// tenant.
const FORGET_GRANTS: &str = "
    delete from grants
     where tenant_id = (select t.tenant_id from tasks t where t.id = $1 and t.trigger_type = 'chat') and task_id = $1";
const FILES: &str = "
    select f.id from data_files f
     where f.tenant_id = (select t.tenant_id from tasks t where t.id = $1)
       and f.run_id in (select r.id from runs r where r.task_id = $1) limit $2";
