//! Waiting for runs, until they have ended or a person is asked. The record is what counts; what is heard only says
//! when to look.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::id::Scope;
use crate::domain::run::{Run, RunState, StreamEvent};
use crate::executor::hub::{RunSubscription, WatchedEvent};
use crate::http::HttpState;
use crate::http::api::runs::missing;
use crate::http::error::ApiError;

/// How often the record is looked at while nothing is heard.
const LOOK: Duration = Duration::from_millis(500);

/// Whether a run in this state has an answer, or waits for a person.
pub fn is_settled(state: RunState) -> bool {
    state.is_final() || matches!(state, RunState::PendingApproval | RunState::WaitingForInput)
}

/// The run once it has ended or waits for a person, or as it is when it was waited for long enough.
pub async fn wait_until_settled(
    state: &HttpState,
    scope: &Scope,
    id: Uuid,
    live: RunSubscription,
) -> Result<Run, ApiError> {
    wait_until(state, scope, id, live, |run| is_settled(run.state)).await
}

/// The run once it is so, or as it is when it was waited for long enough.
pub async fn wait_until(
    state: &HttpState,
    scope: &Scope,
    id: Uuid,
    live: RunSubscription,
    is_enough: impl Fn(&Run) -> bool,
) -> Result<Run, ApiError> {
    let mut wait = RunWait::new(state, live, state.limits.answer_time);
    loop {
        let run = state.store.get_run(scope, id).await.map_err(missing)?;
        if is_enough(&run) || wait.is_over() {
            return Ok(run);
        }
        wait.next_look().await;
    }
}

/// The times at which the record of a run is looked at: it was heard of, or some time has passed.
pub struct RunWait {
    live: RunSubscription,
    patience: BoxFuture<'static, ()>,
    stop: CancellationToken,
    is_over: bool,
}

impl RunWait {
    /// From now on, for so long, or until the service stops.
    pub fn new(state: &HttpState, live: RunSubscription, patience: Duration) -> RunWait {
        RunWait { live, patience: Box::pin(pause(patience)), stop: state.stop.clone(), is_over: false }
    }

    /// Whether it was waited for long enough: the next look is the last.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns when it is time to look.
    pub async fn next_look(&mut self) {
        if self.is_over {
            return;
        }
        tokio::select! {
            () = change_of(&mut self.live) => {}
            () = pause(LOOK) => {}
            () = &mut self.patience => self.is_over = true,
            () = self.stop.cancelled() => self.is_over = true,
        }
    }
}

/// Returns once the run has come to another state.
async fn change_of(live: &mut RunSubscription) {
    while !matches!(
        live.next().await,
        WatchedEvent::Missed(_)
            | WatchedEvent::Event(StreamEvent::StateChange { .. } | StreamEvent::ExecutionEnd { .. })
    ) {}
}
