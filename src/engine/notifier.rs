//! The notifier: deliveries that are due are attempted, each in a task of its own, so that a slow channel delays none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::clock::{self, signed};
use crate::engine::asking::is_settled;
use crate::engine::attempt::LEASE;
use crate::engine::sending::Sending;
use crate::engine::service::{Next, Service, TickError};
use crate::notification::delivery::retry_at;
use crate::notification::{Claim, Mark};
use crate::store::{StoreError, Topic};

/// Attempts at the same time.
const AT_ONCE: usize = 32;
/// How long attempts that are under way may go on when the service stops.
const DRAIN: Duration = Duration::from_secs(5);
/// The wait before a store that is away is asked again to record an attempt.
const ASK_AGAIN: Duration = Duration::from_millis(500);

pub struct Notifier {
    sending: Sending,
    places: Arc<Semaphore>,
    /// Whether more may be due than there were places for.
    backlog: Arc<AtomicBool>,
    under_way: TaskTracker,
}

impl Notifier {
    pub fn new(sending: Sending) -> Notifier {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Notifier { sending, places, backlog: Arc::default(), under_way: TaskTracker::new() }
    }

    /// Waits for attempts that are under way, but not for ever: what is cut off says so at its next claim.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
    }
}

/// Reads what the delivery refers to, attempts it, records what came of it.
async fn deliver(sending: Sending, claim: Claim) {
    let (id, store) = (claim.delivery.id, &sending.store);
    let mark = match sending.tell(&claim).await {
        Ok(mark) => mark,
        Err(error) => unread(&claim, &error, store.clock().now(), fastrand::f64()),
    };
    if is_settled(&mark) {
        tracing::debug!(delivery_id = %id, "a question was answered before it was sent");
    } else if let Mark::Failed { error, .. } | Mark::Unknown { error } | Mark::Retry { error, .. } = &mark {
        tracing::warn!(delivery_id = %id, channel = claim.delivery.channel, error, "a delivery did not get through");
    }
    let give_up = store.clock().now() + signed(LEASE);
    while let Err(error) = store.mark_delivery(&claim, &mark).await {
        if !matches!(error, StoreError::Unavailable(_)) || store.clock().now() >= give_up {
            tracing::error!(delivery_id = %id, %error, "what came of a delivery could not be recorded");
            return;
        }
        clock::pause(ASK_AGAIN).await;
    }
}

/// Nothing was sent, and that has to be recorded: a claim that merely runs out counts as interrupted, and would make
/// the outcome unknown where repeats are not dropped.
fn unread(claim: &Claim, error: &StoreError, now: DateTime<Utc>, random: f64) -> Mark {
    let error = format!("what it tells of could not be read: {error}");
    match retry_at(now, claim.delivery.attempts, None, random) {
        Some(at) => Mark::Retry { at, error },
        None => Mark::Failed { error, fall_back: claim.delivery.fall_back().map(Box::new) },
    }
}

impl Service for Notifier {
    const NAME: &'static str = "notifier";
    const LOOK_AGAIN: Duration = Duration::from_secs(2);

    async fn tick(&self) -> Result<Next, TickError> {
        let free = self.places.available_permits();
        if free == 0 {
            return Ok(Next::OnWake);
        }
        let claims =
            self.sending.store.claim_deliveries(self.sending.store.clock().now() + signed(LEASE), free as i64).await?;
        let full = claims.len() == free;
        self.backlog.store(full, Ordering::Relaxed);
        for claim in claims {
            let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
            let sending = self.sending.clone();
            self.under_way.spawn(async move {
                deliver(sending, claim).await;
                drop(place);
            });
        }
        if full {
            return Ok(Next::OnWake);
        }
        Ok(match self.sending.store.next_delivery().await? {
            Some(next) => Next::At(next),
            None => Next::OnWake,
        })
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        let mut outbox = self.sending.store.listen(Topic::Outbox);
        let (places, backlog) = (Arc::clone(&self.places), Arc::clone(&self.backlog));
        Box::pin(async move {
            // at once where a place is free already: nothing else would tell
            if backlog.load(Ordering::Relaxed) {
                let _ = places.acquire().await;
                return;
            }
            let _ = outbox.changed().await;
        })
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::notification::{Delivery, Kind};

    fn claim(attempts: i32) -> Claim {
        let delivery = Delivery {
            fallback: vec!["webhook".into()],
            dedupe_key: "run:1:result".into(),
            attempts,
            ..Delivery::sample(Kind::Message)
        };
        Claim { delivery, lease_token: 3, interrupted: false }
    }

    #[test]
    fn what_could_not_be_read_was_not_sent_and_is_tried_again_as_long_as_any() {
        let now = DateTime::UNIX_EPOCH;
        let away = StoreError::Unavailable("gone".into());
        let error = "what it tells of could not be read: the database is not available: gone".to_owned();
        let again = Mark::Retry { at: now + TimeDelta::seconds(5), error: error.clone() };
        assert_eq!(unread(&claim(1), &away, now, 0.5), again);
        let fall_back = claim(7).delivery.fall_back().map(Box::new);
        assert_eq!(unread(&claim(7), &away, now, 0.5), Mark::Failed { error, fall_back });
    }
}
