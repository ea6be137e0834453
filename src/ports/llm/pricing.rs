//! The cost of a call, in integer micro-dollars. The rates come from the operator's settings.

use crate::ports::llm::ModelTokens;

/// Rates of one model, in micro-dollars for a million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenPrices {
    input: u64,
    output: u64,
    /// For input that comes from the provider's cache; `None`: as other input.
    cache_read: Option<u64>,
    /// For input that the provider's cache keeps; `None`: as other input.
    cache_write: Option<u64>,
}

impl TokenPrices {
    /// From dollars for a million tokens, as in the settings. Less than nothing counts as nothing.
    pub fn from_dollars(input: f64, output: f64) -> TokenPrices {
        TokenPrices { input: micros(input), output: micros(output), cache_read: None, cache_write: None }
    }

    /// With prices of their own for input that the provider's cache gives and keeps, where they are named.
    pub fn with_cache(self, read: Option<f64>, write: Option<f64>) -> TokenPrices {
        TokenPrices { cache_read: read.map(micros), cache_write: write.map(micros), ..self }
    }

    /// Whether no price is known, of input or of output.
    pub fn is_unknown(self) -> bool {
        self.input == 0 && self.output == 0
    }

    /// The most that a call of so many tokens may cost, whatever the provider's cache does, rounded up to a
    /// micro-dollar.
    pub fn most_micros(self, input: i64, output: i64) -> i64 {
        let dearest = self.input.max(self.cache_read.unwrap_or(0)).max(self.cache_write.unwrap_or(0));
        let part = |tokens: i64, rate: u64| tokens.max(0) as u128 * rate as u128;
        let exact = part(input, dearest) + part(output, self.output);
        i64::try_from(exact.div_ceil(1_000_000)).unwrap_or(i64::MAX)
    }

    /// The cost of a call, rounded to the nearest micro-dollar.
    pub fn cost_micros(self, tokens: ModelTokens) -> i64 {
        let part = |tokens: i64, rate: u64| tokens.max(0) as u128 * rate as u128;
        let uncached = tokens.input.saturating_sub(tokens.cache_read).saturating_sub(tokens.cache_write);
        let exact = part(uncached, self.input)
            + part(tokens.cache_read, self.cache_read.unwrap_or(self.input))
            + part(tokens.cache_write, self.cache_write.unwrap_or(self.input))
            + part(tokens.output, self.output);
        i64::try_from((exact + 500_000) / 1_000_000).unwrap_or(i64::MAX)
    }
}

fn micros(dollars: f64) -> u64 {
    (dollars * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_costs_its_tokens_at_their_rates() {
        let rates = TokenPrices::from_dollars(2.5, 10.0);
        assert_eq!(rates.cost_micros(ModelTokens::of(1_000_000, 0)), 2_500_000);
        assert_eq!(rates.cost_micros(ModelTokens::of(1000, 200)), 2500 + 2000);
        assert_eq!(rates.cost_micros(ModelTokens::of(1, 0)), 3, "2.5 is rounded, not cut");
        assert_eq!(rates.cost_micros(ModelTokens::default()), 0);
    }

    #[test]
    fn input_of_the_cache_has_its_own_rates_where_they_are_named() {
        let tokens = ModelTokens { cache_read: 600, cache_write: 300, ..ModelTokens::of(1000, 0) };
        let rates = TokenPrices::from_dollars(10.0, 0.0);
        assert_eq!(rates.cost_micros(tokens), 10_000);
        assert_eq!(rates.with_cache(Some(1.0), Some(12.5)).cost_micros(tokens), 1000 + 600 + 3750);
        assert_eq!(rates.with_cache(Some(0.0), None).cost_micros(tokens), 4000);
    }

    #[test]
    fn worst_case_takes_the_dearest_price_of_input_and_rounds_up() {
        let rates = TokenPrices::from_dollars(10.0, 20.0);
        assert_eq!(rates.most_micros(100, 10), 1000 + 200);
        assert_eq!(rates.with_cache(Some(1.0), Some(12.5)).most_micros(100, 10), 1250 + 200);
        assert_eq!(TokenPrices::from_dollars(2.1, 0.0).most_micros(1, 0), 3);
        assert_eq!([rates.is_unknown(), TokenPrices::from_dollars(0.0, 0.0).is_unknown()], [false, true]);
    }

    #[test]
    fn odd_rates_and_counts_cost_nothing_or_all_there_is() {
        assert_eq!(TokenPrices::from_dollars(-1.0, f64::NAN).cost_micros(ModelTokens::of(9, 9)), 0);
        let tokens = ModelTokens::of(i64::MAX, -5);
        assert_eq!(TokenPrices::from_dollars(1e9, 1.0).cost_micros(tokens), i64::MAX);
        let odd = ModelTokens { cache_read: 100, ..ModelTokens::of(10, 0) };
        assert_eq!(TokenPrices::from_dollars(1e6, 0.0).with_cache(Some(1.0), None).cost_micros(odd), 100);
    }
}
