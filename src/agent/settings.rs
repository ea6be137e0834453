//! `[react]`: the limits of the loop.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::invalid::ValidationErrors;
use crate::ports::llm::fallback::RetryWait;
use crate::ports::tool::output::OutputLevel;

/// `[react]`. Times in seconds.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The system message for tasks that have none of their own.
    pub system_prompt: String,
    /// Turns with tools; then one answer without them.
    pub max_turns: u32,
    /// One tool call, unless the tool has a limit of its own.
    pub tool_execution_timeout: u64,
    /// One agent that another one calls, or in a pipeline, unless it or its step has a limit of its own.
    pub agent_tool_execution_timeout: u64,
    /// The part of the window that one tool result may fill.
    pub max_tool_result_share: f64,
    /// In characters, however large the window is.
    pub max_tool_result_chars: usize,
    /// How much of a result the model is shown where neither the call nor its tool says so; of tools that have levels.
    pub output_level: OutputLevel,
    /// The window of models that name none, in tokens.
    pub context_token_limit: u64,
    /// The part of the window from which on the conversation is trimmed.
    pub context_trim_threshold: f64,
    /// As many messages are kept by the first trim.
    pub max_history_messages: usize,
    /// How often one key of a model is asked again.
    pub llm_max_retries: u32,
    /// The wait before the first repetition.
    pub llm_retry_base_delay: f64,
    /// How often a conversation that is too long for the model is shortened.
    pub max_overflow_recovery_attempts: u32,
    /// How often the same calls with the same results come in a row before the model is told so; 0: it never is.
    pub loop_repetitions: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            system_prompt: "You are a reliable personal assistant. You are woken to carry out one instruction and \
                            nobody may be there: decide what is sensible, use tools where they help, ask the person only for \
                            what you can't go on without, and answer with what the person wants to know, briefly. Say plainly what did not work."
                .into(),
            max_turns: 10,
            tool_execution_timeout: 30,
            agent_tool_execution_timeout: 120,
            max_tool_result_share: 0.3,
            max_tool_result_chars: 400_000,
            output_level: OutputLevel::Standard,
            context_token_limit: 128_000,
            context_trim_threshold: 0.8,
            max_history_messages: 40,
            llm_max_retries: 2,
            llm_retry_base_delay: 1.0,
            max_overflow_recovery_attempts: 3,
            loop_repetitions: 3,
        }
    }
}

impl Settings {
    /// How long an agent that something else calls may take.
    pub fn agent_limit(&self) -> Duration {
        Duration::from_secs(self.agent_tool_execution_timeout)
    }

    /// How the keys of a model are asked again.
    pub fn retry(&self) -> RetryWait {
        let base_delay = Duration::try_from_secs_f64(self.llm_retry_base_delay).unwrap_or_default();
        RetryWait { max_retries: self.llm_max_retries, base_delay }
    }

    /// Adds the numbers that make no sense; pointers begin with `/react`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        let mut expect = |fine: bool, key: &str, right: &str| {
            if !fine {
                faults.add(format!("/react/{key}"), format!("must be {right}"));
            }
        };
        let seconds = 1..=3600;
        expect((1..=100).contains(&self.max_turns), "max_turns", "from 1 to 100");
        expect(seconds.contains(&self.tool_execution_timeout), "tool_execution_timeout", "from 1 to 3600 seconds");
        let agents = "agent_tool_execution_timeout";
        expect(seconds.contains(&self.agent_tool_execution_timeout), agents, "from 1 to 3600 seconds");
        let part = |part: f64| part > 0.0 && part <= 1.0;
        expect(part(self.max_tool_result_share), "max_tool_result_share", "above 0 and at most 1");
        expect(part(self.context_trim_threshold), "context_trim_threshold", "above 0 and at most 1");
        expect(
            (2_000..=10_000_000).contains(&self.max_tool_result_chars),
            "max_tool_result_chars",
            "from 2000 to 10000000 characters",
        );
        expect(
            (1_000..=100_000_000).contains(&self.context_token_limit),
            "context_token_limit",
            "from 1000 to 100000000 tokens",
        );
        expect((5..=1_000_000).contains(&self.max_history_messages), "max_history_messages", "from 5 to 1000000");
        expect(self.llm_max_retries <= 10, "llm_max_retries", "at most 10");
        expect((0.0..=60.0).contains(&self.llm_retry_base_delay), "llm_retry_base_delay", "from 0 to 60 seconds");
        let recoveries = "max_overflow_recovery_attempts";
        expect(self.max_overflow_recovery_attempts <= 3, recoveries, "at most 3");
        let repeats = self.loop_repetitions == 0 || (2..=100).contains(&self.loop_repetitions);
        expect(repeats, "loop_repetitions", "0, or from 2 to 100");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound() {
        let mut faults = ValidationErrors::new();
        Settings::default().check(&mut faults);
        assert_eq!(faults, ValidationErrors::new());
    }

    #[test]
    fn every_number_has_its_bounds() {
        let mut faults = ValidationErrors::new();
        let odd = Settings {
            system_prompt: String::new(),
            max_turns: 0,
            tool_execution_timeout: 0,
            agent_tool_execution_timeout: 0,
            max_tool_result_share: f64::NAN,
            max_tool_result_chars: 0,
            output_level: OutputLevel::Brief,
            context_token_limit: 0,
            context_trim_threshold: 1.1,
            max_history_messages: 0,
            llm_max_retries: 11,
            llm_retry_base_delay: -1.0,
            max_overflow_recovery_attempts: 4,
            loop_repetitions: 1,
        };
        odd.check(&mut faults);
        // every key but the text and the word
        assert_eq!(faults.0.len(), 12, "{faults}");
    }
}
