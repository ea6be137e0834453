//! Runs that wait for people, as their owners see them: listed, counted, paused and resumed. While one is paused nobody
//! is reminded, nothing expires and no answer is taken; what was left of its time is left when it is resumed. So the
//! instants of what is open are moved: to the latest that they may come to, and back again.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::actor::SERVICE;
use crate::domain::approval::link::SHOWS_FOR;
use crate::domain::run::RunState;
use crate::store::approvals::decide::{LOCK_PARKED, LOCK_RUN, TRIES};
use crate::store::db::listing::RowPage;
use crate::store::db::text::text;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::sql::sql;
use crate::store::tx::{StatementBuilder, Tx};
use crate::store::{Split, Store, StoreError, Topic};

/// How many days a run stays paused at most.
const MOST_PAUSED_DAYS: i64 = 30;
const MOST_PAUSED: TimeDelta = TimeDelta::days(MOST_PAUSED_DAYS);
/// How often a run is paused while it waits, at most: each pause stays on the record of audit, of which nothing is
/// deleted.
const MOST_PAUSES: i64 = 100;

/// Which runs that wait for people to list. Newest first, after the run `before`.
#[derive(Debug, Clone, Default)]
pub struct SuspendedFilter {
    /// Only this run.
    pub run_id: Option<Uuid>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// A run that waits for people.
#[derive(Debug, Clone, PartialEq)]
pub struct SuspendedRun {
    /// The run that waits.
    pub run_id: Uuid,
    /// The tenant that owns the run.
    pub tenant_id: String,
    /// The run's task, or the conversation that it is of.
    pub task_id: Option<Uuid>,
    /// `pending_approval` or `waiting_for_input`.
    pub state: RunState,
    /// Since when it is paused; `None`: it is not.
    pub paused_at: Option<DateTime<Utc>>,
    /// When it is resumed by itself; until then what is open of it does not expire.
    pub paused_until: Option<DateTime<Utc>>,
    /// The agents of the run that wait, the run's own first.
    pub agents: Vec<SuspendedCaller>,
}

/// An agent of a run that waits for people.
#[derive(Debug, Clone, PartialEq)]
pub struct SuspendedCaller {
    /// The agents through which it was called, itself the last; empty: it is the run's own.
    pub delegation_chain: Vec<String>,
    /// Questions for which it waits, and calls that are held.
    pub questions: i64,
    /// The instant of the first of them.
    pub since: DateTime<Utc>,
    /// When the first of them expires, or is held no more; of a paused run, if it is not resumed before its latest
    /// instant.
    pub expires_at: DateTime<Utc>,
}

#[derive(sqlx_macros::FromRow)]
struct SuspendedRow {
    id: Uuid,
    tenant_id: String,
    task_id: Option<Uuid>,
    state: String,
    paused_at: Option<DateTime<Utc>>,
    paused_until: Option<DateTime<Utc>>,
}

#[derive(sqlx_macros::FromRow)]
struct CallerRow {
    run_id: Uuid,
    chain: Json<Value>,
    questions: i64,
    since: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

/// An open question, or a call that is held, with its instants.
#[derive(sqlx_macros::FromRow)]
struct OpenInstants {
    id: Uuid,
    batch_id: Uuid,
    expires_at: DateTime<Utc>,
    hold_until: Option<DateTime<Utc>>,
}

/// A run that waits for people, with its row among the parked ones locked.
struct LockedRun {
    id: Uuid,
    tenant: String,
    paused_until: Option<DateTime<Utc>>,
}

/// Beginning of a page's statement: the runs that wait.
const WAITING: &str = "with page as materialized (
    select p.run_id, p.tenant_id, p.task_id, p.paused_at, p.paused_until from parked p where p.reason = 'approval'";
const WITH_STATE: &str = ")
    select page.run_id as id, page.tenant_id, page.task_id, r.state, page.paused_at, page.paused_until
      from page {state}
     order by page.run_id desc";
/// As with [`crate::store::db::listing::fitting`].
const WITH_STATE_BOTH: Split = Split {
    postgres: sql!(
        WITH_STATE;
        "{state}" = "cross join lateral (select state from runs where runs.id = page.run_id offset 0) r"
    ),
    sqlite: sql!(WITH_STATE; "{state}" = "join runs r on r.id = page.run_id"),
};

const CALLERS: &str = "
    select run_id, chain, count(*) as questions, min(created_at) as since, min(coalesce(hold_until, expires_at)) as expires_at
      from (select run_id, created_at, hold_until, expires_at, {chain} as chain from approvals where run_id in (";
const CALLERS_OF: Split = Split {
    postgres: sql!(CALLERS; "{chain}" = "coalesce(proposal -> 'delegation_chain', '[]')"),
    sqlite: sql!(
        CALLERS;
        "{chain}" = "coalesce(case when json_valid(proposal) then proposal -> '$.delegation_chain' end, '[]')"
    ),
};

/// Runs of a tenant that wait for people, as far as they are counted.
const COUNT: &str = "
    select count(*) from (select 1 from parked {index} where tenant_id {own} and reason = 'approval'
                           order by tenant_id, run_id limit $2) suspended";
pub(super) const COUNTED: Split = Split {
    postgres: sql!(COUNT; "{index}" = ""; "{own}" = "= any (array[$1])"),
    sqlite: sql!(COUNT; "{index}" = "indexed by parked_suspended_of_tenant"; "{own}" = "= $1"),
};

const PAUSE: &str = "
    update parked set paused_at = $2, paused_until = $3, wake_at = $3, pauses = pauses + 1
     where run_id = $1 and pauses < $4";

impl Store {
    /// A page of runs that wait for people and match, newest first.
    pub async fn list_suspended(
        &self,
        scope: &Scope,
        filter: &SuspendedFilter,
    ) -> Result<RowPage<SuspendedRun>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found = self.page_of_suspended(&mut read.tx(), scope, filter).await?;
        read.end().await?;
        Ok(found)
    }

    async fn page_of_suspended(
        &self,
        tx: &mut Tx<'_>,
        scope: &Scope,
        filter: &SuspendedFilter,
    ) -> Result<RowPage<SuspendedRun>, StoreError> {
        let (mut query, mut order) = (tx.build(WAITING), "");
        if let Some(tenant) = scope.tenant() {
            query.push_key("p.tenant_id", text(tenant).into_owned());
            order = "p.tenant_id desc, ";
        }
        if let Some(run_id) = filter.run_id {
            query.push_key("p.run_id", run_id);
        }
        if let Some(before) = filter.before {
            let key = scope.tenant().map(|tenant| ("p.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "p.run_id", before);
        }
        query
            .push(" order by ")
            .push(order)
            .push("p.run_id desc limit ")
            .push_bind(filter.limit)
            .push_split(WITH_STATE_BOTH);
        let rows = query.finish().rows().await?;
        let mut found = RowPage::from_rows(&self.unreadable, "runs", &rows, filter.limit, suspended);
        let mut callers = callers(tx, &found.rows, self.clock.now()).await?;
        for run in &mut found.rows {
            run.agents = callers.remove(&run.run_id).unwrap_or_default();
        }
        Ok(found)
    }

    /// Whether one more run of the tenant may wait for people. The transaction that parks it holds it to the same
    /// limit, among those that begin to wait at once.
    pub async fn may_suspend(&self, tenant: &str) -> Result<bool, StoreError> {
        let most = self.quotas_of(tenant).await?.suspended_agents;
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let waiting: i64 = self.db.read().await?.query(COUNTED).bind(text(tenant)).bind(limit).scalar().await?;
        Ok(waiting < limit)
    }

    /// Pauses a run that waits for people; once more changes nothing. The run as it is then.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope. `Conflict`: it waits for nobody, or was paused too often.
    pub async fn pause_suspended(&self, scope: &Scope, run_id: Uuid, by: &str) -> Result<SuspendedRun, StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let run = lock(tx, scope, run_id).await?;
        if run.paused_until.is_none() {
            let now = self.settled_at(tx).await?;
            let until = now + MOST_PAUSED;
            let pause = tx.query(PAUSE).bind(run_id).bind(now).bind(until).bind(MOST_PAUSES);
            if pause.execute().await? == 0 {
                return Err(StoreError::Conflict(format!(
                    "the run was paused {MOST_PAUSES} times while it waits, the most there may be"
                )));
            }
            // for whom knows nothing of pauses: it is open until the longest one is over
            move_open(tx, run_id, now, MOST_PAUSED).await?;
            write_audit(tx, run.act("agent.paused", (by, "api")), now).await?;
        }
        let paused = self.suspended_run(tx, scope, run_id).await?;
        write.commit().await?;
        Ok(paused)
    }

    /// Resumes a run that is paused; one that is not goes on waiting as it does. The run as it is then.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope. `Conflict`: it waits for nobody.
    pub async fn resume_suspended(&self, scope: &Scope, run_id: Uuid, by: &str) -> Result<SuspendedRun, StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let run = lock(tx, scope, run_id).await?;
        if let Some(until) = run.paused_until {
            let now = self.settled_at(tx).await?;
            resume(tx, (run_id, until), now).await?;
            write_audit(tx, run.act("agent.resumed", (by, "api")), now).await?;
        }
        let resumed = self.suspended_run(tx, scope, run_id).await?;
        write.commit().await?;
        self.notify(Topic::Queue);
        Ok(resumed)
    }

    async fn suspended_run(&self, tx: &mut Tx<'_>, scope: &Scope, run_id: Uuid) -> Result<SuspendedRun, StoreError> {
        let filter = SuspendedFilter { run_id: Some(run_id), before: None, limit: 1 };
        let mut found = self.page_of_suspended(tx, scope, &filter).await?.rows;
        found.pop().ok_or_else(|| StoreError::Corrupt(format!("the run {run_id} can't be read")))
    }
}

impl LockedRun {
    fn act<'a>(&'a self, action: &'a str, (actor, via): (&'a str, &'a str)) -> AuditAction<'a> {
        let body = json!({ "run_id": self.id });
        AuditAction { tenant: &self.tenant, actor, via, action, subject_type: "run", subject_id: self.id, body }
    }
}

/// Without its agents, which are read by themselves.
fn suspended(row: SuspendedRow) -> Result<SuspendedRun, StoreError> {
    let SuspendedRow { id, tenant_id, task_id, state, paused_at, paused_until } = row;
    let state = RunState::parse(&state).ok_or_else(|| StoreError::Corrupt(format!("run {id}: {state}")))?;
    Ok(SuspendedRun { run_id: id, tenant_id, task_id, state, paused_at, paused_until, agents: Vec::new() })
}

/// The agents of these runs that wait, the run's own first.
async fn callers(
    tx: &mut Tx<'_>,
    runs: &[SuspendedRun],
    now: DateTime<Utc>,
) -> Result<HashMap<Uuid, Vec<SuspendedCaller>>, StoreError> {
    let mut found: HashMap<Uuid, Vec<SuspendedCaller>> = HashMap::new();
    if runs.is_empty() {
        return Ok(found);
    }
    let mut query = tx.build(CALLERS_OF);
    query.list(runs.iter().map(|run| run.run_id)).push(")");
    push_open(&mut query, now);
    query.push(") q group by run_id, chain");
    let callers: Vec<CallerRow> = query.finish().all().await?;
    for CallerRow { run_id, chain, questions, since, expires_at } in callers {
        let names = chain.0.as_array().into_iter().flatten().filter_map(Value::as_str);
        let delegation_chain = names.map(str::to_owned).collect();
        found.entry(run_id).or_default().push(SuspendedCaller { delegation_chain, questions, since, expires_at });
    }
    found
        .values_mut()
        .for_each(|agents| agents.sort_by(|one, other| one.delegation_chain.cmp(&other.delegation_chain)));
    Ok(found)
}

/// Adds that nobody has answered a question by then, or that a call that was approved is held still.
fn push_open(query: &mut StatementBuilder<'_>, at: DateTime<Utc>) {
    query.push(" and replaced_by is null and ((status = 'pending' and expires_at > ").push_bind(at);
    query.push(") or (status in ('approved', 'edited') and execution_started_at is null and hold_until > ");
    query.push_bind(at).push("))");
}

/// Locks a run that waits for people.
async fn lock(tx: &mut Tx<'_>, scope: &Scope, run_id: Uuid) -> Result<LockedRun, StoreError> {
    let tenant: Option<String> = tx
        .query("select tenant_id from runs where id = $1 and ($2 is null or tenant_id = $2)")
        .bind(run_id)
        .bind(scope.tenant())
        .optional_scalar()
        .await?;
    let tenant = tenant.ok_or(StoreError::NotFound)?;
    for _ in 0..TRIES {
        let parked: Option<Option<DateTime<Utc>>> = tx.query(LOCK_PARKED).bind(run_id).optional_scalar().await?;
        if let Some(paused_until) = parked {
            return Ok(LockedRun { id: run_id, tenant, paused_until });
        }
        let state: Option<String> = tx.query(LOCK_RUN).bind(run_id).optional_scalar().await?;
        match state.as_deref().ok_or(StoreError::NotFound)? {
            // it was parked between the two looks
            "pending_approval" | "waiting_for_input" => {}
            state => return Err(StoreError::Conflict(format!("the run waits for nobody; it is `{state}`"))),
        }
    }
    Err(StoreError::Unavailable(format!("the run {run_id} is neither parked nor going on")))
}

/// Lets a run that is paused until then, and whose row is locked, wait as before, with as much time as it had.
async fn resume(tx: &mut Tx<'_>, (run_id, until): (Uuid, DateTime<Utc>), now: DateTime<Utc>) -> Result<(), StoreError> {
    move_open(tx, run_id, until, now - until).await?;
    tx.query("update parked set paused_at = null, paused_until = null, wake_at = $2 where run_id = $1")
        .bind(run_id)
        .bind(now)
        .execute()
        .await?;
    Ok(())
}

/// Resumes a run, whose row is locked, where the longest pause is over; else it is looked at when that is so. Whether
/// it is resumed.
pub(super) async fn resume_overdue(
    tx: &mut Tx<'_>,
    (run_id, until): (Uuid, DateTime<Utc>),
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    if now < until {
        tx.query("update parked set wake_at = $2 where run_id = $1").bind(run_id).bind(until).execute().await?;
        return Ok(false);
    }
    let tenant: String = tx.query("select tenant_id from parked where run_id = $1").bind(run_id).scalar().await?;
    resume(tx, (run_id, until), now).await?;
    let run = LockedRun { id: run_id, tenant, paused_until: None };
    write_audit(tx, run.act("agent.resumed", (SERVICE, SERVICE)), now).await?;
    Ok(true)
}

/// Moves the instants of all that was open then, and keeps the links that lead there.
async fn move_open(tx: &mut Tx<'_>, run_id: Uuid, then: DateTime<Utc>, by: TimeDelta) -> Result<(), StoreError> {
    let mut query = tx.build("select id, batch_id, expires_at, hold_until from approvals where run_id = ");
    query.push_bind(run_id);
    push_open(&mut query, then);
    let open: Vec<OpenInstants> = query.finish().all().await?;
    let moved = |at: DateTime<Utc>| if at > then { at + by } else { at };
    let mut batches = BTreeMap::new();
    for OpenInstants { id, batch_id, expires_at, hold_until } in open {
        let expires_at = moved(expires_at);
        tx.query("update approvals set expires_at = $2, hold_until = $3 where id = $1")
            .bind(id)
            .bind(expires_at)
            .bind(hold_until.map(moved))
            .execute()
            .await?;
        let last = batches.entry(batch_id).or_insert(expires_at);
        *last = expires_at.max(*last);
    }
    for (batch_id, last) in batches {
        let links: Vec<Vec<u8>> =
            tx.query("select token_hash from approval_links where batch_id = $1").bind(batch_id).scalars().await?;
        for link in links {
            tx.query("update approval_links set expires_at = $2 where token_hash = $1")
                .bind(&link[..])
                .bind(last + SHOWS_FOR)
                .execute()
                .await?;
        }
    }
    Ok(())
}
