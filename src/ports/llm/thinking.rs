//! How hard a model thinks, how it may be asked less of, and what of a conversation its provider is to keep.

use crate::base::words::words;

words! {
    /// How much a model thinks before it answers.
    #[derive(PartialOrd, Ord)]
    pub enum ThinkingEffort {
        /// Not at all.
        None = "none",
        /// As little as it can.
        Minimal = "minimal",
        /// A little.
        Low = "low",
        /// As most are made to.
        Medium = "medium",
        /// Much.
        High = "high",
        /// Very much.
        ExtraHigh = "xhigh",
        /// As much as it can.
        Max = "max",
    }
}

words! {
    /// Whether a model thinks, and who decides how much.
    pub enum ThinkingMode {
        /// The model decides.
        Adaptive = "adaptive",
        /// Up to a budget of tokens.
        Enabled = "enabled",
        /// It does not think.
        Disabled = "disabled",
    }
}

words! {
    /// How long a provider keeps the beginning of a conversation for the calls that follow.
    #[derive(Default)]
    pub enum PromptCache {
        /// It is not asked to.
        Off = "off",
        /// Five minutes from its last use.
        #[default]
        FiveMinutes = "5m",
        /// An hour, which costs more.
        OneHour = "1h",
    }
}

impl ThinkingEffort {
    /// The levels that a failing call is tried with after this one, down to the least that the provider has.
    pub fn lower(self, provider: &str) -> impl Iterator<Item = ThinkingEffort> {
        let least = if provider == "anthropic" { ThinkingEffort::Low } else { ThinkingEffort::None };
        let levels = [ThinkingEffort::High, ThinkingEffort::Medium, ThinkingEffort::Low, ThinkingEffort::None];
        levels.into_iter().filter(move |level| *level < self && *level >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_go_down_to_the_least_that_the_provider_has() {
        let lower =
            |effort: ThinkingEffort, provider| effort.lower(provider).map(ThinkingEffort::as_str).collect::<Vec<_>>();
        assert_eq!(lower(ThinkingEffort::Max, "openai"), ["high", "medium", "low", "none"]);
        assert_eq!(lower(ThinkingEffort::ExtraHigh, "anthropic"), ["high", "medium", "low"]);
        assert_eq!(lower(ThinkingEffort::Medium, "openai-responses"), ["low", "none"]);
        assert_eq!(lower(ThinkingEffort::Minimal, "openai"), ["none"]);
        assert!(lower(ThinkingEffort::Low, "anthropic").is_empty() && lower(ThinkingEffort::None, "openai").is_empty());
    }
}
