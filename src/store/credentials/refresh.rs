//! Renewing a credential: one at a time over all instances, by a lease. What a refresh brought is written only by who
//! holds the lease, and only over the document that it was made from.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::credential::{OAuth, Reference};
use crate::store::credentials::TASKS_MOVE;
use crate::store::credentials::credential_status::lock_reference;
use crate::store::credentials::resuming::{ResumedTasks, Resumptions, resume_waiting};
use crate::store::credentials::row;
use crate::store::db::text::{document, text};
use crate::store::sql::sql;
use crate::store::tasks::changes::PLANS;
use crate::store::{NEXT_TOKEN, SealedDocument, Store, StoreError, StoredCredential};

impl Store {
    /// The right to refresh a credential alone until an instant, as a token; `None`: it was written since it was read,
    /// is not active, is gone, or somebody else has that right.
    pub async fn claim_refresh(
        &self,
        id: Uuid,
        read_version: i64,
        until: DateTime<Utc>,
    ) -> Result<Option<i64>, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let token: i64 = tx.query(NEXT_TOKEN).scalar().await?;
        let claimed = tx
            .query(
                "update credentials set refresh_lease = $3, refresh_until = $4
                  where id = $1 and version = $2 and status = 'active' and (refresh_until is null or refresh_until <= $5)",
            )
            .bind(id)
            .bind(read_version)
            .bind(token)
            .bind(until)
            .bind(now)
            .execute()
            .await?;
        write.commit().await?;
        Ok((claimed == 1).then_some(token))
    }

    /// Keeps the document that a refresh brought, and gives the lease back. Without a lease it is kept all the same, as
    /// long as the document is the one that it was made from, and tasks that wait for the credential go on.
    /// [`StoreError::LeaseLost`]: somebody else has the lease, or the
    /// document was written meanwhile; nothing is changed then.
    pub async fn store_refreshed(
        &self,
        id: Uuid,
        lease: Option<i64>,
        new: &SealedDocument,
    ) -> Result<StoredCredential, StoreError> {
        let now = self.clock.now();
        // only who has no lease may have found it ended by somebody else
        let mut planned = match lease {
            Some(_) => Resumptions::default(),
            None => {
                let (tenant, service, account) = self.name_of(id).await?.ok_or(StoreError::LeaseLost)?;
                self.plan_resumptions(&Scope::Every, &tenant, &Reference { service, account }).await?
            }
        };
        for _ in 0..PLANS {
            match self.try_refreshed(id, lease, new, &planned, now).await? {
                Ok(stored) => return Ok(stored),
                Err(unplanned) => self.plan_more(&Scope::Every, unplanned, &mut planned).await?,
            }
        }
        Err(StoreError::Unavailable(TASKS_MOVE.into()))
    }

    async fn name_of(&self, id: Uuid) -> Result<Option<(String, String, String)>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read.query(NAME).bind(id).optional().await?)
    }

    /// One try; `Err`: these tasks are not planned as they are, and nothing is written.
    async fn try_refreshed(
        &self,
        id: Uuid,
        lease: Option<i64>,
        new: &SealedDocument,
        planned: &Resumptions,
        now: DateTime<Utc>,
    ) -> Result<Result<StoredCredential, Vec<Uuid>>, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        if lease.is_none() {
            let name: Option<(String, String, String)> = tx.query(NAME).bind(id).optional().await?;
            let (tenant, service, account) = name.ok_or(StoreError::LeaseLost)?;
            lock_reference(tx, &tenant, &service, &account).await?;
        }
        let stored: Option<StoredCredential> = tx
            .query(STORE)
            .bind(id)
            .bind(lease)
            .bind(&new.sealed)
            .bind(new.generation)
            .bind(&new.key_id)
            .bind(new.expires_at)
            .bind(now)
            .optional()
            .await?;
        let stored = stored.ok_or(StoreError::LeaseLost)?;
        let went_on = match lease {
            Some(_) => Ok(ResumedTasks::default()),
            None => resume_waiting(self, tx, &stored.credential, &Scope::Every, planned).await?,
        };
        let (stored, went_on) = match went_on {
            Ok(went_on) => (stored, went_on),
            Err(unplanned) => return Ok(Err(unplanned)),
        };
        write.commit().await?;
        self.notify_resumed(&went_on);
        Ok(Ok(stored))
    }

    /// Says that the other side will not renew it, and why; gives the lease back. [`StoreError::LeaseLost`] as above.
    pub async fn mark_needs_consent(&self, id: Uuid, lease: i64, reason: &str) -> Result<StoredCredential, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let stored: Option<StoredCredential> =
            write.query(MARK).bind(id).bind(lease).bind(text(reason)).bind(now).optional().await?;
        write.commit().await?;
        stored.ok_or(StoreError::LeaseLost)
    }

    /// Keeps how a credential is renewed with the scopes that it misses, unless it was written since it was read. It stays
    /// the same version: what it is used for, and how, is not another. Answers whether it did.
    pub async fn note_missed_scopes(&self, id: Uuid, read_version: i64, oauth: &OAuth) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let written = write
            .query("update credentials set oauth = $3 where id = $1 and version = $2")
            .bind(id)
            .bind(read_version)
            .bind(document(oauth)?)
            .execute()
            .await?;
        write.commit().await?;
        Ok(written == 1)
    }

    /// Gives the lease back with nothing to show for it; one that is lost already stays lost.
    pub async fn release_refresh(&self, id: Uuid, lease: i64) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query(
                "update credentials set refresh_lease = 0, refresh_until = null where id = $1 and refresh_lease = $2",
            )
            .bind(id)
            .bind(lease)
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }
}

const NAME: &str = "select tenant_id, service, account from credentials where id = $1";

const STORE: &str = sql!(
    "update credentials
        set sealed = $3, generation = $4, key_id = $5, expires_at = $6, updated_at = $7, version = version + 1,
            status = 'active', status_reason = null, refresh_lease = 0, refresh_until = null
      where id = $1 and ($2 is null or refresh_lease = $2) and generation + 1 = $4
     returning ",
    row::COLUMNS
);

const MARK: &str = sql!(
    "update credentials
        set status = 'needs_consent', status_reason = $3, updated_at = $4, version = version + 1, refresh_lease = 0,
            refresh_until = null
      where id = $1 and refresh_lease = $2
     returning ",
    row::COLUMNS
);
