//! Waiting polls, by age and from tenant to tenant, and claiming them. The watcher decides which of those that wait are
//! claimed.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use sqlx::types::Json;
use uuid::Uuid;

use super::PollClaim;
use crate::domain::task::change::FaultyPart;
use crate::domain::trigger::condition::{ConditionState, ConditionSubject};
use crate::store::sql::sql;
use crate::store::tasks::disabling::{UNREADABLE, stop_and_disable};
use crate::store::tasks::tenant_turns::{TENANTS_WITH_FIRST, tenants_in_order};
use crate::store::tx::{Rows, Tx};
use crate::store::{Split, Store, StoreError};

/// A poll that waits for its turn, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct DuePoll {
    /// The task to poll.
    pub task_id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
}

#[derive(sqlx_macros::FromRow)]
struct ClaimRow {
    task_id: Uuid,
    epoch: i64,
    tenant_id: String,
    name: String,
    trigger: Json<Value>,
    metadata: Json<Map<String, Value>>,
    max_runs: Option<Json<Option<i64>>>,
    version: i64,
    edges: i64,
    body: Option<Json<Value>>,
}

impl ClaimRow {
    fn claim(self, until: DateTime<Utc>) -> PollClaim {
        PollClaim {
            subject: ConditionSubject { id: self.task_id, name: self.name, metadata: self.metadata.0 },
            tenant_id: self.tenant_id,
            trigger: self.trigger.0,
            state: ConditionState::read(&self.body.map_or(Value::Null, |body| body.0), self.edges),
            until,
            epoch: self.epoch,
            version: self.version,
            max_runs: self.max_runs.and_then(|most| most.0),
        }
    }
}

/// Due by then, and nobody is at it, or whose claim ran out: who had it is gone.
const WAITS: &str = "d.next_at <= {now} and (d.claimed_until is null or d.claimed_until <= {now})";

const DUE: Split = Split {
    postgres: sql!(
        "select d.task_id, d.tenant_id from due d where d.kind = 'condition' and ",
        sql!(WAITS; "{now}" = "$1"),
        " order by d.kind, d.next_at limit $2"
    ),
    sqlite: sql!(
        "select d.task_id, d.tenant_id from due d indexed by due_next where d.kind = 'condition' and ",
        sql!(WAITS; "{now}" = "$1"),
        " order by d.next_at limit $2"
    ),
};

/// The first poll that waits of each tenant.
const FIRST_OF_TENANTS: &str = sql!(
    TENANTS_WITH_FIRST; "{value}" = "d.task_id"; "{table}" = "due";
    "{having}" = "d.kind = 'condition' and d.next_at is not null"; "{due}" = sql!(WAITS; "{now}" = "$3");
    "{order}" = "d.next_at"
);

const IN_TURN: Split = Split {
    postgres: sql!(FIRST_OF_TENANTS; "{index}" = ""),
    sqlite: sql!(FIRST_OF_TENANTS; "{index}" = "indexed by due_polls"),
};

/// Followed by the listed ids. What else is asked is asked of the rows that were found, and in words that fit no index:
/// one that was empty when it was analysed would be walked through.
const CLAIMED: &str = "
    select d.task_id, d.epoch, t.tenant_id, t.name, t.spec -> 'trigger' as trigger, t.spec -> 'metadata' as metadata,
           t.spec -> 'max_runs' as max_runs, coalesce(s.version, 0) as version, coalesce(s.edges, 0) as edges, s.body
      from due d
      join (select id, tenant_id, name, epoch, {readable} as spec from tasks) t on t.id = d.task_id and t.epoch = d.epoch
      left join condition_state s on s.task_id = d.task_id
     where d.kind || '' = 'condition'";
const CLAIM: Split = Split {
    postgres: sql!(CLAIMED; "{readable}" = "spec"),
    sqlite: sql!(CLAIMED; "{readable}" = "case when json_valid(spec) then spec end"),
};
const LOCKED: Split = Split { postgres: " for update of d skip locked", sqlite: "" };

/// Reads those of these polls that wait, and locks them.
async fn waiting(tx: &mut Tx<'_>, tasks: &[Uuid], now: DateTime<Utc>) -> Result<Rows, sqlx::Error> {
    let mut select = tx.build(CLAIM);
    select.push(" and coalesce(d.next_at <= ").push_bind(now).push(", false)");
    select.push(" and (d.claimed_until is null or d.claimed_until <= ").push_bind(now).push(") and d.task_id in (");
    select.list(tasks.iter()).push(") order by d.next_at").push_split(LOCKED);
    select.finish().persistent(false).rows().await
}

impl Store {
    /// Up to `limit` polls that wait at `now`, the longest overdue first.
    pub async fn due_polls(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DuePoll>, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read.query(DUE).bind(now).bind(limit).all().await?)
    }

    /// The first poll that waits at `now` of each of up to `limit` tenants whose names follow `after`, and the tenant
    /// that the search came to; `None`: the last one.
    pub async fn polls_in_turn(
        &self,
        now: DateTime<Utc>,
        after: &str,
        limit: i64,
    ) -> Result<(Vec<DuePoll>, Option<String>), StoreError> {
        let mut read = self.db.read_quick().await?;
        let tenants: Vec<(String, Option<Uuid>)> =
            tenants_in_order(read.query(IN_TURN).bind(after).bind(limit).bind(now)).await?;
        read.end().await?;
        let last = tenants.last().filter(|_| tenants.len() as i64 == limit).map(|(tenant, _)| tenant.clone());
        let first = |(tenant_id, task_id): (String, Option<Uuid>)| Some(DuePoll { task_id: task_id?, tenant_id });
        Ok((tenants.into_iter().filter_map(first).collect(), last))
    }

    /// Claims those of these polls that still wait at `now`, until `until`. They are another's when the claim has run
    /// out. A task that can't be read is disabled instead.
    pub async fn claim_polls(
        &self,
        tasks: &[Uuid],
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Vec<PollClaim>, StoreError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mut write = self.db.write_first().await?;
        let tx = &mut write.tx();
        let rows = waiting(tx, tasks, now).await?;
        let (claims, others) = self.unreadable.partition_readable("tasks", &rows, |row: ClaimRow| Ok(row.claim(until)));
        if !claims.is_empty() {
            let mut claim = tx.build("update due set claimed_until = ");
            claim.push_bind(until).push(" where task_id in (");
            claim.list(claims.iter().map(|claim| claim.subject.id)).push(")");
            claim.finish().persistent(false).execute().await?;
        }
        if !others.is_empty() {
            // what was read before it was locked may have been mended since: it is claimed the next time
            let rows = waiting(tx, &others, now).await?;
            for task_id in self.unreadable.partition_readable("tasks", &rows, |row: ClaimRow| Ok(row.claim(until))).1 {
                stop_and_disable(tx, task_id, (FaultyPart::Trigger, UNREADABLE), now).await?;
            }
        }
        write.commit().await?;
        Ok(claims)
    }

    /// The earliest poll that nobody is at; `None` where none waits.
    pub async fn next_poll(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_poll()).await
    }

    async fn read_next_poll(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query(
                "select next_at from due where kind = 'condition' and next_at is not null and claimed_until is null
                  order by next_at limit 1",
            )
            .optional_scalar()
            .await?)
    }

    /// The earliest poll behind this instant, whoever is at it.
    pub async fn next_poll_after(&self, after: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_poll_after(after)).await
    }

    async fn read_next_poll_after(&self, after: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query("select next_at from due where kind = 'condition' and next_at > $1 order by kind, next_at limit 1")
            .bind(after)
            .optional_scalar()
            .await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_polls_that_wait_are_found_by_an_index_without_a_sort() {
        for statement in [DUE, IN_TURN] {
            let plan = sqlite_plan(statement.sqlite).await;
            let on_due: Vec<&String> = plan.iter().filter(|step| step.contains(" d ")).collect();
            assert!(!on_due.is_empty() && on_due.iter().all(|step| step.starts_with("SEARCH")), "{plan:?}");
            assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{plan:?}");
        }
    }
}
