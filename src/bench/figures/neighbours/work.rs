//! Counts of what the hostile tenants do, by kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bench::BenchFigure;

/// A kind of work of a hostile tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostileWork {
    EventBatch,
    Import,
    Preview,
    List,
    RefusedCall,
    FilterSearch,
    ConditionSearch,
    Markdown,
    SlowPoll,
    SlowStep,
    EventStream,
    RunStream,
    RefusedStream,
}

const KINDS: usize = 13;

impl HostileWork {
    /// All kinds in their order, each as a figure tells it.
    const ALL: [(HostileWork, &str); KINDS] = [
        (HostileWork::EventBatch, "batches of events"),
        (HostileWork::Import, "imports of empty lines"),
        (HostileWork::Preview, "previews of a dear rule"),
        (HostileWork::List, "lists"),
        (HostileWork::RefusedCall, "calls that were refused"),
        (HostileWork::FilterSearch, "events whose text a filter has searched with `matches`"),
        (HostileWork::ConditionSearch, "polls whose text a condition has searched with `matches`"),
        (HostileWork::Markdown, "messages with long Markdown"),
        (HostileWork::SlowPoll, "slow polls of an address"),
        (HostileWork::SlowStep, "slow steps of runs"),
        (HostileWork::EventStream, "streams of events opened"),
        (HostileWork::RunStream, "streams of runs opened"),
        (HostileWork::RefusedStream, "streams that were refused"),
    ];

    /// Calls of the API that are answered at once.
    const CALLS: [HostileWork; 4] =
        [HostileWork::EventBatch, HostileWork::Import, HostileWork::Preview, HostileWork::List];

    fn is_refusal(self) -> bool {
        matches!(self, HostileWork::RefusedCall | HostileWork::RefusedStream)
    }
}

/// Counts so far. All that the tenants do counts here, whoever sees it.
#[derive(Default)]
pub struct WorkCounts {
    counts: [AtomicU64; KINDS],
    open: AtomicU64,
}

/// A stream that is open until this is dropped.
pub struct OpenStream(Arc<WorkCounts>);

/// Counts at a moment, or between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkDone {
    counts: [u64; KINDS],
    /// Streams that are open, at the later moment.
    open: u64,
    /// Polls by a query that were broken off at their time limit.
    queries: u64,
}

impl WorkCounts {
    pub fn add(&self, kind: HostileWork) {
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a stream that was opened, and that it is open.
    pub fn open_stream(self: &Arc<WorkCounts>, kind: HostileWork) -> OpenStream {
        self.add(kind);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(Arc::clone(self))
    }

    /// The counts of now, with so many polls by a query, which the service counts.
    pub fn done(&self, queries: u64) -> WorkDone {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        WorkDone { counts, open: self.open.load(Ordering::Relaxed), queries }
    }

    /// Whether each kind that is counted here was done since then.
    pub fn has_each_since(&self, before: &WorkDone) -> bool {
        self.done(0).since(before).has_each_kind()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WorkDone {
    /// The work between an earlier moment and this one.
    pub fn since(&self, before: &WorkDone) -> WorkDone {
        let counts = std::array::from_fn(|kind| self.counts[kind] - before.counts[kind]);
        WorkDone { counts, open: self.open, queries: self.queries.saturating_sub(before.queries) }
    }

    /// Whether each kind was done, polls by a query included.
    pub fn has_each(&self) -> bool {
        self.has_each_kind() && self.queries > 0
    }

    /// Nobody has to be refused.
    fn has_each_kind(&self) -> bool {
        let mut kinds = HostileWork::ALL.iter().map(|(kind, _)| *kind).filter(|kind| !kind.is_refusal());
        kinds.all(|kind| self.counts[kind as usize] > 0)
    }

    /// Calls of the API, but for streams.
    pub fn calls(&self) -> u64 {
        HostileWork::CALLS.iter().map(|kind| self.counts[*kind as usize]).sum()
    }

    /// Tells it beside a figure.
    pub fn annotate(&self, figure: BenchFigure) -> BenchFigure {
        let told = HostileWork::ALL.iter().map(|(kind, words)| (*words, self.counts[*kind as usize]));
        let more =
            [("streams open at the end", self.open), ("polls by a query that took all of their time", self.queries)];
        told.chain(more).fold(figure, |figure, (words, count)| figure.with_part(words, "", count as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_in_their_order() {
        assert!(HostileWork::ALL.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place));
    }

    #[test]
    fn each_kind_but_refusals_has_to_be_done() {
        let counts = Arc::new(WorkCounts::default());
        let before = counts.done(3);
        for (kind, _) in HostileWork::ALL.into_iter().filter(|(kind, _)| !kind.is_refusal()) {
            assert!(!counts.has_each_since(&before), "{kind:?}");
            counts.add(kind);
        }
        assert!(counts.has_each_since(&before) && !counts.has_each_since(&counts.done(0)));
        let stream = counts.open_stream(HostileWork::RunStream);
        let done = counts.done(5).since(&before);
        assert_eq!((done.calls(), done.open, done.queries), (4, 1, 2));
        assert_eq!(done.counts[HostileWork::RunStream as usize], 2);
        assert!(done.has_each() && !counts.done(3).since(&before).has_each(), "polls by a query count, too");
        drop(stream);
        assert_eq!(counts.done(0).open, 0);
        let parts = done.annotate(BenchFigure::default()).parts;
        assert!(parts.iter().any(|part| part.name == "streams of runs opened" && part.value == 2.0), "{parts:?}");
        assert_eq!(parts.len(), KINDS + 2);
    }
}
