//! How late runs start, how long they wait and take, and what becomes of messages: for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use crate::base::metrics::Metrics;
use crate::domain::notification::DeliveryState;
use crate::domain::run::{Run, RunOrigin, RunState};
use crate::domain::task::Task;
use crate::domain::trigger::Trigger;
use crate::store::{StartedRun, Store};

/// Seconds: a punctual start is below the first, what was missed in an outage beyond the last.
const LAG_BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0];
/// Seconds: runs may take days.
const RUN_BUCKETS: [f64; 12] = [0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    executor: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    channel: String,
    state: &'static str,
}

/// Handles of one instance. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct RunMetrics {
    starts: Counter,
    lag: Histogram,
    queued: Histogram,
    runs: Family<EndLabels, Histogram, fn() -> Histogram>,
    deliveries: Family<DeliveryLabels, Counter>,
}

impl RunMetrics {
    /// The metrics of runs, registered.
    pub fn new(metrics: &Metrics) -> RunMetrics {
        RunMetrics {
            starts: metrics.registered("run_starts", "Runs started by this instance", Counter::default()),
            lag: metrics.registered(
                "fire_lag_seconds",
                "Start of a scheduled run minus the instant that it is for, its jitter included",
                Histogram::new(LAG_BUCKETS),
            ),
            queued: metrics.registered(
                "run_queue_seconds",
                "From when a run could have started, recorded and due, to its first start",
                Histogram::new(LAG_BUCKETS),
            ),
            runs: metrics.registered(
                "run_seconds",
                "How long executions took, by executor and by what they ended in; queued is one that goes back",
                Family::new_with_constructor(|| Histogram::new(RUN_BUCKETS)),
            ),
            deliveries: metrics.registered(
                "deliveries",
                "Attempts at a delivery that are recorded, by channel and by the state they left it in",
                Family::default(),
            ),
        }
    }

    /// A run starts now. The lag of first starts alone is measured: later ones wait on purpose.
    pub(super) fn record_start(&self, store: &Store, started: &StartedRun, now: DateTime<Utc>) {
        self.starts.inc();
        let run = Arc::clone(&started.run);
        if run.attempt != 1 {
            return;
        }
        let (store, metrics) = (store.clone(), self.clone());
        match started.task.as_ref().filter(|task| is_by_the_clock(&run) && has_jitter(task)) {
            None => self.measure(&run, run.scheduled_for, now),
            // the run does not wait for that
            Some(task) => {
                let task = Arc::clone(task);
                tokio::spawn(async move {
                    let (asked, nominal) = (Arc::clone(&task), run.scheduled_for);
                    let instant = store.compute(&task.tenant_id, move || instant_of(&asked, nominal)).await;
                    metrics.measure(&run, instant.unwrap_or(nominal), now);
                });
            }
        }
    }

    fn measure(&self, run: &Run, instant: DateTime<Utc>, now: DateTime<Utc>) {
        if is_by_the_clock(run) {
            self.lag.observe(seconds(now - instant));
        }
        self.queued.observe(seconds(now - instant.max(run.created_at)));
    }

    /// The end of an execution is on the record.
    pub(super) fn record_end(&self, executor: &str, state: RunState, took: Duration) {
        let ended = EndLabels { executor: executor.to_owned(), state: state.as_str() };
        self.runs.get_or_create(&ended).observe(took.as_secs_f64());
    }

    /// Counts the recorded outcome of an attempt.
    pub(super) fn record_delivery(&self, channel: &str, state: DeliveryState) {
        self.deliveries.get_or_create(&DeliveryLabels { channel: channel.to_owned(), state: state.as_str() }).inc();
    }
}

fn is_by_the_clock(run: &Run) -> bool {
    (run.origin, run.trigger_type.as_str()) == (RunOrigin::Trigger, "schedule")
}

fn has_jitter(task: &Task) -> bool {
    matches!(&task.spec.trigger, Trigger::Schedule(schedule) if schedule.jitter.is_some())
}

/// When a scheduled run is to start: its nominal instant, and what the task's jitter adds.
fn instant_of(task: &Task, nominal: DateTime<Utc>) -> DateTime<Utc> {
    let instant = task.spec.trigger.instant(task.id, task.anchor_at, nominal);
    instant.ok().flatten().map_or(nominal, |(next, _)| next.run_at)
}

fn seconds(time: TimeDelta) -> f64 {
    time.to_std().unwrap_or_default().as_secs_f64()
}
