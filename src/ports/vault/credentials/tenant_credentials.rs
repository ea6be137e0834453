//! The credentials of one tenant, for tools and executors in Rust.
//!
//! The document is then in the hands of the code that asked for it: so each read is on the record, and its texts and
//! numbers of at least four characters are taken out of the results and errors of tools, and of the run's output,
//! reason and error. They are not taken out of what the code itself writes elsewhere: events, messages, tasks, files.
//! [`TenantCredentials::fetch`] needs no read: the document stays here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::base::redact::all_secrets_of;
use crate::domain::credential::{Credential, CredentialDraft, Reference};
use crate::ports::egress::{EgressRequest, Response};
use crate::ports::vault::credentials::access::CredentialAccess;
use crate::ports::vault::credentials::saving::{SaveFault, check_reference, credential_to_store};
use crate::ports::vault::credentials::secret_document::SecretDocument;
use crate::ports::vault::credentials::{
    CredentialError, CredentialFault, Credentials, FetchError, Use, UsedSecrets, replace,
};
use crate::store::{CredentialFilter, StoreError, with_timeout};

/// Credentials that are read at once where all are listed.
const PAGE: i64 = 200;

/// The credentials of the tenant of a call or a run. Cheap to clone.
#[derive(Clone)]
pub struct TenantCredentials {
    /// `None`: there is no store, and every credential is missing.
    credentials: Option<Credentials>,
    tenant: Tenant,
    run_id: Option<Uuid>,
    task_id: Option<Uuid>,
    by: String,
    used_secrets: UsedSecrets,
    /// One was read, or used.
    is_used: Arc<AtomicBool>,
}

impl TenantCredentials {
    /// Those of a tenant, for a part that is called `by` on the record of uses: `tool:NAME`, `executor:NAME`. What is
    /// read is added to `used_secrets`, and looked for in the tenant's turn.
    pub fn new(
        credentials: Option<Credentials>,
        tenant: Tenant,
        (run_id, task_id): (Option<Uuid>, Option<Uuid>),
        by: String,
        used_secrets: UsedSecrets,
    ) -> TenantCredentials {
        let is_used = Arc::default();
        let own = TenantCredentials { credentials, tenant, run_id, task_id, by, used_secrets, is_used };
        if let Some(access) = own.access() {
            own.used_secrets.read_in_turn(access.store.computing(), own.tenant.as_str());
        }
        own
    }

    /// The document of a credential, by its name `service` or `service/account`; renewed where it has run out. The read
    /// is on the record of uses, with no host.
    ///
    /// # Errors
    /// It is missing, needs consent, can't be read, or the store is away.
    pub async fn get(&self, name: &str) -> Result<SecretDocument, CredentialError> {
        let reference = parsed(name)?;
        self.is_used.store(true, Ordering::Relaxed);
        let Some(access) = self.access() else {
            return Err(CredentialError::new(CredentialFault::Missing, &reference, String::new()));
        };
        access.read(&self.use_of(&reference), &self.used_secrets).await
    }

    /// Sends a request with a credential, as the built-in tools do: to its own hosts alone. The answer holds none of
    /// its secrets.
    ///
    /// # Errors
    /// Those of the credential and of the request; also where the other side answers 401.
    pub async fn fetch(&self, name: &str, request: EgressRequest) -> Result<Response, FetchError> {
        let reference = parsed(name)?;
        self.is_used.store(true, Ordering::Relaxed);
        let Some(credentials) = &self.credentials else {
            return Err(CredentialError::new(CredentialFault::Missing, &reference, String::new()).into());
        };
        let answer = credentials.fetch(request, Some(&self.use_of(&reference)), &self.used_secrets).await?;
        Ok(answer.check_accepted()?)
    }

    /// Writes a credential whole, from the JSON form of the API: `document`, `hosts`, `inject`, `oauth`. It is on the
    /// audit record.
    ///
    /// # Errors
    /// All faults of it, or why it can't be stored.
    pub async fn save(&self, name: &str, credential: Value) -> Result<Credential, SaveFault> {
        let reference = Reference::parse(name).map_err(|why| ValidationErrors::one("/service", why.to_string()))?;
        check_reference(&reference)?;
        if let Some(document) = credential.get("document") {
            self.used_secrets.add_document(all_secrets_of(document).iter().map(|part| part.as_str()).collect());
        }
        let Some(access) = self.access() else {
            return Err(StoreError::Unavailable("there is no store of credentials here".into()).into());
        };
        let now = access.store.clock().now();
        let draft = CredentialDraft::parse(credential, now)?;
        let (scope, name) = (Scope::Only(self.tenant.clone()), (&self.tenant, &reference));
        let make = |old: Option<&_>| credential_to_store(&access.vault, name, (&draft, self.by.clone()), old, now);
        let saved = replace(&access.store, &scope, self.tenant.as_str(), &reference, make).await?;
        Ok(saved.stored.credential)
    }

    /// All credentials of the tenant, or those of a service, without their documents.
    ///
    /// # Errors
    /// The store is away.
    pub async fn list(&self, service: Option<&str>) -> Result<Vec<Credential>, StoreError> {
        let mut all = Vec::new();
        let Some(access) = self.access() else { return Ok(all) };
        let scope = Scope::Only(self.tenant.clone());
        let mut before = None;
        loop {
            let service = service.map(str::to_owned);
            let filter = CredentialFilter { service, before, limit: PAGE, ..CredentialFilter::default() };
            let page = with_timeout(access.store.list_credentials(&scope, &filter)).await?;
            let is_last = !page.is_cut && page.behind.is_none() && (page.rows.len() as i64) < PAGE;
            let last = page.rows.last().map(|credential| credential.id);
            all.extend(page.rows);
            before = page.behind.or(last);
            if is_last || before.is_none() {
                return Ok(all);
            }
        }
    }

    /// Deletes a credential with its document, for good. It is on the audit record.
    ///
    /// # Errors
    /// There is none, or the store is away.
    pub async fn delete(&self, name: &str) -> Result<(), CredentialError> {
        let reference = parsed(name)?;
        let missing = || CredentialError::new(CredentialFault::Missing, &reference, String::new());
        let access = self.access().ok_or_else(missing)?;
        let (scope, Reference { service, account }) = (Scope::Only(self.tenant.clone()), &reference);
        let deleted = access.store.delete_credential(&scope, self.tenant.as_str(), service, account, &self.by);
        match with_timeout(deleted).await {
            Ok(()) => Ok(()),
            Err(StoreError::NotFound) => Err(missing()),
            Err(error) => Err(CredentialError::new(CredentialFault::Busy, &reference, error.to_string())),
        }
    }

    /// Whether a credential was read or used by this: then its result holds as long as the credential, and no longer.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Recalls what earlier executions of the run have read and used, so that it is taken out of what this one answers.
    ///
    /// # Errors
    /// The store is away; the sentence says so.
    pub async fn recall(&self) -> Result<(), String> {
        match self.access() {
            Some(access) => access.load_in_time(&self.used_secrets).await,
            None => Ok(()),
        }
    }

    fn access(&self) -> Option<&CredentialAccess> {
        self.credentials.as_ref()?.access.as_ref()
    }

    fn use_of<'a>(&'a self, reference: &'a Reference) -> Use<'a> {
        Use { tenant: &self.tenant, reference, run_id: self.run_id, task_id: self.task_id, by: &self.by }
    }
}

fn parsed(name: &str) -> Result<Reference, CredentialError> {
    Reference::parse(name).map_err(|why| {
        let reference = Reference { service: name.chars().take(80).collect(), account: String::new() };
        // nobody can connect it: the code names it wrongly
        CredentialError::new(CredentialFault::Misconfigured, &reference, why.to_string())
    })
}
