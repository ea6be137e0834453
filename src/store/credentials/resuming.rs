//! Tasks that are paused for want of a credential go on when it is saved: the first few in the transaction that writes
//! it, the others one after the other behind it, each planned at its own instant. Tasks that are to go on stand in
//! `resumptions`, so nothing is lost where the process ends in between. There tenants have turns: of what waits each
//! tenant that has its turn has a part of the batch, so that a tenant with thousands of tasks keeps no other's waiting.
//!
//! Writing a credential and pausing a task for want of it take turns, by the credential's name ([`lock_reference`]): so
//! a task is paused either before, and goes on here, or after, and sees what is saved.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::credential::{Credential, CredentialStatus, Reference};
use crate::domain::task::DependentTask;
use crate::domain::task::change::{PlannedChange, TaskChange};
use crate::store::credentials::TASKS_MOVE;
use crate::store::credentials::credential_status::{STANDS, lock_reference};
use crate::store::db::text::{document, text};
use crate::store::sql::sql;
use crate::store::tasks::changes::{PLANS, as_planned, change_locked};
use crate::store::tasks::row::TaskRow;
use crate::store::tasks::tenant_turns::{self, TENANTS_WITH_DUE};
use crate::store::tasks::{SELECT_TASK, lock_task};
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// Tasks that go on in the transaction that saves their credential.
pub(super) const AT_ONCE: i64 = 20;
/// A task that an instance has claimed to resume is resumed by another one after this time.
const CLAIM: TimeDelta = TimeDelta::seconds(30);

/// The first that wait for a credential, locked before one is changed: rows that change with a task are locked behind
/// it.
pub(super) const WAITING: Split = Split {
    postgres: "select d.task_id from due d join tasks t on t.id = d.task_id
                where t.tenant_id = $1 and t.status = 'paused' and t.awaited_service = $2 and t.awaited_account = $3
                order by d.task_id limit $4 for update of d",
    sqlite: WAITING_NOW,
};

/// Those tasks without locks: what is to be planned.
const WAITING_NOW: &str = "select id from tasks
      where tenant_id = $1 and status = 'paused' and awaited_service = $2 and awaited_account = $3
      order by id limit $4";

/// Those behind them go on later.
pub(super) const LATER: &str = "
    insert into resumptions (task_id, tenant_id, service, account)
    select id, tenant_id, $2, $3 from tasks
     where tenant_id = $1 and status = 'paused' and awaited_service = $2 and awaited_account = $3 and id > $4
     order by id
    on conflict (task_id) do update set service = excluded.service, account = excluded.account";

/// Whether something of a tenant is resumed by nobody. The index is used where its condition is said, and by nothing
/// else.
const TENANTS: &str = sql!(
    TENANTS_WITH_DUE; "{table}" = "resumptions"; "{index}" = ""; "{having}" = "d.seq > 0";
    "{due}" = "(d.claimed_until is null or d.claimed_until <= $3)"; "{order}" = "d.seq"
);

/// The first (`$2` of each) of the listed tenants (`$3`) that nobody resumes at `$1`.
const FIRST_OF_TENANTS: Split = Split {
    postgres: "select r.seq
                 from jsonb_array_elements_text($3::jsonb) as t (tenant_id)
                cross join lateral (select d.seq from resumptions d
                                     where d.seq > 0 and d.tenant_id between t.tenant_id and t.tenant_id
                                       and (d.claimed_until is null or d.claimed_until <= $1)
                                     order by d.tenant_id, d.seq limit $2) r",
    sqlite: "select r.seq
               from json_each($3) t
              cross join resumptions r
              where r.seq in (select d.seq from resumptions d
                               where d.seq > 0 and d.tenant_id = t.value
                                 and (d.claimed_until is null or d.claimed_until <= $1)
                               order by d.seq limit $2)",
};
/// Of these, those that nobody has claimed since, for this instance until `$2`.
const CLAIM_RESUMPTIONS: Split = Split {
    postgres: "update resumptions set claimed_until = $2
                where seq = any (array(select cast(t.seq as bigint) from jsonb_array_elements_text($3::jsonb) as t (seq)))
                  and (claimed_until is null or claimed_until <= $1)
               returning seq, task_id, tenant_id, service, account",
    sqlite: "update resumptions set claimed_until = $2
              where seq in (select t.value from json_each($3) t)
                and (claimed_until is null or claimed_until <= $1)
             returning seq, task_id, tenant_id, service, account",
};
const FORGET_RESUMPTION: &str = "delete from resumptions where task_id = $1";

/// A task that is to go on.
#[derive(sqlx_macros::FromRow)]
struct Resumption {
    seq: i64,
    task_id: Uuid,
    tenant_id: String,
    service: String,
    account: String,
}

/// Tasks that go on with a credential that was saved.
#[derive(Default)]
pub(super) struct ResumedTasks {
    pub resumed: Vec<DependentTask>,
    /// Why instants of theirs were recorded as skipped.
    pub missed: Vec<&'static str>,
    /// Tasks that go on behind these.
    pub later: u64,
}

/// Resumptions that are planned, by their tasks. They are planned before the transaction.
#[derive(Default)]
pub(super) struct Resumptions {
    plans: HashMap<Uuid, PlannedChange>,
    /// Those that can't be read: they stay as they are.
    pub unreadable: HashSet<Uuid>,
}

impl Resumptions {
    /// The planned change of a task, if it is among these.
    pub fn of(&self, task_id: Uuid) -> Option<&PlannedChange> {
        self.plans.get(&task_id)
    }
}

impl Store {
    /// The first that wait for this credential of a tenant, planned to go on.
    pub(super) async fn plan_resumptions(
        &self,
        scope: &Scope,
        tenant: &str,
        credential: &Reference,
    ) -> Result<Resumptions, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let Reference { service, account } = credential;
        let waiting: Vec<Uuid> = read
            .query(WAITING_NOW)
            .bind(text(tenant))
            .bind(text(service))
            .bind(text(account))
            .bind(AT_ONCE)
            .scalars()
            .await?;
        read.end().await?;
        let mut planned = Resumptions::default();
        self.plan_more(scope, waiting, &mut planned).await?;
        Ok(planned)
    }

    /// Plans these tasks, too: they have come to wait, or have changed, since the others were planned.
    pub(super) async fn plan_more(
        &self,
        scope: &Scope,
        tasks: Vec<Uuid>,
        planned: &mut Resumptions,
    ) -> Result<(), StoreError> {
        for id in tasks {
            match self.plan_change(scope, id, &TaskChange::Resume, self.clock.now()).await {
                Ok(plan) => drop(plan.and_then(|plan| planned.plans.insert(id, plan))),
                Err(StoreError::NotFound) => {}
                Err(StoreError::Corrupt(why)) => {
                    self.unreadable.report("tasks", id, &why);
                    planned.unreadable.insert(id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Those who look for work hear of tasks that were resumed, and what these have missed is counted.
    pub(super) fn notify_resumed(&self, went_on: &ResumedTasks) {
        self.counts.each_skipped(&went_on.missed);
        if !went_on.resumed.is_empty() {
            self.notify(Topic::Due);
            self.notify(Topic::Queue);
            self.notify(Topic::Windows);
        }
        if went_on.later > 0 {
            self.notify(Topic::Resumptions);
        }
    }

    /// Resumes up to `limit` tasks whose credential was saved: of each tenant that has its turn the first that nobody
    /// else resumes. Answers how many there were. One that was resumed, paused for something else or deleted meanwhile
    /// stays as it is, and so does one whose credential is of no use any more.
    pub async fn resume_next(&self, limit: i64) -> Result<usize, StoreError> {
        let mut claimed = self.claim_resumptions(limit).await?;
        claimed.sort_by_key(|resumption| resumption.seq);
        for resumption in &claimed {
            match self.resume(resumption).await {
                // the claim ends by itself
                Err(error @ (StoreError::Unavailable(_) | StoreError::TimedOut(_))) => return Err(error),
                Err(error) => {
                    tracing::warn!(task_id = %resumption.task_id, %error, "a task whose credential was saved is not resumed yet");
                }
                Ok(()) => {}
            }
        }
        Ok(claimed.len())
    }

    /// Claims up to so many, tenants in turn. Where another instance was before this one, the next are looked for.
    async fn claim_resumptions(&self, limit: i64) -> Result<Vec<Resumption>, StoreError> {
        for _ in 0..PLANS {
            let now = self.clock.now();
            let turn = self.next_turn(&self.resumption_cursor, TENANTS.into(), now, limit).await?;
            let each = tenant_turns::rows_per_tenant(limit, turn.len());
            // found apart: where the rows are locked as well, Postgres may read all of a tenant for them
            let mut read = self.db.read_quick().await?;
            let first: Vec<i64> =
                read.query(FIRST_OF_TENANTS).bind(now).bind(each).bind(document(&turn)?).scalars().await?;
            read.end().await?;
            if first.is_empty() {
                if self.resumption_cursor.is_at_start() {
                    break;
                }
                // the tenants behind these may have what nobody resumes
                continue;
            }
            let mut write = self.db.write(&Scope::Every).await?;
            let claim = write.query(CLAIM_RESUMPTIONS).bind(now).bind(now + CLAIM).bind(document(&first)?);
            let claimed: Vec<Resumption> = claim.all().await?;
            write.commit().await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
        Ok(Vec::new())
    }

    /// Plans a task at the present instant and resumes it, as often as it is another one by then.
    async fn resume(&self, resumption: &Resumption) -> Result<(), StoreError> {
        let id = resumption.task_id;
        for _ in 0..PLANS {
            let now = self.clock.now();
            let planned = match self.plan_change(&Scope::Every, id, &TaskChange::Resume, now).await {
                Ok(Some(planned)) => planned,
                Ok(None) => {
                    self.fire_task(id, now).await?;
                    continue;
                }
                Err(StoreError::NotFound) => return self.forget_resumption(id).await,
                Err(StoreError::Corrupt(why)) => {
                    self.unreadable.report("tasks", id, &why);
                    return self.forget_resumption(id).await;
                }
                Err(error) => return Err(error),
            };
            match self.try_resume(resumption, &planned).await {
                Ok(Some(went_on)) => {
                    self.notify_resumed(&went_on);
                    return Ok(());
                }
                Ok(None) => {}
                Err(StoreError::NotFound) => return self.forget_resumption(id).await,
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict(TASKS_MOVE.into()))
    }

    /// One try; `None`: the task is not as it was planned, and nothing is written.
    async fn try_resume(
        &self,
        resumption: &Resumption,
        planned: &PlannedChange,
    ) -> Result<Option<ResumedTasks>, StoreError> {
        let Resumption { task_id, tenant_id, service, account, .. } = resumption;
        let credential = Reference { service: service.clone(), account: account.clone() };
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        lock_reference(tx, tenant_id, service, account).await?;
        let row = lock_task(tx, *task_id, &Scope::Every).await?;
        let is_wanted = tx.query(FORGET_RESUMPTION).bind(task_id).execute().await? == 1;
        let stands: Option<(String, DateTime<Utc>)> =
            tx.query(STANDS).bind(text(tenant_id)).bind(text(service)).bind(text(account)).optional().await?;
        let is_active =
            stands.is_some_and(|(status, _)| CredentialStatus::parse(&status) == Some(CredentialStatus::Active));
        let mut went_on = ResumedTasks::default();
        if is_wanted && is_active && row.awaits(&credential) {
            match as_planned(tx, row, planned).await? {
                None => return Ok(None),
                // its trigger can't go on any more
                Some(_) if planned.is_refused() => {}
                Some(locked) => {
                    let (task, skipped) =
                        change_locked(tx, locked, &TaskChange::Resume, &Scope::Every, planned).await?;
                    went_on.resumed.push(DependentTask::of(&task));
                    went_on.missed.extend(skipped);
                }
            }
        }
        write.commit().await?;
        Ok(Some(went_on))
    }

    async fn forget_resumption(&self, task_id: Uuid) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write.query(FORGET_RESUMPTION).bind(task_id).execute().await?;
        write.commit().await?;
        Ok(())
    }
}

/// Resumes the first that wait for a credential that was written and can be used, and lays out the others to be
/// resumed. `Err`: these tasks are not planned as they are, and nothing may be committed.
pub(super) async fn resume_waiting(
    store: &Store,
    tx: &mut Tx<'_>,
    credential: &Credential,
    scope: &Scope,
    planned: &Resumptions,
) -> Result<Result<ResumedTasks, Vec<Uuid>>, StoreError> {
    let mut went_on = ResumedTasks::default();
    let mut unplanned: Vec<Uuid> = Vec::new();
    let Credential { tenant_id, service, account_name, .. } = credential;
    let reference = credential.reference();
    let waiting: Vec<Uuid> = match credential.status {
        CredentialStatus::NeedsConsent => Vec::new(),
        CredentialStatus::Active => {
            tx.query(WAITING).bind(tenant_id).bind(service).bind(account_name).bind(AT_ONCE).scalars().await?
        }
    };
    let last = waiting.last().copied().filter(|_| waiting.len() as i64 == AT_ONCE);
    for id in waiting {
        // one that can't be read must not keep the credential from being saved
        if planned.unreadable.contains(&id) {
            continue;
        }
        let read = tx.query(sql!(SELECT_TASK, "where t.id = $1")).bind(id).optional().await;
        let row: Option<TaskRow> = match read.map_err(StoreError::from) {
            Ok(row) => row,
            Err(StoreError::Corrupt(why)) => {
                store.unreadable.report("tasks", id, &why);
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(row) = row.filter(|row| row.awaits(&reference)) else { continue };
        let Some(plan) = planned.of(id) else {
            unplanned.push(id);
            continue;
        };
        match as_planned(tx, row, plan).await? {
            // one whose trigger can't go on any more must not keep its credential from being saved
            Some(_) if plan.is_refused() => {}
            Some(locked) => {
                let (task, skipped) = change_locked(tx, locked, &TaskChange::Resume, scope, plan).await?;
                went_on.resumed.push(DependentTask::of(&task));
                went_on.missed.extend(skipped);
            }
            None => unplanned.push(id),
        }
    }
    if !unplanned.is_empty() {
        return Ok(Err(unplanned));
    }
    if let Some(last) = last {
        went_on.later = tx.query(LATER).bind(tenant_id).bind(service).bind(account_name).bind(last).execute().await?;
    }
    Ok(Ok(went_on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_resumptions_are_found_by_their_tenant() {
        for statement in [TENANTS, FIRST_OF_TENANTS.sqlite] {
            let plan = sqlite_plan(statement).await;
            let looks: Vec<&String> = plan.iter().filter(|step| step.contains(" d ")).collect();
            let is_search = |step: &&String| step.contains("SEARCH") && step.contains("resumptions_of_tenant");
            assert!(!looks.is_empty() && looks.iter().all(is_search), "{plan:?}");
            assert!(!plan.iter().any(|step| step.contains("SCAN r")), "{plan:?}");
        }
    }
}
