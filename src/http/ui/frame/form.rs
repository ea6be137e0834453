//! A form that a signed-in person has sent.
//!
//! It is taken only from a page of ours: by its origin, and by the token of the session that each form carries.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};

use crate::http::HttpState;
use crate::http::pages::approve::origin::{is_form, is_own};
use crate::http::request::JsonBody;
use crate::http::ui::frame::failure::UiError;
use crate::http::ui::frame::render::secured;
use crate::http::ui::frame::session::is_form_token;
use crate::http::ui::frame::visit::Visit;

/// The field with the token of the session.
const TOKEN: &str = "form_token";
/// The field with the key by which a form takes effect once.
const KEY: &str = "key";

/// The fields of a form, and who has sent it.
pub struct UiForm {
    /// The request, in the sender's name.
    pub visit: Visit,
    fields: Vec<(String, String)>,
}

impl FromRequest<HttpState> for UiForm {
    type Rejection = Response;

    async fn from_request(request: Request, state: &HttpState) -> Result<UiForm, Response> {
        let (mut parts, body) = request.into_parts();
        if !is_own(&parts.headers, &state.settings.public_url()) || !is_form(&parts.headers) {
            return Err(foreign().into_response());
        }
        let visit =
            <Visit as axum::extract::FromRequestParts<HttpState>>::from_request_parts(&mut parts, state).await?;
        let body = JsonBody::from_request(Request::from_parts(parts, body), state).await;
        let body = body.map_err(|error| UiError::from(error).into_response())?;
        let fields = url::form_urlencoded::parse(body.bytes()).map(|(name, value)| (name.into_owned(), lines(&value)));
        let form = UiForm { visit, fields: fields.collect() };
        match form.get(TOKEN).is_some_and(|token| is_form_token(form.visit.session(), token)) {
            true => Ok(form),
            false => Err(foreign().into_response()),
        }
    }
}

/// The refusal of a form that is not from a page of this session.
pub fn foreign() -> UiError {
    let sentence = "It was not sent by a page of this session. Open the page again and send it from there.";
    UiError::new(StatusCode::FORBIDDEN, "This form was not taken", sentence)
}

impl UiForm {
    /// The text of a field; an empty one is none.
    pub fn get(&self, name: &str) -> Option<&str> {
        let named = self.fields.iter().find(|(given, value)| given == name && !value.is_empty());
        named.map(|(_, value)| value.as_str())
    }

    /// The texts of a field that may be there several times, without empty ones.
    pub fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        let named = self.fields.iter().filter(move |(given, value)| given == name && !value.is_empty());
        named.map(|(_, value)| value.as_str())
    }

    /// The text of a field; empty where it is not there.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// The fields of a page, as they were sent: without those of the frame.
    pub fn own_fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.fields.iter().filter(|(name, _)| name != TOKEN && name != KEY);
        own.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// By which the form takes effect once, however often it is sent.
    pub fn key(&self) -> Option<&str> {
        self.get(KEY)
    }

    /// Leads to a page that says what was done; `word` is one of [`crate::http::ui::frame::navigation::done`].
    pub fn done(&self, href: &str, word: &'static str) -> Response {
        let joint = if href.contains('?') { '&' } else { '?' };
        secured(Redirect::to(&format!("{href}{joint}done={word}")).into_response())
    }
}

/// Line ends as forms have them become those of texts.
fn lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}
