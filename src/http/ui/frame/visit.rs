//! A request of a signed-in person, and the API in their name.

use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::base::compute::steps_to_write;
use crate::base::id::{Scope, new_id};
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::in_process::{CallError, InProcessApi};
use crate::http::request::AuthenticatedCaller;
use crate::http::ui::frame::failure::{UiError, UiResult};
use crate::http::ui::frame::navigation::{self, sections};
use crate::http::ui::frame::render::{render, secured};
use crate::http::ui::frame::session::{self, DashboardSession};
use crate::store::StoreError;

/// Steps to show a step of JSON: a template has markup around each value.
const STEPS_TO_SHOW: u64 = 4;
/// The header in which a browser says where its last stream broke off.
const LAST_EVENT_ID: &str = "last-event-id";

/// A request of a signed-in person.
pub struct Visit {
    /// The service.
    pub state: HttpState,
    /// The reader, as their token has it.
    pub caller: AuthenticatedCaller,
    /// The instant of the request.
    pub now: DateTime<Utc>,
    api: InProcessApi,
    session: DashboardSession,
    path: String,
    /// The parameters of the address, without empty ones.
    query: Vec<(String, String)>,
}

/// Someone who is not signed in is led to the page on which one signs in.
impl FromRequestParts<HttpState> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Visit, Response> {
        match found(parts, state).await? {
            Some(visit) => Ok(visit),
            None => Err(secured(Redirect::to(&session::login_href(parts)).into_response())),
        }
    }
}

/// For pages that can be read by others, too.
impl OptionalFromRequestParts<HttpState> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Option<Visit>, Response> {
        found(parts, state).await
    }
}

async fn found(parts: &mut Parts, state: &HttpState) -> Result<Option<Visit>, Response> {
    let api = parts.extensions.get::<InProcessApi>().cloned();
    let Some(api) = api else { return Err(UiError::internal("the dashboard has no API").into_response()) };
    let session = session::signed_in(parts, state).await.map_err(|error| UiError::from(error).into_response())?;
    let Some(session) = session else { return Ok(None) };
    let pairs = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned();
    Ok(Some(Visit {
        state: state.clone(),
        caller: session.caller.clone(),
        now: state.clock.now(),
        api,
        session,
        path: parts.uri.path().to_owned(),
        query: pairs.filter(|(_, value)| !value.is_empty()).collect(),
    }))
}

impl Visit {
    /// Reads from the API: `visit.get(&["v1", "tasks", &id], &[])`.
    ///
    /// # Errors
    /// The problem with which the API answers; so has each of these.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, CallError> {
        self.ask(Method::GET, path, query, None, None).await
    }

    /// Makes or does something. With a key (see [`crate::http::ui::frame::form::UiForm::key`]) it happens once.
    pub async fn post(&self, path: &[&str], body: Value, key: Option<&str>) -> Result<Value, CallError> {
        self.ask(Method::POST, path, &[], Some(body), key).await
    }

    /// Changes something.
    pub async fn patch(&self, path: &[&str], body: Value) -> Result<Value, CallError> {
        self.ask(Method::PATCH, path, &[], Some(body), None).await
    }

    /// Sets something.
    pub async fn put(&self, path: &[&str], body: Value) -> Result<Value, CallError> {
        self.ask(Method::PUT, path, &[], Some(body), None).await
    }

    /// Removes something.
    pub async fn delete(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, CallError> {
        self.ask(Method::DELETE, path, query, None, None).await
    }

    /// Tries a change out: of operations that have `dry_run`. Answers what would come of it, and changes nothing.
    pub async fn try_out(&self, method: Method, path: &[&str], body: Value) -> Result<Value, CallError> {
        self.ask(method, path, &[("dry_run", "true".to_owned())], Some(body), None).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Value>,
        key: Option<&str>,
    ) -> Result<Value, CallError> {
        self.api.call_as(&self.caller, (method, &address(path, query)), body, key).await
    }

    /// A part of a page that has several: `{"answer": …}`, or `{"problem": "…"}` where the reader may not see it or it
    /// can't be read now. The others are shown all the same.
    pub async fn part(&self, path: &[&str], query: &[(&str, String)]) -> Value {
        match self.get(path, query).await {
            Ok(answer) => json!({ "answer": answer }),
            Err(error) => json!({ "problem": UiError::from(error).sentence() }),
        }
    }

    /// A stream of the API, as it is: from its beginning, or where these headers say that it broke off. It ends soon
    /// after the session has, as it does with the token.
    ///
    /// # Errors
    /// The address can't be asked.
    pub async fn stream(&self, path: &[&str], headers: &HeaderMap) -> Result<Response, UiError> {
        let last_event_id = headers.get(LAST_EVENT_ID).cloned();
        let answer = self.api.stream_as(&self.caller, &address(path, &[]), last_event_id).await?;
        // in a task of its own: a reader that stops reading would stop a look halfway through
        let ended = AbortOnDropHandle::new(tokio::spawn(self.session.clone().ended(self.state.clone())));
        Ok(answer.map(|body| Body::from_stream(body.into_data_stream().take_until(ended))))
    }

    /// Whether the session and its token are good even now: for answers that go on for long.
    ///
    /// # Errors
    /// The database is away.
    pub async fn is_still_good(&self) -> Result<bool, StoreError> {
        Ok(self.session.is_still_open(&self.state).await? && self.caller.is_still_known(&self.state).await?)
    }

    /// The result of work that takes so many steps at most. Long work is done in the reader's turn.
    ///
    /// # Errors
    /// The work panicked.
    pub async fn compute<T: Send + 'static>(
        &self,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, UiError> {
        let done = self.state.compute.run_if_costly(self.caller.computes_for(), steps, work).await;
        done.map_err(|panicked| UiError::internal(&panicked.to_string()))
    }

    /// A parameter of the address; an empty one is none.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(named, _)| named == name).map(|(_, value)| value.as_str())
    }

    /// Whether the reader's token permits this.
    pub fn holds(&self, permission: Permission) -> bool {
        self.caller.holds(permission)
    }

    /// Whether the reader sees all tenants, and so names one where they make something.
    pub fn sees_all(&self) -> bool {
        matches!(self.caller.scope, Scope::Every)
    }

    /// Whether the reader is the operator: may do everything, for all tenants.
    pub fn is_operator(&self) -> bool {
        self.caller.is_operator().is_ok()
    }

    /// The text that each form of this session carries.
    pub fn form_token(&self) -> &str {
        &self.session.form_token
    }

    /// The session of the reader.
    pub fn session(&self) -> &DashboardSession {
        &self.session
    }

    /// A page: its template shows this value as `page`.
    ///
    /// # Errors
    /// The template failed.
    pub async fn show(&self, template: &'static str, title: impl Into<String>, page: Value) -> UiResult {
        self.show_as(StatusCode::OK, template, title, page).await
    }

    /// A page with another status: a form with its faults.
    ///
    /// # Errors
    /// The template failed.
    pub async fn show_as(
        &self,
        status: StatusCode,
        template: &'static str,
        title: impl Into<String>,
        page: Value,
    ) -> UiResult {
        let frame = self.frame(title.into());
        let steps = steps_to_write(&page).saturating_mul(STEPS_TO_SHOW);
        let text = self.compute(steps, move || render(template, &frame, &page)).await??;
        Ok(secured((status, text).into_response()))
    }

    /// The values that the frame of a page shows.
    fn frame(&self, title: String) -> Value {
        let done = self.query("done").and_then(navigation::done);
        json!({
            "title": title,
            "sections": sections(&self.path),
            "reader": self.caller.name(),
            "tenant": self.caller.scope.tenant(),
            "sees_all": self.sees_all(),
            "is_operator": self.is_operator(),
            "form_token": self.form_token(),
            "key": new_id(self.now),
            "done": done,
            "path": self.path,
            "now": self.now,
        })
    }
}
