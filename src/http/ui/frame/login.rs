//! The way in and out: the page for a token, links that sign in once, and the end of a session.
//!
//! A GET changes nothing, whoever opens a link and however often; the button of its page spends it. Forms are taken
//! from pages of ours alone, so that no other site signs a browser in. The code of a link is no part of the log (the
//! guard logs the route), and the database has its hash alone.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::json;

use crate::base::token::{TokenHash, is_bearer_secret};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::pages::approve::origin::{is_form, is_own};
use crate::http::request::auth::{caller_of, identify};
use crate::http::request::{AuthenticatedCaller, Id, JsonBody, Query};
use crate::http::server::Peer;
use crate::http::ui::frame::failure::{UiError, UiResult};
use crate::http::ui::frame::form::{UiForm, foreign};
use crate::http::ui::frame::navigation;
use crate::http::ui::frame::render::{render, secured};
use crate::http::ui::frame::session::{self, HOME, LOGIN, is_own_page};
use crate::http::ui::frame::visit::Visit;
use crate::store::StoredLoginLink;

/// Most bytes of a form that signs in: anybody may send one, and it holds a token and an address.
const FORM_BYTES: usize = 16_384;
/// Where a request was begun, as browsers say it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The way in and out.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/login", get(show_login).post(sign_in))
        .route("/ui/login/{code}", get(show_link).post(spend_link))
        .route("/ui/logout", post(sign_out))
}

/// The page on which one signs in, as it is shown.
#[derive(Default)]
struct LoginPage<'a> {
    /// The page that it leads to.
    next: Option<&'a str>,
    /// The sentence about what was just done.
    done: Option<&'static str>,
    /// Why somebody is not signed in.
    fault: Option<String>,
    /// Another site has led here, so the browser may have a session that it has not shown.
    may_be_signed_in: bool,
}

async fn show_login(visit: Option<Visit>, mut query: Query, headers: HeaderMap) -> UiResult {
    let next = query.text("next").filter(|next| is_own_page(next));
    if visit.is_some() {
        return Ok(secured(Redirect::to(next.as_deref().unwrap_or(HOME)).into_response()));
    }
    let done = query.text("done").as_deref().and_then(navigation::done);
    let may_be_signed_in = next.is_some() && may_come_from_elsewhere(&headers);
    shown(StatusCode::OK, &LoginPage { next: next.as_deref(), done, may_be_signed_in, fault: None })
}

async fn sign_in(
    State(state): State<HttpState>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Result<JsonBody, ApiError>,
) -> UiResult {
    refuse_foreign(&headers, &state)?;
    let mut form = fields_of(body)?;
    let next = form.text("next").filter(|next| is_own_page(next));
    let page = LoginPage { next: next.as_deref(), ..LoginPage::default() };
    let Some(token) = form.text("token") else {
        let fault = Some("Paste a token into the field.".to_owned());
        return shown(StatusCode::UNPROCESSABLE_ENTITY, &LoginPage { fault, ..page });
    };
    let address = peer.map(|Extension(Peer(address))| address);
    match identify(&state, address, token.trim()).await {
        Ok(caller) => signed_in(&state, &headers, &caller, next.as_deref()).await,
        Err(ApiError::Unauthorized(why)) => {
            let fault = Some(format!("You are not signed in: {why}."));
            shown(StatusCode::UNAUTHORIZED, &LoginPage { fault, ..page })
        }
        Err(ApiError::TooManyRequests { detail, retry_after }) => {
            let fault = Some(format!("You are not signed in: {detail}. Try it again in a minute."));
            let shown = shown(StatusCode::TOO_MANY_REQUESTS, &LoginPage { fault, ..page })?;
            Ok(with_retry_after(shown, retry_after))
        }
        Err(error) => Err(error.into()),
    }
}

async fn show_link(State(state): State<HttpState>, Id(code): Id, mut query: Query) -> UiResult {
    good_link(&state, &code).await?;
    let next = query.text("next").filter(|next| is_own_page(next));
    let frame = json!({ "title": "Sign in", "path": LOGIN });
    let text = render("login_link.html", &frame, &json!({ "action": format!("{LOGIN}/{code}"), "next": next }))?;
    Ok(secured((StatusCode::OK, text).into_response()))
}

async fn spend_link(
    State(state): State<HttpState>,
    peer: Option<Extension<Peer>>,
    Id(code): Id,
    headers: HeaderMap,
    body: Result<JsonBody, ApiError>,
) -> UiResult {
    refuse_foreign(&headers, &state)?;
    let mut form = fields_of(body)?;
    let next = form.text("next").filter(|next| is_own_page(next));
    let hash = good_link(&state, &code).await?;
    let spent = state.store.spend_login_link(hash.as_bytes(), state.clock.now()).await.map_err(ApiError::from)?;
    // somebody else was first
    let spent = spent.ok_or_else(used)?;
    let token = TokenHash::stored(&spent).ok_or_else(|| UiError::internal("a stored hash of a token is none"))?;
    let address = peer.map(|Extension(Peer(address))| address);
    match caller_of(&state, &token, address).await {
        Ok(caller) => signed_in(&state, &headers, &caller, next.as_deref()).await,
        Err(ApiError::Unauthorized(why)) => {
            let sentence = format!("It stands for a token, and {why}.");
            Err(UiError::new(StatusCode::GONE, "This link is good no more", &sentence))
        }
        Err(error) => Err(error.into()),
    }
}

async fn sign_out(form: UiForm) -> UiResult {
    let cookie = session::end(&form.visit.state, form.visit.session()).await?;
    let mut response = form.done(LOGIN, "signed-out");
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Leads a person who has a session from now on to a page. The one that their browser had before ends.
async fn signed_in(
    state: &HttpState,
    headers: &HeaderMap,
    caller: &AuthenticatedCaller,
    next: Option<&str>,
) -> UiResult {
    session::end_shown(state, headers).await?;
    let cookie = session::begin(state, caller).await?;
    let mut response = secured(Redirect::to(next.unwrap_or(HOME)).into_response());
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}

/// The hash of the code of a link that is good now.
async fn good_link(state: &HttpState, code: &str) -> Result<TokenHash, UiError> {
    let unknown = || {
        let sentence = "It was cut off, or made long ago. `reveille ui` makes a new one.";
        UiError::new(StatusCode::NOT_FOUND, "This link is not known", sentence)
    };
    if !is_bearer_secret(code) {
        return Err(unknown());
    }
    // nobody guesses a code of 256 bits, so those that are not known are not counted
    let hash = TokenHash::of(code);
    let link = state.store.find_login_link(hash.as_bytes()).await.map_err(ApiError::from)?;
    match link.ok_or_else(unknown)? {
        StoredLoginLink { spent_at: Some(_), .. } => Err(used()),
        StoredLoginLink { expires_at, .. } if expires_at <= state.clock.now() => {
            let sentence = "A link is good for 10 minutes. `reveille ui` makes a new one.";
            Err(UiError::new(StatusCode::GONE, "This link is too old", sentence))
        }
        _ => Ok(hash),
    }
}

fn used() -> UiError {
    let sentence = "A link signs in once. `reveille ui` makes a new one.";
    UiError::new(StatusCode::GONE, "This link was used", sentence)
}

/// The fields of a form that signs in.
fn fields_of(body: Result<JsonBody, ApiError>) -> Result<Query, UiError> {
    let body = body?;
    match body.bytes().len() {
        ..=FORM_BYTES => Ok(Query::of_form(&String::from_utf8_lossy(body.bytes()))),
        _ => Err(ApiError::TooLarge { limit: FORM_BYTES }.into()),
    }
}

/// Refuses a form that no page of ours has sent.
fn refuse_foreign(headers: &HeaderMap, state: &HttpState) -> Result<(), UiError> {
    match is_own(headers, &state.settings.public_url()) && is_form(headers) {
        true => Ok(()),
        false => Err(foreign()),
    }
}

/// Whether another site may have led the browser here: it keeps its cookie to itself then (`SameSite=Strict`).
fn may_come_from_elsewhere(headers: &HeaderMap) -> bool {
    headers.get(FETCH_SITE).is_none_or(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
}

fn shown(status: StatusCode, page: &LoginPage<'_>) -> UiResult {
    let frame = json!({ "title": "Sign in", "done": page.done, "path": LOGIN });
    let values = json!({ "next": page.next, "fault": page.fault, "may_be_signed_in": page.may_be_signed_in });
    let text = render("login.html", &frame, &values)?;
    Ok(secured((status, text).into_response()))
}

fn with_retry_after(mut response: Response, wait: Duration) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_that_another_site_has_led_here_may_be_signed_in() {
        let comes = |site: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.extend(site.map(|site| (FETCH_SITE, site.parse().unwrap())));
            may_come_from_elsewhere(&headers)
        };
        assert_eq!([Some("cross-site"), Some("same-site"), None].map(comes), [true; 3]);
        assert_eq!([Some("same-origin"), Some("none")].map(comes), [false; 2]);
    }

    #[test]
    fn page_says_why_nobody_is_signed_in_and_keeps_where_it_leads() {
        let next = Some("/ui/runs?q=a&state=\"><script>");
        let fault = Some("You are not signed in: <b>.".to_owned());
        let page = LoginPage { next, fault, done: Some("You are signed out."), may_be_signed_in: true };
        let response = shown(StatusCode::UNAUTHORIZED, &page).unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert!(response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("script-src 'self'"));
        let values = json!({ "next": next, "fault": page.fault, "may_be_signed_in": true });
        let text = render("login.html", &json!({ "title": "Sign in", "done": page.done }), &values).unwrap();
        for part in
            ["You are not signed in: &lt;b&gt;.", "You are signed out.", "I am signed in already", "type=\"password\""]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("<script>") && text.contains("/ui/runs?q=a&amp;state=&quot;"), "{text}");
    }
}
