//! A bus that counts what goes through it, for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::base::id::Tenant;
use crate::base::metrics::Metrics;
use crate::domain::event::Event;
use crate::ports::bus::{Bus, BusBacklog, BusEntry, BusError};

/// A bus that counts its traffic in metrics.
pub struct CountedBus {
    bus: Arc<dyn Bus>,
    published: Counter,
    read: Counter,
    acknowledged: Counter,
    dead_lettered: Counter,
    unread: Gauge,
    pending: Gauge,
}

impl CountedBus {
    /// Wraps a bus, and registers its counters.
    pub fn new(bus: Arc<dyn Bus>, metrics: &Metrics) -> CountedBus {
        let counter = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        let gauge = |name: &str, help: &str| metrics.registered(name, help, Gauge::default());
        CountedBus {
            bus,
            published: counter("events_published", "Events that were accepted here"),
            read: counter("events_read", "Entries of the bus that were read here, repeated deliveries included"),
            acknowledged: counter("events_acknowledged", "Entries of the bus that were handled here"),
            dead_lettered: counter("events_dead_lettered", "Entries of the bus that became dead letters here"),
            unread: gauge("events_unread", "Entries of the bus that nobody has read, over all instances"),
            pending: gauge("events_pending", "Entries of the bus that are read and not acknowledged, over all"),
        }
    }
}

impl Bus for CountedBus {
    fn name(&self) -> &'static str {
        self.bus.name()
    }

    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async {
            self.bus.publish(events).await?;
            self.published.inc_by(events.len() as u64);
            Ok(())
        })
    }

    fn read_except<'a>(
        &'a self,
        full: &'a [Tenant],
        limit: usize,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Vec<BusEntry>, BusError>> {
        Box::pin(async move {
            let entries = self.bus.read_except(full, limit, wait).await?;
            self.read.inc_by(entries.len() as u64);
            Ok(entries)
        })
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async {
            self.bus.acknowledge(ids).await?;
            self.acknowledged.inc_by(ids.len() as u64);
            Ok(())
        })
    }

    fn dead_letter_entry<'a>(&'a self, entry: &'a BusEntry, error: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async move {
            self.bus.dead_letter_entry(entry, error).await?;
            self.dead_lettered.inc();
            Ok(())
        })
    }

    fn backlog(&self) -> BoxFuture<'_, Result<BusBacklog, BusError>> {
        Box::pin(async {
            let backlog = self.bus.backlog().await?;
            self.unread.set(backlog.unread.try_into().unwrap_or(i64::MAX));
            self.pending.set(backlog.pending.try_into().unwrap_or(i64::MAX));
            Ok(backlog)
        })
    }

    fn forward(&self) -> BoxFuture<'_, Result<usize, BusError>> {
        self.bus.forward()
    }

    pass_on!();

    fn trim(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<u64, BusError>> {
        self.bus.trim(now)
    }

    fn concerns(&self) -> BoxFuture<'_, Result<Vec<String>, BusError>> {
        self.bus.concerns()
    }
}
