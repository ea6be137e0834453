//! The operator's own verifiers: expressions over the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agent::verify::severity::Severity;
use crate::agent::verify::{AnswerToVerify, Verdict};
use crate::base::expr::{Expression, Language, Variables};
use crate::base::invalid::{ValidationErrors, escape};

/// `[verifiers.rules.<name>]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VerifierRule {
    /// A CEL expression over `answer`, `channel` (`chat` for the answer to a message, empty where nothing carries it),
    /// `tenant` and `tools` (`[{"name", "failed"}]`): where it is true, the rule has found something.
    pub when: String,
    /// A sentence for the model and for the record.
    pub message: String,
    /// Weight of the finding; absent: `flag`.
    #[serde(default = "flag")]
    pub severity: Severity,
}

fn flag() -> Severity {
    Severity::Flag
}

/// Answers that are converted where they are asked for: sixteenths of their bytes, and their results, together.
const SMALL: usize = 1_000;
/// The names that a rule may use.
const VARIABLES: [&str; 4] = ["answer", "channel", "tenant", "tools"];

/// Rules that were read.
#[derive(Default)]
pub(super) struct VerifierRules(Vec<CompiledVerifierRule>);

struct CompiledVerifierRule {
    name: String,
    when: Expression,
    message: String,
    severity: Severity,
}

impl VerifierRules {
    /// Reads the rules; adds those that are none.
    pub(super) fn compile(rules: &BTreeMap<String, VerifierRule>, faults: &mut ValidationErrors) -> VerifierRules {
        let language = Language::default();
        let mut compiled = Vec::with_capacity(rules.len());
        for (name, VerifierRule { when, message, severity }) in rules {
            match language.read(when, &VARIABLES) {
                Ok(when) => compiled.push(CompiledVerifierRule {
                    name: name.clone(),
                    when,
                    message: message.clone(),
                    severity: *severity,
                }),
                Err(fault) => faults.add(format!("/verifiers/rules/{}/when", escape(name)), fault.to_string()),
            }
        }
        VerifierRules(compiled)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The steps that judging an answer takes at most. What takes long to convert counts as taking any number.
    pub(super) fn steps(&self, answer: &AnswerToVerify) -> u64 {
        if self.is_empty() {
            return 0;
        }
        if answer.text.len() / 16 + answer.results.len() > SMALL {
            return u64::MAX;
        }
        let variables = variables(answer);
        self.0.iter().map(|rule| rule.when.cost(&variables)).sum()
    }

    /// The findings of each rule. One that can't be judged has its severity's finding: what was not verified is not
    /// sound.
    pub(super) fn judge(&self, answer: &AnswerToVerify) -> Vec<(String, Verdict)> {
        if self.is_empty() {
            return Vec::new();
        }
        let variables = variables(answer);
        let judged = self.0.iter().map(|rule| {
            let found = match rule.when.is_true(&variables) {
                Ok(false) => Vec::new(),
                Ok(true) => vec![rule.message.clone()],
                Err(error) => vec![format!("the rule can't be judged: {error}")],
            };
            (rule.name.clone(), rule.severity.verdict(found))
        });
        judged.collect()
    }
}

fn variables(answer: &AnswerToVerify) -> Variables {
    let tools: Vec<_> =
        answer.results.iter().map(|result| json!({ "name": result.tool, "failed": result.is_error })).collect();
    Variables::new()
        .with("answer", &json!(answer.text))
        .with("channel", &json!(answer.channel.as_ref().map_or("", |channel| channel.name.as_str())))
        .with("tenant", &json!(answer.tenant))
        .with("tools", &json!(tools))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::verify::ToolEvidence;

    fn judged(when: &str, severity: Severity) -> Verdict {
        let rule = VerifierRule { when: when.into(), message: "says it".into(), severity };
        let mut faults = ValidationErrors::new();
        let rules = VerifierRules::compile(&BTreeMap::from([("C-0100".to_owned(), rule)]), &mut faults);
        assert_eq!(faults, ValidationErrors::new());
        let failed = ToolEvidence { tool: "look".into(), is_error: true, content: String::new() };
        let answer = AnswerToVerify {
            tenant: "ann".into(),
            text: "we guarantee it".into(),
            given: String::new(),
            channel: None,
            results: vec![failed],
        };
        assert!(rules.steps(&answer) > 0);
        rules.judge(&answer).remove(0).1
    }

    #[test]
    fn rule_finds_what_its_expression_says_and_one_that_fails_finds_that() {
        let flagged = Verdict { warnings: vec![], flags: vec!["says it".into()] };
        assert_eq!(judged("answer.contains('guarantee')", Severity::Flag), flagged);
        assert_eq!(judged("tools.exists(t, t.failed) && tenant == 'ann'", Severity::Flag), flagged);
        assert_eq!(judged("answer.contains('guarantee')", Severity::Warning).warnings, ["says it"]);
        assert_eq!(judged("channel == 'sms'", Severity::Flag), Verdict::default());
        assert_eq!(judged("true", Severity::Off), Verdict::default());
        let odd = judged("answer + 1 == 2", Severity::Flag);
        assert!(odd.flags[0].starts_with("the rule can't be judged: "), "{odd:?}");
    }

    #[test]
    fn long_answer_is_converted_on_a_computing_thread_alone() {
        let rule = VerifierRule { when: "answer == 'x'".into(), message: "is x".into(), severity: Severity::Flag };
        let rules = BTreeMap::from([("C-0100".to_owned(), rule)]);
        let rules = VerifierRules::compile(&rules, &mut ValidationErrors::new());
        let steps = |text: String, results: usize| {
            let result = ToolEvidence { tool: "look".into(), is_error: false, content: String::new() };
            let results = vec![result; results];
            rules.steps(&AnswerToVerify { tenant: "ann".into(), text, given: String::new(), channel: None, results })
        };
        assert!(steps("x".repeat(1_000), 10) < u64::MAX);
        assert_eq!(steps("x".repeat(20_000), 0), u64::MAX);
        assert_eq!(steps("x".into(), 2_000), u64::MAX);
    }
}
