//! `[gate]`: words and patterns of the operator that no message may contain.

use futures::future::BoxFuture;
use regex::RegexSet;
use serde::{Deserialize, Serialize};

use crate::agent::gate::{GateCheck, GateMessage, GateRefusal};
use crate::base::compute::Compute;
use crate::base::expr::pattern_set;
use crate::base::invalid::ValidationErrors;

/// The reason of a run that was refused for what its message says.
pub const REASON_SAFETY: &str = "safety";
/// Words and patterns together, at most.
const MOST_PATTERNS: usize = 200;

/// `[gate]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Words and phrases, in any case, each as a whole.
    pub words: Vec<String>,
    /// Regular expressions.
    pub patterns: Vec<String>,
}

impl Settings {
    /// The check that goes by these settings; `None` where they say nothing.
    ///
    /// # Errors
    /// What is no word or no pattern; pointers begin with `/gate`.
    pub fn check(&self, compute: &Compute) -> Result<Option<SafetyCheck>, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let set = self.compile(&mut faults);
        faults.into_result(())?;
        Ok((!set.is_empty()).then(|| SafetyCheck { set, compute: compute.clone() }))
    }

    /// All words and patterns; adds those that are none.
    pub fn compile(&self, faults: &mut ValidationErrors) -> RegexSet {
        if self.words.len() + self.patterns.len() > MOST_PATTERNS {
            faults.add("/gate", format!("`words` and `patterns` together are at most {MOST_PATTERNS}"));
        }
        let word = |word: &String| whole_word(word.trim());
        let words = self.words.iter().enumerate().map(|(at, text)| (format!("/gate/words/{at}"), text, word(text)));
        let patterns =
            self.patterns.iter().enumerate().map(|(at, text)| (format!("/gate/patterns/{at}"), text, text.clone()));
        let mut all = Vec::new();
        for (place, text, pattern) in words.chain(patterns) {
            match text.trim().is_empty() {
                true => faults.add(place, "must not be empty: it would refuse every message"),
                false => all.push((place, pattern)),
            }
        }
        pattern_set(&all, faults)
    }
}

/// The pattern of a word or phrase as a whole: nothing that belongs to a word stands beside its letters and digits.
fn whole_word(word: &str) -> String {
    let edge = |beside: Option<char>| if beside.is_some_and(|c| c.is_alphanumeric() || c == '_') { r"\b" } else { "" };
    let (before, behind) = (edge(word.chars().next()), edge(word.chars().next_back()));
    format!("(?i){before}{}{behind}", regex::escape(word))
}

/// Refuses messages that contain a word or match a pattern of the operator.
pub struct SafetyCheck {
    set: RegexSet,
    compute: Compute,
}

impl GateCheck for SafetyCheck {
    fn name(&self) -> &'static str {
        "safety"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(async move {
            let (set, text) = (self.set.clone(), message.text.to_owned());
            let steps = text.len() as u64 * set.len() as u64;
            let found = self.compute.run_if_costly(message.tenant, steps, move || set.is_match(&text)).await;
            match found {
                Ok(false) => Ok(()),
                // a search that broke down has shown nothing
                Ok(true) | Err(_) => Err(GateRefusal::Skip(REASON_SAFETY.into())),
            }
        })
    }
}
