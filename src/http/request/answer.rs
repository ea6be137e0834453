//! The JSON of an answer: how it is written, and on which thread.
//!
//! A short answer is written where it is made. A long one is left to [`write_long`], which every request passes last:
//! it is written on a computing thread, in the turn of the request's caller, and what it was made of is dropped there.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::base::compute::JSON_IN_PLACE;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::ComputedFor;

/// An answer that is written as JSON.
#[derive(Debug)]
pub struct Json<T>(pub T);

/// Writes a long answer.
type AnswerWriter = Box<dyn FnOnce() -> serde_json::Result<Vec<u8>> + Send>;

/// The long answer of a response whose body is still to be written. All clones are the one answer.
#[derive(Clone)]
struct UnwrittenAnswer(Arc<Mutex<Option<AnswerWriter>>>);

/// Text of an answer, up to a number of bytes.
struct BoundedText {
    bytes: Vec<u8>,
    most: usize,
}

impl<T: Serialize + Send + 'static> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let Json(answer) = self;
        match written(&answer, JSON_IN_PLACE) {
            Ok(text) => with_body(Body::from(text)),
            Err(error) if error.is_io() => unwritten(Box::new(move || written(&answer, usize::MAX))),
            Err(error) => unwritable(&error).into_response(),
        }
    }
}

/// The answer as text. An error of [`serde_json::Error::is_io`] says that it has more bytes than `most`: it has been
/// written so far, and the text that goes beyond that was looked through.
fn written<T: Serialize>(answer: &T, most: usize) -> serde_json::Result<Vec<u8>> {
    let mut text = BoundedText { bytes: Vec::with_capacity(128), most };
    serde_json::to_writer(&mut text, answer)?;
    Ok(text.bytes)
}

impl Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn with_body(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn unwritten(write: AnswerWriter) -> Response {
    let mut response = with_body(Body::empty());
    response.extensions_mut().insert(UnwrittenAnswer(Arc::new(Mutex::new(Some(write)))));
    response
}

fn unwritable(error: &serde_json::Error) -> ApiError {
    ApiError::Internal { log: format!("an answer can't be written as JSON: {error}") }
}

/// The response with its body. A long answer is written now, in the turn of the request's caller.
pub async fn write_long(mut response: Response, state: &HttpState, caller: &ComputedFor) -> Response {
    let answer = response.extensions_mut().remove::<UnwrittenAnswer>();
    let write = answer.and_then(|UnwrittenAnswer(answer)| answer.lock().expect("the lock of an answer").take());
    let Some(write) = write else { return response };
    let text = match state.compute_for(&caller.name(), write).await {
        Ok(text) => text.map_err(|error| unwritable(&error)),
        Err(panicked) => Err(panicked),
    };
    match text {
        Ok(text) => {
            // that of the body that was not there
            response.headers_mut().remove(CONTENT_LENGTH);
            *response.body_mut() = Body::from(text);
            response
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use serde::ser::Error;
    use serde_json::json;

    use super::*;

    #[test]
    fn answer_is_written_up_to_a_number_of_bytes_and_not_one_beyond_it() {
        let text = |bytes: usize| "x".repeat(bytes - 2);
        for bytes in [2, 100, JSON_IN_PLACE] {
            assert_eq!(written(&text(bytes), bytes).unwrap().len(), bytes);
            assert!(written(&text(bytes), bytes - 1).unwrap_err().is_io());
        }
        let numbers: Vec<usize> = (0..JSON_IN_PLACE).collect();
        assert!(written(&numbers, JSON_IN_PLACE).unwrap_err().is_io());
        assert_eq!(written(&numbers, usize::MAX).unwrap(), serde_json::to_vec(&numbers).unwrap());
    }

    #[tokio::test]
    async fn short_answer_has_its_body_and_a_long_one_is_left_to_be_written() {
        let body = async |response: Response| axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let short = Json(json!({ "a": 1 })).into_response();
        assert_eq!(short.headers()[CONTENT_TYPE], "application/json");
        assert!(short.extensions().get::<UnwrittenAnswer>().is_none());
        assert_eq!(body(short).await, r#"{"a":1}"#);
        let long = Json("x".repeat(JSON_IN_PLACE)).into_response();
        assert_eq!(long.headers()[CONTENT_TYPE], "application/json");
        let UnwrittenAnswer(answer) = long.extensions().get::<UnwrittenAnswer>().unwrap().clone();
        assert_eq!(body(long).await, "");
        let write = answer.lock().unwrap().take().unwrap();
        assert_eq!(write().unwrap().len(), JSON_IN_PLACE + 2);
    }

    #[test]
    fn answer_that_is_no_json_is_a_fault_of_ours() {
        struct Unwritable;
        impl Serialize for Unwritable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(S::Error::custom("no"))
            }
        }
        assert_eq!(Json(Unwritable).into_response().status(), 500);
    }
}
