//! `[encoders]`: how tokens of models are estimated of which the operator knows better than the names tell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::invalid::{ValidationErrors, escape};
use crate::ports::llm::tokens::{CHARS_PER_TOKEN, CJK_CHARS_PER_TOKEN, TokenCounter};

/// `[encoders]`: by the provider's name of a model, or the beginning of such names with a `*` behind it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Encoders(BTreeMap<String, EncoderSettings>);

/// `[encoders.…]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderSettings {
    /// The estimate is multiplied by it; absent: as the family of the model has it.
    pub safety_margin: Option<f64>,
    /// Characters of a token in alphabetic scripts; absent: 4.
    pub chars_per_token: Option<f64>,
    /// Characters of a token in Chinese, Japanese and Korean; absent: 1.5.
    pub cjk_chars_per_token: Option<f64>,
}

impl Encoders {
    /// The counter of a model: as the longest name says that fits it.
    pub fn counter(&self, model: &str) -> TokenCounter {
        let usual = TokenCounter::of(model);
        let named = self.0.iter().map(|(name, encoder)| (name.as_str(), encoder));
        let Some(encoder) = fitting(named, model) else { return usual };
        TokenCounter {
            margin: encoder.safety_margin.unwrap_or(usual.margin),
            chars_per_token: encoder.chars_per_token.unwrap_or(CHARS_PER_TOKEN),
            cjk_chars_per_token: encoder.cjk_chars_per_token.unwrap_or(CJK_CHARS_PER_TOKEN),
        }
    }

    /// Adds what makes no sense; pointers begin with `/encoders`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        for (name, encoder) in &self.0 {
            let place = format!("/encoders/{}", escape(name));
            check_name(name, faults);
            let mut expect = |value: Option<f64>, least: f64, most: f64, key: &str| {
                if value.is_some_and(|value| !(least..=most).contains(&value)) {
                    faults.add(format!("{place}/{key}"), format!("must be from {least} to {most}"));
                }
            };
            expect(encoder.safety_margin, 1.0, 10.0, "safety_margin");
            expect(encoder.chars_per_token, 0.1, 100.0, "chars_per_token");
            expect(encoder.cjk_chars_per_token, 0.1, 100.0, "cjk_chars_per_token");
        }
    }
}

/// Adds a name that can be no model's, nor the beginning of one.
pub(super) fn check_name(name: &str, faults: &mut ValidationErrors) {
    if name.trim().is_empty() || name.strip_suffix('*').unwrap_or(name).contains('*') {
        let place = format!("/encoders/{}", escape(name));
        faults.add(place, "must be the name of a model, or its beginning and one `*`");
    }
}

/// Of these entries by their names, that with the longest name that fits a model.
pub(super) fn fitting<'n, T>(named: impl Iterator<Item = (&'n str, T)>, model: &str) -> Option<T> {
    let fitting = named.filter(|(name, _)| fits(name, model));
    fitting.max_by_key(|(name, _)| (!name.ends_with('*'), name.len())).map(|(_, found)| found)
}

/// Whether an entry is about a model.
fn fits(name: &str, model: &str) -> bool {
    let (name, model) = (name.to_lowercase(), model.to_lowercase());
    match name.strip_suffix('*') {
        Some(beginning) => model.starts_with(beginning),
        None => model == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoders(text: &str) -> Encoders {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn model_is_counted_as_its_longest_name_says() {
        let encoders = encoders(
            "['house-*']\nchars_per_token = 2.0\n['house-large*']\nsafety_margin = 2.0\n\
             ['claude-house']\ncjk_chars_per_token = 1.0\n['claude-house*']\nsafety_margin = 9.0",
        );
        let (narrow, wide) = ("x".repeat(4000), "早".repeat(3000));
        let counted = |model: &str| {
            let counter = encoders.counter(model);
            (counter.text(&narrow), counter.text(&wide))
        };
        assert_eq!(counted("gpt-5"), (1000, 2000), "no entry is about it");
        assert_eq!(counted("House-small"), (2400, 2400), "the margin of others");
        assert_eq!(counted("house-large-2"), (2000, 4000));
        assert_eq!(counted("claude-house"), (1150, 3450), "a whole name goes before a beginning");
    }

    #[test]
    fn names_and_numbers_are_validated() {
        let mut faults = ValidationErrors::new();
        encoders("['']\n['a*b*']\n[m]\nsafety_margin = 0.9\nchars_per_token = 0\ncjk_chars_per_token = nan")
            .check(&mut faults);
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        assert_eq!(
            told,
            [
                "/encoders/: must be the name of a model, or its beginning and one `*`",
                "/encoders/a*b*: must be the name of a model, or its beginning and one `*`",
                "/encoders/m/safety_margin: must be from 1 to 10",
                "/encoders/m/chars_per_token: must be from 0.1 to 100",
                "/encoders/m/cjk_chars_per_token: must be from 0.1 to 100",
            ]
        );
        let mut faults = ValidationErrors::new();
        encoders("['qwen3*']\nsafety_margin = 1.0").check(&mut faults);
        assert_eq!(faults, ValidationErrors::new());
    }
}
