//! Sessions: messages of the channel `live` as they come, over server-sent events and over a WebSocket.
//!
//! A session belongs to one tenant, and has its messages from the time when it was opened, or with `Last-Event-ID` from
//! where an earlier one was left, as far as they are kept. Of several sessions each is told every message; the first
//! one takes it. Sessions end with their token and with the service.

mod session;
pub mod socket;

use std::convert::Infallible;

use axum::http::{Extensions, HeaderMap};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use utoipa::openapi::{OneOfBuilder, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::openapi::streams::{self, NamedSchemas};
use crate::http::request::{AuthenticatedCaller, Call, Query};
use crate::http::server::Hold;
use crate::http::streaming::limiter;
use crate::http::streaming::live::session::{SESSION, Session, SessionOpening};
use crate::ports::channel::live::LiveBody;

/// The name of the event that is a message.
const MESSAGE: &str = "message";

/// Open a session
///
/// Server-sent events. The first is `session`; then each message comes as `message` with `{id, event, created_at,
/// urgency, subject, text, link, data}`: those that come from now on, or with `Last-Event-ID` those after it that are
/// still kept, for an hour. Questions have a link that decides, so only sessions with `approvals:decide` have them.
#[utoipa::path(get, path = "/v1/live", tag = "notifications", security(("bearer" = ["deliveries:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "Whose; needed with an admin token"),
        ("Last-Event-ID" = Option<Uuid>, Header, description = "The last id that was seen")),
    responses((status = 200, body = inline(SessionStream), content_type = "text/event-stream")))]
pub async fn open_stream(
    Call(state, caller): Call,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let tenant = query.text("tenant_id");
    query.done()?;
    let mut session = admit(&state, caller, tenant.as_deref(), last_event_id(&headers)?, LiveConnection::New).await?;
    let keep_alive = KeepAlive::new().interval(state.limits.keep_alive);
    let permit = session.take_permit();
    let opened = Event::default().event(SESSION).data(session.opened());
    let events = unfold((session, Some(opened)), |(mut session, opened)| async move {
        let event = match opened {
            Some(opened) => opened,
            None => {
                let told = session.next().await?;
                Event::default().event(MESSAGE).id(told.id.to_string()).data(told.body.expose())
            }
        };
        Some((Ok::<_, Infallible>(event), (session, None)))
    });
    Ok(Sse::new(limiter::detached(permit, events)).keep_alive(keep_alive).into_response())
}

/// The stream of a session, for the reference.
struct SessionStream;

impl SessionStream {
    /// The published name of its events.
    const EVENT: &str = "LiveStreamEvent";
    /// The meaning of their ids.
    const ID: &str = "Id of the message. With it as `Last-Event-ID` a session goes on behind this message.";
}

impl PartialSchema for SessionStream {
    fn schema() -> RefOr<Schema> {
        streams::stream_of(Ref::from_schema_name(SessionStream::EVENT).into())
    }
}

impl ToSchema for SessionStream {
    fn schemas(schemas: &mut NamedSchemas) {
        let opened = streams::event(SESSION, None, streams::named::<SessionOpening<'static>>(schemas));
        let message = streams::event(MESSAGE, Some(SessionStream::ID), streams::named::<LiveBody<'static>>(schemas));
        schemas.push((SessionStream::EVENT.into(), OneOfBuilder::new().item(opened).item(message).into()));
    }
}

/// Whether the connection of a session is counted as a stream already.
#[derive(Debug, Clone, Copy)]
enum LiveConnection {
    New,
    Counted,
}

/// A session for this caller, if they may have one.
async fn admit(
    state: &HttpState,
    caller: AuthenticatedCaller,
    named: Option<&str>,
    seen: Option<Uuid>,
    connection: LiveConnection,
) -> Result<Session, ApiError> {
    caller.may(Permission::DeliveriesRead)?;
    let tenant = match caller.narrow_scope(named)? {
        Scope::Only(tenant) => tenant,
        Scope::Every => {
            return Err(ApiError::Query(ValidationErrors::one(
                "/tenant_id",
                "is missing: an admin token names the tenant",
            )));
        }
    };
    let scope = Scope::Only(tenant.clone());
    let permit = match connection {
        LiveConnection::Counted => limiter::acquire_known_stream(state, &caller, &scope).await?,
        LiveConnection::New => limiter::acquire_stream(state, &caller, &scope).await?,
    };
    Session::open(state.clone(), caller, tenant, permit, seen)
        .await
        .map_err(|error| ApiError::of_store(error, "message"))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<Uuid>, ApiError> {
    let Some(id) = headers.get("last-event-id").filter(|id| !id.is_empty()) else { return Ok(None) };
    let read = id.to_str().ok().and_then(|id| id.parse().ok());
    read.map(Some).ok_or_else(|| ApiError::Malformed("Last-Event-ID must be an id of this stream".into()))
}

/// The hold that keeps a connection counted after it has become a WebSocket.
fn hold(extensions: &Extensions) -> Option<Hold> {
    extensions.get::<Hold>().cloned()
}
