//! Verifiers: checks of an answer before anybody is told of it. Each has a name (`I-0001`), by which they run in order,
//! and finds warnings, which are noted, and flags, for which the model is asked once more, and then the run fails.
//!
//! The letter of a name says what it is about: A attribution, C citation and compliance, I interface, R risk, U
//! uncertainty.

mod checks;
mod csv;
mod rules;
pub mod settings;
mod severity;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, json};

use crate::agent::ChannelLimits;
use crate::agent::verify::checks::AnswerCheck;
use crate::agent::verify::rules::VerifierRules;
use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::domain::run::TranscriptMessage;

pub use crate::agent::verify::rules::VerifierRule;
pub use crate::agent::verify::severity::Severity;

/// An answer, and all that it can be held against.
#[derive(Debug, Clone)]
pub struct AnswerToVerify {
    /// The tenant that owns the run.
    pub tenant: String,
    /// The answer.
    pub text: String,
    /// The texts that the run was given: its instructions, and its messages.
    pub given: String,
    /// Limits of the channel that carries it.
    pub channel: Option<ChannelLimits>,
    /// The results of the run's calls, in their order.
    pub results: Vec<ToolEvidence>,
}

/// The result of a call, as the model read it.
#[derive(Debug, Clone)]
pub struct ToolEvidence {
    /// Name of the tool.
    pub tool: String,
    /// The call failed.
    pub is_error: bool,
    /// The result.
    pub content: String,
}

/// The findings of one verifier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Sentences for the record; the answer goes out all the same.
    pub warnings: Vec<String>,
    /// Sentences for the model and for the record: the answer does not go out.
    pub flags: Vec<String>,
}

impl Verdict {
    /// Whether the answer may go out.
    pub fn pass(&self) -> bool {
        self.flags.is_empty()
    }
}

/// One verifier of an embedder.
pub trait Verifier: Send + Sync {
    /// Name of the verifier, such as `C-0100`; they run in the order of their names.
    fn name(&self) -> &str;

    /// Looks at an answer. Waits for no person, and has 30 seconds: an answer that was not verified does not go out.
    fn verify<'a>(&'a self, answer: &'a AnswerToVerify) -> BoxFuture<'a, Verdict>;
}

/// All verifiers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Verifiers(Arc<VerifierList>);

#[derive(Default)]
struct VerifierList {
    checks: Vec<(AnswerCheck, Severity)>,
    rules: VerifierRules,
    added: Vec<Arc<dyn Verifier>>,
}

impl Verifiers {
    /// The verifiers that the settings ask for, and those of an embedder.
    pub fn new(settings: &settings::VerifierSettings, added: Vec<Arc<dyn Verifier>>) -> Verifiers {
        let checks = checks::all().into_iter().map(|check| (check, settings.severity_of(check.name, check.severity)));
        let checks = checks.filter(|(_, severity)| *severity != Severity::Off).collect();
        Verifiers(Arc::new(VerifierList { checks, rules: settings.rules(), added }))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.checks.is_empty() && self.0.rules.is_empty() && self.0.added.is_empty()
    }

    /// The findings of all, in the order of the verifiers' names; each begins with the name.
    pub async fn verify(&self, answer: AnswerToVerify, compute: &Compute, clock: &Clock) -> Verdict {
        let answer = Arc::new(answer);
        let mut found = self.computed(&answer, compute).await;
        for verifier in &self.0.added {
            let name = verifier.name().to_owned();
            let verdict = tokio::select! {
                biased;
                verdict = AssertUnwindSafe(verifier.verify(&answer)).catch_unwind() => verdict.map_err(|_| BROKEN),
                () = clock.sleep(TIME_LIMIT) => Err(LATE),
            };
            // an answer that was not verified does not go out
            found.push((name, verdict.unwrap_or_else(|why| Verdict { flags: vec![why.into()], ..Verdict::default() })));
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut all = Verdict::default();
        for (name, Verdict { warnings, flags }) in found {
            all.warnings.extend(warnings.into_iter().map(|text| format!("{name}: {text}")));
            all.flags.extend(flags.into_iter().map(|text| format!("{name}: {text}")));
        }
        all
    }

    /// The findings of the checks and the rules of the operator; what takes long is computed on a thread of its own.
    async fn computed(&self, answer: &Arc<AnswerToVerify>, compute: &Compute) -> Vec<(String, Verdict)> {
        let bytes = answer.text.len()
            + answer.given.len()
            + answer.results.iter().map(|result| result.content.len()).sum::<usize>();
        let steps = (bytes as u64 * STEPS_PER_BYTE).saturating_add(self.0.rules.steps(answer));
        let (all, judged) = (self.clone(), Arc::clone(answer));
        let judge = move || {
            let checks = all.0.checks.iter().map(|(check, severity)| {
                let found = (check.find)(&judged).into_iter().collect();
                (check.name.to_owned(), severity.verdict(found))
            });
            checks.chain(all.0.rules.judge(&judged)).collect::<Vec<_>>()
        };
        compute.run_if_costly(&answer.tenant, steps, judge).await.unwrap_or_else(|panicked| {
            tracing::error!(%panicked, "an answer can't be verified");
            vec![(String::new(), Verdict { flags: vec![BROKEN.into()], ..Verdict::default() })]
        })
    }
}

/// The verifiers, and all of an answer that is known before it is given.
pub struct AnswerVerification<'a> {
    /// The verifiers.
    pub verifiers: &'a Verifiers,
    /// Computes what takes long.
    pub compute: &'a Compute,
    /// Time of the run.
    pub clock: &'a Clock,
    /// The tenant that owns the run.
    pub tenant: &'a str,
    /// Limits of the channel that carries the answer.
    pub channel: Option<&'a ChannelLimits>,
}

impl AnswerVerification<'_> {
    /// The findings about the answer to the texts that were given, which came behind these results.
    pub async fn judge<'m>(
        &self,
        text: &str,
        given: impl Iterator<Item = &'m str>,
        results: impl Iterator<Item = ToolEvidence>,
    ) -> Verdict {
        if self.verifiers.is_empty() {
            return Verdict::default();
        }
        let (tenant, text, channel) = (self.tenant.to_owned(), text.to_owned(), self.channel.cloned());
        let given = given.collect::<Vec<_>>().join("\n");
        let answer = AnswerToVerify { tenant, text, given, channel, results: results.collect() };
        self.verifiers.verify(answer, self.compute, self.clock).await
    }
}

/// The message to the model whose answer has these flags.
pub fn asked_again(flags: &[String]) -> TranscriptMessage {
    let text = format!(
        "Your answer was not sent, because a check has found this:\n- {}\nAnswer again without it.",
        flags.join("\n- ")
    );
    let metadata = Map::from_iter([("source".to_owned(), json!(SOURCE))]);
    TranscriptMessage::User { text, metadata }
}

/// Whether a message is one of [`asked_again`].
pub fn is_asked_again(message: &TranscriptMessage) -> bool {
    matches!(message, TranscriptMessage::User { metadata, .. } if metadata.get("source") == Some(&json!(SOURCE)))
}

/// Where the message to the model comes from, in the transcript.
const SOURCE: &str = "verifiers";
/// Work of all checks for one byte of an answer and its results, in steps of about a nanosecond.
const STEPS_PER_BYTE: u64 = 100;
const BROKEN: &str = "the verifier broke down";
const LATE: &str = "the verifier did not come to an end in 30 s";
/// The longest that a verifier of an embedder is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    struct NamedVerifier(&'static str, fn(&str) -> Verdict);

    impl Verifier for NamedVerifier {
        fn name(&self) -> &str {
            self.0
        }

        fn verify<'a>(&'a self, answer: &'a AnswerToVerify) -> BoxFuture<'a, Verdict> {
            Box::pin(async { (self.1)(&answer.text) })
        }
    }

    #[tokio::test]
    async fn findings_come_in_the_order_of_names_and_a_verifier_that_breaks_down_flags() {
        let warns = |text: &str| Verdict { warnings: vec![format!("says {text}")], flags: vec![] };
        let flags = |_: &str| Verdict { warnings: vec![], flags: vec!["no".into()] };
        let breaks = |_: &str| -> Verdict { panic!("broken") };
        let added: Vec<Arc<dyn Verifier>> = vec![
            Arc::new(NamedVerifier("U-0900", warns)),
            Arc::new(NamedVerifier("C-0900", flags)),
            Arc::new(NamedVerifier("C-0100", breaks)),
        ];
        let settings = serde_json::from_value(json!({
            "rules": { "A-0500": { "when": "answer == 'yes'", "message": "too short", "severity": "warning" } },
        }));
        let verifiers = Verifiers::new(&settings.unwrap(), added);
        let (text, given) = ("yes".into(), String::new());
        let answer = AnswerToVerify { tenant: "ann".into(), text, given, channel: None, results: vec![] };
        let verdict = verifiers.verify(answer, &Compute::new(1), &Clock::system()).await;
        assert_eq!(verdict.warnings, ["A-0500: too short", "U-0900: says yes"]);
        assert_eq!(verdict.flags, ["C-0100: the verifier broke down", "C-0900: no"]);
        assert!(!verdict.pass());
    }
}
