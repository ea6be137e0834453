//! Pages for people: one frame around all of them, their headers, and the short pages that only say a sentence.
//!
//! All markup stands in the templates beside this file; a page is a plain value that its template shows. No other file
//! makes HTML.

pub mod approve;
pub mod messages;
pub mod oauth;
mod render;
mod style;

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::http::error::ApiError;
use crate::http::pages::render::render;
pub(in crate::http) use crate::http::pages::render::template_words;
use crate::http::pages::style::policy;
use crate::ports::channel::templates::phrases::Phrases;
use crate::store::StoreError;

/// The page in the place of one whose template fails.
const FAILED: &str = include_str!("pages/failed.html");

/// The content of a page, which a template shows as `page`.
pub trait View: Serialize {
    /// Name of the template among those beside this file.
    const TEMPLATE: &'static str;
}

/// A line of a list of names and values.
#[derive(Debug, Serialize)]
pub struct PageRow<'a> {
    /// Name of the phrase that names it.
    pub name: &'static str,
    /// The value as it is shown.
    pub value: Cow<'a, str>,
}

/// Sentences under a heading.
#[derive(Debug, Serialize)]
struct PageNotice<'a> {
    sentences: &'a [&'a str],
}

impl View for PageNotice<'_> {
    const TEMPLATE: &'static str = "notice.html";
}

/// A whole page in these words.
pub fn page<V: View>(words: &Phrases, status: StatusCode, title: &str, view: &V) -> Response {
    let (status, text) = match render(V::TEMPLATE, words, title, view) {
        Ok(text) => (status, text),
        Err(error) => {
            let (kind, name, line) = (error.kind(), error.name(), error.line());
            tracing::error!(template = V::TEMPLATE, %kind, name, line, "a page can't be shown");
            (StatusCode::INTERNAL_SERVER_ERROR, FAILED.to_owned())
        }
    };
    let mut response = (status, Body::from(text)).into_response();
    guard(&mut response);
    response
}

/// A page that says one thing, in English, because nobody is known to read it.
pub fn message(status: StatusCode, title: &str, sentences: &[&str]) -> Response {
    message_in(Phrases::english(), status, title, sentences)
}

/// A page that says one thing in these words.
pub fn message_in(words: &Phrases, status: StatusCode, title: &str, sentences: &[&str]) -> Response {
    page(words, status, title, &PageNotice { sentences })
}

/// The page for a store that is away.
pub fn unavailable(error: StoreError) -> Response {
    failed(ApiError::from(error))
}

/// A fault as a page; what it is about was logged where it became a problem.
pub fn failed(error: ApiError) -> Response {
    let problem = error.into_problem();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    message(status, "This can’t be done now", &[&problem.title, "Try it again in a moment."])
}

/// The page for somebody who has opened too many links that are not known.
pub fn too_many(seconds: u64) -> Response {
    let sentences = ["Too many links that are not known were opened from your address.", "Try it again in a minute."];
    let mut response = message(StatusCode::TOO_MANY_REQUESTS, "Please wait", &sentences);
    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    response
}

/// Sets the headers of everything that is answered to people.
pub fn guard(response: &mut Response) {
    guard_by(response, &policy());
}

/// Sets the headers of a page with this Content-Security-Policy: not kept, not told on, not framed, not indexed.
pub(in crate::http) fn guard_by(response: &mut Response, policy: &str) {
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 9] = [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("x-robots-tag"), "noindex, nofollow, noarchive"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(policy) = HeaderValue::from_str(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::http::pages::style::STYLE;

    /// A text that would be markup, or a part of a template, if nothing kept it from that.
    const HOSTILE: &str = "zq</title><script>\"'&amp;{{ words.no }}{% if %}{at}";
    const HARMLESS: &str = "zq text";

    /// The text of a page, without its style.
    pub fn text_of(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).now_or_never().unwrap().unwrap();
        String::from_utf8(body.to_vec()).unwrap().replace(STYLE, "STYLE")
    }

    /// Asserts that a hostile text changes nothing of a page but the places where it is shown, escaped, as a harmless
    /// one is.
    pub fn assert_inert(page: impl Fn(&str) -> String) {
        // hashes of the text, and the filling of a text that is cut
        let derived = regex::Regex::new("[0-9a-f]{64}|x{9,}").unwrap();
        let page = |text| derived.replace_all(&page(text), "DERIVED").into_owned();
        let escaped = |text: &str| {
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            text.replace('"', "&quot;").replace('\'', "&#39;")
        };
        let (hostile, harmless) = (page(HOSTILE), page(HARMLESS));
        let (plain, as_json) = (escaped(HOSTILE), escaped(&HOSTILE.replace('"', "\\\"")));
        assert!(hostile.matches(&plain).count() > 10, "{hostile}");
        assert!(harmless.contains(HARMLESS));
        assert_eq!(hostile.replace(&plain, HARMLESS).replace(&as_json, HARMLESS), harmless);
    }

    #[derive(Serialize)]
    struct BrokenPage;

    impl View for BrokenPage {
        const TEMPLATE: &'static str = "connect.html";
    }

    #[test]
    fn page_whose_template_fails_is_an_error_with_the_headers_of_every_page() {
        let response = page(Phrases::english(), StatusCode::OK, "x", &BrokenPage);
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(response.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        assert_eq!(text_of(response), FAILED);
    }

    #[test]
    fn no_sentence_of_a_short_page_is_markup() {
        assert_inert(|text| text_of(message(StatusCode::OK, text, &[text; 9])));
    }
}
