//! A document in the clear for one exchange, and what keeps it from coming back.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use url::Url;
use zeroize::Zeroizing;

use crate::base::redact::{Redactor, secrets_of};
use crate::base::secret::REDACTED;
use crate::ports::egress::{EgressError, Response};
use crate::ports::vault::credentials::secret_document::{READ_ASIDE, SecretDocument};
use crate::ports::vault::credentials::{FetchError, UsedSecrets};

/// Takes the secrets of an exchange, and those that its run has used before, out of what comes back.
pub struct SecretGuard {
    redactor: Arc<Redactor>,
}

impl SecretGuard {
    /// `parts` is what of the document was put into the request, however short; it is known from now on.
    pub fn of(parts: &[Zeroizing<String>], documents: &[&SecretDocument], known: &UsedSecrets) -> SecretGuard {
        let parts = parts.iter().map(|part| part.as_str());
        known.add(parts.chain(documents.iter().flat_map(|document| secrets_of(document.value()))));
        SecretGuard::for_secrets(known).unwrap_or_else(|| SecretGuard { redactor: Arc::new(Redactor::new([])) })
    }

    /// Of a request without a credential; `None` where there is nothing to look for.
    pub fn for_secrets(known: &UsedSecrets) -> Option<SecretGuard> {
        known.redactor().map(|redactor| SecretGuard { redactor })
    }

    pub fn finds(&self, text: &str) -> bool {
        self.redactor.contains_secret(text.as_bytes())
    }

    /// `url` is that of the request without the credential.
    pub async fn response(&self, response: Response, url: &str) -> Response {
        let Response { status, headers, body, url: sent } = response;
        let redactor = self.redactor.clone();
        let body = match body.len() {
            ..=READ_ASIDE => redact_body(&redactor, body),
            // where it can't be read, nothing of it is shown
            _ => tokio::task::spawn_blocking(move || redact_body(&redactor, body))
                .await
                .unwrap_or_else(|_| Bytes::from_static(REDACTED.as_bytes())),
        };
        Response { status, headers: self.headers(headers), body, url: self.url(url, sent) }
    }

    fn headers(&self, headers: HeaderMap) -> HeaderMap {
        let mut clean = HeaderMap::with_capacity(headers.len());
        for (name, value) in &headers {
            let value = match self.redactor.bytes(value.as_bytes()) {
                Cow::Borrowed(_) => Some(value.clone()),
                Cow::Owned(bytes) => HeaderValue::from_bytes(&bytes).ok(),
            };
            if let Some(value) = value.filter(|_| !self.redactor.contains_secret(name.as_str().as_bytes())) {
                clean.append(name.clone(), value);
            }
        }
        clean
    }

    fn url(&self, plain: &str, mut sent: Url) -> Url {
        Url::parse(&self.redactor.text(plain)).unwrap_or_else(|_| {
            sent.set_path("");
            sent.set_query(None);
            sent
        })
    }

    pub fn error(&self, error: EgressError) -> FetchError {
        let clean = |why: String| self.redactor.text(&why).into_owned();
        FetchError::Egress(match error {
            EgressError::Denied { why } => EgressError::Denied { why: clean(why) },
            EgressError::Invalid { why } => EgressError::Invalid { why: clean(why) },
            EgressError::Connect { why } => EgressError::Connect { why: clean(why) },
            EgressError::Broken { why } => EgressError::Broken { why: clean(why) },
            other => other,
        })
    }
}

fn redact_body(redactor: &Redactor, body: Bytes) -> Bytes {
    match redactor.bytes(&body) {
        Cow::Owned(clean) => clean.into(),
        Cow::Borrowed(_) => body,
    }
}
