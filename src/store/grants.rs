//! Standing grants: what a person allowed for good, narrowly. Each use is counted once, whatever is repeated.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::QueryBuilder;
use sqlx::types::Json;
use uuid::Uuid;

use crate::id::Scope;
use crate::store::audit::{Act, SERVICE, write_audit};
use crate::store::connect::settled_at;
use crate::store::listing::{BOUND, FIT, Found, IN_ORDER, PAGE_BYTES, RowPage};
use crate::store::text::text;
use crate::store::{Split, Store, StoreError};

/// "Always allow this": one tool of one task with these arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Id of the grant, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The task for which it holds.
    pub task_id: Uuid,
    /// Name of the tool.
    pub tool: String,
    /// The epoch of the task for which it was given: an edit ends it.
    pub epoch: i64,
    /// Arguments that a call must have with exactly these values; others are free.
    pub arguments: Value,
    /// The hash of the tool's definition.
    pub definition: String,
    /// `None`: as often as it likes.
    pub uses_left: Option<i64>,
    /// The instant at which it was given.
    pub created_at: DateTime<Utc>,
    /// The person or token that gave it.
    pub created_by: String,
    /// The instant from which it does not hold.
    pub expires_at: DateTime<Utc>,
    /// The instant at which it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// The person or token that revoked it.
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

macro_rules! select_grant {
    ($rest:literal) => {
        concat!(
            "select g.id, g.tenant_id, g.task_id, g.tool, g.epoch, g.arguments, g.definition, g.uses_left, g.created_at,
                    g.created_by, g.expires_at, g.revoked_at, g.revoked_by
               from grants g ",
            $rest
        )
    };
}

/// Beginning of a page's statement: a grant is as long as the texts of its tenant.
const MEASURED: &str = "with page as materialized (
    select g.id, octet_length(cast(g.arguments as text)) + octet_length(g.tool) + octet_length(g.created_by)
                 + coalesce(octet_length(g.revoked_by), 0) as bytes
      from grants g where true";
const FITTING: &str = select_grant!("join fit on fit.id = g.id");

macro_rules! candidates {
    () => {
        select_grant!(
            "where g.task_id = $1 and g.tool = $2 and g.revoked_at is null and g.tenant_id = $3 and g.definition = $4
             order by g.id"
        )
    };
}

/// Locks the grants that may cover a call: of two calls that want a last use, one gets it.
const CANDIDATES: Split = Split { postgres: concat!(candidates!(), " for update"), sqlite: candidates!() };

const USED_BEFORE: &str = "select grant_id from grant_uses where run_id = $1 and turn = $2 and call_id = $3";

/// Keeps a grant for a task as it is now, in the transaction that gives it: one that was changed meanwhile is a
/// conflict, one that is gone is `$gone`.
macro_rules! keep_grant {
    ($conn:ident, $scope:expr, $grant:expr, $now:expr, $gone:expr) => {{
        let grant: &$crate::store::Grant = $grant;
        let epoch: Option<i64> = sqlx::query_scalar($crate::store::grants::EPOCH)
            .bind(grant.task_id)
            .bind($crate::store::text::text(&grant.tenant_id))
            .bind($scope.tenant())
            .fetch_optional(&mut *$conn)
            .await?;
        if epoch.ok_or($gone)? != grant.epoch {
            return Err($crate::store::StoreError::Conflict("the task was changed meanwhile".into()));
        }
        sqlx::query($crate::store::grants::INSERT)
            .bind(grant.id)
            .bind($crate::store::text::text(&grant.tenant_id))
            .bind(grant.task_id)
            .bind($crate::store::text::text(&grant.tool))
            .bind(grant.epoch)
            .bind($crate::store::text::document(&grant.arguments)?)
            .bind($crate::store::text::text(&grant.definition))
            .bind(grant.uses_left)
            .bind(grant.created_at)
            .bind($crate::store::text::text(&grant.created_by))
            .bind(grant.expires_at)
            .bind(grant.revoked_at)
            .bind(&grant.revoked_by)
            .execute(&mut *$conn)
            .await?;
        $crate::store::audit::write_audit!($conn, grant.act(&grant.created_by, "grant.created", grant.body()), $now);
    }};
}
pub(super) use keep_grant;

pub(super) const EPOCH: &str =
    "select epoch from tasks where id = $1 and tenant_id = $2 and ($3 is null or tenant_id = $3)";

pub(super) const INSERT: &str = "
    insert into grants (id, tenant_id, task_id, tool, epoch, arguments, definition, uses_left, created_at, created_by,
                        expires_at, revoked_at, revoked_by)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// Ends the grants of a task for a tool, in the transaction of what makes them end.
macro_rules! end_grants {
    ($conn:ident, $tenant:expr, $task_id:expr, $tool:expr, $by:expr, $now:expr) => {{
        let ended: Vec<$crate::store::grants::GrantRow> = sqlx::query_as($crate::store::grants::END)
            .bind($task_id)
            .bind($crate::store::text::text($tool))
            .bind($crate::store::text::text($tenant))
            .bind($now)
            .bind($crate::store::text::text($by))
            .fetch_all(&mut *$conn)
            .await?;
        for row in ended {
            let grant = $crate::store::Grant::from(row);
            $crate::store::audit::write_audit!($conn, grant.act($by, "grant.revoked", grant.body()), $now);
        }
    }};
}
pub(super) use end_grants;

pub(super) const END: &str = "
    update grants set revoked_at = $4, revoked_by = $5
     where task_id = $1 and tool = $2 and tenant_id = $3 and revoked_at is null
    returning id, tenant_id, task_id, tool, epoch, arguments, definition, uses_left, created_at, created_by, expires_at,
              revoked_at, revoked_by";

#[derive(sqlx::FromRow)]
pub(super) struct GrantRow {
    id: Uuid,
    tenant_id: String,
    task_id: Uuid,
    tool: String,
    epoch: i64,
    arguments: Json<Value>,
    definition: String,
    uses_left: Option<i64>,
    created_at: DateTime<Utc>,
    created_by: String,
    expires_at: DateTime<Utc>,
    revoked_at: Option<DateTime<Utc>>,
    revoked_by: Option<String>,
}

impl From<GrantRow> for Grant {
    fn from(row: GrantRow) -> Grant {
        Grant {
            id: row.id,
            tenant_id: row.tenant_id,
            task_id: row.task_id,
            tool: row.tool,
            epoch: row.epoch,
            arguments: row.arguments.0,
            definition: row.definition,
            uses_left: row.uses_left,
            created_at: row.created_at,
            created_by: row.created_by,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
            revoked_by: row.revoked_by,
        }
    }
}

impl Grant {
    /// Whether it holds at this instant for a call of its tool, while its task has this epoch.
    fn covers(&self, arguments: &Value, epoch: i64, now: DateTime<Utc>) -> bool {
        let Some(wanted) = self.arguments.as_object() else { return false };
        self.epoch == epoch
            && self.revoked_at.is_none()
            && now < self.expires_at
            && self.uses_left.is_none_or(|left| left > 0)
            && wanted.iter().all(|(name, value)| arguments.get(name) == Some(value))
    }

    pub(super) fn act<'a>(&'a self, actor: &'a str, action: &'a str, body: Value) -> Act<'a> {
        let via = match actor.split_once(':') {
            Some(("recipient", _)) => "link",
            Some(_) => "api",
            None => SERVICE,
        };
        Act { tenant: &self.tenant_id, actor, via, action, subject_type: "grant", subject_id: self.id, body }
    }

    /// The body of the audit entry.
    pub(super) fn body(&self) -> Value {
        json!({
            "task_id": self.task_id, "tool": self.tool, "arguments": self.arguments, "definition": self.definition,
            "uses": self.uses_left, "expires_at": self.expires_at,
        })
    }
}

impl Store {
    /// Keeps a grant for a task as it is now: one that was changed meanwhile is a conflict.
    pub async fn create_grant(&self, scope: &Scope, grant: &Grant) -> Result<(), StoreError> {
        on_write!(self.db, scope, |conn| {
            keep_grant!(conn, scope, grant, self.clock.now(), StoreError::NotFound);
        });
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
        let rows: Vec<Found<GrantRow>> = on_read!(self.db, scope, |conn| {
            let mut query = QueryBuilder::new(MEASURED);
            if let Some(tenant) = scope.tenant() {
                query.push(" and g.tenant_id = ").push_bind(text(tenant).into_owned());
            }
            if let Some(task_id) = task_id {
                query.push(" and g.task_id = ").push_bind(task_id);
            }
            if let Some(before) = before {
                query.push(" and g.id < ").push_bind(before);
            }
            query.push(" order by g.id desc limit ").push_bind(limit).push(FIT).push(FITTING);
            query.push(BOUND).push_bind(PAGE_BYTES).push(IN_ORDER);
            query.build_query_as().fetch_all(conn).await?
        });
        RowPage::of(rows, |row| Ok(Grant::from(row)))
    }

    /// One grant.
    pub async fn get_grant(&self, scope: &Scope, id: Uuid) -> Result<Grant, StoreError> {
        let row: Option<GrantRow> = on_read!(self.db, scope, |conn| {
            sqlx::query_as(select_grant!("where g.id = $1 and ($2 is null or g.tenant_id = $2)"))
                .bind(id)
                .bind(scope.tenant())
                .fetch_optional(conn)
                .await?
        });
        row.map(Grant::from).ok_or(StoreError::NotFound)
    }

    /// Ends a grant; one that has ended stays as it is.
    pub async fn revoke_grant(&self, scope: &Scope, id: Uuid, by: &str) -> Result<Grant, StoreError> {
        let now = self.clock.now();
        Ok(on_write!(self.db, scope, |conn| {
            let revoked = sqlx::query(
                "update grants set revoked_at = $2, revoked_by = $3
                  where id = $1 and revoked_at is null and ($4 is null or tenant_id = $4)",
            )
            .bind(id)
            .bind(now)
            .bind(text(by))
            .bind(scope.tenant())
            .execute(&mut *conn)
            .await?;
            let row: Option<GrantRow> =
                sqlx::query_as(select_grant!("where g.id = $1 and ($2 is null or g.tenant_id = $2)"))
                    .bind(id)
                    .bind(scope.tenant())
                    .fetch_optional(&mut *conn)
                    .await?;
            let grant = Grant::from(row.ok_or(StoreError::NotFound)?);
            if revoked.rows_affected() == 1 {
                write_audit!(conn, grant.act(by, "grant.revoked", grant.body()), now);
            }
            grant
        }))
    }

    /// The grant that covers a call, its use counted; the same call again is the same use, whatever has become of the
    /// grant. Judged by the database's own time.
    pub async fn use_grant(&self, call: &GrantUse<'_>) -> Result<Option<Uuid>, StoreError> {
        Ok(on_write!(self.db, |conn| {
            let rows = sqlx::query(self.db.text(CANDIDATES))
                .bind(call.task_id)
                .bind(text(call.tool))
                .bind(text(call.tenant))
                .bind(text(call.definition))
                .fetch_all(&mut *conn)
                .await?;
            // asked after the locks: whoever uses a grant for the same call has the same ones
            let before: Option<Uuid> = sqlx::query_scalar(USED_BEFORE)
                .bind(call.run_id)
                .bind(call.turn)
                .bind(text(call.call_id))
                .fetch_optional(&mut *conn)
                .await?;
            if before.is_some() {
                return Ok(before);
            }
            let now = settled_at!(self, conn);
            let epoch: Option<i64> = sqlx::query_scalar("select epoch from tasks where id = $1 and tenant_id = $2")
                .bind(call.task_id)
                .bind(text(call.tenant))
                .fetch_optional(&mut *conn)
                .await?;
            let covering = |grant: &Grant| epoch.is_some_and(|epoch| grant.covers(call.arguments, epoch, now));
            // one that can't be read covers nothing
            let (grants, _) = self.unreadable.sift("grants", &rows, |row: GrantRow| Ok(Grant::from(row)));
            let Some(grant) = grants.into_iter().find(covering) else { return Ok(None) };
            sqlx::query("update grants set uses_left = uses_left - 1 where id = $1 and uses_left is not null")
                .bind(grant.id)
                .execute(&mut *conn)
                .await?;
            sqlx::query("insert into grant_uses (run_id, turn, call_id, grant_id, at) values ($1, $2, $3, $4, $5)")
                .bind(call.run_id)
                .bind(call.turn)
                .bind(text(call.call_id))
                .bind(grant.id)
                .bind(now)
                .execute(&mut *conn)
                .await?;
            let body = json!({
                "task_id": call.task_id, "run_id": call.run_id, "turn": call.turn, "call_id": call.call_id,
                "tool": call.tool,
            });
            write_audit!(conn, grant.act(SERVICE, "grant.used", body), now);
            Some(grant.id)
        }))
    }
}
