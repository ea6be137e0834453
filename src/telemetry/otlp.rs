//! Export of spans over OTLP: in batches, on a thread of its own. A collector that is away, slow or silent delays nothing and
//! loses nothing but spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

use crate::base::clock::machine_now;

/// Spans that wait to be exported; beyond them others are lost.
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
pub struct SpanExport(Arc<BatchSpanProcessor>);

impl SpanExport {
    /// An exporter to a collector; the error is a sentence. The client blocks, so that it is made, as it is used, on a thread without a runtime.
    pub fn start(endpoint: &str) -> Result<SpanExport, String> {
        let address = address(endpoint);
        let made = thread::spawn(move || {
            let exporter = OtlpExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(address)
                .with_timeout(TIME_LIMIT)
                .build();
            exporter.map(|exporter| {
                let exporter = WarningExporter { exporter, warned_at: AtomicI64::new(i64::MIN) };
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
            Ok(Ok(processor)) => Ok(SpanExport(Arc::new(processor))),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the exporter panicked".into()),
        }
    }

    /// Exports what is left, within two seconds.
    pub fn stop(&self) {
        let (done, waits) = mpsc::channel();
        let export = self.clone();
        thread::spawn(move || {
            let _ = export.0.shutdown_with_timeout(LAST_LIMIT);
            let _ = done.send(());
        });
        let _ = waits.recv_timeout(LAST_LIMIT);
    }
}

impl SpanProcessor for SpanExport {
    fn on_start(&self, span: &mut Span, context: &opentelemetry::Context) {
        self.0.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        self.0.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
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

/// Says now and then that the collector is away.
#[derive(Debug)]
struct WarningExporter {
    exporter: OtlpExporter,
    /// In seconds since 1970.
    warned_at: AtomicI64,
}

impl SpanExporter for WarningExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
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
    use super::*;

    #[test]
    fn collector_is_named_with_or_without_its_path() {
        for named in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(address(named), "http://c:4318/v1/traces");
        }
    }
}
