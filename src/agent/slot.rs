//! The place in which a run computes. A run that waits for an answer from elsewhere gives it up for that time.

use tokio::sync::oneshot;

/// A run's place. A run waits for one answer at a time.
pub trait RunSlot: Send + Sync {
    /// The run begins to wait. It gives its place up, if one more run may wait without a place.
    fn leave(&self);

    /// The wait is over. `None`: the run has a place; else it has one once the receiver hears of it.
    fn arrive(&self) -> Option<oneshot::Receiver<()>>;

    /// The run goes on now, place or not: it was asked to end, and has little to do.
    fn force(&self);
}

/// The place of a run that nobody counts.
pub struct UncountedSlot;

impl RunSlot for UncountedSlot {
    fn leave(&self) {}

    fn arrive(&self) -> Option<oneshot::Receiver<()>> {
        None
    }

    fn force(&self) {}
}

/// Waits for an answer without a place, and returns it once the run has one again. Safe to drop at any time.
pub async fn wait_without_slot<T>(slot: &dyn RunSlot, answer: impl Future<Output = T>) -> T {
    let mut wait = SlotWait::begin(slot);
    let answer = answer.await;
    wait.arrived = true;
    if let Some(turn) = slot.arrive() {
        // a pool that is gone gives no turns, and needs none
        let _ = turn.await;
    }
    wait.over = true;
    answer
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
