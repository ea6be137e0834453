//! Standing grants: what a person allowed for good, narrowly. Each use is counted once, whatever is repeated.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::actor::{Actor, SERVICE};
use crate::store::db::listing::{PAGE_BYTES, PagedRow, RowPage, fitting, push_page};
use crate::store::db::text::{document, text};
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// "Always allow this": one tool of one task, with these arguments.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema, sqlx_macros::FromRow)]
#[schema(as = GrantView)]
pub struct Grant {
    /// Id of the grant.
    pub id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The task for which it holds.
    pub task_id: Uuid,
    /// Name of the tool.
    #[schema(example = "send_note")]
    pub tool: String,
    /// The epoch of the task for which it was given: an edit ends it.
    #[serde(skip)]
    pub epoch: i64,
    /// Arguments that a call must have with exactly these values; its others are free.
    #[sqlx(rename = "arguments", json)]
    pub args: Value,
    /// The hash of the tool's definition.
    #[serde(skip)]
    pub definition: String,
    /// How often it may still be used; `null`: as often as it likes.
    #[schema(required)]
    pub uses_left: Option<i64>,
    /// The instant at which it was given.
    pub created_at: DateTime<Utc>,
    /// The person or token that gave it.
    #[schema(example = "recipient:user_123")]
    pub created_by: String,
    /// The instant from which it does not hold.
    pub expires_at: DateTime<Utc>,
    /// The instant at which it was revoked.
    #[schema(required)]
    pub revoked_at: Option<DateTime<Utc>>,
    /// The person or token that revoked it.
    #[schema(required)]
    pub revoked_by: Option<String>,
}

/// A call that may be covered by a grant.
#[derive(Debug, Clone, Copy)]
pub struct GrantUse<'a> {
    /// The tenant that owns the run.
    pub tenant: &'a str,
    /// The run's task.
    pub task_id: Uuid,
    /// The run that makes the call.
    pub run_id: Uuid,
    /// The model's turn within the run.
    pub turn: i64,
    /// The model's id of the call.
    pub call_id: &'a str,
    /// Name of the tool.
    pub tool: &'a str,
    /// Hash of the tool's definition.
    pub definition: &'a str,
    /// Arguments of the call.
    pub arguments: &'a Value,
}

const SELECT_GRANT: &str = "
    select g.id, g.tenant_id, g.task_id, g.tool, g.epoch, g.arguments, g.definition, g.uses_left, g.created_at,
           g.created_by, g.expires_at, g.revoked_at, g.revoked_by
      from grants g ";

/// Beginning of a page's statement: a grant is as long as the texts of its tenant.
const MEASURED: &str = "with page as materialized (
    select g.id, octet_length(cast(g.arguments as text)) + octet_length(g.tool) + octet_length(g.created_by)
                 + coalesce(octet_length(g.revoked_by), 0) as bytes
      from grants g where true";
const FITTING: Split = fitting!(SELECT_GRANT, "g.id");

/// Locks the grants that may cover a call: of two calls that want a last use, one gets it.
const CANDIDATES: Split = Split { postgres: sql!(FITTING_GRANTS, " for update"), sqlite: FITTING_GRANTS };
const FITTING_GRANTS: &str = sql!(
    SELECT_GRANT,
    "where g.task_id = $1 and g.tool = $2 and g.revoked_at is null and g.tenant_id = $3 and g.definition = $4
     order by g.id"
);

/// Whether any grant may cover a call, or has covered it before. Nearly no call has one: then nothing is locked, and
/// nobody who writes is waited for.
const MAY_COVER: &str = "
    select exists (select 1 from grants where task_id = $1 and tool = $2 and revoked_at is null)
           or exists (select 1 from grant_uses where run_id = $3 and turn = $4 and call_id = $5)";

const USED_BEFORE: &str = "select grant_id from grant_uses where run_id = $1 and turn = $2 and call_id = $3";

/// Keeps a grant for a task as it is now, in the transaction that gives it: one that was changed meanwhile is a
/// conflict, one that is gone is `$gone`.
pub(in crate::store) async fn keep_grant(
    tx: &mut Tx<'_>,
    scope: &Scope,
    grant: &Grant,
    now: DateTime<Utc>,
    gone: StoreError,
) -> Result<(), StoreError> {
    let epoch: Option<i64> =
        tx.query(EPOCH).bind(grant.task_id).bind(text(&grant.tenant_id)).bind(scope.tenant()).optional_scalar().await?;
    if epoch.ok_or(gone)? != grant.epoch {
        return Err(StoreError::Conflict("the task was changed meanwhile".into()));
    }
    tx.query(INSERT)
        .bind(grant.id)
        .bind(text(&grant.tenant_id))
        .bind(grant.task_id)
        .bind(text(&grant.tool))
        .bind(grant.epoch)
        .bind(document(&grant.args)?)
        .bind(text(&grant.definition))
        .bind(grant.uses_left)
        .bind(grant.created_at)
        .bind(text(&grant.created_by))
        .bind(grant.expires_at)
        .bind(grant.revoked_at)
        .bind(&grant.revoked_by)
        .execute()
        .await?;
    write_audit(tx, grant.act(&grant.created_by, "grant.created", grant.body()), now).await?;
    Ok(())
}

pub(in crate::store) const EPOCH: &str =
    "select epoch from tasks where id = $1 and tenant_id = $2 and ($3 is null or tenant_id = $3)";

pub(in crate::store) const INSERT: &str = "
    insert into grants (id, tenant_id, task_id, tool, epoch, arguments, definition, uses_left, created_at, created_by,
                        expires_at, revoked_at, revoked_by)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// Ends the grants of a task for a tool, in the transaction of what makes them end.
pub(in crate::store) async fn end_grants(
    tx: &mut Tx<'_>,
    tenant: &str,
    task_id: Uuid,
    tool: &str,
    by: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let ended: Vec<Grant> =
        tx.query(END).bind(task_id).bind(text(tool)).bind(text(tenant)).bind(now).bind(text(by)).all().await?;
    for grant in ended {
        write_audit(tx, grant.act(by, "grant.revoked", grant.body()), now).await?;
    }
    Ok(())
}

pub(in crate::store) const END: &str = "
    update grants set revoked_at = $4, revoked_by = $5
     where task_id = $1 and tool = $2 and tenant_id = $3 and revoked_at is null
    returning id, tenant_id, task_id, tool, epoch, arguments, definition, uses_left, created_at, created_by, expires_at,
              revoked_at, revoked_by";

impl Grant {
    /// Whether it holds at this instant for a call of its tool, while its task has this epoch.
    fn covers(&self, arguments: &Value, epoch: i64, now: DateTime<Utc>) -> bool {
        let Some(wanted) = self.args.as_object() else { return false };
        self.epoch == epoch
            && self.revoked_at.is_none()
            && now < self.expires_at
            && self.uses_left.is_none_or(|left| left > 0)
            && wanted.iter().all(|(name, value)| arguments.get(name) == Some(value))
    }

    pub(in crate::store) fn act<'a>(&'a self, actor: &'a str, action: &'a str, body: Value) -> AuditAction<'a> {
        let via = Actor::parse(actor).via().as_str();
        AuditAction { tenant: &self.tenant_id, actor, via, action, subject_type: "grant", subject_id: self.id, body }
    }

    /// The body of the audit entry.
    pub(in crate::store) fn body(&self) -> Value {
        json!({
            "task_id": self.task_id, "tool": self.tool, "args": self.args, "definition": self.definition,
            "uses": self.uses_left, "expires_at": self.expires_at,
        })
    }
}

impl Store {
    /// Keeps a grant for a task as it is now: one that was changed meanwhile is a conflict.
    pub async fn create_grant(&self, scope: &Scope, grant: &Grant) -> Result<(), StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        keep_grant(tx, scope, grant, self.clock.now(), StoreError::NotFound).await?;
        write.commit().await?;
        Ok(())
    }

    /// A page of grants, newest first, after `before`.
    pub async fn list_grants(
        &self,
        scope: &Scope,
        task_id: Option<Uuid>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<RowPage<Grant>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        if let Some(tenant) = scope.tenant() {
            query.push_key("g.tenant_id", text(tenant).into_owned());
            order = "g.tenant_id desc, ";
        }
        if let Some(task_id) = task_id {
            query.push(" and g.task_id = ").push_bind(task_id);
        }
        if let Some(before) = before {
            let key = scope.tenant().map(|tenant| ("g.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "g.id", before);
        }
        push_page(&mut query, (order, "g.id"), limit, (FITTING, PAGE_BYTES));
        let rows: Vec<PagedRow<Grant>> = query.finish().all().await?;
        read.end().await?;
        RowPage::of(rows, Ok)
    }

    /// Ends a grant; one that has ended stays as it is.
    pub async fn revoke_grant(&self, scope: &Scope, id: Uuid, by: &str) -> Result<Grant, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let revoked = tx
            .query(
                "update grants set revoked_at = $2, revoked_by = $3
                  where id = $1 and revoked_at is null and ($4 is null or tenant_id = $4)",
            )
            .bind(id)
            .bind(now)
            .bind(text(by))
            .bind(scope.tenant())
            .execute()
            .await?;
        let row: Option<Grant> = tx
            .query(sql!(SELECT_GRANT, "where g.id = $1 and ($2 is null or g.tenant_id = $2)"))
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        let grant = row.ok_or(StoreError::NotFound)?;
        if revoked == 1 {
            write_audit(tx, grant.act(by, "grant.revoked", grant.body()), now).await?;
        }
        write.commit().await?;
        Ok(grant)
    }

    /// The grant that covers a call, its use counted; the same call again is the same use, whatever has become of the
    /// grant. Judged by the database's own time.
    pub async fn use_grant(&self, call: &GrantUse<'_>) -> Result<Option<Uuid>, StoreError> {
        if !self.may_cover(call).await? {
            return Ok(None);
        }
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let rows = tx
            .query(CANDIDATES)
            .bind(call.task_id)
            .bind(text(call.tool))
            .bind(text(call.tenant))
            .bind(text(call.definition))
            .rows()
            .await?;
        // asked after the locks: whoever uses a grant for the same call has the same ones
        let before: Option<Uuid> =
            tx.query(USED_BEFORE).bind(call.run_id).bind(call.turn).bind(text(call.call_id)).optional_scalar().await?;
        if before.is_some() {
            return Ok(before);
        }
        let now = self.settled_at(tx).await?;
        let epoch: Option<i64> = tx
            .query("select epoch from tasks where id = $1 and tenant_id = $2")
            .bind(call.task_id)
            .bind(text(call.tenant))
            .optional_scalar()
            .await?;
        let covering = |grant: &Grant| epoch.is_some_and(|epoch| grant.covers(call.arguments, epoch, now));
        // one that can't be read covers nothing
        let (grants, _) = self.unreadable.partition_readable::<_, _, Uuid>("grants", &rows, Ok::<Grant, _>);
        let Some(grant) = grants.into_iter().find(covering) else { return Ok(None) };
        tx.query("update grants set uses_left = uses_left - 1 where id = $1 and uses_left is not null")
            .bind(grant.id)
            .execute()
            .await?;
        tx.query("insert into grant_uses (run_id, turn, call_id, grant_id, at) values ($1, $2, $3, $4, $5)")
            .bind(call.run_id)
            .bind(call.turn)
            .bind(text(call.call_id))
            .bind(grant.id)
            .bind(now)
            .execute()
            .await?;
        let body = json!({
            "task_id": call.task_id, "run_id": call.run_id, "turn": call.turn, "call_id": call.call_id,
            "tool": call.tool,
        });
        write_audit(tx, grant.act(SERVICE, "grant.used", body), now).await?;
        write.commit().await?;
        Ok(Some(grant.id))
    }

    async fn may_cover(&self, call: &GrantUse<'_>) -> Result<bool, StoreError> {
        let mut read = self.db.read_quick().await?;
        // planned each time: a plan that was made while there were no grants would read all of them
        let may = read.query(MAY_COVER).bind(call.task_id).bind(text(call.tool)).bind(call.run_id).bind(call.turn);
        Ok(may.bind(text(call.call_id)).persistent(false).scalar().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn grants_and_uses_of_a_call_are_found_by_their_keys() {
        let plan = sqlite_plan(MAY_COVER).await;
        for table in ["grants", "grant_uses"] {
            let search = format!("SEARCH {table} USING ");
            assert!(plan.iter().any(|step| step.starts_with(&search)), "{table}: {plan:?}");
        }
        assert!(!plan.iter().any(|step| step.starts_with("SCAN grant")), "{plan:?}");
    }
}
