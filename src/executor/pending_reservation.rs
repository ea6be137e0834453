//! A reservation whose answer is awaited: where that is lost, nobody knows whether it was made.

use std::sync::Mutex;

use uuid::Uuid;

use crate::agent::AppendError;
use crate::agent::checkpoint::run_error;
use crate::domain::run::RunError;
use crate::executor::open_calls::OpenCalls;
use crate::store::StoreError;

/// Guard of a reservation whose answer is awaited. Dropped without an answer, it leaves the reservation to be taken
/// back.
pub struct PendingReservation<'a> {
    calls: &'a Mutex<OpenCalls>,
    id: Option<Uuid>,
}

impl<'a> PendingReservation<'a> {
    /// A reservation that is asked for now.
    pub fn new(calls: &'a Mutex<OpenCalls>, id: Uuid) -> PendingReservation<'a> {
        PendingReservation { calls, id: Some(id) }
    }

    /// Notes that the answer is there.
    pub fn answered(mut self) {
        self.id = None;
    }
}

impl Drop for PendingReservation<'_> {
    fn drop(&mut self) {
        self.calls.lock().expect("spending lock").unconfirmed.extend(self.id);
    }
}

/// The error of a run whose reservation could not be written.
pub fn unreserved(error: StoreError) -> RunError {
    match error {
        StoreError::Unavailable(_) | StoreError::TimedOut(_) => run_error(AppendError::Unavailable),
        other => {
            tracing::error!(error = %other, "a budget can't be read or written");
            run_error(AppendError::Corrupt)
        }
    }
}
