//! Documents that come to an end are renewed before they are used; what keeps them from it is the door's to tell.

use futures::future::BoxFuture;

use crate::base::secret::Secret;
use crate::ports::vault::oauth::{OAuthError, Refresher};
use crate::store::StoredCredential;

/// Renews documents that come to an end (OAuth 2).
pub trait Renewal: Send + Sync {
    /// The document as it is, or a renewed one where it is about to end or `force` says so; it is stored when this
    /// returns.
    fn fresh<'a>(
        &'a self,
        stored: &'a StoredCredential,
        document: Secret,
        force: bool,
    ) -> BoxFuture<'a, Result<Secret, RenewalError>>;
}

/// Why a document can't be renewed. The sentences hold no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewalError {
    /// Its owner has to connect the account again, and was told so.
    NeedsConsent(String),
    /// Its owner has to put something right before it can be.
    Refused(String),
    /// The operator of this service has to.
    Operator(String),
    /// Later may do.
    Later(String),
    /// There is nothing to renew it with.
    Impossible,
}

impl Renewal for Refresher {
    fn fresh<'a>(
        &'a self,
        stored: &'a StoredCredential,
        document: Secret,
        force: bool,
    ) -> BoxFuture<'a, Result<Secret, RenewalError>> {
        Box::pin(async move {
            Refresher::fresh(self, stored, document, force).await.map_err(|error| match error {
                OAuthError::NeedsConsent(why) => RenewalError::NeedsConsent(why),
                OAuthError::NoRefreshToken => RenewalError::Impossible,
                OAuthError::Misconfigured(_) | OAuthError::Vault(_) => RenewalError::Refused(error.to_string()),
                OAuthError::Operator(_) => RenewalError::Operator(error.to_string()),
                OAuthError::Later(_) | OAuthError::Busy | OAuthError::Store(_) => {
                    RenewalError::Later(error.to_string())
                }
            })
        })
    }
}
