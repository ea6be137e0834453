//! Uses of credentials, and the tasks that name them. A use is kept for itself; the credential's own row is written for
//! it once a minute at most, so that a busy one stays cold.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::credential::{CredentialUse, Reference};
use crate::domain::task::{DependentTask, Task, TaskStatus, kept_tool, named_by};
use crate::store::columns::Columns;
use crate::store::db::text::text;
use crate::store::ops::retention::oldest_id;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError};

/// How far `last_used_at` may lag behind.
const LAG: TimeDelta = TimeDelta::minutes(1);
/// How many tasks are named at most.
const TASKS: i64 = 1000;

/// Which uses to list. Newest first, after `before`.
#[derive(Debug, Clone, Default)]
pub struct UseFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this service.
    pub service: Option<String>,
    /// Only of this account.
    pub account: Option<String>,
    /// A word of [`CredentialUse::outcome`].
    pub outcome: Option<&'static str>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

impl<'r, R: Columns> FromRow<'r, R> for CredentialUse {
    fn from_row(row: &'r R) -> Result<CredentialUse, sqlx::Error> {
        Ok(CredentialUse {
            id: row.value("id")?,
            tenant_id: row.value("tenant_id")?,
            service: row.value("service")?,
            account_name: row.value("account")?,
            at: row.value("at")?,
            run_id: row.value("run_id")?,
            task_id: row.value("task_id")?,
            used_by: row.value("used_by")?,
            host: row.value("host")?,
            outcome: row.value("outcome")?,
        })
    }
}

impl<'r, R: Columns> FromRow<'r, R> for DependentTask {
    fn from_row(row: &'r R) -> Result<DependentTask, sqlx::Error> {
        Ok(DependentTask {
            id: row.value("id")?,
            name: row.value("name")?,
            status: row.word("status", TaskStatus::parse)?,
            status_reason: row.value("status_reason")?,
        })
    }
}

/// Writes which credentials a task names, in the place of what was written before.
pub(in crate::store) async fn name_credentials(tx: &mut Tx<'_>, task: &Task) -> Result<(), StoreError> {
    tx.query("delete from task_credentials where task_id = $1").bind(task.id).execute().await?;
    add_credentials(tx, task).await?;
    Ok(())
}

/// Writes which credentials a new task names.
pub(in crate::store) async fn add_credentials(tx: &mut Tx<'_>, task: &Task) -> Result<(), StoreError> {
    for (service, account) in named_by(&task.spec) {
        tx.query("insert into task_credentials (task_id, tenant_id, service, account) values ($1, $2, $3, $4)")
            .bind(task.id)
            .bind(&task.tenant_id)
            .bind(service)
            .bind(account)
            .execute()
            .await?;
    }
    Ok(())
}

impl Store {
    /// Keeps a use, or an attempt that was refused. Only a use moves the credential's `last_used_at`.
    pub async fn note_credential_use(&self, used: &CredentialUse) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(
            "insert into credential_uses (id, tenant_id, service, account, at, run_id, task_id, used_by, host, outcome)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(used.id)
        .bind(text(&used.tenant_id))
        .bind(text(&used.service))
        .bind(text(&used.account_name))
        .bind(used.at)
        .bind(used.run_id)
        .bind(used.task_id)
        .bind(text(&used.used_by))
        .bind(text(&used.host))
        .bind(text(&used.outcome))
        .execute()
        .await?;
        if used.outcome == CredentialUse::USED {
            tx.query(
                "update credentials set last_used_at = $4
                  where tenant_id = $1 and service = $2 and account = $3
                    and (last_used_at is null or last_used_at <= $5)",
            )
            .bind(text(&used.tenant_id))
            .bind(text(&used.service))
            .bind(text(&used.account_name))
            .bind(used.at)
            .bind(used.at - LAG)
            .execute()
            .await?;
        }
        write.commit().await?;
        Ok(())
    }

    /// Says what came of a use.
    pub async fn mark_credential_use(&self, id: Uuid, outcome: &str) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query("update credential_uses set outcome = $2 where id = $1")
            .bind(id)
            .bind(text(outcome))
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }

    /// Uses that match, newest first.
    pub async fn credential_uses(&self, scope: &Scope, filter: &UseFilter) -> Result<Vec<CredentialUse>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(
            "select id, tenant_id, service, account, at, run_id, task_id, used_by, host, outcome
               from credential_uses where true",
        );
        for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
            query.push(" and tenant_id = ").push_bind(text(tenant).into_owned());
        }
        if let Some(service) = &filter.service {
            query.push(" and service = ").push_bind(text(service).into_owned());
        }
        if let Some(account) = &filter.account {
            query.push(" and account = ").push_bind(text(account).into_owned());
        }
        match filter.outcome {
            // in the words of the index `credential_uses_last`
            Some(CredentialUse::USED) => drop(query.push(" and outcome = 'used'")),
            Some(outcome) => drop(query.push(" and outcome = ").push_bind(outcome)),
            None => {}
        }
        if let Some(before) = filter.before {
            query.push(" and id < ").push_bind(before);
        }
        query.push(" order by id desc limit ").push_bind(filter.limit);
        let found = query.finish().all().await?;
        read.end().await?;
        Ok(found)
    }

    /// The credentials that a run has used since an instant, so many at most. One that was sent and refused counts, and
    /// one that was not sent does not.
    pub async fn credentials_used_by(
        &self,
        tenant: &str,
        run_id: Uuid,
        since: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Reference>, StoreError> {
        let used: Vec<(String, String)> = self
            .db
            .read()
            .await?
            .query(
                "select distinct service, account from credential_uses
                  where id >= $1 and tenant_id = $2 and run_id = $3 and outcome in ('used', 'refused') limit $4",
            )
            .bind(oldest_id(since.timestamp_millis()))
            .bind(text(tenant))
            .bind(run_id)
            .bind(limit)
            .all()
            .await?;
        Ok(used.into_iter().map(|(service, account)| Reference { service, account }).collect())
    }

    /// The tasks that name a credential, or one of the tools that use it, by name: a thousand at most.
    pub async fn tasks_of_credential(
        &self,
        scope: &Scope,
        tenant: &str,
        reference: &Reference,
        tools: &[&str],
    ) -> Result<Vec<DependentTask>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(
            "select distinct t.id, t.name, t.status, t.status_reason
               from task_credentials c join tasks t on t.id = c.task_id where c.tenant_id = ",
        );
        query.push_bind(text(tenant).into_owned());
        if let Some(own) = scope.tenant() {
            query.push(" and c.tenant_id = ").push_bind(own.to_owned());
        }
        query.push(" and ((c.service = ").push_bind(text(&reference.service).into_owned());
        query.push(" and c.account = ").push_bind(text(&reference.account).into_owned()).push(")");
        for tool in tools {
            query.push(" or c.service = ").push_bind(kept_tool(tool));
        }
        query.push(") order by t.name, t.id limit ").push_bind(TASKS);
        let found = query.finish().all().await?;
        read.end().await?;
        Ok(found)
    }

    /// Forgets up to `limit` uses from before an instant; answers how many.
    pub async fn forget_credential_uses(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from credential_uses where id in (
                select id from credential_uses where id < $1 order by id limit $2)",
            oldest_id(before.timestamp_millis()),
            limit,
        )
        .await
    }
}
