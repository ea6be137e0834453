//! Due deliveries of the outbox, claimed as the notifier does that has a place for all of them.

use chrono::{DateTime, Utc};
use reveille::domain::notification::DeliveryClaim;
use reveille::store::{Store, StoreError};

pub async fn claim_due(
    store: &Store,
    claimed_until: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<DeliveryClaim>, StoreError> {
    let due = store.due_deliveries(limit).await?;
    let ids: Vec<_> = due.into_iter().map(|due| due.id).collect();
    store.claim_deliveries(&ids, claimed_until).await
}
