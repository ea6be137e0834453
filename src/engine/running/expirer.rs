//! The expirer: runs that wait for a foreign runtime past their time end as `expired`, and their owner is told;
//! messages whose provider has not said in time how they went are `unknown`.

use std::time::Duration;

use crate::base::id::Scope;
use crate::domain::notification::{RunEnd, RunNotification, report};
use crate::domain::run::{Run, RunEvent, RunFault, RunState};
use crate::domain::task::Task;
use crate::engine::service::{IdlePolicy, NextTick, ServiceLoop, TickError};
use crate::store::{RunCompletion, Store, StoreError, log_end_outside_execution};

/// Rows handled at once.
const PAGE: i64 = 100;
/// Why a run expired; the fault's code, too.
pub const REASON: &str = "completion_timeout";

/// Ends runs and deliveries whose time to be answered is over.
pub struct Expirer {
    store: Store,
}

impl Expirer {
    /// The service on this store.
    pub fn new(store: Store) -> Expirer {
        Expirer { store }
    }

    async fn expire(&self, run: &Run, task: Option<&Task>) -> Result<(), StoreError> {
        let recipient = self.store.recipient_to_tell(&run.tenant_id).await?;
        let completion = RunCompletion {
            event: RunEvent::Expire,
            output: None,
            error: Some(RunFault::new(REASON, "the webhook did not complete the run in time")),
            reason: Some(REASON.into()),
            tells: RunNotification::of(run, task, recipient.as_ref(), RunEnd::Failed { code: REASON }),
        };
        let now = self.store.clock().now();
        match self.store.complete_run(&Scope::Every, run.id, &completion, now, None).await {
            Ok(_) => log_end_outside_execution(run, task, RunState::Expired, Some(REASON), now),
            // it was completed or cancelled meanwhile
            Err(StoreError::Conflict(_) | StoreError::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        }
        if let Some((task, limit)) = task.and_then(|task| Some((task, task.spec.pause_after_failures?))) {
            self.store.pause_if_failing(task.id, limit).await?;
        }
        Ok(())
    }
}

impl ServiceLoop for Expirer {
    const NAME: &'static str = "expirer";
    const POLL_INTERVAL: Duration = Duration::from_secs(3);
    const IDLE: Option<IdlePolicy<Self>> = Some(IdlePolicy {
        max_wait: Self::POLL_INTERVAL,
        next: |_, pending| {
            let lost = pending.sent.map(|at| at + report::PATIENCE);
            [pending.parked, lost].into_iter().flatten().min()
        },
    });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.store.clock().is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        let overdue = self.store.overdue_completions(self.store.clock().now(), PAGE).await?;
        let full = overdue.len() as i64 == PAGE;
        for (run, task) in overdue {
            match self.expire(&run, task.as_ref()).await {
                Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
                Err(error) => self.store.set_aside_parked(run.id, &error).await?,
                Ok(()) => {}
            }
        }
        let lost = self.store.lose_receipts(self.store.clock().now() - report::PATIENCE, PAGE).await?;
        if lost > 0 {
            tracing::warn!(deliveries = lost, "providers have not said whether messages arrived");
        }
        let full = full || lost == PAGE as u64;
        Ok(if full { NextTick::Now } else { self.store.next_overdue().await?.into() })
    }
}
