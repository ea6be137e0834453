//! Runs that are about to begin. They come first: an instant is to be met, while an end may be recorded a little later.
//! Where many are due at once, what would take the processors from those that have not begun stands back until they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// The longest that anything stands back at a time.
const LONGEST: Duration = Duration::from_millis(50);

/// Those of one instance. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Rush(Arc<Shared>);

#[derive(Default)]
struct Shared {
    beginning: AtomicUsize,
    over: Notify,
}

/// One that is about to begin; dropped when it does, or will not.
pub struct Beginning(Rush);

impl Rush {
    pub fn enter(&self) -> Beginning {
        self.0.beginning.fetch_add(1, Ordering::AcqRel);
        Beginning(self.clone())
    }

    /// Lets those begin that stand in line for the processor, if there are any.
    pub async fn let_pass(&self) {
        if self.is_on() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until all have begun, though not for long.
    pub async fn over(&self) {
        let over = self.0.over.notified();
        if self.is_on() {
            let _ = tokio::time::timeout(LONGEST, over).await;
        }
    }

    fn is_on(&self) -> bool {
        self.0.beginning.load(Ordering::Acquire) > 0
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        if self.0.0.beginning.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.over.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Instant;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn it_is_over_when_the_last_has_begun_and_nobody_waits_for_one_that_hangs() {
        let rush = Rush::default();
        assert_eq!(rush.over().now_or_never(), Some(()), "nobody is about to begin");
        let (one, other) = (rush.enter(), rush.enter());
        let mut over = pin!(rush.over());
        assert_eq!(over.as_mut().now_or_never(), None, "two are about to begin");
        drop(one);
        assert_eq!(over.as_mut().now_or_never(), None, "one has begun");
        assert_eq!(rush.let_pass().now_or_never(), None, "the other comes first");
        drop(other);
        assert_eq!(over.now_or_never(), Some(()), "it was told");
        assert_eq!(rush.let_pass().now_or_never(), Some(()), "there is nobody to give way to");

        let _hangs = rush.enter();
        let begun = Instant::now();
        rush.over().await;
        assert!(begun.elapsed() >= LONGEST);
    }
}
