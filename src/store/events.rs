//! The log of the embedded bus, and its queue: what was published once by its key, and what nobody has acknowledged.
//!
//! A published event is in the log and in the queue after one commit. Reading leases an entry, acknowledging removes it
//! from the queue; the log keeps it until it is forgotten by age, never before it was acknowledged.

use chrono::{DateTime, Utc};
use sqlx::QueryBuilder;
use uuid::Uuid;

use crate::event::Event;
use crate::id::Scope;
use crate::store::text::{document, text};
use crate::store::{Split, Store, StoreError, Topic};

/// Rows of one statement: six parameters each, and SQLite takes 32,766 of them.
const ROWS: usize = 500;

/// An entry that was leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedEvent {
    pub seq: i64,
    /// The event as JSON, or what somebody else has put there.
    pub body: String,
    /// How often it was leased, this time included.
    pub deliveries: i32,
}

/// Which part of the log to read: after `after`, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Exact.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    pub after: i64,
    pub limit: i64,
}

/// How much of the queue waits, and how much is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct EventBacklog {
    pub unread: i64,
    pub leased: i64,
}

/// On Postgres a lower `seq` could commit after a higher one, and who reads the log behind the higher would never see
/// it. One publishing transaction at a time makes the order of `seq` the order of commits.
pub(super) const IN_TURN: Split = Split { postgres: "select pg_advisory_xact_lock(8243101700221)", sqlite: "select 1" };

const LEASE: Split = Split {
    postgres: "
        with due as (
            select seq from event_queue where lease_until is null or lease_until <= $1
             order by seq limit $2 for update skip locked
        ), leased as (
            update event_queue q set lease_until = $3, consumer = $4, deliveries = q.deliveries + 1
              from due where q.seq = due.seq
            returning q.seq, q.deliveries
        )
        select l.seq, cast(e.body as text), l.deliveries from leased l left join events e on e.seq = l.seq order by l.seq",
    sqlite: "
        update event_queue set lease_until = $3, consumer = $4, deliveries = deliveries + 1
         where seq in (
            select seq from event_queue where lease_until is null or lease_until <= $1 order by seq limit $2)
        returning seq, (select e.body from events e where e.seq = event_queue.seq), deliveries",
};

/// Narrows a query to the tenant of a scope, and to the source and type of a filter; a type may end in `*`.
macro_rules! narrow {
    ($query:ident, $scope:expr, $filter:expr) => {
        if let Some(tenant) = $scope.tenant() {
            $query.push(" and tenant_id = ").push_bind(tenant.to_owned());
        }
        if let Some(source) = &$filter.source {
            $query.push(" and source = ").push_bind(text(source).into_owned());
        }
        match $filter.kind.as_deref().map(|kind| (kind, kind.strip_suffix('*'))) {
            None => {}
            Some((_, Some(beginning))) => {
                let length = beginning.chars().count() as i32;
                $query.push(" and substr(type, 1, ").push_bind(length).push(") = ");
                $query.push_bind(text(beginning).into_owned());
            }
            Some((kind, None)) => {
                $query.push(" and type = ").push_bind(text(kind).into_owned());
            }
        }
    };
}
pub(super) use narrow;

impl Store {
    /// Takes events on, all of them or none; those that are known by their key already change nothing. Answers how many
    /// were new.
    pub async fn publish_events(&self, events: &[Event]) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let mut fresh = 0;
        on_write!(self.db, &scope_of(events), |conn| {
            sqlx::query(self.db.text(IN_TURN)).execute(&mut *conn).await?;
            for some in events.chunks(ROWS) {
                let mut insert =
                    QueryBuilder::new("insert into events (event_key, tenant_id, source, type, body, created_at) ");
                let bodies = some.iter().map(document).collect::<Result<Vec<_>, StoreError>>()?;
                insert.push_values(some.iter().zip(bodies), |mut row, (event, body)| {
                    row.push_bind(event.key())
                        .push_bind(event.tenant.as_str().to_owned())
                        .push_bind(event.source.clone())
                        .push_bind(event.kind.clone())
                        .push_bind(body)
                        .push_bind(now);
                });
                insert.push(" on conflict (event_key) do nothing returning seq");
                let made: Vec<i64> = insert.build_query_scalar().fetch_all(&mut *conn).await?;
                fresh += made.len() as u64;
                if !made.is_empty() {
                    let mut queue = QueryBuilder::new("insert into event_queue (seq) ");
                    queue.push_values(made, |mut row, seq| {
                        row.push_bind(seq);
                    });
                    queue.build().execute(&mut *conn).await?;
                }
            }
        });
        self.hint(Topic::Events);
        Ok(fresh)
    }

    /// Leases the oldest entries that nobody holds until `until`, those whose lease has run out among them. In order.
    pub async fn lease_events(
        &self,
        consumer: Uuid,
        until: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<LeasedEvent>, StoreError> {
        let now = self.clock.now();
        let rows: Vec<(i64, Option<String>, i32)> = on_write!(self.db, |conn| {
            sqlx::query_as(self.db.text(LEASE)).bind(now).bind(limit).bind(until).bind(consumer).fetch_all(conn).await?
        });
        let leased = |(seq, body, deliveries): (i64, Option<String>, i32)| LeasedEvent {
            seq,
            body: body.unwrap_or_default(),
            deliveries,
        };
        let mut entries: Vec<LeasedEvent> = rows.into_iter().map(leased).collect();
        entries.sort_unstable_by_key(|entry| entry.seq);
        Ok(entries)
    }

    /// Removes entries from the queue; those that are gone already stay gone.
    pub async fn acknowledge_events(&self, seqs: &[i64]) -> Result<(), StoreError> {
        if seqs.is_empty() {
            return Ok(());
        }
        on_write!(self.db, |conn| {
            for some in seqs.chunks(ROWS) {
                let mut query = QueryBuilder::new("delete from event_queue where seq in (");
                let mut list = query.separated(", ");
                for seq in some {
                    list.push_bind(*seq);
                }
                query.push(")");
                query.build().execute(&mut *conn).await?;
            }
        });
        Ok(())
    }

    /// Events of the log with their place in it, oldest first.
    pub async fn read_events(&self, scope: &Scope, filter: &EventFilter) -> Result<Vec<(i64, String)>, StoreError> {
        Ok(on_read!(self.db, scope, |conn| {
            let mut query = QueryBuilder::new("select seq, cast(body as text) from events where seq > ");
            query.push_bind(filter.after);
            narrow!(query, scope, filter);
            query.push(" order by seq limit ").push_bind(filter.limit);
            query.build_query_as().fetch_all(conn).await?
        }))
    }

    /// The place of the newest event in the log; 0 where there is none.
    pub async fn last_event(&self, scope: &Scope) -> Result<i64, StoreError> {
        Ok(on_read!(self.db, scope, |conn| {
            sqlx::query_scalar("select coalesce(max(seq), 0) from events where ($1 is null or tenant_id = $1)")
                .bind(scope.tenant())
                .fetch_one(conn)
                .await?
        }))
    }

    /// Deletes up to `limit` events that were published before `before` and acknowledged; answers how many.
    pub async fn forget_events(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        Ok(on_write!(self.db, |conn| {
            sqlx::query(
                "delete from events where seq in (
                    select e.seq from events e
                     where e.created_at < $1 and not exists (select 1 from event_queue q where q.seq = e.seq)
                     order by e.created_at limit $2)",
            )
            .bind(before)
            .bind(limit)
            .execute(conn)
            .await?
            .rows_affected()
        }))
    }

    /// How many entries wait.
    pub async fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        let now = self.clock.now();
        Ok(on_read!(self.db, |conn| {
            sqlx::query_as(
                "select count(*) filter (where lease_until is null or lease_until <= $1) as unread,
                        count(*) filter (where lease_until > $1) as leased from event_queue",
            )
            .bind(now)
            .fetch_one(conn)
            .await?
        }))
    }
}

/// The tenant whose events these are; every tenant where they belong to several.
fn scope_of(events: &[Event]) -> Scope {
    match events.split_first() {
        Some((first, rest)) if rest.iter().all(|event| event.tenant == first.tenant) => {
            Scope::Only(first.tenant.clone())
        }
        _ => Scope::Every,
    }
}
