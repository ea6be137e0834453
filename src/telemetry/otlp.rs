//! Export of spans over OTLP: in batches, on a thread of its own. A collector that is away, slow or silent delays
//! nothing and loses nothing but spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

use crate::base::clock::machine_now;
use crate::base::metrics::Metrics;

/// Spans that wait to be exported, those under way included; beyond them others are lost.
const QUEUE: usize = 4_096;
/// Spans of one request.
const BATCH: usize = 512;
/// From one request to the next, unless a batch is full.
const DELAY: Duration = Duration::from_secs(1);
/// The longest request.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for the last spans, at the end of the process.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// A failing collector is told of once in so many seconds.
const WARN_SECONDS: i64 = 60;
/// The path of a collector that takes spans.
const TRACES: &str = "/v1/traces";

/// The exporter of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SpanExport {
    processor: Arc<BatchSpanProcessor>,
    counts: SpanCounts,
}

/// Spans, by what became of them. Cheap to clone.
#[derive(Clone, Debug)]
struct SpanCounts {
    waiting: Arc<AtomicUsize>,
    metrics: Metrics,
}

impl SpanCounts {
    /// Whether there is room for one more, which then waits.
    fn admit(&self) -> bool {
        let admitted = self.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE;
        if !admitted {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.metrics.spans_lost(1);
        }
        admitted
    }

    /// So many do not wait any more.
    fn end(&self, spans: usize, exported: bool) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        match exported {
            true => self.metrics.spans_exported(spans),
            false => self.metrics.spans_lost(spans),
        }
    }
}

impl SpanExport {
    /// An exporter to a collector; the error is a sentence. The client blocks, so that it is made, as it is used, on a
    /// thread without a runtime.
    pub fn start(endpoint: &str, metrics: &Metrics) -> Result<SpanExport, String> {
        let address = address(endpoint);
        let counts = SpanCounts { waiting: Arc::default(), metrics: metrics.clone() };
        let counted = counts.clone();
        let made = thread::spawn(move || {
            let exporter = OtlpExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(address)
                .with_timeout(TIME_LIMIT)
                .build();
            exporter.map(|exporter| {
                let exporter = WarningExporter { exporter, counts: counted, warned_at: AtomicI64::new(i64::MIN) };
                let batches = BatchConfigBuilder::default()
                    .with_max_queue_size(QUEUE)
                    .with_max_export_batch_size(BATCH)
                    .with_scheduled_delay(DELAY)
                    .build();
                let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
                processor.set_resource(&resource());
                processor
            })
        });
        match made.join() {
            Ok(Ok(processor)) => Ok(SpanExport { processor: Arc::new(processor), counts }),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the exporter panicked".into()),
        }
    }

    /// Exports what is left, within two seconds.
    pub fn stop(&self) {
        let (done, waits) = mpsc::channel();
        let export = self.clone();
        thread::spawn(move || {
            let _ = export.processor.shutdown_with_timeout(LAST_LIMIT);
            let _ = done.send(());
        });
        let _ = waits.recv_timeout(LAST_LIMIT);
    }
}

impl SpanProcessor for SpanExport {
    fn on_start(&self, span: &mut Span, context: &opentelemetry::Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.counts.admit() {
            self.processor.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }
}

/// The address of a collector that takes spans: the path is added where it is not named.
fn address(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    match endpoint.ends_with(TRACES) {
        true => endpoint.to_owned(),
        false => format!("{endpoint}{TRACES}"),
    }
}

fn resource() -> Resource {
    Resource::builder()
        .with_service_name("reveille")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Counts what was exported, and says now and then that the collector is away.
#[derive(Debug)]
struct WarningExporter {
    exporter: OtlpExporter,
    counts: SpanCounts,
    /// In seconds since 1970.
    warned_at: AtomicI64,
}

impl SpanExporter for WarningExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
        self.counts.end(spans, exported.is_ok());
        if let Err(error) = &exported {
            let now = machine_now().timestamp();
            let before = self.warned_at.load(Ordering::Relaxed);
            if now.saturating_sub(before) >= WARN_SECONDS {
                self.warned_at.store(now, Ordering::Relaxed);
                tracing::warn!(%error, spans, "spans are lost: the collector of [telemetry] otlp_endpoint does not take them");
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::net::TcpListener;
    use std::time::SystemTime;

    use opentelemetry::InstrumentationScope;
    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};

    use super::*;

    fn span() -> SpanData {
        let (trace, span) = (TraceId::from(1), SpanId::from(1));
        SpanData {
            span_context: SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed("chat"),
            start_time: SystemTime::UNIX_EPOCH,
            end_time: SystemTime::UNIX_EPOCH,
            attributes: vec![],
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    #[test]
    fn spans_beyond_the_bound_of_those_that_wait_are_lost_and_counted() {
        // it takes connections, and answers nothing
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let metrics = Metrics::new();
        let endpoint = format!("http://{}", silent.local_addr().expect("an address"));
        let export = SpanExport::start(&endpoint, &metrics).expect("an exporter");
        (0..QUEUE).for_each(|_| export.on_end(span()));
        assert!(!metrics.text().contains("reveille_spans_total{"), "all of them wait");
        (0..3).for_each(|_| export.on_end(span()));
        let text = metrics.text();
        assert!(text.lines().any(|line| line == r#"reveille_spans_total{outcome="lost"} 3"#), "{text}");
    }

    #[test]
    fn collector_is_named_with_or_without_its_path() {
        for named in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(address(named), "http://c:4318/v1/traces");
        }
    }
}
