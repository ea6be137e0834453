//! The judge of fault tests: was everything that was due recorded once, executed and ended, by the database alone?
//!
//! What was due comes from an oracle of its own ([`oracle`]), never from the product's code. What was done comes from
//! the stored rows ([`records`]) and from the journal of the other side ([`super::effects`]). A [`Verdict`] lists every
//! violation by its rule; a judgement that looked at nothing is one, too.

mod fires;
mod oracle;
mod records;
mod runs;

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};

use super::effects::{Effect, Payment};

pub use oracle::{Due, field_numbers};
pub use records::{Records, RunRow, Source, TaskRow};

/// How late something may be recorded without an outage: a loaded machine, or the loss of one instance among several.
pub const PATIENCE: TimeDelta = TimeDelta::seconds(10);
/// Fires are recorded this long ahead of their instant, so an outage may begin as much later and still lose one.
const AHEAD: TimeDelta = TimeDelta::milliseconds(1500);

/// Facts that the test knows besides the database.
#[derive(Debug, Clone, Default)]
pub struct CheckerFacts {
    /// When nobody could record anything: no instance, no database, no clock.
    pub outages: Vec<(DateTime<Utc>, DateTime<Utc>)>,
    /// Requests that the other side of the webhook tasks has seen.
    pub effects: Vec<Effect>,
    /// Requests of pipelines that must not be repeated, as the other side has seen them.
    pub payments: Vec<Payment>,
    /// How many of the effects, the last ones, came while the database was read: it need not know of them.
    pub newer: usize,
    /// How many processes were killed, or stopped for longer than a lease.
    pub crashes: i64,
    /// Instances were asked to stop, and may have handed runs back: an attempt's number is used again then.
    pub hands_back: bool,
    /// The clock of the database was stepped: what was written by it cannot be put in order.
    pub clock_stepped: bool,
    /// Everything has ended: nothing is on its way any more.
    pub ended: bool,
    /// An instant up to which at least one instance was well.
    pub alive_until: Option<DateTime<Utc>>,
}

/// A rule that does not hold, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}

/// The judged counts, and the findings.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Instants that were due, by the oracle.
    pub instants: usize,
    /// Of those, how many have a row of their own; the others stand in ranges.
    pub fires: usize,
    pub runs: usize,
    pub effects: usize,
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Adds what does not hold.
    pub fn violated(&mut self, rule: &'static str, what: impl fmt::Display) {
        self.violations.push(Violation { rule, what: what.to_string() });
    }

    /// The rules that do not hold, each with how often.
    pub fn rules(&self) -> BTreeMap<&'static str, usize> {
        let mut rules = BTreeMap::new();
        for violation in &self.violations {
            *rules.entry(violation.rule).or_default() += 1;
        }
        rules
    }

    /// # Panics
    /// If anything is violated; what, is in the message.
    pub fn must_hold(&self) {
        let shown: Vec<String> =
            self.violations.iter().take(20).map(|found| format!("{}: {}", found.rule, found.what)).collect();
        assert!(self.violations.is_empty(), "{:?}\n{}\n{self}", self.rules(), shown.join("\n"));
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { instants, fires, runs, effects, violations } = self;
        let violations = violations.len();
        write!(
            f,
            "{instants} instants due, {fires} with a row of their own; {runs} runs, {effects} executions seen; violations {violations}"
        )
    }
}

/// Judges what is stored.
pub fn judge(records: &Records, known: &CheckerFacts) -> Verdict {
    let mut verdict = Verdict { runs: records.runs.len(), effects: known.effects.len(), ..Verdict::default() };
    for task in &records.tasks {
        fires::judge(records, task, known, &mut verdict);
    }
    runs::judge(records, known, &mut verdict);
    if verdict.runs == 0 || records.tasks.is_empty() {
        verdict.violated("something_to_judge", "there are no tasks, or no runs");
    }
    verdict
}

#[cfg(test)]
mod tests;
