//! How many rows a batch of the engine has: on SQLite one writer, and on Postgres a few connections, are waited for.
//!
//! A batch is as long as it may be while nobody waits for the writer, or for one of the engine's connections. Where
//! somebody waits at the end of its statements, and they took longer than [`LONG`], on Postgres [`ON_POSTGRES`] times as
//! long, the next is half as long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::store::Store;
use crate::store::db::Db;

/// The longest that a write takes while somebody waits for the writer.
const LONG: Duration = Duration::from_millis(5);
/// So many times as long on Postgres: only the engine's own batches wait there, for the first of several connections,
/// and each batch is a round trip and a commit.
const ON_POSTGRES: u32 = 15;
/// Rows that a batch has at least: a commit costs about as much as these.
const LEAST: usize = 25;

/// The length of the batches of one kind.
pub(in crate::store) struct Pace {
    most: usize,
    rows: AtomicUsize,
}

/// Of each kind of batch that one tenant can make as long as it may be.
pub(in crate::store) struct Paces {
    pub fires: Pace,
    pub events: Pace,
    /// Of events in windows that close.
    pub windows: Pace,
}

impl Default for Paces {
    fn default() -> Paces {
        Paces { fires: Pace::new(500), events: Pace::new(500), windows: Pace::new(500) }
    }
}

impl Store {
    /// Due tasks that the next batch may have.
    pub fn fires_at_once(&self) -> usize {
        self.paces.fires.rows()
    }

    /// Matches of events that the next write may have.
    pub fn events_at_once(&self) -> usize {
        self.paces.events.rows()
    }

    /// Learns from a write of so many rows that began then.
    pub(in crate::store) fn learn(&self, pace: &Pace, rows: usize, began: Instant) {
        let took = began.elapsed();
        match &self.db {
            Db::Sqlite { writer, .. } => pace.record_write(rows, took, writer.is_wanted()),
            Db::Postgres { engine, .. } => pace.record_write(rows, took / ON_POSTGRES, engine.is_wanted()),
        }
    }
}

impl Pace {
    const fn new(most: usize) -> Pace {
        Pace { most, rows: AtomicUsize::new(most) }
    }

    pub(in crate::store) fn rows(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// Learns how long a write of so many rows took, and whether somebody waited for its end.
    fn record_write(&self, rows: usize, took: Duration, waited: bool) {
        let now = self.rows();
        let next = match waited {
            // one that was as short as it may be took long for other reasons
            true if took > LONG && rows > LEAST => (now.min(rows) / 2).max(LEAST.min(self.most)),
            true if took > LONG / 2 => now,
            // a short batch says nothing of a long one
            _ if rows * 2 < now => now,
            _ => (now * 2).min(self.most),
        };
        self.rows.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::TimeDelta;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::domain::event::Event;
    use crate::domain::task::{FIRST_EPOCH, TaskStatus};
    use crate::domain::trigger::event::{Arrival, EventVerdict};
    use crate::store::db::flow::QueueFlow;
    use crate::store::db::scratch::{Scratch, asked};
    use crate::store::{EventsFired, FireDue, FireEvents, Match, event_shard};

    /// A batch as short as it may be.
    fn shorten(pace: &Pace) {
        for _ in 0..10 {
            pace.record_write(pace.rows(), 2 * LONG, true);
        }
        assert_eq!(pace.rows(), LEAST);
    }

    #[tokio::test]
    async fn long_write_shortens_the_next_where_somebody_waits_for_the_writer() {
        let scratch = Scratch::open().await;
        let (store, paces) = (&scratch.store, &scratch.store.paces);
        let began = Instant::now().checked_sub(10 * LONG).expect("the machine has run for longer");
        store.learn(&paces.fires, 500, began);
        assert_eq!(store.fires_at_once(), 500, "nobody waits");
        let turns = scratch.writer().queue();
        let flow = QueueFlow::of(Some("a"));
        let writes = turns.acquire(&flow).await;
        let waits = asked(turns.acquire(&flow));
        store.learn(&paces.fires, 500, began);
        assert_eq!((store.fires_at_once(), store.events_at_once()), (250, 500));
        drop((writes, waits));
    }

    #[tokio::test]
    async fn batch_of_fires_that_nobody_waits_for_lengthens_the_next() {
        let scratch = Scratch::open().await;
        for _ in 0..LEAST {
            scratch.task("a", json!({ "interval": "1h" })).await;
        }
        shorten(&scratch.store.paces.fires);
        scratch.clock.advance(TimeDelta::hours(1));
        let ask = FireDue { now: scratch.clock.now(), limit: 100, ..FireDue::default() };
        assert_eq!(scratch.store.fire_due(&ask).await.expect("fired").tasks, LEAST);
        assert_eq!(scratch.store.fires_at_once(), 2 * LEAST);
    }

    #[tokio::test]
    async fn write_of_matches_that_nobody_waits_for_lengthens_the_next() {
        let scratch = Scratch::open().await;
        let task = scratch.task("a", json!({ "type": "event", "source": "s" })).await;
        shorten(&scratch.store.paces.events);
        let shard = event_shard("a");
        let version = scratch.store.event_tasks(shard, 0, 1000, false).await.expect("the index").version;
        let matched = |number: usize| {
            let event =
                json!({ "specversion": "1.0", "id": number.to_string(), "source": "s", "type": "t", "tenantid": "a" });
            Match {
                task_id: task.id,
                epoch: FIRST_EPOCH,
                status: TaskStatus::Active,
                buffer_while_paused: false,
                max_runs: None,
                arrival: Arc::new(Arrival::new(Event::try_from(event).expect("an event"))),
                verdict: EventVerdict::Skipped("for a test".into()),
            }
        };
        let matches: Vec<Match> = (0..LEAST).map(matched).collect();
        let (now, shards) = (scratch.clock.now(), &[(shard, version)]);
        let ask = FireEvents { now, shards, matches: &matches, worker: Uuid::nil(), room: 0, start: None, few: false };
        let EventsFired::Done(recorded) = scratch.store.fire_events(&ask).await.expect("recorded") else {
            panic!("nothing has changed meanwhile")
        };
        assert_eq!((recorded.skipped, scratch.store.events_at_once()), (LEAST, 2 * LEAST));
    }

    #[test]
    fn batch_is_shorter_while_others_wait_for_its_end_and_long_again_after() {
        let pace = Pace::new(500);
        pace.record_write(500, 6 * LONG, false);
        assert_eq!(pace.rows(), 500, "nobody waited");
        for rows in [250, 125, 62, 31, 25, 25] {
            pace.record_write(pace.rows(), 2 * LONG, true);
            assert_eq!(pace.rows(), rows);
        }
        pace.record_write(3, LONG / 100, true);
        assert_eq!(pace.rows(), 25, "a few rows say nothing");
        for rows in [50, 100, 200, 400, 500, 500] {
            pace.record_write(pace.rows(), LONG / 3, true);
            assert_eq!(pace.rows(), rows);
        }
        pace.record_write(500, LONG * 2 / 3, true);
        assert_eq!(pace.rows(), 500, "it takes as long as it may");
        pace.record_write(LEAST, 9 * LONG, true);
        assert_eq!(pace.rows(), 500, "it could be no shorter");
    }
}
