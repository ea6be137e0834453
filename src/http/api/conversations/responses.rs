//! The facade in the form of Open Responses, so that the vendors' clients are clients of the agent: a message, its
//! answer, or the stream of it. Which models and tools there are is the operator's; a parameter that would say
//! otherwise is refused by its name.

use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::json::typed::field_names;
use crate::base::token::Permission;
use crate::domain::conversation::RequestEcho;
use crate::http::HttpState;
use crate::http::api::conversations::chat::{
    AddressedMessage, MessageOutcome, check_message, in_conversation, receive,
};
use crate::http::api::conversations::response_object::{AnsweredMessage, MODEL, PREFIX, ResponseObject};
use crate::http::api::runs::settling::wait_until_settled;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Json, JsonBody, Query};
use crate::http::schema::{self, ChosenConversation, ConversationChoice, InputContent};
use crate::http::streaming::limiter;
use crate::http::streaming::response::{AnswerStream, asked_back, stream};
use crate::http::streaming::run::{FollowedRun, StreamPosition};
use crate::store::StoreError;

/// Messages in the `input` of one request.
const MOST_MESSAGES: usize = 100;

/// A request whose parameters are all supported.
struct ResponseRequest {
    /// The tenant that it names.
    tenant_id: Option<String>,
    /// The tenant for which it makes something, or why it can't.
    acts_for: Result<Tenant, ValidationErrors>,
    message: String,
    /// The conversation, or the run whose conversation goes on.
    goes_on: Option<ContinuedFrom>,
    stream: bool,
    background: bool,
}

enum ContinuedFrom {
    Conversation(Uuid),
    Response(Uuid),
}

/// Talk to the agent in the form of Open Responses
///
/// For the clients of model vendors: with `base_url` at `/v1` of this service and a token of it as the key. A message
/// becomes a run, as with `/v1/chat`, whose answer comes as `output`. It goes on with `conversation` or
/// `previous_response_id`. A response is `incomplete` while a person is waited for: its message is the question, and
/// the next message of the conversation may be the answer. It is `incomplete` for good, with the reason `max_turns`,
/// where the agent was stopped at its limit of turns: its message is as far as that came. One that takes longer than 25
/// seconds, or runs in the `background`, is `queued` or `in_progress`, and is read again by its id. With `stream` its
/// events come as they happen. A parameter that is not supported is refused with its name.
#[utoipa::path(post, path = "/v1/responses", tag = "conversations", security(("bearer" = ["runs:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::NewResponse,
    responses((status = 200, content((ResponseObject = "application/json"), (inline(AnswerStream) = "text/event-stream")),
            description = "The response, as far as it has come; or its events, where the request has `stream`"),
        (status = 400, body = ProblemDetails, content_type = "application/problem+json",
            description = "A parameter is not supported"),
        (status = 404, body = ProblemDetails, content_type = "application/problem+json",
            description = "There is no such conversation or response")))]
pub async fn create_response(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.may(Permission::RunsWrite)?;
    let reader = caller.clone();
    let request = body.read_with(move |json| ResponseRequest::read(&json, &reader)).await?;
    check_message(&request.message, "/input")?;
    let addressed = addressed(&state, &caller, &request).await?;
    let scope = addressed.scope.clone();
    let permit = limiter::acquire_stream(&state, &caller, &scope).await?;
    match receive(&state, &caller, &body.key, addressed).await? {
        MessageOutcome::Answered { conversation_id, run_id, live } if request.stream => {
            let conversation = Some(conversation_id);
            let followed =
                FollowedRun { id: run_id, conversation_id: conversation, live, position: StreamPosition::default() };
            let run = state.store.get_run(&scope, run_id).await?;
            let begun = AnsweredMessage::read(&state, &scope, run, conversation_id).await?.to(request.echo());
            Ok(stream(state, caller, scope, followed, begun, permit))
        }
        MessageOutcome::Answered { conversation_id, run_id, live } => {
            let run = match request.background {
                true => state.store.get_run(&scope, run_id).await?,
                false => wait_until_settled(&state, &scope, run_id, live).await?,
            };
            let answered = AnsweredMessage::read(&state, &scope, run, conversation_id).await?.to(request.echo());
            Ok(Json(answered.response()).into_response())
        }
        MessageOutcome::AskedBack { conversation_id, run_id, words } => {
            let run = state.store.get_run(&scope, run_id).await?;
            let asked = AnsweredMessage {
                asked_back: Some(words),
                ..AnsweredMessage::read(&state, &scope, run, conversation_id).await?.to(request.echo())
            };
            Ok(match request.stream {
                true => asked_back(&state, &caller, asked).await,
                false => Json(asked.response()).into_response(),
            })
        }
    }
}

/// Read a response
///
/// As far as it has come. The runs of conversations are responses.
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "conversations", security(("bearer" = ["runs:read"])),
    params(("id" = String, Path, description = "`resp_` and the id of the run")),
    responses((status = 200, body = ResponseObject)))]
pub async fn get_response(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<ResponseObject>, ApiError> {
    caller.may(Permission::RunsRead)?;
    query.done()?;
    let run_id = run_of(&id.0).ok_or(ApiError::NotFound("response"))?;
    let run = state.store.get_run(&caller.scope, run_id).await.map_err(missing)?;
    let conversation_id = run.conversation_id().ok_or(ApiError::NotFound("response"))?;
    let echo = state.store.request_echo(&caller.scope, run_id).await.map_err(missing)?;
    Ok(Json(AnsweredMessage::read(&state, &caller.scope, run, conversation_id).await?.to(echo).response()))
}

async fn addressed(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    request: &ResponseRequest,
) -> Result<AddressedMessage, ApiError> {
    let message = request.message.clone();
    let scope = || caller.narrow_scope(request.tenant_id.as_deref());
    let addressed = match request.goes_on {
        None => AddressedMessage::new(request.acts_for.clone()?, message),
        Some(ContinuedFrom::Conversation(id)) => in_conversation(state, &scope()?, id, message).await?,
        Some(ContinuedFrom::Response(run_id)) => {
            let scope = scope()?;
            let run = state.store.get_run(&scope, run_id).await.map_err(missing)?;
            let id = run.conversation_id().ok_or(ApiError::NotFound("response"))?;
            in_conversation(state, &scope, id, message).await?
        }
    };
    Ok(addressed.with_echo(request.echo()))
}

impl ResponseRequest {
    /// Reads a body. A field that is null, or an empty list or object, says nothing.
    fn read(json: &Value, caller: &AuthenticatedCaller) -> Result<ResponseRequest, ApiError> {
        let Some(fields) = json.as_object() else { return Err(malformed("the body is a JSON object")) };
        let (known, mut unsupported) = (field_names::<schema::NewResponse>(), Vec::new());
        for (name, value) in fields.iter().filter(|(_, value)| !says_nothing(value)) {
            match (name.as_str(), value) {
                ("model", Value::String(model)) if model == MODEL => {}
                ("model", _) => unsupported.push(format!("`model` (the operator's: say `{MODEL}`, or leave it out)")),
                ("store", Value::Bool(true)) => {}
                ("store", _) => unsupported.push("`store` (every message is stored)".to_owned()),
                (other, _) if known.contains(&other) => {}
                (other, _) => unsupported.push(format!("`{other}`")),
            }
        }
        if !unsupported.is_empty() {
            unsupported.sort();
            return Err(malformed(&format!("not supported: {}", unsupported.join(", "))));
        }
        Ok(ResponseRequest {
            tenant_id: fields.get("tenant_id").and_then(Value::as_str).map(str::to_owned),
            acts_for: caller.acts_for(json),
            message: message_of(fields)?,
            goes_on: goes_on(fields)?,
            stream: flag(fields, "stream")?,
            background: flag(fields, "background")?,
        })
    }

    /// The parts that its response repeats.
    fn echo(&self) -> RequestEcho {
        let previous = match self.goes_on {
            Some(ContinuedFrom::Response(run_id)) => Some(run_id),
            Some(ContinuedFrom::Conversation(_)) | None => None,
        };
        RequestEcho { background: self.background, previous }
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(malformed(&format!("`{name}` must be true or false"))),
    }
}

fn goes_on(fields: &Map<String, Value>) -> Result<Option<ContinuedFrom>, ApiError> {
    let chosen = fields.get("conversation").filter(|chosen| !chosen.is_null());
    // one that is no choice is the choice of none that there is
    let conversation = chosen.map(|chosen| match ConversationChoice::deserialize(chosen) {
        Ok(ConversationChoice::Id(id) | ConversationChoice::Object(ChosenConversation { id })) => id,
        Err(_) => String::new(),
    });
    let response = fields.get("previous_response_id").filter(|id| !id.is_null());
    match (conversation, response) {
        (Some(_), Some(_)) => Err(malformed("`conversation` and `previous_response_id` can't both be given")),
        (Some(id), None) => {
            let id = Uuid::try_parse(&id).map_err(|_| ApiError::NotFound("conversation"))?;
            Ok(Some(ContinuedFrom::Conversation(id)))
        }
        (None, Some(id)) => {
            let run_id = id.as_str().and_then(run_of).ok_or(ApiError::NotFound("response"))?;
            Ok(Some(ContinuedFrom::Response(run_id)))
        }
        (None, None) => Ok(None),
    }
}

/// The text of `input`: a text, or messages of the user, of texts alone.
fn message_of(fields: &Map<String, Value>) -> Result<String, ApiError> {
    let items = match fields.get("input") {
        None | Some(Value::Null) => return Err(malformed("`input` is missing: the message")),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(malformed("`input` must be a text or a list of messages")),
    };
    if items.len() > MOST_MESSAGES {
        return Err(malformed(&format!("`input` must have at most {MOST_MESSAGES} messages")));
    }
    let mut texts: Vec<String> = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let place = |field: &str| format!("`input[{number}].{field}`");
        if item.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "message") {
            return Err(malformed(&format!("not supported: {} (messages alone)", place("type"))));
        }
        if item.get("role").and_then(Value::as_str) != Some("user") {
            let why = "of the user alone: what was said before is in the conversation";
            return Err(malformed(&format!("not supported: {} ({why})", place("role"))));
        }
        let Some(content) = item.get("content") else {
            return Err(malformed(&format!("{} is missing", place("content"))));
        };
        match InputContent::deserialize(content) {
            Ok(InputContent::Text(text)) => texts.push(text),
            Ok(InputContent::Parts(parts)) if parts.iter().all(|part| part.r#type == "input_text") => {
                texts.extend(parts.into_iter().filter_map(|part| part.text));
            }
            Ok(InputContent::Parts(_)) => {
                return Err(malformed(&format!("not supported: {} (parts of text alone)", place("content"))));
            }
            Err(_) => {
                return Err(malformed(&format!("{} must be a text or a list of parts", place("content"))));
            }
        }
    }
    Ok(texts.join("\n\n"))
}

/// The run of a response.
fn run_of(id: &str) -> Option<Uuid> {
    Uuid::try_parse(id.strip_prefix(PREFIX)?).ok()
}

fn malformed(detail: &str) -> ApiError {
    ApiError::Malformed(detail.to_owned())
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "response")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(input: Value) -> Result<String, String> {
        let body = json!({ "input": input });
        message_of(body.as_object().unwrap()).map_err(|error| error.into_problem().detail)
    }

    #[test]
    fn message_is_made_of_texts_of_the_user_alone() {
        assert_eq!(message(json!("hello")).unwrap(), "hello");
        let said = |text: &str| json!({ "role": "user", "content": text });
        let parts = json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "b" }] });
        assert_eq!(message(json!([said("a"), parts])).unwrap(), "a\n\nb");
        for (wrong, place) in [
            (json!(3), "`input`"),
            (json!([{ "role": "system", "content": "x" }]), "`input[0].role`"),
            (json!([said("a"), { "type": "function_call" }]), "`input[1].type`"),
            (json!([{ "role": "user" }]), "`input[0].content`"),
            (json!([{ "role": "user", "content": 3 }]), "`input[0].content`"),
            (json!([{ "role": "user", "content": [{ "type": "input_image" }] }]), "`input[0].content`"),
        ] {
            assert!(message(wrong.clone()).unwrap_err().contains(place), "{wrong}");
        }
        assert!(message(json!(vec![said("a"); MOST_MESSAGES])).is_ok());
        assert!(message(json!(vec![said("a"); MOST_MESSAGES + 1])).unwrap_err().contains("at most 100 messages"));
    }
}
