//! Questions of a run for what its calls lack, and their answers.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::domain::approval::reply::{awaited_fields, read_reply};
use crate::domain::approval::{Approval, ApprovalChoice, ApprovalStatus, Via, arguments};
use crate::domain::conversation::MESSAGE_LENGTH;
use crate::http::HttpState;
use crate::http::api::approvals::decision::{Decider, Decision, sentence};
use crate::http::api::runs::server_question::{ServerQuestionView, is_without_form, words_of_server};
use crate::http::api::runs::{RunView, missing, pending_questions};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{Call, EarlyResponse, Id, JsonBody};
use crate::http::schema::{self, InputAction};
use crate::store::{DecisionOutcome, StoreError};

/// Open questions that a refusal lists.
const LISTED: usize = 20;

/// A question for what a call lacks.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct InputRequest {
    /// Id of the question.
    pub id: Uuid,
    /// The run that waits for the answer.
    pub run_id: Uuid,
    /// The agent, or the tool, that is to be called.
    #[schema(example = "BookTable")]
    pub agent_name: String,
    /// The agents through which the call came, outermost first.
    pub delegation_chain: Vec<String>,
    /// The step of a pipeline whose agent asks; `name:3` is the fourth of a list.
    #[schema(required, example = "book")]
    pub step: Option<String>,
    /// The question, in a sentence.
    pub question: String,
    /// Each thing that is missing and why, on a line of its own.
    pub description: String,
    /// JSON Schema of the fields.
    pub fields: Value,
    /// Values that are there already.
    pub values: Value,
    /// The fields for which an answer is awaited.
    pub awaited: Vec<String>,
    /// The question of an MCP server in the middle of the call; null where no server asks.
    #[schema(required)]
    pub server: Option<ServerQuestionView>,
    /// The instant of the question.
    pub created_at: DateTime<Utc>,
    /// The instant from which no answer is taken.
    pub expires_at: DateTime<Utc>,
}

impl InputRequest {
    /// The questions for input among these that are open.
    pub fn of_open(approvals: &[Approval]) -> Vec<InputRequest> {
        let is_open = |one: &&Approval| one.proposal.is_input() && one.status == ApprovalStatus::Pending;
        approvals.iter().filter(is_open).map(InputRequest::of).collect()
    }

    fn of(question: &Approval) -> InputRequest {
        let proposal = &question.proposal;
        let awaited = awaited_fields(&proposal.parameters, &proposal.arguments);
        InputRequest {
            id: question.id,
            run_id: question.run_id,
            agent_name: proposal.tool.clone(),
            delegation_chain: proposal.delegation_chain.clone(),
            step: proposal.step.clone(),
            question: proposal.summary.clone(),
            description: proposal.description.clone(),
            awaited: awaited.into_iter().map(str::to_owned).collect(),
            fields: proposal.parameters.clone(),
            values: proposal.arguments.clone(),
            server: ServerQuestionView::of(proposal),
            created_at: question.created_at,
            expires_at: question.expires_at,
        }
    }
}

/// Answer a run that waits for input
///
/// Gives the fields that a call lacks, or a message that says them: the value of the one field that is awaited, or a
/// line `name: value` for each. What fits no field is refused, and the run waits on. Where several questions are open,
/// `input_id` names one. A server that asks in the middle of a call may be told no (`decline`), and the call may be
/// stopped (`cancel`). The run goes on, at any instance.
#[utoipa::path(post, path = "/v1/runs/{id}/input", tag = "runs", security(("bearer" = ["runs:input"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::RunInput,
    responses((status = 200, body = RunView, description = "The answer is taken"),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "It waits for no input, or for several answers")))]
pub async fn answer_run(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsInput, id.of("run")).await?;
    let schema::RunInput { input_id, fields, message, action } = body.read().await?;
    state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    let question = match input_id {
        Some(input) => named(&state, &caller.scope, id, input).await?,
        None => only(pending_questions(&state, &caller.scope, id).await?)?,
    };
    let decision = match action.unwrap_or_default() {
        InputAction::Accept => {
            let given = match (fields, message) {
                (Some(fields), None) => fields,
                (None, Some(message)) => given_by(&state, message, &question).await?,
                (None, None) if action.is_some() && is_without_form(&question.proposal) => Map::new(),
                _ => return Err(ApiError::invalid("", "must have either `fields` or `message`").into()),
            };
            answer_of(&question, &given)
        }
        _ if fields.is_some() || message.is_some() => {
            return Err(ApiError::invalid("/action", "goes with neither `fields` nor `message`").into());
        }
        InputAction::Decline => decline_of(&question)?,
        InputAction::Cancel => refusal_of(&question, ApprovalChoice::Cancel),
    };
    let who = Decider { by: caller.name(), via: Via::Api };
    answer(&state, &caller.scope, &question, &decision, who).await?;
    let run = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    body.key.remember_answer(&state, &caller, StatusCode::OK, RunView::of(run)).await
}

/// The open question of a run with this id.
async fn named(state: &HttpState, scope: &Scope, run_id: Uuid, id: Uuid) -> Result<Approval, ApiError> {
    let none = || ApiError::Conflict(format!("the run has no open question {id} for input"));
    match state.store.get_approval(scope, id).await {
        Ok(found) if found.run_id == run_id && found.proposal.is_input() && !found.status.is_settled() => Ok(found),
        Ok(_) | Err(StoreError::NotFound) => Err(none()),
        Err(error) => Err(error.into()),
    }
}

/// The only one of these questions that asks for input.
fn only(mut open: Vec<Approval>) -> Result<Approval, ApiError> {
    open.retain(|question| question.proposal.is_input());
    let listed: Vec<String> =
        open.iter().take(LISTED).map(|one| format!("{} ({})", one.id, one.proposal.summary)).collect();
    let (count, more) = (open.len(), if open.len() > LISTED { "; …" } else { "" });
    match open.into_iter().next() {
        Some(question) if count == 1 => Ok(question),
        Some(_) => {
            let listed = listed.join("; ");
            Err(ApiError::Conflict(format!("{count} questions are open; name one as `input_id`: {listed}{more}")))
        }
        None => Err(ApiError::Conflict("the run waits for no input".into())),
    }
}

/// The fields that a message gives.
async fn given_by(state: &HttpState, message: String, question: &Approval) -> Result<Map<String, Value>, ApiError> {
    let count = message.chars().count();
    if count > MESSAGE_LENGTH {
        let detail = format!("must have at most {MESSAGE_LENGTH} characters, has {count}");
        return Err(ApiError::invalid("/message", detail));
    }
    let (parameters, values) = (question.proposal.parameters.clone(), question.proposal.arguments.clone());
    let given = state.compute_for(&question.tenant_id, move || read_reply(&message, &parameters, &values)).await?;
    given.ok_or_else(|| ApiError::invalid("/message", asked_back(question)))
}

/// The sentence with which an answer is asked for once more.
pub(in crate::http) fn asked_back(question: &Approval) -> String {
    let proposal = &question.proposal;
    let words = words_of_server(proposal).unwrap_or_else(|| proposal.summary.clone());
    let awaited = awaited_fields(&proposal.parameters, &proposal.arguments);
    match awaited[..] {
        [_] | [] => words,
        _ => format!("{words} (one line for each, such as \"{}: …\")", awaited[0]),
    }
}

/// Takes an answer to a question.
///
/// # Errors
/// What is wrong with it, or that it comes too late; then nothing has changed.
async fn answer(
    state: &HttpState,
    scope: &Scope,
    question: &Approval,
    decision: &Decision,
    who: Decider,
) -> Result<(), ApiError> {
    match decision.put(state, scope, question, who).await.map_err(at_fields)?.0 {
        DecisionOutcome::Done(_) | DecisionOutcome::Counted(_) => Ok(()),
        DecisionOutcome::Refused(refusal, question) => Err(ApiError::Conflict(sentence(refusal, &question))),
    }
}

/// The decision that tells a server no.
fn decline_of(question: &Approval) -> Result<Decision, ApiError> {
    match question.proposal.offers(ApprovalChoice::Decline) {
        true => Ok(refusal_of(question, ApprovalChoice::Decline)),
        false => {
            Err(ApiError::invalid("/action", "`decline` is for the questions of MCP servers: answer, or cancel it"))
        }
    }
}

/// The decision that gives no fields: a no to the server, or to the call.
pub(in crate::http) fn refusal_of(question: &Approval, choice: ApprovalChoice) -> Decision {
    Decision { choice, digest: question.digest.clone(), arguments: None, comment: None, grant: None }
}

/// The decision that gives these fields.
pub(in crate::http) fn answer_of(question: &Approval, given: &Map<String, Value>) -> Decision {
    Decision {
        choice: ApprovalChoice::Edit,
        digest: question.digest.clone(),
        arguments: Some(arguments::changed(&question.proposal.arguments, given)),
        comment: None,
        grant: None,
    }
}

/// Faults of arguments as faults of the fields of this request.
fn at_fields(error: ApiError) -> ApiError {
    match error {
        ApiError::Invalid(mut faults) => {
            for fault in &mut faults.0 {
                fault.pointer = match fault.pointer.as_str() {
                    "/decision" => "/action".to_owned(),
                    pointer => pointer.replacen("/modifications", "/fields", 1),
                };
            }
            ApiError::Invalid(faults)
        }
        other => other,
    }
}
