//! The transcript of a run: messages in the order in which they came to be, append only.
//!
//! It is the checkpoint, too: a run that is resumed reads its transcript and goes on behind the last entry. An
//! assistant message with tool calls is appended *before* the tools run (the intent), their results after; a call
//! without a result after a crash has an unknown outcome.

use std::ops::RangeInclusive;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base::words::is_default;
use crate::domain::run::outcome::RunFault;
use crate::domain::run::result_notice::read_notices;
use crate::domain::run::{Delegation, ResultNotice, RunFinish, ToolRecord, Usage};

pub use crate::domain::run::model_call::{ModelCall, ModelTokens};

/// The version of the stored form. Format 2 says which model was asked for a message, and counts its tokens by kind.
/// Format 3 has entries of agents that were called, which an earlier release would take for the caller's own. Format 4
/// names the arguments of a call `args`, lists the notices of a result by their kinds, and keeps the facts of a system
/// message beside it.
pub const FORMAT: i16 = 4;
/// The versions that are read. A row of any other was written by a newer release, and is left as it is.
pub const FORMATS: RangeInclusive<i16> = 1..=FORMAT;

/// One message between the orchestrator, the model and the tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum TranscriptMessage {
    /// The instructions that come before all else.
    System {
        /// The instructions' text.
        text: String,
        /// The end of the text that has the facts that the run was told; empty: it was told none. Absent in entries of
        /// older releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        facts: Option<String>,
    },
    /// A message of a person, or of the service in a person's place.
    User {
        /// The message's text.
        text: String,
        /// Where it came from: `{source, trigger_type, task_id, run_id, fire_key}` for a fire, empty for a person.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
    },
    /// An answer of the model, and the calls that it asks for.
    Assistant {
        /// Its text; absent where it only calls tools.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The calls that it makes, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// Kept beside the message, for its model alone: no answer of the API and no stream carries it.
        #[serde(skip)]
        provider_message: Option<Arc<ProviderMessage>>,
        /// `max_turns`: the turns were used up, and it was asked to answer. Absent in all other messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<RunFinish>,
    },
    /// The result of a call.
    Tool {
        /// Which call it answers.
        call_id: String,
        /// Name of the tool.
        name: String,
        /// Words of the service that the model reads before the result, in order.
        // entries of format 3 and earlier have them as one text
        #[serde(default, alias = "notice", deserialize_with = "read_notices", skip_serializing_if = "Vec::is_empty")]
        notices: Vec<ResultNotice>,
        /// The result. The model reads it as data from outside.
        content: String,
        /// The call failed.
        #[serde(default)]
        is_error: bool,
        /// Why nobody was asked about the call, each rule that had a part in it; empty where somebody was.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<String>,
        /// When the result came from its tool; earlier than the entry where the result of the same call was kept.
        /// Absent in entries of older releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fetched_at: Option<DateTime<Utc>>,
    },
    /// An answer of the model that could not be used: it was paid for, and the model is never shown it.
    Unusable {
        /// The code of the error that was made of it.
        code: String,
    },
    /// Findings of verifiers about the answer before it. The model is never shown them.
    Verdict {
        /// Whether the answer goes out: there are no flags. Absent in entries of older releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pass: Option<bool>,
        /// Findings that are noted, each behind the name of its verifier.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
        /// Findings for which the answer does not go out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        flags: Vec<String>,
    },
    /// From here on the model is shown less of what was said before. Nothing of it is rewritten.
    Compaction(Compaction),
    /// A pipeline begins: all that its steps read and that may be different later.
    Pipeline {
        /// SHA-256 of the steps, in hexadecimal: other steps can't go on with this ledger.
        digest: String,
        /// Values that earlier runs of the task have stored.
        state: Value,
        /// Version of the entry.
        ledger: u8,
    },
    /// A step is about to have its effect.
    Step {
        /// Name of the step.
        name: String,
        /// Which item of a `for_each`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
        /// Version of the entry.
        ledger: u8,
    },
    /// The result of a step.
    StepResult {
        /// Name of the step.
        name: String,
        /// The item of a `for_each`, from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
        /// The outcome of this execution.
        outcome: StepOutcome,
        /// Version of the entry.
        ledger: u8,
    },
}

/// The entries of a run that its model is shown no more as they are, and what it is shown in their place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Compaction {
    /// The first entry that it replaces, by `seq`.
    pub from: i64,
    /// The last one.
    pub to: i64,
    /// Entries between these that the model is shown all the same: questions, and earlier summaries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<i64>,
    /// Their substitute.
    pub by: CompactionKind,
}

/// Words that a model is shown in place of entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CompactionKind {
    /// Nothing.
    Dropped,
    /// One text that has questions, results and errors whole, and the beginnings of all else.
    Extracted,
    /// The entries, with long results cut.
    Cut,
    /// A summary, which a model wrote beside the turns. The entry counts what that took.
    Summarised {
        /// The summary.
        summary: String,
        /// Errors of the calls that it stands for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        errors: Vec<String>,
    },
}

/// The code of a summary that was paid for and is not shown.
pub const SUMMARY_UNUSABLE: &str = "summary_unusable";

/// The source of messages that stand in one request alone.
const EPHEMERAL: &str = "ephemeral";

/// The version of the entries of pipelines.
pub const LEDGER: u8 = 1;

/// The outcome of one execution of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum StepOutcome {
    /// It is never executed again.
    Done {
        /// Value of the step.
        value: Value,
        /// `max_turns`: its agent was stopped at its limit of turns. Absent in all others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<RunFinish>,
    },
    /// It is never executed again: it failed for good.
    Failed {
        /// The error of the step.
        error: RunFault,
    },
    /// It had no effect, and is executed again.
    Again {
        /// The error of the step.
        error: RunFault,
    },
}

impl TranscriptMessage {
    /// A system message without facts.
    pub fn system(text: impl Into<String>) -> TranscriptMessage {
        TranscriptMessage::System { text: text.into(), facts: Some(String::new()) }
    }

    /// Puts facts behind a system message that has none; other messages stay as they are.
    pub fn add_facts(&mut self, told: String) {
        if let TranscriptMessage::System { text, facts } = self {
            text.push_str(&told);
            *facts = Some(told);
        }
    }

    /// Findings of verifiers.
    pub fn verdict(warnings: Vec<String>, flags: Vec<String>) -> TranscriptMessage {
        TranscriptMessage::Verdict { pass: Some(flags.is_empty()), warnings, flags }
    }

    /// The calls that an answer of the model asks for; none in any other message.
    pub fn tool_calls(&self) -> &[ToolCall] {
        match self {
            TranscriptMessage::Assistant { tool_calls, .. } => tool_calls,
            _ => &[],
        }
    }

    /// Whether it is part of a conversation that a model may be shown.
    pub fn is_conversation(&self) -> bool {
        !self.is_of_ledger()
            && !matches!(
                self,
                TranscriptMessage::Unusable { .. }
                    | TranscriptMessage::Verdict { .. }
                    | TranscriptMessage::Compaction(_)
            )
    }

    /// Whether its usage is that of a summary, a call beside the turns.
    pub fn is_of_summary(&self) -> bool {
        match self {
            TranscriptMessage::Compaction(compaction) => matches!(compaction.by, CompactionKind::Summarised { .. }),
            TranscriptMessage::Unusable { code } => code == SUMMARY_UNUSABLE,
            _ => false,
        }
    }

    /// Whether it is part of the ledger of a pipeline, and of no agent's transcript.
    pub fn is_of_ledger(&self) -> bool {
        matches!(
            self,
            TranscriptMessage::Pipeline { .. } | TranscriptMessage::Step { .. } | TranscriptMessage::StepResult { .. }
        )
    }

    /// The message where entries have other numbers: a compaction names them by those.
    pub fn renumbered(mut self, number: impl Fn(i64) -> i64) -> TranscriptMessage {
        if let TranscriptMessage::Compaction(Compaction { from, to, pinned, .. }) = &mut self {
            [from, to].into_iter().chain(pinned).for_each(|seq| *seq = number(*seq));
        }
        self
    }

    /// The message of a person, or of the service in a person's place.
    pub fn user(text: impl Into<String>) -> TranscriptMessage {
        TranscriptMessage::User { text: text.into(), metadata: Map::new() }
    }

    /// A message of the service that stands at the end of one request alone, and is not stored.
    pub fn ephemeral(text: impl Into<String>) -> TranscriptMessage {
        let metadata = Map::from_iter([("source".to_owned(), Value::from(EPHEMERAL))]);
        TranscriptMessage::User { text: text.into(), metadata }
    }

    /// Whether no later request has it.
    pub fn is_ephemeral(&self) -> bool {
        let TranscriptMessage::User { metadata, .. } = self else { return false };
        metadata.get("source").is_some_and(|source| source == EPHEMERAL)
    }
}

/// An assistant message as its provider wrote it. Models that think refuse to go on with their calls unless they get
/// their thinking back, signatures included, exactly as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderMessage {
    /// The protocol that `raw` is written in.
    pub wire: String,
    /// The provider's name of the model, as it was asked for.
    pub model: String,
    /// The address at which it was asked, as a hash; absent in messages of earlier releases, which did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// JSON, kept as text: a parsed document would not keep the order of its fields.
    pub raw: String,
}

/// A call that the model asked for. The id is the model's, never made by us.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolCall {
    /// The model's id of the call, unique within its turn.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments, as the model wrote them.
    // entries of format 3 and earlier name them `arguments`
    #[serde(alias = "arguments")]
    pub args: Value,
    /// The answer ended in the middle of the call, at the longest length: it is refused, whatever it looks like.
    #[serde(default, skip_serializing_if = "is_default")]
    pub truncated: bool,
}

impl ToolCall {
    /// A call that is whole.
    pub fn new(id: impl Into<String>, name: impl Into<String>, args: Value) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), args, truncated: false }
    }
}

/// One stored row of the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TranscriptEntry {
    /// Counts from 0 within the run.
    pub seq: i64,
    /// The turn that it belongs to, counting from 1; 0 is what came before the first.
    pub turn: i64,
    /// The instant at which the entry was written.
    pub at: DateTime<Utc>,
    /// The call of the configured agent that speaks; absent in entries of the run's own agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegation: Option<Box<Delegation>>,
    /// The message itself.
    #[serde(flatten)]
    pub message: TranscriptMessage,
    /// Cost of the call that made an assistant message, in US dollars; absent where it cost nothing.
    // the tokens are told by `model_call`
    #[serde(rename = "cost_usd", default, with = "cost_in_dollars", skip_serializing_if = "Usage::is_free")]
    #[schema(value_type = f64, required = false)]
    pub usage: Usage,
    /// How long a tool or the model took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// The call of a model that made an assistant message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_call: Option<ModelCall>,
    /// The call of a tool whose result this is; a run shows the records of all its calls.
    #[serde(skip)]
    pub tool_record: Option<ToolRecord>,
}

impl TranscriptEntry {
    /// A message of the run's own agent that cost nothing.
    pub fn new(seq: i64, turn: i64, at: DateTime<Utc>, message: TranscriptMessage) -> TranscriptEntry {
        let (usage, duration_ms, model_call, tool_record) = Default::default();
        TranscriptEntry { seq, turn, at, delegation: None, message, usage, duration_ms, model_call, tool_record }
    }
}

/// The usage of an entry in JSON: its cost alone.
mod cost_in_dollars {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::domain::run::Usage;

    /// Writes the cost, in US dollars.
    pub fn serialize<S: Serializer>(usage: &Usage, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(usage.cost_micros as f64 / 1e6)
    }

    /// Reads the cost, in US dollars.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Usage, D::Error> {
        let cost_micros = (f64::deserialize(from)? * 1e6).round() as i64;
        Ok(Usage { cost_micros, ..Usage::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_tells_its_cost_in_dollars_where_it_has_one() {
        let free = TranscriptEntry::new(0, 1, DateTime::UNIX_EPOCH, TranscriptMessage::user("u"));
        assert_eq!(serde_json::to_value(&free).unwrap().get("cost_usd"), None);
        let paid = TranscriptEntry { usage: Usage { cost_micros: 1_500, ..Usage::default() }, ..free };
        let written = serde_json::to_value(&paid).unwrap();
        assert_eq!(written["cost_usd"], 0.0015);
        assert_eq!(serde_json::from_value::<TranscriptEntry>(written).unwrap(), paid);
    }
}
