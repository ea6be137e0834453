//! `[context]`: what a model is shown of a long conversation.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::invalid::{ValidationErrors, did_you_mean};
use crate::base::words::words;

/// Most rounds between two reminders.
const MOST_ROUNDS: u32 = 100;
/// Messages from which on a conversation may be summarised; with fewer there is hardly anything to summarise.
const MESSAGES: RangeInclusive<usize> = 10..=1_000_000;
/// Longest summary, in tokens.
const SUMMARY_TOKENS: RangeInclusive<u32> = 50..=10_000;
/// Time that a summary may take, in seconds.
const SECONDS: RangeInclusive<u64> = 1..=600;
/// Most dollars an hour.
const MOST_DOLLARS: f64 = 1_000_000.0;
/// Longest time that summaries are kept, in hours.
const MOST_HOURS: u64 = 720;

words! {
    /// The first step with a conversation that fills its window.
    pub enum Strategy {
        /// Earlier turns are shown in short, with questions, results and errors whole.
        Extract = "extract",
        /// Earlier messages are not shown.
        Truncate = "truncate",
    }
}

/// `[context]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSettings {
    /// The first step with a conversation that fills its window.
    pub strategy: Strategy,
    /// After so many rounds of calls the model is reminded of its task and of what came of it so far; 0: never.
    pub refocus_every_rounds: u32,
    /// A conversation of so many messages is summarised, beside its turns; 0: none is.
    pub summarise_from_messages: usize,
    /// The model that summarises, one of `[llm.models]`; absent: the run's own.
    pub summary_model: Option<String>,
    /// Longest summary, in tokens.
    pub summary_max_tokens: u32,
    /// Time that a summary may take.
    pub summary_timeout_seconds: u64,
    /// Most that a tenant may spend on summaries within an hour.
    pub summary_max_usd_per_hour: f64,
    /// How long a summary serves other runs with the same conversation.
    pub summary_cache_hours: u64,
}

impl Default for ContextSettings {
    fn default() -> ContextSettings {
        ContextSettings {
            strategy: Strategy::Extract,
            refocus_every_rounds: 5,
            summarise_from_messages: 50,
            summary_model: None,
            summary_max_tokens: 500,
            summary_timeout_seconds: 10,
            summary_max_usd_per_hour: 0.1,
            summary_cache_hours: 24,
        }
    }
}

impl ContextSettings {
    /// Adds what makes no sense; pointers begin with `/context`. `models`: the names of `[llm.models]`.
    pub fn check(&self, models: &[&str], faults: &mut ValidationErrors) {
        let mut expect = |fine: bool, key: &str, right: String| {
            if !fine {
                faults.add(format!("/context/{key}"), format!("must be {right}"));
            }
        };
        let between = |least: u64, most: u64| format!("from {least} to {most}");
        expect(self.refocus_every_rounds <= MOST_ROUNDS, "refocus_every_rounds", between(0, MOST_ROUNDS.into()));
        let from = self.summarise_from_messages;
        let right = format!("0, or {}", between(*MESSAGES.start() as u64, *MESSAGES.end() as u64));
        expect(from == 0 || MESSAGES.contains(&from), "summarise_from_messages", right);
        let (least, most) = (u64::from(*SUMMARY_TOKENS.start()), u64::from(*SUMMARY_TOKENS.end()));
        expect(SUMMARY_TOKENS.contains(&self.summary_max_tokens), "summary_max_tokens", between(least, most));
        let right = between(*SECONDS.start(), *SECONDS.end());
        expect(SECONDS.contains(&self.summary_timeout_seconds), "summary_timeout_seconds", right);
        let dollars = (0.0..=MOST_DOLLARS).contains(&self.summary_max_usd_per_hour);
        expect(dollars, "summary_max_usd_per_hour", format!("from 0 to {MOST_DOLLARS}"));
        expect(self.summary_cache_hours <= MOST_HOURS, "summary_cache_hours", between(0, MOST_HOURS));
        if let Some(model) = self.summary_model.as_deref().filter(|model| !models.contains(model)) {
            let near = did_you_mean(model, models.iter().copied());
            faults.add("/context/summary_model", format!("no model `{model}` in [llm.models]{near}"));
        }
    }

    /// Most that a tenant may spend on summaries within an hour, in micro-dollars.
    pub fn hourly_micros(&self) -> i64 {
        (self.summary_max_usd_per_hour * 1e6).round() as i64
    }

    /// How long a summary is kept.
    pub fn summary_lifetime(&self) -> Duration {
        Duration::from_secs(3600 * self.summary_cache_hours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound_and_every_number_has_its_bounds() {
        let faults = |settings: ContextSettings| {
            let mut faults = ValidationErrors::new();
            settings.check(&["main", "small"], &mut faults);
            faults.0.into_iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect::<Vec<_>>()
        };
        assert_eq!(faults(ContextSettings::default()), [] as [&str; 0]);
        let least = ContextSettings {
            refocus_every_rounds: 0,
            summarise_from_messages: 0,
            summary_model: Some("small".into()),
            summary_max_usd_per_hour: 0.0,
            summary_cache_hours: 0,
            ..ContextSettings::default()
        };
        assert_eq!(faults(least), [] as [&str; 0]);
        let odd = ContextSettings {
            strategy: Strategy::Extract,
            refocus_every_rounds: 101,
            summarise_from_messages: 9,
            summary_model: Some("smal".into()),
            summary_max_tokens: 49,
            summary_timeout_seconds: 0,
            summary_max_usd_per_hour: f64::NAN,
            summary_cache_hours: 721,
        };
        assert_eq!(
            faults(odd),
            [
                "/context/refocus_every_rounds: must be from 0 to 100",
                "/context/summarise_from_messages: must be 0, or from 10 to 1000000",
                "/context/summary_max_tokens: must be from 50 to 10000",
                "/context/summary_timeout_seconds: must be from 1 to 600",
                "/context/summary_max_usd_per_hour: must be from 0 to 1000000",
                "/context/summary_cache_hours: must be from 0 to 720",
                "/context/summary_model: no model `smal` in [llm.models]; did you mean `small`?",
            ]
        );
    }
}
