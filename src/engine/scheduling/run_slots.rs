//! The slots in which runs of this instance compute (`engine.max_concurrent_runs`), and those in which they wait for an
//! answer from elsewhere, or for the record of their end (`engine.max_waiting_runs`).
//!
//! A run that waits gives its slot up, as soon as it finds a waiting place: each tenant may have as many of these as
//! the rule of [`Shares`](crate::store::Shares) leaves it, and tenants have those that become free in turn. A run whose
//! answer is here has a slot again before runs that are yet to start, tenants in turn, by the same rule; it leaves a
//! quarter of its tenant's slots to those.
//!
//! While runs hold their slots for moments, more may start than there are slots (`start_ahead`). Those beyond them wait
//! here and begin once they have a slot, tenants in turn, by the same rule.

mod slot_state;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::agent::{RunSlot, SlotTurn, slot_turn};
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::engine::Wakeup;
use crate::engine::scheduling::run_slots::slot_state::SlotState;
use crate::engine::scheduling::start_ahead::StartAhead;
use crate::store::Occupant;

pub use slot_state::SlotCounts;

/// Cheap to clone; all clones share the slots.
#[derive(Clone)]
pub struct RunSlots(Arc<Shared>);

struct Shared {
    /// Runs that compute.
    capacity: usize,
    state: Mutex<SlotState>,
    gauges: Family<PhaseLabel, Gauge>,
    /// Wakes when a run may start where none could.
    freed: Wakeup,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

impl RunSlots {
    /// With so many slots to compute, and so many to wait without one. No more runs start than there are slots.
    pub fn new(capacity: usize, waiting_capacity: usize) -> RunSlots {
        RunSlots::with(capacity, waiting_capacity, None)
    }

    /// As [`RunSlots::new`]; but runs start ahead of their slots while they hold them for moments, by this clock.
    pub fn starting_ahead(capacity: usize, waiting_capacity: usize, clock: Clock) -> RunSlots {
        RunSlots::with(capacity, waiting_capacity, Some(StartAhead::new(clock)))
    }

    fn with(capacity: usize, waiting_capacity: usize, start_ahead: Option<StartAhead>) -> RunSlots {
        let state = Mutex::new(SlotState::new(capacity, waiting_capacity, start_ahead));
        RunSlots(Arc::new(Shared { capacity, state, gauges: Family::default(), freed: Wakeup::default() }))
    }

    /// Has these metrics tell how many runs are in each phase.
    pub fn register(&self, metrics: &Metrics) {
        let help = "Runs that this instance executes: they have a slot (computing), were started ahead of one \
                    (starting), wait without one for an answer or for the record of their end (waiting), or have it \
                    and wait for a slot (returning)";
        metrics.registered("runs_under_way", help, self.0.gauges.clone());
        self.tell(&self.lock());
    }

    /// Number of slots to compute.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Wakes when a run has ended or waits, and another one may start.
    pub fn freed_wakeup(&self) -> Wakeup {
        Arc::clone(&self.0.freed)
    }

    /// How many runs are in each phase now.
    pub fn counts(&self) -> SlotCounts {
        self.lock().counts()
    }

    /// From now on all tasks are of one tenant, or are not: then no tenant may have all slots.
    pub fn set_single_tenant(&self, single_tenant: bool) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.single_tenant, single_tenant) != single_tenant {
            self.admit(&mut state);
        }
    }

    /// Whether all tasks are of one tenant, as far as is known.
    pub fn is_single_tenant(&self) -> bool {
        self.lock().single_tenant
    }

    /// Runs that may have a slot, or wait for their first one, at the same time: as many as there are slots, and those
    /// ahead of them.
    pub fn most_started(&self) -> usize {
        self.lock().most_started()
    }

    /// Runs that could start, whether they are asked for or not: slots that no run has, and runs ahead of their slots.
    pub fn unoccupied(&self) -> usize {
        self.lock().unoccupied()
    }

    /// Runs that may start and nobody asks for.
    pub fn free(&self) -> usize {
        self.lock().free()
    }

    /// Whether starts are asked for while a database call is in flight.
    pub fn has_reserved(&self) -> bool {
        self.lock().has_reserved()
    }

    /// Asks for up to `most` starts; answers how many they are. They are to be [given back](Self::unreserve).
    pub fn reserve(&self, most: usize) -> usize {
        self.lock().reserve(most)
    }

    /// Gives back starts that were asked for: the runs that have started are counted by now.
    pub fn unreserve(&self, starts: usize) {
        let mut state = self.lock();
        state.unreserve(starts);
        self.admit(&mut state);
    }

    /// The tenants whose runs have slots or wait for their first ones, by their hashes, and how many runs.
    pub fn occupants(&self) -> HashMap<u32, Occupant> {
        self.lock().occupants()
    }

    /// Gives a run a slot, until its [end](Self::end); or has it wait for one, if it was started ahead.
    pub fn start(&self, token: i64, tenant: &str) -> LeasedSlot {
        let mut state = self.lock();
        state.start(token, tenant);
        self.tell(&state);
        LeasedSlot { slots: self.clone(), token }
    }

    /// Ends a run's use of slots.
    pub fn end(&self, token: i64) {
        let mut state = self.lock();
        state.forget(token);
        self.left(&mut state);
    }

    /// A run has left its slot. Slots that are given back are none of these: the worker asks for some each time that it
    /// wakes.
    fn left(&self, state: &mut SlotState) {
        self.admit(state);
        if state.has_free() {
            self.0.freed.notify_one();
        }
    }

    /// Gives slots and waiting places to the runs that wait for them.
    fn admit(&self, state: &mut SlotState) {
        if state.admit() && state.has_free() {
            self.0.freed.notify_one();
        }
        self.tell(state);
    }

    fn tell(&self, state: &SlotState) {
        let SlotCounts { computing, waiting, returning, starting } = state.counts();
        let phases = [("computing", computing), ("waiting", waiting), ("returning", returning), ("starting", starting)];
        for (phase, count) in phases {
            self.0.gauges.get_or_create(&PhaseLabel { phase }).set(count as i64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.state.lock().expect("slots lock")
    }
}

/// The slot of one run under its lease.
pub struct LeasedSlot {
    slots: RunSlots,
    token: i64,
}

impl LeasedSlot {
    /// `None`: the run has a slot; else it was started ahead, and has one once its turn is ready.
    pub fn begin(&self) -> Option<SlotTurn> {
        self.slots.lock().begin(self.token).map(slot_turn)
    }
}

impl RunSlot for LeasedSlot {
    fn leave(&self) {
        let mut state = self.slots.lock();
        if state.leave(self.token) {
            self.slots.left(&mut state);
        }
    }

    fn arrive(&self) -> Option<SlotTurn> {
        let mut state = self.slots.lock();
        let turn = state.arrive(self.token)?;
        self.slots.admit(&mut state);
        Some(slot_turn(turn))
    }

    fn force(&self) {
        let mut state = self.slots.lock();
        if state.force(self.token) {
            self.slots.admit(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;
    use crate::agent::wait_without_slot;
    use crate::store::tenant_hash;

    fn counts(computing: usize, waiting: usize, returning: usize) -> SlotCounts {
        SlotCounts { computing, waiting, returning, starting: 0 }
    }

    fn single_tenant(capacity: usize, waiting: usize) -> RunSlots {
        let slots = RunSlots::new(capacity, waiting);
        slots.set_single_tenant(true);
        slots
    }

    /// Starts runs of a tenant, whose tokens follow this one.
    fn start(slots: &RunSlots, after: i64, count: i64, tenant: &str) -> Vec<LeasedSlot> {
        (after + 1..=after + count).map(|token| slots.start(token, tenant)).collect()
    }

    fn has_turn(turn: &mut Option<SlotTurn>) -> bool {
        turn.clone().is_none_or(|turn| futures::FutureExt::now_or_never(turn).is_some())
    }

    #[test]
    fn run_that_waits_gives_its_place_up_and_has_one_again_before_others_start() {
        let slots = single_tenant(2, 5);
        let runs = start(&slots, 0, 2, "a");
        assert_eq!((slots.free(), slots.counts()), (0, counts(2, 0, 0)));
        runs[0].leave();
        assert_eq!((slots.free(), slots.counts()), (1, counts(1, 1, 0)));
        let _third = slots.start(3, "a");
        let mut turn = runs[0].arrive();
        assert!(!has_turn(&mut turn));
        assert_eq!(slots.counts(), counts(2, 0, 1));
        slots.end(3);
        assert!(has_turn(&mut turn), "a slot that is left is given to who has its answer");
        assert_eq!((slots.reserve(1), slots.counts()), (0, counts(2, 0, 0)));
        slots.end(1);
        assert_eq!((slots.reserve(2), slots.free()), (1, 0));
        slots.unreserve(1);
        slots.end(2);
        assert_eq!((slots.free(), slots.counts()), (2, SlotCounts::default()));
    }

    #[test]
    fn places_that_are_given_back_wake_nobody_and_those_that_a_run_leaves_do() {
        let slots = single_tenant(2, 5);
        let run = slots.start(1, "a");
        let freed = slots.freed_wakeup();
        let is_woken = || futures::FutureExt::now_or_never(freed.notified()).is_some();
        let reserved = slots.reserve(1);
        slots.unreserve(reserved);
        assert!(!is_woken(), "the worker would wake itself again and again");
        run.leave();
        assert!(is_woken());
        slots.end(1);
        assert!(is_woken());
    }

    #[test]
    fn place_that_is_asked_for_is_no_one_s_until_it_is_given_back() {
        let slots = single_tenant(1, 5);
        let run = slots.start(1, "a");
        run.leave();
        assert_eq!(slots.reserve(1), 1);
        let mut turn = run.arrive();
        assert!(!has_turn(&mut turn));
        slots.unreserve(1);
        assert!(has_turn(&mut turn));
    }

    #[test]
    fn run_that_finds_no_waiting_place_keeps_its_own() {
        let slots = single_tenant(2, 1);
        let runs = start(&slots, 0, 2, "a");
        runs.iter().for_each(RunSlot::leave);
        assert_eq!(slots.counts(), counts(1, 1, 0));
        assert!(runs[1].arrive().is_none(), "it has its slot");
        assert!(has_turn(&mut runs[0].arrive()));
        let none = single_tenant(1, 0);
        let run = none.start(1, "a");
        run.leave();
        assert_eq!((none.free(), none.counts()), (0, counts(1, 0, 0)));
    }

    #[test]
    fn run_that_found_no_waiting_place_leaves_its_own_as_soon_as_one_is_free() {
        let slots = single_tenant(2, 1);
        let freed = slots.freed_wakeup();
        let runs = start(&slots, 0, 2, "a");
        runs.iter().for_each(RunSlot::leave);
        let _third = slots.start(3, "a");
        assert_eq!((slots.free(), slots.counts()), (0, counts(2, 1, 0)));
        // the first has its answer: it goes on in the slot of the second, which takes the waiting place
        let mut turn = runs[0].arrive();
        assert!(!has_turn(&mut turn));
        slots.end(3);
        assert!(has_turn(&mut turn));
        assert_eq!((slots.free(), slots.counts()), (1, counts(1, 1, 0)));
        assert!(futures::FutureExt::now_or_never(freed.notified()).is_some(), "a slot is free");
        assert!(has_turn(&mut runs[1].arrive()));
        // a run that has its answer, or has ended, does not leave its slot any more
        runs.iter().for_each(RunSlot::leave);
        assert!(runs[1].arrive().is_none());
        slots.end(1);
        assert_eq!(slots.counts(), counts(1, 0, 0));
        slots.end(2);
        assert_eq!((slots.free(), slots.counts()), (2, SlotCounts::default()));
    }

    #[test]
    fn tenants_go_on_in_turn_and_none_has_the_last_quarter_while_there_are_others() {
        let slots = RunSlots::new(8, 100);
        let many = start(&slots, 0, 12, "a");
        many.iter().for_each(RunSlot::leave);
        let few = start(&slots, 100, 2, "b");
        few.iter().for_each(RunSlot::leave);
        let hog = start(&slots, 200, 8, "c");
        let mut many: Vec<_> = many.iter().map(RunSlot::arrive).collect();
        let mut few: Vec<_> = few.iter().map(RunSlot::arrive).collect();
        assert_eq!(slots.counts(), counts(8, 0, 14));
        for token in 201..=202 {
            slots.end(token);
        }
        let turns = |turns: &mut Vec<_>| turns.iter_mut().map(has_turn).filter(|has| *has).count();
        assert_eq!((turns(&mut many), turns(&mut few)), (1, 1));
        for token in 203..=208 {
            slots.end(token);
        }
        drop(hog);
        // b has all that it wants; a stops short of its share, three times as many as are free
        assert_eq!((turns(&mut many), turns(&mut few), slots.free()), (4, 2, 2));
    }

    #[test]
    fn runs_that_go_on_leave_a_quarter_to_those_that_are_to_start() {
        let slots = single_tenant(8, 100);
        let runs = start(&slots, 0, 20, "a");
        runs.iter().for_each(RunSlot::leave);
        let turns: Vec<_> = runs.iter().map(RunSlot::arrive).collect();
        assert_eq!((slots.counts(), slots.free()), (counts(6, 0, 14), 2));
        drop(turns);
    }

    #[tokio::test]
    async fn wait_that_is_broken_off_goes_on_at_once_and_leaves_no_trace() {
        let slots = single_tenant(1, 5);
        let run = slots.start(1, "a");
        let mut wait = Box::pin(wait_without_slot(&run, std::future::pending::<()>()));
        assert!(futures::poll!(&mut wait).is_pending());
        let other = slots.start(2, "a");
        drop(wait);
        assert_eq!((slots.counts(), slots.free()), (counts(2, 0, 0), 0), "one more than there are, for its end");
        let mut wait = Box::pin(wait_without_slot(&run, std::future::ready(())));
        assert!(futures::poll!(&mut wait).is_pending(), "its answer is here, and the other run has the slot");
        drop(wait);
        slots.end(1);
        slots.end(2);
        assert_eq!((slots.free(), slots.counts()), (1, SlotCounts::default()));
        assert!(run.arrive().is_none() && other.arrive().is_none(), "a run that has ended counts for nothing");
    }

    #[test]
    fn run_that_ends_while_it_waits_for_its_turn_is_forgotten() {
        let slots = single_tenant(1, 5);
        let run = slots.start(1, "a");
        run.leave();
        let _other = slots.start(2, "a");
        let turn = run.arrive();
        slots.end(1);
        slots.end(2);
        assert_eq!((slots.free(), slots.counts()), (1, SlotCounts::default()));
        drop(turn);
    }

    /// Slots that a hundred runs have held for no time at all, by a clock that stands still: 256 may start ahead.
    fn held_shortly(capacity: usize) -> (Clock, RunSlots) {
        let clock = Clock::manual(DateTime::UNIX_EPOCH + TimeDelta::days(1));
        let slots = RunSlots::starting_ahead(capacity, 100, clock.clone());
        for token in -100..0 {
            slots.start(token, "past");
            slots.end(token);
        }
        (clock, slots)
    }

    /// Starts runs of a tenant that were asked for together, whose tokens follow this one.
    fn start_asked(slots: &RunSlots, after: i64, count: i64, tenant: &str) -> Vec<LeasedSlot> {
        assert_eq!(slots.reserve(count as usize), count as usize);
        let runs = start(slots, after, count, tenant);
        slots.unreserve(count as usize);
        runs
    }

    fn with_starting(computing: usize, starting: usize) -> SlotCounts {
        SlotCounts { computing, starting, ..SlotCounts::default() }
    }

    #[test]
    fn runs_that_are_started_ahead_begin_in_slots_that_are_left_tenants_in_turn() {
        let (_, slots) = held_shortly(2);
        slots.set_single_tenant(true);
        assert_eq!((slots.free(), slots.unoccupied(), slots.most_started()), (258, 258, 258));
        assert_eq!((slots.reserve(7), slots.free(), slots.unoccupied()), (7, 251, 258));
        let (many, few) = (start(&slots, 0, 5, "a"), start(&slots, 10, 2, "b"));
        slots.unreserve(7);
        assert_eq!((slots.counts(), slots.free(), slots.unoccupied()), (with_starting(2, 5), 251, 251));
        let mut turns: Vec<_> = many.iter().chain(&few).map(LeasedSlot::begin).collect();
        let mut begun = || turns.iter_mut().map(|turn| u8::from(has_turn(turn))).collect::<Vec<u8>>();
        assert_eq!(begun(), [1, 1, 0, 0, 0, 0, 0]);
        let freed = slots.freed_wakeup();
        let is_woken = || futures::FutureExt::now_or_never(freed.notified()).is_some();
        assert!(is_woken() && !is_woken(), "for those of before");
        slots.end(1);
        assert_eq!((begun(), slots.counts()), (vec![1, 1, 1, 0, 0, 0, 0], with_starting(2, 4)));
        assert!(is_woken(), "another one may start");
        many[1].leave();
        assert_eq!(begun(), [1, 1, 1, 0, 0, 1, 0]);
        slots.end(11);
        assert_eq!(begun(), [1, 1, 1, 1, 0, 1, 0]);
        for token in 3..=4 {
            slots.end(token);
        }
        assert_eq!((begun(), slots.counts()), (vec![1; 7], SlotCounts { waiting: 1, ..with_starting(2, 0) }));
    }

    #[test]
    fn tenant_with_many_runs_ahead_has_three_quarters_of_the_slots_and_another_begins_at_once() {
        let (_, slots) = held_shortly(8);
        let many = start_asked(&slots, 0, 30, "a");
        assert_eq!((slots.counts(), slots.free()), (with_starting(6, 24), 234));
        assert_eq!(slots.occupants()[&tenant_hash("a")].runs, 30);
        assert!(start_asked(&slots, 100, 1, "b")[0].begin().is_none(), "it has its slot");
        assert_eq!(slots.counts(), with_starting(7, 24));
        slots.end(1);
        assert_eq!(slots.counts(), with_starting(7, 23));
        slots.set_single_tenant(true);
        assert_eq!(slots.counts(), with_starting(8, 22));
        drop(many);
    }

    #[test]
    fn slot_that_is_kept_for_a_call_in_flight_is_taken_by_runs_that_wait_for_one() {
        let (_, slots) = held_shortly(1);
        slots.set_single_tenant(true);
        assert_eq!((slots.reserve(1), slots.reserve(2)), (1, 2));
        start(&slots, 0, 2, "a");
        assert_eq!(slots.counts(), with_starting(1, 1));
        slots.end(1);
        assert_eq!(slots.counts(), with_starting(1, 0));
        start(&slots, 2, 1, "a");
        slots.unreserve(2);
        slots.unreserve(1);
        assert_eq!((slots.counts(), slots.has_reserved(), slots.free()), (with_starting(1, 1), false, 255));
    }

    #[test]
    fn run_whose_answer_is_here_has_a_slot_before_those_that_were_started_ahead() {
        let (_, slots) = held_shortly(1);
        slots.set_single_tenant(true);
        let waits = start_asked(&slots, 0, 1, "a");
        waits[0].leave();
        assert_eq!((slots.reserve(1), slots.reserve(2)), (1, 2));
        let _ahead = start(&slots, 10, 2, "a");
        let mut turn = waits[0].arrive();
        assert!(!has_turn(&mut turn));
        slots.end(11);
        assert!(has_turn(&mut turn), "kept for a call in flight, the slot would go to the run that was started ahead");
        assert_eq!(slots.counts(), with_starting(1, 1));
    }

    #[test]
    fn run_that_ends_before_it_had_its_slot_is_forgotten_and_takes_none_for_its_end() {
        let (_, slots) = held_shortly(1);
        slots.set_single_tenant(true);
        let runs = start_asked(&slots, 0, 3, "a");
        let mut turn = runs[1].begin();
        runs[1].leave();
        assert_eq!(slots.counts(), SlotCounts { waiting: 1, ..with_starting(1, 1) });
        slots.end(1);
        assert!(!has_turn(&mut turn) && runs[2].begin().is_none(), "the third has the slot");
        (2..=3).for_each(|token| slots.end(token));
        assert_eq!((slots.counts(), slots.free()), (SlotCounts::default(), 257));
        assert!(runs[2].begin().is_none(), "a run that has ended counts for nothing");
    }

    #[test]
    fn nothing_starts_ahead_of_slots_that_are_held_longer() {
        let (clock, slots) = held_shortly(4);
        slots.set_single_tenant(true);
        let runs = start_asked(&slots, 0, 4, "a");
        assert_eq!((slots.free(), slots.unoccupied()), (256, 256));
        clock.advance(TimeDelta::milliseconds(5));
        assert_eq!((slots.free(), slots.unoccupied(), slots.most_started(), slots.reserve(9)), (0, 0, 4, 0));
        clock.advance(TimeDelta::seconds(5));
        runs[0].leave();
        assert_eq!(slots.free(), 1, "of so long ago nothing is known");
    }
}
