//! Backpressure: the worker, which starts run after run, lets ends be recorded first while too many are waiting. Else it
//! would run out of places that are about to be free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// The longest that anything waits for it at a time.
const LONGEST: Duration = Duration::from_millis(50);

/// Those of one instance. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Crowd(Arc<Shared>);

struct Shared {
    /// So many are in nobody's way.
    few: usize,
    members: AtomicUsize,
    /// Rings when they are few again.
    thinned: Notify,
}

/// One of them; dropped when it is none any more.
pub struct Member(Crowd);

impl Crowd {
    /// One that matters once there are more than so many.
    pub fn above(few: usize) -> Crowd {
        Crowd(Arc::new(Shared { few, members: AtomicUsize::new(0), thinned: Notify::new() }))
    }

    pub fn enter(&self) -> Member {
        self.0.members.fetch_add(1, Ordering::AcqRel);
        Member(self.clone())
    }

    /// Waits until they are few, though not for long.
    pub async fn thin(&self) {
        let thinned = self.0.thinned.notified();
        if self.is_thick() {
            let _ = tokio::time::timeout(LONGEST, thinned).await;
        }
    }

    fn is_thick(&self) -> bool {
        self.0.members.load(Ordering::Acquire) > self.0.few
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Shared { few, members, thinned } = &*self.0.0;
        if members.fetch_sub(1, Ordering::AcqRel) == few + 1 {
            thinned.notify_waiters();
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
    async fn waiting_for_few_members_ends_when_they_are_few_and_skips_one_that_hangs() {
        for few in [0, 3] {
            let crowd = Crowd::above(few);
            let _few: Vec<Member> = (0..few).map(|_| crowd.enter()).collect();
            assert_eq!(crowd.thin().now_or_never(), Some(()), "they are few");
            let (one, other) = (crowd.enter(), crowd.enter());
            let mut thin = pin!(crowd.thin());
            assert_eq!(thin.as_mut().now_or_never(), None, "there are two too many");
            drop(one);
            assert_eq!(thin.as_mut().now_or_never(), None, "there is one too many");
            drop(other);
            assert_eq!(thin.now_or_never(), Some(()), "it was told");

            let _hangs = crowd.enter();
            let begun = Instant::now();
            crowd.thin().await;
            assert!(begun.elapsed() >= LONGEST);
        }
    }
}
