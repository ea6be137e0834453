//! How hard a model thinks, how it may be asked less of, and what of a conversation its provider is to keep.

use serde_json::{Value, json};

use crate::base::invalid::ValidationErrors;
use crate::base::words::words;
use crate::ports::llm::ModelSettings;

/// The least budget that Anthropic takes, in tokens.
const LEAST_BUDGET: u32 = 1024;

words! {
    /// How much a model thinks before it answers.
    #[derive(PartialOrd, Ord)]
    pub enum Effort {
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

impl Effort {
    /// The levels that a failing call is tried with after this one, down to the least that the provider has.
    pub fn lower(self, provider: &str) -> impl Iterator<Item = Effort> {
        let least = if provider == "anthropic" { Effort::Low } else { Effort::None };
        let levels = [Effort::High, Effort::Medium, Effort::Low, Effort::None];
        levels.into_iter().filter(move |level| *level < self && *level >= least)
    }
}

impl ModelSettings {
    /// The settings for a call that asks for this much thinking.
    pub fn with_effort(&self, effort: Effort) -> ModelSettings {
        ModelSettings { effort: Some(effort), ..self.clone() }
    }

    /// Anthropic's `thinking`; `None`: as the model has it.
    pub fn anthropic_thinking(&self) -> Option<Value> {
        self.thinking.map(|mode| match mode {
            ThinkingMode::Enabled => json!({ "type": mode, "budget_tokens": self.thinking_budget_tokens }),
            ThinkingMode::Adaptive | ThinkingMode::Disabled => json!({ "type": mode }),
        })
    }

    /// Adds what the provider can't be asked for.
    pub(super) fn check_thinking(&self, place: &str, faults: &mut ValidationErrors) {
        let is_anthropic = self.provider == "anthropic";
        if is_anthropic && self.effort.is_some_and(|effort| effort < Effort::Low) {
            let message = "must be from low to max; `thinking = \"disabled\"` switches thinking off";
            faults.add(format!("{place}/effort"), message);
        }
        let takes_thinking = match self.thinking {
            None => true,
            Some(ThinkingMode::Disabled) => is_anthropic || self.provider == "openai-responses",
            Some(_) => is_anthropic,
        };
        if !takes_thinking {
            let message = format!("is not known to provider `{}`; `effort` says how much it thinks", self.provider);
            faults.add(format!("{place}/thinking"), message);
        }
        let budget = self.thinking_budget_tokens;
        let message = match self.thinking {
            Some(ThinkingMode::Enabled) if is_anthropic => match (budget, self.most_output_tokens()) {
                (Some(budget), most) if (LEAST_BUDGET..most).contains(&budget) => return,
                (_, most) => format!("must be from {LEAST_BUDGET} to less than the longest answer, {most} tokens"),
            },
            _ if budget.is_some() => "is for `thinking = \"enabled\"`".to_owned(),
            _ => return,
        };
        faults.add(format!("{place}/thinking_budget_tokens"), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let settings: ModelSettings = toml::from_str(text).unwrap();
        let mut faults = ValidationErrors::new();
        settings.check_thinking("", &mut faults);
        faults.0.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn levels_go_down_to_the_least_that_the_provider_has() {
        let lower = |effort: Effort, provider| effort.lower(provider).map(Effort::as_str).collect::<Vec<_>>();
        assert_eq!(lower(Effort::Max, "openai"), ["high", "medium", "low", "none"]);
        assert_eq!(lower(Effort::ExtraHigh, "anthropic"), ["high", "medium", "low"]);
        assert_eq!(lower(Effort::Medium, "openai-responses"), ["low", "none"]);
        assert_eq!(lower(Effort::Minimal, "openai"), ["none"]);
        assert!(lower(Effort::Low, "anthropic").is_empty() && lower(Effort::None, "openai").is_empty());
    }

    #[test]
    fn provider_is_asked_for_what_it_knows_alone() {
        let fine = [
            "effort = 'none'",
            "provider = 'anthropic'\nthinking = 'adaptive'\neffort = 'max'",
            "provider = 'anthropic'\nthinking = 'enabled'\nthinking_budget_tokens = 1024",
            "provider = 'openai-responses'\nthinking = 'disabled'",
        ];
        for text in fine {
            assert_eq!(faults(text), [""; 0], "{text}");
        }
        let odd = [
            ("provider = 'anthropic'\neffort = 'none'", "/effort"),
            ("thinking = 'adaptive'", "/thinking"),
            ("provider = 'openai-responses'\nthinking = 'adaptive'", "/thinking"),
            ("provider = 'anthropic'\nthinking = 'enabled'", "/thinking_budget_tokens"),
            ("provider = 'anthropic'\nthinking = 'enabled'\nthinking_budget_tokens = 8192", "/thinking_budget_tokens"),
            ("provider = 'anthropic'\nthinking_budget_tokens = 2000", "/thinking_budget_tokens"),
        ];
        for (text, place) in odd {
            assert_eq!(faults(text), [place], "{text}");
        }
    }
}
