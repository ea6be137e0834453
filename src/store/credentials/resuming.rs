//! Tasks that are paused for want of a credential go on when it is saved: a step of the transaction that writes it.
//!
//! Whoever writes a credential and whoever pauses a task for want of it take turns, by its name ([`in_turn`]): so a task is
//! paused either before, and goes on here, or after, and sees what is saved.

use crate::store::Split;

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

/// Resumes what waits for a credential that was written and can be used: the tasks, and why instants of theirs were
/// recorded as skipped.
macro_rules! resume_waiting {
    ($store:ident, $conn:ident, $credential:expr, $scope:expr, $now:expr) => {{
        use $crate::store::credentials::resuming::WAITING;
        use $crate::store::tasks::{TaskRow, select_task};
        let credential: &$crate::credential::Credential = $credential;
        let mut resumed: Vec<$crate::credential::DependentTask> = Vec::new();
        let mut missed: Vec<&'static str> = Vec::new();
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
            let row: Option<TaskRow> =
                sqlx::query_as(select_task!("where t.id = $1")).bind(id).fetch_optional(&mut *$conn).await?;
            let Some(row) = row else { continue };
            let nominal_at = row.nominal_at;
            let task = row.task()?;
            let waits =
                task.status == $crate::task::TaskStatus::Paused && task.status_reason == Some(credential.paused_for());
            // one whose trigger can't go on any more must not keep its credential from being saved
            if !waits || task.change(&resume, $scope, nominal_at, $now).is_err() {
                continue;
            }
            let (task, skipped) =
                $crate::store::changes::change_locked!($store, $conn, task, nominal_at, &resume, $scope, $now);
            resumed.push($crate::credential::DependentTask::of(&task));
            missed.extend(skipped);
        }
        (resumed, missed)
    }};
}
pub(super) use resume_waiting;
