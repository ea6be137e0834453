//! Descriptions of answers. OpenAPI wants one of each, and leaves it to us whether there is one: where a handler has
//! none of its own, it is what the status means.

use utoipa::openapi::path::Operation;
use utoipa::openapi::{RefOr, Response};

use crate::http::openapi::streams::EVENT_STREAM;

/// Describes the answers that their handler does not.
pub fn describe(operation: &mut Operation, is_read: bool) {
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = meaning(status, is_read, response).into();
        }
    }
}

/// Nothing for a status that the handler has to explain.
fn meaning(status: &str, is_read: bool, response: &Response) -> &'static str {
    match status {
        "200" if response.content.contains_key(EVENT_STREAM) => "Server-sent events, until one side ends the stream",
        "200" if is_read => "As it is now",
        "200" => "It is done, and this is how things are now",
        "201" => "It was made",
        "202" => "It is recorded, and goes on after this answer",
        "204" => "It is gone",
        _ => "",
    }
}
