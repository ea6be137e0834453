//! Counts of a provider, against our estimate: the running ratio of one model, which later estimates are multiplied by.
//!
//! Begins with the margin of the model's family, as if it had been found over `PRIOR` tokens. Kept in memory, of each
//! instance for itself; lost with it.

use std::sync::Mutex;

use crate::ports::llm::ModelRequest;
use crate::ports::llm::tokens::TokenCounter;
use crate::ports::llm::tokens::exact::ExactCounts;

/// Tokens that the margin of the family counts for.
const PRIOR: f64 = 20_000.0;
/// Estimated tokens from which on older requests count half, so that a model that has changed is heard.
const HORIZON: f64 = 2_000_000.0;
/// The ratio stays within these parts of the family's margin, whatever a provider says.
const BOUNDS: (f64, f64) = (0.75, 3.0);

/// The ratio of one model, which all calls of an instance share, and its exact counts, where an embedder has them
/// counted.
#[derive(Default)]
pub struct TokenCalibration {
    sums: Mutex<CountedTokens>,
    exact: Option<ExactCounts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct CountedTokens {
    /// As we estimate without a margin.
    estimated: f64,
    /// As the provider says.
    counted: f64,
}

impl TokenCalibration {
    /// Of a model of which nothing was observed, with these exact counts.
    pub fn with_exact(exact: Option<ExactCounts>) -> TokenCalibration {
        TokenCalibration { exact, ..TokenCalibration::default() }
    }

    /// The exact counts, where there are any.
    pub fn exact(&self) -> Option<&ExactCounts> {
        self.exact.as_ref()
    }

    /// Notes a request, and how many tokens of input the provider says it had; less than one: it does not say.
    pub fn observe(&self, counter: TokenCounter, request: &ModelRequest, counted: i64) {
        if counted < 1 {
            return;
        }
        let estimated = TokenCounter { margin: 1.0, ..counter }.request(request) as f64;
        let mut sums = self.sums.lock().expect("calibration lock");
        sums.estimated += estimated;
        sums.counted += counted as f64;
        if sums.estimated > HORIZON {
            *sums = CountedTokens { estimated: sums.estimated / 2.0, counted: sums.counted / 2.0 };
        }
    }

    /// The counter with what was observed in place of its margin.
    pub fn applied_to(&self, counter: TokenCounter) -> TokenCounter {
        let CountedTokens { estimated, counted } = *self.sums.lock().expect("calibration lock");
        let ratio = (PRIOR * counter.margin + counted) / (PRIOR + estimated);
        TokenCounter { margin: ratio.clamp(counter.margin * BOUNDS.0, counter.margin * BOUNDS.1), ..counter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::run::TranscriptMessage;
    use crate::ports::llm::{OfferedTools, ToolChoice};

    /// A request of so many estimated tokens.
    fn request(tokens: usize) -> ModelRequest {
        ModelRequest {
            messages: vec![TranscriptMessage::user("x".repeat(4 * tokens - 16))],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        }
    }

    fn margin(observed: &[(usize, i64)]) -> f64 {
        let (calibration, counter) = (TokenCalibration::default(), TokenCounter::of("claude"));
        observed.iter().for_each(|(tokens, counted)| calibration.observe(counter, &request(*tokens), *counted));
        calibration.applied_to(counter).margin
    }

    #[test]
    fn ratio_begins_with_the_margin_and_goes_to_what_the_provider_counts() {
        assert_eq!(margin(&[]), 1.15);
        assert!((margin(&[(20_000, 20_000)]) - 1.075).abs() < 1e-9, "half of the way, {}", margin(&[(20_000, 20_000)]));
        let long = margin(&[(100_000, 140_000); 9]);
        assert!((1.39..1.4).contains(&long), "{long}");
        assert_eq!(margin(&[(20_000, 0), (20_000, -5)]), 1.15, "a provider that does not say");
    }

    #[test]
    fn ratio_is_bounded_and_hears_a_model_that_has_changed() {
        assert_eq!(margin(&[(1_000_000, 1)]), 1.15 * 0.75);
        assert_eq!(margin(&[(1_000, 1_000_000_000)]), 1.15 * 3.0);
        let mut observed = vec![(1_000_000, 1_000_000); 50];
        observed.extend([(1_000_000, 2_000_000); 5]);
        let changed = margin(&observed);
        assert!(changed > 1.8, "{changed}");
    }
}
