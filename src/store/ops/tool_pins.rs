//! Pins of the tools of MCP servers, as rows: the definitions that are accepted, and those that wait for the operator.
//! They belong to no tenant.
//!
//! All that changes the pins of a server holds its row in `mcp_listed`, so instances that list it at once judge one
//! after the other. A list that changes nothing, as most do, is judged by one read. On SQLite, whose columns take any
//! text, a part of a pin that can't be read is as good as none, so the tool waits.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::tool_pin::{
    PINS, PinHead, PinVerdict, PinWrite, PinnedDefinition, SeenDefinition, ToolPin, judge,
};
use crate::domain::task::kept_tool;
use crate::store::columns::Columns;
use crate::store::db::text::text;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::sql::sql;
use crate::store::tx::{Scalar, Tx};
use crate::store::{Store, StoreError};

/// Owners are told of one change of a tool within this time.
const TOLD_EVERY: TimeDelta = TimeDelta::days(1);

const HEADS: &str = "
    select tool, accepted_hash, waiting_hash, waiting_seen_at from tool_pins where server = $1 order by tool limit $2";

const PIN: &str = "
    select server, tool, accepted_hash, accepted, accepted_at, accepted_by, waiting_hash, waiting, waiting_since
      from tool_pins where server = $1 and tool = $2";

/// Locks a server until the end of the transaction.
const HOLD: &str = "update mcp_listed set listed_at = coalesce($2, listed_at) where server = $1";

const BEGIN: &str = "
    insert into mcp_listed (server, first_listed_at, listed_at) values ($1, $2, $2) on conflict (server) do nothing";

const NEW_ACCEPTED: &str = "
    insert into tool_pins (server, tool, accepted_hash, accepted, accepted_at) values ($1, $2, $3, $4, $5)
    on conflict (server, tool) do nothing";

const WAIT: &str = "
    insert into tool_pins (server, tool, waiting_hash, waiting, waiting_since, waiting_seen_at)
    values ($1, $2, $3, $4, $5, $5)
    on conflict (server, tool) do update
       set waiting_hash = excluded.waiting_hash, waiting = excluded.waiting, waiting_since = excluded.waiting_since,
           waiting_seen_at = excluded.waiting_seen_at";

const SEEN: &str = "update tool_pins set waiting_seen_at = $3 where server = $1 and tool = $2";

const CLEAR: &str = "
    update tool_pins set waiting_hash = null, waiting = null, waiting_since = null, waiting_seen_at = null
     where server = $1 and tool = $2";

const FORGET: &str = "delete from tool_pins where server = $1 and tool = $2 and accepted_hash is null";

const ACCEPT: &str = "
    update tool_pins
       set accepted_hash = waiting_hash, accepted = waiting, accepted_at = $3, accepted_by = $4,
           waiting_hash = null, waiting = null, waiting_since = null, waiting_seen_at = null
     where server = $1 and tool = $2";

const UNTOLD: &str = "
    select server, tool, waiting_hash as hash, accepted_hash is null as is_new from tool_pins
     where waiting_hash is not null and (told_hash is null or told_hash <> waiting_hash)
       and (told_at is null or told_at <= $1)
     order by server, tool limit $2";

/// The order is that of the index of tools, in which all entries of one tool stand together. A task is looked for by
/// its keys alone: a join may be planned in the other order while there are no tasks.
const NEXT_OWNER: &str =
    sql!(NEXT_TASK; "{task}" = "from tasks t where t.tenant_id = c.tenant_id and t.id = c.task_id");
const NEXT_TASK: &str = "
    select c.tenant_id as tenant, c.task_id, (select t.name {task}) as task_name
      from task_credentials c
     where c.service = $1 and c.account = '' and c.tenant_id > $2
       and (select t.status {task}) in ('active', 'paused')
     order by c.tenant_id, c.task_id limit 1";

/// A definition that waits and of which the owners of tasks have not been told.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct UntoldTool {
    /// Name of the server as it is configured.
    pub server: String,
    /// Name of the tool at its server.
    pub tool: String,
    /// Hash of the definition that waits.
    pub hash: String,
    /// Nothing of the tool was accepted before.
    pub is_new: bool,
}

/// A tenant with a task that names a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOwner {
    /// The tenant.
    pub tenant: String,
    /// Id of its first task that names the tool.
    pub task_id: Uuid,
    /// Name of that task; one that can't be read is empty.
    pub task_name: String,
}

impl<'r, R: Columns> FromRow<'r, R> for PinHead {
    fn from_row(row: &'r R) -> Result<PinHead, sqlx::Error> {
        Ok(PinHead {
            tool: if_readable(row, "tool").unwrap_or_default(),
            accepted_hash: if_readable(row, "accepted_hash"),
            waiting_hash: if_readable(row, "waiting_hash"),
            waiting_seen_at: if_readable(row, "waiting_seen_at"),
        })
    }
}

impl<'r, R: Columns> FromRow<'r, R> for ToolPin {
    fn from_row(row: &'r R) -> Result<ToolPin, sqlx::Error> {
        Ok(ToolPin {
            server: row.value("server")?,
            tool: row.value("tool")?,
            accepted: definition(row, ["accepted_hash", "accepted", "accepted_at"]),
            accepted_by: if_readable(row, "accepted_by"),
            waiting: definition(row, ["waiting_hash", "waiting", "waiting_since"]),
        })
    }
}

/// A name that can't be read keeps nobody behind its tenant from being found.
impl<'r, R: Columns> FromRow<'r, R> for ToolOwner {
    fn from_row(row: &'r R) -> Result<ToolOwner, sqlx::Error> {
        Ok(ToolOwner {
            tenant: row.value("tenant")?,
            task_id: row.value("task_id")?,
            task_name: if_readable(row, "task_name").unwrap_or_default(),
        })
    }
}

/// A definition by the columns of its hash, text and instant. One whose instant can't be read is as old as can be.
fn definition<R: Columns>(row: &R, [hash, text, at]: [&str; 3]) -> Option<PinnedDefinition> {
    let at = if_readable(row, at).unwrap_or(DateTime::<Utc>::UNIX_EPOCH);
    Some(PinnedDefinition { hash: if_readable(row, hash)?, text: if_readable(row, text)?, at })
}

/// The value of a column, if there is one and it can be read.
fn if_readable<S, R: Columns>(row: &R, column: &str) -> Option<S>
where
    Option<S>: Scalar,
{
    row.value::<Option<S>>(column).ok().flatten()
}

impl Store {
    /// The verdict on each definition that a server lists now, in their order. Those of its first list are accepted,
    /// and a list without any is none.
    pub async fn judge_tools(&self, server: &str, seen: &[SeenDefinition]) -> Result<Vec<PinVerdict>, StoreError> {
        let now = self.clock.now();
        let kept = heads(&mut self.db.read_quick().await?.tx(), server).await?;
        let judgement = judge(false, &kept, seen, now);
        if judgement.writes.is_empty() {
            return Ok(judgement.verdicts);
        }
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let is_first = hold_or_begin(tx, server, now).await?;
        let kept = heads(tx, server).await?;
        let judgement = judge(is_first, &kept, seen, now);
        for change in &judgement.writes {
            make(tx, server, change, now).await?;
        }
        write.commit().await?;
        Ok(judgement.verdicts)
    }

    /// A number that is another one after each acceptance.
    pub async fn tool_pin_version(&self) -> Result<i64, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read.query("select version from tool_pin_version where id = 1").scalar().await?)
    }

    /// The pin of a tool, if there is one.
    pub async fn find_tool_pin(&self, server: &str, tool: &str) -> Result<Option<ToolPin>, StoreError> {
        find(&mut self.db.read_quick().await?.tx(), server, tool).await
    }

    /// Accepts the definition of a tool that waits, or with `hash` only that of this hash. Nothing happens where it is
    /// accepted already.
    ///
    /// # Errors
    /// `NotFound`: there is no pin. `Conflict`: the one of this hash does not wait.
    pub async fn accept_tool(
        &self,
        server: &str,
        tool: &str,
        hash: Option<&str>,
        by: &str,
    ) -> Result<ToolPin, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        hold(tx, server, None).await?;
        let pin = find(tx, server, tool).await?.ok_or(StoreError::NotFound)?;
        let Some(waiting) = to_accept(&pin, hash)? else { return Ok(pin) };
        let before = pin.accepted.as_ref().map(|accepted| accepted.hash.as_str());
        let body = json!({ "tool": pin.full_name(), "definition": waiting.hash, "before": before });
        tx.query(ACCEPT).bind(text(server)).bind(text(tool)).bind(now).bind(text(by)).execute().await?;
        tx.query("update tool_pin_version set version = version + 1 where id = 1").execute().await?;
        write_audit(tx, acceptance(by, body), now).await?;
        write.commit().await?;
        let accepted = Some(PinnedDefinition { at: now, ..waiting });
        Ok(ToolPin { accepted, accepted_by: Some(by.to_owned()), waiting: None, ..pin })
    }

    /// Definitions that wait and of which the owners of tasks are to be told. Of another one of the same tool within a
    /// day they are told later.
    pub async fn untold_tool_changes(&self, limit: i64) -> Result<Vec<UntoldTool>, StoreError> {
        let told_before = self.clock.now() - TOLD_EVERY;
        Ok(self.db.read().await?.query(UNTOLD).bind(told_before).bind(limit).all().await?)
    }

    /// The next tenant behind another one that has a task, active or paused, that names a tool by its whole name.
    pub async fn next_owner_of_tool(&self, tool: &str, after: Option<&str>) -> Result<Option<ToolOwner>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let next = read.query(NEXT_OWNER).bind(kept_tool(&text(tool))).bind(text(after.unwrap_or_default()));
        Ok(next.optional().await?)
    }

    /// The owners of tasks have been told of the definition of this hash.
    pub async fn mark_tool_told(&self, server: &str, tool: &str, hash: &str) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query("update tool_pins set told_hash = $3, told_at = $4 where server = $1 and tool = $2")
            .bind(text(server))
            .bind(text(tool))
            .bind(text(hash))
            .bind(self.clock.now())
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }
}

async fn heads(tx: &mut Tx<'_>, server: &str) -> Result<Vec<PinHead>, StoreError> {
    Ok(tx.query(HEADS).bind(text(server)).bind(PINS as i64).all().await?)
}

async fn find(tx: &mut Tx<'_>, server: &str, tool: &str) -> Result<Option<ToolPin>, StoreError> {
    Ok(tx.query(PIN).bind(text(server)).bind(text(tool)).optional().await?)
}

/// Holds a server until the end of the transaction, and notes when it was listed; answers whether it has listed tools
/// before.
async fn hold(tx: &mut Tx<'_>, server: &str, listed_at: Option<DateTime<Utc>>) -> Result<bool, StoreError> {
    Ok(tx.query(HOLD).bind(text(server)).bind(listed_at).execute().await? == 1)
}

/// As [`hold`], for a server that lists tools now; answers whether it does so for the first time.
async fn hold_or_begin(tx: &mut Tx<'_>, server: &str, now: DateTime<Utc>) -> Result<bool, StoreError> {
    if hold(tx, server, Some(now)).await? {
        return Ok(false);
    }
    let is_first = tx.query(BEGIN).bind(text(server)).bind(now).execute().await? == 1;
    if !is_first {
        // another instance was first, and has committed by now
        hold(tx, server, Some(now)).await?;
    }
    Ok(is_first)
}

/// Makes a change of the pins of a server.
async fn make(tx: &mut Tx<'_>, server: &str, change: &PinWrite<'_>, now: DateTime<Utc>) -> Result<(), StoreError> {
    let (statement, tool) = match change {
        PinWrite::Accept(seen) => (NEW_ACCEPTED, seen.tool.as_str()),
        PinWrite::Wait(seen) => (WAIT, seen.tool.as_str()),
        PinWrite::Seen(tool) => (SEEN, *tool),
        PinWrite::Clear(tool) => (CLEAR, *tool),
        PinWrite::Forget(tool) => (FORGET, tool.as_str()),
    };
    let query = tx.query(statement).bind(text(server)).bind(text(tool));
    let query = match change {
        PinWrite::Accept(seen) | PinWrite::Wait(seen) => query.bind(text(&seen.hash)).bind(text(&seen.text)).bind(now),
        PinWrite::Seen(_) => query.bind(now),
        PinWrite::Clear(_) | PinWrite::Forget(_) => query,
    };
    query.execute().await?;
    Ok(())
}

/// The definition that is to be accepted; `None`: the asked one is accepted already.
fn to_accept(pin: &ToolPin, hash: Option<&str>) -> Result<Option<PinnedDefinition>, StoreError> {
    let is_asked = |definition: &PinnedDefinition| hash.is_none_or(|hash| definition.hash == hash);
    match (&pin.waiting, &pin.accepted) {
        (Some(waiting), _) if is_asked(waiting) => Ok(Some(waiting.clone())),
        (_, Some(accepted)) if is_asked(accepted) => Ok(None),
        (Some(waiting), _) => {
            let why = format!("another definition of `{}` waits: {}", pin.full_name(), waiting.hash);
            Err(StoreError::Conflict(why))
        }
        (None, _) => Err(StoreError::Conflict(format!("no definition of `{}` waits", pin.full_name()))),
    }
}

/// The audit entry for a definition that is accepted.
fn acceptance(by: &str, body: Value) -> AuditAction<'_> {
    AuditAction {
        tenant: "*",
        actor: by,
        via: "api",
        action: "tool.accepted",
        subject_type: "tool",
        subject_id: Uuid::nil(),
        body,
    }
}
