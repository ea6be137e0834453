//! Events that the matcher has under way.

use std::collections::HashSet;

use tokio::task::JoinSet;

use crate::bus::Entry;
use crate::engine::matcher::BATCH;
use crate::engine::matcher::backlog::Backlog;
use crate::engine::matcher::intake::{Batch, Judgement, Taken};
use crate::engine::matcher::missing::Misses;
use crate::engine::matcher::slice::Ready;
use crate::id::Tenant;

/// What outlives a tick.
#[derive(Default)]
pub struct Work {
    pub backlog: Backlog,
    pub judging: JoinSet<Judgement>,
    /// The tenants whose events are being judged.
    pub judged_now: HashSet<Tenant>,
    pub ready: Ready,
    pub hopeless: Vec<(Entry, String)>,
    /// Committed, and not acknowledged yet.
    pub done: Vec<String>,
    /// Whether the last read found so much that there may be more.
    pub many: bool,
    /// Whether the database was away at the last try: nothing more is read until it answers.
    pub away: bool,
    /// Owners that are to be told of fields that their expressions look for in vain.
    pub misses: Misses,
    /// Of no use any more; to be forgotten where there is time for it.
    pub spent: Vec<Taken>,
}

impl Work {
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.judging.is_empty() && self.ready.is_empty() && self.hopeless.is_empty()
    }

    pub fn add(&mut self, batch: Batch) {
        self.many = batch.len() >= BATCH / 2;
        self.hopeless.extend(batch.hopeless);
        batch.taken.into_iter().for_each(|taken| self.backlog.push(taken));
    }
}
