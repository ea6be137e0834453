//! The notifier: deliveries that are due are attempted, each in a task of its own, so that a slow channel delays none.
//!
//! Those first that are due for the longest time; but where a channel or a tenant has all the permits that it may have,
//! what waits behind it is looked for queue by queue, a bounded number at a time, and the search goes on at the next
//! tick.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::base::clock::{self, to_delta};
use crate::domain::notification::delivery::retry_at;
use crate::domain::notification::{DeliveryClaim, Mark};
use crate::engine::delivery::approval_links::UnsentReason;
use crate::engine::delivery::attempt::{LEASE, abandon};
use crate::engine::delivery::sending::DeliverySender;
use crate::engine::fair_limiter::{FairLimiter, FairPermit, FullScope};
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::store::{QueuedDelivery, StoreError, Topic};

/// Attempts at the same time.
const AT_ONCE: usize = 96;
/// How many of the deliveries that are due are looked at, those first that are due for the longest time.
const LOOKED_AT: usize = 256;
/// How many queues, each of a tenant on a channel, are looked at behind those that have all their permits.
const QUEUES: usize = 64;
/// How long attempts that are under way may go on when the service stops.
const DRAIN: Duration = Duration::from_secs(5);
/// The wait before a store that is away is asked again to record an attempt.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Sends due messages.
pub struct Notifier {
    sending: DeliverySender,
    limiter: FairLimiter,
    /// Whether more may be due than there were permits for.
    backlog: Arc<AtomicBool>,
    /// The queue, by channel and tenant, after which the search goes on.
    searched: Mutex<(String, Option<String>)>,
    under_way: TaskTracker,
}

/// Deliveries that a tick is about to attempt.
#[derive(Default)]
struct DeliveryBatch {
    permits: HashMap<Uuid, FairPermit>,
    /// Something that is due has to wait for a permit.
    waits: bool,
}

impl DeliveryBatch {
    /// Takes a permit for it, if there is one for its channel and its tenant.
    fn acquire(&mut self, limiter: &FairLimiter, waiting: &QueuedDelivery) -> Result<(), FullScope> {
        if self.permits.contains_key(&waiting.id) {
            return Ok(());
        }
        let taken = limiter.acquire(&waiting.channel, &waiting.tenant_id);
        self.waits |= taken.is_err();
        taken.map(|permit| drop(self.permits.insert(waiting.id, permit)))
    }
}

impl Notifier {
    /// The service, with its limits on attempts at once.
    pub fn new(sending: DeliverySender) -> Notifier {
        Notifier {
            sending,
            limiter: FairLimiter::new(AT_ONCE),
            backlog: Arc::default(),
            searched: Mutex::default(),
            under_way: TaskTracker::new(),
        }
    }

    /// The due deliveries for which there is a permit.
    async fn select_due(&self) -> Result<DeliveryBatch, StoreError> {
        let mut chosen = DeliveryBatch::default();
        let due = self.sending.store.due_deliveries(LOOKED_AT as i64).await?;
        for waiting in &due {
            let _ = chosen.acquire(&self.limiter, waiting);
        }
        if due.len() == LOOKED_AT {
            if chosen.waits && self.limiter.available() > 0 {
                self.search(&mut chosen).await?;
            }
            chosen.waits = true;
        }
        Ok(chosen)
    }

    /// Looks at the first delivery of each queue, from where the last search ended: tenants that have all their permits
    /// may stand before others.
    async fn search(&self, chosen: &mut DeliveryBatch) -> Result<(), StoreError> {
        let (store, now) = (&self.sending.store, self.sending.store.clock().now());
        let (mut channel, mut tenant) = self.searched.lock().expect("searched").clone();
        let mut turned = false;
        for _ in 0..QUEUES {
            let Some(first) = store.next_queue(&channel, tenant.as_deref()).await? else {
                (channel, tenant) = Default::default();
                if turned {
                    break;
                }
                turned = true;
                continue;
            };
            let full = (first.next_at <= now).then(|| chosen.acquire(&self.limiter, &first)).and_then(Result::err);
            tenant = (full != Some(FullScope::Channel)).then_some(first.tenant_id);
            channel = first.channel;
            if self.limiter.available() == 0 {
                break;
            }
        }
        *self.searched.lock().expect("searched") = (channel, tenant);
        Ok(())
    }

    /// Waits for attempts that are under way, but not for ever: what is cut off says so at its next claim.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
    }
}

/// Reads what the delivery refers to, attempts it, records what came of it.
async fn deliver(sending: DeliverySender, claim: DeliveryClaim) {
    let (id, store) = (claim.delivery.id, &sending.store);
    // what takes longer than its claim may be under way elsewhere by then
    let outcome = match tokio::time::timeout(LEASE, sending.deliver(&claim)).await {
        Err(_) => return tracing::error!(delivery_id = %id, "an attempt did not come to its end in time"),
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Ok(unreadable_mark(&claim, &error, store.clock().now(), fastrand::f64())),
    };
    let is_settled = outcome == Err(UnsentReason::Settled);
    let mark = outcome.unwrap_or_else(|unsent| unsent.mark(&claim));
    if is_settled {
        tracing::debug!(delivery_id = %id, "a question was answered before it was sent");
    } else if let Mark::Failed { error, .. } | Mark::Unknown { error, .. } | Mark::Retry { error, .. } = &mark {
        tracing::warn!(delivery_id = %id, channel = claim.delivery.channel, error, "a delivery did not get through");
    }
    let give_up = store.clock().now() + to_delta(LEASE);
    loop {
        let error = match store.mark_delivery(&claim, &mark).await {
            Ok(state) => return sending.metrics.record_delivery(&claim.delivery.channel, state),
            Err(error) => error,
        };
        if !matches!(error, StoreError::Unavailable(_) | StoreError::TimedOut(_)) || store.clock().now() >= give_up {
            tracing::error!(delivery_id = %id, %error, "what came of a delivery could not be recorded");
            return;
        }
        clock::pause(ASK_AGAIN).await;
    }
}

/// Nothing was sent, and that has to be recorded: a claim that merely runs out counts as interrupted, and would make
/// the outcome unknown where repeats are not dropped.
fn unreadable_mark(claim: &DeliveryClaim, error: &StoreError, now: DateTime<Utc>, random: f64) -> Mark {
    let error = format!("what it tells of could not be read: {error}");
    match retry_at(now, claim.delivery.attempts, None, random) {
        Some(at) => Mark::Retry { at, error, asked: false, maybe_delivered: false },
        None => abandon(claim, error),
    }
}

impl ServiceLoop for Notifier {
    const NAME: &'static str = "notifier";
    const POLL_INTERVAL: Duration = Duration::from_secs(2);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.delivery });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if self.limiter.available() == 0 {
            return Ok(NextTick::OnWake);
        }
        let mut chosen = self.select_due().await?;
        self.backlog.store(chosen.waits, Ordering::Relaxed);
        let store = &self.sending.store;
        let ids: Vec<Uuid> = chosen.permits.keys().copied().collect();
        for claim in store.claim_deliveries(&ids, store.clock().now() + to_delta(LEASE)).await? {
            let permit = chosen.permits.remove(&claim.delivery.id);
            let sending = self.sending.clone();
            self.under_way.spawn(async move {
                deliver(sending, claim).await;
                drop(permit);
            });
        }
        if chosen.waits {
            return Ok(NextTick::OnWake);
        }
        Ok(store.next_delivery().await?.into())
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut outbox = self.sending.store.listen(Topic::Outbox);
        let (limiter, backlog) = (self.limiter.clone(), Arc::clone(&self.backlog));
        Box::pin(async move {
            // at once where a permit was given back already: nothing else would tell
            let freed = async {
                match backlog.load(Ordering::Relaxed) {
                    true => limiter.released().await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                () = freed => {}
                _ = outbox.changed() => {}
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::domain::notification::{Delivery, MessageKind};

    fn claim(attempts: i32) -> DeliveryClaim {
        let delivery = Delivery {
            fallback: vec!["webhook".into()],
            dedupe_key: "run:1:result".into(),
            attempts,
            ..Delivery::sample(MessageKind::Message)
        };
        DeliveryClaim { delivery, lease_token: 3, interrupted: false }
    }

    #[test]
    fn unreadable_delivery_counts_as_not_sent_and_is_retried_as_long_as_any() {
        let now = DateTime::UNIX_EPOCH;
        let away = StoreError::Unavailable("gone".into());
        let error = "what it tells of could not be read: the database is not available: gone".to_owned();
        let again =
            Mark::Retry { at: now + TimeDelta::seconds(5), error: error.clone(), asked: false, maybe_delivered: false };
        assert_eq!(unreadable_mark(&claim(1), &away, now, 0.5), again);
        let fall_back = claim(7).delivery.fall_back().map(Box::new);
        assert_eq!(unreadable_mark(&claim(7), &away, now, 0.5), Mark::Failed { error, fall_back });
    }
}
