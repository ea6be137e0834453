//! Publishing: events are stored, each with its place in the queue of the matcher.

use std::collections::VecDeque;

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::PgConnection;
use sqlx::types::Json;

use crate::base::compute::{ADMIN, steps_to_parse, steps_to_write};
use crate::base::id::Scope;
use crate::domain::event::{Data, Event};
use crate::store::db::text::document;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// Rows of one statement: six parameters each on SQLite, which takes 32,766 of them.
const ROWS: usize = 500;

/// On Postgres a lower `seq` could commit after a higher one, and who reads the log behind the higher would never see
/// it. One publishing transaction at a time makes the order of `seq` the order of commits. The statement that publishes
/// waits for its turn itself.
pub(in crate::store) const IN_TURN: Split =
    Split { postgres: "select pg_advisory_xact_lock(8243101700221)", sqlite: "select 1" };

/// An event as it is stored.
struct PublishedEvent {
    key: String,
    tenant: String,
    source: String,
    kind: String,
    body: Json<Box<RawValue>>,
}

impl PublishedEvent {
    fn of(event: &Event) -> Result<PublishedEvent, StoreError> {
        Ok(PublishedEvent {
            key: event.key(),
            tenant: event.tenant.as_str().to_owned(),
            source: event.source.clone(),
            kind: event.kind.clone(),
            body: document(event)?,
        })
    }
}

impl Store {
    /// Takes events on, all of them or none; those that are known by their key already change nothing. Answers how many
    /// were new.
    pub async fn publish_events(&self, events: &[Event]) -> Result<u64, StoreError> {
        let scope = scope_of(events);
        // written out before anybody waits for this transaction
        let rows = self.written_events(scope.tenant().unwrap_or(ADMIN), events).await?;
        let _turn = self.acquire_bulk(scope.tenant().unwrap_or_default(), rows.len()).await;
        let store = self.clone();
        let fresh = self.run_for_caller(async move { store.write_events(&scope, rows).await }).await?;
        self.notify(Topic::Events);
        Ok(fresh)
    }

    /// The rows of events; those of long ones are written on a computing thread, in the turn of this tenant.
    async fn written_events(&self, tenant: &str, events: &[Event]) -> Result<Vec<PublishedEvent>, StoreError> {
        let steps = events.iter().map(steps_of).fold(0, u64::saturating_add);
        let events = events.to_vec();
        let write = move || events.iter().map(PublishedEvent::of).collect::<Result<Vec<_>, StoreError>>();
        let written = self.computing.run_if_costly(tenant, steps, write).await;
        written.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))?
    }

    /// Writes rows that one statement can take without a transaction around it: one round trip to Postgres.
    async fn write_events(&self, scope: &Scope, rows: Vec<PublishedEvent>) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let mut write = match rows.len() {
            ..=ROWS => self.db.write_statement(scope.tenant()).await?,
            _ => self.db.write(scope).await?,
        };
        let mut fresh = 0;
        let mut rows = VecDeque::from(rows);
        while !rows.is_empty() {
            let some = rows.drain(..rows.len().min(ROWS)).collect();
            fresh += match &mut write.tx() {
                Tx::Postgres(conn) => publish_together(conn, scope, some, now).await?,
                sqlite => publish_listed(sqlite, some, now).await?,
            };
        }
        write.commit().await?;
        Ok(fresh)
    }
}

/// Publishes events on Postgres, in the turn of those who publish; answers how many are new.
async fn publish_together(
    conn: &mut PgConnection,
    scope: &Scope,
    events: Vec<PublishedEvent>,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let fresh: i64 = sqlx::query_scalar(include_str!("../sql/publish.postgres.sql"))
        .bind(events.iter().map(|event| event.key.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.tenant.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.source.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|event| Json(&*event.body.0)).collect::<Vec<_>>())
        .bind(now)
        .bind(scope.tenant())
        .fetch_one(conn)
        .await?;
    Ok(fresh as u64)
}

/// Publishes events on SQLite, which has one writer; answers how many are new.
async fn publish_listed(tx: &mut Tx<'_>, events: Vec<PublishedEvent>, now: DateTime<Utc>) -> Result<u64, StoreError> {
    let mut insert = tx.build("insert into events (event_key, tenant_id, source, type, body, created_at) ");
    insert.push_values(events.into_iter(), |row, event| {
        row.push_bind(event.key)
            .push_bind(event.tenant)
            .push_bind(event.source)
            .push_bind(event.kind)
            .push_bind(event.body)
            .push_bind(now);
    });
    insert.push(" on conflict (event_key) do nothing returning seq, tenant_id");
    let made: Vec<(i64, String)> = insert.finish().all().await?;
    let fresh = made.len() as u64;
    if fresh > 0 {
        let mut queue = tx.build("insert into event_queue (seq, tenant_id) ");
        queue.push_values(made.into_iter(), |row, (seq, tenant)| {
            row.push_bind(seq).push_bind(tenant);
        });
        queue.finish().execute().await?;
    }
    Ok(fresh)
}

/// The steps that it takes at most to write an event. Its attributes are short.
fn steps_of(event: &Event) -> u64 {
    match &event.data {
        Data::Nothing => 0,
        Data::Json(value) => steps_to_write(value),
        Data::Base64(text) => steps_to_parse(text.len()),
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
