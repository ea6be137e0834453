//! The phase of each run that has a slot or waits for one, and the rules by which slots and waiting places go round.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::engine::scheduling::start_ahead::StartAhead;
use crate::engine::scheduling::tenant_queues::TenantQueues;
use crate::store::{Occupant, tenant_hash, tenant_share};

/// How many runs of this instance compute, wait for an answer, and wait for a slot to begin or to go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Runs that have a slot.
    pub computing: usize,
    /// Runs without a slot whose answer is not here.
    pub waiting: usize,
    /// Runs without a slot whose answer is here.
    pub returning: usize,
    /// Runs that were started ahead of their slots, and have none yet.
    pub starting: usize,
}

/// Runs by the tokens of their leases, and the slots that they and their tenants have.
#[derive(Default)]
pub(super) struct SlotState {
    /// Slots to compute.
    capacity: usize,
    /// Runs that wait without a slot, at most.
    waiting_capacity: usize,
    runs: HashMap<i64, SlotRun>,
    tenants: HashMap<u32, TenantUse>,
    computing: usize,
    waiting: usize,
    /// Slots that are kept for runs which a database call in flight may start.
    reserved: usize,
    /// Runs that such a call may start ahead of their slots.
    reserved_ahead: usize,
    /// All tasks are of one tenant, as far as is known.
    pub single_tenant: bool,
    /// `None`: nothing is started ahead of its slot.
    start_ahead: Option<StartAhead>,
    /// Runs that were started ahead of their slots.
    starting: TenantQueues<i64>,
    /// Runs whose answer is here and that have no slot.
    returning: TenantQueues<i64>,
    /// Runs that wait in their slots, since they found no waiting place.
    staying: TenantQueues<i64>,
}

struct SlotRun {
    tenant_hash: u32,
    phase: Phase,
    /// Hears that the run has a slot.
    turn: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has started, and waits for its first slot.
    Starting,
    /// It has a slot, and had it at its start or after a wait.
    Computing {
        returned: bool,
    },
    Waiting,
    /// Its answer is here; it counts as waiting until it has a slot.
    Returning,
}

/// Runs of one tenant.
#[derive(Default)]
struct TenantUse {
    tenant: Arc<str>,
    starting: usize,
    computing: usize,
    /// Those that compute after a wait.
    returned: usize,
    waiting: usize,
}

impl SlotState {
    /// No runs yet.
    pub fn new(capacity: usize, waiting_capacity: usize, start_ahead: Option<StartAhead>) -> SlotState {
        SlotState { capacity, waiting_capacity, start_ahead, ..SlotState::default() }
    }

    /// How many runs are in each phase.
    pub fn counts(&self) -> SlotCounts {
        let (starting, returning) = (self.starting.len(), self.returning.len());
        SlotCounts { computing: self.computing, waiting: self.waiting.saturating_sub(returning), returning, starting }
    }

    /// Runs that may have a slot, or wait for their first one, at the same time.
    pub fn most_started(&self) -> usize {
        self.capacity + self.left_ahead(0)
    }

    /// Runs that could start, whether they are asked for or not.
    pub fn unoccupied(&self) -> usize {
        self.empty() + self.left_ahead(self.starting.len())
    }

    /// Runs that may start and nobody asks for.
    pub fn free(&self) -> usize {
        self.free_slots() + self.free_ahead()
    }

    /// Whether a run may start that nobody asks for.
    pub fn has_free(&self) -> bool {
        self.free_slots() > 0 || self.free_ahead() > 0
    }

    /// Whether starts are asked for while a database call is in flight.
    pub fn has_reserved(&self) -> bool {
        self.reserved + self.reserved_ahead > 0
    }

    /// Asks for up to `most` starts; answers how many they are. Slots are kept for them as far as any are free.
    pub fn reserve(&mut self, most: usize) -> usize {
        let slots = self.free_slots().min(most);
        let ahead = self.free_ahead().min(most - slots);
        self.reserved += slots;
        self.reserved_ahead += ahead;
        slots + ahead
    }

    /// Gives back starts that were asked for, those ahead of their slots first: a slot is kept as long as one that is
    /// still asked for may be meant for it.
    pub fn unreserve(&mut self, starts: usize) {
        let ahead = starts.min(self.reserved_ahead);
        self.reserved_ahead -= ahead;
        self.reserved -= starts - ahead;
    }

    /// The tenants that have slots or wait for their first ones, by their hashes, and with how many runs.
    pub fn occupants(&self) -> HashMap<u32, Occupant> {
        let started = self.tenants.iter().map(|(hash, used)| (hash, used, used.computing + used.starting));
        let occupant = |used: &TenantUse, runs: usize| Occupant { tenant: Arc::clone(&used.tenant), runs };
        started.filter(|(.., runs)| *runs > 0).map(|(hash, used, runs)| (*hash, occupant(used, runs))).collect()
    }

    /// Gives a run a slot, or has it wait for one.
    pub fn start(&mut self, token: i64, tenant: &str) {
        self.forget(token);
        let tenant_hash = tenant_hash(tenant);
        let phase = match self.has_slot_for(tenant_hash) {
            true => Phase::Computing { returned: false },
            false => Phase::Starting,
        };
        self.runs.insert(token, SlotRun { tenant_hash, phase, turn: None });
        let used = self.tenants.entry(tenant_hash).or_default();
        if used.tenant.is_empty() {
            used.tenant = tenant.into();
        }
        self.count(token, tenant_hash, None, Some(phase));
        if phase == Phase::Starting {
            self.starting.push(tenant_hash, token);
        }
    }

    /// Hears that the run has its first slot; `None`: it has one.
    pub fn begin(&mut self, token: i64) -> Option<oneshot::Receiver<()>> {
        let run = self.runs.get_mut(&token).filter(|run| run.phase == Phase::Starting)?;
        let (turn, receiver) = oneshot::channel();
        run.turn = Some(turn);
        Some(receiver)
    }

    /// The run begins to wait; answers whether it has left its slot, or its turn for one. A run without a waiting place
    /// stays in its slot. One that has never begun is about to end, whether there is a waiting place or not.
    pub fn leave(&mut self, token: i64) -> bool {
        let Some(run) = self.runs.get(&token) else { return false };
        let (tenant_hash, phase) = (run.tenant_hash, run.phase);
        match phase {
            Phase::Starting => self.starting.retain(|starting| *starting != token),
            Phase::Computing { .. } if self.may_wait(tenant_hash) => {}
            Phase::Computing { .. } => {
                self.staying.push(tenant_hash, token);
                return false;
            }
            Phase::Waiting | Phase::Returning => return false,
        }
        self.set_phase(token, Phase::Waiting);
        true
    }

    /// The run's answer is here; hears that it has a slot again. `None`: it has one.
    pub fn arrive(&mut self, token: i64) -> Option<oneshot::Receiver<()>> {
        self.staying.retain(|staying| *staying != token);
        let run = self.runs.get_mut(&token).filter(|run| run.phase == Phase::Waiting)?;
        let (turn, receiver) = oneshot::channel();
        run.turn = Some(turn);
        let tenant_hash = run.tenant_hash;
        self.set_phase(token, Phase::Returning);
        self.returning.push(tenant_hash, token);
        Some(receiver)
    }

    /// The run goes on after its wait, slot or not; answers whether it had none.
    pub fn force(&mut self, token: i64) -> bool {
        self.staying.retain(|staying| *staying != token);
        let phase = self.runs.get(&token).map(|run| run.phase);
        if phase == Some(Phase::Returning) {
            self.returning.retain(|returning| *returning != token);
        }
        let has_none = matches!(phase, Some(Phase::Waiting | Phase::Returning));
        if has_none {
            self.enter(token, true);
        }
        has_none
    }

    /// Ends a run's use of slots.
    pub fn forget(&mut self, token: i64) {
        let Some(run) = self.runs.remove(&token) else { return };
        match run.phase {
            Phase::Starting => self.starting.retain(|starting| *starting != token),
            Phase::Returning => self.returning.retain(|returning| *returning != token),
            Phase::Computing { .. } => self.staying.retain(|staying| *staying != token),
            Phase::Waiting => {}
        }
        self.count(token, run.tenant_hash, Some(run.phase), None);
        let used = &self.tenants[&run.tenant_hash];
        if used.starting + used.computing + used.waiting == 0 {
            self.tenants.remove(&run.tenant_hash);
        }
    }

    /// Lets runs go on whose answer is here, then those begin that were started ahead, and those leave their slots that
    /// found no waiting place before: each makes room for the others. Answers whether any left its slot.
    pub fn admit(&mut self) -> bool {
        self.returning.requeue_skipped();
        self.starting.requeue_skipped();
        let mut any_left = self.leave_staying();
        while self.enter_returning() || self.enter_starting() {
            any_left |= self.leave_staying();
        }
        any_left
    }

    /// Slots that no run has.
    fn empty(&self) -> usize {
        self.capacity.saturating_sub(self.computing)
    }

    /// Slots that no run has and that are kept for nobody.
    fn free_slots(&self) -> usize {
        self.empty().saturating_sub(self.reserved)
    }

    /// Slots for runs whose answer is here: those that are kept for nobody. The others, too, while runs wait that were
    /// started ahead: these would have them else.
    fn free_to_return(&self) -> usize {
        if self.starting.len() > 0 { self.empty() } else { self.free_slots() }
    }

    /// Runs that may start ahead of their slots and nobody asks for.
    fn free_ahead(&self) -> usize {
        self.left_ahead(self.starting.len() + self.reserved_ahead)
    }

    /// Runs that may start ahead of their slots, beside so many.
    fn left_ahead(&self, beside: usize) -> usize {
        self.start_ahead.as_ref().map_or(0, |ahead| ahead.most(self.capacity)).saturating_sub(beside)
    }

    /// Slots that a tenant may take of those that are free.
    fn share(&self, free: usize, used: usize) -> usize {
        if self.single_tenant { free } else { tenant_share(free, used) }
    }

    /// Whether a run of the tenant has a slot as soon as it starts. While none is started ahead of its slot, the
    /// tenant's share was looked at when the start was asked for.
    fn has_slot_for(&self, tenant_hash: u32) -> bool {
        let is_ahead = self.reserved_ahead + self.starting.len() > 0;
        self.empty() > 0 && (!is_ahead || self.may_begin(tenant_hash))
    }

    /// Whether one more run of the tenant may begin in a slot that is empty.
    fn may_begin(&self, tenant_hash: u32) -> bool {
        let used = self.tenants.get(&tenant_hash).map_or(0, |used| used.computing);
        self.share(self.empty(), used) > 0
    }

    /// Whether one more run of the tenant may go on in a slot that is free. It leaves a quarter of what its tenant may
    /// have to runs that are to start.
    fn may_go_on(&self, tenant_hash: u32) -> bool {
        let used = &self.tenants[&tenant_hash];
        let share = self.share(self.free_to_return(), used.computing);
        share > 0 && used.returned < (3 * (used.computing + share)).div_ceil(4)
    }

    /// Whether one more run of the tenant may wait without a slot.
    fn may_wait(&self, tenant_hash: u32) -> bool {
        let free = self.waiting_capacity.saturating_sub(self.waiting);
        self.share(free, self.tenants[&tenant_hash].waiting) > 0
    }

    /// Gives slots to runs whose answer is here, as far as there are any.
    fn enter_returning(&mut self) -> bool {
        let mut queues = std::mem::take(&mut self.returning);
        let mut any = false;
        while self.free_to_return() > 0 {
            let Some(token) = queues.pop(&mut |tenant_hash| self.may_go_on(tenant_hash)) else { break };
            self.enter(token, true);
            any = true;
        }
        self.returning = queues;
        any
    }

    /// Gives slots to runs that were started ahead of them, as far as there are any, kept for others or not: those that
    /// they are kept for come later, and wait in the same way.
    fn enter_starting(&mut self) -> bool {
        let mut queues = std::mem::take(&mut self.starting);
        let mut any = false;
        while self.empty() > 0 {
            let Some(token) = queues.pop(&mut |tenant_hash| self.may_begin(tenant_hash)) else { break };
            self.enter(token, false);
            any = true;
        }
        self.starting = queues;
        any
    }

    /// Gives waiting places to runs that wait in their slots, as far as there are any.
    fn leave_staying(&mut self) -> bool {
        let mut queues = std::mem::take(&mut self.staying);
        queues.requeue_skipped();
        let mut any = false;
        while self.waiting < self.waiting_capacity {
            let Some(token) = queues.pop(&mut |tenant_hash| self.may_wait(tenant_hash)) else { break };
            self.set_phase(token, Phase::Waiting);
            any = true;
        }
        self.staying = queues;
        any
    }

    /// Gives the run a slot, its first one or another after its wait.
    fn enter(&mut self, token: i64, returned: bool) {
        self.set_phase(token, Phase::Computing { returned });
        if let Some(turn) = self.runs.get_mut(&token).and_then(|run| run.turn.take()) {
            // a run that has given up its wait needs no turn
            let _ = turn.send(());
        }
    }

    fn set_phase(&mut self, token: i64, phase: Phase) {
        let Some(run) = self.runs.get_mut(&token) else { return };
        let (tenant_hash, before) = (run.tenant_hash, std::mem::replace(&mut run.phase, phase));
        self.count(token, tenant_hash, Some(before), Some(phase));
    }

    /// Counts a run out of one phase and into another, and measures how long it has its slot.
    fn count(&mut self, token: i64, tenant_hash: u32, from: Option<Phase>, to: Option<Phase>) {
        for (phase, by) in [(from, -1), (to, 1)] {
            if let Some(phase) = phase {
                self.add(tenant_hash, phase, by);
            }
        }
        let has_slot = |phase: Option<Phase>| matches!(phase, Some(Phase::Computing { .. }));
        if let Some(ahead) = &mut self.start_ahead {
            match (has_slot(from), has_slot(to)) {
                (false, true) => ahead.begin(token),
                (true, false) => ahead.end(token),
                _ => {}
            }
        }
    }

    /// Adds to what a phase of a tenant's runs takes, or takes from it.
    fn add(&mut self, tenant_hash: u32, phase: Phase, by: isize) {
        let used = self.tenants.entry(tenant_hash).or_default();
        let add = |count: &mut usize| *count = count.saturating_add_signed(by);
        match phase {
            Phase::Starting => add(&mut used.starting),
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
}
