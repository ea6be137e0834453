//! Outcomes of attempts. A write that only changes the delivery's own row is made together with what others write at
//! the same time: many attempts end at once, and a commit costs more than a row.

use chrono::{DateTime, Utc};

use super::members::{hand_over, settle_members};
use crate::base::id::Scope;
use crate::domain::notification::{DeliveryClaim, DeliveryState, HoldReason, Mark, MessageKind};
use crate::store::db::text::optional;
use crate::store::db::write_batcher::{WriteBatcher, together_or_alone};
use crate::store::runs::alerts::reset_alert;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic, with_timeout};

/// Marks in one transaction.
pub(in crate::store) const TOGETHER: usize = 100;

/// Marks that wait to be written.
pub(in crate::store) type MarkBatcher =
    WriteBatcher<(DeliveryClaim, DeliveryColumns), Result<DeliveryState, StoreError>>;

/// The columns that a mark writes into its delivery.
pub(in crate::store) struct DeliveryColumns {
    state: DeliveryState,
    next_at: Option<DateTime<Utc>>,
    error: Option<String>,
    provider_id: Option<String>,
    sent: Option<DateTime<Utc>>,
    delivered: Option<DateTime<Utc>>,
    /// Attempts that were begun and not made.
    unused: i32,
    hold_reason: Option<HoldReason>,
    /// It is to be sent since then only.
    later: bool,
    maybe_delivered: bool,
}

impl DeliveryColumns {
    fn of(claim: &DeliveryClaim, mark: &Mark, now: DateTime<Utc>) -> Result<DeliveryColumns, StoreError> {
        let state =
            claim.delivery.state.on(mark.event()).map_err(|illegal| StoreError::Conflict(illegal.to_string()))?;
        let (provider_id, error, next_at) = match mark {
            Mark::Delivered { provider_id } | Mark::Sent { provider_id } => (provider_id.clone(), None, None),
            Mark::Retry { at, error, .. } => (None, Some(error.clone()), Some(*at)),
            Mark::Wait { at, error, .. } => (None, error.clone(), Some(*at)),
            Mark::Hold { at, .. } => (None, None, Some(*at)),
            Mark::Failed { error, .. } | Mark::Unknown { error, .. } => (None, Some(error.clone()), None),
        };
        let (unused, hold_reason) = match mark {
            Mark::Wait { hold_reason, .. } => (1, *hold_reason),
            _ => (0, None),
        };
        // since when it is to be sent is a matter of who holds it, and of what the other side asked for
        let (later, maybe_delivered) = match mark {
            Mark::Retry { asked, maybe_delivered, .. } => (*asked, *maybe_delivered),
            _ => (hold_reason.is_some(), false),
        };
        let sent = matches!(state, DeliveryState::Sent | DeliveryState::Delivered).then_some(now);
        let delivered = (state == DeliveryState::Delivered).then_some(now);
        let maybe_delivered = maybe_delivered || claim.interrupted;
        Ok(DeliveryColumns {
            state,
            next_at,
            error,
            provider_id,
            sent,
            delivered,
            unused,
            hold_reason,
            later,
            maybe_delivered,
        })
    }
}

/// Whether nothing but its own row follows from a mark.
fn is_single_row(claim: &DeliveryClaim, mark: &Mark) -> bool {
    let moves = matches!(mark, Mark::Delivered { .. } | Mark::Sent { .. } | Mark::Retry { .. } | Mark::Wait { .. });
    moves && claim.delivery.kind != MessageKind::Digest
}

const WRITE_MARK: &str = "
    update deliveries
       set lease_token = 0,
           state = case when state = 'pending' then $3 else state end,
           next_at = case when state = 'pending' then $4 end,
           last_error = case when state = 'pending' then $5 else last_error end,
           provider_id = coalesce($6, provider_id), sent_at = coalesce(sent_at, $7),
           delivered_at = coalesce(delivered_at, $8), attempts = attempts - $9,
           hold_reason = coalesce($10, hold_reason), due_at = case when $11 then $4 else due_at end,
           maybe_delivered = maybe_delivered or $12
     where id = $1 and lease_token = $2
    returning state";

impl Store {
    /// Ends an attempt with what came of it, and stores the fall-back in the same transaction; answers the state that
    /// stands then, which a report of the provider may have decided before.
    pub async fn mark_delivery(&self, claim: &DeliveryClaim, mark: &Mark) -> Result<DeliveryState, StoreError> {
        if let Mark::Hold { hold_reason, digest, at } = mark {
            return with_timeout(self.hold_delivery(claim, *hold_reason, digest, *at)).await;
        }
        let written = DeliveryColumns::of(claim, mark, self.clock.now())?;
        if !is_single_row(claim, mark) {
            return with_timeout(self.mark_with_effects(claim, mark, &written)).await;
        }
        let store = self.clone();
        let together = self.marks.submit((claim.clone(), written), |marks| async move {
            together_or_alone(&store, &marks, |store, marks| Box::pin(store.mark_batch(marks))).await
        });
        together.await.unwrap_or_else(|| Err(StoreError::Unavailable("the mark was broken off".into())))
    }

    /// Writes a mark into its delivery: the state that stands then, or that somebody else has the claim.
    async fn write_mark(
        &self,
        tx: &mut Tx<'_>,
        claim: &DeliveryClaim,
        written: &DeliveryColumns,
    ) -> Result<Result<DeliveryState, StoreError>, StoreError> {
        // what the provider has reported meanwhile stands
        let stands: Option<String> = tx
            .query(WRITE_MARK)
            .bind(claim.delivery.id)
            .bind(claim.lease_token)
            .bind(written.state.as_str())
            .bind(written.next_at)
            .bind(optional(written.error.as_deref()))
            .bind(optional(written.provider_id.as_deref()))
            .bind(written.sent)
            .bind(written.delivered)
            .bind(written.unused)
            .bind(written.hold_reason.map(HoldReason::as_str))
            .bind(written.later)
            .bind(written.maybe_delivered)
            .optional_scalar()
            .await?;
        Ok(self.state_after(claim, stands))
    }

    async fn mark_batch(
        &self,
        marks: &[(DeliveryClaim, DeliveryColumns)],
    ) -> Result<Vec<Result<DeliveryState, StoreError>>, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let mut stand = Vec::with_capacity(marks.len());
        for (claim, written) in marks {
            stand.push(self.write_mark(tx, claim, written).await?);
        }
        write.commit().await?;
        Ok(stand)
    }

    /// With what follows from it for other deliveries, and for what tasks have told.
    async fn mark_with_effects(
        &self,
        claim: &DeliveryClaim,
        mark: &Mark,
        written: &DeliveryColumns,
    ) -> Result<DeliveryState, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let stands = self.write_mark(tx, claim, written).await??;
        let fall_back = match (mark, stands) {
            (Mark::Failed { fall_back, .. }, DeliveryState::Failed)
            | (Mark::Unknown { fall_back, .. }, DeliveryState::Unknown) => fall_back.as_deref(),
            _ => None,
        };
        if let Some(next) = fall_back {
            tx.post(&[next], now).await?;
        }
        let error = written.error.as_deref();
        match (claim.delivery.kind, fall_back) {
            (MessageKind::Digest, Some(next)) => {
                hand_over(tx, claim.delivery.id, next, error).await?;
            }
            (MessageKind::Digest, None) if stands != DeliveryState::Pending => {
                settle_members(tx, claim.delivery.id, stands, error, written.sent, written.delivered).await?;
            }
            _ => {}
        }
        if stands == DeliveryState::Failed && (fall_back.is_none() || claim.delivery.kind == MessageKind::Digest) {
            reset_alert(tx, claim.delivery.id).await?;
        }
        write.commit().await?;
        if matches!(mark, Mark::Failed { fall_back: Some(_), .. } | Mark::Unknown { fall_back: Some(_), .. }) {
            self.notify(Topic::Outbox);
        }
        Ok(stands)
    }

    fn state_after(&self, claim: &DeliveryClaim, stands: Option<String>) -> Result<DeliveryState, StoreError> {
        let Some(stands) = stands else {
            self.counts.fenced("delivery", 1);
            return Err(StoreError::LeaseLost);
        };
        DeliveryState::parse(&stands)
            .ok_or_else(|| StoreError::Corrupt(format!("delivery {} has the state {stands}", claim.delivery.id)))
    }
}
