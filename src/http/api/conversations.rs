//! Conversations over HTTP: list, read, delete. `chat` has the messages that go in.

pub mod chat;
pub mod reply;
pub mod response_object;
pub mod responses;

use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::conversation::Conversation;
use crate::domain::run::{Run, RunFault, RunState};
use crate::http::error::ApiError;
use crate::http::request::{Call, Id, Items, Json, ListPage, Query};
use crate::store::{ConversationFilter, StoreError};

/// A message of a conversation with its answer: one run.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ConversationMessage {
    /// The run that answers it.
    pub run_id: Uuid,
    /// The words of the person.
    pub message: String,
    /// The answer, once there is one.
    pub response: Option<String>,
    /// Where the run stands.
    pub state: RunState,
    /// Why there is no answer.
    pub error: Option<RunFault>,
    /// The instant at which it was sent.
    pub created_at: DateTime<Utc>,
    /// The instant at which the run ended.
    pub finished_at: Option<DateTime<Utc>>,
}

impl ConversationMessage {
    fn of(run: Run) -> ConversationMessage {
        let message = run.input.as_ref().and_then(|input| input.as_str()).unwrap_or_default().to_owned();
        ConversationMessage {
            run_id: run.id,
            message,
            response: run.output,
            state: run.state,
            error: run.error,
            created_at: run.created_at,
            finished_at: run.finished_at,
        }
    }
}

/// List conversations
///
/// One goes seven days after its last message, with all that belongs to it.
#[utoipa::path(get, path = "/v1/conversations", tag = "conversations", security(("bearer" = ["runs:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<Conversation>)))]
pub async fn list_conversations(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<Conversation>>, ApiError> {
    caller.may(Permission::RunsRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let filter = ConversationFilter { before: page.before, limit: page.fetch() };
    let found = state.store.list_conversations(&scope, &filter).await?;
    Ok(Json(page.items(found, |conversation| conversation.id)))
}

/// Read a conversation
#[utoipa::path(get, path = "/v1/conversations/{id}", tag = "conversations", security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path)), responses((status = 200, body = Conversation)))]
pub async fn get_conversation(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<Conversation>, ApiError> {
    caller.may(Permission::RunsRead)?;
    query.done()?;
    let id = id.of("conversation")?;
    Ok(Json(state.store.get_conversation(&caller.scope, id).await.map_err(missing)?))
}

/// List the messages of a conversation
///
/// With their answers, newest first. A page ends early where it is large.
#[utoipa::path(get, path = "/v1/conversations/{id}/messages", tag = "conversations",
    security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<ConversationMessage>)))]
pub async fn list_messages(
    Call(state, caller): Call,
    id: Id,
    mut query: Query,
) -> Result<Json<Items<ConversationMessage>>, ApiError> {
    caller.may(Permission::RunsRead)?;
    let page = ListPage::of(&mut query);
    query.done()?;
    let id = id.of("conversation")?;
    state.store.get_conversation(&caller.scope, id).await.map_err(missing)?;
    let filter = ConversationFilter { before: page.before, limit: page.fetch() };
    let found = state.store.conversation_messages(&caller.scope, id, &filter).await?;
    Ok(Json(page.within(found, |run| run.id).map(ConversationMessage::of)))
}

/// Delete a conversation
///
/// With its runs, their transcripts and files. A run that is under way is ended. What was broken off in the middle is
/// done by a repetition.
#[utoipa::path(delete, path = "/v1/conversations/{id}", tag = "conversations", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn delete_conversation(Call(state, caller): Call, id: Id, query: Query) -> Result<StatusCode, ApiError> {
    caller.may(Permission::RunsWrite)?;
    query.done()?;
    let id = id.of("conversation")?;
    state.store.delete_conversation(&caller.scope, id).await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "conversation")
}
