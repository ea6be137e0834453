//! A run: the record of executing one fire, and the only table of what may follow what.

pub mod cause;
pub mod outcome;
pub mod stream;
pub mod transcript;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::run::cause::Cause;
use crate::run::outcome::RunFault;

/// Where a run stands. Succeeded, failed, cancelled, expired and skipped are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Recorded, and waiting for its instant, a worker, or a run before it.
    Queued,
    /// A worker executes it.
    Running,
    /// A person has to supply something that is missing.
    WaitingForInput,
    /// A person has to approve something.
    PendingApproval,
    /// A foreign runtime has to report.
    WaitingForCompletion,
    Succeeded,
    Failed,
    Cancelled,
    Expired,
    /// Considered, and not executed; `reason` says why.
    Skipped,
}

/// What can happen to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunEvent {
    Start,
    /// Back to the queue: a retry, or handed back by a worker that stops.
    Requeue,
    AskInput,
    AskApproval,
    AskCompletion,
    /// What it waited for is there.
    Wake,
    Succeed,
    Fail,
    Cancel,
    Expire,
    Skip,
}

/// A transition that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {} can't {event:?}", state.as_str())]
pub struct IllegalTransition {
    pub state: RunState,
    pub event: RunEvent,
}

impl RunState {
    pub const ALL: [RunState; 10] = [
        RunState::Queued,
        RunState::Running,
        RunState::WaitingForInput,
        RunState::PendingApproval,
        RunState::WaitingForCompletion,
        RunState::Succeeded,
        RunState::Failed,
        RunState::Cancelled,
        RunState::Expired,
        RunState::Skipped,
    ];

    /// The state after `event`. Total: every pair that is not listed is illegal.
    pub fn on(self, event: RunEvent) -> Result<RunState, IllegalTransition> {
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
            (state, event) => return Err(IllegalTransition { state, event }),
        })
    }

    /// Nothing follows.
    pub fn is_final(self) -> bool {
        use RunState::*;
        matches!(self, Succeeded | Failed | Cancelled | Expired | Skipped)
    }

    /// The word, in API and database alike.
    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Queued => "queued",
            RunState::Running => "running",
            RunState::WaitingForInput => "waiting_for_input",
            RunState::PendingApproval => "pending_approval",
            RunState::WaitingForCompletion => "waiting_for_completion",
            RunState::Succeeded => "succeeded",
            RunState::Failed => "failed",
            RunState::Cancelled => "cancelled",
            RunState::Expired => "expired",
            RunState::Skipped => "skipped",
        }
    }

    pub fn parse(word: &str) -> Option<RunState> {
        RunState::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// Instants that one run stands for, or that a skipped range covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Missed {
    /// First nominal instant, inclusive.
    pub from: DateTime<Utc>,
    /// Last nominal instant, inclusive.
    pub to: DateTime<Utc>,
    /// How many instants; `null` where there were too many to count.
    pub count: Option<u64>,
}

/// What a run used. Money is integer micro-dollars in here and in the database, dollars in the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub turns: i64,
    pub tool_calls: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
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

impl Serialize for Usage {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde_json::json!({
            "turns": self.turns, "tool_calls": self.tool_calls, "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens, "cost_usd": self.cost_micros as f64 / 1e6,
        })
        .serialize(to)
    }
}

/// One fire and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    pub id: Uuid,
    /// The task that fired; `null` for a chat run.
    pub task_id: Option<Uuid>,
    pub tenant_id: String,
    /// Unique within the task; `data.md` has the forms (`s:2026-12-24T15:00:00.000Z`, `m:<request>`, …).
    pub fire_key: String,
    pub trigger_type: String,
    /// The nominal instant of the fire.
    pub scheduled_for: DateTime<Utc>,
    pub state: RunState,
    /// Why it was skipped, cancelled or expired.
    pub reason: Option<String>,
    /// The run that was in the way, where `reason` is `overlap`.
    pub blocked_by: Option<Uuid>,
    /// How often it was started, handed-back starts not counted.
    pub attempt: i32,
    /// How often the process that executed it died.
    #[serde(skip)]
    pub crashes: i32,
    /// How often it went back to the queue because a part of the infrastructure was away.
    #[serde(skip)]
    pub infra_retries: i32,
    pub missed: Option<Missed>,
    pub retry_of: Option<Uuid>,
    /// The `id` of each event that it stands for.
    pub event_ids: Vec<String>,
    /// What made the task fire; not read for lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What `run now` was given.
    pub input: Option<Value>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    /// The answer.
    pub output: Option<String>,
    pub error: Option<RunFault>,
    pub usage: Usage,
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [RunEvent; 11] = [
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

    #[test]
    fn the_table_of_transitions_is_the_one_that_is_written_down() {
        let mut table = String::new();
        for state in RunState::ALL {
            for event in EVENTS {
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
    fn a_final_state_is_never_left() {
        for state in RunState::ALL.into_iter().filter(|s| s.is_final()) {
            for event in EVENTS {
                assert_eq!(state.on(event), Err(IllegalTransition { state, event }));
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
