//! The request that a run stop before its end, with its reason. It is heard between turns and during waits.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::domain::run::RunError;

/// Why a run is to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoopStopReason {
    /// Someone asked for its end; the text is recorded as the run's reason.
    Cancel(String),
    /// The worker goes away: checkpoint, and let another one go on.
    HandBack,
    /// The operator has halted the run's tenant: as for `HandBack`, but calls that are under way have the time that
    /// they need, since nobody waits for the worker.
    Halt,
}

/// The signal that a run is to stop. Cheap to clone; all clones share one request. The first request counts.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<LoopStopReason>>,
}

impl StopSignal {
    /// A signal that nobody has given yet.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    /// Asks for the end of the run.
    pub fn cancel(&self, reason: impl Into<String>) {
        self.request(LoopStopReason::Cancel(reason.into()));
    }

    /// Asks for a checkpoint and the run back.
    pub fn hand_back(&self) {
        self.request(LoopStopReason::HandBack);
    }

    /// Asks for the run back once its calls under way are done; a model is not waited for.
    pub fn halt(&self) {
        self.request(LoopStopReason::Halt);
    }

    fn request(&self, reason: LoopStopReason) {
        // the reason is set before the token wakes anybody who then reads it
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    /// The reason that was given, if a stop was asked for.
    pub fn reason(&self) -> Option<&LoopStopReason> {
        self.reason.get()
    }

    /// Returns once something was asked for.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// The error with which a run that obeys ends; `Ok` as long as no stop was asked for.
    pub fn check(&self) -> Result<(), RunError> {
        match self.reason() {
            None => Ok(()),
            Some(LoopStopReason::HandBack | LoopStopReason::Halt) => Err(RunError::HandBack),
            Some(LoopStopReason::Cancel(reason)) => Err(RunError::Cancelled { reason: reason.clone() }),
        }
    }

    /// Waits for a call with effects, but no longer than until something is asked for that does not wait for calls:
    /// what has begun is to be known to whoever goes on.
    pub fn finish_unless_stopped<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T, RunError>> {
        // boxed: what is moved into a future and awaited there has its room in it twice
        let work = Box::pin(work);
        async move {
            self.check()?;
            let stopped = async {
                self.requested().await;
                if self.reason() == Some(&LoopStopReason::Halt) {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                done = work => Ok(done),
                () = stopped => Err(self.check().expect_err("a reason is set before the token")),
            }
        }
    }

    /// Waits for `work`, but no longer than until something is asked for.
    pub fn run_until_stopped<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T, RunError>> {
        // boxed as above
        let work = Box::pin(work);
        async move {
            self.check()?;
            tokio::select! {
                biased;
                done = work => Ok(done),
                () = self.requested() => Err(self.check().expect_err("a reason is set before the token")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_request_counts_and_ends_a_wait() {
        let stop = StopSignal::new();
        assert_eq!(stop.run_until_stopped(async { 7 }).await, Ok(7));
        stop.clone().cancel("no longer needed");
        stop.hand_back();
        let cancelled = RunError::Cancelled { reason: "no longer needed".into() };
        assert_eq!(stop.run_until_stopped(std::future::pending::<()>()).await, Err(cancelled.clone()));
        assert_eq!(stop.check(), Err(cancelled));
    }

    #[tokio::test]
    async fn wait_that_has_begun_ends_with_the_request() {
        let stop = StopSignal::new();
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.run_until_stopped(std::future::pending::<()>()).await }
        });
        tokio::task::yield_now().await;
        stop.hand_back();
        assert_eq!(waiting.await.unwrap(), Err(RunError::HandBack));
    }

    #[tokio::test]
    async fn halt_cuts_a_model_off_and_waits_for_a_call_with_effects() {
        let stop = StopSignal::new();
        let (done, result) = tokio::sync::oneshot::channel();
        let call = tokio::spawn({
            let stop = stop.clone();
            async move { stop.finish_unless_stopped(result).await }
        });
        tokio::task::yield_now().await;
        stop.halt();
        tokio::task::yield_now().await;
        assert_eq!(stop.run_until_stopped(std::future::pending::<()>()).await, Err(RunError::HandBack));
        done.send(7).unwrap();
        assert_eq!(call.await.unwrap(), Ok(Ok(7)));
        assert_eq!(stop.finish_unless_stopped(async { 7 }).await, Err(RunError::HandBack), "nothing more begins");
    }

    #[tokio::test]
    async fn call_with_effects_is_left_for_a_hand_back() {
        let stop = StopSignal::new();
        stop.hand_back();
        assert_eq!(stop.finish_unless_stopped(std::future::pending::<()>()).await, Err(RunError::HandBack));
    }
}
