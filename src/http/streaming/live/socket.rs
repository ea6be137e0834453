//! A session over a WebSocket (RFC 6455), for browsers: they set no header there, so the token may come as the first
//! message. It never stands in the address, which is logged and remembered everywhere.

use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseCode, CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::response::Response;
use axum::{RequestExt, RequestPartsExt};
use serde::Deserialize;
use tokio::time::timeout;
use uuid::Uuid;

use crate::base::clock;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::identify;
use crate::http::request::{AuthenticatedCaller, Query};
use crate::http::server::Peer;
use crate::http::streaming::live::session::Session;
use crate::http::streaming::live::{LiveConnection, admit, hold, last_event_id};

/// Largest message that a client may send, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024;
/// How long the goodbye may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// The first message of a client without an `Authorization` header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    token: String,
    tenant_id: Option<String>,
    last_event_id: Option<Uuid>,
}

/// Open a session over a WebSocket
///
/// As `GET /v1/live`, each event a text frame: `{"event": "session", "tenant_id"}` first, then a message in each. A
/// browser, which can't send an `Authorization` header here, sends `{"token": "rv_…"}` as its first frame, with
/// `tenant_id` and `last_event_id` where needed.
#[utoipa::path(get, path = "/v1/live/ws", tag = "notifications", security(("bearer" = ["deliveries:read"]), ()),
    params(
        ("tenant_id" = Option<String>, Query, description = "Whose; needed with an admin token"),
        ("Last-Event-ID" = Option<Uuid>, Header, description = "The last id that was seen")),
    responses((status = 101, description = "The connection is a WebSocket from here on")))]
pub async fn open_socket(State(state): State<HttpState>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.with_limited_body().into_parts();
    let upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection> = parts.extract().await;
    let upgrade = upgrade.map_err(|_| ApiError::Malformed("this address speaks WebSocket (RFC 6455)".into()))?;
    let hold = hold(&parts.extensions);
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
    let seen = last_event_id(&parts.headers)?;
    let mut query = Query::parse(parts.uri.query().unwrap_or_default());
    let tenant = query.text("tenant_id");
    query.done()?;
    // counted before anybody says who they are: a socket that says nothing keeps its connection as well
    let permit = state.streams.acquire_unidentified(peer)?;
    let session = match parts.headers.contains_key(AUTHORIZATION) {
        true => {
            let caller: AuthenticatedCaller = parts.extract_with_state(&state).await?;
            Some(admit(&state, caller, tenant.as_deref(), seen, LiveConnection::Counted).await?)
        }
        false => None,
    };
    let upgrade = upgrade.max_message_size(MESSAGE_LIMIT).max_frame_size(MESSAGE_LIMIT);
    Ok(upgrade.on_upgrade(async move |mut socket| {
        let _held = (hold, permit);
        let stop = state.stop.clone();
        let serving = async {
            let session = match session {
                Some(session) => session,
                None => authenticate(&state, peer, &mut socket).await?,
            };
            send_messages(&state, session, &mut socket).await
        };
        let end = stop.run_until_cancelled(serving).await.unwrap_or(Err(SocketEnd::Stopped));
        if let Err(end) = end {
            let _ = timeout(GOODBYE, socket.send(Message::Close(Some(end.frame())))).await;
        }
    }))
}

/// Why a socket is closed from this side.
enum SocketEnd {
    /// The client went away or broke the protocol: nothing is left to be said.
    Gone,
    /// The client did not identify itself, or not in time, or not credibly; the sentence is told.
    Refused(String),
    /// There is no room; the sentence says where.
    Full(String),
    /// The token is good no more.
    Ended,
    Away,
    Stopped,
}

impl SocketEnd {
    fn frame(self) -> CloseFrame {
        let (code, reason): (CloseCode, String) = match self {
            SocketEnd::Gone => (close_code::NORMAL, String::new()),
            SocketEnd::Refused(why) => (close_code::POLICY, why),
            SocketEnd::Full(why) => (close_code::AGAIN, why),
            SocketEnd::Ended => (close_code::POLICY, "the token is no longer valid".into()),
            SocketEnd::Away => (close_code::AGAIN, "the database is away".into()),
            SocketEnd::Stopped => (close_code::AWAY, "the service stops".into()),
        };
        // a close frame has room for 123 bytes
        let end = reason.floor_char_boundary(123);
        CloseFrame { code, reason: reason[..end].into() }
    }
}

/// Reads who it is from the first message.
async fn authenticate(
    state: &HttpState,
    peer: Option<std::net::IpAddr>,
    socket: &mut WebSocket,
) -> Result<Session, SocketEnd> {
    let refused = |why: &str| SocketEnd::Refused(why.into());
    let first = timeout(state.limits.header_time, next_text(socket)).await;
    let text = first.map_err(|_| refused("no token came"))??;
    let hello: Hello = serde_json::from_str(&text).map_err(|_| refused("send {\"token\": \"rv_…\"} first"))?;
    let of_problem = |error: ApiError| match error {
        ApiError::TooManyRequests { detail, .. } => SocketEnd::Full(detail.into()),
        ApiError::QuotaExceeded(over) => SocketEnd::Full(over.to_string()),
        ApiError::Unavailable { .. } => SocketEnd::Away,
        error => {
            let problem = error.into_problem();
            let fault = problem.errors.first().map(|fault| format!("{}: {}", fault.pointer, fault.message));
            SocketEnd::Refused(fault.unwrap_or_else(|| problem.detail.to_string()))
        }
    };
    let caller = identify(state, peer, &hello.token).await.map_err(of_problem)?;
    let (tenant, seen) = (hello.tenant_id.as_deref(), hello.last_event_id);
    admit(state, caller, tenant, seen, LiveConnection::Counted).await.map_err(of_problem)
}

/// The next text of the client.
async fn next_text(socket: &mut WebSocket) -> Result<String, SocketEnd> {
    loop {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_) | Message::Close(_)) | Err(_)) | None => return Err(SocketEnd::Gone),
        }
    }
}

/// Tells the session's messages, and looks now and then whether anybody is still there.
async fn send_messages(state: &HttpState, mut session: Session, socket: &mut WebSocket) -> Result<(), SocketEnd> {
    let gone = |_| SocketEnd::Gone;
    socket.send(Message::Text(session.opened().into())).await.map_err(gone)?;
    let mut answered = true;
    let mut ping = Box::pin(clock::pause(state.limits.keep_alive));
    loop {
        tokio::select! {
            message = session.next() => {
                let message = message.ok_or_else(|| if state.stop.is_cancelled() { SocketEnd::Stopped } else { SocketEnd::Ended })?;
                socket.send(Message::Text(message.body.expose().into())).await.map_err(gone)?;
            }
            heard = socket.recv() => match heard {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(SocketEnd::Gone),
                Some(Ok(_)) => answered = true,
            },
            () = &mut ping => {
                if !answered {
                    return Err(SocketEnd::Gone);
                }
                answered = false;
                socket.send(Message::Ping(Default::default())).await.map_err(gone)?;
                ping = Box::pin(clock::pause(state.limits.keep_alive));
            }
        }
    }
}
