//! How far one look into a stream goes, and in which steps: an entry may be as long as an event, and most are short.

use crate::ports::bus::redis::streams::{RawEntry, entry_bytes};

/// Entries that one look goes through.
pub(super) const LOOKED_AT: usize = 5_000;
/// Bytes after which a look ends that is asked to go on behind it.
pub(super) const LOOKED_AT_BYTES: usize = 16 * 1_024 * 1_024;
/// Entries of the first step at most, and of each.
const FIRST: usize = 17;
const MOST: usize = 64;
/// Entries of one step of a stream that is read beside many others.
const LEAST_OF_MANY: usize = 8;
/// Bytes that the next step should have, as far as the one before it tells.
const STEP_BYTES: usize = 1_024 * 1_024;

/// How many entries are read next.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookStep {
    count: usize,
    most: usize,
    bytes: usize,
}

impl LookStep {
    /// The first step of each of these streams, where so many entries are wanted of all together.
    pub fn first(wanted: usize, streams: usize) -> LookStep {
        let streams = streams.max(1);
        LookStep {
            count: wanted.div_ceil(streams).clamp(1, FIRST),
            most: (MOST / streams).max(LEAST_OF_MANY),
            bytes: STEP_BYTES / streams,
        }
    }

    /// Entries of this step, one at least.
    pub fn count(self) -> usize {
        self.count
    }

    /// The step behind one that has read these: twice as many entries, as long as they are short.
    pub fn after(self, read: &[RawEntry]) -> LookStep {
        let bytes: usize = read.iter().map(entry_bytes).sum();
        let fit = self.bytes * read.len() / bytes.max(1);
        LookStep { count: (self.count * 2).min(fit).clamp(1, self.most), ..self }
    }
}

/// Entries and bytes that a look may still go through.
#[derive(Debug)]
pub(super) struct LookBudget {
    entries: usize,
    bytes: usize,
}

impl LookBudget {
    /// So many entries, and so many bytes: the last entry may go beyond them.
    pub fn new(entries: usize, bytes: usize) -> LookBudget {
        LookBudget { entries, bytes }
    }

    /// Entries that are left.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Whether nothing is left.
    pub fn is_spent(&self) -> bool {
        self.entries == 0 || self.bytes == 0
    }

    /// Takes off an entry of this length.
    pub fn take(&mut self, bytes: usize) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize, bytes: usize) -> Vec<RawEntry> {
        vec![("1-0".to_owned(), vec![vec![b'x'; bytes]]); count]
    }

    #[test]
    fn steps_grow_while_entries_are_short_and_shrink_to_a_few_long_ones() {
        let mut step = LookStep::first(1, 1);
        let mut counts = Vec::new();
        for _ in 0..8 {
            counts.push(step.count());
            step = step.after(&entries(step.count(), 100));
        }
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 64, 64]);
        assert_eq!(step.after(&entries(2, 256 * 1_024)).count(), 4);
        assert_eq!(step.after(&entries(2, 2 * STEP_BYTES)).count(), 1);
        assert_eq!(step.after(&[]).count(), 1);
    }

    #[test]
    fn streams_share_what_is_wanted_of_all() {
        assert_eq!(LookStep::first(200, 1).count(), FIRST);
        assert_eq!(LookStep::first(17, 16).count(), 2);
        assert_eq!(LookStep::first(0, 0).count(), 1);
        let step = LookStep::first(200, 16);
        assert_eq!(step.after(&entries(13, 100)).count(), LEAST_OF_MANY);
    }

    #[test]
    fn look_ends_with_its_entries_or_with_its_bytes() {
        // as with `LOOKED_AT` entries, and of dead letters with `LETTERS` and `LETTER_BYTES`
        let mut budget = LookBudget::new(2, 10);
        budget.take(9);
        assert!(!budget.is_spent() && budget.entries() == 1);
        budget.take(0);
        assert!(budget.is_spent());
        let mut budget = LookBudget::new(2, 10);
        budget.take(11);
        assert!(budget.is_spent() && budget.entries() == 1);
    }
}
