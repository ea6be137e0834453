//! Overrides of the approval matrix: set, listed, taken back, and asked for before each call of a tool.
//!
//! Nearly no tenant has any, so an instance remembers for a moment who has none, and reads those of the others for the
//! calls of each turn, once: one that is taken back covers no call of a turn from its commit on. The first of a tenant
//! may take so long to reach an instance.
//!
//! One that lets the calls of a task through ends with an edit of the task, as a grant does: whoever edits it, an agent
//! too, would else say what runs without anybody being asked.

use serde_json::json;
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::json::length::bytes_of;
use crate::domain::actor::Actor;
use crate::domain::approval::stored_override::MOST_OVERRIDES;
use crate::domain::approval::{ApprovalLevel, ApprovalOverride};
use crate::store::approvals::grants::EPOCH;
use crate::store::columns::Columns;
use crate::store::db::listing::{PAGE_BYTES, RowPage, fitting, push_page};
use crate::store::db::text::{optional, text};
use crate::store::ops::audit::{AuditAction, ENTRY_BYTES, write_audit};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// The overrides to list. Newest first, after the override `before`.
#[derive(Debug, Clone, Default)]
pub struct OverrideFilter {
    /// Only of this task.
    pub task_id: Option<Uuid>,
    /// Only of this agent.
    pub agent: Option<String>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

const SELECT: &str = "
    select o.id, o.tenant_id, o.task_id, o.agent, o.tool, o.gate, o.condition, o.created_at, o.created_by, o.expires_at
      from approval_overrides o ";
/// Beginning of a page's statement: an override is as long as its condition.
const MEASURED: &str = "with page as materialized (
    select o.id, octet_length(o.tool) + coalesce(octet_length(o.condition), 0) + coalesce(octet_length(o.agent), 0)
                 + octet_length(o.created_by) as bytes
      from approval_overrides o where ";
/// It holds at an instant, which follows.
const HOLDS: &str = "
    (o.task_id is null or o.gate = 'confirm' or o.epoch = (select t.epoch from tasks t where t.id = o.task_id))
    and o.expires_at > ";
const FITTING: Split = fitting!(SELECT, "o.id");
const HAS_ANY: &str = "select exists (select 1 from approval_overrides where tenant_id = $1)";

impl<'r, R: Columns> FromRow<'r, R> for ApprovalOverride {
    fn from_row(row: &'r R) -> Result<ApprovalOverride, sqlx::Error> {
        let gate: String = row.value("gate")?;
        Ok(ApprovalOverride {
            id: row.value("id")?,
            tenant_id: row.value("tenant_id")?,
            task_id: row.value("task_id")?,
            agent: row.value("agent")?,
            tool: row.value("tool")?,
            // a degree that this release does not know asks a person
            gate: ApprovalLevel::parse(&gate).unwrap_or(ApprovalLevel::Confirm),
            when: row.value("condition")?,
            created_at: row.value("created_at")?,
            created_by: row.value("created_by")?,
            expires_at: row.value("expires_at")?,
        })
    }
}

impl Store {
    /// Sets an override, in the place of the one that its tenant, agent or task has for the tool.
    ///
    /// # Errors
    /// `NotFound`: the tenant has no such task. `Conflict`: it has as many overrides as it may have. `Quota`: it has
    /// stored all that it may; each one that is set is on the record of audit.
    pub async fn set_approval_override(
        &self,
        wanted: &ApprovalOverride,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let entry = act(wanted, &wanted.created_by, "override.set");
        let bytes = bytes_of(&entry.body) + ENTRY_BYTES;
        self.admit_once(&wanted.tenant_id, bytes, idempotency, wanted.created_at).await?;
        let mut write = self.db.write_unconfined(Some(&wanted.tenant_id)).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, idempotency, wanted.created_at).await? {
            return Ok(answer);
        }
        write.set_rls_tenant(Some(&wanted.tenant_id)).await?;
        let tx = &mut write.tx();
        let epoch: Option<i64> = match wanted.task_id {
            None => None,
            Some(task_id) => {
                let found = tx.query(EPOCH).bind(task_id).bind(text(&wanted.tenant_id)).bind(None::<&str>);
                Some(found.optional_scalar().await?.ok_or(StoreError::NotFound)?)
            }
        };
        tx.query(
            "delete from approval_overrides where tenant_id = $1 and (expires_at <= $2 or subject = $3 and tool = $4)",
        )
        .bind(text(&wanted.tenant_id))
        .bind(wanted.created_at)
        .bind(subject(wanted.agent.as_deref(), wanted.task_id))
        .bind(text(&wanted.tool))
        .execute()
        .await?;
        let count: i64 = tx
            .query("select count(*) from approval_overrides where tenant_id = $1")
            .bind(text(&wanted.tenant_id))
            .scalar()
            .await?;
        if count >= MOST_OVERRIDES {
            let sentence =
                format!("the tenant has {MOST_OVERRIDES} overrides, the most there may be; remove some first");
            return Err(StoreError::Conflict(sentence));
        }
        insert(tx, wanted, epoch).await?;
        write_audit(tx, entry, wanted.created_at).await?;
        write.commit().await?;
        self.without_overrides.forget(&wanted.tenant_id);
        Ok(StoredAnswer::Done(()))
    }

    /// A page of overrides that hold, newest first.
    pub async fn list_approval_overrides(
        &self,
        scope: &Scope,
        filter: &OverrideFilter,
    ) -> Result<RowPage<ApprovalOverride>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        query.push(HOLDS).push_bind(self.clock.now());
        if let Some(tenant) = scope.tenant() {
            query.push_key("o.tenant_id", text(tenant).into_owned());
            order = "o.tenant_id desc, ";
        }
        if let Some(task_id) = filter.task_id {
            query.push(" and o.task_id = ").push_bind(task_id);
        }
        if let Some(agent) = &filter.agent {
            query.push(" and o.agent = ").push_bind(text(agent).into_owned());
        }
        if let Some(before) = filter.before {
            let key = scope.tenant().map(|tenant| ("o.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "o.id", before);
        }
        push_page(&mut query, (order, "o.id"), filter.limit, (FITTING, PAGE_BYTES));
        let rows = query.finish().rows().await?;
        read.end().await?;
        Ok(RowPage::from_rows(&self.unreadable, "approval_overrides", &rows, filter.limit, Ok))
    }

    /// Takes an override back.
    pub async fn remove_approval_override(&self, scope: &Scope, id: Uuid, by: &str) -> Result<(), StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let found: Option<ApprovalOverride> = tx
            .query(sql!(SELECT, "where o.id = $1 and ($2 is null or o.tenant_id = $2)"))
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        let removed = found.ok_or(StoreError::NotFound)?;
        tx.query("delete from approval_overrides where id = $1").bind(id).execute().await?;
        write_audit(tx, act(&removed, by, "override.removed"), self.clock.now()).await?;
        write.commit().await?;
        Ok(())
    }

    /// The overrides that hold for the calls of these tools by a run: for a tool at most one each of its tenant, of the
    /// agent and of the task.
    pub async fn approval_overrides_of_calls(
        &self,
        tenant: &str,
        agent: Option<&str>,
        task_id: Option<Uuid>,
        tools: &[&str],
    ) -> Result<Vec<ApprovalOverride>, StoreError> {
        let now = self.clock.now();
        if tools.is_empty() || self.without_overrides.knows(tenant, now) {
            return Ok(Vec::new());
        }
        let look = self.without_overrides.look(now);
        let mut read = self.db.read().await?;
        let mut query = read.build(SELECT);
        query.push("where o.tenant_id = ").push_bind(text(tenant)).push(" and o.subject in ('', ");
        query.push_bind(subject(agent, None)).push(", ").push_bind(subject(None, task_id)).push(") and ");
        query.push(HOLDS).push_bind(now).push(" and o.tool in (");
        query.list(tools.iter().map(|tool| text(tool))).push(") order by o.subject, o.tool");
        let found: Vec<ApprovalOverride> = query.finish().all().await?;
        if found.is_empty() && !read.query(HAS_ANY).bind(text(tenant)).scalar::<bool>().await? {
            self.without_overrides.remember(tenant, look);
        }
        Ok(found)
    }
}

/// The name of those for whom an override holds.
fn subject(agent: Option<&str>, task_id: Option<Uuid>) -> String {
    match (task_id, agent) {
        (Some(task_id), _) => format!("task:{task_id}"),
        (None, Some(agent)) => format!("agent:{}", text(agent)),
        (None, None) => String::new(),
    }
}

async fn insert(tx: &mut Tx<'_>, wanted: &ApprovalOverride, epoch: Option<i64>) -> Result<(), StoreError> {
    tx.query(
        "insert into approval_overrides (id, tenant_id, task_id, agent, subject, tool, gate, condition, created_at,
                                         created_by, expires_at, epoch)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(wanted.id)
    .bind(text(&wanted.tenant_id))
    .bind(wanted.task_id)
    .bind(optional(wanted.agent.as_deref()))
    .bind(subject(wanted.agent.as_deref(), wanted.task_id))
    .bind(text(&wanted.tool))
    .bind(wanted.gate.as_str())
    .bind(optional(wanted.when.as_deref()))
    .bind(wanted.created_at)
    .bind(text(&wanted.created_by))
    .bind(wanted.expires_at)
    .bind(epoch)
    .execute()
    .await?;
    Ok(())
}

fn act<'a>(of: &'a ApprovalOverride, actor: &'a str, action: &'a str) -> AuditAction<'a> {
    let body = json!({
        "tool": of.tool, "gate": of.gate, "when": of.when, "task_id": of.task_id, "agent": of.agent,
        "expires_at": of.expires_at,
    });
    let via = Actor::parse(actor).via().as_str();
    AuditAction { tenant: &of.tenant_id, actor, via, action, subject_type: "override", subject_id: of.id, body }
}
