//! Tasks that are paused for want of a credential go on when it is saved: a step of the transaction that writes it.
//!
//! Whoever writes a credential and whoever pauses a task for want of it take turns, by its name ([`in_turn`]): so a task is
//! paused either before, and goes on here, or after, and sees what is saved.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::credential::{Reference, paused_for};
use crate::id::Scope;
use crate::store::text::text;
use crate::store::{Split, Store, StoreError};
use crate::task::change::{PlannedChange, TaskChange};

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

/// All that wait for a credential, locked before the first is changed: what is changed with a task is locked behind it.
pub(super) const WAITING: Split = Split {
    postgres: "select d.task_id from due d join tasks t on t.id = d.task_id
                where t.tenant_id = $1 and t.status = 'paused' and t.status_reason = $2
                order by d.task_id for update of d",
    sqlite: "select id from tasks where tenant_id = $1 and status = 'paused' and status_reason = $2 order by id",
};

/// Those tasks without locks: what is to be planned.
const WAITING_NOW: &str =
    "select id from tasks where tenant_id = $1 and status = 'paused' and status_reason = $2 order by id";

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
    /// What waits for this credential of a tenant, planned to go on.
    pub(super) async fn plan_resumptions(
        &self,
        scope: &Scope,
        tenant: &str,
        credential: &Reference,
        now: DateTime<Utc>,
    ) -> Result<Resumptions, StoreError> {
        let waiting: Vec<Uuid> = on_read!(self.db, scope, |conn| {
            sqlx::query_scalar(WAITING_NOW).bind(text(tenant)).bind(paused_for(credential)).fetch_all(conn).await?
        });
        let mut planned = Resumptions::default();
        self.plan_more(scope, waiting, &mut planned, now).await?;
        Ok(planned)
    }

    /// Plans these tasks, too: they have come to wait, or have changed, since the others were planned.
    pub(super) async fn plan_more(
        &self,
        scope: &Scope,
        tasks: Vec<Uuid>,
        planned: &mut Resumptions,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        for id in tasks {
            match self.plan_change(scope, id, &TaskChange::Resume, now).await {
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
}

/// Resumes what waits for a credential that was written and can be used: the tasks, and why instants of theirs were
/// recorded as skipped. `Err`: these tasks are not planned as they are, and nothing may be committed.
macro_rules! resume_waiting {
    ($store:ident, $conn:ident, $credential:expr, $scope:expr, $planned:expr) => {{
        use $crate::store::credentials::resuming::{Resumptions, WAITING};
        use $crate::store::tasks::{TaskRow, select_task};
        let credential: &$crate::credential::Credential = $credential;
        let planned: &Resumptions = $planned;
        let mut resumed: Vec<$crate::credential::DependentTask> = Vec::new();
        let mut missed: Vec<&'static str> = Vec::new();
        let mut unplanned: Vec<uuid::Uuid> = Vec::new();
        let waiting: Vec<uuid::Uuid> = match credential.status {
            $crate::credential::CredentialStatus::NeedsConsent => Vec::new(),
            $crate::credential::CredentialStatus::Active => {
                sqlx::query_scalar($store.db.text(WAITING))
                    .bind(&credential.tenant_id)
                    .bind(credential.paused_for())
                    .fetch_all(&mut *$conn)
                    .await?
            }
        };
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
                    resumed.push($crate::credential::DependentTask::of(&task));
                    missed.extend(skipped);
                }
                None => unplanned.push(id),
            }
        }
        match unplanned.is_empty() {
            true => Ok((resumed, missed)),
            false => Err(unplanned),
        }
    }};
}
pub(super) use resume_waiting;
