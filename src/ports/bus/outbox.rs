//! A bus whose events are taken even while it is away: into the database, and forwarded in order once it is back.
//!
//! At least once: who dies between forwarding and forgetting forwards again, which an event's identity makes harmless.
//! While anything of a tenant waits, what that tenant publishes waits behind it. What was left by a service that took
//! events this way is forwarded even where `bus.outbox` is off by now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;

use crate::base::id::Tenant;
use crate::domain::event::Event;
use crate::ports::bus::{Bus, BusBacklog, BusEntry, BusError, read_entry};
use crate::store::Store;

/// Events that are forwarded at once.
const BATCH: i64 = 200;

/// A bus that keeps events in the database while the one inside is away.
pub struct Outbox {
    bus: Arc<dyn Bus>,
    store: Store,
    /// Whether events are taken here; else they are only forwarded.
    takes: bool,
}

impl Outbox {
    /// Wraps a bus. `takes`: events are kept in the store while the bus inside is away; else they are only forwarded.
    pub fn new(bus: Arc<dyn Bus>, store: Store, takes: bool) -> Outbox {
        Outbox { bus, store, takes }
    }

    async fn store_events(&self, events: &[Event]) -> Result<(), BusError> {
        if !self.takes {
            return self.bus.publish(events).await;
        }
        let tenants: BTreeSet<&Tenant> = events.iter().map(|event| &event.tenant).collect();
        let mut waiting = BTreeSet::new();
        for tenant in tenants {
            if self.store.keeps_events_of(tenant).await? {
                waiting.insert(tenant.clone());
            }
        }
        let (behind, direct): (Vec<Event>, Vec<Event>) =
            events.iter().cloned().partition(|event| waiting.contains(&event.tenant));
        let sent = match direct.is_empty() {
            true => Ok(()),
            false => self.bus.publish(&direct).await,
        };
        match sent {
            Ok(()) if behind.is_empty() => Ok(()),
            Ok(()) => Ok(self.store.keep_events(&behind).await?),
            Err(BusError::Unavailable { why }) => {
                tracing::warn!(why, events = events.len(), "the bus is away, events are kept in the database");
                Ok(self.store.keep_events(events).await?)
            }
            Err(error) => Err(error),
        }
    }

    async fn forward_batch(&self) -> Result<usize, BusError> {
        let kept = self.store.kept_events(BATCH).await?;
        if kept.is_empty() {
            return Ok(0);
        }
        let mut events = Vec::with_capacity(kept.len());
        for (seq, body) in &kept {
            match read_entry(body.as_bytes()) {
                Ok(event) => events.push(event),
                // a person finds it among the dead letters, and what waits behind it goes on
                Err(unreadable) => {
                    tracing::error!(
                        seq,
                        why = unreadable.why,
                        "an event that was kept can't be read, it is a dead letter"
                    );
                    self.bus.dead_letter_kept(*seq, &unreadable).await?;
                    self.store.forget_kept_events(&[*seq]).await?;
                }
            }
        }
        if !events.is_empty() {
            self.bus.publish(&events).await?;
        }
        let seqs: Vec<i64> = kept.iter().map(|(seq, _)| *seq).collect();
        self.store.forget_kept_events(&seqs).await?;
        Ok(seqs.len())
    }
}

impl Bus for Outbox {
    fn name(&self) -> &'static str {
        self.bus.name()
    }

    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(self.store_events(events))
    }

    fn forward(&self) -> BoxFuture<'_, Result<usize, BusError>> {
        Box::pin(self.forward_batch())
    }

    fn read_except<'a>(
        &'a self,
        full: &'a [Tenant],
        limit: usize,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Vec<BusEntry>, BusError>> {
        self.bus.read_except(full, limit, wait)
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), BusError>> {
        self.bus.acknowledge(ids)
    }

    fn dead_letter_entry<'a>(&'a self, entry: &'a BusEntry, error: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        self.bus.dead_letter_entry(entry, error)
    }

    pass_on!();

    fn trim(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<u64, BusError>> {
        self.bus.trim(now)
    }

    fn backlog(&self) -> BoxFuture<'_, Result<BusBacklog, BusError>> {
        self.bus.backlog()
    }

    fn concerns(&self) -> BoxFuture<'_, Result<Vec<String>, BusError>> {
        self.bus.concerns()
    }
}
