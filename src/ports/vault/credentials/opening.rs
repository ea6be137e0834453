//! Requests with a credential whose answers are read as they come, such as streams of events.

use http::{HeaderMap, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::domain::credential::InjectForm;
use crate::ports::egress::{EgressError, EgressRequest, OpenResponse};
use crate::ports::vault::credentials::access::{CredentialAccess, CredentialInUse};
use crate::ports::vault::credentials::guard::SecretGuard;
use crate::ports::vault::credentials::inject::InjectFault;
use crate::ports::vault::credentials::unusable::{too_slow, unfitting};
use crate::ports::vault::credentials::{CredentialError, Credentials, FetchError, Use, UsedSecrets};
use crate::ports::vault::oauth::BearerChallenge;

/// An answer to a request with a credential, its body yet to be read.
pub struct OpenAnswer {
    /// The answer of the other side, as it came.
    pub response: OpenResponse,
    /// As in [`CredentialAnswer`](super::CredentialAnswer).
    pub refused: Option<CredentialError>,
}

impl Credentials {
    /// As [`Credentials::fetch`], but scopes that the other side misses (403, `insufficient_scope`) are kept with the
    /// credential of a connected account; the answer is there once its headers are, and nothing is taken out of it: its
    /// reader takes `used_secrets` out of what is shown. Redirects are not followed, and a credential that goes into
    /// a field of the body is not used.
    pub async fn open(
        &self,
        request: EgressRequest,
        with: Option<&Use<'_>>,
        used_secrets: &UsedSecrets,
    ) -> Result<OpenAnswer, FetchError> {
        let until = Instant::now() + request.timeout;
        self.recall(used_secrets, until).await?;
        match with {
            Some(with) => self.open_with(&request, with, used_secrets, until).await,
            None => {
                let timeout = until.saturating_duration_since(Instant::now());
                let response = self.open_plainly(EgressRequest { timeout, ..request }, used_secrets).await?;
                Ok(OpenAnswer { response, refused: None })
            }
        }
    }

    async fn open_plainly(
        &self,
        request: EgressRequest,
        used_secrets: &UsedSecrets,
    ) -> Result<OpenResponse, FetchError> {
        let answered = self.egress.open(request).await;
        // what others of the run have sent meanwhile is known by now
        match SecretGuard::for_secrets(used_secrets).await {
            Some(guard) => answered.map_err(|error| guard.error(error)),
            None => answered.map_err(FetchError::from),
        }
    }

    async fn open_with(
        &self,
        request: &EgressRequest,
        with: &Use<'_>,
        used_secrets: &UsedSecrets,
        until: Instant,
    ) -> Result<OpenAnswer, FetchError> {
        let (access, opened) = self.opened(request, with, until).await?;
        self.check_body_is_kept(access, request, with, &opened).await?;
        let late = |_| Err(FetchError::Egress(EgressError::Timeout { after: request.timeout }));
        let sending = self.send_open(access, request, with, (&opened, used_secrets));
        let answer = timeout_at(until, sending).await.unwrap_or_else(late)?;
        if answer.refused.is_none() {
            return Ok(answer);
        }
        // a request that was refused has no effect
        let renewing = timeout_at(until, access.renew(&opened, with)).await;
        match renewing.unwrap_or_else(|_| Err(too_slow(with).into()))? {
            Some(renewed) => {
                let sending = self.send_open(access, request, with, (&renewed, used_secrets));
                timeout_at(until, sending).await.unwrap_or_else(late)
            }
            None => Ok(answer),
        }
    }

    /// A body that is a message of a protocol has no field to spare.
    async fn check_body_is_kept(
        &self,
        access: &CredentialAccess,
        request: &EgressRequest,
        with: &Use<'_>,
        opened: &CredentialInUse,
    ) -> Result<(), FetchError> {
        if opened.inject.form != InjectForm::Field {
            return Ok(());
        }
        let url = self.egress.check(&request.url)?;
        let why = "it goes into a field of the JSON body, and nothing may be put into this one";
        Err(access.record_failure(&url, with, unfitting(with, InjectFault::Value(why.into()))).await)
    }

    async fn send_open(
        &self,
        access: &CredentialAccess,
        request: &EgressRequest,
        with: &Use<'_>,
        (opened, used_secrets): (&CredentialInUse, &UsedSecrets),
    ) -> Result<OpenAnswer, FetchError> {
        let mut sent = request.clone();
        let put = self.put_in(access, &mut sent, with, (opened, used_secrets), false).await?;
        let answered = self.egress.open(sent).await;
        // and what others of the run have sent meanwhile
        let guard = SecretGuard::for_secrets(used_secrets).await.unwrap_or(put.guard);
        let mut response = answered.map_err(|error| guard.error(error))?;
        let refused = match response.status {
            StatusCode::UNAUTHORIZED => Some(access.record_refused(&put.url, with, &put.used).await),
            StatusCode::FORBIDDEN => {
                let missed = missed_scopes(&response.headers);
                if opened.stored.credential.oauth.is_some() && !missed.is_empty() {
                    access.keep_missed_scopes(with, &missed).await;
                }
                None
            }
            _ => None,
        };
        // without the credential, which may be in it
        response.url = put.url;
        Ok(OpenAnswer { response, refused })
    }
}

/// The scopes that the other side asks for beyond those of the token (RFC 6750, section 3.1).
fn missed_scopes(headers: &HeaderMap) -> Vec<String> {
    let challenge = BearerChallenge::of(headers);
    match challenge.error.as_deref() {
        Some("insufficient_scope") => challenge.scopes(),
        _ => vec![],
    }
}
