//! Counters and timers of the service, and the state of its loops.
//!
//! Handles are held here and shared; nothing is registered globally, and nothing survives a restart: Prometheus keeps
//! the history. The health of the services (who ticked when) lives here because engine and http never import each
//! other, and `/readyz` must know it.

mod process;
pub mod trace;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use crate::base::metrics::process::{FIGURES, ProcessMetrics};

/// Prefix of all names.
const PREFIX: &str = "reveille";
/// Seconds; a request ends after 30 at the latest.
const DURATION_BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    /// The route's pattern, never the path: a path would make a series per id.
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tick {
    service: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamedMetric {
    service: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ZoneDatabase {
    release: String,
    source: &'static str,
}

#[derive(Debug, Clone, Copy)]
struct Pulse {
    within: Duration,
    last_success: Option<DateTime<Utc>>,
}

impl Pulse {
    fn is_late(&self, now: DateTime<Utc>) -> bool {
        match self.last_success {
            None => true,
            // a clock that was stepped back makes no service late
            Some(at) => (now - at).to_std().is_ok_and(|since| since > self.within),
        }
    }
}

/// A service that runs here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedService {
    /// Name of the service.
    pub service: &'static str,
    /// It is well as long as a tick succeeds at least this often.
    pub within: Duration,
    /// `None`: not since the start.
    pub last_success: Option<DateTime<Utc>>,
    /// No tick has succeeded lately enough.
    pub is_late: bool,
}

/// A service that has not done its work lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverdueService {
    /// Name of the service.
    pub service: &'static str,
    /// `None`: not since the start.
    pub last_success: Option<DateTime<Utc>>,
}

/// The description of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDescription {
    /// As it is printed; of a histogram without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Its meaning, in a sentence.
    pub help: String,
}

/// The suffix that the format adds to the name of a metric.
fn suffix(kind: MetricType) -> &'static str {
    match kind {
        MetricType::Counter => "_total",
        MetricType::Info => "_info",
        _ => "",
    }
}

fn printed(name: &str, kind: MetricType) -> String {
    format!("{PREFIX}_{name}{}", suffix(kind))
}

/// All metrics of one instance. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Handles>);

#[derive(Debug)]
struct Handles {
    registry: Mutex<Registry>,
    /// Metrics of this process from the system, under names of their own.
    process: Registry,
    described: Mutex<Vec<MetricDescription>>,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabel, Histogram, fn() -> Histogram>,
    connections: Gauge,
    refused: Counter,
    ticks: Family<Tick, Counter>,
    last_success: Family<NamedMetric, Gauge>,
    zone_database: Family<ZoneDatabase, Gauge>,
    spans: Family<SpanOutcome, Counter>,
    pulses: Mutex<BTreeMap<&'static str, Pulse>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// The metrics of this instance, all at zero.
    pub fn new() -> Metrics {
        let mut process = Registry::default();
        process.register_collector(Box::new(ProcessMetrics));
        let handles = Handles {
            process,
            registry: Mutex::new(Registry::with_prefix(PREFIX)),
            described: Mutex::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            connections: Gauge::default(),
            refused: Counter::default(),
            ticks: Family::default(),
            last_success: Family::default(),
            zone_database: Family::default(),
            spans: Family::default(),
            pulses: Mutex::default(),
        };
        let metrics = Metrics(Arc::new(handles));
        let h = &metrics.0;
        metrics.register("build", "The build that runs", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        metrics.register("http_requests", "HTTP requests answered", h.requests.clone());
        metrics.register("http_request_seconds", "Time until the answer began", h.request_seconds.clone());
        metrics.register("http_connections", "Open HTTP connections", h.connections.clone());
        metrics.register("http_connections_refused", "Connections turned away at a limit", h.refused.clone());
        metrics.register(
            "service_ticks",
            "Ticks of the services, and looks of those at rest, by how they ended",
            h.ticks.clone(),
        );
        metrics.register(
            "service_last_success_seconds",
            "Unix time of the last good tick or look",
            h.last_success.clone(),
        );
        metrics.register(
            "zone_database",
            "The release of the time zone rules that this instance plans by, and where they come from",
            h.zone_database.clone(),
        );
        metrics.register("spans", "Spans of traces that a collector took, and those that were lost", h.spans.clone());
        metrics
    }

    /// Adds a metric whose owner keeps the other handle. Names carry no prefix; counters get `_total` when printed.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        let kind = metric.metric_type();
        let described =
            MetricDescription { name: printed(name, kind), kind: kind.as_str().to_owned(), help: help.to_owned() };
        self.0.described.lock().expect("registry lock").push(described);
        self.0.registry.lock().expect("registry lock").register(name, help, metric);
    }

    /// Adds a metric, and gives back the handle of its owner.
    pub fn registered<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.register(name, help, metric.clone());
        metric
    }

    /// Every metric that is registered, those too that have no value yet; in the order of their names.
    pub fn descriptions(&self) -> Vec<MetricDescription> {
        let mut described = self.0.described.lock().expect("registry lock").clone();
        described.extend(FIGURES.iter().map(|figure| MetricDescription {
            name: format!("{}{}", figure.name, suffix(figure.kind())),
            kind: figure.kind().as_str().to_owned(),
            help: figure.help.to_owned(),
        }));
        described.sort_by(|a, b| a.name.cmp(&b.name));
        described
    }

    /// A request was answered, by a route's pattern (`/v1/tasks/{id}`), or an empty one where none matched.
    pub fn record_request(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let route = route.to_owned();
        self.0.requests.get_or_create(&RequestLabels { method, route: route.clone(), status }).inc();
        self.0.request_seconds.get_or_create(&RouteLabel { method, route }).observe(took.as_secs_f64());
    }

    /// Counts an open connection until the answer is dropped.
    pub fn connection(&self) -> OpenConnection {
        self.0.connections.inc();
        OpenConnection(self.0.connections.clone())
    }

    /// A connection was turned away at a limit.
    pub fn connection_refused(&self) {
        self.0.refused.inc();
    }

    /// Says that `service` runs here, and that it is well as long as a tick succeeds at least this often.
    pub fn expect_ticks(&self, service: &'static str, within: Duration) {
        self.0.pulses.lock().expect("pulse lock").insert(service, Pulse { within, last_success: None });
    }

    /// A tick of `service` has ended at `at`.
    pub fn ticked(&self, service: &'static str, ok: bool, at: DateTime<Utc>) {
        let result = if ok { "ok" } else { "error" };
        self.0.ticks.get_or_create(&Tick { service, result }).inc();
        if ok {
            self.0.last_success.get_or_create(&NamedMetric { service }).set(at.timestamp());
            if let Some(pulse) = self.0.pulses.lock().expect("pulse lock").get_mut(service) {
                pulse.last_success = Some(at);
            }
        }
    }

    /// Says that `service` has ended as it should: nobody waits for its ticks.
    pub fn forget_ticks(&self, service: &'static str) {
        self.0.pulses.lock().expect("pulse lock").remove(service);
    }

    /// The expected services that have no good tick recent enough at `now`, by name.
    pub fn late_services(&self, now: DateTime<Utc>) -> Vec<OverdueService> {
        let late = self.services(now).into_iter().filter(|expected| expected.is_late);
        late.map(|ExpectedService { service, last_success, .. }| OverdueService { service, last_success }).collect()
    }

    /// The expected services, by name, each with whether it is late at `now`.
    pub fn services(&self, now: DateTime<Utc>) -> Vec<ExpectedService> {
        let pulses = self.0.pulses.lock().expect("pulse lock");
        let expected = |(service, pulse): (&&'static str, &Pulse)| ExpectedService {
            service,
            within: pulse.within,
            last_success: pulse.last_success,
            is_late: pulse.is_late(now),
        };
        pulses.iter().map(expected).collect()
    }

    /// Time zone rules of this release are planned by from now on.
    pub fn zones(&self, release: &str, source: &'static str) {
        self.0.zone_database.clear();
        self.0.zone_database.get_or_create(&ZoneDatabase { release: release.to_owned(), source }).set(1);
    }

    /// A collector took so many spans.
    pub fn spans_exported(&self, spans: usize) {
        self.count_spans("exported", spans);
    }

    /// So many spans reached no collector.
    pub fn spans_lost(&self, spans: usize) {
        self.count_spans("lost", spans);
    }

    fn count_spans(&self, outcome: &'static str, spans: usize) {
        self.0.spans.get_or_create(&SpanOutcome { outcome }).inc_by(spans as u64);
    }

    /// Everything in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let registry = self.0.registry.lock().expect("registry lock");
        let encoded = text::encode_registry(&mut text, &registry)
            .and_then(|()| text::encode_registry(&mut text, &self.0.process))
            .and_then(|()| text::encode_eof(&mut text));
        encoded.expect("a String takes all text");
        text
    }
}

/// An open connection, as counted by [`Metrics::connection`].
#[derive(Debug)]
pub struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn service_is_late_until_its_first_good_tick_and_when_the_last_is_too_old() {
        let metrics = Metrics::new();
        metrics.expect_ticks("scheduler", Duration::from_secs(10));
        assert_eq!(metrics.late_services(at(0)), [OverdueService { service: "scheduler", last_success: None }]);
        metrics.ticked("scheduler", false, at(1));
        assert_eq!(metrics.late_services(at(1)), [OverdueService { service: "scheduler", last_success: None }]);
        metrics.ticked("scheduler", true, at(2));
        assert_eq!(metrics.late_services(at(12)), []);
        assert_eq!(metrics.late_services(at(13)), [OverdueService { service: "scheduler", last_success: Some(at(2)) }]);
    }

    #[test]
    fn counters_are_printed_with_their_labels() {
        let metrics = Metrics::new();
        metrics.record_request("GET", "/v1/tasks/{id}", 404, Duration::from_millis(3));
        metrics.ticked("worker", true, at(7));
        let open = metrics.connection();
        let text = metrics.text();
        for line in [
            r#"reveille_http_requests_total{method="GET",route="/v1/tasks/{id}",status="404"} 1"#,
            r#"reveille_http_request_seconds_bucket{le="0.005",method="GET",route="/v1/tasks/{id}"} 1"#,
            r#"reveille_service_ticks_total{service="worker",result="ok"} 1"#,
            r#"reveille_service_last_success_seconds{service="worker"} 7"#,
            "reveille_http_connections 1",
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
        }
        drop(open);
        assert!(metrics.text().contains("reveille_http_connections 0"));
    }
}
