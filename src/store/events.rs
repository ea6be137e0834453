//! The log of the embedded bus, and its queue: what was published once by its key, and what nobody has acknowledged.
//!
//! A published event is in the log and in the queue after one commit. Reading leases an entry, acknowledging removes it
//! from the queue; the log keeps it until it is forgotten by age, never before it was acknowledged.

pub(super) mod closing;
pub(super) mod dead_letters;
pub(super) mod event_index;
pub(super) mod matches;
pub(super) mod matching;
pub(super) mod outbox;
pub(super) mod publishing;
pub(super) mod recording;
pub(super) mod windows;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::event::event_key;
use crate::store::db::Db;
use crate::store::db::text::text;
use crate::store::sql::sql;
use crate::store::tx::{StatementBuilder, Tx};
use crate::store::{Split, Store, StoreError};

/// Entries that one statement deletes.
pub(super) const ROWS: usize = 500;
/// Events of a tenant among which one is looked for whose source is not known.
const NEWEST: i64 = 1000;

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

/// Which part of the log to read: after `after`, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Exact.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    /// Only positions after this one.
    pub after: i64,
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

/// The tenants of the queue, in order, after one; each is found by a look into the index, whatever waits of it.
const TENANTS: &str = "
    with recursive tenants (tenant_id, number) as (
        select (select min(q.tenant_id) from event_queue q where q.tenant_id > $1), 1
        union all
        select (select min(q.tenant_id) from event_queue q where q.tenant_id > t.tenant_id), t.number + 1
          from tenants t where t.tenant_id is not null and t.number < $2
    )
    select tenant_id from tenants where tenant_id is not null";

/// The oldest of each tenant: on Postgres of all tenants at once, on SQLite of one after the other.
const LEASE: Split = Split {
    postgres: "
        with due as (
            select q.seq
              from jsonb_array_elements_text($5::jsonb) as t (tenant_id)
             cross join lateral (
                select seq from event_queue
                 where tenant_id = any (array[t.tenant_id]) and (lease_until is null or lease_until <= $1)
                 order by tenant_id, seq limit $2 for update skip locked) q
        ), leased as (
            update event_queue q set lease_until = $3, consumer = $4, deliveries = q.deliveries + 1
              from due where q.seq = any (array[due.seq])
            returning q.seq, q.deliveries, q.tenant_id
        )
        select l.seq, (select cast(e.body as text) from events e where e.seq = l.seq), l.deliveries, l.tenant_id
          from leased l",
    sqlite: "
        update event_queue set lease_until = $3, consumer = $4, deliveries = deliveries + 1
         where seq in (
            select seq from event_queue
             where tenant_id = json_extract($5, '$[0]') and (lease_until is null or lease_until <= $1)
             order by seq limit $2)
        returning seq, (select e.body from events e where e.seq = event_queue.seq), deliveries, tenant_id",
};

/// Narrows a query to the tenant of a scope, and to the source and type of a filter; a type may end in `*`.
pub(super) fn filter_query(query: &mut StatementBuilder<'_>, scope: &Scope, source: Option<&str>, kind: Option<&str>) {
    if let Some(tenant) = scope.tenant() {
        query.push_key("tenant_id", tenant);
    }
    if let Some(source) = source {
        query.push(" and source = ").push_bind(text(source));
    }
    match kind.map(|kind| (kind, kind.strip_suffix('*'))) {
        None => {}
        Some((_, Some(beginning))) => {
            let length = beginning.chars().count() as i32;
            query.push(" and substr(type, 1, ").push_bind(length).push(") = ").push_bind(text(beginning));
        }
        Some((kind, None)) => {
            query.push(" and type = ").push_bind(text(kind));
        }
    }
}

/// Two ids of the newest events that begin so. SQLite keeps events as texts: one that is no JSON must not hide the others.
const IDS: Split = Split {
    postgres: "select distinct e.body ->> 'id'
       from (select body from events where tenant_id = $1 order by seq desc limit $4) e
      where substr(e.body ->> 'id', 1, length($2)) = $2 and ($3 is null or e.body ->> 'source' = $3)
      limit 2",
    sqlite: "select distinct e.body ->> 'id'
       from (select case when json_valid(body) then body end as body
               from events where tenant_id = $1 order by seq desc limit $4) e
      where substr(e.body ->> 'id', 1, length($2)) = $2 and ($3 is null or e.body ->> 'source' = $3)
      limit 2",
};

const NEWEST_READABLE: &str = "
    select cast(e.body as text)
      from (select seq, {readable} as body from events where tenant_id = $1 order by seq desc limit $3) e
     where e.body ->> 'id' = $2 order by e.seq desc limit 1";
/// The newest event with an id, of any source; the same for one that is no JSON.
const NEWEST_WITH_ID: Split = Split {
    postgres: sql!(NEWEST_READABLE; "{readable}" = "body"),
    sqlite: sql!(NEWEST_READABLE; "{readable}" = "case when json_valid(body) then body end"),
};

impl Store {
    /// Leases entries that nobody holds until `until`, those whose lease has run out among them: the oldest of each tenant,
    /// tenants in turn beginning after `after`, and none of those that are `full`. In order.
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
        let mut write = self.db.write_first().await?;
        let tx = &mut write.tx();
        let most = (limit + full.len()) as i64;
        let mut tenants: Vec<String> = tx.query(TENANTS).bind(after).bind(most).scalars().await?;
        if !after.is_empty() && tenants.len() < limit + full.len() {
            // and on from the first
            let known: HashSet<String> = tenants.iter().cloned().collect();
            let first: Vec<String> = tx.query(TENANTS).bind("").bind(most).scalars().await?;
            tenants.extend(first.into_iter().filter(|tenant| !known.contains(tenant)));
        }
        tenants.retain(|tenant| !full.iter().any(|full| full.as_str() == tenant));
        let turn = tenants.get(limit.saturating_sub(1)).cloned().unwrap_or_default();
        tenants.truncate(limit);
        let mut leased = LeasedEntries { events: Vec::new(), turn };
        while !tenants.is_empty() && limit - leased.events.len() >= tenants.len() {
            let share = (limit - leased.events.len()) / tenants.len();
            let mut counts: HashMap<String, usize> = HashMap::new();
            for some in tenants.chunks(at_once) {
                let rows: Vec<Row> = tx
                    .query(LEASE)
                    .bind(now)
                    .bind(share as i64)
                    .bind(until)
                    .bind(consumer)
                    .bind(serde_json::to_string(some).unwrap_or_default())
                    .all()
                    .await?;
                for (seq, body, deliveries, tenant) in rows {
                    *counts.entry(tenant).or_default() += 1;
                    leased.events.push(LeasedEvent { seq, body: body.unwrap_or_default(), deliveries });
                }
            }
            // who had less has no more
            tenants.retain(|tenant| counts.get(tenant) == Some(&share));
        }
        leased.events.sort_unstable_by_key(|entry| entry.seq);
        // without the lease an entry comes again, and changes nothing
        write.commit_before_flush().await?;
        Ok(leased)
    }

    /// Removes entries from the queue; those that are gone already stay gone.
    pub async fn acknowledge_events(&self, seqs: &[i64]) -> Result<(), StoreError> {
        if seqs.is_empty() {
            return Ok(());
        }
        let mut write = self.db.write_first().await?;
        delete_by_seq(&mut write.tx(), "delete from event_queue where seq in (", seqs).await?;
        // an entry that is there again changes nothing
        write.commit_before_flush().await?;
        Ok(())
    }

    /// Events of the log with their place in it, oldest first.
    pub async fn read_events(&self, scope: &Scope, filter: &EventFilter) -> Result<Vec<(i64, String)>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build("select seq, cast(body as text) from events where seq > ");
        query.push_bind(filter.after);
        filter_query(&mut query, scope, filter.source.as_deref(), filter.kind.as_deref());
        query.push(if scope.tenant().is_some() { " order by tenant_id, seq limit " } else { " order by seq limit " });
        query.push_bind(filter.limit);
        let found = query.finish().all().await?;
        read.end().await?;
        Ok(found)
    }

    /// The newest event of a tenant with this id: of a source, or of any among the tenant's newest.
    pub async fn find_event(
        &self,
        tenant: &Tenant,
        source: Option<&str>,
        id: &str,
    ) -> Result<Option<String>, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut read = self.db.read_in(&scope).await?;
        let tx = &mut read.tx();
        let found = match source {
            Some(source) => {
                tx.query("select cast(body as text) from events where event_key = $1")
                    .bind(event_key(tenant, source, id))
                    .optional_scalar()
                    .await?
            }
            None => {
                tx.query(NEWEST_WITH_ID).bind(tenant.as_str()).bind(text(id)).bind(NEWEST).optional_scalar().await?
            }
        };
        read.end().await?;
        Ok(found)
    }

    /// Ids of a tenant's newest events that begin so, two at most: of a source, or of any.
    pub async fn event_ids(
        &self,
        tenant: &Tenant,
        source: Option<&str>,
        beginning: &str,
    ) -> Result<Vec<String>, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut read = self.db.read_in(&scope).await?;
        let found = read
            .query(IDS)
            .bind(tenant.as_str())
            .bind(text(beginning))
            .bind(source.map(text))
            .bind(NEWEST)
            .scalars()
            .await?;
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

    use chrono::TimeDelta;
    use serde_json::json;

    use super::*;
    use crate::base::clock::pause;
    use crate::domain::event::Event;
    use crate::store::db::flow::QueueFlow;
    use crate::store::db::scratch::{Scratch, asked};
    use crate::store::db::sqlite_plan;

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

    #[tokio::test]
    async fn turns_of_tenants_are_found_by_an_index_on_sqlite() {
        for statement in [TENANTS, LEASE.sqlite] {
            for step in sqlite_plan(statement).await {
                let of_queue = step.contains("event_queue") || step.contains(" q ");
                assert!(!of_queue || step.contains("INDEX") || step.contains("PRIMARY KEY"), "{step}");
                assert!(!step.contains("TEMP B-TREE"), "{step}");
            }
        }
    }
}
