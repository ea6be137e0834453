//! What comes from the bus, before it is recorded: read, set in order, and judged by the tasks that it concerns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::RwLock;

use crate::bus::{Bus, BusError, Entry};
use crate::engine::matcher::index::{Index, Indexed};
use crate::store::{Match, Store, StoreError};
use crate::trigger::event::{Arrival, Verdict};

/// Reads, and knows the tasks.
pub struct Intake {
    store: Store,
    bus: Arc<dyn Bus>,
    /// Twice as often as this an entry may come, then nobody tries any more.
    max_deliveries: u32,
    index: RwLock<Index>,
}

/// Entries that were read together.
#[derive(Default)]
pub struct Batch {
    pub taken: Vec<Taken>,
    /// Can't be handled, and why; to be put among the dead letters.
    pub hopeless: Vec<(Entry, String)>,
    /// What all of `taken` lead to; `None` before they were judged.
    pub judged: Option<Judged>,
}

/// An entry that is an event.
pub struct Taken {
    pub id: String,
    pub deliveries: u32,
    pub arrival: Arc<Arrival>,
}

/// What tasks make of events, by the index as it was.
pub struct Judged {
    /// Those that become runs whatever else there was, and those that rules decide.
    pub straight: Vec<Match>,
    pub by_rules: Vec<Match>,
    /// The shards of the events' tenants, with the versions that the index had.
    pub shards: Vec<(i32, i64)>,
}

impl Taken {
    pub fn entry(&self) -> Entry {
        Entry { id: self.id.clone(), event: Ok(self.arrival.event.clone()), deliveries: self.deliveries }
    }
}

impl Batch {
    /// How many entries are to be handled.
    pub fn waiting(&self) -> usize {
        self.taken.len() + self.hopeless.len()
    }

    /// Puts a later one behind it.
    pub fn append(&mut self, later: Batch) {
        self.judged = if self.taken.is_empty() { later.judged } else { None };
        self.taken.extend(later.taken);
        self.hopeless.extend(later.hopeless);
    }
}

impl Intake {
    pub fn new(store: Store, bus: Arc<dyn Bus>, max_deliveries: u32) -> Intake {
        Intake { store, bus, max_deliveries, index: RwLock::default() }
    }

    /// Up to so many entries; waits up to `wait` for the first.
    pub async fn read(&self, limit: usize, wait: Duration) -> Result<Batch, BusError> {
        let mut batch = Batch::default();
        for Entry { id, event, deliveries } in self.bus.read(limit, wait).await? {
            match event {
                // whoever tried has died over it
                Ok(event) if deliveries > 2 * self.max_deliveries => {
                    let why = format!("was taken on {deliveries} times, and nobody came to its end");
                    batch.hopeless.push((Entry { id, event: Ok(event), deliveries }, why));
                }
                Ok(event) => batch.taken.push(Taken { id, deliveries, arrival: Arc::new(Arrival::new(event)) }),
                Err(unreadable) => {
                    let why = unreadable.why.clone();
                    batch.hopeless.push((Entry { id, event: Err(unreadable), deliveries }, why));
                }
            }
        }
        Ok(batch)
    }

    /// What is there, judged as far as the index knows its tenants.
    pub async fn read_ahead(&self, limit: usize) -> Result<Batch, BusError> {
        let mut batch = self.read(limit, Duration::ZERO).await?;
        let index = self.index.read().await;
        if index.unknown(tenants(&batch.taken)).is_empty() {
            batch.judged = Some(self.judged(&index, &batch.taken));
        }
        Ok(batch)
    }

    /// What tasks make of events; reads the tasks of tenants that were never asked for.
    pub async fn judge(&self, events: &[Taken]) -> Result<Judged, StoreError> {
        let unknown = self.index.read().await.unknown(tenants(events));
        self.refresh(&unknown).await?;
        Ok(self.judged(&*self.index.read().await, events))
    }

    /// The same by the tasks as they are now.
    pub async fn judge_anew(&self, events: &[Taken]) -> Result<Judged, StoreError> {
        let shards = self.index.read().await.versions(tenants(events));
        self.refresh(&shards.into_iter().map(|(shard, _)| shard).collect::<Vec<_>>()).await?;
        Ok(self.judged(&*self.index.read().await, events))
    }

    async fn refresh(&self, shards: &[i32]) -> Result<(), StoreError> {
        for shard in shards {
            self.index.write().await.refresh(&self.store, *shard).await?;
        }
        Ok(())
    }

    fn judged(&self, index: &Index, events: &[Taken]) -> Judged {
        let now = self.store.clock().now();
        let all = events.iter().flat_map(|Taken { arrival, .. }| {
            index.candidates(&arrival.event).filter_map(move |task| matched(task, arrival, now))
        });
        let (straight, by_rules) = all.partition(Match::goes_straight);
        Judged { straight, by_rules, shards: index.versions(tenants(events)) }
    }
}

fn tenants(events: &[Taken]) -> impl Iterator<Item = &str> {
    events.iter().map(|taken| taken.arrival.event.tenant.as_str())
}

/// What one task makes of an event; `None` where it is none of its events. A fault of one task, even a panic of its
/// expression, stays its own.
pub fn matched(task: &Indexed, arrival: &Arc<Arrival>, now: DateTime<Utc>) -> Option<Match> {
    let judged = catch_unwind(AssertUnwindSafe(|| task.matcher.judge(arrival, now)));
    let verdict = judged.unwrap_or_else(|_| Verdict::Skipped("filter_error: it panicked".into()));
    if verdict == Verdict::No {
        return None;
    }
    arrival.prepare();
    Some(Match {
        task_id: task.task_id,
        epoch: task.epoch,
        status: task.status,
        hold: task.hold,
        max_runs: task.max_runs,
        arrival: Arc::clone(arrival),
        verdict,
    })
}
