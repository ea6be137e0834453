//! `[context]`: what a model is shown of a long conversation.

use serde::{Deserialize, Serialize};

use crate::base::invalid::ValidationErrors;
use crate::base::words::words;

/// Most rounds between two reminders.
const MOST_ROUNDS: u32 = 100;

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
}

impl Default for ContextSettings {
    fn default() -> ContextSettings {
        ContextSettings { strategy: Strategy::Extract, refocus_every_rounds: 5 }
    }
}

impl ContextSettings {
    /// Adds the numbers that make no sense; pointers begin with `/context`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if self.refocus_every_rounds > MOST_ROUNDS {
            faults.add("/context/refocus_every_rounds", format!("must be from 0 to {MOST_ROUNDS}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound_and_every_number_has_its_bounds() {
        let faults = |settings: ContextSettings| {
            let mut faults = ValidationErrors::new();
            settings.check(&mut faults);
            faults.0.len()
        };
        assert_eq!(faults(ContextSettings::default()), 0);
        assert_eq!(faults(ContextSettings { refocus_every_rounds: MOST_ROUNDS + 1, ..ContextSettings::default() }), 1);
    }
}
