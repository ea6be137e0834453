//! The cost of a call, in integer micro-dollars. The rates come from the operator's settings.

use crate::ports::llm::ModelTokens;

/// Rates of one model, in micro-dollars for a million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenPrices {
    input: u64,
    output: u64,
}

impl TokenPrices {
    /// From dollars for a million tokens, as in the settings. Less than nothing counts as nothing.
    pub fn from_dollars(input: f64, output: f64) -> TokenPrices {
        let micros = |dollars: f64| (dollars * 1e6).round() as u64;
        TokenPrices { input: micros(input), output: micros(output) }
    }

    /// The cost of a call, rounded to the nearest micro-dollar.
    pub fn cost_micros(self, tokens: ModelTokens) -> i64 {
        let part = |tokens: i64, rate: u64| tokens.max(0) as u128 * rate as u128;
        let exact = part(tokens.input, self.input) + part(tokens.output, self.output);
        i64::try_from((exact + 500_000) / 1_000_000).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_costs_its_tokens_at_their_rates() {
        let rates = TokenPrices::from_dollars(2.5, 10.0);
        assert_eq!(rates.cost_micros(ModelTokens { input: 1_000_000, output: 0 }), 2_500_000);
        assert_eq!(rates.cost_micros(ModelTokens { input: 1000, output: 200 }), 2500 + 2000);
        assert_eq!(rates.cost_micros(ModelTokens { input: 1, output: 0 }), 3, "2.5 is rounded, not cut");
        assert_eq!(rates.cost_micros(ModelTokens::default()), 0);
    }

    #[test]
    fn odd_rates_and_counts_cost_nothing_or_all_there_is() {
        assert_eq!(TokenPrices::from_dollars(-1.0, f64::NAN).cost_micros(ModelTokens { input: 9, output: 9 }), 0);
        let tokens = ModelTokens { input: i64::MAX, output: -5 };
        assert_eq!(TokenPrices::from_dollars(1e9, 1.0).cost_micros(tokens), i64::MAX);
    }
}
