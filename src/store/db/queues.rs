//! How many wait in the fair queues now, and for how long turns were waited for: by what is waited for, never by
//! tenant.
//!
//! Read at each scrape. Nothing survives a restart.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

use crate::base::collections::fair_queue::FairQueue;
use crate::base::metrics::Metrics;
use crate::store::Store;
use crate::store::db::Db;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabel {
    resource: &'static str,
}

/// One queue, and what is waited for in it.
#[derive(Clone)]
struct WatchedQueue {
    label: QueueLabel,
    waiting: Arc<dyn Fn() -> usize + Send + Sync>,
    waits: Histogram,
}

impl WatchedQueue {
    fn new<K: Ord + Hash + Clone + Send + 'static>(resource: &'static str, queue: FairQueue<K>) -> WatchedQueue {
        let waits = queue.waits();
        WatchedQueue { label: QueueLabel { resource }, waiting: Arc::new(move || queue.waiting()), waits }
    }
}

impl fmt::Debug for WatchedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label.resource)
    }
}

/// A gauge for each queue.
#[derive(Debug)]
struct QueueGauges(Vec<WatchedQueue>);

/// A histogram for each queue.
#[derive(Debug)]
struct QueueWaits(Vec<WatchedQueue>);

impl EncodeMetric for QueueGauges {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        for queue in &self.0 {
            let waiting = i64::try_from((queue.waiting)()).unwrap_or(i64::MAX);
            encoder.encode_family(&queue.label)?.encode_gauge(&waiting)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

impl EncodeMetric for QueueWaits {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        self.0.iter().try_for_each(|queue| queue.waits.encode(encoder.encode_family(&queue.label)?))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl Store {
    /// Shows who waits from now on.
    pub(in crate::store) fn show_queues(&self, metrics: &Metrics) {
        let mut queues = vec![
            WatchedQueue::new("compute", self.computing.queue()),
            WatchedQueue::new("large_writes", self.bulk.queue()),
        ];
        match &self.db {
            Db::Postgres { pool, engine, .. } => {
                queues.push(WatchedQueue::new("connections", pool.queue()));
                queues.push(WatchedQueue::new("engine_connections", engine.queue()));
            }
            Db::Sqlite { writer, tenant_readers, .. } => {
                queues.push(WatchedQueue::new("readers", tenant_readers.queue()));
                queues.push(WatchedQueue::new("writer", writer.queue()));
            }
        }
        metrics.register(
            "fair_queue_waiting",
            "Those who wait for their turn now, by what they wait for",
            QueueGauges(queues.clone()),
        );
        metrics.register(
            "fair_queue_wait_seconds",
            "Time that turns were waited for, by what was waited for; a turn that is had at once is not counted",
            QueueWaits(queues),
        );
    }
}
