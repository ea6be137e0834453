//! Gauges that are looked up when metrics are read: the use of connections, and the number of waiting things.
//!
//! The counts are of all instances together, asked of the database at most every 15 seconds, each by an index and none
//! beyond ten thousand; in between, and while the database is away, they stay as they were.

use std::sync::Mutex;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::timeout;

use crate::base::metrics::Metrics;
use crate::store::Store;

/// How long a count is good.
const GOOD_FOR: Duration = Duration::from_secs(15);
/// How long the database is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolStateLabels {
    pool: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// The gauges, and when they were last counted.
pub struct Gauges {
    connections: Family<PoolStateLabels, Gauge>,
    runs: Family<StateLabel, Gauge>,
    due_late: Gauge,
    approvals: Gauge,
    deliveries: Gauge,
    halts: Family<KindLabel, Gauge>,
    counted: Mutex<Option<Duration>>,
}

impl Gauges {
    /// The gauges, registered.
    pub fn new(metrics: &Metrics) -> Gauges {
        Gauges {
            connections: metrics.registered(
                "pool_connections",
                "Connections to the database: in use, idle, and how many there may be (max)",
                Family::default(),
            ),
            runs: metrics.registered(
                "queue_runs",
                "Runs that are not over, by where they are, over all instances; 10000 is that many or more",
                Family::default(),
            ),
            due_late: metrics.registered(
                "tasks_late",
                "Tasks whose instant came over 5 s ago and that have not fired; 10000 is that many or more",
                Gauge::default(),
            ),
            approvals: metrics.registered(
                "approvals_open",
                "Questions that people have not answered; 10000 is that many or more",
                Gauge::default(),
            ),
            deliveries: metrics.registered(
                "deliveries_pending",
                "Messages that are still to be sent; 10000 is that many or more",
                Gauge::default(),
            ),
            halts: metrics.registered(
                "halts",
                "Halts by the operator: of everything (all), of tenants that are stopped, and of tenants that are disabled",
                Family::default(),
            ),
            counted: Mutex::default(),
        }
    }

    /// Looks up what has no owner that would set it.
    pub async fn refresh(&self, store: &Store) {
        for used in store.pools() {
            for (state, count) in [("in_use", used.in_use), ("idle", used.idle), ("max", used.most)] {
                self.connections.get_or_create(&PoolStateLabels { pool: used.pool, state }).set(count.into());
            }
        }
        if let Ok(Ok(halts)) = timeout(PATIENCE, store.halts()).await {
            for (kind, count) in halts.counts() {
                self.halts.get_or_create(&KindLabel { kind }).set(count);
            }
        }
        let now = store.clock().elapsed();
        if !self.is_old(now) {
            return;
        }
        let Ok(Ok(depths)) = timeout(PATIENCE, store.depths()).await else { return };
        let states = [
            ("ready", depths.ready),
            ("claimed", depths.claimed),
            ("started", depths.started),
            ("parked", depths.parked),
        ];
        for (state, count) in states {
            self.runs.get_or_create(&StateLabel { state }).set(count);
        }
        self.due_late.set(depths.due_late);
        self.approvals.set(depths.approvals_open);
        self.deliveries.set(depths.deliveries_pending);
    }

    /// Whether it is time to count; who is told so does.
    fn is_old(&self, now: Duration) -> bool {
        let mut counted = self.counted.lock().expect("gauge lock");
        let old = counted.is_none_or(|counted| now.saturating_sub(counted) >= GOOD_FOR);
        if old {
            *counted = Some(now);
        }
        old
    }
}
