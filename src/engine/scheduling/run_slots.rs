//! The slots in which runs of this instance compute (`engine.max_concurrent_runs`), and those in which they wait for an
//! answer from elsewhere, or for the record of their end (`engine.max_waiting_runs`).
//!
//! A run that waits gives its slot up, as soon as it finds a waiting place: each tenant may have as many of these as
//! the rule of [`Shares`](crate::store::Shares) leaves it, and tenants have those that become free in turn. A run whose
//! answer is here has a slot again before runs that are yet to start, tenants in turn, by the same rule; it leaves a
//! quarter of its tenant's slots to those.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;

use crate::agent::{RunSlot, SlotTurn, slot_turn};
use crate::base::metrics::Metrics;
use crate::engine::Wakeup;
use crate::engine::scheduling::tenant_queues::TenantQueues;
use crate::store::{Occupant, tenant_hash, tenant_share};

/// Cheap to clone; all clones share the slots.
#[derive(Clone)]
pub struct RunSlots(Arc<Shared>);

struct Shared {
    /// Runs that compute.
    capacity: usize,
    /// Runs that wait without a slot.
    waiting_capacity: usize,
    state: Mutex<SlotState>,
    gauges: Family<PhaseLabel, Gauge>,
    /// Wakes when a slot is free that was not.
    freed: Wakeup,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Default)]
struct SlotState {
    /// By the tokens of their leases.
    runs: HashMap<i64, SlotRun>,
    tenants: HashMap<u32, TenantUse>,
    computing: usize,
    waiting: usize,
    /// Slots that are asked for while a database call is in flight.
    reserved: usize,
    /// All tasks are of one tenant, as far as is known.
    single_tenant: bool,
    /// Runs whose answer is here and that have no slot.
    returning: TenantQueues<i64>,
    /// Runs that wait in their slots, since they found no waiting place.
    staying: TenantQueues<i64>,
}

struct SlotRun {
    tenant_hash: u32,
    phase: Phase,
    /// Hears that the run has a slot again.
    turn: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has a slot, and had it at its start or after a wait.
    Computing {
        returned: bool,
    },
    Waiting,
    /// Its answer is here; it counts as waiting until it has a slot.
    Returning,
}

/// Slots of one tenant.
#[derive(Default)]
struct TenantUse {
    tenant: Arc<str>,
    computing: usize,
    /// Those that compute after a wait.
    returned: usize,
    waiting: usize,
}

/// How many runs of this instance compute, wait for an answer, and wait for a slot to go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Runs that have a slot.
    pub computing: usize,
    /// Runs without a slot whose answer is not here.
    pub waiting: usize,
    /// Runs without a slot whose answer is here.
    pub returning: usize,
}

impl RunSlots {
    /// With so many slots to compute, and so many to wait without one.
    pub fn new(capacity: usize, waiting_capacity: usize) -> RunSlots {
        let (state, gauges, freed) = (Mutex::default(), Family::default(), Wakeup::default());
        RunSlots(Arc::new(Shared { capacity, waiting_capacity, state, gauges, freed }))
    }

    /// Has these metrics tell how many runs are in each phase.
    pub fn register(&self, metrics: &Metrics) {
        let help = "Runs that this instance executes: they have a slot (computing), wait without one for an answer or for \
                    the record of their end (waiting), or have it and wait for a slot (returning)";
        metrics.registered("runs_under_way", help, self.0.gauges.clone());
        self.tell(&self.lock());
    }

    /// Number of slots to compute.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Wakes when a run has ended or waits, and left a slot free.
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

    /// Slots that no run has, whether they are asked for or not.
    pub fn unoccupied(&self) -> usize {
        self.0.capacity.saturating_sub(self.lock().computing)
    }

    /// Slots that no run has and nobody asks for.
    pub fn free(&self) -> usize {
        self.lock().free(self.0.capacity)
    }

    /// Whether slots are asked for while a database call is in flight.
    pub fn has_reserved(&self) -> bool {
        self.lock().reserved > 0
    }

    /// Asks for up to `most` slots; answers how many they are. They are to be [given back](Self::unreserve).
    pub fn reserve(&self, most: usize) -> usize {
        let mut state = self.lock();
        let slots = state.free(self.0.capacity).min(most);
        state.reserved += slots;
        slots
    }

    /// Gives back slots that were asked for: what started in them has them now.
    pub fn unreserve(&self, slots: usize) {
        let mut state = self.lock();
        state.reserved -= slots;
        self.admit(&mut state);
    }

    /// The tenants that have slots, by their hashes, and how many.
    pub fn occupants(&self) -> HashMap<u32, Occupant> {
        let state = self.lock();
        let taken = state.tenants.iter().filter(|(_, tenant)| tenant.computing > 0);
        let occupant = |tenant: &TenantUse| Occupant { tenant: Arc::clone(&tenant.tenant), runs: tenant.computing };
        taken.map(|(hash, tenant)| (*hash, occupant(tenant))).collect()
    }

    /// Gives a run a slot, until its [end](Self::end).
    pub fn start(&self, token: i64, tenant: &str) -> LeasedSlot {
        let tenant_hash = tenant_hash(tenant);
        let mut state = self.lock();
        state.forget(token);
        let phase = Phase::Computing { returned: false };
        state.runs.insert(token, SlotRun { tenant_hash, phase, turn: None });
        let used = state.tenants.entry(tenant_hash).or_default();
        if used.tenant.is_empty() {
            used.tenant = tenant.into();
        }
        state.count(tenant_hash, phase, 1);
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
        if state.free(self.0.capacity) > 0 {
            self.0.freed.notify_one();
        }
    }

    /// Lets runs go on whose answer is here, and those leave their slots that found no waiting place before: each makes
    /// room for the other.
    fn admit(&self, state: &mut SlotState) {
        state.returning.requeue_skipped();
        let mut any_left = state.leave_staying(self.0.waiting_capacity);
        while state.enter_returning(self.0.capacity) {
            any_left |= state.leave_staying(self.0.waiting_capacity);
        }
        if any_left && state.free(self.0.capacity) > 0 {
            self.0.freed.notify_one();
        }
        self.tell(state);
    }

    fn tell(&self, state: &SlotState) {
        let SlotCounts { computing, waiting, returning } = state.counts();
        for (phase, count) in [("computing", computing), ("waiting", waiting), ("returning", returning)] {
            self.0.gauges.get_or_create(&PhaseLabel { phase }).set(count as i64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.state.lock().expect("slots lock")
    }
}

impl SlotState {
    fn counts(&self) -> SlotCounts {
        let returning = self.returning.len();
        SlotCounts { computing: self.computing, waiting: self.waiting.saturating_sub(returning), returning }
    }

    fn free(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.computing + self.reserved)
    }

    /// Slots that a tenant may take of those that are free.
    fn share(&self, free: usize, used: usize) -> usize {
        if self.single_tenant { free } else { tenant_share(free, used) }
    }

    fn next_returning(&mut self, capacity: usize) -> Option<i64> {
        let mut queues = std::mem::take(&mut self.returning);
        let free = self.free(capacity);
        let next = queues.pop(&mut |tenant_hash| {
            let used = &self.tenants[&tenant_hash];
            let share = self.share(free, used.computing);
            // it leaves a quarter of what its tenant may have to runs that are to start
            share > 0 && used.returned < (3 * (used.computing + share)).div_ceil(4)
        });
        self.returning = queues;
        next
    }

    /// Gives slots to runs whose answer is here, as far as there are any.
    fn enter_returning(&mut self, capacity: usize) -> bool {
        let mut any = false;
        while self.free(capacity) > 0 {
            let Some(token) = self.next_returning(capacity) else { break };
            self.enter(token);
            any = true;
        }
        any
    }

    /// Gives waiting places to runs that wait in their slots, as far as there are any.
    fn leave_staying(&mut self, waiting_capacity: usize) -> bool {
        let mut queues = std::mem::take(&mut self.staying);
        queues.requeue_skipped();
        let mut any = false;
        while self.waiting < waiting_capacity {
            let Some(token) = queues.pop(&mut |tenant_hash| self.may_wait(tenant_hash, waiting_capacity)) else {
                break;
            };
            self.set_phase(token, Phase::Waiting);
            any = true;
        }
        self.staying = queues;
        any
    }

    /// Whether one more run of the tenant may wait without a slot.
    fn may_wait(&self, tenant_hash: u32, waiting_capacity: usize) -> bool {
        let free = waiting_capacity.saturating_sub(self.waiting);
        self.share(free, self.tenants[&tenant_hash].waiting) > 0
    }

    /// Gives the run a slot after its wait.
    fn enter(&mut self, token: i64) {
        self.set_phase(token, Phase::Computing { returned: true });
        if let Some(turn) = self.runs.get_mut(&token).and_then(|run| run.turn.take()) {
            // a run that has given up its wait needs no turn
            let _ = turn.send(());
        }
    }

    fn set_phase(&mut self, token: i64, phase: Phase) {
        let Some(run) = self.runs.get_mut(&token) else { return };
        let (tenant_hash, before) = (run.tenant_hash, std::mem::replace(&mut run.phase, phase));
        self.count(tenant_hash, before, -1);
        self.count(tenant_hash, phase, 1);
    }

    /// Adds to what a phase of a tenant's runs takes, or takes from it.
    fn count(&mut self, tenant_hash: u32, phase: Phase, by: isize) {
        let used = self.tenants.entry(tenant_hash).or_default();
        let add = |count: &mut usize| *count = count.saturating_add_signed(by);
        match phase {
            Phase::Computing { returned } => {
                add(&mut self.computing);
                add(&mut used.computing);
                if returned {
                    add(&mut used.returned);
                }
            }
            Phase::Waiting | Phase::Returning => {
                add(&mut self.waiting);
                add(&mut used.waiting);
            }
        }
    }

    fn forget(&mut self, token: i64) {
        let Some(run) = self.runs.remove(&token) else { return };
        match run.phase {
            Phase::Returning => self.returning.retain(|waiting| *waiting != token),
            Phase::Computing { .. } => self.staying.retain(|staying| *staying != token),
            Phase::Waiting => {}
        }
        self.count(run.tenant_hash, run.phase, -1);
        let used = &self.tenants[&run.tenant_hash];
        if used.computing + used.waiting == 0 {
            self.tenants.remove(&run.tenant_hash);
        }
    }
}

/// The slot of one run under its lease.
pub struct LeasedSlot {
    slots: RunSlots,
    token: i64,
}

impl RunSlot for LeasedSlot {
    fn leave(&self) {
        let mut state = self.slots.lock();
        let Some(run) = state.runs.get(&self.token) else { return };
        let tenant_hash = run.tenant_hash;
        if !matches!(run.phase, Phase::Computing { .. }) {
            return;
        }
        if state.may_wait(tenant_hash, self.slots.0.waiting_capacity) {
            state.set_phase(self.token, Phase::Waiting);
            self.slots.left(&mut state);
        } else {
            state.staying.push(tenant_hash, self.token);
        }
    }

    fn arrive(&self) -> Option<SlotTurn> {
        let mut state = self.slots.lock();
        state.staying.retain(|staying| *staying != self.token);
        let run = state.runs.get_mut(&self.token).filter(|run| run.phase == Phase::Waiting)?;
        let (turn, receiver) = oneshot::channel();
        run.turn = Some(turn);
        let tenant_hash = run.tenant_hash;
        state.set_phase(self.token, Phase::Returning);
        state.returning.push(tenant_hash, self.token);
        self.slots.admit(&mut state);
        Some(slot_turn(receiver))
    }

    fn force(&self) {
        let mut state = self.slots.lock();
        let phase = state.runs.get(&self.token).map(|run| run.phase);
        state.staying.retain(|staying| *staying != self.token);
        if phase == Some(Phase::Returning) {
            let token = self.token;
            state.returning.retain(|waiting| *waiting != token);
        }
        if matches!(phase, Some(Phase::Waiting | Phase::Returning)) {
            state.enter(self.token);
            self.slots.admit(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::wait_without_slot;

    fn counts(computing: usize, waiting: usize, returning: usize) -> SlotCounts {
        SlotCounts { computing, waiting, returning }
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
}
