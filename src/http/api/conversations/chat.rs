//! A person's message to the agent: a run is recorded, and its answer is waited for or followed.
//!
//! A recorded run goes on whoever listens: a connection that is lost cancels nothing.

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::approval::{Approval, QuestionKind, Via};
use crate::domain::conversation::{MESSAGE_LENGTH, RequestEcho, begun_by, new_conversation};
use crate::domain::run::{ReactLoopResult, Run, RunFault, RunState, StreamEvent};
use crate::executor::hub::RunSubscription;
use crate::http::HttpState;
use crate::http::api::approvals::ApprovalOfRun;
use crate::http::api::approvals::decision::{Decider, Decision, sentence};
use crate::http::api::conversations::missing;
use crate::http::api::conversations::reply::{self, ChatReply};
use crate::http::api::explain::missing_answer;
use crate::http::api::runs::input::InputRequest;
use crate::http::api::runs::settling::{is_settled, wait_until_settled};
use crate::http::api::runs::{account_of, pending_questions};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::openapi::streams::EVENT_STREAM;
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Json, JsonBody, RequestKey};
use crate::http::schema;
use crate::http::streaming::limiter::{self, StreamPermit};
use crate::http::streaming::run::{FollowedRun, RunStream, StreamPosition, follow, last_event_id, told};
use crate::store::{DecisionOutcome, RunRequest};

/// The answer to a message, or how far it has come.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ChatAnswer {
    /// The run that answers the message.
    pub run_id: Uuid,
    /// The conversation, for the next message.
    pub conversation_id: Uuid,
    /// Where the run stands.
    pub state: RunState,
    /// The answer and its account, as far as they have come.
    #[serde(flatten)]
    pub result: ReactLoopResult,
    /// Calls for which the run waits, oldest first.
    pub pending_approvals: Vec<ApprovalOfRun>,
    /// The question for what the run lacks, the oldest one: the next message answers it. Absent where it waits for
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_request: Option<InputRequest>,
    /// The message was meant for what the run waits for, and did not say clearly what: these words ask once more. It is
    /// not recorded. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_back: Option<String>,
    /// Why there is no answer; absent where there is one, or is yet to be. Of a message that no model was asked with,
    /// because of its words, a rate, a quota or a budget, the code is the reason of its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFault>,
}

/// A message, with its tenant and its destination.
pub struct AddressedMessage {
    /// Of its tenant.
    pub scope: Scope,
    message: String,
    destination: Destination,
    /// By its id, it may answer a question of a run of another conversation, or of a task.
    answers_elsewhere: bool,
    /// The parts of its request that the response repeats.
    echo: RequestEcho,
}

impl AddressedMessage {
    /// The first message of a new conversation.
    pub fn new(tenant: Tenant, message: String) -> AddressedMessage {
        let scope = Scope::Only(tenant.clone());
        AddressedMessage::to(scope, message, Destination::New(tenant))
    }

    /// With the parts of its request that the response repeats.
    pub fn with_echo(self, echo: RequestEcho) -> AddressedMessage {
        AddressedMessage { echo, ..self }
    }

    fn to(scope: Scope, message: String, destination: Destination) -> AddressedMessage {
        AddressedMessage { scope, message, destination, answers_elsewhere: false, echo: RequestEcho::default() }
    }
}

/// Where a message goes.
enum Destination {
    Existing(Uuid),
    New(Tenant),
}

/// Talk to the agent
///
/// A message of a person becomes a run, which is answered behind those before it in its conversation, one after the
/// other. Its answer comes with the run's result; where it takes longer than 25 seconds, or a person is to be asked, it
/// says so, and the run goes on. Where a run of the conversation waits for input, or for a decision about one call, the
/// message may be the answer: the fields, or yes or no; then that run goes on, and its answer comes. An unclear message
/// is asked back, and a call that can't be undone is decided on its page. A message that begins with the id of a
/// question for input of any other run of the tenant answers that one, with a token that has `runs:input` and
/// `runs:read`. With `Accept: text/event-stream` the run is followed as by `/v1/runs/{id}/stream`. A lost connection
/// cancels nothing: with the same `Idempotency-Key`, and `Last-Event-ID` for a stream, the same message is heard
/// further.
#[utoipa::path(post, path = "/v1/chat", tag = "conversations", security(("bearer" = ["runs:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe"),
        ("Last-Event-ID" = Option<String>, Header, description = "Of a stream, the last id that was seen")),
    request_body = schema::ChatMessage,
    responses((status = 200, content((ChatAnswer = "application/json"), (inline(RunStream) = "text/event-stream")),
            description = "The run has ended, or waits for a person; or its events, where the request accepts them"),
        (status = 202, body = ChatAnswer, description = "The run goes on"),
        (status = 404, body = ProblemDetails, content_type = "application/problem+json",
            description = "There is no such conversation")))]
pub async fn send_message(
    Call(state, caller): Call,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, EarlyResponse> {
    caller.may(Permission::RunsWrite)?;
    let position = last_event_id(&headers)?;
    let reader = caller.clone();
    let read = move |value: Value| {
        let asked: schema::ChatMessage = typed::body(&value)?;
        Ok::<_, ValidationErrors>((asked, reader.acts_for(&value)))
    };
    let (asked, tenant) = body.read_with(read).await?;
    let schema::ChatMessage { tenant_id, message, conversation_id } = asked;
    let addressed = match conversation_id {
        Some(id) => {
            let addressed = in_conversation(&state, &caller.narrow_scope(tenant_id.as_deref())?, id, message).await?;
            AddressedMessage { answers_elsewhere: true, ..addressed }
        }
        None => AddressedMessage::new(tenant?, message),
    };
    check_message(&addressed.message, "/message")?;
    let permit = limiter::acquire_stream(&state, &caller, &addressed.scope).await?;
    let scope = addressed.scope.clone();
    let reading = ChatRequest { wants_events: wants_events(&headers), position, permit };
    match receive(&state, &caller, &body.key, addressed).await? {
        MessageOutcome::Answered { conversation_id, run_id, live } => {
            answered(state, caller, &scope, (conversation_id, run_id), live, reading).await
        }
        MessageOutcome::AskedBack { conversation_id, run_id, words } => {
            ask_back(&state, &scope, conversation_id, run_id, words, &reading).await
        }
    }
}

/// Outcome of a message: a run answers it, or it is asked back.
pub enum MessageOutcome {
    /// This run answers it.
    Answered {
        /// The conversation of the message.
        conversation_id: Uuid,
        /// The run.
        run_id: Uuid,
        /// Heard since before the run was recorded.
        live: RunSubscription,
    },
    /// It was meant for what this run waits for, and did not say clearly what.
    AskedBack {
        /// The conversation of the message.
        conversation_id: Uuid,
        /// The run.
        run_id: Uuid,
        /// They ask once more.
        words: String,
    },
}

/// Records a message, or puts it as the answer to a question of its conversation.
pub async fn receive(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    key: &RequestKey,
    AddressedMessage { scope, message, destination, answers_elsewhere, echo }: AddressedMessage,
) -> Result<MessageOutcome, ApiError> {
    let now = state.clock.now();
    if let Destination::Existing(conversation_id) = destination {
        // a repetition answers no other question than the first did
        let reply = match key.known_identity(state, caller).await? {
            Some(id) => reply::read_again(state, &scope, id, &message).await?,
            None => reply::read(state, caller, &scope, conversation_id, &message, answers_elsewhere).await?,
        };
        match reply {
            ChatReply::Message => {}
            ChatReply::Unclear(run_id, words) => {
                return Ok(MessageOutcome::AskedBack { conversation_id, run_id, words });
            }
            ChatReply::Taken(run_id) => {
                let live = state.hub.subscribe(run_id);
                return Ok(MessageOutcome::Answered { conversation_id, run_id, live });
            }
            ChatReply::Decides(question, decision) => {
                let is_first = key.identity_if_kept(state, caller, question.id).await?.id == question.id;
                let run_id = question.run_id;
                let live = state.hub.subscribe(run_id);
                let refused = match is_first {
                    true => decide(state, caller, &scope, &question, &decision).await?,
                    false => None,
                };
                return Ok(match refused {
                    None => MessageOutcome::Answered { conversation_id, run_id, live },
                    Some(words) => MessageOutcome::AskedBack { conversation_id, run_id, words },
                });
            }
        }
    }
    let run_id = key.identity(state, caller, new_id(now)).await?.id;
    let conversation_id = match destination {
        Destination::Existing(conversation) => conversation,
        Destination::New(tenant) => {
            let conversation = new_conversation(begun_by(run_id), tenant, &message, now);
            let conversation = conversation.map_err(|fault| ValidationErrors(vec![fault]))?;
            state.store.begin_conversation(&conversation).await?;
            conversation.id
        }
    };
    // listen first, record after: what happens in between is heard, and told once
    let live = state.hub.subscribe(run_id);
    let request = RunRequest { input: Some(Value::String(message)), requested_by: Some(caller.root()), echo };
    state.store.post_message(&scope, conversation_id, run_id, request, now).await.map_err(missing)?;
    Ok(MessageOutcome::Answered { conversation_id, run_id, live })
}

/// Puts a person's reply to a question; the words that ask once more where it is not taken. A token that may talk to
/// the agent may answer its questions, and one that decides about calls needs the permission of a decider.
async fn decide(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    scope: &Scope,
    question: &Approval,
    decision: &Decision,
) -> Result<Option<String>, ApiError> {
    let summary = &question.proposal.summary;
    if question.proposal.kind == QuestionKind::Approval && caller.may(Permission::ApprovalsDecide).is_err() {
        let needed = Permission::ApprovalsDecide.as_str();
        let words = format!(
            "{summary}\nThis token may not decide, it lacks `{needed}`. Decide on the page whose link you were sent."
        );
        return Ok(Some(words));
    }
    let who = Decider { by: caller.name(), via: Via::Api };
    match decision.put(state, scope, question, who).await {
        Ok((DecisionOutcome::Refused(why, question), _)) => {
            Ok(Some(format!("{summary}\n{}", sentence(why, &question))))
        }
        Ok(_) => Ok(None),
        Err(ApiError::Invalid(faults)) => Ok(Some(format!("{summary}\n{faults}"))),
        Err(error) => Err(error),
    }
}

/// How the caller wants to hear of the answer.
struct ChatRequest {
    wants_events: bool,
    position: StreamPosition,
    permit: StreamPermit,
}

/// The answer of a run once it has ended or waits for a person, or the stream of it.
async fn answered(
    state: HttpState,
    caller: AuthenticatedCaller,
    scope: &Scope,
    (conversation_id, id): (Uuid, Uuid),
    live: RunSubscription,
    ChatRequest { wants_events, position, permit }: ChatRequest,
) -> Result<Response, EarlyResponse> {
    if wants_events {
        let followed = FollowedRun { id, conversation_id: Some(conversation_id), live, position };
        return Ok(follow(state, caller, followed, permit));
    }
    let run = wait_until_settled(&state, scope, id, live).await?;
    let status = match is_settled(run.state) {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Json(answer_of(&state, scope, conversation_id, run).await?)).into_response())
}

/// Asks once more for what a run waits for.
async fn ask_back(
    state: &HttpState,
    scope: &Scope,
    conversation_id: Uuid,
    run_id: Uuid,
    words: String,
    request: &ChatRequest,
) -> Result<Response, EarlyResponse> {
    let run = state.store.get_run(scope, run_id).await.map_err(missing)?;
    if request.wants_events {
        let (run_id, conversation_id) = (run_id.to_string(), Some(conversation_id));
        let events = [
            StreamEvent::Session { run_id, conversation_id },
            StreamEvent::MessageEnd { turn: 0, text: words, model_call: None },
            StreamEvent::StateChange { state: run.state.as_str().to_owned(), reason: None },
        ];
        return Ok(told(events));
    }
    let answer = answer_of(state, scope, conversation_id, run).await?;
    Ok(Json(ChatAnswer { asked_back: Some(words), ..answer }).into_response())
}

/// A message to a conversation of this scope.
pub async fn in_conversation(
    state: &HttpState,
    scope: &Scope,
    id: Uuid,
    message: String,
) -> Result<AddressedMessage, ApiError> {
    let conversation = state.store.get_conversation(scope, id).await.map_err(missing)?;
    let tenant = Tenant::stored(conversation.tenant_id).map_err(|log| ApiError::Internal { log })?;
    let destination = Destination::Existing(id);
    Ok(AddressedMessage::to(Scope::Only(tenant), message, destination))
}

/// Refuses a message that is blank or too long, at this place of the body.
pub fn check_message(message: &str, pointer: &str) -> Result<(), ApiError> {
    let count = message.chars().count();
    match message.trim().is_empty() || count > MESSAGE_LENGTH {
        true => {
            let detail = format!("must have 1 to {MESSAGE_LENGTH} characters that are not blank, has {count}");
            Err(ApiError::invalid(pointer, detail))
        }
        false => Ok(()),
    }
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    accepted.flat_map(|accept| accept.split(',')).any(|kind| kind.trim().starts_with(EVENT_STREAM))
}

async fn answer_of(state: &HttpState, scope: &Scope, conversation_id: Uuid, run: Run) -> Result<ChatAnswer, ApiError> {
    let account = state.store.run_account(scope, run.id).await?;
    let questions = pending_questions(state, scope, run.id).await?;
    let result = account_of(&run, account);
    Ok(ChatAnswer {
        run_id: run.id,
        conversation_id,
        state: run.state,
        result,
        input_request: InputRequest::of_open(&questions).into_iter().next(),
        pending_approvals: questions.into_iter().map(ApprovalOfRun::of).collect(),
        asked_back: None,
        error: missing_answer(&run),
    })
}
