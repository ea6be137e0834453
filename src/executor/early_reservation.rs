//! A reservation that begins with a run, before it is known what its first call may come to: as much as the first call
//! of the run of its task before it. It is written while the run prepares that call, which so waits for no commit of its
//! own.
//!
//! Nothing is spent by a guess: a call that may come to more than is reserved is reserved by itself, and what a run does
//! not need ends with it.

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::store::{Reservation, Store, StoreError, with_timeout};

/// A reservation that is being made, and whose answer nobody waits for yet.
pub struct EarlyReservation {
    /// The reservation.
    pub reservation: Reservation,
    answer: BoxFuture<'static, Result<bool, StoreError>>,
}

impl EarlyReservation {
    /// Begins to make it.
    pub fn begin(store: Store, reservation: Reservation) -> EarlyReservation {
        let asked = reservation.clone();
        let mut answer = async move { with_timeout(store.reserve_budget_if_left(&asked)).await }.boxed();
        // from here on the store writes it, whether its answer is waited for or not
        let answer = match (&mut answer).now_or_never() {
            Some(answered) => ready(answered).boxed(),
            None => answer,
        };
        EarlyReservation { reservation, answer }
    }

    /// Whether it is made.
    pub async fn answer(self) -> Result<bool, StoreError> {
        self.answer.await
    }
}
