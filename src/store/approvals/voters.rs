//! By what a voter is known, read from tokens and recipients of every tenant.

use crate::domain::actor::Actor;
use crate::domain::approval::VoterIdentities;
use crate::store::{Store, StoreError};

impl Store {
    /// Everything by which somebody is known who stands on record like this: `recipient:<id>`, `token:<id>`. A token is
    /// known by its tenant, where it has one, and by the token that it descends from.
    pub async fn voter_identities(&self, name: &str) -> Result<VoterIdentities, StoreError> {
        let token = match Actor::parse(name) {
            Actor::Recipient(tenant) => return self.identities_of_tenant(tenant).await,
            Actor::Token(id) => self.get_token(id).await?,
            Actor::Admin | Actor::Embedder | Actor::Caller(_) | Actor::Service => None,
        };
        match token {
            None => Ok(VoterIdentities::of_name(name)),
            Some(token) => match &token.tenant_id {
                None => Ok(VoterIdentities::of_name(&token.root())),
                Some(tenant) => Ok(self.identities_of_tenant(tenant).await?.with_root(&token.root())),
            },
        }
    }

    async fn identities_of_tenant(&self, tenant: &str) -> Result<VoterIdentities, StoreError> {
        let recipients = self.recipients_by_tenant(&[tenant]).await?;
        Ok(VoterIdentities::of_tenant(tenant, recipients.get(tenant).map(|recipient| &recipient.addresses)))
    }
}
