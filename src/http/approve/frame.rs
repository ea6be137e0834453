//! Parts that every page shares: the frame around it, its headers, and the short pages that only show a sentence.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::channel::templates::phrases::Phrases;
use crate::http::approve::html::Html;
use crate::http::approve::style::{STYLE, policy};

/// A whole page around `body`, which is markup already, in these words.
pub fn page(words: &Phrases, status: StatusCode, title: &str, body: Html) -> Response {
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"").exact(words.lang()).raw("\" dir=\"").exact(words.get("direction"));
    html.raw("\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.raw(
        "<meta name=\"robots\" content=\"noindex, nofollow\">\n<meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    html.raw("<title>").text(title).raw("</title>\n<style>").raw(STYLE);
    html.raw("</style>\n</head>\n<body>\n<main>\n");
    let mut text = html.into_string();
    text.push_str(&body.into_string());
    text.push_str("</main>\n</body>\n</html>\n");
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
    let mut html = Html::default();
    html.raw("<h1>").text(title).raw("</h1>\n<div class=\"card\" role=\"status\">\n");
    for sentence in sentences {
        html.raw("<p>").text(sentence).raw("</p>\n");
    }
    html.raw("</div>\n");
    page(words, status, title, html)
}

/// Nobody knows this link, or not any more. The same words for both: nothing is learnt from them.
pub fn unknown() -> Response {
    message(
        StatusCode::NOT_FOUND,
        "This link is not known",
        &[
            "It may be cut off or mistyped, or it is so old that it was forgotten.",
            "Open it again from the message that you got. Nothing was decided by opening it.",
        ],
    )
}

/// The page that tells that the link's question was asked anew, because something has changed meanwhile.
pub fn replaced(words: &Phrases) -> Response {
    let sentences = [words.get("replaced_why"), words.get("replaced_link")];
    message_in(words, StatusCode::GONE, words.get("replaced"), &sentences)
}

/// Headers of everything that is answered here: not kept, not told on, not framed, not indexed.
pub fn guard(response: &mut Response) {
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
    if let Ok(policy) = HeaderValue::from_str(&policy()) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
}
