//! The notifier: deliveries that are due are attempted, each in a task of its own, so that a slow channel delays none.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::channel::Channels;
use crate::clock::{self, signed};
use crate::engine::asking::{Links, is_settled, without_link};
use crate::engine::attempt::{LEASE, Occasion, attempt};
use crate::engine::service::{Next, Service, TickError};
use crate::id::Scope;
use crate::notification::delivery::retry_at;
use crate::notification::wording::References;
use crate::notification::{Claim, Kind, Mark};
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
    links: Links,
    places: Arc<Semaphore>,
    under_way: TaskTracker,
}

impl Notifier {
    pub fn new(store: Store, channels: Channels, links: Links) -> Notifier {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Notifier { store, channels, links, places, under_way: TaskTracker::new() }
    }

    /// Waits for attempts that are under way, but not for ever: what is cut off says so at its next claim.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
    }
}

/// Reads what the delivery refers to, attempts it, records what came of it.
async fn deliver(store: Store, channels: Channels, links: Links, claim: Claim) {
    let id = claim.delivery.id;
    let mark = match read_and_attempt(&store, &channels, &links, &claim).await {
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

async fn read_and_attempt(
    store: &Store,
    channels: &Channels,
    links: &Links,
    claim: &Claim,
) -> Result<Mark, StoreError> {
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
    let question = match delivery.kind {
        Kind::Ask | Kind::Reminder => match links.question(store, delivery).await? {
            Ok(question) => Some(question),
            // it may have gone out before the process that sent it died
            Err(_) if claim.interrupted => None,
            Err(unsent) => return Ok(unsent),
        },
        _ => None,
    };
    let task_name = task.as_ref().map(|task| task.name.as_str());
    let about = References { run: run.as_ref(), task_name, question: question.as_ref(), digest: &[] };
    let recipient = recipient.as_ref().map(|stored| &stored.recipient);
    let occasion = Occasion { recipient, about, random: fastrand::f64() };
    let mark = attempt(claim, occasion, channels, store.clock()).await;
    Ok(match &question {
        Some(question) => without_link(mark, question),
        None => mark,
    })
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
            let (store, channels, links) = (self.store.clone(), self.channels.clone(), self.links.clone());
            self.under_way.spawn(async move {
                deliver(store, channels, links, claim).await;
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

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;
    use crate::notification::{Delivery, DeliveryState, Kind};

    fn claim(attempts: i32) -> Claim {
        let delivery = Delivery {
            id: Uuid::from_u128(1),
            tenant_id: "ann".into(),
            recipient: "ann".into(),
            channel: "email".into(),
            fallback: vec!["webhook".into()],
            dedupe_key: "run:1:result".into(),
            run_id: None,
            kind: Kind::Message,
            subject: None,
            text: None,
            state: DeliveryState::Pending,
            attempts,
            next_at: None,
            last_error: None,
            provider_id: None,
            created_at: DateTime::UNIX_EPOCH,
            sent_at: None,
            delivered_at: None,
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
