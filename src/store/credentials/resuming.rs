//! Tasks that are paused for want of a credential go on when it is saved: a step of the transaction that writes it.
//!
//! All tasks that name it are locked, whether they are paused or not, in the order of their ids: a run that finds out
//! just now that it is missing pauses its task either before, and it goes on here, or after, and sees what is saved.

/// The tasks that name a credential, and those that wait for it without naming it; a thousand at most.
pub(super) const CONCERNED: &str = "
    select task_id from task_credentials where tenant_id = $1 and service = $2 and account = $3
     union
    select id from tasks where tenant_id = $1 and status = 'paused' and status_reason = $4
     order by 1 limit 1000";

/// Resumes what waits for a credential that was written and can be used.
macro_rules! resume_waiting {
    ($store:ident, $conn:ident, $credential:expr, $scope:expr, $now:expr) => {{
        use $crate::store::credentials::resuming::CONCERNED;
        use $crate::store::tasks::{TaskRow, select_task};
        let credential: &$crate::credential::Credential = $credential;
        let mut resumed: Vec<$crate::credential::DependentTask> = Vec::new();
        let concerned: Vec<uuid::Uuid> = match credential.status {
            $crate::credential::CredentialStatus::NeedsConsent => Vec::new(),
            $crate::credential::CredentialStatus::Active => {
                sqlx::query_scalar(CONCERNED)
                    .bind(&credential.tenant_id)
                    .bind(&credential.service)
                    .bind(&credential.account_name)
                    .bind(credential.paused_for())
                    .fetch_all(&mut *$conn)
                    .await?
            }
        };
        let resume = $crate::task::change::TaskChange::Resume;
        for id in concerned {
            sqlx::query($store.db.text($crate::store::requests::LOCK_DUE)).bind(id).execute(&mut *$conn).await?;
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
            let task = $crate::store::changes::change_locked!($store, $conn, task, nominal_at, &resume, $scope, $now);
            resumed.push($crate::credential::DependentTask::of(&task));
        }
        resumed
    }};
}
pub(super) use resume_waiting;
