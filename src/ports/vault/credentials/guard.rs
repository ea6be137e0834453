//! A document in the clear for one exchange, and what keeps it from coming back.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use url::Url;
use zeroize::Zeroizing;

use crate::base::redact::{JointRedaction, Redactor, secrets_of};
use crate::base::secret::REDACTED;
use crate::ports::egress::{EgressError, Response};
use crate::ports::vault::credentials::secret_document::{READ_IN_PLACE, SecretDocument};
use crate::ports::vault::credentials::secret_reader::SecretReader;
use crate::ports::vault::credentials::secret_set::TooManySecrets;
use crate::ports::vault::credentials::{FetchError, UsedSecrets};

/// Takes the secrets of an exchange, and those that its run has used before, out of what comes back.
pub struct SecretGuard {
    reader: SecretReader,
}

impl SecretGuard {
    /// Of a request that has not been sent, and carries nothing.
    pub fn of_nothing() -> SecretGuard {
        SecretGuard { reader: SecretReader::of_nothing() }
    }

    /// `parts` is what of the documents was put into the request, however short. It is known from now on, as the
    /// documents are.
    ///
    /// # Errors
    /// With these the run would have more secrets than it may. Nothing more is known than before.
    pub async fn of(
        parts: &[Zeroizing<String>],
        documents: &[&SecretDocument],
        used_secrets: &UsedSecrets,
    ) -> Result<SecretGuard, TooManySecrets> {
        used_secrets.learn(parts, documents.iter().map(|document| secrets_of(document.value())))?;
        Ok(SecretGuard::for_secrets(used_secrets).await.unwrap_or_else(SecretGuard::of_nothing))
    }

    /// Of a request without a credential; `None` where there is nothing to look for.
    pub async fn for_secrets(used_secrets: &UsedSecrets) -> Option<SecretGuard> {
        used_secrets.reader().await.map(|reader| SecretGuard { reader })
    }

    /// Whether there is something in a text that is known, or may be.
    pub async fn finds(&self, text: &str) -> bool {
        self.reader.finds(text).await
    }

    /// `url` is that of the request without the credential.
    pub async fn response(&self, response: Response, url: &str) -> Response {
        let Response { status, headers, body, url: sent } = response;
        let parts = ResponseParts { url: url.to_owned(), headers, body };
        let clean = match parts.clean_in_place(&self.reader.redactor) {
            Some(clean) => clean,
            // where it can't be read, nothing of it is shown
            None => self
                .reader
                .read_off_thread(move |redactor| parts.clean(redactor))
                .await
                .unwrap_or_else(ResponseParts::hidden),
        };
        Response { status, headers: clean.headers, body: clean.body, url: shown_url(&clean.url, sent) }
    }

    /// The error of a request, without secrets.
    pub fn error(&self, error: EgressError) -> FetchError {
        let clean = |why: String| self.reader.redactor.in_place().text(&why).into_owned();
        FetchError::Egress(match error {
            EgressError::Denied { why } => EgressError::Denied { why: clean(why) },
            EgressError::Invalid { why } => EgressError::Invalid { why: clean(why) },
            EgressError::Connect { why } => EgressError::Connect { why: clean(why) },
            EgressError::Broken { why } => EgressError::Broken { why: clean(why) },
            other => other,
        })
    }
}

/// The parts of an answer that another side has written.
struct ResponseParts {
    url: String,
    headers: HeaderMap,
    body: Bytes,
}

impl ResponseParts {
    fn hidden() -> ResponseParts {
        let body = Bytes::from_static(REDACTED.as_bytes());
        ResponseParts { url: String::new(), headers: HeaderMap::new(), body }
    }

    fn length(&self) -> usize {
        let of_headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.url.len() + self.body.len() + of_headers.sum::<usize>()
    }

    /// `None`: that takes too long.
    fn clean_in_place(&self, redactor: &Redactor) -> Option<ResponseParts> {
        if self.length() > READ_IN_PLACE {
            return None;
        }
        let mut reading = redactor.in_place();
        let url = reading.text(&self.url).into_owned();
        let headers = clean_headers(&mut reading, &self.headers);
        let body = clean_body(&mut reading, &self.body);
        (!reading.is_exhausted()).then_some(ResponseParts { url, headers, body })
    }

    /// The headers have their steps together: there may be many.
    fn clean(&self, redactor: &Redactor) -> ResponseParts {
        let mut reading = redactor.together();
        let url = reading.text(&self.url).into_owned();
        let headers = clean_headers(&mut reading, &self.headers);
        ResponseParts { url, headers, body: clean_body(&mut redactor.together(), &self.body) }
    }
}

fn clean_headers(reading: &mut JointRedaction<'_>, headers: &HeaderMap) -> HeaderMap {
    let mut clean = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let value = match reading.bytes(value.as_bytes()) {
            Cow::Borrowed(_) => Some(value.clone()),
            Cow::Owned(bytes) => HeaderValue::from_bytes(&bytes).ok(),
        };
        if let Some(value) = value.filter(|_| !reading.contains_secret(name.as_str().as_bytes())) {
            clean.append(name.clone(), value);
        }
    }
    clean
}

fn clean_body(reading: &mut JointRedaction<'_>, body: &Bytes) -> Bytes {
    match reading.bytes(body) {
        Cow::Owned(clean) => clean.into(),
        Cow::Borrowed(_) => body.clone(),
    }
}

/// The address as it was cleaned; where that is none, the place that was asked.
fn shown_url(clean: &str, mut sent: Url) -> Url {
    Url::parse(clean).unwrap_or_else(|_| {
        sent.set_path("");
        sent.set_query(None);
        sent
    })
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::HeaderName;

    use super::*;
    use crate::base::compute::Compute;

    fn answer(headers: HeaderMap, body: &str) -> Response {
        let url = Url::parse("https://api.example.org/sent").unwrap();
        Response { status: StatusCode::OK, headers, body: Bytes::from(body.to_owned()), url }
    }

    #[tokio::test]
    async fn headers_that_are_made_to_take_long_have_their_steps_together_and_the_body_has_its_own() {
        let leaves: Vec<String> = (0..200)
            .map(|n: usize| (0..60).map(|bit| if (n * 7919) >> (bit % 16) & 1 == 0 { '+' } else { ' ' }).collect())
            .map(|leaf: String| format!("+{leaf}x"))
            .collect();
        let used_secrets = UsedSecrets::default();
        used_secrets.add(leaves.iter().map(String::as_str));
        let guard = SecretGuard::for_secrets(&used_secrets).await.unwrap();
        let mean = HeaderValue::try_from("+".repeat(40)).unwrap();
        let headers = (0..10).map(|n| (HeaderName::try_from(format!("x-{n}")).unwrap(), mean.clone())).collect();
        let clean = guard.response(answer(headers, "an ordinary body"), "https://api.example.org/asked").await;
        assert!((1..10).contains(&clean.headers.len()), "{:?}", clean.headers);
        assert_eq!((&clean.body[..], clean.url.path()), (&b"an ordinary body"[..], "/asked"));
    }

    #[tokio::test]
    async fn long_answers_are_read_in_the_turn_of_their_tenant_and_short_ones_in_place() {
        let used_secrets = UsedSecrets::default();
        used_secrets.add(["one-secret"]);
        used_secrets.read_in_turn(&Compute::new(1), "acme");
        let guard = SecretGuard::for_secrets(&used_secrets).await.unwrap();
        for most in [10, READ_IN_PLACE, READ_IN_PLACE + 1, 20 * READ_IN_PLACE] {
            let padding = "-".repeat(most);
            let body = format!("{padding}one-secret");
            let headers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("one-secret"))]);
            let clean = guard.response(answer(headers, &body), "https://api.example.org/one-secret").await;
            assert_eq!(clean.body, format!("{padding}{REDACTED}"));
            assert_eq!(clean.headers[http::header::ETAG], REDACTED);
            assert!(!clean.url.as_str().contains("one-secret"), "{}", clean.url);
            assert!(guard.reader.finds(&body).await && !guard.reader.finds(&padding).await);
            assert_eq!(guard.reader.text(body).await, format!("{padding}{REDACTED}"));
        }
    }
}
