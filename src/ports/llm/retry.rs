//! When one key of one model is asked again, and which answers are of no use.
//!
//! A rate limit or a failing provider is waited for, longer each time; a time-out is tried once more.

use std::collections::HashSet;
use std::time::Duration;

use crate::domain::run::transcript::ToolCall;
use crate::ports::llm::{LlmError, ModelAnswer, StopReason};

/// The longest wait inside a call. A provider that asks for more is passed over, and the run as a whole waits.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Longest id of a tool call, in bytes. Ids stand in transcripts, in questions to people and in keys of the database.
/// Some gateways put a signature of the thought into the id, so a few hundred bytes are not enough.
const CALL_ID_BYTES: usize = 2_048;

/// How often and how soon one key of one model is asked again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryWait {
    /// Repetitions of a failed call with one key.
    pub max_retries: u32,
    /// The first wait; doubled each time.
    pub base_delay: Duration,
}

/// The attempts with one key.
#[derive(Default)]
pub struct KeyAttempts {
    retries: u32,
    timeouts: u32,
}

impl KeyAttempts {
    /// How long to wait before the same key is asked again; `None`: it is not.
    pub fn wait(&mut self, error: &LlmError, retry: RetryWait) -> Option<Duration> {
        match error {
            LlmError::RateLimited { .. } | LlmError::Transient { .. } if self.retries < retry.max_retries => {
                let own = retry.base_delay.saturating_mul(2_u32.saturating_pow(self.retries)).min(LONGEST_WAIT);
                self.retries += 1;
                let wait = error.retry_after().map_or(own, |asked| asked.max(own));
                (wait <= LONGEST_WAIT).then_some(wait)
            }
            LlmError::Timeout { .. } if self.timeouts == 0 => {
                self.timeouts += 1;
                Some(Duration::ZERO)
            }
            _ => None,
        }
    }
}

/// Passes on an answer that can be used. Results find their calls by id, and ids are the model's: without them an
/// answer is of no use, and no more is one that says nothing.
pub fn check_answer(answer: ModelAnswer) -> Result<ModelAnswer, LlmError> {
    if let Some(failure) = answer.failure {
        return Err(failure.error);
    }
    let mut ids = HashSet::new();
    let broken = |call: &ToolCall| call.id.is_empty() || call.name.is_empty();
    let unusable = |message: &str| Err(LlmError::Transient { retry_after: None, message: message.into() });
    if answer.tool_calls.iter().any(|call| broken(call) || !ids.insert(call.id.clone())) {
        return unusable("the answer has tool calls without a name or an id of their own");
    }
    let is_odd = |call: &ToolCall| call.id.len() > CALL_ID_BYTES || call.id.chars().any(char::is_control);
    if answer.tool_calls.iter().any(is_odd) {
        return unusable("the answer has tool calls whose ids are too long or have control characters");
    }
    let says_nothing = answer.text.as_deref().unwrap_or_default().trim().is_empty() && answer.tool_calls.is_empty();
    if says_nothing && answer.stop == StopReason::Done {
        return unusable("the answer is empty");
    }
    Ok(answer)
}

impl LlmError {
    /// Whether the same request may do later.
    pub fn is_transient(&self) -> bool {
        match self {
            LlmError::RateLimited { .. } | LlmError::Timeout { .. } | LlmError::Transient { .. } => true,
            LlmError::Overflow { .. }
            | LlmError::Auth { .. }
            | LlmError::NoModel { .. }
            | LlmError::Rejected { .. } => false,
        }
    }

    /// The kind of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            LlmError::RateLimited { .. } => "rate_limited",
            LlmError::Overflow { .. } => "context_overflow",
            LlmError::Timeout { .. } => "timeout",
            LlmError::Auth { .. } => "auth",
            LlmError::NoModel { .. } => "no_model",
            LlmError::Transient { .. } => "unavailable",
            LlmError::Rejected { .. } => "rejected",
        }
    }

    /// The code of the fault of a run, or of a step, that ends with it.
    pub fn fault_code(&self) -> &'static str {
        match self {
            LlmError::RateLimited { .. } => "llm_rate_limited",
            LlmError::Overflow { .. } => "context_overflow",
            LlmError::Timeout { .. } => "llm_timeout",
            LlmError::Auth { .. } => "llm_auth",
            LlmError::NoModel { .. } => "llm_no_model",
            LlmError::Transient { .. } => "llm_unavailable",
            LlmError::Rejected { .. } => "llm_rejected",
        }
    }

    /// How long the provider asked to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            LlmError::RateLimited { retry_after, .. } | LlmError::Transient { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::llm::ModelTokens;

    #[test]
    fn answer_whose_calls_can_t_be_told_apart_is_of_no_use() {
        let answer = |calls: &[(&str, &str)]| {
            let call = |(id, name): &(&str, &str)| ToolCall::new(*id, *name, serde_json::json!({}));
            let tool_calls = calls.iter().map(call).collect();
            let tokens = ModelTokens::default();
            check_answer(ModelAnswer {
                text: None,
                tool_calls,
                stop: StopReason::ToolCalls,
                tokens,
                provider_message: None,
                failure: None,
            })
        };
        assert!(answer(&[("1", "a"), ("2", "a")]).is_ok());
        for odd in [&[("", "a")][..], &[("1", "")], &[("1", "a"), ("1", "b")]] {
            assert!(matches!(answer(odd), Err(LlmError::Transient { .. })), "{odd:?}");
        }
    }

    #[test]
    fn id_of_a_call_is_taken_at_its_longest_and_refused_one_byte_beyond_it_or_with_a_control_character() {
        let answer = |id: &str| {
            check_answer(ModelAnswer {
                text: Some("I look.".into()),
                tool_calls: vec![
                    ToolCall::new("1", "a", serde_json::json!({})),
                    ToolCall::new(id, "a", serde_json::json!({})),
                ],
                stop: StopReason::ToolCalls,
                tokens: ModelTokens::default(),
                provider_message: None,
                failure: None,
            })
        };
        for id in ["x".repeat(CALL_ID_BYTES), "é".repeat(CALL_ID_BYTES / 2), "functions.read:0".into()] {
            assert!(answer(&id).is_ok(), "{id:?}");
        }
        let beyond = ["x".repeat(CALL_ID_BYTES + 1), format!("{}x", "é".repeat(CALL_ID_BYTES / 2))];
        for id in beyond.into_iter().chain(["a\nb", "a\u{0}", "\u{85}"].map(str::to_owned)) {
            assert!(matches!(answer(&id), Err(LlmError::Transient { .. })), "{id:?}");
        }
    }

    #[test]
    fn answer_that_says_nothing_is_of_no_use_unless_something_has_cut_it_short() {
        let answer = |text: Option<&str>, stop| {
            let (text, tokens) = (text.map(str::to_owned), ModelTokens::default());
            check_answer(ModelAnswer { text, tool_calls: vec![], stop, tokens, provider_message: None, failure: None })
        };
        for nothing in [None, Some(""), Some(" \n")] {
            assert!(matches!(answer(nothing, StopReason::Done), Err(LlmError::Transient { .. })), "{nothing:?}");
        }
        assert!(answer(None, StopReason::Refused).is_ok() && answer(None, StopReason::Length).is_ok());
    }
}
