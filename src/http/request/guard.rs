//! Layers of every request: an id, a time limit, a net under panics, the writing of a long answer, and the count of
//! answers.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tokio::time::timeout;
use tracing::Instrument;

use crate::base::id;
use crate::http::HttpState;
use crate::http::api::tasks::import;
use crate::http::error::ApiError;
use crate::http::request::answer::write_long;
use crate::http::request::auth::ComputedFor;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Runs a request under the guard.
pub async fn watch(State(state): State<HttpState>, mut request: Request, next: Next) -> Response {
    let request_id = id::new_id(state.clock.now());
    let method = method_label(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or(String::new(), |route| route.as_str().to_owned());
    let span = tracing::info_span!("request", %request_id, method, route);
    let begun = state.clock.elapsed();
    let limit = match route == import::PATH {
        true => state.limits.import_time,
        false => state.limits.request_time,
    };
    let caller = ComputedFor::default();
    request.extensions_mut().insert(caller.clone());
    let answered = async { write_long(next.run(request).await, &state, &caller).await };
    let mut response = catch_panic(timeout(limit, answered)).instrument(span.clone()).await;
    let took = state.clock.elapsed().saturating_sub(begun);
    let status = response.status().as_u16();
    state.metrics.record_request(method, &route, status, took);
    span.in_scope(|| tracing::debug!(status, took_ms = took.as_millis(), "answered"));
    add_headers(&mut response, &request_id.to_string());
    response
}

/// The answer, or a problem in its place: after a panic nothing is told, after the time limit to come again.
async fn catch_panic(answer: impl Future<Output = Result<Response, tokio::time::error::Elapsed>>) -> Response {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(_elapsed)) => {
            let detail = "the request took too long; it may have taken effect";
            ApiError::Unavailable { detail, retry_after: Duration::from_secs(5) }.into_response()
        }
        Err(panic) => ApiError::Internal { log: format!("panic: {}", panic_message(panic.as_ref())) }.into_response(),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Headers of every answer. No cache keeps an answer to one token.
fn add_headers(response: &mut Response, request_id: &str) {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// The method as a label: of a closed set, whatever was sent.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_is_answered_without_its_words() {
        let response = catch_panic(async { panic!("secret {}", 7) }).await;
        assert_eq!(response.status(), 500);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        assert!(!String::from_utf8_lossy(&body).contains("secret"));
    }

    #[tokio::test]
    async fn slow_request_is_ended_and_may_be_repeated() {
        let response = catch_panic(timeout(Duration::ZERO, std::future::pending())).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::RETRY_AFTER]),
            (503, &"5".parse().unwrap())
        );
    }

    #[test]
    fn made_up_method_makes_no_label_of_its_own() {
        assert_eq!(method_label(&Method::from_bytes(b"BREW").unwrap()), "other");
    }
}
