//! Connecting accounts over HTTP: the link to the provider, and the page that people come back to.
//!
//! GET changes nothing, the one that a provider sends people to included: a scanner or a prefetching browser that
//! follows it spends no code. The page says what would be connected, for whom; only its button does it, and only when
//! it is pressed on that page, in the browser that was shown it. What the provider sent along is shown where the state
//! is ours, escaped and cut; the code and the state stand in no log (the guard logs the route).

pub mod client;
mod mark;
mod view;

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::base::id::{Scope, Tenant};
use crate::base::secret::Secret;
use crate::base::token::Permission;
use crate::domain::credential::Reference;
use crate::http::HttpState;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::pages::approve::origin::{is_form, is_own};
use crate::http::pages::{self, failed};
use crate::http::request::auth::still_may;
use crate::http::request::{AuthenticatedCaller, Call, Json, JsonBody, Pair, Query};
use crate::ports::channel::templates::phrases::Phrases;
use crate::ports::vault::credentials::check_reference;
use crate::ports::vault::oauth::{ConnectError, ConnectOffer, OAuthFlow};

/// Longest state and longest code that are looked at, in bytes.
const LONGEST: usize = 4096;
/// Longest form that is read, in bytes: both, the characters of the code written as `%XX`.
const LONGEST_FORM: usize = 5 * LONGEST;
/// When a server that can't be asked now is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Where a person connects an account.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ConnectionLink {
    /// Address of the provider's login page. Anybody who agrees there connects their account for the tenant, so it goes
    /// to its owner alone.
    pub url: String,
    /// Until when the whole must be done.
    pub expires_at: DateTime<Utc>,
}

/// Make a link to connect an account
///
/// For services that the operator has described in `[oauth.*]`. Stores nothing: the credential comes to be when the
/// owner of the account has agreed at the provider and confirmed it on the page that they are sent back to. A service
/// with a `resource` and without addresses is looked for first.
#[utoipa::path(get, path = "/v1/credentials/{service}/{account_name}/connect", tag = "credentials",
    security(("bearer" = ["credentials:write"])),
    params(("service" = String, Path, description = "Its name in `[oauth.*]`"),
        ("account_name" = String, Path, description = "Name of the account in references, such as `primary`"),
        ("tenant_id" = Option<String>, Query, description = "For whom; an admin token names the tenant")),
    responses((status = 200, body = ConnectionLink),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "Where people log in can't be found out, or this service can't become known there")))]
pub async fn connect_credential(
    Call(state, caller): Call,
    name: Pair,
    mut query: Query,
) -> Result<Json<ConnectionLink>, ApiError> {
    caller.may(Permission::CredentialsWrite)?;
    let tenant = match (query.text("tenant_id"), &caller.scope) {
        (Some(named), _) => Some(caller.makes_for(&named)?),
        (None, Scope::Only(own)) => Some(own.clone()),
        (None, Scope::Every) => {
            query.fault("tenant_id", "is missing: an admin token names the tenant");
            None
        }
    };
    query.done()?;
    let Some(tenant) = tenant else { return Err(ApiError::NotFound("tenant")) };
    let reference = Reference { service: name.0, account: name.1 };
    check_reference(&reference)?;
    let started = start(&state, &tenant, &reference, &caller).await?;
    Ok(Json(started))
}

async fn start(
    state: &HttpState,
    tenant: &Tenant,
    reference: &Reference,
    by: &AuthenticatedCaller,
) -> Result<ConnectionLink, ApiError> {
    match state.connector.start(tenant.as_str(), reference, &by.name()).await {
        Ok(started) => Ok(ConnectionLink { url: started.url.into(), expires_at: started.expires_at }),
        Err(ConnectError::NoSuchService(_)) => Err(ApiError::NotFound("service in [oauth.*]")),
        Err(ConnectError::Misconfigured(why)) => {
            Err(ApiError::Conflict(format!("accounts of `{}` can't be connected: {why}", reference.service)))
        }
        Err(ConnectError::Later(why)) => {
            tracing::warn!(credential = %reference, why, "a link can't be made now");
            let detail = "where people log in can't be found out now";
            Err(ApiError::Unavailable { detail, retry_after: ASK_AGAIN })
        }
        Err(error) => Err(ApiError::Internal { log: error.to_string() }),
    }
}

/// Show what is about to be connected
///
/// Where providers send people back to: a page for people, with one button. Changes nothing. It sets a cookie, without
/// which the button does nothing.
#[utoipa::path(get, path = "/oauth/callback", tag = "credentials",
    params(("state" = Option<String>, Query), ("code" = Option<String>, Query), ("error" = Option<String>, Query),
        ("error_description" = Option<String>, Query),
        ("iss" = Option<String>, Query, description = "The provider that sends them back; where the service has an `issuer`, another is refused, and none is")),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 403, description = "Another provider sends them back, or one that does not say who it is", body = String, content_type = "text/html"),
        (status = 404, description = "The link is not known", body = String, content_type = "text/html"),
        (status = 410, description = "The link is too old", body = String, content_type = "text/html")))]
pub async fn show_connection(State(state): State<HttpState>, mut query: Query) -> Result<Response, Response> {
    let mut given = |name| query.text(name).filter(|text: &String| text.len() <= LONGEST);
    let (sealed, code) = (given("state").unwrap_or_default(), given("code"));
    let (error, description) = (given("error"), given("error_description"));
    let issuer = given("iss");
    let offer = open_offer(&state, &sealed).await?;
    let words = phrases_for(&state, &offer.flow).await;
    if !state.connector.is_of(&offer.flow, issuer.as_deref()) {
        let issuer = issuer.as_deref().unwrap_or("nobody");
        tracing::warn!(credential = %offer.flow.reference, issuer, "another provider than the one asked sent somebody back");
        return Err(view::issuer_mismatch(&words));
    }
    Ok(match (code, error) {
        (_, Some(error)) => view::declined(&words, &offer, &error, description.as_deref()),
        (Some(code), None) => {
            let mut page = view::question(&words, &offer, &sealed, &code, state.clock.now());
            mark::set(&mut page, &state.vault, &offer.flow, &state.settings.public_url(), state.clock.now());
            page
        }
        (None, None) => return Err(view::unknown()),
    })
}

/// Connect an account
///
/// The button of the page. The code becomes tokens, and they a credential; once.
#[utoipa::path(post, path = "/oauth/callback", tag = "credentials",
    request_body(content = String, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, description = "Connected", body = String, content_type = "text/html"),
        (status = 400, description = "The request can't be read", body = String, content_type = "text/html"),
        (status = 403, description = "It does not come from the page, or another browser was shown it", body = String, content_type = "text/html"),
        (status = 404, description = "The link is not known", body = String, content_type = "text/html"),
        (status = 409, description = "It was used before, or the provider does not accept the code", body = String,
            content_type = "text/html"),
        (status = 410, description = "The link is too old", body = String, content_type = "text/html"),
        (status = 408, description = "It came too slowly", body = String, content_type = "text/html"),
        (status = 413, description = "It is too large", body = String, content_type = "text/html"),
        (status = 502, description = "The provider refuses this service", body = String, content_type = "text/html"),
        (status = 503, description = "The provider can't be asked now", body = String, content_type = "text/html")))]
pub async fn make_connection(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Result<JsonBody, ApiError>,
) -> Result<Response, Response> {
    let body = body.map_err(failed)?;
    if !is_form(&headers) || !is_own(&headers, &state.settings.public_url()) {
        return Err(view::wrong_account());
    }
    if body.bytes().len() > LONGEST_FORM {
        return Err(failed(ApiError::TooLarge { limit: LONGEST_FORM }));
    }
    let mut form = Query::of_form(&String::from_utf8_lossy(body.bytes()));
    let mut given = |name| form.text(name).filter(|text: &String| text.len() <= LONGEST);
    let (Some(sealed), Some(code)) = (given("state"), given("code")) else { return Err(view::unknown()) };
    let offer = open_offer(&state, &sealed).await?;
    let flow: OAuthFlow = offer.flow;
    let words = phrases_for(&state, &flow).await;
    if !mark::has_mark(&headers, &state.vault, &flow, &state.settings.public_url()) {
        return Err(view::missing_cookie(&words));
    }
    match state.connector.finish(flow.clone(), Secret::new(code)).await {
        Ok(connected) => Ok(view::connected(&words, &flow, &connected)),
        Err(ConnectError::Used { connected }) => Err(view::used(&words, &flow, connected)),
        Err(ConnectError::Code(why)) => Err(view::code_rejected(&words, &why)),
        Err(ConnectError::Misconfigured(why)) => {
            tracing::warn!(credential = %flow.reference, tenant = flow.tenant, why, "an account can't be connected");
            Err(view::client_rejected(&words, &why))
        }
        Err(ConnectError::Later(why)) => Err(view::provider_unavailable(&words, &why)),
        Err(other) => Err(refused(other)),
    }
}

/// The offer of a state, while the token that began it could begin it still: a link does not outlive it.
async fn open_offer(state: &HttpState, sealed: &str) -> Result<ConnectOffer, Response> {
    let offer = state.connector.offer(sealed).await.map_err(refused)?;
    let OAuthFlow { by, tenant, .. } = &offer.flow;
    match still_may(state, by, tenant, Permission::CredentialsWrite).await {
        Ok(true) => Ok(offer),
        Ok(false) => Err(view::expired(&phrases_for(state, &offer.flow).await)),
        Err(error) => Err(failed(ApiError::from(error))),
    }
}

/// The words of the person whose account it is to be; English where nothing is known of them.
async fn phrases_for(state: &HttpState, flow: &OAuthFlow) -> Phrases {
    match state.store.get_recipient(&Scope::Every, &flow.tenant).await {
        Ok(stored) => state.channels.templates().phrases(&stored.recipient.locale),
        Err(_) => Phrases::english().clone(),
    }
}

/// The page for a state that leads nowhere, or for a store that is away.
fn refused(error: ConnectError) -> Response {
    match error {
        ConnectError::Unknown => view::unknown(),
        ConnectError::NoSuchService(_) => view::service_removed(),
        ConnectError::Expired => view::expired(Phrases::english()),
        ConnectError::Store(error) => failed(ApiError::from(error)),
        other => {
            let mut response = failed(ApiError::Internal { log: other.to_string() });
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            pages::guard(&mut response);
            response
        }
    }
}
