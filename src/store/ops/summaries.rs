//! Money for calls of models beside the turns of runs, summaries and extractions: what a tenant may spend on each of
//! them within an hour, over all instances.
//!
//! Stands beside the quotas by the minute, in the row of its own name, in micro-dollars. What a call may come to is
//! taken before it is made, and what it did not come to is given back. After a crash the rest of the hour goes without.

use crate::domain::quota::meter::minute_of;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::text;
use crate::store::{Store, StoreError};

/// The names of the rows.
const SUMMARIES: &str = "summaries";
const EXTRACTIONS: &str = "extractions";
/// Minutes of an hour.
const HOUR: i64 = 60;

/// Takes the amount, where it is left in this hour.
pub(in crate::store) const TAKE: &str = "
    insert into quota_minutes (tenant_id, quota, minute, used, granted) values ($1, $2, $3, $4, 0)
    on conflict (tenant_id, quota) do update
       set used = case when quota_minutes.minute >= $3 then quota_minutes.used else 0 end + excluded.used,
           minute = case when quota_minutes.minute >= $3 then quota_minutes.minute else $3 end
     where case when quota_minutes.minute >= $3 then quota_minutes.used else 0 end + excluded.used <= $5";

impl Store {
    /// Takes what a summary may come to, in micro-dollars; whether so much is left of the limit in this hour.
    pub async fn take_summary_money(&self, tenant: &str, micros: i64, limit: i64) -> Result<bool, StoreError> {
        self.take_money(tenant, SUMMARIES, micros, limit).await
    }

    /// Gives back what a summary did not come to, as long as the hour lasts.
    pub async fn give_summary_money_back(&self, tenant: &str, micros: i64) -> Result<(), StoreError> {
        self.give_money_back(tenant, SUMMARIES, micros).await
    }

    /// Takes what an extraction may come to, in micro-dollars; whether so much is left of the limit in this hour.
    pub async fn take_extraction_money(&self, tenant: &str, micros: i64, limit: i64) -> Result<bool, StoreError> {
        self.take_money(tenant, EXTRACTIONS, micros, limit).await
    }

    /// Gives back what an extraction did not come to, as long as the hour lasts.
    pub async fn give_extraction_money_back(&self, tenant: &str, micros: i64) -> Result<(), StoreError> {
        self.give_money_back(tenant, EXTRACTIONS, micros).await
    }

    async fn take_money(&self, tenant: &str, of: &str, micros: i64, limit: i64) -> Result<bool, StoreError> {
        if micros > limit {
            return Ok(false);
        }
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(tenant))).await?;
        let taken = write
            .tx()
            .query(TAKE)
            .bind(text(tenant))
            .bind(of)
            .bind(self.this_hour())
            .bind(micros)
            .bind(limit)
            .execute()
            .await?;
        write.commit().await?;
        Ok(taken == 1)
    }

    async fn give_money_back(&self, tenant: &str, of: &str, micros: i64) -> Result<(), StoreError> {
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(tenant))).await?;
        write
            .tx()
            .query("update quota_minutes set used = used - $4 where tenant_id = $1 and quota = $2 and minute = $3 and used >= $4")
            .bind(text(tenant))
            .bind(of)
            .bind(self.this_hour())
            .bind(micros)
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }

    /// The first minute of this hour.
    fn this_hour(&self) -> i64 {
        let minute = minute_of(self.clock.now());
        minute - minute.rem_euclid(HOUR)
    }
}
