//! The one door through which a credential leaves: it is opened for one request, put into it, and taken out of what
//! comes back.
//!
//! A credential goes to the hosts that it is bound to and nowhere else, not by a redirect either. Each use is recorded
//! before anything is sent, and each attempt that was refused. Nothing lies here in the clear for longer than an
//! exchange, and what a run has used, for longer than its execution; what a crash leaves is the record of the use.

mod access;
mod fault;
mod guard;
pub(super) mod hosts;
mod inject;
mod opening;
pub(super) mod reading_turn;
mod renewal;
mod replace;
mod saving;
mod secret_document;
mod secret_reader;
mod secret_set;
mod tenant_credentials;
mod unusable;
mod used_secrets;

use std::sync::Arc;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use url::Url;
use uuid::Uuid;

use crate::base::compute::Compute;
use crate::base::id::{Scope, Tenant};
use crate::domain::credential::{Credential, CredentialStatus, CredentialUse, Reference};
use crate::ports::egress::{Egress, EgressError, EgressRequest, REDIRECT_LIMIT, Response, redirected};
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::access::{CredentialAccess, CredentialInUse};
use crate::ports::vault::credentials::guard::SecretGuard;
use crate::ports::vault::credentials::inject::inject;
use crate::ports::vault::credentials::secret_set::TooManySecrets;
use crate::ports::vault::credentials::unusable::{busy, too_many, too_slow, unfitting};
use crate::store::{Store, with_timeout};

pub use crate::ports::vault::credentials::fault::{CredentialError, CredentialFault, FetchError};
pub use crate::ports::vault::credentials::opening::OpenAnswer;
pub use crate::ports::vault::credentials::renewal::{Renewal, RenewalError};
pub use crate::ports::vault::credentials::replace::replace;
pub use crate::ports::vault::credentials::saving::{SaveFault, check_reference, credential_to_store};
pub use crate::ports::vault::credentials::secret_document::SecretDocument;
pub use crate::ports::vault::credentials::tenant_credentials::TenantCredentials;
pub use crate::ports::vault::credentials::used_secrets::UsedSecrets;

/// Sends requests with credentials. Cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    egress: Egress,
    access: Option<CredentialAccess>,
}

/// A use of a credential: by which part, on behalf of which run and tenant.
#[derive(Debug, Clone, Copy)]
pub struct Use<'a> {
    /// The tenant that owns the credential.
    pub tenant: &'a Tenant,
    /// The name of the credential.
    pub reference: &'a Reference,
    /// The run that uses it.
    pub run_id: Option<Uuid>,
    /// The run's task.
    pub task_id: Option<Uuid>,
    /// `tool:http_send`, `mcp:github`, `poll`, `step:order`, `webhook`.
    pub by: &'a str,
}

/// The answer to a request.
#[derive(Debug)]
pub struct CredentialAnswer {
    /// The answer of the other side.
    pub response: Response,
    /// The credential that was sent with it was refused (401): who can't go on without it has this for a reason.
    pub refused: Option<CredentialError>,
}

impl CredentialAnswer {
    fn plain(response: Response) -> CredentialAnswer {
        CredentialAnswer { response, refused: None }
    }

    /// The response; an error where the credential was refused.
    pub fn check_accepted(self) -> Result<Response, CredentialError> {
        self.refused.map_or(Ok(self.response), Err)
    }
}

impl Credentials {
    /// Credentials of the store, with their renewal by OAuth.
    pub fn new(store: Store, vault: Vault, egress: Egress, renewal: Option<Arc<dyn Renewal>>) -> Credentials {
        Credentials { egress, access: Some(CredentialAccess { store, vault, renewal }) }
    }

    /// Knows no credential: every one is missing. For who embeds a part of the service without its store.
    pub fn none(egress: Egress) -> Credentials {
        Credentials { egress, access: None }
    }

    /// The way out for what needs no credential.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// The computing threads of the process; `None`: without a store there are none.
    pub fn computing(&self) -> Option<&Compute> {
        self.access.as_ref().map(|access| access.store.computing())
    }

    /// The state of a credential, as a text that is another one after each change of it. `None`: there is no such
    /// credential, it can't be used, or the store is away.
    pub async fn state(&self, tenant: &Tenant, reference: &Reference) -> Option<String> {
        let (store, Reference { service, account }) = (&self.access.as_ref()?.store, reference);
        let scope = Scope::Only(tenant.clone());
        let stored = with_timeout(store.find_credential(&scope, tenant.as_str(), service, account)).await.ok()??;
        let Credential { id, version, status, .. } = stored.credential;
        (status == CredentialStatus::Active).then(|| format!("{id} {version}"))
    }

    /// Sends a request, with a credential where one is named. The answer holds none of its secrets, nor of those that
    /// are `used_secrets`, errors included, and says where the credential itself was refused (401).
    ///
    /// Of redirects, those on the same origin are followed with the credential, others without it, as far as
    /// `follow_redirects` has any followed. Once the other side answers 401, a credential that can be renewed is
    /// renewed and the request sent once more.
    ///
    /// The request's time is for all of it. Where it is over before anything was sent, the credential is what could not
    /// be had: nothing has taken effect. Nor is anything sent where the credential has more secrets than the run may
    /// still use ([`RUN_SECRETS`](crate::domain::credential::RUN_SECRETS)).
    pub async fn fetch(
        &self,
        request: EgressRequest,
        with: Option<&Use<'_>>,
        used_secrets: &UsedSecrets,
    ) -> Result<CredentialAnswer, FetchError> {
        let until = Instant::now() + request.timeout;
        self.recall(used_secrets, until).await?;
        match with {
            Some(with) => self.exchange(&request, with, used_secrets, until).await,
            None => {
                let timeout = until.saturating_duration_since(Instant::now());
                self.plainly(EgressRequest { timeout, ..request }, used_secrets).await
            }
        }
    }

    /// Reads what the run has used before, so that it is known before anything comes back.
    async fn recall(&self, used_secrets: &UsedSecrets, until: Instant) -> Result<(), FetchError> {
        let Some(access) = &self.access else { return Ok(()) };
        let recalled = timeout_at(until, access.load_used(used_secrets)).await;
        if let Err(why) =
            recalled.map_err(|_| "it takes too long".to_owned()).and_then(|r| r.map_err(|e| e.to_string()))
        {
            tracing::warn!(why, "what a run has used before can't be read, so it sends nothing");
            return Err(EgressError::Connect { why: "the store is unavailable".into() }.into());
        }
        Ok(())
    }

    /// Sends a request without a credential.
    async fn plainly(
        &self,
        request: EgressRequest,
        used_secrets: &UsedSecrets,
    ) -> Result<CredentialAnswer, FetchError> {
        let answered = self.egress.fetch(request).await;
        // what others of the run have sent meanwhile is known by now
        let Some(guard) = SecretGuard::for_secrets(used_secrets).await else {
            return Ok(CredentialAnswer::plain(answered?));
        };
        let response = answered.map_err(|error| guard.error(error))?;
        let url = response.url.to_string();
        Ok(CredentialAnswer::plain(guard.response(response, &url).await))
    }

    async fn exchange(
        &self,
        request: &EgressRequest,
        with: &Use<'_>,
        used_secrets: &UsedSecrets,
        until: Instant,
    ) -> Result<CredentialAnswer, FetchError> {
        let (access, opened) = self.opened(request, with, until).await?;
        let late = |_| Err(FetchError::Egress(EgressError::Timeout { after: request.timeout }));
        let answer =
            timeout_at(until, self.send(access, request, with, (&opened, used_secrets))).await.unwrap_or_else(late)?;
        // what was sent may have been revoked, or have ended early
        if answer.refused.is_none() {
            return Ok(answer);
        }
        // a request that was refused has no effect
        let renewing = timeout_at(until, access.renew(&opened, with)).await;
        match renewing.unwrap_or_else(|_| Err(too_slow(with).into()))? {
            Some(renewed) => {
                timeout_at(until, self.send(access, request, with, (&renewed, used_secrets))).await.unwrap_or_else(late)
            }
            None => Ok(answer),
        }
    }

    /// The credential for this request, opened; why it can't be is on the record.
    async fn opened(
        &self,
        request: &EgressRequest,
        with: &Use<'_>,
        until: Instant,
    ) -> Result<(&CredentialAccess, CredentialInUse), FetchError> {
        let url = self.egress.check(&request.url)?;
        let Some(access) = &self.access else {
            return Err(CredentialError::new(CredentialFault::Missing, with.reference, String::new()).into());
        };
        let opening = timeout_at(until, access.open(&url, self.egress.is_allowed(&url), with)).await;
        match opening.unwrap_or_else(|_| Err(too_slow(with))) {
            Ok(opened) => Ok((access, opened)),
            Err(error) => Err(access.record_failure(&url, with, error).await),
        }
    }

    async fn send(
        &self,
        access: &CredentialAccess,
        request: &EgressRequest,
        with: &Use<'_>,
        (opened, used_secrets): (&CredentialInUse, &UsedSecrets),
    ) -> Result<CredentialAnswer, FetchError> {
        let mut plain = request.clone();
        let mut guard = SecretGuard::of_nothing();
        let mut bound = true;
        // where it was sent last
        let mut used: Option<(CredentialUse, Url)> = None;
        for hop in 0..=REDIRECT_LIMIT {
            let mut request = EgressRequest { follow_redirects: false, ..plain.clone() };
            if bound {
                let put = self.put_in(access, &mut request, with, (opened, used_secrets), hop > 0).await?;
                (guard, used) = (put.guard, Some((put.used, put.url)));
            }
            let answered = self.egress.fetch(request).await;
            // and what others of the run have sent meanwhile
            guard = SecretGuard::for_secrets(used_secrets).await.unwrap_or(guard);
            let response = answered.map_err(|error| guard.error(error))?;
            let next = plain.follow_redirects.then(|| redirected(&plain, &response)).flatten();
            let Some(next) = next else {
                let refuses = bound && response.status == StatusCode::UNAUTHORIZED;
                let refused = match used.filter(|_| refuses) {
                    Some((used, url)) => Some(access.record_refused(&url, with, &used).await),
                    None => None,
                };
                return Ok(CredentialAnswer { response: guard.response(response, &plain.url).await, refused });
            };
            let next = next.map_err(|error| guard.error(error))?;
            if bound && !same_origin(&plain.url, &next.url) {
                // the other side may not carry the secret on by naming it
                if guard.finds(&next.url).await {
                    return Ok(CredentialAnswer::plain(guard.response(response, &plain.url).await));
                }
                bound = false;
            }
            plain = next;
        }
        Err(EgressError::TooManyRedirects.into())
    }

    /// Puts the credential into a request. Its secrets are known from now on, and the use is on the record.
    async fn put_in(
        &self,
        access: &CredentialAccess,
        request: &mut EgressRequest,
        with: &Use<'_>,
        (opened, used_secrets): (&CredentialInUse, &UsedSecrets),
        replaces: bool,
    ) -> Result<PutCredential, FetchError> {
        let CredentialInUse { inject: how, document, former, .. } = opened;
        let former = former.as_ref().and_then(SecretDocument::read);
        let documents: Vec<&SecretDocument> = former.iter().chain([document]).collect();
        used_secrets.read_in_turn(access.store.computing(), with.tenant.as_str());
        let url = self.egress.check(&request.url)?;
        let injected = match inject(request, how, document.value(), replaces) {
            Ok(injected) => injected,
            Err(unfit) => return Err(access.record_failure(&url, with, unfitting(with, unfit)).await),
        };
        let guard = match SecretGuard::of(&injected.parts, &documents, used_secrets).await {
            Ok(guard) => guard,
            Err(TooManySecrets) => return Err(access.record_failure(&url, with, too_many(with)).await),
        };
        let used = access.record_use(&url, with, CredentialUse::USED).await.map_err(|error| busy(with, &error))?;
        Ok(PutCredential { guard, used, url })
    }
}

/// A credential that was put into a request.
struct PutCredential {
    guard: SecretGuard,
    used: CredentialUse,
    /// The request's address without it.
    url: Url,
}

fn same_origin(one: &str, other: &str) -> bool {
    matches!((Url::parse(one), Url::parse(other)), (Ok(one), Ok(other)) if one.origin() == other.origin())
}
