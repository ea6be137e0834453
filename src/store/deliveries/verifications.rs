//! Codes that prove an address: one at a time for each, good for some tries and some minutes. Only tags of them are
//! kept.

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::clock::to_delta;
use crate::base::id::{Scope, first_id};
use crate::domain::notification::verification::{BETWEEN, LIFETIME, PER_DAY, TRIES};
use crate::domain::notification::{NewDelivery, Recipient};
use crate::store::db::text::{document, text};
use crate::store::{Split, Store, StoreError, StoredRecipient, Topic};

/// A code for an address, as tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// The recipient with the address, by its id.
    pub recipient: String,
    /// The channel of the address.
    pub channel: String,
    /// Hash of the address.
    pub address_hash: Vec<u8>,
    /// Hash of the code.
    pub code_hash: Vec<u8>,
}

/// Result of a code that was given back.
#[derive(Debug, Clone, PartialEq)]
pub enum CodeCheck {
    /// It was right, and the recipient is written.
    Yes(Box<StoredRecipient>),
    /// It was wrong; so many tries are left.
    Wrong {
        /// Tries that are left.
        left: i64,
    },
    /// There is none, or no more: none was asked for, its time or its tries are over, or the address has changed.
    Gone,
}

/// Code, whether it is for this address, and wrong tries.
type Row = (Vec<u8>, bool, i64);

const OPEN: Split = Split {
    postgres: "select code_hash, address_hash = $3, attempts from verifications
                where tenant_id = $1 and channel = $2 and expires_at > $4 for update",
    sqlite: "select code_hash, address_hash = $3, attempts from verifications
              where tenant_id = $1 and channel = $2 and expires_at > $4",
};

impl Store {
    /// Remembers a code and puts the message with it into the outbox. An earlier one is good for nothing then. The same
    /// again changes nothing, so that it gives no new tries.
    ///
    /// # Errors
    /// `Conflict`: another was asked for less than a minute ago, or too many within a day. `NotFound`: in another
    /// scope.
    pub async fn ask_verification(
        &self,
        scope: &Scope,
        asked: &Verification,
        message: &NewDelivery,
    ) -> Result<(), StoreError> {
        if scope.tenant().is_some_and(|own| own != asked.recipient) {
            return Err(StoreError::NotFound);
        }
        let now = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let sent: i64 = tx
            .query(
                "select count(*) from deliveries
                  where tenant_id = $1 and recipient = $1 and channel = $2 and kind = 'code' and id >= $3",
            )
            .bind(text(&asked.recipient))
            .bind(text(&asked.channel))
            .bind(first_id(now - TimeDelta::days(1)))
            .scalar()
            .await?;
        if sent >= PER_DAY {
            let why = format!("{PER_DAY} codes were sent to this channel within a day; ask for another tomorrow");
            return Err(StoreError::Conflict(why));
        }
        let written = tx
            .query(
                "insert into verifications (tenant_id, channel, address_hash, code_hash, attempts, expires_at)
                 values ($1, $2, $3, $4, 0, $5)
                 on conflict (tenant_id, channel) do update
                    set address_hash = excluded.address_hash, code_hash = excluded.code_hash, attempts = 0,
                        expires_at = excluded.expires_at
                  where verifications.expires_at <= $6 and verifications.code_hash <> excluded.code_hash",
            )
            .bind(text(&asked.recipient))
            .bind(text(&asked.channel))
            .bind(&asked.address_hash)
            .bind(&asked.code_hash)
            .bind(now + to_delta(LIFETIME))
            .bind(now + to_delta(LIFETIME) - to_delta(BETWEEN))
            .execute()
            .await?;
        if written == 0 {
            let same: Option<i32> = tx
                .query("select 1 from verifications where tenant_id = $1 and channel = $2 and code_hash = $3")
                .bind(text(&asked.recipient))
                .bind(text(&asked.channel))
                .bind(&asked.code_hash)
                .optional_scalar()
                .await?;
            if same.is_none() {
                let why = "a code was sent less than a minute ago; wait for it before you ask for another";
                return Err(StoreError::Conflict(why.into()));
            }
        }
        tx.post(&[message], now).await?;
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(())
    }

    /// Takes a code; where it is right, `recipient` is written over the one that was read, in the same transaction.
    ///
    /// # Errors
    /// `Conflict`: the recipient has changed meanwhile, and the code is still good. `NotFound`: in another scope.
    pub async fn try_verification(
        &self,
        scope: &Scope,
        given: &Verification,
        recipient: &Recipient,
        read: &StoredRecipient,
    ) -> Result<CodeCheck, StoreError> {
        if scope.tenant().is_some_and(|own| own != given.recipient) {
            return Err(StoreError::NotFound);
        }
        let now: DateTime<Utc> = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let row: Option<Row> = tx
            .query(OPEN)
            .bind(text(&given.recipient))
            .bind(text(&given.channel))
            .bind(&given.address_hash)
            .bind(now)
            .optional()
            .await?;
        let (code_hash, tries) = match row {
            Some((code_hash, true, tries)) if tries < TRIES => (code_hash, tries),
            _ => return Ok(CodeCheck::Gone),
        };
        let verified = if code_hash != given.code_hash {
            tx.query("update verifications set attempts = attempts + 1 where tenant_id = $1 and channel = $2")
                .bind(text(&given.recipient))
                .bind(text(&given.channel))
                .execute()
                .await?;
            CodeCheck::Wrong { left: TRIES - tries - 1 }
        } else {
            let written = tx
                .query(
                    "update recipients set body = $2, version = version + 1, updated_at = $3
                      where tenant_id = $1 and version = $4 and updated_at = $5",
                )
                .bind(text(&given.recipient))
                .bind(document(recipient)?)
                .bind(now)
                .bind(read.version)
                .bind(read.updated_at)
                .execute()
                .await?;
            if written == 0 {
                return Err(StoreError::Conflict("the recipient has changed meanwhile".into()));
            }
            tx.query("delete from verifications where tenant_id = $1 and channel = $2")
                .bind(text(&given.recipient))
                .bind(text(&given.channel))
                .execute()
                .await?;
            let (recipient, version) = (recipient.clone(), read.version + 1);
            CodeCheck::Yes(Box::new(StoredRecipient { recipient, version, updated_at: now }))
        };
        write.commit().await?;
        Ok(verified)
    }
}
