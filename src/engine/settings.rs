//! `[engine]`: how much an instance does at once, how long it waits, and how long it keeps what has ended.

use std::time::Duration;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::base::invalid::ValidationErrors;
use crate::store::RunLimits;

/// Longest retention: a hundred years, which no arithmetic of time minds.
const LONGEST_RETENTION_DAYS: u32 = 36_500;
/// Runs that one instance may be told to execute or to lease ahead.
const MOST_AT_ONCE: usize = 100_000;
/// Largest limit on runs.
const MOST_RUNS: u32 = 1_000_000;

/// `[engine]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Runs that this instance executes at the same time, those aside that wait for an answer.
    pub max_concurrent_runs: usize,
    /// Runs beside them that wait for the answer of a model or of a webhook; 0: each keeps its slot while it waits.
    pub max_waiting_runs: usize,
    /// A run whose worker is not heard of for this long is taken from it. Heartbeats come three times as often.
    pub lease_seconds: f64,
    /// Runs that are leased ahead of their instant, beyond those that could start at once.
    pub prefetch: usize,
    /// How long runs may go on after the service was asked to stop; then they are handed back.
    pub shutdown_grace_seconds: f64,
    /// Finished runs, their transcripts and deliveries are forgotten after this many days.
    pub retention_days: u32,
    /// When housekeeping is done: cron in UTC, of five fields, or six with seconds first.
    pub housekeeping: String,
    /// Runs of one tenant that are under way at once, over all instances; 0 is no limit.
    pub max_runs_per_tenant: u32,
    /// Runs that are under way at once, over all tenants and instances; 0 is no limit.
    pub max_runs_total: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_concurrent_runs: 64,
            max_waiting_runs: 4_096,
            lease_seconds: 45.0,
            prefetch: 256,
            shutdown_grace_seconds: 20.0,
            retention_days: 90,
            housekeeping: "0 17 * * * *".into(),
            max_runs_per_tenant: 0,
            max_runs_total: 0,
        }
    }
}

impl Settings {
    /// Length of a lease, between 0.3 s and an hour.
    pub fn lease(&self) -> Duration {
        Duration::from_secs_f64(self.lease_seconds.clamp(0.3, 3600.0))
    }

    /// How long what has ended is kept.
    pub fn retention(&self) -> TimeDelta {
        TimeDelta::days(self.retention_days.clamp(1, LONGEST_RETENTION_DAYS).into())
    }

    /// Adds the numbers that make no sense; pointers begin with `/engine`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        let mut expect = |is_fine: bool, key: &str, right: String| {
            if !is_fine {
                faults.add(format!("/engine/{key}"), format!("must be {right}"));
            }
        };
        let seconds = |from: f64| format!("from {from} to 3600 seconds");
        expect(
            (1..=MOST_AT_ONCE).contains(&self.max_concurrent_runs),
            "max_concurrent_runs",
            format!("from 1 to {MOST_AT_ONCE}"),
        );
        expect(self.max_waiting_runs <= MOST_AT_ONCE, "max_waiting_runs", format!("at most {MOST_AT_ONCE}"));
        expect((0.3..=3600.0).contains(&self.lease_seconds), "lease_seconds", seconds(0.3));
        expect(self.prefetch <= MOST_AT_ONCE, "prefetch", format!("at most {MOST_AT_ONCE}"));
        expect((0.0..=3600.0).contains(&self.shutdown_grace_seconds), "shutdown_grace_seconds", seconds(0.0));
        let days = 1..=LONGEST_RETENTION_DAYS;
        expect(days.contains(&self.retention_days), "retention_days", format!("from 1 to {LONGEST_RETENTION_DAYS}"));
        for (key, number) in
            [("max_runs_per_tenant", self.max_runs_per_tenant), ("max_runs_total", self.max_runs_total)]
        {
            expect(number <= MOST_RUNS, key, format!("at most {MOST_RUNS}; 0 is no limit"));
        }
    }

    /// Limits on runs under way over all instances.
    pub fn limits(&self) -> RunLimits {
        RunLimits::new(self.max_runs_per_tenant, self.max_runs_total)
    }

    /// Time that running executions have at a stop, up to an hour.
    pub fn shutdown_grace(&self) -> Duration {
        Duration::from_secs_f64(self.shutdown_grace_seconds.clamp(0.0, 3600.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_the_one_that_is_set() {
        let settings = Settings { max_runs_per_tenant: 3, max_runs_total: 5, ..Settings::default() };
        assert_eq!(settings.limits(), RunLimits { per_tenant: Some(3), total: Some(5), own: false });
        assert_eq!(Settings::default().limits(), RunLimits::default());
    }

    #[test]
    fn numbers_of_runs_hold_up_to_their_bounds_and_what_exceeds_them_is_told() {
        let faults = |settings: Settings| {
            let mut faults = ValidationErrors::new();
            settings.check(&mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        let most = MOST_AT_ONCE;
        let all = |number: usize| Settings {
            max_concurrent_runs: number,
            max_waiting_runs: number,
            prefetch: number,
            ..Settings::default()
        };
        assert_eq!(faults(all(most)), [""; 0]);
        assert_eq!(
            faults(all(most + 1)),
            ["/engine/max_concurrent_runs", "/engine/max_waiting_runs", "/engine/prefetch"]
        );
        assert_eq!(faults(all(0)), ["/engine/max_concurrent_runs"], "nobody need wait without a slot, or be ahead");
    }
}
