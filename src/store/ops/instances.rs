//! Instances of the service, as rows: each says once a minute that it lives. Nothing is decided by them; leases say who
//! holds what. A row goes when its instance stops, and a day after the last sign of one that died.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::store::db::text::{optional, text};
use crate::store::{Store, StoreError};

/// How long an instance that says nothing any more is listed.
const LISTED_FOR: TimeDelta = TimeDelta::days(1);
/// Instances that are listed.
const LISTED: i64 = 200;

const SEEN: &str = "
    insert into instances (id, host, version, started_at, seen_at) values ($1, $2, $3, $4, $5)
    on conflict (id) do update set seen_at = excluded.seen_at";

/// Where there are more, those that died first are left out, and never one that lives.
const LIST: &str = "
    select id, host, version, started_at, seen_at
      from (select * from instances order by seen_at desc, id limit $1) seen
     order by started_at, id";

/// An instance that lives, or that has said nothing for less than a day.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct InstanceRecord {
    /// Its id: claims and leases carry it.
    pub id: Uuid,
    /// The machine's name, where it is known.
    pub host: Option<String>,
    /// Version of the program.
    pub version: String,
    /// The instant of its start.
    pub started_at: DateTime<Utc>,
    /// The instant at which it last said that it lives.
    pub seen_at: DateTime<Utc>,
}

impl Store {
    /// Says that this instance lives, and forgets those that have said nothing for a day.
    pub async fn announce_instance(
        &self,
        id: Uuid,
        host: Option<&str>,
        started_at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let _ = self.own_instance.set(id);
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(SEEN)
            .bind(id)
            .bind(optional(host))
            .bind(text(env!("CARGO_PKG_VERSION")))
            .bind(started_at)
            .bind(now)
            .execute()
            .await?;
        tx.query("delete from instances where seen_at < $1").bind(now - LISTED_FOR).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// Takes the row of an instance away that stops.
    pub async fn withdraw_instance(&self, id: Uuid) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write.query("delete from instances where id = $1").bind(id).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// The instances, in the order of their starts; of many the 200 that have said last that they live.
    pub async fn list_instances(&self) -> Result<Vec<InstanceRecord>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read.query(LIST).bind(LISTED).all().await?)
    }

    /// The id of the instance that this process is; `None` before it has said that it lives.
    pub fn own_instance(&self) -> Option<Uuid> {
        self.own_instance.get().copied()
    }
}
