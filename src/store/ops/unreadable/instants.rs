//! Instants by which services find their rows, and which can't be read: on SQLite, whose columns take any text.
//!
//! Texts are in the order of instants as long as each is one. Another one stands at an end of its index: at the first
//! it would keep those behind it from being read, and at the last no service would find it. Both ends are looked at, by
//! the service that can't read on, and by the rescuer once in a while. On Postgres the type of the columns lets no
//! other text in.

use chrono::{DateTime, Utc};
use sqlx::Row;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::task::change::FaultyPart;
use crate::store::db::Db;
use crate::store::ops::unreadable::RETRY_AFTER;
use crate::store::sql::sql;
use crate::store::tasks::disabling::{UNREADABLE, stop_and_disable};
use crate::store::tx::Rows;
use crate::store::{Store, StoreError};

/// An index of rows by an instant.
struct InstantIndex {
    /// The table whose row is told of.
    table: &'static str,
    /// Reads up to so many rows (`$1`) at each of its ends: their places, ids and instants.
    ends: &'static str,
    /// Gives the row at a place (`$1`) another instant (`$2`). `None`: its task is disabled, as where it is read as
    /// due.
    set_aside: Option<&'static str>,
}

/// A row at an end of an index whose instant can't be read.
struct InstantFault {
    place: i64,
    /// `None`: its id is none.
    id: Option<Uuid>,
    why: String,
}

/// Rows that are looked at, at each end of an index: once in a while, and where one of them can't be read on.
const LOOKED_AT: i64 = 100;
const LOOKED_AT_FOR_ONE: i64 = 10_000;

const ENDS: &str = "
    select * from (select rowid as place, {id} as id, {at} as at from {table} {index} where {having}
                    order by {at} limit $1)
     union
    select * from (select rowid as place, {id} as id, {at} as at from {table} {index} where {having}
                    order by {at} desc limit $1)";
/// Runs that are ready are found by their priority first. Those at the first end are met by a take.
const READY_BEHIND_ALL: &str = "
    select rowid as place, run_id as id, run_at as at from queue
     where state = 'ready' and priority in (-1, 0, 1) and run_at > ':' limit $1";
const SET_ASIDE: &str = "update {table} set {at} = $2 where rowid = $1";

const INDEXES: [InstantIndex; 11] = [
    InstantIndex {
        table: "tasks",
        ends: sql!(
            ENDS; "{table}" = "due"; "{id}" = "task_id"; "{at}" = "next_at"; "{index}" = "";
            "{having}" = "kind = 'schedule' and next_at is not null"
        ),
        set_aside: None,
    },
    InstantIndex {
        table: "due",
        ends: sql!(
            ENDS; "{table}" = "due"; "{id}" = "task_id"; "{at}" = "next_at"; "{index}" = "";
            "{having}" = "kind = 'condition' and next_at is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "due"; "{at}" = "next_at")),
    },
    InstantIndex {
        table: "queue",
        ends: READY_BEHIND_ALL,
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "queue"; "{at}" = "run_at")),
    },
    // a worker that has the lease renews it as its own
    InstantIndex {
        table: "queue",
        ends: sql!(
            ENDS; "{table}" = "queue"; "{id}" = "run_id"; "{at}" = "lease_until"; "{index}" = "";
            "{having}" = "state <> 'ready' and lease_until is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "queue"; "{at}" = "lease_until")),
    },
    InstantIndex {
        table: "queue",
        ends: sql!(
            ENDS; "{table}" = "queue"; "{id}" = "run_id"; "{at}" = "deadline_at"; "{index}" = "";
            "{having}" = "deadline_at is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "queue"; "{at}" = "deadline_at")),
    },
    InstantIndex {
        table: "parked",
        ends: sql!(
            ENDS; "{table}" = "parked"; "{id}" = "run_id"; "{at}" = "wake_at"; "{index}" = ""; "{having}" = "true"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "parked"; "{at}" = "wake_at")),
    },
    InstantIndex {
        table: "deliveries",
        ends: sql!(
            ENDS; "{table}" = "deliveries"; "{id}" = "id"; "{at}" = "next_at";
            "{index}" = "indexed by deliveries_next"; "{having}" = "state = 'pending' and next_at is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "deliveries"; "{at}" = "next_at")),
    },
    InstantIndex {
        table: "deliveries",
        ends: sql!(
            ENDS; "{table}" = "deliveries"; "{id}" = "id"; "{at}" = "sent_at";
            "{index}" = "indexed by deliveries_sent"; "{having}" = "state = 'sent' and sent_at is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "deliveries"; "{at}" = "sent_at")),
    },
    InstantIndex {
        table: "event_windows",
        ends: sql!(
            ENDS; "{table}" = "event_windows"; "{id}" = "id"; "{at}" = "closes_at"; "{index}" = "";
            "{having}" = "closes_at is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "event_windows"; "{at}" = "closes_at")),
    },
    InstantIndex {
        table: "event_queue",
        ends: sql!(
            ENDS; "{table}" = "event_queue"; "{id}" = "seq"; "{at}" = "lease_until"; "{index}" = "";
            "{having}" = "lease_until is not null"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "event_queue"; "{at}" = "lease_until")),
    },
    InstantIndex {
        table: "extractions",
        ends: sql!(
            ENDS; "{table}" = "extractions"; "{id}" = "run_id"; "{at}" = "due_at"; "{index}" = ""; "{having}" = "true"
        ),
        set_aside: Some(sql!(SET_ASIDE; "{table}" = "extractions"; "{at}" = "due_at")),
    },
];

impl Store {
    /// Reads the first instants of such indexes. Where one can't be read, it is set aside, and what follows it is read.
    pub(in crate::store) async fn past_unreadable<T, R>(&self, read: impl Fn() -> R) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, StoreError>>,
    {
        let why = match read().await {
            Err(StoreError::Corrupt(why)) => why,
            done => return done,
        };
        // such a look is long: where it found nothing, the reason is another one
        if !self.unreadable.may_search(&why, self.clock.now()) {
            return Err(StoreError::Corrupt(why));
        }
        match self.set_aside_among(LOOKED_AT_FOR_ONE).await? {
            0 => Err(StoreError::Corrupt(why)),
            _ => {
                self.unreadable.search_was_successful(&why);
                read().await
            }
        }
    }

    /// Sets rows aside whose instant can't be read, at the ends of the indexes by which services find their work: each
    /// is looked at again in an hour, and a schedule is disabled. Answers how many; 0 on Postgres, where each can be
    /// read.
    pub async fn set_aside_instants(&self) -> Result<usize, StoreError> {
        self.set_aside_among(LOOKED_AT).await
    }

    async fn set_aside_among(&self, limit: i64) -> Result<usize, StoreError> {
        let mut count = 0;
        if matches!(self.db, Db::Sqlite { .. }) {
            for index in &INDEXES {
                count += self.set_aside_ends(index, limit).await?;
            }
        }
        Ok(count)
    }

    async fn set_aside_ends(&self, index: &InstantIndex, limit: i64) -> Result<usize, StoreError> {
        let mut read = self.db.read().await?;
        let ends = read.query(index.ends).bind(limit).rows().await?;
        read.end().await?;
        if faults(&ends).is_empty() {
            return Ok(0);
        }
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        // as they are by now
        let found = faults(&tx.query(index.ends).bind(limit).rows().await?);
        for fault in &found {
            match (index.set_aside, fault.id) {
                (Some(update), _) => tx.query(update).bind(fault.place).bind(now + RETRY_AFTER).execute().await?,
                (None, Some(task)) => stop_and_disable(tx, task, (FaultyPart::Trigger, UNREADABLE), now).await?,
                (None, None) => 0,
            };
        }
        write.commit().await?;
        for InstantFault { place, id, why } in &found {
            match id {
                Some(id) => self.unreadable.report(index.table, id, why),
                None => self.unreadable.report(index.table, place, why),
            }
        }
        Ok(found.len())
    }
}

/// The rows among these whose instant can't be read.
fn faults(ends: &Rows) -> Vec<InstantFault> {
    let Rows::Sqlite(rows) = ends else { return Vec::new() };
    let mut found = Vec::new();
    for row in rows {
        if let Err(error) = row.try_get::<DateTime<Utc>, _>("at")
            && let Ok(place) = row.try_get("place")
        {
            found.push(InstantFault { place, id: row.try_get("id").ok(), why: error.to_string() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::scratch::Scratch;
    use crate::store::db::sqlite_plan;
    use crate::store::ops::unreadable::SEARCHED_AGAIN;

    async fn read_in_vain() -> Result<(), StoreError> {
        Err(StoreError::Corrupt("it is no number".into()))
    }

    #[tokio::test]
    async fn rows_are_searched_once_a_minute_for_one_reason() {
        let scratch = Scratch::open().await;
        let task = scratch.task("a", serde_json::json!({ "interval": "1h" })).await;
        let break_instant = async || {
            let mut write = scratch.store.db.write(&Scope::Every).await.unwrap();
            let broken = "update due set kind = 'condition', next_at = 'soon' where task_id = $1";
            write.query(broken).bind(task.id).execute().await.unwrap();
            write.commit().await.unwrap();
        };
        let is_found = async || {
            let found = scratch.store.set_aside_instants().await.unwrap();
            found == 1
        };
        assert!(scratch.store.past_unreadable(read_in_vain).await.is_err(), "nothing is to be found");
        break_instant().await;
        assert!(scratch.store.past_unreadable(read_in_vain).await.is_err());
        assert!(is_found().await, "it was not searched for again");
        break_instant().await;
        let another = || async { Err::<(), _>(StoreError::Corrupt("it is no instant".into())) };
        assert!(scratch.store.past_unreadable(another).await.is_err());
        assert!(!is_found().await, "another reason is searched for at once");
        break_instant().await;
        scratch.clock.advance(SEARCHED_AGAIN);
        assert!(scratch.store.past_unreadable(read_in_vain).await.is_err());
        assert!(!is_found().await, "a minute has passed");
        // what was found is searched for again at once
        break_instant().await;
        assert!(scratch.store.past_unreadable(read_in_vain).await.is_err());
        assert!(!is_found().await);
        scratch.store.close().await;
    }

    #[tokio::test]
    async fn ends_are_read_by_an_index() {
        for index in &INDEXES {
            let plan = sqlite_plan(index.ends).await;
            let on_table = plan.iter().filter(|step| step.starts_with("SCAN") || step.starts_with("SEARCH"));
            let by_index = |step: &String| step.contains("USING INDEX") || step.contains("USING COVERING INDEX");
            let of_table = on_table.filter(|step| !step.contains("(subquery-"));
            assert!(of_table.clone().count() > 0 && of_table.clone().all(by_index), "{}: {plan:?}", index.ends);
        }
    }
}
