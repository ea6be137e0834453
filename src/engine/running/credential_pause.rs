//! A task that can't go on without a credential is paused, and its owner told, before the end of its run is recorded.
//!
//! In this order, because it can be done twice and the end can't: after a crash in between the run is executed once
//! more, comes to the same, and finds its task paused. The other way round nobody would ever hear of it.

use uuid::Uuid;

use crate::base::backoff::full_jitter;
use crate::base::clock;
use crate::domain::credential::CredentialIssue;
use crate::domain::run::{RunError, RunOutcome};
use crate::domain::task::Task;
use crate::domain::task::change::FaultyPart;
use crate::engine::running::finisher::BACK_OFF;
use crate::executor::UNREADABLE_ACTION;
use crate::store::{PauseResult, SeenTask, Store, StoreError, with_timeout};

/// The credential issue for which a run failed, if it was one.
pub fn credential_issue(result: &Result<RunOutcome, RunError>) -> Option<&CredentialIssue> {
    match result {
        Err(RunError::Fail { fault }) => fault.credential_issue.as_deref(),
        _ => None,
    }
}

/// Why the action of a run can't be read as it is stored, if that is how it failed.
pub fn unreadable(result: &Result<RunOutcome, RunError>) -> Option<&str> {
    match result {
        Err(RunError::Fail { fault }) if fault.code == UNREADABLE_ACTION => Some(&fault.message),
        _ => None,
    }
}

/// Disables a task whose action can't be read, so that it is not computed again at each fire; answers whether its owner
/// is told by that.
pub async fn disable(store: &Store, task: &Task, why: &str) -> bool {
    let seen = SeenTask::Version(task.version);
    match retry_until_available(|| store.disable_task(task.id, seen, FaultyPart::Action, why)).await {
        Ok(true) => {
            tracing::error!(task_id = %task.id, why, "the action of a task can't be read, it is disabled");
            true
        }
        Ok(false) => false,
        Err(error) => {
            tracing::error!(task_id = %task.id, %error, "a task that can't be read can't be disabled");
            false
        }
    }
}

/// Pauses the task, and answers whether its owner is told by that; a failure that they are not told of so is told like
/// any other. A store that is away is waited for: who asks gives up when the run is no longer theirs.
pub async fn pause(store: &Store, task_id: Uuid, issue: &CredentialIssue) -> bool {
    let paused = retry_until_available(|| store.pause_for_credential(task_id, issue)).await;
    if let Ok(PauseResult::Paused) = paused {
        tracing::warn!(%task_id, credential = %issue.credential, "a task lacks a credential, it is paused");
    }
    match paused {
        Ok(PauseResult::Paused | PauseResult::Notified) => true,
        Ok(PauseResult::Resolved) => false,
        Err(error) => {
            tracing::error!(%task_id, %error, "a task that lacks a credential can't be paused");
            false
        }
    }
}

/// The store's answer, asked again for as long as it is away.
async fn retry_until_available<T, F: Future<Output = Result<T, StoreError>>>(
    ask: impl Fn() -> F,
) -> Result<T, StoreError> {
    for tries in 1.. {
        let error = match with_timeout(ask()).await {
            Err(StoreError::Unavailable(error) | StoreError::TimedOut(error)) => error,
            answer => return answer,
        };
        tracing::warn!(%error, "a task that can't go on could not be stopped, trying again");
        clock::pause(full_jitter(BACK_OFF.0, tries, BACK_OFF.1, fastrand::f64())).await;
    }
    unreachable!("tries have no end")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn store_that_is_away_is_asked_until_it_answers() {
        let asked = AtomicU32::new(0);
        let away = || async { Err(StoreError::Unavailable("away".into())) };
        let answer = retry_until_available(|| async {
            match asked.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => away().await,
                _ => Ok(PauseResult::Notified),
            }
        });
        assert_eq!((answer.await.unwrap(), asked.load(Ordering::Relaxed)), (PauseResult::Notified, 3));
        let broken = retry_until_available(|| async { Err::<PauseResult, _>(StoreError::Corrupt("odd".into())) }).await;
        assert!(matches!(broken, Err(StoreError::Corrupt(_))), "{broken:?}");
    }
}
