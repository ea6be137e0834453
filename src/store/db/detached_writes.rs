//! Writes of callers on the engine's threads. A caller's own thread gives way to others, and while it has SQLite's
//! writer nobody else writes.

use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use crate::store::{Store, StoreError};

impl Store {
    /// Runs a caller's write to its end, though the caller goes away.
    pub(in crate::store) async fn run_detached<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.runtime.spawn(write).await.unwrap_or_else(join_failure)
    }

    /// Runs a caller's write, which is broken off when the caller goes away.
    pub(in crate::store) async fn run_for_caller<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        AbortOnDropHandle::new(self.runtime.spawn(write)).await.unwrap_or_else(join_failure)
    }
}

/// A panic goes on in the caller; else the service is stopping.
fn join_failure<T>(error: JoinError) -> Result<T, StoreError> {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(StoreError::Unavailable("the request was broken off".into())),
    }
}
