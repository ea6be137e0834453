//! Links that sign a browser in to the dashboard: made with a token, good once and for minutes.
//!
//! The code in a link is 256 bits of chance. It is answered once; the database has its hash.

use axum::http::{HeaderMap, StatusCode, header};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::base::token::{TokenHash, bearer_secret};
use crate::http::HttpState;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{Call, Json};
use crate::store::{Store, StoreError};

/// How long a link is good.
const LASTS: TimeDelta = TimeDelta::minutes(10);

/// A link that was made.
#[derive(Serialize, utoipa::ToSchema)]
pub struct LoginLink {
    /// Address of a page with a button, which signs the browser in once.
    #[schema(example = "http://127.0.0.1:7700/ui/login/0123456789ABCDEFGHIJabcdefghij0123456789ABC")]
    pub url: String,
    /// The instant from which the link is refused.
    pub expires_at: DateTime<Utc>,
}

/// Make a link to the dashboard
///
/// Any token will do. The link signs one browser in, once, with what this token permits; its session ends with the
/// token. So the link goes to its bearer alone.
#[utoipa::path(post, path = "/v1/login-links", tag = "operations", security(("bearer" = [])),
    responses((status = 201, body = LoginLink),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "The program that the service is a part of has no token to sign in with")))]
pub async fn create_login_link(
    Call(state, caller): Call,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<LoginLink>), ApiError> {
    if !caller.has_token() {
        return Err(ApiError::Conflict("a link stands for a token, and this program calls without one".to_owned()));
    }
    let link = make(&state.store, caller.hash(), &place(&state, &headers)).await?;
    Ok((StatusCode::CREATED, Json(link)))
}

/// Makes a link that signs in as the token with this hash, to a service that is reached at `place`.
pub async fn make(store: &Store, token: &TokenHash, place: &str) -> Result<LoginLink, StoreError> {
    let (code, now) = (bearer_secret(), store.clock().now());
    let expires_at = now + LASTS;
    store.make_login_link(TokenHash::of(&code).as_bytes(), token.as_bytes(), now, expires_at).await?;
    let url = format!("{}/ui/login/{}", place.trim_end_matches('/'), *code);
    Ok(LoginLink { url, expires_at })
}

/// Where the service is reached: as it is configured, else as it was asked.
fn place(state: &HttpState, headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match host.filter(|_| state.settings.public_url.is_none()) {
        Some(host) => format!("http://{host}"),
        None => state.settings.public_url(),
    }
}
