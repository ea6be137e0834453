//! The outbox. What begins an attempt is in `claiming`, what it came to in `marking`, what is held in `holding`.
//!
//! A claim that is never marked (its worker died) is claimed again after its time, and says so: whether a repeat is
//! safe is the channel's to know.

mod claiming;
pub(super) mod holding;
pub(super) mod live;
mod marking;
mod members;
mod receipts;
pub(super) mod recipients;
pub(super) mod referred;
pub(super) mod verifications;

use serde::Serialize;
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::{Delivery, DeliveryEvent, DeliveryState, HoldReason, MessageKind, NewDelivery};
use crate::domain::task::Urgency;
use crate::store::columns::Columns;
use crate::store::db::listing::{PAGE_BYTES, RowPage, UNBOUNDED, fitting, push_page};
use crate::store::db::text::text;
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::sql::sql;
use crate::store::tx::SqlRecord;
use crate::store::{Split, Store, StoreError, Topic};

pub use claiming::QueuedDelivery;
pub(super) use marking::{MarkBatcher, TOGETHER};

/// Which deliveries to list. Newest first, after the delivery `before`.
#[derive(Debug, Clone, Default)]
pub struct DeliveryFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only about this run.
    pub run_id: Option<Uuid>,
    /// Only in this state.
    pub state: Option<DeliveryState>,
    /// Only on this channel.
    pub channel: Option<String>,
    /// Told by this digest.
    pub digest_id: Option<Uuid>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

impl<'r, R: Columns> FromRow<'r, R> for Delivery {
    fn from_row(row: &'r R) -> Result<Delivery, sqlx::Error> {
        Ok(Delivery {
            id: row.value("id")?,
            tenant_id: row.value("tenant_id")?,
            recipient: row.value("recipient")?,
            channel: row.value("channel")?,
            fallback: row.document("fallback")?,
            dedupe_key: row.value("dedupe_key")?,
            run_id: row.value("run_id")?,
            subject_ref: row.optional_document("subject_ref")?,
            kind: row.word("kind", MessageKind::parse)?,
            urgency: row.word("urgency", Urgency::parse)?,
            subject: row.value("subject")?,
            text: row.value("body")?,
            state: row.word("state", DeliveryState::parse)?,
            attempts: row.value("attempts")?,
            next_at: row.value("next_at")?,
            hold_reason: row.optional_word("hold_reason", HoldReason::parse)?,
            due_at: row.value("due_at")?,
            digest_id: row.value("digest_id")?,
            maybe_delivered: row.value("maybe_delivered")?,
            last_error: row.value("last_error")?,
            provider_id: row.value("provider_id")?,
            created_at: row.value("created_at")?,
            sent_at: row.value("sent_at")?,
            delivered_at: row.value("delivered_at")?,
        })
    }
}

const DELIVERY_COLUMNS: &str = "
    select d.id, d.tenant_id, d.recipient, d.channel, d.dedupe_key, d.run_id, d.kind, d.subject, ";
const OTHER_COLUMNS: &str = ", d.fallback, d.state, d.attempts, d.next_at, d.lease_token, d.last_error, d.provider_id,
           d.created_at, d.sent_at, d.delivered_at, d.urgency, d.hold_reason, d.due_at, d.digest_id, d.maybe_delivered, d.subject_ref
      from deliveries d ";
pub(super) const SELECT_DELIVERY: &str = sql!(DELIVERY_COLUMNS, "d.body", OTHER_COLUMNS);

/// Beginning of a page's statement: the rows that match are measured by what lists have of them.
const MEASURED: &str = "with page as materialized (
    select d.id, coalesce(octet_length(d.subject), 0) + coalesce(octet_length(d.last_error), 0)
                 + octet_length(cast(d.fallback as text)) as bytes
      from deliveries d where true";
const WHOLE: Split = fitting!(SELECT_DELIVERY, "d.id");
const BRIEF: Split = fitting!(
    sql!(
        DELIVERY_COLUMNS,
        "substr(d.body, 1, 1000) as body, cast(octet_length(d.body) as bigint) as text_bytes",
        OTHER_COLUMNS
    ),
    "d.id"
);

/// A delivery as a list shows it: with the beginning of its text.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema, sqlx_macros::FromRow)]
pub struct DeliverySummary {
    /// The delivery, its long texts left out.
    #[serde(flatten)]
    #[sqlx(flatten)]
    pub delivery: Delivery,
    /// How long the whole text is, in bytes of UTF-8; a list has its first 1,000 characters.
    #[schema(required)]
    pub text_bytes: Option<i64>,
}

impl Store {
    /// Puts one message into the outbox; none where its key is taken.
    pub async fn post_delivery(&self, delivery: &NewDelivery) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write_unconfined(Some(delivery.tenant_id.as_str())).await?;
        write.set_rls_tenant(Some(delivery.tenant_id.as_str())).await?;
        let tx = &mut write.tx();
        tx.post(&[delivery], now).await?;
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(())
    }

    /// The delivery of this key on any channel, if there is one: the first that was made.
    pub async fn find_delivery(&self, scope: &Scope, tenant: &str, key: &str) -> Result<Delivery, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found: Option<Delivery> = read
            .query(sql!(
                SELECT_DELIVERY,
                "where d.tenant_id = $1 and d.recipient = $1 and d.dedupe_key = $2 and ($3 is null or d.tenant_id = $3)
                 order by d.id limit 1"
            ))
            .bind(text(tenant))
            .bind(text(key))
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        found.ok_or(StoreError::NotFound)
    }

    /// One delivery.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn get_delivery(&self, scope: &Scope, id: Uuid) -> Result<Delivery, StoreError> {
        self.find_delivery_by_id(scope, id).await?.ok_or(StoreError::NotFound)
    }

    /// One delivery, if it is there.
    pub async fn find_delivery_by_id(&self, scope: &Scope, id: Uuid) -> Result<Option<Delivery>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found = read
            .query(sql!(SELECT_DELIVERY, "where d.id = $1 and ($2 is null or d.tenant_id = $2)"))
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        Ok(found)
    }

    /// Deliveries that match, newest first.
    pub async fn list_deliveries(&self, scope: &Scope, filter: &DeliveryFilter) -> Result<Vec<Delivery>, StoreError> {
        Ok(self.page_of_deliveries(scope, filter, WHOLE, UNBOUNDED).await?.rows)
    }

    /// A page of deliveries that match, newest first, as lists show them.
    pub async fn delivery_summaries(
        &self,
        scope: &Scope,
        filter: &DeliveryFilter,
    ) -> Result<RowPage<DeliverySummary>, StoreError> {
        self.page_of_deliveries(scope, filter, BRIEF, PAGE_BYTES).await
    }

    async fn page_of_deliveries<T: SqlRecord>(
        &self,
        scope: &Scope,
        filter: &DeliveryFilter,
        select: Split,
        bound: i64,
    ) -> Result<RowPage<T>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
            query.push_key("d.tenant_id", text(tenant).into_owned());
            order = "d.tenant_id desc, ";
        }
        if let Some(run_id) = filter.run_id {
            query.push_key("d.run_id", run_id);
            order = "d.run_id desc, ";
        }
        if let Some(state) = filter.state {
            query.push(" and d.state = ").push_bind(state.as_str());
        }
        if let Some(channel) = &filter.channel {
            query.push(" and d.channel = ").push_bind(text(channel).into_owned());
        }
        if let Some(digest) = filter.digest_id {
            query.push_key("d.digest_id", digest);
            order = "d.digest_id desc, ";
        }
        if let Some(before) = filter.before {
            let tenant = [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten().next_back();
            match filter.digest_id.map(|id| ("d.digest_id", id)).or(filter.run_id.map(|id| ("d.run_id", id))) {
                Some(key) => query.push_before(Some(key), "d.id", before),
                None => {
                    let key = tenant.map(|tenant| ("d.tenant_id", text(tenant).into_owned()));
                    query.push_before(key, "d.id", before)
                }
            };
        }
        push_page(&mut query, (order, "d.id"), filter.limit, (select, bound));
        let rows = query.finish().rows().await?;
        let found = RowPage::from_rows(&self.unreadable, "deliveries", &rows, filter.limit, Ok);
        read.end().await?;
        Ok(found)
    }

    /// Sends a failed or doubtful delivery again, with all its attempts before it; answers how it stands then. A digest
    /// goes with all that it tells; what a digest told goes by itself. `told` makes the answer that is remembered in
    /// the same transaction.
    pub async fn retry_delivery(
        &self,
        scope: &Scope,
        id: Uuid,
        told: impl Fn(&Delivery) -> Result<Option<Idempotency>, StoreError> + Send + Sync,
    ) -> Result<StoredAnswer<Delivery>, StoreError> {
        let now = self.clock.now();
        let before = self.get_delivery(scope, id).await?;
        let state =
            before.state.on(DeliveryEvent::Again).map_err(|illegal| StoreError::Conflict(illegal.to_string()))?;
        let again = Delivery {
            state,
            attempts: 0,
            next_at: Some(now),
            hold_reason: None,
            due_at: Some(now),
            digest_id: None,
            maybe_delivered: false,
            ..before.clone()
        };
        let idempotency = told(&again)?;
        let mut write = self.db.write_unconfined(scope.tenant()).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, idempotency.as_ref(), now).await? {
            return Ok(answer);
        }
        write.set_rls_tenant(scope.tenant()).await?;
        let tx = &mut write.tx();
        let changed = tx
            .query(
                "update deliveries set state = $3, attempts = 0, next_at = $4, lease_token = 0, hold_reason = null,
                        due_at = $4, digest_id = null, maybe_delivered = false
                  where id = $1 and state = $2 and ($5 is null or tenant_id = $5)",
            )
            .bind(id)
            .bind(before.state.as_str())
            .bind(state.as_str())
            .bind(now)
            .bind(scope.tenant())
            .execute()
            .await?;
        if changed == 0 {
            return Err(StoreError::Conflict("the delivery has changed meanwhile".into()));
        }
        if before.kind == MessageKind::Digest {
            tx.query(
                "update deliveries set state = 'pending'
                  where digest_id = $1 and state in ('failed', 'unknown') and ($2 is null or tenant_id = $2)",
            )
            .bind(id)
            .bind(scope.tenant())
            .execute()
            .await?;
        }
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(StoredAnswer::Done(again))
    }

    /// How many deliveries are pending.
    pub async fn count_deliveries(&self, scope: &Scope) -> Result<i64, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build("select count(*) from deliveries where state = 'pending'");
        if let Some(tenant) = scope.tenant() {
            query.push(" and tenant_id = ").push_bind(tenant);
        }
        let found = query.finish().scalar().await?;
        read.end().await?;
        Ok(found)
    }
}
