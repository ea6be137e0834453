//! A form that a signed-in person has sent.
//!
//! It is taken only from a page of ours: by its origin, and by the token of the session that each form carries.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::{Map, Value};

use crate::base::compute::steps_to_parse;
use crate::http::HttpState;
use crate::http::error::ApiError;
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
/// Most fields of a form: that of a page of approvals has the most, and has no room for so many.
const MOST_FIELDS: usize = 10_000;

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
        let refused = |error: ApiError| UiError::from(error).into_response();
        let body = JsonBody::from_request(Request::from_parts(parts, body), state).await.map_err(refused)?;
        let body = body.in_name_of(visit.caller.computes_for());
        let fields = body.read_by(|sent| read(sent.bytes())).await.map_err(refused)?;
        let form = UiForm { visit, fields };
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

    /// Those of these fields that are not empty, as a request of the API has them.
    pub fn filled(&self, names: &[&str]) -> Map<String, Value> {
        names.iter().filter_map(|name| Some(((*name).to_owned(), Value::from(self.get(name)?)))).collect()
    }

    /// The JSON that was typed into a field, or where it is none and why; `None`: nothing was typed.
    ///
    /// # Errors
    /// It can't be read now.
    pub async fn json(&self, name: &str) -> Result<Option<Result<Value, String>>, UiError> {
        let Some(text) = self.get(name).filter(|text| !text.trim().is_empty()) else { return Ok(None) };
        let (steps, text) = (steps_to_parse(text.len()), text.to_owned());
        let work = move || serde_json::from_str(&text).map_err(|error| error.to_string());
        Ok(Some(self.visit.compute(steps, work).await?))
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

/// The fields of a form, in their order.
fn read(sent: &[u8]) -> Result<Vec<(String, String)>, ApiError> {
    let fields = url::form_urlencoded::parse(sent).take(MOST_FIELDS + 1);
    let fields: Vec<_> = fields.map(|(name, value)| (name.into_owned(), lines(&value))).collect();
    match fields.len() {
        ..=MOST_FIELDS => Ok(fields),
        _ => Err(ApiError::invalid("", format!("a form has at most {MOST_FIELDS} fields"))),
    }
}

/// Line ends as forms have them become those of texts.
fn lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_is_taken_with_its_most_fields_and_refused_with_one_more() {
        let sent = |count: usize| "a=b&".repeat(count);
        assert_eq!(read(sent(MOST_FIELDS).as_bytes()).map(|fields| fields.len()).ok(), Some(MOST_FIELDS));
        assert!(matches!(read(sent(MOST_FIELDS + 1).as_bytes()), Err(ApiError::Invalid(_))));
        assert_eq!(read(b"a=1%0D%0A2&a=").ok(), Some(vec![("a".into(), "1\n2".into()), ("a".into(), String::new())]));
    }
}
