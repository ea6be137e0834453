//! The log of the embedded bus, and its queue: what was published once by its key, and what nobody has acknowledged.
//!
//! A published event is in the log and in the queue after one commit. Reading leases an entry, acknowledging removes it
//! from the queue; the log keeps it until it is forgotten by age, never before it was acknowledged.

pub(super) mod closing;
pub(super) mod dead_letters;
pub(super) mod due_windows;
pub(super) mod event_index;
mod event_queue;
pub(super) mod matches;
pub(super) mod matching;
pub(super) mod outbox;
pub(super) mod publishing;
pub(super) mod recording;
pub(super) mod windows;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::event::event_key;
use crate::store::db::Db;
use crate::store::db::text::text;
use crate::store::events::event_queue::{ACKNOWLEDGE, LEASE, queued_tenants};
use crate::store::tx::{StatementBuilder, Tx};
use crate::store::{Split, Store, StoreError};

/// Entries that one statement deletes.
pub(super) const ROWS: usize = 500;
/// How far instants of events may be out of the order of their places: publishers wait for their turn with the instant
/// that they have, and the clocks of instances differ.
const OUT_OF_ORDER: TimeDelta = TimeDelta::seconds(10);
/// Asks for the instant of an event that is found by its place: SQLite would read all of a span of instants and put
/// them in order.
const SINCE: Split = Split { postgres: " and created_at >= ", sqlite: " and +created_at >= " };
const UNTIL: Split = Split { postgres: " and created_at < ", sqlite: " and +created_at < " };
/// Ids of a tenant, in their order, among which those that begin so are looked for.
const IDS_LOOKED_AT: i64 = 1_000;

/// Bytes of events after which one lease ends.
const LEASED_BYTES: usize = 4 * 1024 * 1024;

/// Deletes rows of a queue by their numbers; `delete` is the statement up to its list.
pub(super) async fn delete_by_seq(tx: &mut Tx<'_>, delete: &'static str, seqs: &[i64]) -> Result<(), StoreError> {
    for some in seqs.chunks(ROWS) {
        let mut query = tx.build(delete);
        query.list(some.iter()).push(")");
        query.finish().execute().await?;
    }
    Ok(())
}

/// An entry that was leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedEvent {
    /// Position in the log.
    pub seq: i64,
    /// The event as JSON, or what somebody else has put there.
    pub body: String,
    /// How often it was leased, this time included.
    pub deliveries: i32,
}

/// Entries that were leased together, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeasedEntries {
    /// Events under the lease, in order.
    pub events: Vec<LeasedEvent>,
    /// After this tenant the next turn begins; empty: with the first, since all had theirs.
    pub turn: String,
}

type Row = (i64, Option<String>, i32, String);

/// Which part of the log to read, oldest or newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Exact.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    /// Newest first, instead of oldest first.
    pub newest_first: bool,
    /// Only positions behind this one in that order.
    pub after: i64,
    /// Only positions before this one in that order.
    pub end: Option<i64>,
    /// Published from this instant on.
    pub since: Option<DateTime<Utc>>,
    /// Published before this instant.
    pub until: Option<DateTime<Utc>>,
    /// Most rows of the page.
    pub limit: i64,
}

/// How much of the queue waits, and how much is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct EventBacklog {
    /// Events that were not leased yet.
    pub unread: i64,
    /// Events under a lease.
    pub leased: i64,
}

/// Narrows a query to the tenant of a scope, and to the source and type of a filter; a type may end in `*`.
pub(super) fn filter_query(query: &mut StatementBuilder<'_>, scope: &Scope, source: Option<&str>, kind: Option<&str>) {
    if let Some(tenant) = scope.tenant() {
        query.push_key("tenant_id", tenant);
    }
    if let Some(source) = source {
        query.push(" and source = ").push_bind(text(source));
    }
    push_pattern(query, "type", kind);
}

/// Narrows a query to what a column is, or begins with where the pattern ends in `*`.
fn push_pattern(query: &mut StatementBuilder<'_>, column: &str, pattern: Option<&str>) {
    match pattern.map(|pattern| (pattern, pattern.strip_suffix('*'))) {
        None => {}
        Some((_, Some(beginning))) => {
            let length = beginning.chars().count() as i32;
            query.push(" and substr(").push(column).push(", 1, ").push_bind(length).push(") = ");
            query.push_bind(text(beginning));
        }
        Some((exact, None)) => {
            query.push(" and ").push(column).push(" = ").push_bind(text(exact));
        }
    }
}

impl Store {
    /// Leases entries that nobody holds until `until`, those whose lease has run out among them: the oldest of each
    /// tenant, tenants in turn beginning after `after`, and none of those that are `full`. In order. An entry whose row
    /// can't be read is left to its lease. It ends after some MiB of events; at least one is leased where there is one.
    pub async fn lease_events(
        &self,
        consumer: Uuid,
        until: DateTime<Utc>,
        limit: usize,
        after: &str,
        full: &[Tenant],
    ) -> Result<LeasedEntries, StoreError> {
        let now = self.clock.now();
        let at_once = if matches!(self.db, Db::Postgres { .. }) { limit } else { 1 };
        // without its lease an entry comes again, and changes nothing
        let mut write = self.db.statements_first().await?;
        let tx = &mut write.tx();
        let most = (limit + full.len()) as i64;
        let mut tenants = queued_tenants(tx, after, most).await?;
        if !after.is_empty() && tenants.len() < limit + full.len() {
            // and on from the first
            let known: HashSet<String> = tenants.iter().cloned().collect();
            let first = queued_tenants(tx, "", most).await?;
            tenants.extend(first.into_iter().filter(|tenant| !known.contains(tenant)));
        }
        tenants.retain(|tenant| !full.iter().any(|full| full.as_str() == tenant));
        let turn = tenants.get(limit.saturating_sub(1)).cloned().unwrap_or_default();
        tenants.truncate(limit);
        let mut leased = LeasedEntries { events: Vec::new(), turn };
        let (mut bytes, mut is_first) = (LEASED_BYTES, true);
        while bytes > 0 && !tenants.is_empty() && limit - leased.events.len() >= tenants.len() {
            let share = (limit - leased.events.len()) / tenants.len();
            let mut counts: HashMap<String, usize> = HashMap::new();
            let pieces = tenants.len().div_ceil(at_once);
            for (piece, some) in tenants.chunks(at_once).enumerate() {
                if bytes == 0 {
                    break;
                }
                let rows = tx
                    .query(LEASE)
                    .bind(now)
                    .bind(share as i64)
                    .bind(until)
                    .bind(consumer)
                    .bind(serde_json::to_string(some).unwrap_or_default())
                    .bind((bytes / (pieces - piece)) as i64)
                    .rows()
                    .await?;
                let (rows, _) = self.unreadable.partition_readable::<Row, _, i64>("event_queue", &rows, Ok);
                for (seq, body, deliveries, tenant) in rows {
                    *counts.entry(tenant).or_default() += 1;
                    let body = body.unwrap_or_default();
                    bytes = bytes.saturating_sub(body.len());
                    leased.events.push(LeasedEvent { seq, body, deliveries });
                }
            }
            // the bytes may be used up before all tenants had their turn
            if std::mem::take(&mut is_first)
                && let Some(last) = tenants.iter().rposition(|tenant| counts.contains_key(tenant))
                && last + 1 < tenants.len()
            {
                leased.turn.clone_from(&tenants[last]);
            }
            // who had less has no more
            tenants.retain(|tenant| counts.get(tenant) == Some(&share));
        }
        leased.events.sort_unstable_by_key(|entry| entry.seq);
        write.commit().await?;
        Ok(leased)
    }

    /// Removes entries from the queue; those that are gone already stay gone.
    pub async fn acknowledge_events(&self, seqs: &[i64]) -> Result<(), StoreError> {
        if seqs.is_empty() {
            return Ok(());
        }
        let mut write = self.db.statements_first().await?;
        // an entry that is there again changes nothing
        write.query(ACKNOWLEDGE).bind(serde_json::to_string(seqs).unwrap_or_default()).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// Events of the log with their place in it, in the order of the filter.
    pub async fn read_events(&self, scope: &Scope, filter: &EventFilter) -> Result<Vec<(i64, String)>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(match filter.newest_first {
            true => "select seq, cast(body as text) from events where seq < ",
            false => "select seq, cast(body as text) from events where seq > ",
        });
        query.push_bind(filter.after);
        if let Some(end) = filter.end {
            query.push(if filter.newest_first { " and seq > " } else { " and seq < " }).push_bind(end);
        }
        if let Some(since) = filter.since {
            query.push_split(SINCE).push_bind(since);
        }
        if let Some(until) = filter.until {
            query.push_split(UNTIL).push_bind(until);
        }
        filter_query(&mut query, scope, filter.source.as_deref(), filter.kind.as_deref());
        query.push(match (scope.tenant(), filter.newest_first) {
            (Some(_), false) => " order by tenant_id, seq limit ",
            (Some(_), true) => " order by tenant_id desc, seq desc limit ",
            (None, false) => " order by seq limit ",
            (None, true) => " order by seq desc limit ",
        });
        query.push_bind(filter.limit);
        let found = query.finish().all().await?;
        read.end().await?;
        Ok(found)
    }

    /// The newest event of a tenant with this id: of a source, or of any.
    pub async fn find_event(
        &self,
        tenant: &Tenant,
        source: Option<&str>,
        id: &str,
    ) -> Result<Option<String>, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut read = self.db.read_in(&scope).await?;
        let mut query = read.build("select cast(body as text) from events where ");
        match source {
            Some(source) => {
                query.push("event_key = ").push_bind(event_key(tenant, source, id));
            }
            None => {
                query.push("true").push_key("tenant_id", tenant.as_str());
                // an id between itself and itself: one that is `=` a value is left out of an order (see `push_key`)
                query.push(" and event_id >= ").push_bind(text(id)).push(" and event_id <= ").push_bind(text(id));
                query.push(" order by tenant_id desc, event_id desc, seq desc limit 1");
            }
        }
        let found = query.finish().optional_scalar().await?;
        read.end().await?;
        Ok(found)
    }

    /// Ids of a tenant's events that begin so, two at most: of a source, or of any. Only so many are looked at, from
    /// the first in their order.
    pub async fn event_ids(
        &self,
        tenant: &Tenant,
        source: Option<&str>,
        beginning: &str,
    ) -> Result<Vec<String>, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut read = self.db.read_in(&scope).await?;
        let mut query = read.build("select distinct n.event_id from (select event_id, source from events where true");
        query.push_key("tenant_id", tenant.as_str());
        query.push(" and event_id >= ").push_bind(text(beginning));
        query.push(" order by tenant_id, event_id limit ").push_bind(IDS_LOOKED_AT).push(") n where true");
        push_pattern(&mut query, "n.event_id", Some(&format!("{beginning}*")));
        if let Some(source) = source {
            query.push(" and n.source = ").push_bind(text(source));
        }
        query.push(" limit 2");
        let found = query.finish().scalars().await?;
        read.end().await?;
        Ok(found)
    }

    /// The newest events of a tenant whose source and type fit, each exact or with a trailing `*`, as JSON: `limit` at
    /// most, newest first, of the tenant's newest `among`.
    pub async fn newest_events(
        &self,
        tenant: &Tenant,
        source: Option<&str>,
        kind: Option<&str>,
        among: i64,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut read = self.db.read_in(&scope).await?;
        // the body of an event may be long: it is read of those alone that are answered
        let mut query = read.build(
            "select (select cast(e.body as text) from events e where e.seq = f.seq)
               from (select n.seq from (select seq, source, type from events where true",
        );
        query.push_key("tenant_id", tenant.as_str());
        query.push(" order by tenant_id desc, seq desc limit ").push_bind(among).push(") n where true");
        push_pattern(&mut query, "n.source", source);
        push_pattern(&mut query, "n.type", kind);
        query.push(" order by n.seq desc limit ").push_bind(limit).push(") f order by f.seq desc");
        let found = query.finish().scalars().await?;
        read.end().await?;
        Ok(found)
    }

    /// The place of the newest event in the log; 0 where there is none.
    pub async fn last_event(&self, scope: &Scope) -> Result<i64, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build("select seq from events where true");
        filter_query(&mut query, scope, None, None);
        query.push(if scope.tenant().is_some() { " order by tenant_id desc, seq desc" } else { " order by seq desc" });
        query.push(" limit 1");
        let found = query.finish().optional_scalar().await?;
        read.end().await?;
        Ok(found.unwrap_or(0))
    }

    /// Two places between which all events are that were published from one instant on and before another, and few
    /// others: the instants decide. `None` where no instant is given, or no event is behind it.
    pub async fn event_span(
        &self,
        since: Option<DateTime<Utc>>,
        until: Option<DateTime<Utc>>,
    ) -> Result<(Option<i64>, Option<i64>), StoreError> {
        const LAST: &str = "select seq from events where created_at < $1 order by created_at desc, seq desc limit 1";
        const NEXT: &str = "select seq from events where created_at >= $1 order by created_at, seq limit 1";
        let last = match since {
            Some(since) => Some(self.event_place(LAST, since - OUT_OF_ORDER).await?.unwrap_or(0)),
            None => None,
        };
        let next = match until {
            Some(until) if until < self.clock.now() => self.event_place(NEXT, until + OUT_OF_ORDER).await?,
            // nothing is behind an instant that is to come
            _ => None,
        };
        Ok((last, next))
    }

    async fn event_place(&self, select: &'static str, instant: DateTime<Utc>) -> Result<Option<i64>, StoreError> {
        let mut read = self.db.read().await?;
        let found = read.query(select).bind(instant).optional_scalar().await?;
        read.end().await?;
        Ok(found)
    }

    /// Deletes up to `limit` events that were published before `before` and acknowledged; answers how many.
    pub async fn forget_events(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from events where seq in (
                select e.seq from events e
                 where e.created_at < $1 and not exists (select 1 from event_queue q where q.seq = e.seq)
                 order by e.created_at limit $2)",
            before,
            limit,
        )
        .await
    }

    /// How many entries wait.
    pub async fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        let now = self.clock.now();
        let mut read = self.db.read().await?;
        Ok(read
            .query(
                "select count(*) filter (where lease_until is null or lease_until <= $1) as unread,
                        count(*) filter (where lease_until > $1) as leased from event_queue",
            )
            .bind(now)
            .one()
            .await?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::base::clock::pause;
    use crate::domain::event::Event;
    use crate::store::db::flow::QueueFlow;
    use crate::store::db::scratch::{Scratch, asked};

    #[tokio::test]
    async fn events_are_read_before_requests_that_wait_for_the_writer() {
        let scratch = Scratch::open().await;
        let event = json!({ "specversion": "1.0", "id": "1", "source": "s", "type": "t", "tenantid": "a" });
        scratch.store.publish_events(&[Event::try_from(event).expect("an event")]).await.expect("published");
        let (turns, engine, tenant) = (scratch.writer().queue(), QueueFlow::of(None), QueueFlow::of(Some("b")));
        // the service that reads for all has used more of the writer's time than the tenant that waits
        let used = turns.acquire(&engine).await;
        let request = asked(turns.acquire(&tenant));
        pause(Duration::from_millis(20)).await;
        drop(used);
        let held = request.await;
        let mut next = asked(turns.acquire(&tenant));
        let until = scratch.clock.now() + TimeDelta::seconds(30);
        let mut lease = asked(scratch.store.lease_events(Uuid::nil(), until, 10, "", &[]));
        drop(held);
        tokio::select! {
            biased;
            leased = &mut lease => assert_eq!(leased.expect("leased").events.len(), 1),
            _ = &mut next => panic!("a request has its turn before the events of all tenants are read"),
        }
    }
}
