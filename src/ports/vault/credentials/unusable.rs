//! Reasons for which a credential is not used, as faults of its use.

use crate::domain::credential::{RUN_SECRET_BYTES, RUN_SECRETS};
use crate::ports::vault::credentials::Use;
use crate::ports::vault::credentials::fault::{CredentialError, CredentialFault};
use crate::ports::vault::credentials::inject::InjectFault;
use crate::ports::vault::credentials::renewal::RenewalError;
use crate::store::StoreError;

/// The store is away: without its record a credential is not used.
pub(super) fn busy(with: &Use<'_>, error: &StoreError) -> CredentialError {
    tracing::warn!(credential = %with.reference, %error, "a credential can't be had");
    CredentialError::new(CredentialFault::Busy, with.reference, "the store is unavailable".into())
}

/// The request's time was over before the credential was there.
pub(super) fn too_slow(with: &Use<'_>) -> CredentialError {
    CredentialError::new(CredentialFault::Busy, with.reference, "to have it takes longer than the request may".into())
}

/// It has to be renewed, and was not.
pub(super) fn not_renewed(with: &Use<'_>, error: RenewalError) -> CredentialError {
    let (kind, why) = match error {
        RenewalError::NeedsConsent(why) => (CredentialFault::NeedsConsent, why),
        RenewalError::Refused(why) => (CredentialFault::Unreadable, why),
        RenewalError::Operator(why) => (CredentialFault::Misconfigured, why),
        RenewalError::Later(why) => (CredentialFault::Busy, why),
        RenewalError::Impossible => (CredentialFault::Unreadable, "it can't be renewed".into()),
    };
    CredentialError::new(kind, with.reference, why)
}

/// With it the run would use more secrets than are looked for in what it reads.
pub(super) fn too_many(with: &Use<'_>) -> CredentialError {
    let why = format!(
        "the documents of the credentials that one run uses may have {RUN_SECRETS} texts and {RUN_SECRET_BYTES} bytes of them \
         together; use it in another run, or save documents with fewer texts"
    );
    CredentialError::new(CredentialFault::TooMany, with.reference, why)
}

/// It does not fit into the request.
pub(super) fn unfitting(with: &Use<'_>, unfit: InjectFault) -> CredentialError {
    match unfit {
        InjectFault::Taken(what) => CredentialError::new(CredentialFault::Taken, with.reference, what),
        InjectFault::Value(why) => CredentialError::new(CredentialFault::NoInject, with.reference, why),
    }
}
