//! A run of a conversation in the form of Open Responses, as the vendors' clients read it.
//!
//! Source of the shapes: <https://www.openresponses.org>, <https://platform.openai.com/docs/api-reference/responses>.

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::Approval;
use crate::domain::conversation::RequestEcho;
use crate::domain::run::token_usage::TokenUsage;
use crate::domain::run::transcript::ModelTokens;
use crate::domain::run::{Run, RunFinish, RunState};
use crate::http::HttpState;
use crate::http::api::runs::pending_questions;
use crate::http::api::runs::server_question::{choices_of, words_of_server};
use crate::http::error::ApiError;

/// The name of the one model: which models answer is the operator's.
pub const MODEL: &str = "reveille";
/// Prefix of the id of a run in that of a response.
pub const PREFIX: &str = "resp_";

/// The answer to a message, in the form of Open Responses.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ResponseObject {
    /// `resp_` and the id of the run that answers.
    #[schema(example = "resp_019a8f30-1c7a-7000-8000-5d0d3a1f6b11")]
    pub id: String,
    /// `response`.
    pub object: String,
    /// The instant of the message, in seconds since 1970.
    pub created_at: i64,
    /// The instant of the end, in seconds since 1970; `null` before it.
    #[schema(required)]
    pub completed_at: Option<i64>,
    /// `queued`, `in_progress`, `completed`, `incomplete` where a person is waited for or the agent was stopped at its
    /// limit of turns, `failed` or `cancelled`.
    pub status: String,
    /// Why there is no answer; `null` where there is one, or is yet to be.
    #[schema(required)]
    pub error: Option<ResponseError>,
    /// Of a response that is incomplete, what is waited for, or what has stopped the agent; `null` of others.
    #[schema(required)]
    pub incomplete_details: Option<IncompleteDetails>,
    /// `reveille`.
    pub model: String,
    /// The answer, as a message; where a person is waited for, the question.
    pub output: Vec<OutputMessage>,
    /// Tokens of all calls of models; `null` before the first.
    #[schema(required)]
    pub usage: Option<ResponseUsage>,
    /// The conversation that it belongs to.
    pub conversation: ResponseConversation,
    /// Settings of the agent itself: it calls tools as it needs them, and its clients bring none.
    pub tool_choice: String,
    /// Always empty.
    pub tools: Vec<Value>,
    /// Always true.
    pub parallel_tool_calls: bool,
    /// Always `null`.
    #[schema(required)]
    pub instructions: Option<String>,
    /// Always empty.
    pub metadata: Map<String, Value>,
    /// The response that the request went on with.
    #[schema(required)]
    pub previous_response_id: Option<String>,
    /// Always true.
    pub store: bool,
    /// Whether the request asked for it in the background.
    pub background: bool,
    /// `disabled`: the agent shortens long conversations by itself.
    pub truncation: String,
    /// Always `null`, as the operator has set it.
    #[schema(required)]
    pub temperature: Option<f64>,
    /// Always `null`, as the operator has set it.
    #[schema(required)]
    pub top_p: Option<f64>,
    /// Always `null`, as the operator has set it.
    #[schema(required)]
    pub max_output_tokens: Option<i64>,
    /// Always `null`, as the operator has set it.
    #[schema(required)]
    pub max_tool_calls: Option<i64>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ResponseError {
    /// `server_error`.
    pub code: String,
    /// The code of the run's error, and its message.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct IncompleteDetails {
    /// `approval_required` or `input_required`: the next message of the conversation may be the answer. `max_turns`:
    /// the agent was stopped at its limit of turns, and the output is as far as it came.
    pub reason: String,
}

/// Words of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct OutputMessage {
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Id of the message.
    pub id: String,
    /// `assistant`.
    pub role: String,
    /// `in_progress` or `completed`.
    pub status: String,
    /// Its text, in one part.
    pub content: Vec<OutputText>,
}

/// A text of a message.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct OutputText {
    /// `output_text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: String,
    /// Always empty.
    pub annotations: Vec<Value>,
    /// Always empty.
    pub logprobs: Vec<Value>,
}

/// Tokens of all calls of models.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ResponseUsage {
    /// Tokens that models read.
    pub input_tokens: i64,
    /// Of them, those that came from a cache.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens that models wrote.
    pub output_tokens: i64,
    /// Of them, those of thinking.
    pub output_tokens_details: OutputTokensDetails,
    /// The sum of both.
    pub total_tokens: i64,
}

/// Parts of the tokens that models read.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct InputTokensDetails {
    /// Those that came from a cache.
    pub cached_tokens: i64,
}

/// Parts of the tokens that models wrote.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct OutputTokensDetails {
    /// Those of thinking.
    pub reasoning_tokens: i64,
}

/// The conversation of a response.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ResponseConversation {
    /// Its id, as `/v1/conversations` has it.
    pub id: Uuid,
}

impl OutputMessage {
    /// A message that is whole.
    pub fn of(id: String, text: String) -> OutputMessage {
        OutputMessage {
            kind: "message".into(),
            id,
            role: "assistant".into(),
            status: "completed".into(),
            content: vec![OutputText::of(text)],
        }
    }

    /// A message that begins.
    pub fn begun(id: String) -> OutputMessage {
        OutputMessage { status: "in_progress".into(), content: vec![], ..OutputMessage::of(id, String::new()) }
    }
}

impl OutputText {
    /// The one part of a message.
    pub fn of(text: String) -> OutputText {
        OutputText { kind: "output_text".into(), text, annotations: vec![], logprobs: vec![] }
    }
}

/// A run, and all that its response says of it.
pub struct AnsweredMessage {
    /// The run.
    pub run: Run,
    /// The conversation.
    pub conversation_id: Uuid,
    /// The questions for whose answers it waits, oldest first.
    pub questions: Vec<Approval>,
    /// Words that ask once more for an answer to one of them.
    pub asked_back: Option<String>,
    /// Tokens of its calls of models.
    pub tokens: ModelTokens,
    /// The request that it answers.
    pub request: RequestEcho,
}

impl AnsweredMessage {
    /// A run as it stands now.
    pub async fn read(
        state: &HttpState,
        scope: &Scope,
        run: Run,
        conversation_id: Uuid,
    ) -> Result<AnsweredMessage, ApiError> {
        let questions = match run.state {
            RunState::PendingApproval | RunState::WaitingForInput => pending_questions(state, scope, run.id).await?,
            _ => Vec::new(),
        };
        let tokens = state.store.tokens_of_run(scope, run.id).await?;
        let request = RequestEcho::default();
        Ok(AnsweredMessage { run, conversation_id, questions, asked_back: None, tokens, request })
    }

    /// The answer to this request.
    pub fn to(self, request: RequestEcho) -> AnsweredMessage {
        AnsweredMessage { request, ..self }
    }

    /// In the form of Open Responses.
    pub fn response(&self) -> ResponseObject {
        let run = &self.run;
        let message = self.words().map(|words| OutputMessage::of(format!("msg_{}", run.id), words));
        ResponseObject {
            id: id_of(run.id),
            object: "response".into(),
            created_at: run.created_at.timestamp(),
            completed_at: run.finished_at.map(|at| at.timestamp()),
            status: self.status().into(),
            error: self.error(),
            incomplete_details: self.lacks().map(|reason| IncompleteDetails { reason: reason.into() }),
            model: MODEL.into(),
            output: message.into_iter().collect(),
            usage: self.usage(),
            conversation: ResponseConversation { id: self.conversation_id },
            tool_choice: "auto".into(),
            tools: vec![],
            parallel_tool_calls: true,
            instructions: None,
            metadata: Map::new(),
            // an answer to a question of a run goes on with this run itself
            previous_response_id: self.request.previous.filter(|previous| *previous != run.id).map(id_of),
            store: true,
            background: self.request.background,
            truncation: "disabled".into(),
            temperature: None,
            top_p: None,
            max_output_tokens: None,
            max_tool_calls: None,
        }
    }

    /// The answer, or what is asked.
    pub fn words(&self) -> Option<String> {
        let words = match (&self.asked_back, self.awaits()) {
            (Some(words), _) => words.clone(),
            (None, Some(_)) => {
                let is_one_of_many = self.questions.len() > 1;
                let asked = self.questions.iter().map(|question| words_of(question, is_one_of_many));
                asked.collect::<Vec<_>>().join("\n")
            }
            (None, None) => self.run.output.clone().unwrap_or_default(),
        };
        (!words.is_empty()).then_some(words)
    }

    /// The thing that the run waits for from a person.
    pub fn awaits(&self) -> Option<&'static str> {
        match self.run.state {
            // a call that is held for a while, and goes on by itself
            _ if self.questions.is_empty() => None,
            RunState::PendingApproval => Some("approval_required"),
            RunState::WaitingForInput => Some("input_required"),
            _ => None,
        }
    }

    /// Why the response is incomplete; `None`: it is not.
    fn lacks(&self) -> Option<&'static str> {
        let is_stopped = self.run.state == RunState::Succeeded && self.run.finish == Some(RunFinish::MaxTurns);
        self.awaits().or(is_stopped.then_some(RunFinish::MaxTurns.as_str()))
    }

    /// The status of the response.
    pub fn status(&self) -> &'static str {
        match self.run.state {
            _ if self.lacks().is_some() => "incomplete",
            RunState::Succeeded => "completed",
            RunState::Cancelled => "cancelled",
            RunState::Queued => "queued",
            state if state.is_final() => "failed",
            _ => "in_progress",
        }
    }

    fn error(&self) -> Option<ResponseError> {
        if !["failed", "cancelled"].contains(&self.status()) {
            return None;
        }
        let message = match (&self.run.error, &self.run.reason) {
            (Some(fault), _) => format!("{}: {}", fault.code, fault.message),
            (None, Some(reason)) => format!("{}: {reason}", self.run.state.as_str()),
            (None, None) => self.run.state.as_str().to_owned(),
        };
        Some(ResponseError { code: "server_error".into(), message })
    }

    fn usage(&self) -> Option<ResponseUsage> {
        let used: TokenUsage = self.run.usage.into();
        (used.total > 0).then_some(ResponseUsage {
            input_tokens: used.input_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: self.tokens.cache_read },
            output_tokens: used.output_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: self.tokens.reasoning },
            total_tokens: used.total,
        })
    }
}

/// A question with what may be answered; `is_one_of_many`: an answer has to begin with its id.
fn words_of(question: &Approval, is_one_of_many: bool) -> String {
    let proposal = &question.proposal;
    let named = is_one_of_many.then(|| format!("{}:", question.id));
    let fields = proposal.parameters.get("properties").and_then(Value::as_object).into_iter().flatten();
    let choices = fields.filter_map(|(name, field)| {
        let choices = choices_of(field);
        (proposal.is_input() && !choices.is_empty()).then(|| format!("{name}: {}", choices.join(", ")))
    });
    let words = words_of_server(proposal).map(|words| vec![words]);
    let words = words.unwrap_or_else(|| vec![proposal.summary.clone(), proposal.description.clone()]);
    let parts = named.into_iter().chain(words).chain(choices);
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The id of the response of a run.
pub fn id_of(run_id: Uuid) -> String {
    format!("{PREFIX}{run_id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of a run that waits for nobody.
    fn answered([id, conversation_id]: [Uuid; 2]) -> AnsweredMessage {
        let now = "2027-03-01T08:00:00Z".parse().unwrap();
        AnsweredMessage {
            run: Run::queued(conversation_id, id, "ann", "k", "chat", now, now),
            conversation_id,
            questions: vec![],
            asked_back: None,
            tokens: ModelTokens::default(),
            request: RequestEcho::default(),
        }
    }

    #[test]
    fn response_of_an_agent_that_was_stopped_is_incomplete_and_has_what_it_said() {
        let mut answered = answered([1, 2].map(Uuid::from_u128));
        answered.run.output = Some("So far.".into());
        let mut told = |state: RunState, finish: RunFinish| {
            (answered.run.state, answered.run.finish) = (state, Some(finish));
            let response = answered.response();
            let text = response.output.first().map(|message| message.content[0].text.clone());
            (response.status, response.incomplete_details.map(|details| details.reason), text, response.error)
        };
        let said = || Some("So far.".to_owned());
        let stopped = told(RunState::Succeeded, RunFinish::MaxTurns);
        assert_eq!(stopped, ("incomplete".into(), Some("max_turns".into()), said(), None));
        let whole = told(RunState::Succeeded, RunFinish::Answer);
        assert_eq!(whole, ("completed".into(), None, said(), None));
        assert_eq!(told(RunState::Failed, RunFinish::MaxTurns).0, "failed");
    }

    #[test]
    fn response_repeats_what_its_request_says_and_goes_on_with_none_but_another() {
        let [id, other] = [1, 2].map(Uuid::from_u128);
        let answered = answered([id, other]);
        let told = |response: ResponseObject| (response.background, response.previous_response_id);
        assert_eq!(told(answered.response()), (false, None));
        let answered = answered.to(RequestEcho { background: true, previous: Some(other) });
        assert_eq!(told(answered.response()), (true, Some(id_of(other))));
        let answered = answered.to(RequestEcho { background: false, previous: Some(id) });
        assert_eq!(told(answered.response()), (false, None), "it is the response itself");
    }
}
