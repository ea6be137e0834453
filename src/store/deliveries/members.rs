//! The outcome of the messages of a digest when the digest itself has one: steps of its transaction.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::notification::{DeliveryState, NewDelivery};
use crate::store::db::text::{optional, text};
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// Gives the messages of a digest the digest's outcome.
pub(in crate::store) async fn settle_members(
    tx: &mut Tx<'_>,
    digest: Uuid,
    state: DeliveryState,
    error: Option<&str>,
    sent: Option<DateTime<Utc>>,
    delivered: Option<DateTime<Utc>>,
) -> Result<(), StoreError> {
    tx.query(
        "update deliveries set state = $2, last_error = $3, sent_at = coalesce(sent_at, $4),
                delivered_at = coalesce(delivered_at, $5)
          where digest_id = $1 and state || '' in ('pending', 'sent', 'unknown')",
    )
    .bind(digest)
    .bind(state.as_str())
    .bind(optional(error))
    .bind(sent)
    .bind(delivered)
    .execute()
    .await?;
    Ok(())
}

/// The digest that takes the place of one that failed, if it still takes messages.
pub(in crate::store) const HEIR: Split = Split {
    postgres: "select id from deliveries where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4
                  and state = 'pending' and lease_token = 0 for update",
    sqlite: "select id from deliveries where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4
                and state = 'pending' and lease_token = 0",
};

/// The messages of a digest are told by the one that takes its place, which is in the outbox; where that one was on its
/// way before, they have failed as well.
pub(in crate::store) async fn hand_over(
    tx: &mut Tx<'_>,
    digest: Uuid,
    next: &NewDelivery,
    error: Option<&str>,
) -> Result<(), StoreError> {
    let heir: Option<Uuid> = tx
        .query(HEIR)
        .bind(&next.tenant_id)
        .bind(&next.recipient)
        .bind(text(&next.channel))
        .bind(text(&next.dedupe_key))
        .optional_scalar()
        .await?;
    let Some(heir) = heir else {
        return settle_members(tx, digest, DeliveryState::Failed, error, None, None).await;
    };
    tx.query(
        "update deliveries set state = 'pending', digest_id = $2
          where digest_id = $1 and state || '' in ('pending', 'sent', 'unknown')",
    )
    .bind(digest)
    .bind(heir)
    .execute()
    .await?;
    Ok(())
}
