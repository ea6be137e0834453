//! The record of who did what, chained by hashes so that a later change is found.
//!
//! An entry is written in the transaction of what it tells of, without a place in the chain: writers do not wait for
//! each other. The sealer gives places, alone, under the lock of the chain's end. Entries are never changed or removed.
//!
//! Most stand for something that is bounded itself. Those that a tenant adds by requests as often as it likes count as
//! stored bytes of the tenant (migrations 0056 and 0062), and a tenant that has stored all that it may is refused such
//! a request.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{Scope, new_id};
use crate::store::db::listing::{PAGE_BYTES, PagedRow, RowPage, fitting, push_page};
use crate::store::db::text::{document, text};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// One act, as it was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema, sqlx_macros::FromRow)]
#[schema(as = AuditView)]
pub struct AuditEntry {
    /// Id of the entry, a UUIDv7.
    pub id: Uuid,
    /// The tenant that it concerns; `*` for all.
    pub tenant_id: String,
    /// The instant of the act.
    pub at: DateTime<Utc>,
    /// The actor: `recipient:<id>`, `token:<id>` or `service`.
    #[schema(example = "recipient:user_123")]
    pub actor: String,
    /// By which way: `link`, `api` or `service`.
    #[schema(example = "link")]
    pub via: String,
    /// The act, such as `approval.decided`.
    #[schema(example = "approval.approved")]
    pub action: String,
    /// Type of the thing that was changed.
    #[schema(example = "approval")]
    pub subject_type: String,
    /// Id of the thing that was changed.
    pub subject_id: Uuid,
    /// Hashes of the proposal that was shown and of the call that was decided.
    #[sqlx(json)]
    pub body: Value,
    /// Its place in the chain; `null` until it is sealed, within seconds.
    #[schema(required)]
    pub position: Option<i64>,
    /// Of the entry and all before it.
    #[schema(required)]
    pub hash: Option<String>,
}

/// Which entries to list. Newest first, after the entry `before`.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this act.
    pub action: Option<String>,
    /// Only about this thing.
    pub subject_id: Option<Uuid>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// An act that is to be recorded.
pub(in crate::store) struct AuditAction<'a> {
    pub tenant: &'a str,
    pub actor: &'a str,
    pub via: &'a str,
    pub action: &'a str,
    pub subject_type: &'a str,
    pub subject_id: Uuid,
    pub body: Value,
}

/// Bytes of an entry besides what it repeats of its request: whoever adds one as often as they like is admitted with
/// these.
pub(in crate::store) const ENTRY_BYTES: usize = 512;

/// Records an act, in the transaction of what it tells of.
pub(in crate::store) async fn write_audit(
    tx: &mut Tx<'_>,
    act: AuditAction<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    tx.query(INSERT)
        .bind(new_id(now))
        .bind(text(act.tenant))
        .bind(now)
        .bind(text(act.actor))
        .bind(act.via)
        .bind(act.action)
        .bind(act.subject_type)
        .bind(act.subject_id)
        .bind(document(&act.body)?)
        .execute()
        .await?;
    Ok(())
}

pub(in crate::store) const INSERT: &str = "
    insert into audit (id, tenant_id, at, actor, via, action, subject_type, subject_id, body)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

const LOCK_END: Split = Split {
    postgres: "select position, hash from audit_chain where id = 1 for update",
    sqlite: "select position, hash from audit_chain where id = 1",
};

const SELECT_ENTRY: &str = "
    select audit.id, tenant_id, at, actor, via, action, subject_type, subject_id, body, position, hash
      from audit ";

/// Beginning of a page's statement: the rows that match are measured.
const MEASURED: &str = "with page as materialized (
    select id, octet_length(cast(body as text)) as bytes from audit where true";
const FITTING: Split = fitting!(SELECT_ENTRY, "audit.id");
const UNSEALED: &str = sql!(SELECT_ENTRY, "where position is null and id > $2 order by id limit $1");

impl Store {
    /// A page of audit entries that match, newest first.
    pub async fn audit_page(&self, scope: &Scope, filter: &AuditFilter) -> Result<RowPage<AuditEntry>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
            query.push_key("tenant_id", text(tenant).into_owned());
            order = "tenant_id desc, ";
        }
        if let Some(action) = &filter.action {
            query.push(" and action = ").push_bind(text(action).into_owned());
        }
        if let Some(subject) = filter.subject_id {
            query.push_key("subject_id", subject);
            order = "subject_id desc, ";
        }
        if let Some(before) = filter.before {
            let tenant = [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten().next_back();
            match filter.subject_id.map(|subject| ("subject_id", subject)) {
                Some(key) => query.push_before(Some(key), "id", before),
                None => {
                    let key = tenant.map(|tenant| ("tenant_id", text(tenant).into_owned()));
                    query.push_before(key, "id", before)
                }
            };
        }
        push_page(&mut query, (order, "id"), filter.limit, (FITTING, PAGE_BYTES));
        let rows: Vec<PagedRow<AuditEntry>> = query.finish().all().await?;
        read.end().await?;
        RowPage::of(rows, Ok)
    }

    /// The first entries without a place that can be read: behind a page of others the search goes on.
    async fn unsealed(&self, tx: &mut Tx<'_>, limit: i64) -> Result<Vec<AuditEntry>, StoreError> {
        let mut after = Uuid::nil();
        loop {
            let rows = tx.query(UNSEALED).bind(limit).bind(after).rows().await?;
            let (readable, others) = self.unreadable.partition_readable("audit", &rows, Ok);
            match others.last() {
                Some(last) if readable.is_empty() && rows.len() as i64 == limit => after = *last,
                _ => return Ok(readable),
            }
        }
    }

    /// Gives entries that have none a place in the chain, in the order of their ids; `hash` makes each one's from the
    /// hash before it (empty for the first) and the entry, whose `position` is set by then. Answers how many.
    pub async fn seal_audit(
        &self,
        hash: &(dyn Fn(&str, &AuditEntry) -> String + Send + Sync),
        limit: i64,
    ) -> Result<usize, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let (mut position, mut last): (i64, String) = tx.query(LOCK_END).one().await?;
        let rows = self.unsealed(tx, limit).await?;
        let sealed = rows.len();
        for row in rows {
            position += 1;
            let entry = AuditEntry { position: Some(position), ..row };
            last = hash(&last, &entry);
            tx.query("update audit set position = $2, hash = $3 where id = $1 and position is null")
                .bind(entry.id)
                .bind(position)
                .bind(&last)
                .execute()
                .await?;
        }
        if sealed > 0 {
            tx.query("update audit_chain set position = $1, hash = $2 where id = 1")
                .bind(position)
                .bind(&last)
                .execute()
                .await?;
        }
        write.commit().await?;
        Ok(sealed)
    }

    /// Entries of the chain behind a position, in its order.
    pub async fn audit_chain(&self, after: i64, limit: i64) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(self
            .db
            .read()
            .await?
            .query(sql!(SELECT_ENTRY, "where position > $1 order by position limit $2"))
            .bind(after)
            .bind(limit)
            .all()
            .await?)
    }

    /// The end of the chain, position and hash, and how many entries are not sealed yet.
    pub async fn audit_end(&self) -> Result<(i64, String, i64), StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query(
                "select c.position, c.hash, (select count(*) from audit where position is null)
                   from audit_chain c where c.id = 1",
            )
            .one()
            .await?)
    }
}
