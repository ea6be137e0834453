//! Answers whose body is read as it comes: streams of events that last as long as both sides want.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, StatusCode};
use url::Url;

use crate::ports::egress::fetch::{Hop, check_headers, classify_error, read};
use crate::ports::egress::{Egress, EgressError, EgressInner, EgressRequest};

/// An answer whose body is yet to be read. It has no debug form: its address may hold a credential.
pub struct OpenResponse {
    /// Status of the answer.
    pub status: StatusCode,
    /// Headers of the answer.
    pub headers: HeaderMap,
    /// Where it came from.
    pub url: Url,
    body: reqwest::Response,
}

impl OpenResponse {
    /// The whole body, decompressed.
    ///
    /// # Errors
    /// It is longer than `limit`, or broke off.
    pub async fn read(self, limit: usize) -> Result<Bytes, EgressError> {
        read(self.body, limit).await
    }

    /// Its pieces as they come, decompressed.
    pub fn pieces(self) -> BoxStream<'static, Result<Bytes, EgressError>> {
        self.body.bytes_stream().map_err(|error| classify_error(&error)).boxed()
    }
}

impl Egress {
    /// Sends the request to an address that has been checked, and answers once the headers have come. The request's
    /// time is for that; its redirects are not followed, and its `max_bytes` is the reader's to keep.
    pub async fn open(&self, request: EgressRequest) -> Result<OpenResponse, EgressError> {
        let after = request.timeout;
        tokio::time::timeout(after, self.inner.open(request)).await.unwrap_or(Err(EgressError::Timeout { after }))
    }
}

impl EgressInner {
    async fn open(&self, request: EgressRequest) -> Result<OpenResponse, EgressError> {
        check_headers(&request.headers)?;
        let target = self.rules.target(&request.url)?;
        let hop = Hop { method: request.method, headers: request.headers, body: request.body };
        let mut body = self.send(&hop, &target).await?;
        let (status, headers) = (body.status(), std::mem::take(body.headers_mut()));
        Ok(OpenResponse { status, headers, url: target.url, body })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderValue, Method, header};
    use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

    use super::*;
    use crate::ports::egress::Settings;

    fn egress(allow: &str) -> Egress {
        Egress::new(&Settings { allow: vec![allow.into()], ..Settings::default() }).unwrap()
    }

    async fn answering(answer: ResponseTemplate) -> MockServer {
        let server = MockServer::start().await;
        Mock::given(matchers::any()).respond_with(answer).mount(&server).await;
        server
    }

    async fn opened(server: &MockServer) -> OpenResponse {
        egress("127.0.0.1:*").open(EgressRequest::new(Method::GET, server.uri())).await.unwrap()
    }

    #[tokio::test]
    async fn answer_is_there_with_its_headers_and_its_body_is_read_up_to_its_most() {
        let answer = ResponseTemplate::new(200).insert_header("x-kind", "short").set_body_string("12345");
        let server = answering(answer).await;
        let response = opened(&server).await;
        assert_eq!(response.status, StatusCode::OK);
        assert_eq!(response.headers["x-kind"], "short");
        assert_eq!(response.read(5).await.unwrap(), "12345");
        let too_large = EgressError::TooLarge { status: StatusCode::OK, limit: 4 };
        assert_eq!(opened(&server).await.read(4).await, Err(too_large));
        let pieces: Vec<Bytes> = opened(&server).await.pieces().try_collect().await.unwrap();
        assert_eq!(pieces.concat(), b"12345");
    }

    #[tokio::test]
    async fn redirect_is_the_answer() {
        let moved = ResponseTemplate::new(302).insert_header("location", "http://169.254.169.254/");
        let response = opened(&answering(moved).await).await;
        assert_eq!((response.status, response.url.host_str()), (StatusCode::FOUND, Some("127.0.0.1")));
    }

    #[tokio::test]
    async fn request_is_judged_as_any_other_and_its_time_is_for_the_headers() {
        let server = answering(ResponseTemplate::new(200).set_delay(Duration::from_secs(600))).await;
        let request = EgressRequest::new(Method::GET, server.uri());
        let denied = egress("10.0.0.1").open(request.clone()).await.err().unwrap();
        assert!(matches!(denied, EgressError::Denied { .. }), "{denied}");
        let mut framed = request.clone();
        framed.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        let invalid = egress("127.0.0.1:*").open(framed).await.err().unwrap();
        assert!(matches!(invalid, EgressError::Invalid { .. }), "{invalid}");
        let after = Duration::from_millis(1);
        let request = EgressRequest { timeout: after, ..request };
        assert_eq!(egress("127.0.0.1:*").open(request).await.err(), Some(EgressError::Timeout { after }));
    }
}
