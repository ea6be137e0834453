//! Metrics of this process from the operating system, read when metrics are: under the names that dashboards of all
//! services share, without a prefix of ours.
//!
//! Read from `/proc`. Where there is none (not Linux), only what the system answers by itself is told.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Ticks a second in which `/proc` counts, the same on every Linux.
const TICKS: f64 = 100.0;

/// One figure of the process.
pub struct ProcessFigure {
    /// As it is printed, a counter's `_total` aside.
    pub name: &'static str,
    pub help: &'static str,
    kind: MetricType,
    read: fn() -> Option<f64>,
}

/// All of them.
pub const FIGURES: [ProcessFigure; 6] = [
    ProcessFigure {
        name: "process_cpu_seconds",
        help: "Processor time that this process has used",
        kind: MetricType::Counter,
        read: cpu_seconds,
    },
    ProcessFigure {
        name: "process_resident_memory_bytes",
        help: "Memory of this process that is in RAM",
        kind: MetricType::Gauge,
        read: || Some(status("VmRSS:")? * 1024.0),
    },
    ProcessFigure {
        name: "process_threads",
        help: "Threads of this process",
        kind: MetricType::Gauge,
        read: || status("Threads:"),
    },
    ProcessFigure {
        name: "process_open_fds",
        help: "Open files and connections of this process",
        kind: MetricType::Gauge,
        read: || Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as f64),
    },
    ProcessFigure {
        name: "process_max_fds",
        help: "Files and connections that this process may open",
        kind: MetricType::Gauge,
        read: || Some(getrlimit(Resource::Nofile).current? as f64),
    },
    ProcessFigure {
        name: "process_start_time_seconds",
        help: "Unix time at which this process was started",
        kind: MetricType::Gauge,
        read: start_time,
    },
];

impl ProcessFigure {
    /// The type of the metric.
    pub fn kind(&self) -> MetricType {
        self.kind
    }
}

/// Reads the figures at each scrape.
#[derive(Debug)]
pub struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for ProcessFigure { name, help, kind, read } in &FIGURES {
            if let Some(value) = read() {
                let metric = ProcessValue { kind: *kind, value };
                metric.encode(encoder.encode_descriptor(name, help, None::<&Unit>, *kind)?)?;
            }
        }
        Ok(())
    }
}

struct ProcessValue {
    kind: MetricType,
    value: f64,
}

impl EncodeMetric for ProcessValue {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        match self.kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&self.value, None),
            _ => encoder.encode_gauge(&self.value),
        }
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}

fn cpu_seconds() -> Option<f64> {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Some(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
}

/// The number of a line of `/proc/self/status`.
fn status(label: &str) -> Option<f64> {
    number_of(&std::fs::read_to_string("/proc/self/status").ok()?, label)
}

fn number_of(text: &str, label: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The machine's start, and the process's counted from it.
fn start_time() -> Option<f64> {
    let machine = number_of(&std::fs::read_to_string("/proc/stat").ok()?, "btime")?;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // the name stands in brackets and may hold anything; the start is the twentieth field behind it
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(machine + ticks / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_read_and_plausible() {
        let value = |name: &str| {
            let figure = FIGURES.iter().find(|figure| figure.name == name).expect("a figure");
            (figure.read)().unwrap_or_else(|| panic!("{name} can't be read"))
        };
        let work: u64 = (0..1_000_000_u64).map(|n| n.wrapping_mul(n)).fold(0, u64::wrapping_add);
        assert!(work > 0 && value("process_cpu_seconds") > 0.0);
        assert!(value("process_resident_memory_bytes") > 1024.0 * 1024.0);
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") < value("process_max_fds"));
        let age = chrono::DateTime::from_timestamp(value("process_start_time_seconds") as i64, 0).unwrap();
        assert!(chrono::Datelike::year(&age) >= 2026, "{age}");
    }
}
