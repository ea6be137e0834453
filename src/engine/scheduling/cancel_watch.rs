//! When to ask the store which runs are to be cancelled: when somebody said so, and once in a while for what was told
//! to nobody.

use std::time::Duration;

use tokio::sync::watch;

/// A request that no wake-up told of is found after so long.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The last look at requests to cancel.
pub(super) struct CancelWatch {
    told: watch::Receiver<()>,
    looked: Option<Duration>,
}

impl CancelWatch {
    /// A watch over what is told there; it has not looked yet.
    pub(super) fn new(told: watch::Receiver<()>) -> CancelWatch {
        CancelWatch { told, looked: None }
    }

    /// Whether it is time to look, at this reading of the clock; if so, it counts as done.
    pub(super) fn is_due(&mut self, elapsed: Duration) -> bool {
        // asked first: a cancellation that is told during the look is found by the next one
        let told = self.told.has_changed().unwrap_or(false);
        let is_due = told || self.looked.is_none_or(|looked| elapsed.saturating_sub(looked) >= POLL_INTERVAL);
        if is_due {
            self.told.mark_unchanged();
            self.looked = Some(elapsed);
        }
        is_due
    }

    /// The look has failed: the next one is due at once.
    pub(super) fn look_failed(&mut self) {
        self.looked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancels_are_looked_for_when_told_and_once_a_second() {
        let (sender, told) = watch::channel(());
        let mut watch = CancelWatch::new(told);
        let mut due = |millis| watch.is_due(Duration::from_millis(millis));
        assert_eq!([due(0), due(1), due(999), due(1000), due(1001)], [true, false, false, true, false]);
        sender.send_replace(());
        assert_eq!([due(1002), due(1003), due(2001), due(2002)], [true, false, false, true]);
        watch.look_failed();
        assert!(watch.is_due(Duration::from_millis(2003)));
    }
}
