//! The bus in the database: the log and the queue of `store/events.rs`, the same on SQLite and on Postgres.
//!
//! Owns nothing but the wait of a reader. Any number of instances on Postgres share it: leases keep them apart. What is
//! published wakes its readers, here and elsewhere; what no wake-up told of is found by looking.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use crate::base::backoff::{IDLE_AFTER, idle_wait};
use crate::base::clock::{pause, to_delta};
use crate::base::compute::{ADMIN, ENGINE};
use crate::base::id::{Scope, Tenant, new_id};
use crate::domain::event::Event;
use crate::domain::event::written::WrittenEvent;
use crate::ports::bus::entry_reader::EntryReader;
use crate::ports::bus::{
    Bus, BusBacklog, BusDeadLetter, BusEntry, BusError, DeadLetterFilter, DeadLetterPage, Log, LogFilter, LogOrder,
    LoggedEvent, NewestFilter, Settings, check_stored, read_stored, write_entry,
};
use crate::store::{
    EventFilter, LeasedEntries, LeasedEvent, NewDeadLetter, RowPage, Store, StoreError, StoredDeadLetter,
    StoredDeadLetterFilter, Topic, with_timeout,
};

/// How long a reader waits at most before it looks for what no wake-up told of; and while idle, when look after look
/// has found nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(4);
/// The longest read: long, because what is published, and a stop, end it.
const LONGEST_READ: Duration = Duration::from_secs(10);
/// The shortest rest between two transactions that forget.
const REST: Duration = Duration::from_millis(20);
/// Events that are forgotten in one transaction.
const BATCH: i64 = 500;

/// The bus in the service's own database.
pub struct EmbeddedBus {
    store: Store,
    reader: EntryReader,
    consumer: Uuid,
    lease: TimeDelta,
    retention: TimeDelta,
    looks: Mutex<BusPollState>,
    /// After this tenant the next turn begins; empty: with the first.
    turn: Mutex<String>,
}

/// State of the polls for events: this process looks without a cause only now and then.
struct BusPollState {
    /// Wake-ups before the last look are seen.
    hint: watch::Receiver<()>,
    /// `None`: there may be more than was read.
    last: Option<Instant>,
    /// Looks without a cause, one after the other, that found nothing.
    empty: u32,
    /// Tenants that had enough at the last look, which left them out.
    left_out: Vec<Tenant>,
}

impl BusPollState {
    /// The time until the next look without a cause, while these tenants have enough. As long as all that were left out
    /// of the last look still have, their events are no cause for one.
    fn pause(&self, full: &[Tenant]) -> Duration {
        let full: HashSet<&Tenant> = full.iter().collect();
        let any_has_room = self.left_out.iter().any(|tenant| !full.contains(tenant));
        let wait = idle_wait(POLL_INTERVAL, self.empty, IDLE_POLL_INTERVAL);
        self.last.filter(|_| !any_has_room).map_or(Duration::ZERO, |last| wait.saturating_sub(last.elapsed()))
    }

    /// Notes whether a look, which a wake-up may have caused and which left these tenants out, has found nothing.
    fn note_look(&mut self, is_empty: bool, hinted: bool, full: &[Tenant]) {
        self.last = is_empty.then(Instant::now);
        // a bus of which something is left out is not idle
        self.empty = if is_empty && !hinted && full.is_empty() { self.empty.saturating_add(1) } else { 0 };
        self.left_out = full.to_vec();
    }
}

impl EmbeddedBus {
    /// A bus over this store, with a consumer name of its own.
    pub fn new(store: Store, settings: &Settings) -> EmbeddedBus {
        let consumer = new_id(store.clock().now());
        let (lease, retention) = (to_delta(settings.stalled_after()), to_delta(settings.retention()));
        let hint = store.listen(Topic::Events);
        let looks = Mutex::new(BusPollState { hint, last: None, empty: 0, left_out: Vec::new() });
        let reader = EntryReader::new(store.computing());
        EmbeddedBus { store, reader, consumer, lease, retention, looks, turn: Mutex::default() }
    }

    async fn read_within(&self, full: &[Tenant], limit: usize, wait: Duration) -> Result<Vec<BusEntry>, BusError> {
        let until = Instant::now() + wait;
        loop {
            let (mut hint, pause) = {
                let looks = self.poll_state();
                (looks.hint.clone(), looks.pause(full))
            };
            let left = until.saturating_duration_since(Instant::now());
            let hinted = tokio::select! {
                biased;
                waited = timeout(left.min(pause), hint.changed()) => waited.is_ok(),
                () = self.store.event_reads_stopped(), if !wait.is_zero() => return Ok(Vec::new()),
            };
            if !hinted && pause > left && !wait.is_zero() {
                return Ok(Vec::new());
            }
            let entries = self.poll_once(full, limit, hinted).await?;
            if !entries.is_empty() || Instant::now() >= until {
                return Ok(entries);
            }
        }
    }

    /// Looks once.
    async fn poll_once(&self, full: &[Tenant], limit: usize, hinted: bool) -> Result<Vec<BusEntry>, BusError> {
        let leased = match self.is_empty(hinted).await {
            true => Ok(LeasedEntries::default()),
            false => {
                // events that are published from now on are hinted at again
                self.poll_state().hint.mark_unchanged();
                let until = self.store.clock().now() + self.lease;
                let after = self.turn().clone();
                self.store.lease_events(self.consumer, until, limit, &after, full).await
            }
        };
        let is_empty = leased.as_ref().is_ok_and(|leased| leased.events.is_empty());
        self.poll_state().note_look(is_empty, hinted, full);
        let leased = leased?;
        *self.turn() = leased.turn;
        // all tenants wait for these, so they wait for no tenant's turn
        self.reader.read(ENGINE, leased.events, |leased| leased.body.len(), entry).await
    }

    /// Whether nothing is there, as far as it is known without a try: asked while idle only.
    async fn is_empty(&self, hinted: bool) -> bool {
        let at_rest = !hinted && self.poll_state().empty > IDLE_AFTER;
        at_rest && self.store.shared_pending_work().await.is_some_and(|pending| !pending.event)
    }

    fn turn(&self) -> MutexGuard<'_, String> {
        self.turn.lock().expect("the lock of the turn")
    }

    fn poll_state(&self) -> MutexGuard<'_, BusPollState> {
        self.looks.lock().expect("the lock of the looks")
    }

    async fn read_log(&self, scope: &Scope, filter: &LogFilter) -> Result<Log, BusError> {
        let newest_first = filter.order == LogOrder::Newest;
        let (since, until) = self.store.event_span(filter.since, filter.until).await?;
        let (start, end) = if newest_first { (until.unwrap_or(i64::MAX), since) } else { (since.unwrap_or(0), until) };
        let after = filter.after.as_deref().map_or(Ok(start), parse_position)?;
        let (source, kind) = (filter.source.clone(), filter.kind.clone());
        let LogFilter { since, until, .. } = *filter;
        let limit = filter.limit as i64 + 1;
        let asked = EventFilter { source, kind, newest_first, after, end, since, until, limit };
        let mut rows = self.store.read_events(scope, &asked).await?;
        let more = rows.len() > filter.limit;
        rows.truncate(filter.limit);
        let last = rows.last().map_or(after, |(seq, _)| *seq);
        let read = |(seq, body): (i64, String)| (seq, body.len(), read_stored(body.as_bytes()));
        let read = self.reader.read(scope.tenant().unwrap_or(ADMIN), rows, |(_, body)| body.len(), read).await?;
        let mut events = Vec::with_capacity(read.len());
        for (seq, bytes, event) in read {
            match event {
                Ok(event) => events.push(LoggedEvent { position: seq.to_string(), event, bytes }),
                Err(unreadable) => tracing::debug!(seq, why = unreadable.why, "an entry of the log is no event"),
            }
        }
        Ok(Log { events, position: last.to_string(), more })
    }

    async fn list_dead(&self, scope: &Scope, filter: &DeadLetterFilter) -> Result<DeadLetterPage, BusError> {
        let before = filter.before.as_deref().map(|id| Uuid::try_parse(id).map_err(|_| foreign_entry("position")));
        let asked = StoredDeadLetterFilter {
            source: filter.source.clone(),
            kind: filter.kind.clone(),
            error: filter.error.clone(),
            before: before.transpose()?,
            // one more tells whether there is more
            limit: filter.limit as i64 + 1,
        };
        let RowPage { rows: mut letters, behind, .. } = self.store.list_dead_letters(scope, &asked).await?;
        let more = letters.len() > filter.limit;
        letters.truncate(filter.limit);
        let last_shown = letters.last().filter(|_| more).map(|last| last.id);
        // letters that can't be read make a page shorter, and do not end the list
        let next = last_shown.or(behind).map(|last| last.to_string());
        Ok(DeadLetterPage { letters: letters.into_iter().map(dead_letter).collect(), next })
    }

    async fn replay_one(&self, scope: &Scope, id: &str) -> Result<(), BusError> {
        let id = letter_id(id)?;
        let letter = self.store.get_dead_letter(scope, id).await?;
        let read = |body: String| read_stored(body.as_bytes());
        let event = self.reader.read_one(scope.tenant().unwrap_or(ADMIN), letter.body, String::len, read).await?;
        let event = event
            .map_err(|unreadable| BusError::Invalid { why: format!("it can't be replayed: {}", unreadable.why) })?;
        Ok(self.store.replay_dead_letter(scope, id, &event).await?)
    }
}

impl Bus for EmbeddedBus {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async {
            with_timeout(self.store.publish_events(events)).await?;
            Ok(())
        })
    }

    fn read_except<'a>(
        &'a self,
        full: &'a [Tenant],
        limit: usize,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Vec<BusEntry>, BusError>> {
        Box::pin(self.read_within(full, limit, wait))
    }

    fn longest_read(&self) -> Duration {
        LONGEST_READ
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async {
            let seqs = ids.iter().map(|id| parse_position(id)).collect::<Result<Vec<i64>, BusError>>()?;
            Ok(self.store.acknowledge_events(&seqs).await?)
        })
    }

    fn dead_letter_entry<'a>(&'a self, entry: &'a BusEntry, error: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async move {
            let (event, body) = match &entry.event {
                Ok(event) => {
                    let read = |event: WrittenEvent| event.event();
                    let event = self.reader.read_one(ENGINE, event.clone(), WrittenEvent::bytes, read).await?;
                    let body = write_entry(&event);
                    (Some(event), body)
                }
                Err(unreadable) => (None, unreadable.text.clone()),
            };
            let deliveries = entry.deliveries.try_into().unwrap_or(i32::MAX);
            let (seq, event) = (parse_position(&entry.id)?, event.as_ref());
            let letter = NewDeadLetter { seq, event, body: &body, error, deliveries };
            Ok(self.store.dead_letter_event(letter).await?)
        })
    }

    fn log<'a>(&'a self, scope: &'a Scope, filter: &'a LogFilter) -> BoxFuture<'a, Result<Log, BusError>> {
        Box::pin(self.read_log(scope, filter))
    }

    fn find<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Event>, BusError>> {
        Box::pin(async move {
            let Some(body) = self.store.find_event(tenant, source, id).await? else { return Ok(None) };
            let read = |body: String| read_stored(body.as_bytes()).ok();
            self.reader.read_one(tenant.as_str(), body, String::len, read).await
        })
    }

    fn ids<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        beginning: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, BusError>> {
        Box::pin(async move { Ok(self.store.event_ids(tenant, source, beginning).await?) })
    }

    fn newest<'a>(
        &'a self,
        tenant: &'a Tenant,
        filter: &'a NewestFilter,
    ) -> BoxFuture<'a, Result<Vec<Event>, BusError>> {
        Box::pin(async move {
            let (source, kind) = (filter.source.as_deref(), filter.kind.as_deref());
            let (among, limit) = (filter.among as i64, filter.limit as i64);
            let bodies = self.store.newest_events(tenant, source, kind, among, limit).await?;
            let read = |body: String| read_stored(body.as_bytes()).ok();
            let events = self.reader.read(tenant.as_str(), bodies, String::len, read).await?;
            Ok(events.into_iter().flatten().collect())
        })
    }

    fn end<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<String, BusError>> {
        Box::pin(async { Ok(self.store.last_event(scope).await?.to_string()) })
    }

    fn dead_letters<'a>(
        &'a self,
        scope: &'a Scope,
        filter: &'a DeadLetterFilter,
    ) -> BoxFuture<'a, Result<DeadLetterPage, BusError>> {
        Box::pin(self.list_dead(scope, filter))
    }

    fn dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<BusDeadLetter, BusError>> {
        Box::pin(async { Ok(dead_letter(self.store.get_dead_letter(scope, letter_id(id)?).await?)) })
    }

    fn replay<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(self.replay_one(scope, id))
    }

    fn drop_dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async { Ok(self.store.drop_dead_letter(scope, letter_id(id)?).await?) })
    }

    fn trim(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<u64, BusError>> {
        Box::pin(async move {
            let mut forgotten = 0;
            loop {
                let begun = Instant::now();
                let batch = self.store.forget_events(now - self.retention, BATCH).await?;
                forgotten += batch;
                if batch < BATCH as u64 {
                    return Ok(forgotten);
                }
                // what is written meanwhile must not wait for more than one of them
                pause(begun.elapsed().max(REST)).await;
            }
        })
    }

    fn backlog(&self) -> BoxFuture<'_, Result<BusBacklog, BusError>> {
        Box::pin(async {
            let counted = self.store.event_backlog().await?;
            Ok(BusBacklog { unread: counted.unread as u64, pending: counted.leased as u64 })
        })
    }

    /// Empty: the requirements on the database are checked when it is opened.
    fn concerns(&self) -> BoxFuture<'_, Result<Vec<String>, BusError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

impl From<StoreError> for BusError {
    fn from(error: StoreError) -> BusError {
        match error {
            StoreError::NotFound => BusError::NotFound,
            StoreError::Corrupt(why) => BusError::Corrupt { why },
            newer @ StoreError::UnknownFormat { .. } => BusError::Corrupt { why: newer.to_string() },
            StoreError::Unavailable(why) | StoreError::TimedOut(why) => BusError::Unavailable { why },
            // nothing here is fenced by a lease, and each key that is unique may come again
            other @ (StoreError::Conflict(_) | StoreError::LeaseLost | StoreError::Quota(_)) => {
                BusError::Unavailable { why: other.to_string() }
            }
        }
    }
}

fn entry(leased: LeasedEvent) -> BusEntry {
    BusEntry {
        id: leased.seq.to_string(),
        event: check_stored(leased.body.as_bytes()),
        deliveries: leased.deliveries.max(0) as u32,
    }
}

fn dead_letter(stored: StoredDeadLetter) -> BusDeadLetter {
    BusDeadLetter {
        id: stored.id.to_string(),
        tenant: stored.tenant_id,
        body: stored.body,
        error: stored.error,
        deliveries: stored.deliveries.max(0) as u32,
        dead_lettered_at: stored.created_at,
    }
}

/// A place in the log.
fn parse_position(text: &str) -> Result<i64, BusError> {
    text.parse().ok().filter(|seq| *seq >= 0).ok_or_else(|| foreign_entry("position"))
}

/// Reads the id of a letter. A text that is no UUID is the id of no letter.
fn letter_id(text: &str) -> Result<Uuid, BusError> {
    Uuid::try_parse(text).map_err(|_| BusError::NotFound)
}

fn foreign_entry(what: &str) -> BusError {
    BusError::Invalid { why: format!("this is no {what} that this bus gave") }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[tokio::test]
    async fn looks_that_find_nothing_become_rare_and_one_that_found_something_is_followed_at_once() {
        let hint = watch::channel(()).1;
        let looks = |last, empty| BusPollState { hint: hint.clone(), last, empty, left_out: Vec::new() }.pause(&[]);
        let now = Some(Instant::now());
        assert_eq!(looks(None, u32::MAX), Duration::ZERO);
        assert!(looks(now, 0) <= POLL_INTERVAL && looks(now, 0) > Duration::ZERO);
        assert!(looks(now, u32::MAX) <= IDLE_POLL_INTERVAL && looks(now, u32::MAX) > IDLE_POLL_INTERVAL / 2);
    }

    #[tokio::test]
    async fn tenants_that_have_enough_are_no_cause_for_a_look_until_one_of_them_has_room() {
        let hint = watch::channel(()).1;
        let mut state = BusPollState { hint, last: None, empty: 0, left_out: Vec::new() };
        let [loud, other] = ["loud", "other"].map(|name| Tenant::new(name).unwrap());
        let full = [loud.clone(), other];
        state.note_look(true, false, &full);
        assert!(state.pause(&full) > Duration::ZERO, "nothing has changed since the look");
        assert_eq!(state.pause(slice::from_ref(&loud)), Duration::ZERO, "the other one has room again");
        assert_eq!(state.empty, 0, "it is not idle");
        state.note_look(true, false, slice::from_ref(&loud));
        assert!(state.pause(&full) > Duration::ZERO, "one that has enough now was looked for");
        state.note_look(false, false, &full);
        assert_eq!(state.pause(&full), Duration::ZERO, "there may be more");
        state.note_look(true, false, &[]);
        assert_eq!((state.empty, state.pause(&full) > Duration::ZERO), (1, true));
    }
}
