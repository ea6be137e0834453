//! A run: the record of executing one fire, and the only table of what may follow what.

pub mod cause;
pub mod delegation;
pub mod model_call;
pub mod outcome;
pub mod portable_name;
pub mod result;
pub mod result_notice;
pub mod skip_tally;
pub mod stream;
pub mod token_usage;
pub mod tool_record;
pub mod transcript;

use std::collections::VecDeque;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::words::words;
use crate::domain::trigger::ChatTrigger;

pub use cause::Cause;
pub use delegation::Delegation;
pub use outcome::{RunError, RunFault, RunOutcome};
pub use portable_name::{LONGEST_PORTABLE_NAME, portable_name};
pub use result::{ReactLoopResult, ToolWarning};
pub use result_notice::{ResultNotice, ResultNoticeKind};
pub use stream::StreamEvent;
pub use tool_record::{ToolAttribution, ToolRecord};
pub use transcript::{ProviderMessage, StepOutcome, ToolCall, TranscriptEntry, TranscriptMessage};

words! {
    /// Where a run stands. Succeeded, failed, cancelled, expired and skipped are final.
    #[derive(utoipa::ToSchema)]
    pub enum RunState {
        /// Recorded, and waiting for its instant, a worker, or a run before it.
        Queued = "queued",
        /// A worker executes it.
        Running = "running",
        /// A person has to supply something that is missing.
        WaitingForInput = "waiting_for_input",
        /// A person has to approve something.
        PendingApproval = "pending_approval",
        /// A foreign runtime has to report.
        WaitingForCompletion = "waiting_for_completion",
        /// It ended well.
        Succeeded = "succeeded",
        /// Its attempts are used up, or it can't go on.
        Failed = "failed",
        /// It was cancelled by a person, a policy or a younger run.
        Cancelled = "cancelled",
        /// It waited too long for an answer.
        Expired = "expired",
        /// Considered, and not executed; `reason` says why.
        Skipped = "skipped",
    }
}

/// Events in the life of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunEvent {
    /// A worker starts it.
    Start,
    /// Back to the queue: a retry, or handed back by a worker that stops.
    Requeue,
    /// It asks a person for input.
    AskInput,
    /// It asks for approval of calls.
    AskApproval,
    /// It waits for another system to complete it.
    AskCompletion,
    /// Its wait is over.
    Wake,
    /// The executor is done.
    Succeed,
    /// The attempt failed for good.
    Fail,
    /// It is cancelled.
    Cancel,
    /// Its wait has lasted too long.
    Expire,
    /// It is recorded without being executed.
    Skip,
}

impl RunEvent {
    /// Every event.
    pub const ALL: [RunEvent; 11] = [
        RunEvent::Start,
        RunEvent::Requeue,
        RunEvent::AskInput,
        RunEvent::AskApproval,
        RunEvent::AskCompletion,
        RunEvent::Wake,
        RunEvent::Succeed,
        RunEvent::Fail,
        RunEvent::Cancel,
        RunEvent::Expire,
        RunEvent::Skip,
    ];
}

/// A transition that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {} can't {event:?}", state.as_str())]
pub struct IllegalRunTransition {
    /// The state that the run had.
    pub state: RunState,
    /// The event that the state does not allow.
    pub event: RunEvent,
}

impl RunState {
    /// The state after `event`. Total: every pair that is not listed is illegal.
    pub fn on(self, event: RunEvent) -> Result<RunState, IllegalRunTransition> {
        use RunEvent::*;
        use RunState::*;
        Ok(match (self, event) {
            (Queued, Start) => Running,
            (Queued, Skip) | (Running, Skip) => Skipped,
            (Queued, Cancel) | (Running, Cancel) => Cancelled,
            (Running, Requeue) => Queued,
            (Running, AskInput) => WaitingForInput,
            (Running, AskApproval) => PendingApproval,
            (Running, AskCompletion) => WaitingForCompletion,
            (Running, Succeed) => Succeeded,
            (Running, Fail) => Failed,
            (WaitingForInput | PendingApproval | WaitingForCompletion, Wake) => Queued,
            (WaitingForInput | PendingApproval | WaitingForCompletion, Expire) => Expired,
            (WaitingForInput | PendingApproval | WaitingForCompletion, Cancel) => Cancelled,
            (WaitingForCompletion, Succeed) => Succeeded,
            (WaitingForCompletion, Fail) => Failed,
            (state, event) => return Err(IllegalRunTransition { state, event }),
        })
    }

    /// The states through which a run gets from this one to another by the fewest events, at least one; the last is the
    /// other. Where no way leads there, the other alone.
    pub fn shortest_path_to(self, to: RunState) -> Vec<RunState> {
        let mut ways = VecDeque::from([vec![self]]);
        let mut seen = Vec::new();
        while let Some(way) = ways.pop_front() {
            let from = way[way.len() - 1];
            for next in RunEvent::ALL.into_iter().filter_map(|event| from.on(event).ok()) {
                let longer = [&way[..], &[next]].concat();
                if next == to {
                    return longer[1..].to_vec();
                }
                if !seen.contains(&next) {
                    seen.push(next);
                    ways.push_back(longer);
                }
            }
        }
        vec![to]
    }

    /// Nothing follows.
    pub fn is_final(self) -> bool {
        use RunState::*;
        matches!(self, Succeeded | Failed | Cancelled | Expired | Skipped)
    }
}

/// Instants that one run stands for, or that a skipped range covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissedInstants {
    /// First nominal instant, inclusive.
    pub from: DateTime<Utc>,
    /// Last nominal instant, inclusive.
    pub to: DateTime<Utc>,
    /// How many instants; `null` where there were too many to count.
    pub count: Option<u64>,
}

impl MissedInstants {
    /// Whether it is a single instant.
    pub fn is_single_instant(&self) -> bool {
        self.count == Some(1) || self.from == self.to
    }
}

/// Usage of a run. Money is integer micro-dollars in here and in the database, dollars in the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Turns of the model.
    pub turns: i64,
    /// Calls of tools.
    pub tool_calls: i64,
    /// Tokens that models read.
    pub input_tokens: i64,
    /// Tokens that models wrote.
    pub output_tokens: i64,
    /// Cost in micro-dollars (10⁻⁶ USD).
    pub cost_micros: i64,
}

impl Usage {
    /// Whether it cost nothing.
    pub fn is_free(&self) -> bool {
        self.cost_micros == 0
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, more: Usage) {
        self.turns += more.turns;
        self.tool_calls += more.tool_calls;
        self.input_tokens += more.input_tokens;
        self.output_tokens += more.output_tokens;
        self.cost_micros += more.cost_micros;
    }
}

/// Usage of a run.
#[derive(Serialize, utoipa::ToSchema)]
struct UsageInDollars {
    turns: i64,
    tool_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    cost_usd: f64,
}

impl Serialize for Usage {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Usage { turns, tool_calls, input_tokens, output_tokens, cost_micros } = *self;
        let cost_usd = cost_micros as f64 / 1e6;
        UsageInDollars { turns, tool_calls, input_tokens, output_tokens, cost_usd }.serialize(to)
    }
}

impl utoipa::PartialSchema for Usage {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        UsageInDollars::schema()
    }
}

impl utoipa::ToSchema for Usage {}

words! {
    /// How an agent came to its answer.
    #[derive(utoipa::ToSchema)]
    pub enum RunFinish {
        /// By itself.
        Answer = "answer",
        /// It was asked to answer because it had used up its turns.
        MaxTurns = "max_turns",
    }
}

words! {
    /// Why a run was recorded.
    pub enum RunOrigin {
        /// Its task's trigger fired.
        Trigger = "trigger",
        /// Somebody asked for it.
        Request = "request",
        /// Somebody asked for the instants of a range.
        Backfill = "backfill",
        /// Somebody asked for another run of one that has ended.
        Retry = "retry",
    }
}

/// One fire and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = RunRecord)]
pub struct Run {
    /// Id of the run, a UUIDv7.
    pub id: Uuid,
    /// The task that fired; `null` for a chat run.
    #[schema(required)]
    pub task_id: Option<Uuid>,
    /// The tenant that owns the run.
    pub tenant_id: String,
    /// Unique within the task.
    #[schema(example = "s:2026-12-24T15:00:00.000Z")]
    pub fire_key: String,
    /// Kind of the task's trigger: `schedule`, `event`, `condition`.
    pub trigger_type: String,
    /// Whether the trigger fired, or somebody asked for the run.
    #[serde(skip)]
    pub origin: RunOrigin,
    /// The nominal instant of the fire.
    pub scheduled_for: DateTime<Utc>,
    /// State of the run.
    pub state: RunState,
    /// Why it was skipped, cancelled or expired; of one that failed, `budget` or `loop` where that has ended it.
    #[schema(required)]
    pub reason: Option<String>,
    /// The run that was in the way, where `reason` is `overlap`.
    #[schema(required)]
    pub blocked_by: Option<Uuid>,
    /// How often it was started, handed-back starts not counted.
    pub attempt: i32,
    /// How often the process that executed it died.
    #[serde(skip)]
    pub crashes: i32,
    /// How often it went back to the queue because a part of the infrastructure was away.
    #[serde(skip)]
    pub infra_retries: i32,
    /// The missed instants that it stands for.
    #[schema(required)]
    pub missed: Option<MissedInstants>,
    /// The run of which it is a retry.
    #[schema(required)]
    pub retry_of: Option<Uuid>,
    /// The `id` of each event that it stands for.
    pub event_ids: Vec<String>,
    /// Cause of the fire; not read for lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Input of `run now`.
    #[schema(required)]
    pub input: Option<Value>,
    /// The instant at which it was recorded.
    pub created_at: DateTime<Utc>,
    /// The instant at which it was started.
    #[schema(required)]
    pub started_at: Option<DateTime<Utc>>,
    /// The instant of its end.
    #[schema(required)]
    pub finished_at: Option<DateTime<Utc>>,
    /// The answer.
    #[schema(required)]
    pub output: Option<String>,
    /// How its agent came to the answer; `null` where no agent answered, or an earlier release recorded it.
    #[schema(required)]
    pub finish: Option<RunFinish>,
    /// The error, where it did not succeed.
    #[schema(required)]
    pub error: Option<RunFault>,
    /// Usage of all attempts together.
    pub usage: Usage,
}

impl Run {
    /// The conversation that it is a message of.
    pub fn conversation_id(&self) -> Option<Uuid> {
        self.task_id.filter(|_| self.trigger_type == ChatTrigger::KIND)
    }

    /// Whether an execution of it ended with its process, or because a part of the infrastructure was away.
    pub fn was_interrupted(&self) -> bool {
        self.crashes > 0 || self.infra_retries > 0
    }

    /// Whether it was executed before, by another start than one that was handed back.
    pub fn is_repeated(&self) -> bool {
        self.attempt > 1 || self.was_interrupted()
    }

    /// A run that a task's trigger made just now: ready to be started.
    pub fn queued(
        task_id: Uuid,
        id: Uuid,
        tenant_id: impl Into<String>,
        fire_key: impl Into<String>,
        trigger_type: &str,
        scheduled_for: DateTime<Utc>,
        created_at: DateTime<Utc>,
    ) -> Run {
        Run {
            id,
            task_id: Some(task_id),
            tenant_id: tenant_id.into(),
            fire_key: fire_key.into(),
            trigger_type: trigger_type.to_owned(),
            origin: RunOrigin::Trigger,
            scheduled_for,
            state: RunState::Queued,
            reason: None,
            blocked_by: None,
            attempt: 0,
            crashes: 0,
            infra_retries: 0,
            missed: None,
            retry_of: None,
            event_ids: Vec::new(),
            cause: None,
            input: None,
            created_at,
            started_at: None,
            finished_at: None,
            output: None,
            finish: None,
            error: None,
            usage: Usage::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_transitions_is_the_one_that_is_written_down() {
        let mut table = String::new();
        for state in RunState::ALL {
            for event in RunEvent::ALL {
                if let Ok(next) = state.on(event) {
                    table.push_str(&format!("{} {event:?} {}\n", state.as_str(), next.as_str()));
                }
            }
        }
        insta::assert_snapshot!(table, @r"
        queued Start running
        queued Cancel cancelled
        queued Skip skipped
        running Requeue queued
        running AskInput waiting_for_input
        running AskApproval pending_approval
        running AskCompletion waiting_for_completion
        running Succeed succeeded
        running Fail failed
        running Cancel cancelled
        running Skip skipped
        waiting_for_input Wake queued
        waiting_for_input Cancel cancelled
        waiting_for_input Expire expired
        pending_approval Wake queued
        pending_approval Cancel cancelled
        pending_approval Expire expired
        waiting_for_completion Wake queued
        waiting_for_completion Succeed succeeded
        waiting_for_completion Fail failed
        waiting_for_completion Cancel cancelled
        waiting_for_completion Expire expired
        ");
    }

    #[test]
    fn way_to_a_state_leads_through_those_that_a_run_has_to_pass() {
        use RunState::*;
        assert_eq!(PendingApproval.shortest_path_to(Running), [Queued, Running]);
        assert_eq!(Queued.shortest_path_to(Succeeded), [Running, Succeeded]);
        assert_eq!(Running.shortest_path_to(Running), [Queued, Running], "an attempt that failed, and the next");
        assert_eq!(Queued.shortest_path_to(Queued), [Running, Queued]);
        assert_eq!(Queued.shortest_path_to(Cancelled), [Cancelled]);
        assert_eq!(Succeeded.shortest_path_to(Running), [Running], "no way leads there");
    }

    #[test]
    fn final_state_is_never_left() {
        for state in RunState::ALL.into_iter().filter(|s| s.is_final()) {
            for event in RunEvent::ALL {
                assert_eq!(state.on(event), Err(IllegalRunTransition { state, event }));
            }
        }
    }

    #[test]
    fn every_state_has_a_word_that_reads_back() {
        for state in RunState::ALL {
            assert_eq!(RunState::parse(state.as_str()), Some(state));
        }
    }
}
