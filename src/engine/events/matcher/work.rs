//! Events that the matcher has under way.

use std::collections::HashMap;

use tokio::task::JoinSet;

use crate::base::id::Tenant;
use crate::engine::events::matcher::BATCH;
use crate::engine::events::matcher::backlog::{ReadRequest, WaitingEvents};
use crate::engine::events::matcher::intake::{Judgement, ReadBatch};
use crate::engine::events::matcher::lanes::Lanes;
use crate::engine::events::matcher::missing::Misses;
use crate::engine::events::matcher::received::EventLoad;
use crate::ports::bus::{BusEntry, BusError};

/// Bytes of entries that can't be handled, beyond which nothing is read until they are among the dead letters.
const HOPELESS_BYTES: usize = 4 * 1024 * 1024;

/// State that outlives a tick.
#[derive(Default)]
pub struct MatcherWork {
    /// A read of the bus that is under way; one at most.
    pub reading: JoinSet<Result<ReadBatch, BusError>>,
    pub backlog: WaitingEvents,
    pub judging: JoinSet<Judgement>,
    /// The tenants whose events are being judged, and how much of each.
    pub judged_now: HashMap<Tenant, EventLoad>,
    pub lanes: Lanes,
    pub hopeless: Vec<(BusEntry, String)>,
    /// Committed, and not acknowledged yet.
    pub done: Vec<String>,
    /// Whether the last read found so much that there may be more.
    pub many: bool,
    /// Whether the database was away at the last try: nothing more is read until it answers.
    pub away: bool,
    /// Owners that are to be told of fields that their expressions look for in vain.
    pub misses: Misses,
}

impl MatcherWork {
    /// Whether nothing waits, is judged or is to be recorded.
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.judging.is_empty() && self.lanes.is_empty() && self.hopeless.is_empty()
    }

    /// The next request to the bus; none where enough is here.
    pub fn next_read(&self) -> Option<ReadRequest> {
        let bytes = |(entry, _): &(BusEntry, String)| match &entry.event {
            Ok(event) => event.bytes(),
            Err(unreadable) => unreadable.text.len(),
        };
        if self.hopeless.iter().map(bytes).sum::<usize>() >= HOPELESS_BYTES {
            return None;
        }
        self.backlog.next_read(&self.judged_now, self.lanes.bytes(), BATCH)
    }

    /// Takes in what was read.
    pub fn add(&mut self, batch: ReadBatch) {
        self.many = batch.len() >= BATCH / 2;
        self.hopeless.extend(batch.hopeless);
        batch.taken.into_iter().for_each(|taken| self.backlog.push(taken));
    }
}
