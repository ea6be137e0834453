//! Tasks that are paused for want of a credential go on when it is saved: the first few in the transaction that writes it,
//! the others one after the other behind it, each planned at its own instant. What is to go on stands in `resumptions`, so
//! nothing is lost where the process ends in between.
//!
//! Writing a credential and pausing a task for want of it take turns, by the credential's name ([`in_turn`]): so a task
//! is paused either before, and goes on here, or after, and sees what is saved.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::credential::{CredentialStatus, Reference, paused_for};
use crate::id::Scope;
use crate::store::changes::{PLANS, as_planned, change_locked};
use crate::store::credentials::TASKS_MOVE;
use crate::store::failing::STANDS;
use crate::store::tasks::lock_task;
use crate::store::text::text;
use crate::store::{Split, Store, StoreError, Topic};
use crate::task::DependentTask;
use crate::task::change::{PlannedChange, TaskChange};

/// Tasks that go on in the transaction that saves their credential.
pub(super) const AT_ONCE: i64 = 20;
/// A task that an instance has claimed to resume is resumed by another one after this time.
const CLAIM: TimeDelta = TimeDelta::seconds(30);

/// Before anything else in the transaction.
pub(in crate::store) const IN_TURN: Split = Split {
    postgres: "select pg_advisory_xact_lock(
                   hashtextextended(concat_ws('/', 'reveille_credential', current_schema(), $1::text, $2::text, $3::text), 0))",
    sqlite: "select $1, $2, $3",
};

macro_rules! in_turn {
    ($store:ident, $conn:ident, $tenant:expr, $service:expr, $account:expr) => {
        sqlx::query($store.db.text($crate::store::credentials::IN_TURN))
            .bind($crate::store::text::text($tenant))
            .bind($crate::store::text::text($service))
            .bind($crate::store::text::text($account))
            .execute(&mut *$conn)
            .await?
    };
}
pub(in crate::store) use in_turn;

/// The first that wait for a credential, locked before one is changed: what is changed with a task is locked behind it.
pub(super) const WAITING: Split = Split {
    postgres: "select d.task_id from due d join tasks t on t.id = d.task_id
                where t.tenant_id = $1 and t.status = 'paused' and t.status_reason = $2
                order by d.task_id limit $3 for update of d",
    sqlite: WAITING_NOW,
};

/// Those tasks without locks: what is to be planned.
const WAITING_NOW: &str =
    "select id from tasks where tenant_id = $1 and status = 'paused' and status_reason = $2 order by id limit $3";

/// Those behind them go on later.
pub(super) const LATER: &str = "
    insert into resumptions (task_id, tenant_id, service, account)
    select id, tenant_id, $3, $4 from tasks
     where tenant_id = $1 and status = 'paused' and status_reason = $2 and id > $5
     order by id
    on conflict (task_id) do update set service = excluded.service, account = excluded.account";

/// The first that nobody resumes now, for this instance until $2.
const CLAIM_RESUMPTIONS: Split = Split {
    postgres: "update resumptions set claimed_until = $2
                where task_id in (select task_id from resumptions where claimed_until is null or claimed_until <= $1
                                   order by seq limit $3 for update skip locked)
               returning seq, task_id, tenant_id, service, account",
    sqlite: "update resumptions set claimed_until = $2
              where task_id in (select task_id from resumptions where claimed_until is null or claimed_until <= $1
                                 order by seq limit $3)
             returning seq, task_id, tenant_id, service, account",
};
const FORGET_RESUMPTION: &str = "delete from resumptions where task_id = $1";

/// A task that is to go on.
#[derive(sqlx::FromRow)]
struct Resumption {
    seq: i64,
    task_id: Uuid,
    tenant_id: String,
    service: String,
    account: String,
}

/// Tasks that go on with a credential that was saved.
#[derive(Default)]
pub(super) struct WentOn {
    pub resumed: Vec<DependentTask>,
    /// Why instants of theirs were recorded as skipped.
    pub missed: Vec<&'static str>,
    /// Tasks that go on behind these.
    pub later: u64,
}

/// Resumptions that are planned, by their tasks. What is computed for them is computed before the transaction.
#[derive(Default)]
pub(super) struct Resumptions {
    plans: HashMap<Uuid, PlannedChange>,
    /// Those that can't be read: they stay as they are.
    pub unreadable: HashSet<Uuid>,
}

impl Resumptions {
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
        let waiting: Vec<Uuid> = on_read!(self.db, scope, |conn| {
            sqlx::query_scalar(WAITING_NOW)
                .bind(text(tenant))
                .bind(paused_for(credential))
                .bind(AT_ONCE)
                .fetch_all(conn)
                .await?
        });
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
                    self.unreadable.tell("tasks", id, &why);
                    planned.unreadable.insert(id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Those who look for work hear of tasks that were resumed, and what these have missed is counted.
    pub(super) fn tell_of(&self, went_on: &WentOn) {
        self.counts.each_skipped(&went_on.missed);
        if !went_on.resumed.is_empty() {
            self.hint(Topic::Due);
            self.hint(Topic::Queue);
            self.hint(Topic::Windows);
        }
        if went_on.later > 0 {
            self.hint(Topic::Resumptions);
        }
    }

    /// Resumes up to `limit` tasks whose credential was saved, the first that nobody else resumes; answers how many there
    /// were. One that was resumed, paused for something else or deleted meanwhile stays as it is, and so does one whose
    /// credential is of no use any more.
    pub async fn resume_next(&self, limit: i64) -> Result<usize, StoreError> {
        let now = self.clock.now();
        let mut claimed: Vec<Resumption> = on_write!(self.db, |conn| {
            sqlx::query_as(self.db.text(CLAIM_RESUMPTIONS))
                .bind(now)
                .bind(now + CLAIM)
                .bind(limit)
                .fetch_all(&mut *conn)
                .await?
        });
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
                    self.unreadable.tell("tasks", id, &why);
                    return self.forget_resumption(id).await;
                }
                Err(error) => return Err(error),
            };
            match self.try_resume(resumption, &planned).await {
                Ok(Some(went_on)) => {
                    self.tell_of(&went_on);
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
    async fn try_resume(&self, resumption: &Resumption, planned: &PlannedChange) -> Result<Option<WentOn>, StoreError> {
        let Resumption { task_id, tenant_id, service, account, .. } = resumption;
        let reason = paused_for(&Reference { service: service.clone(), account: account.clone() });
        Ok(Some(on_write!(self.db, |conn| {
            in_turn!(self, conn, tenant_id, service, account);
            let row = lock_task!(self.db, conn, *task_id, Scope::Every);
            let is_wanted =
                sqlx::query(FORGET_RESUMPTION).bind(task_id).execute(&mut *conn).await?.rows_affected() == 1;
            let stands: Option<(String, DateTime<Utc>)> = sqlx::query_as(STANDS)
                .bind(text(tenant_id))
                .bind(text(service))
                .bind(text(account))
                .fetch_optional(&mut *conn)
                .await?;
            let is_active =
                stands.is_some_and(|(status, _)| CredentialStatus::parse(&status) == Some(CredentialStatus::Active));
            match is_wanted && is_active && row.is_paused_for(&reason) {
                false => WentOn::default(),
                true => match as_planned!(self, conn, row, planned) {
                    None => return Ok(None),
                    // its trigger can't go on any more
                    Some(_) if planned.is_refused() => WentOn::default(),
                    Some((task, ahead)) => {
                        let (task, skipped) =
                            change_locked!(self, conn, task, ahead, &TaskChange::Resume, &Scope::Every, planned);
                        WentOn {
                            resumed: vec![DependentTask::of(&task)],
                            missed: skipped.into_iter().collect(),
                            later: 0,
                        }
                    }
                },
            }
        })))
    }

    async fn forget_resumption(&self, task_id: Uuid) -> Result<(), StoreError> {
        on_write!(self.db, |conn| {
            sqlx::query(FORGET_RESUMPTION).bind(task_id).execute(&mut *conn).await?;
        });
        Ok(())
    }
}

/// Resumes the first that wait for a credential that was written and can be used, and lays out the others to be resumed.
/// `Err`: these tasks are not planned as they are, and nothing may be committed.
macro_rules! resume_waiting {
    ($store:ident, $conn:ident, $credential:expr, $scope:expr, $planned:expr) => {{
        use $crate::store::credentials::resuming::{AT_ONCE, LATER, Resumptions, WAITING, WentOn};
        use $crate::store::tasks::{TaskRow, select_task};
        let credential: &$crate::credential::Credential = $credential;
        let planned: &Resumptions = $planned;
        let mut went_on = WentOn::default();
        let mut unplanned: Vec<uuid::Uuid> = Vec::new();
        let waiting: Vec<uuid::Uuid> = match credential.status {
            $crate::credential::CredentialStatus::NeedsConsent => Vec::new(),
            $crate::credential::CredentialStatus::Active => {
                sqlx::query_scalar($store.db.text(WAITING))
                    .bind(&credential.tenant_id)
                    .bind(credential.paused_for())
                    .bind(AT_ONCE)
                    .fetch_all(&mut *$conn)
                    .await?
            }
        };
        let last = waiting.last().copied().filter(|_| waiting.len() as i64 == AT_ONCE);
        let resume = $crate::task::change::TaskChange::Resume;
        for id in waiting {
            // one that can't be read must not keep the credential from being saved
            if planned.unreadable.contains(&id) {
                continue;
            }
            let read = sqlx::query_as(select_task!("where t.id = $1")).bind(id).fetch_optional(&mut *$conn).await;
            let row: Option<TaskRow> = match read.map_err($crate::store::StoreError::from) {
                Ok(row) => row,
                Err($crate::store::StoreError::Corrupt(why)) => {
                    $store.unreadable.tell("tasks", id, &why);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(row) = row.filter(|row| row.is_paused_for(&credential.paused_for())) else { continue };
            let Some(plan) = planned.of(id) else {
                unplanned.push(id);
                continue;
            };
            match $crate::store::changes::as_planned!($store, $conn, row, plan) {
                // one whose trigger can't go on any more must not keep its credential from being saved
                Some(_) if plan.is_refused() => {}
                Some((task, ahead)) => {
                    let (task, skipped) =
                        $crate::store::changes::change_locked!($store, $conn, task, ahead, &resume, $scope, plan);
                    went_on.resumed.push($crate::task::DependentTask::of(&task));
                    went_on.missed.extend(skipped);
                }
                None => unplanned.push(id),
            }
        }
        if let (Some(last), true) = (last, unplanned.is_empty()) {
            let later = sqlx::query(LATER)
                .bind(&credential.tenant_id)
                .bind(credential.paused_for())
                .bind(&credential.service)
                .bind(&credential.account_name)
                .bind(last)
                .execute(&mut *$conn)
                .await?;
            went_on.later = later.rows_affected();
        }
        match unplanned.is_empty() {
            true => Ok(went_on),
            false => Err(unplanned),
        }
    }};
}
pub(super) use resume_waiting;
