//! The transcript of a run that all of its agents write to: numbers of entries and turns, calls of agents, and what
//! called agents had said before this execution.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::agent::checkpoint::agent_store::AgentStore;
use crate::domain::run::delegation::MOST_CALLS;
use crate::domain::run::{Delegation, TranscriptEntry, Usage};

/// The transcript of a run, shared by the agents that speak in it.
pub struct SharedTranscript {
    /// The store of the run.
    pub store: Arc<dyn AgentStore>,
    /// Held from the taking of numbers until the entries are stored, so that followers of the run read them in order.
    pub appending: tokio::sync::Mutex<()>,
    /// Number of the next entry.
    next: AtomicI64,
    /// The last turn that was begun.
    turn: AtomicI64,
    /// Calls of agents, each by the turn and the id of its call.
    calls: Mutex<HashSet<(i64, String)>>,
    /// Entries of called agents as they were read, until the agents go on.
    delegated: Mutex<Vec<TranscriptEntry>>,
}

impl SharedTranscript {
    /// The transcript in this store; nothing of it is read yet.
    pub fn new(store: Arc<dyn AgentStore>) -> Arc<SharedTranscript> {
        let (appending, next, turn, calls, delegated) = Default::default();
        Arc::new(SharedTranscript { store, appending, next, turn, calls, delegated })
    }

    /// Keeps the entries of called agents among these, which are all of the run, and answers the others.
    pub fn take_delegated(&self, all: Vec<TranscriptEntry>) -> Vec<TranscriptEntry> {
        self.next.store(all.last().map_or(0, |last| last.seq + 1), Ordering::Relaxed);
        self.turn.store(all.iter().map(|entry| entry.turn).max().unwrap_or(0), Ordering::Relaxed);
        let (delegated, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.delegation.is_some());
        let calls = delegated.iter().filter_map(|entry| entry.delegation.as_ref()).map(|call| key_of(call));
        *self.calls.lock().expect("calls lock") = calls.collect();
        *self.delegated.lock().expect("entries lock") = delegated;
        others
    }

    /// The entries of the agent that this call is of.
    pub fn take_entries(&self, call: &Delegation) -> Vec<TranscriptEntry> {
        let is_own = |entry: &mut TranscriptEntry| entry.delegation.as_ref().is_some_and(|own| own.is_call(call));
        self.delegated.lock().expect("entries lock").extract_if(.., is_own).collect()
    }

    /// Usage of the agents that were called in these turns before this execution, and of those that these have called.
    pub fn usage_below(&self, mut turns: HashSet<i64>) -> Usage {
        let delegated = self.delegated.lock().expect("entries lock");
        let mut usage = Usage::default();
        // the turns of an agent come behind that of its caller
        for entry in delegated.iter() {
            if entry.delegation.as_ref().is_some_and(|call| turns.contains(&call.turn)) {
                usage += entry.usage;
                turns.insert(entry.turn);
            }
        }
        usage
    }

    /// Counts a call of an agent, one that goes on as the same one. Whether the run may make it.
    pub fn count_call(&self, call: &Delegation) -> bool {
        let mut calls = self.calls.lock().expect("calls lock");
        let key = key_of(call);
        let may = calls.contains(&key) || calls.len() < MOST_CALLS;
        if may {
            calls.insert(key);
        }
        may
    }

    /// The number of a turn that begins now, behind this one.
    pub fn take_turn(&self, after: i64) -> i64 {
        self.turn.fetch_max(after, Ordering::Relaxed);
        self.turn.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the next entry.
    pub fn take_number(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

fn key_of(call: &Delegation) -> (i64, String) {
    (call.turn, call.call_id.clone())
}
