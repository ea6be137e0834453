//! A bus whose events are taken even while it is away: into the database, and forwarded once it is back, tenants in
//! turn and each tenant's in order.
//!
//! At least once: who dies between forwarding and forgetting forwards again, which an event's identity makes harmless.
//! An event that the bus refuses for good, even alone, is a dead letter, and holds up nothing else.
//! While anything of a tenant waits, what that tenant publishes waits behind it. Events that were left by a service
//! that took them this way are forwarded even where `bus.outbox` is off by now.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;

use crate::base::compute::ENGINE;
use crate::base::id::Tenant;
use crate::domain::event::Event;
use crate::ports::bus::entry_reader::EntryReader;
use crate::ports::bus::{Bus, BusBacklog, BusEntry, BusError, UnreadableEntry, read_stored, write_entry};
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
        let reader = EntryReader::new(self.store.computing());
        let read = |(seq, body): (i64, String)| (seq, read_stored(body.as_bytes()));
        let (mut batch, mut handled) = (KeptBatch::default(), Vec::with_capacity(kept.len()));
        for (seq, event) in reader.read(ENGINE, kept, |(_, body)| body.len(), read).await? {
            match event {
                Ok(event) => batch.push(seq, event),
                Err(unreadable) => handled.extend(self.dead_letter_of(seq, &unreadable).await?),
            }
        }
        handled.extend(self.forward_events(batch).await?);
        self.store.forget_kept_events(&handled).await?;
        Ok(handled.len())
    }

    /// Publishes events together. Where the bus refuses them so, it is given each tenant's, and of a tenant whose
    /// events it refuses each by itself: one that is refused alone is a dead letter. Answers the places of those that
    /// need not be kept any more.
    async fn forward_events(&self, batch: KeptBatch) -> Result<Vec<i64>, BusError> {
        if batch.seqs.is_empty() || self.refusal(&batch.events).await?.is_none() {
            return Ok(batch.seqs);
        }
        let mut handled = Vec::with_capacity(batch.seqs.len());
        for of_tenant in batch.by_tenant().into_values() {
            if self.refusal(&of_tenant.events).await?.is_none() {
                handled.extend(of_tenant.seqs);
                continue;
            }
            for (seq, event) in of_tenant.seqs.into_iter().zip(&of_tenant.events) {
                match self.refusal(slice::from_ref(event)).await? {
                    None => handled.push(seq),
                    Some(why) => {
                        let why = format!("the bus refuses it: {why}");
                        let refused = UnreadableEntry { text: write_entry(event), why };
                        handled.extend(self.dead_letter_of(seq, &refused).await?);
                    }
                }
            }
        }
        Ok(handled)
    }

    /// Publishes events; answers why the bus does not take them, where asking again would not mend it.
    async fn refusal(&self, events: &[Event]) -> Result<Option<String>, BusError> {
        match self.bus.publish(events).await {
            Ok(()) => Ok(None),
            Err(away @ BusError::Unavailable { .. }) => Err(away),
            Err(refused) => Ok(Some(refused.to_string())),
        }
    }

    /// Puts a kept event among the dead letters, where a person finds it, so that what waits behind it goes on; answers
    /// its place. Where it is refused there as well, it is told of and stays.
    async fn dead_letter_of(&self, seq: i64, unreadable: &UnreadableEntry) -> Result<Option<i64>, BusError> {
        let why = unreadable.why.as_str();
        match self.bus.dead_letter_kept(seq, unreadable).await {
            Ok(()) => {
                tracing::error!(seq, why, "an event that was kept can't be forwarded, it is a dead letter");
                self.store.forget_kept_events(&[seq]).await?;
                Ok(Some(seq))
            }
            Err(away @ BusError::Unavailable { .. }) => Err(away),
            Err(error) => {
                tracing::error!(seq, why, %error, "an event that was kept can't be forwarded, and is passed over");
                Ok(None)
            }
        }
    }
}

/// Events that were kept, with their places, in the order in which they came.
#[derive(Default)]
struct KeptBatch {
    seqs: Vec<i64>,
    events: Vec<Event>,
}

impl KeptBatch {
    fn push(&mut self, seq: i64, event: Event) {
        self.seqs.push(seq);
        self.events.push(event);
    }

    fn by_tenant(self) -> BTreeMap<Tenant, KeptBatch> {
        let mut parts: BTreeMap<Tenant, KeptBatch> = BTreeMap::new();
        for (seq, event) in self.seqs.into_iter().zip(self.events) {
            parts.entry(event.tenant.clone()).or_default().push(seq, event);
        }
        parts
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
