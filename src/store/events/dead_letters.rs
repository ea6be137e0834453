//! Entries of the embedded bus that could not be handled, kept until a person replays or drops them.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, new_id};
use crate::domain::event::Event;
use crate::store::db::listing::RowPage;
use crate::store::db::text::{document, optional, text};
use crate::store::events::filter_query;
use crate::store::{Store, StoreError, Topic};

/// A dead letter, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct StoredDeadLetter {
    /// Id of the letter, a UUIDv7.
    pub id: Uuid,
    /// `None` where it could not be read.
    pub tenant_id: Option<String>,
    /// The entry as it was found.
    pub body: String,
    /// The reason of the last failure, in a sentence.
    pub error: String,
    /// The number of times that the entry was delivered.
    pub deliveries: i32,
    /// The instant at which it became a dead letter.
    pub created_at: DateTime<Utc>,
}

/// A dead letter that is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct NewDeadLetter<'a> {
    /// Its place in the queue.
    pub seq: i64,
    /// The event; `None` where the entry can't be read.
    pub event: Option<&'a Event>,
    /// The entry as it was found.
    pub body: &'a str,
    /// The reason of the last failure, in a sentence.
    pub error: &'a str,
    /// The number of times that the entry was delivered.
    pub deliveries: i32,
}

/// Which dead letters to list. Newest first, after the one `before`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredDeadLetterFilter {
    /// Exact.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    /// Contained in the error, whatever its case.
    pub error: Option<String>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

impl Store {
    /// Moves an entry from the queue to the dead letters, once.
    pub async fn dead_letter_event(&self, letter: NewDeadLetter<'_>) -> Result<(), StoreError> {
        let now = self.clock.now();
        let event = letter.event;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(
            "insert into dead_letters (id, tenant_id, source, type, entry, body, error, deliveries, created_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (entry) do nothing",
        )
        .bind(new_id(now))
        .bind(event.map(|event| event.tenant.as_str()))
        .bind(optional(event.map(|event| event.source.as_str())))
        .bind(optional(event.map(|event| event.kind.as_str())))
        .bind(letter.seq.to_string())
        .bind(text(letter.body))
        .bind(text(letter.error))
        .bind(letter.deliveries)
        .bind(now)
        .execute()
        .await?;
        tx.query("delete from event_queue where seq = $1").bind(letter.seq).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// A page of dead letters that match, newest first. A letter that can't be read is left out; the list goes on
    /// behind the last one that was looked at.
    pub async fn list_dead_letters(
        &self,
        scope: &Scope,
        filter: &StoredDeadLetterFilter,
    ) -> Result<RowPage<StoredDeadLetter>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query =
            read.build("select id, tenant_id, body, error, deliveries, created_at from dead_letters where true");
        filter_query(&mut query, scope, filter.source.as_deref(), filter.kind.as_deref());
        if let Some(error) = &filter.error {
            let escaped = error.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            query.push(" and lower(error) like lower(").push_bind(format!("%{}%", text(&escaped)));
            query.push(") escape '\\'");
        }
        if let Some(before) = filter.before {
            query.push(" and id < ").push_bind(before);
        }
        query.push(if scope.tenant().is_some() { " order by tenant_id desc, id desc" } else { " order by id desc" });
        query.push(" limit ").push_bind(filter.limit);
        let found = query.finish().rows().await?;
        read.end().await?;
        Ok(RowPage::from_rows(&self.unreadable, "dead_letters", &found, filter.limit, Ok))
    }

    /// One dead letter.
    pub async fn get_dead_letter(&self, scope: &Scope, id: Uuid) -> Result<StoredDeadLetter, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let row: Option<StoredDeadLetter> = read
            .query(
                "select id, tenant_id, body, error, deliveries, created_at from dead_letters
                  where id = $1 and ($2 is null or tenant_id = $2)",
            )
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        row.ok_or(StoreError::NotFound)
    }

    /// Puts the event of a dead letter into the queue once more, under the same key, and removes the letter.
    pub async fn replay_dead_letter(&self, scope: &Scope, id: Uuid, event: &Event) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let removed = tx
            .query("delete from dead_letters where id = $1 and tenant_id = $2 and ($3 is null or tenant_id = $3)")
            .bind(id)
            .bind(event.tenant.as_str())
            .bind(scope.tenant())
            .execute()
            .await?;
        if removed == 0 {
            return Err(StoreError::NotFound);
        }
        // the log may have forgotten the event by now
        tx.query(super::publishing::IN_TURN).execute().await?;
        tx.query(
            "insert into events (event_key, tenant_id, source, type, body, created_at)
             values ($1, $2, $3, $4, $5, $6) on conflict (event_key) do nothing",
        )
        .bind(event.key())
        .bind(event.tenant.as_str())
        .bind(&event.source)
        .bind(&event.kind)
        .bind(document(event)?)
        .bind(now)
        .execute()
        .await?;
        tx.query(
            "insert into event_queue (seq, tenant_id)
             select seq, tenant_id from events where event_key = $1 on conflict (seq) do nothing",
        )
        .bind(event.key())
        .execute()
        .await?;
        write.commit().await?;
        self.notify(Topic::Events);
        Ok(())
    }

    /// Removes a dead letter for good.
    pub async fn drop_dead_letter(&self, scope: &Scope, id: Uuid) -> Result<(), StoreError> {
        let mut write = self.db.write(scope).await?;
        let removed = write
            .query("delete from dead_letters where id = $1 and ($2 is null or tenant_id = $2)")
            .bind(id)
            .bind(scope.tenant())
            .execute()
            .await?;
        write.commit().await?;
        if removed == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }
}
