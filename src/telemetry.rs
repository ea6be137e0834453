//! Logging of the service: lines on standard error, for people or for machines.
//!
//! Logged once, where handled; never a secret or a body.

use std::io::IsTerminal;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::base::invalid::ValidationErrors;

/// `[telemetry]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Form of log lines.
    pub log_format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives by module such as `info,reveille::engine=debug`.
    pub log_level: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { log_format: LogFormat::Auto, log_level: "info".into() }
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
    fn filter(&self) -> Result<EnvFilter, ParseError> {
        EnvFilter::try_new(&self.log_level)
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
    }
}

/// Starts logging for the whole process; later calls change nothing.
/// A level that can't be read was refused with the configuration.
pub fn start(settings: &Settings) {
    let filter = settings.filter().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = match settings.as_json() {
        true => log.json().flatten_event(true).with_current_span(false).try_init(),
        false => log.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
    };
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
}
