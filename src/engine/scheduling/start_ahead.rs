//! How many runs an instance starts ahead of their slots: as many as its slots take up within a few milliseconds, by
//! how long runs have held them lately.
//!
//! A statement that starts runs takes longer than a short run holds its slot. If it started no more runs than there are
//! free slots, these would be empty most of the time, and each statement would start few. A run that waits here can't
//! start on another instance, so nothing is started ahead where runs hold their slots longer; and a run whose slot does
//! not come is [given back](LONGEST_WAIT).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::base::clock::Clock;

/// The time within which a run that is started ahead is to have its slot.
const AHEAD_BY: Duration = Duration::from_millis(4);
/// Runs that are started ahead of their slots, at most.
const MOST_STARTED: usize = 256;
/// Holds before which nothing is started ahead, and which the mean is of.
const MEASURED: u32 = 64;
/// How long the last hold says something about the next ones.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// How long a run waits for its slot before it is given back, for any instance: the runs before it hold their slots
/// longer than those did that were measured.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// How long runs hold the slots of an instance, and how many runs it may start ahead by that.
pub(super) struct StartAhead {
    clock: Clock,
    /// Holds that have ended, up to [`MEASURED`].
    measured: u32,
    /// Their mean in nanoseconds, in which the last ones weigh most.
    mean: f64,
    /// When the last one ended.
    last_end: Duration,
    /// When the holds began that have not ended, by the tokens of their runs' leases.
    begun: HashMap<i64, Duration>,
    /// The holds that have not ended, the oldest first.
    by_begin: BTreeSet<(Duration, i64)>,
}

impl StartAhead {
    /// Nothing is measured yet; time is told by this clock.
    pub fn new(clock: Clock) -> StartAhead {
        let (begun, by_begin) = (HashMap::new(), BTreeSet::new());
        StartAhead { clock, measured: 0, mean: 0.0, last_end: Duration::ZERO, begun, by_begin }
    }

    /// A run has a slot from now on.
    pub fn begin(&mut self, token: i64) {
        let now = self.clock.elapsed();
        self.begun.insert(token, now);
        self.by_begin.insert((now, token));
    }

    /// A run has left its slot.
    pub fn end(&mut self, token: i64) {
        let Some(begin) = self.begun.remove(&token) else { return };
        self.by_begin.remove(&(begin, token));
        let now = self.clock.elapsed();
        if !self.is_fresh(now) {
            self.measured = 0;
        }
        self.measured = (self.measured + 1).min(MEASURED);
        self.mean += (now.saturating_sub(begin).as_nanos() as f64 - self.mean) / f64::from(self.measured);
        self.last_end = now;
    }

    /// Runs that may wait for one of so many slots.
    pub fn most(&self, slots: usize) -> usize {
        let now = self.clock.elapsed();
        if self.measured < MEASURED || !self.is_fresh(now) {
            return 0;
        }
        // a run that holds its slot for longer than is waited for holds it as much longer again, as far as is known
        let short = self.by_begin.range((now.saturating_sub(AHEAD_BY), i64::MIN)..).count();
        let quick = (slots.saturating_sub(self.begun.len()) + short).min(slots);
        // where holds take no time at all there is no end to it, and where no slot is quick there is none
        ((quick as f64 * AHEAD_BY.as_nanos() as f64 / self.mean) as usize).min(MOST_STARTED)
    }

    fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_end) <= GOOD_FOR
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    fn advance(clock: &Clock, millis: i64) {
        clock.advance(TimeDelta::milliseconds(millis));
    }

    /// So many runs that have held a slot for so long, one after the other.
    fn measured(holds: u32, millis: i64) -> (Clock, StartAhead) {
        let clock = Clock::manual(DateTime::UNIX_EPOCH + TimeDelta::days(1));
        let mut ahead = StartAhead::new(clock.clone());
        hold(&clock, &mut ahead, holds, millis);
        (clock, ahead)
    }

    fn hold(clock: &Clock, ahead: &mut StartAhead, holds: u32, millis: i64) {
        for token in 0..i64::from(holds) {
            ahead.begin(token);
            advance(clock, millis);
            ahead.end(token);
        }
    }

    #[test]
    fn as_many_are_started_ahead_as_slots_take_up_in_time_and_no_more_than_the_most() {
        let most = |millis, slots| measured(MEASURED, millis).1.most(slots);
        assert_eq!([4, 16, 63, 64, 1_000].map(|slots| most(1, slots)), [16, 64, 252, MOST_STARTED, MOST_STARTED]);
        assert_eq!([1, 2, 4, 8, 40, 64, 256, 257].map(|millis| most(millis, 64)), [256, 128, 64, 32, 6, 4, 1, 0]);
        assert_eq!((most(0, 1), most(0, 0)), (MOST_STARTED, 0), "holds that no clock sees");
    }

    #[test]
    fn nothing_is_started_ahead_before_enough_was_measured_lately() {
        let (clock, mut ahead) = measured(MEASURED - 1, 1);
        assert_eq!(ahead.most(4), 0);
        hold(&clock, &mut ahead, 1, 1);
        assert_eq!(ahead.most(4), 16);
        advance(&clock, 1_000);
        assert_eq!(ahead.most(4), 16);
        advance(&clock, 1);
        assert_eq!(ahead.most(4), 0, "it was too long ago");
        hold(&clock, &mut ahead, MEASURED - 1, 2);
        assert_eq!(ahead.most(4), 0, "it is measured anew");
        hold(&clock, &mut ahead, 1, 2);
        assert_eq!(ahead.most(4), 8, "of before nothing is left");
    }

    #[test]
    fn slot_that_is_held_longer_counts_for_nothing_while_it_is_held_and_in_the_mean_afterwards() {
        let (clock, mut ahead) = measured(MEASURED, 1);
        (100..103).for_each(|token| ahead.begin(token));
        assert_eq!(ahead.most(4), 16);
        advance(&clock, 4);
        assert_eq!(ahead.most(4), 16);
        ahead.begin(103);
        advance(&clock, 1);
        assert_eq!(ahead.most(4), 4, "three of four are held for longer");
        advance(&clock, 4);
        assert_eq!(ahead.most(4), 0, "all are");
        ahead.begin(104);
        assert_eq!(ahead.most(4), 4, "a run that goes on at once has none of the four");
        advance(&clock, 600);
        (100..105).for_each(|token| ahead.end(token));
        ahead.end(7);
        assert_eq!(ahead.most(4), 0, "the mean is 47 ms");
        hold(&clock, &mut ahead, 3 * MEASURED, 1);
        assert_eq!(ahead.most(4), 4, "it goes back to what runs take now");
        hold(&clock, &mut ahead, 5 * MEASURED, 1);
        assert_eq!(ahead.most(4), 15);
    }
}
