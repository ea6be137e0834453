//! Settings of a model's thinking: what its provider can be asked for.

use serde_json::{Value, json};

use crate::base::invalid::ValidationErrors;
use crate::ports::llm::settings::ModelSettings;
use crate::ports::llm::thinking::{ThinkingEffort, ThinkingMode};

/// The least budget that Anthropic takes, in tokens.
const LEAST_BUDGET: u32 = 1024;

impl ModelSettings {
    /// The settings for a call that asks for this much thinking.
    pub fn with_effort(&self, effort: ThinkingEffort) -> ModelSettings {
        ModelSettings { effort: Some(effort), ..self.clone() }
    }

    /// The settings for a call that thinks as little as the model can; `None`: nothing is said of its thinking.
    pub fn without_thinking(&self) -> Option<ModelSettings> {
        let is_anthropic = self.provider == "anthropic";
        let plain = ModelSettings { thinking_budget_tokens: None, ..self.clone() };
        match (self.effort, self.thinking) {
            (None | Some(ThinkingEffort::None), None | Some(ThinkingMode::Disabled)) => None,
            (_, thinking) if is_anthropic => {
                Some(ModelSettings { thinking: thinking.and(Some(ThinkingMode::Disabled)), effort: None, ..plain })
            }
            (effort, _) => Some(ModelSettings { effort: effort.and(Some(ThinkingEffort::None)), ..plain }),
        }
    }

    /// Anthropic's `thinking`; `None`: as the model has it.
    pub fn anthropic_thinking(&self) -> Option<Value> {
        self.thinking.map(|mode| match mode {
            ThinkingMode::Enabled => json!({ "type": mode, "budget_tokens": self.thinking_budget_tokens }),
            ThinkingMode::Adaptive | ThinkingMode::Disabled => json!({ "type": mode }),
        })
    }

    /// Adds what the provider can't be asked for.
    pub(in crate::ports::llm) fn check_thinking(&self, place: &str, faults: &mut ValidationErrors) {
        let is_anthropic = self.provider == "anthropic";
        if is_anthropic && self.effort.is_some_and(|effort| effort < ThinkingEffort::Low) {
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
    fn call_without_thinking_says_so_in_its_providers_words() {
        let plain = |text: &str| {
            let settings: ModelSettings = toml::from_str(text).unwrap();
            settings.without_thinking().map(|plain| (plain.thinking, plain.effort, plain.thinking_budget_tokens))
        };
        for nothing in ["", "effort = 'none'", "provider = 'anthropic'\nthinking = 'disabled'"] {
            assert_eq!(plain(nothing), None, "{nothing}");
        }
        assert_eq!(plain("effort = 'high'"), Some((None, Some(ThinkingEffort::None), None)));
        let disabled = Some((Some(ThinkingMode::Disabled), None, None));
        assert_eq!(plain("provider = 'anthropic'\nthinking = 'adaptive'\neffort = 'max'"), disabled);
        let enabled = "provider = 'anthropic'\nthinking = 'enabled'\nthinking_budget_tokens = 2000";
        assert_eq!(plain(enabled), disabled);
        assert_eq!(plain("provider = 'anthropic'\neffort = 'max'"), Some((None, None, None)));
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
