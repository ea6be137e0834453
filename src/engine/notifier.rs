//! The notifier: deliveries that are due are attempted, each in a task of its own, so that a slow channel delays none.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::channel::Channels;
use crate::clock::{self, signed};
use crate::engine::attempt::{LEASE, Occasion, attempt};
use crate::engine::service::{Next, Service, TickError};
use crate::id::Scope;
use crate::notification::wording::References;
use crate::notification::{Claim, Mark};
use crate::store::{Store, StoreError, Topic};

/// Attempts at the same time.
const AT_ONCE: usize = 32;
/// How long attempts that are under way may go on when the service stops.
const DRAIN: Duration = Duration::from_secs(5);
/// The wait before a store that is away is asked again to record an attempt.
const ASK_AGAIN: Duration = Duration::from_millis(500);

pub struct Notifier {
    store: Store,
    channels: Channels,
    places: Arc<Semaphore>,
    under_way: TaskTracker,
}

impl Notifier {
    pub fn new(store: Store, channels: Channels) -> Notifier {
        Notifier { store, channels, places: Arc::new(Semaphore::new(AT_ONCE)), under_way: TaskTracker::new() }
    }

    /// Waits for attempts that are under way, but not for ever: what is cut off says so at its next claim.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
    }
}

/// Reads what the delivery refers to, attempts it, records what came of it.
async fn deliver(store: Store, channels: Channels, claim: Claim) {
    let id = claim.delivery.id;
    let mark = match read_and_attempt(&store, &channels, &claim).await {
        Ok(mark) => mark,
        // nothing was sent: the claim runs out, and the next one tries again
        Err(error) => return tracing::warn!(delivery_id = %id, %error, "a delivery could not be read"),
    };
    if let Mark::Failed { error, .. } | Mark::Unknown { error } | Mark::Retry { error, .. } = &mark {
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

async fn read_and_attempt(store: &Store, channels: &Channels, claim: &Claim) -> Result<Mark, StoreError> {
    let delivery = &claim.delivery;
    let recipient = found(store.get_recipient(&Scope::Every, &delivery.recipient).await)?;
    let run = match delivery.run_id {
        Some(run_id) => found(store.get_run(&Scope::Every, run_id).await)?,
        None => None,
    };
    let task = match run.as_ref().and_then(|run| run.task_id) {
        Some(task_id) => found(store.get_task(&Scope::Every, task_id).await)?,
        None => None,
    };
    let about = References { run: run.as_ref(), task_name: task.as_ref().map(|task| task.name.as_str()) };
    let recipient = recipient.as_ref().map(|stored| &stored.recipient);
    let occasion = Occasion { recipient, about, random: fastrand::f64() };
    Ok(attempt(claim, occasion, channels, store.clock()).await)
}

/// What is gone is none; anything else that is wrong stays an error.
fn found<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(error),
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
        let claims = self.store.claim_deliveries(self.store.clock().now() + signed(LEASE), free as i64).await?;
        let full = claims.len() == free;
        for claim in claims {
            let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
            let (store, channels) = (self.store.clone(), self.channels.clone());
            self.under_way.spawn(async move {
                deliver(store, channels, claim).await;
                drop(place);
            });
        }
        if full {
            return Ok(Next::OnWake);
        }
        Ok(match self.store.next_delivery().await? {
            Some(next) => Next::At(next),
            None => Next::OnWake,
        })
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        let mut outbox = self.store.listen(Topic::Outbox);
        let places = Arc::clone(&self.places);
        Box::pin(async move {
            if places.available_permits() == 0 {
                let _ = places.acquire().await;
                return;
            }
            let _ = outbox.changed().await;
        })
    }
}
