//! The things to which a delivery refers, as they stand when somebody asks: its words are made of them, and stored
//! nowhere.

use crate::base::id::Scope;
use crate::base::unicode_safety::on_one_line;
use crate::domain::notification::{CredentialContext, Delivery, References, SubjectRef};
use crate::domain::run::Run;
use crate::domain::task::TaskStatus;
use crate::store::{Store, StoreError};

/// The records that a message refers to: its run and the name of its task; the credential of a notice.
#[derive(Debug, Clone, Default)]
pub struct ReferredRecords {
    /// The run that the message is about.
    pub run: Option<Run>,
    /// Name of the task.
    pub task_name: Option<String>,
    /// The credential that a notice is about.
    pub credential: Option<CredentialContext>,
}

impl ReferredRecords {
    /// The references for the message's words.
    pub fn references(&self) -> References<'_> {
        References {
            run: self.run.as_ref(),
            task_name: self.task_name.as_deref(),
            credential: self.credential.as_ref(),
            ..References::default()
        }
    }
}

impl Store {
    /// Reads the things to which a delivery refers; one that is gone is `None`.
    pub async fn referred(&self, delivery: &Delivery) -> Result<ReferredRecords, StoreError> {
        let run = match delivery.run_id {
            Some(run_id) => self.find_run(&Scope::Every, run_id).await?,
            None => None,
        };
        let task = match run.as_ref().and_then(|run| run.task_id) {
            Some(task_id) => self.find_task(&Scope::Every, task_id).await?,
            None => None,
        };
        let credential = match CredentialContext::of(delivery) {
            Some(context) => self.current_state(context, delivery).await?,
            None => None,
        };
        Ok(ReferredRecords { run, task_name: task.map(|task| task.name), credential })
    }

    /// Tasks that wait for the credential, and the reason; `None` where whom it concerns is gone.
    async fn current_state(
        &self,
        context: CredentialContext,
        delivery: &Delivery,
    ) -> Result<Option<CredentialContext>, StoreError> {
        let Some(SubjectRef::Credential { task_id, credential_id, .. }) = &delivery.subject_ref else {
            return Ok(None);
        };
        match (task_id, credential_id) {
            (Some(task_id), _) => {
                let task = self.find_task(&Scope::Every, *task_id).await?;
                Ok(task.map(|task| {
                    let awaited = task.awaited_credential.map(|credential| credential.to_string());
                    let paused = task.status == TaskStatus::Paused && awaited.as_ref() == Some(&context.reference);
                    CredentialContext { task: Some(on_one_line(&task.name)), paused, ..context }
                }))
            }
            (None, Some(id)) => {
                let (tenant, CredentialContext { service, account, .. }) = (&delivery.tenant_id, &context);
                let stored = self.find_credential(&Scope::Every, tenant, service, account).await?;
                let credential = stored.map(|stored| stored.credential).filter(|credential| credential.id == *id);
                Ok(credential.map(|credential| CredentialContext { reason: credential.status_reason, ..context }))
            }
            (None, None) => Ok(Some(context)),
        }
    }
}
