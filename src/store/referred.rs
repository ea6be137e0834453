//! What a delivery refers to, as it stands when somebody asks: its words are made of that, and stored nowhere.

use crate::id::Scope;
use crate::notification::Delivery;
use crate::notification::wording::References;
use crate::run::Run;
use crate::store::{Store, StoreError};

/// The run that a message is about, and the name of its task.
#[derive(Debug, Clone, Default)]
pub struct Referred {
    pub run: Option<Run>,
    pub task_name: Option<String>,
}

impl Referred {
    /// The same for the message's words.
    pub fn about(&self) -> References<'_> {
        References { run: self.run.as_ref(), task_name: self.task_name.as_deref(), ..References::default() }
    }
}

impl Store {
    /// What a delivery refers to; what is gone is none.
    pub async fn referred(&self, delivery: &Delivery) -> Result<Referred, StoreError> {
        let run = match delivery.run_id {
            Some(run_id) => found(self.get_run(&Scope::Every, run_id).await)?,
            None => None,
        };
        let task = match run.as_ref().and_then(|run| run.task_id) {
            Some(task_id) => found(self.get_task(&Scope::Every, task_id).await)?,
            None => None,
        };
        Ok(Referred { run, task_name: task.map(|task| task.name) })
    }
}

/// What is gone is none; anything else that is wrong stays an error.
fn found<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
