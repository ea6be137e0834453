//! The slot in which a run computes. A run that waits for an answer from elsewhere gives it up for that time.

use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::oneshot;

/// Ready once a run has its slot again. Cheap to clone; all clones are ready together.
pub type SlotTurn = Shared<BoxFuture<'static, ()>>;

/// A run's slot. A run waits for one answer at a time, or several calls [share](SharedSlot) its slot.
pub trait RunSlot: Send + Sync {
    /// The run begins to wait. It gives its slot up, if one more run may wait without a slot.
    fn leave(&self);

    /// The wait is over. `None`: the run has a slot; else it has one once its turn is ready.
    fn arrive(&self) -> Option<SlotTurn>;

    /// The run goes on now, slot or not: it was asked to end, and has little to do.
    fn force(&self);
}

/// The turn that is told in this way.
pub fn slot_turn(told: oneshot::Receiver<()>) -> SlotTurn {
    // a pool that is gone gives no turns, and needs none
    told.map(drop).boxed().shared()
}

/// The slot of a run that nobody counts.
pub struct UncountedSlot;

impl RunSlot for UncountedSlot {
    fn leave(&self) {}

    fn arrive(&self) -> Option<SlotTurn> {
        None
    }

    fn force(&self) {}
}

/// A run's slot while several calls are made at once. It is given up while each of them that has not ended waits, and
/// is there again before the first of them goes on.
pub struct SharedSlot {
    slot: Arc<dyn RunSlot>,
    state: Mutex<ShareState>,
}

#[derive(Default)]
struct ShareState {
    /// Calls that compute.
    computing: usize,
    /// Calls that wait for an answer.
    waiting: usize,
    has_left: bool,
    /// When the slot is there again that was left last; `None`: it was there at once.
    turn: Option<SlotTurn>,
}

/// The part of one call, until it is dropped.
struct SlotShare(Arc<SharedSlot>);

impl SharedSlot {
    /// This slot, of which no call has a part yet.
    pub fn of(slot: &Arc<dyn RunSlot>) -> Arc<SharedSlot> {
        Arc::new(SharedSlot { slot: Arc::clone(slot), state: Mutex::default() })
    }

    /// The part of one call more, which computes. The call has ended when it is dropped.
    pub fn share(self: &Arc<SharedSlot>) -> Arc<dyn RunSlot> {
        self.lock().computing += 1;
        Arc::new(SlotShare(Arc::clone(self)))
    }

    /// Gives the slot up where nobody computes and somebody waits.
    fn leave_unused(&self, state: &mut ShareState) {
        if state.computing == 0 && state.waiting > 0 && !state.has_left {
            (state.has_left, state.turn) = (true, None);
            self.slot.leave();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock().expect("shared slot lock")
    }
}

impl RunSlot for SlotShare {
    fn leave(&self) {
        let mut state = self.0.lock();
        state.computing -= 1;
        state.waiting += 1;
        self.0.leave_unused(&mut state);
    }

    fn arrive(&self) -> Option<SlotTurn> {
        let mut state = self.0.lock();
        state.waiting -= 1;
        state.computing += 1;
        if std::mem::take(&mut state.has_left) {
            state.turn = self.0.slot.arrive();
        }
        state.turn.clone()
    }

    fn force(&self) {
        self.0.slot.force();
    }
}

impl Drop for SlotShare {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.computing -= 1;
        self.0.leave_unused(&mut state);
    }
}

/// The slot of a run while it does work that has a limited time. Work that is cut off is dropped wherever it stands,
/// also while it waits without a slot. The caller that has cut it off goes on once the slot is there again.
pub struct TimedSlot {
    slot: Arc<dyn RunSlot>,
    state: Mutex<TimedState>,
}

#[derive(Default)]
struct TimedState {
    /// The work waits for an answer.
    is_left: bool,
    /// When the slot is there again that was left last; `None`: it was there at once.
    turn: Option<SlotTurn>,
    /// The time is over: the slot is no matter of the work any more.
    is_cut_off: bool,
}

impl TimedSlot {
    /// This slot, for one piece of work.
    pub fn of(slot: &Arc<dyn RunSlot>) -> Arc<TimedSlot> {
        Arc::new(TimedSlot { slot: Arc::clone(slot), state: Mutex::default() })
    }

    /// The time is over, and the work is about to be dropped.
    pub fn cut_off(&self) {
        self.lock().is_cut_off = true;
    }

    /// Waits until the slot is there again that the work has left. Dropped at any time, also before it was begun, it
    /// lets the run go on at once.
    pub fn regain(&self) -> impl Future<Output = ()> {
        let turn = {
            let mut state = self.lock();
            if std::mem::take(&mut state.is_left) {
                state.turn = self.slot.arrive();
            }
            state.turn.take()
        };
        let wait = turn.map(|turn| (turn, SlotWait { slot: &*self.slot, arrived: true, over: false }));
        async move {
            if let Some((turn, mut wait)) = wait {
                turn.await;
                wait.over = true;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TimedState> {
        self.state.lock().expect("timed slot lock")
    }
}

impl RunSlot for TimedSlot {
    fn leave(&self) {
        let mut state = self.lock();
        if !state.is_cut_off {
            (state.is_left, state.turn) = (true, None);
            self.slot.leave();
        }
    }

    fn arrive(&self) -> Option<SlotTurn> {
        let mut state = self.lock();
        if state.is_cut_off {
            return None;
        }
        state.is_left = false;
        state.turn = self.slot.arrive();
        state.turn.clone()
    }

    fn force(&self) {
        let is_cut_off = self.lock().is_cut_off;
        if !is_cut_off {
            self.slot.force();
        }
    }
}

/// Waits for an answer without a slot, and returns it once the run has one again. Safe to drop at any time.
pub fn wait_without_slot<T>(slot: &dyn RunSlot, answer: impl Future<Output = T>) -> impl Future<Output = T> {
    // boxed: what is moved into a future and awaited there has its room in it twice
    let answer = Box::pin(answer);
    async move {
        let mut wait = SlotWait::begin(slot);
        let answer = answer.await;
        wait.arrived = true;
        if let Some(turn) = slot.arrive() {
            turn.await;
        }
        wait.over = true;
        answer
    }
}

/// One wait; dropped before it is over it lets the run go on at once.
struct SlotWait<'a> {
    slot: &'a dyn RunSlot,
    arrived: bool,
    over: bool,
}

impl SlotWait<'_> {
    fn begin(slot: &dyn RunSlot) -> SlotWait<'_> {
        slot.leave();
        SlotWait { slot, arrived: false, over: false }
    }
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if !self.arrived {
            drop(self.slot.arrive());
        }
        self.slot.force();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// A slot whose turns come when they are given.
    #[derive(Default)]
    struct WatchedSlot {
        is_left: AtomicBool,
        left: AtomicUsize,
        turn: Mutex<Option<oneshot::Sender<()>>>,
    }

    impl WatchedSlot {
        /// Gives the run its slot again.
        fn give(&self) {
            self.is_left.store(false, Ordering::Relaxed);
            let turn = self.turn.lock().unwrap().take();
            if let Some(turn) = turn {
                // nobody may wait for it any more
                let _ = turn.send(());
            }
        }

        fn is_left(&self) -> bool {
            self.is_left.load(Ordering::Relaxed)
        }
    }

    impl RunSlot for WatchedSlot {
        fn leave(&self) {
            assert!(!self.is_left.swap(true, Ordering::Relaxed), "it is left once");
            self.left.fetch_add(1, Ordering::Relaxed);
        }

        fn arrive(&self) -> Option<SlotTurn> {
            let (turn, told) = oneshot::channel();
            *self.turn.lock().unwrap() = Some(turn);
            Some(slot_turn(told))
        }

        fn force(&self) {
            self.give();
        }
    }

    fn shared_slot() -> (Arc<WatchedSlot>, Arc<SharedSlot>) {
        let watched = Arc::new(WatchedSlot::default());
        let slot: Arc<dyn RunSlot> = watched.clone();
        (watched, SharedSlot::of(&slot))
    }

    fn is_ready(turn: &Option<SlotTurn>) -> bool {
        turn.clone().is_none_or(|turn| turn.now_or_never().is_some())
    }

    #[test]
    fn slot_of_calls_is_left_once_all_of_them_wait_and_is_there_before_the_first_goes_on() {
        let (watched, shared) = shared_slot();
        let (first, second) = (shared.share(), shared.share());
        first.leave();
        assert!(!watched.is_left(), "the second computes");
        assert!(is_ready(&first.arrive()), "it has its slot");
        first.leave();
        second.leave();
        assert!(watched.is_left());
        let turn = first.arrive();
        assert!(!is_ready(&turn));
        let other = second.arrive();
        assert!(!is_ready(&other), "both go on in one slot");
        watched.give();
        assert!(is_ready(&turn) && is_ready(&other));
        second.leave();
        assert!(!watched.is_left(), "the first computes");
        drop(first);
        assert!(watched.is_left(), "the first has ended");
        drop(second.arrive());
        watched.give();
        drop(second);
        assert!(!watched.is_left(), "nobody waits");
        assert_eq!(watched.left.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn wait_that_is_broken_off_takes_the_slot_for_the_others_too() {
        let (watched, shared) = shared_slot();
        let (first, second) = (shared.share(), shared.share());
        let mut cut_off = Box::pin(wait_without_slot(&*first, std::future::pending::<()>()));
        assert!((&mut cut_off).now_or_never().is_none());
        let (sender, answer) = oneshot::channel::<()>();
        let mut waits = Box::pin(wait_without_slot(&*second, answer));
        assert!((&mut waits).now_or_never().is_none());
        assert!(watched.is_left());
        sender.send(()).unwrap();
        assert!((&mut waits).now_or_never().is_none(), "its answer is here, and no slot");
        drop(cut_off);
        assert!(!watched.is_left());
        assert!((&mut waits).now_or_never().is_some(), "it goes on in the slot of the run");
    }

    /// Work in a slot, cut off while it waits in so many calls; its caller waits for the slot then.
    fn cut_off(slot: &Arc<dyn RunSlot>, calls: usize) -> BoxFuture<'static, ()> {
        let timed = TimedSlot::of(slot);
        let inner: Arc<dyn RunSlot> = timed.clone();
        let shared = SharedSlot::of(&inner);
        let wait = |slot: Arc<dyn RunSlot>| {
            async move { wait_without_slot(&*slot, std::future::pending::<()>()).await }.boxed()
        };
        let mut waits: Vec<BoxFuture<'_, ()>> = (0..calls).map(|_| wait(shared.share())).collect();
        assert!(waits.iter_mut().all(|wait| wait.now_or_never().is_none()));
        timed.cut_off();
        drop(waits);
        async move { timed.regain().await }.boxed()
    }

    #[test]
    fn work_that_is_cut_off_while_it_waits_goes_on_once_its_run_has_a_slot_and_not_before() {
        for calls in 1..=3 {
            let watched = Arc::new(WatchedSlot::default());
            let slot: Arc<dyn RunSlot> = watched.clone();
            let mut regains = cut_off(&slot, calls);
            assert!(watched.is_left(), "{calls}: the slot is not taken");
            assert!((&mut regains).now_or_never().is_none(), "{calls}: its turn has not come");
            watched.give();
            assert!(regains.now_or_never().is_some(), "{calls}");
            assert_eq!(watched.left.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn work_that_is_cut_off_while_its_answer_is_here_waits_for_the_same_turn() {
        let (watched, shared) = shared_slot();
        let timed = TimedSlot::of(&shared.share());
        let (sender, answer) = oneshot::channel::<()>();
        let mut waits = Box::pin(wait_without_slot(&*timed, answer));
        assert!((&mut waits).now_or_never().is_none());
        sender.send(()).unwrap();
        assert!((&mut waits).now_or_never().is_none() && watched.is_left(), "its answer is here, and no slot");
        timed.cut_off();
        drop(waits);
        let mut regains = Box::pin(timed.regain());
        assert!((&mut regains).now_or_never().is_none() && watched.is_left());
        watched.give();
        assert!((&mut regains).now_or_never().is_some());
        // and one that waits for nothing has its slot
        let timed = TimedSlot::of(&shared.share());
        timed.cut_off();
        assert!(timed.regain().now_or_never().is_some());
    }

    #[test]
    fn run_that_is_asked_to_end_meanwhile_goes_on_at_once() {
        let watched = Arc::new(WatchedSlot::default());
        let slot: Arc<dyn RunSlot> = watched.clone();
        let mut regains = cut_off(&slot, 2);
        assert!((&mut regains).now_or_never().is_none() && watched.is_left());
        drop(regains);
        assert!(!watched.is_left(), "it has little to do, slot or not");
        // and so does one that was asked to end before
        let timed = TimedSlot::of(&slot);
        timed.leave();
        timed.cut_off();
        drop(timed.regain());
        assert!(!watched.is_left());
    }

    #[test]
    fn calls_that_are_dropped_together_leave_the_run_its_slot() {
        let (watched, shared) = shared_slot();
        let shares: Vec<Arc<dyn RunSlot>> = (0..3).map(|_| shared.share()).collect();
        let wait = |slot: Arc<dyn RunSlot>| {
            async move {
                let answer = std::future::pending::<()>();
                wait_without_slot(&*slot, answer).await
            }
            .boxed()
        };
        let mut calls: Vec<BoxFuture<'_, ()>> = shares.into_iter().map(wait).collect();
        assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
        assert!(watched.is_left());
        drop(calls);
        assert!(!watched.is_left());
    }
}
