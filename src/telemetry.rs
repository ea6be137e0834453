//! Logging and traces of the service: lines on standard error, for people or for machines, and spans over OTLP.
//!
//! Logged once, where handled; never a secret or a body. Spans have content only where an operator asks for it.

mod layer;
mod otlp;

use std::io::IsTerminal;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};
use url::Url;

use crate::base::invalid::ValidationErrors;
use crate::base::metrics::Metrics;
use crate::base::metrics::trace::{CONTENT, SPANS};
use crate::telemetry::layer::TraceLayer;
use crate::telemetry::otlp::SpanExport;

/// The target of the log of the library for MCP.
const MCP_LIBRARY: &str = "rmcp";

/// `[telemetry]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Form of log lines.
    pub log_format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives by module such as `info,reveille::engine=debug`.
    pub log_level: String,
    /// The collector to which spans are exported over OTLP (protobuf over HTTP), such as `http://127.0.0.1:4318`;
    /// empty: none.
    pub otlp_endpoint: String,
    /// The part of the runs that has spans, from 0 to 1.
    pub trace_sampling: f64,
    /// Whether spans have messages, answers, arguments and results of tools.
    pub trace_content: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            log_format: LogFormat::Auto,
            log_level: "info".into(),
            otlp_endpoint: String::new(),
            trace_sampling: 1.0,
            trace_content: false,
        }
    }
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// Lines for people.
    Text,
    /// A JSON object on each line, for machines.
    Json,
}

impl Settings {
    /// The library for MCP logs what servers send, whole messages among it: nothing of it is shown unless it is named.
    fn filter(&self) -> Result<EnvFilter, ParseError> {
        let filter = EnvFilter::try_new(&self.log_level)?;
        match self.log_level.contains(MCP_LIBRARY) {
            true => Ok(filter),
            false => Ok(filter.add_directive(format!("{MCP_LIBRARY}=off").parse()?)),
        }
    }

    fn as_json(&self) -> bool {
        match self.log_format {
            LogFormat::Auto => !std::io::stderr().is_terminal(),
            LogFormat::Text => false,
            LogFormat::Json => true,
        }
    }

    /// Adds what is wrong; pointers begin with `/telemetry`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if let Err(error) = self.filter() {
            faults.add("/telemetry/log_level", error.to_string());
        }
        let endpoint = Url::parse(&self.otlp_endpoint).ok().filter(|url| url.has_host());
        if !self.otlp_endpoint.is_empty() && !endpoint.is_some_and(|url| ["http", "https"].contains(&url.scheme())) {
            faults.add("/telemetry/otlp_endpoint", "must be an address such as http://127.0.0.1:4318, or empty");
        }
        if !(0.0..=1.0).contains(&self.trace_sampling) {
            faults.add("/telemetry/trace_sampling", "must be from 0 to 1");
        }
    }

    /// The targets that are exported: spans, and texts on them where that is wanted.
    fn exported(&self) -> Targets {
        let content = if self.trace_content { LevelFilter::INFO } else { LevelFilter::OFF };
        Targets::new().with_target(SPANS, LevelFilter::INFO).with_target(CONTENT, content)
    }
}

/// All that is logged: spans that are exported are not.
fn unexported() -> Targets {
    Targets::new()
        .with_default(LevelFilter::TRACE)
        .with_target(SPANS, LevelFilter::OFF)
        .with_target(CONTENT, LevelFilter::OFF)
}

/// The telemetry of the process.
#[derive(Debug)]
pub struct Telemetry(Option<SpanExport>);

impl Telemetry {
    /// Exports the last spans, within two seconds.
    pub async fn stop(self) {
        if let Some(export) = self.0 {
            let _ = tokio::task::spawn_blocking(move || export.stop()).await;
        }
    }
}

/// Starts logging for the whole process, and traces where there is a collector, whose spans are counted in `metrics`;
/// later calls change nothing. A level that can't be read was refused with the configuration.
pub fn start(settings: &Settings, metrics: &Metrics) -> Telemetry {
    let filter = settings.filter().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match settings.as_json() {
        true => log.json().flatten_event(true).with_current_span(false).boxed(),
        false => log.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
    };
    let export = match settings.otlp_endpoint.as_str() {
        "" => Ok(None),
        endpoint => SpanExport::start(endpoint, metrics).map(Some),
    };
    let Ok(Some(export)) = export else {
        let _ = Registry::default().with(log.with_filter(filter.and(unexported()))).try_init();
        if let Err(why) = export {
            tracing::error!(why, "spans can't be exported");
        }
        return Telemetry(None);
    };
    let spans = TraceLayer::new(export.clone(), settings.trace_sampling).with_filter(settings.exported());
    let _ = Registry::default().with(log.with_filter(filter.and(unexported()))).with(spans).try_init();
    Telemetry(Some(export))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_may_name_modules_and_a_wrong_one_is_refused() {
        let faults = |level: &str| {
            let mut faults = ValidationErrors::new();
            Settings { log_level: level.into(), ..Settings::default() }.check(&mut faults);
            faults
        };
        assert_eq!(faults("info,reveille::engine=debug"), ValidationErrors::new());
        assert_eq!(faults("reveille=loud").0[0].pointer, "/telemetry/log_level");
    }

    #[test]
    fn log_of_the_protocol_library_is_off_unless_it_is_named() {
        let shown = |level: &str| {
            let filter = Settings { log_level: level.into(), ..Settings::default() }.filter().unwrap();
            let subscriber = Registry::default().with(filter);
            tracing::subscriber::with_default(subscriber, || {
                [
                    tracing::enabled!(target: "rmcp::service", tracing::Level::WARN),
                    tracing::enabled!(target: "reveille::engine", tracing::Level::WARN),
                ]
            })
        };
        assert_eq!(shown("info"), [false, true]);
        assert_eq!(shown("trace"), [false, true]);
        assert_eq!(shown("info,rmcp=debug"), [true, true]);
    }

    #[test]
    fn collector_and_sampling_are_checked() {
        let faults = |otlp_endpoint: &str, trace_sampling: f64| {
            let mut faults = ValidationErrors::new();
            Settings { otlp_endpoint: otlp_endpoint.into(), trace_sampling, ..Settings::default() }.check(&mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        assert_eq!(faults("https://collector.example:4318", 0.5), [""; 0]);
        assert_eq!(faults("", 0.0), [""; 0]);
        for odd in ["collector:4318", "ftp://collector", "http://"] {
            assert_eq!(faults(odd, 1.0), ["/telemetry/otlp_endpoint"], "{odd}");
        }
        for odd in [1.1, -0.1, f64::NAN] {
            assert_eq!(faults("", odd), ["/telemetry/trace_sampling"]);
        }
    }
}
