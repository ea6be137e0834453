//! `[verifiers]`: how severe each built-in verifier is, and the operator's own rules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::agent::verify::checks;
use crate::agent::verify::rules::{VerifierRule, VerifierRules};
use crate::agent::verify::severity::Severity;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape};

/// Letters with which a name begins.
const LETTERS: &str = "ACIRU";
/// Digits of a name.
const DIGITS: usize = 4;
/// Rules of the operator, at most.
const MOST_RULES: usize = 50;

/// `[verifiers]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerifierSettings {
    /// The severity of built-in verifiers, by their names.
    pub severity: BTreeMap<String, Severity>,
    /// Rules of the operator, by their names.
    pub rules: BTreeMap<String, VerifierRule>,
}

impl VerifierSettings {
    /// The severity of a built-in verifier.
    pub(super) fn severity_of(&self, name: &str, usual: Severity) -> Severity {
        self.severity.get(name).copied().unwrap_or(usual)
    }

    /// The rules that can be judged; [`VerifierSettings::check`] tells of the others.
    pub(super) fn rules(&self) -> VerifierRules {
        VerifierRules::compile(&self.rules, &mut ValidationErrors::new())
    }

    /// Adds what is wrong; pointers begin with `/verifiers`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        let built_in = checks::all().map(|check| check.name);
        for name in self.severity.keys().filter(|name| !built_in.contains(&name.as_str())) {
            let near = did_you_mean(name, built_in);
            let known = built_in.join(", ");
            let place = format!("/verifiers/severity/{}", escape(name));
            faults.add(place, format!("no built-in verifier is named `{name}`{near}; there are: {known}"));
        }
        if self.rules.len() > MOST_RULES {
            faults.add("/verifiers/rules", format!("must be at most {MOST_RULES}"));
        }
        for (name, rule) in &self.rules {
            let place = format!("/verifiers/rules/{}", escape(name));
            if built_in.contains(&name.as_str()) {
                faults.add(&place, "is the name of a built-in verifier");
            } else if !is_name(name) {
                faults.add(&place, "must be named by one of A, C, I, R, U, `-` and four digits, such as `C-0100`");
            }
            if rule.message.trim().is_empty() {
                faults.add(format!("{place}/message"), "must not be empty: the model is told it");
            }
        }
        VerifierRules::compile(&self.rules, faults);
    }
}

fn is_name(name: &str) -> bool {
    let Some((letter, digits)) = name.split_once('-') else { return false };
    let is_letter = letter.len() == 1 && LETTERS.contains(letter);
    is_letter && digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn setting_that_makes_no_sense_is_named_with_its_place() {
        let settings: VerifierSettings = serde_json::from_value(json!({
            "severity": { "I-0001": "flag", "I-0009": "off" },
            "rules": {
                "C-0100": { "when": "answer.contains('x')", "message": "says x" },
                "C-1": { "when": "true", "message": "" },
                "R-0001": { "when": "anser == 1", "message": "x" },
            },
        }))
        .unwrap();
        let mut faults = ValidationErrors::new();
        settings.check(&mut faults);
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        assert_eq!(told.len(), 5, "{told:#?}");
        assert!(
            told[0].starts_with("/verifiers/severity/I-0009: no built-in verifier is named `I-0009`"),
            "{}",
            told[0]
        );
        assert_eq!(
            told[1],
            "/verifiers/rules/C-1: must be named by one of A, C, I, R, U, `-` and four digits, such as `C-0100`"
        );
        assert_eq!(told[2], "/verifiers/rules/C-1/message: must not be empty: the model is told it");
        assert_eq!(told[3], "/verifiers/rules/R-0001: is the name of a built-in verifier");
        assert!(told[4].starts_with("/verifiers/rules/R-0001/when: "), "{}", told[4]);
    }
}
