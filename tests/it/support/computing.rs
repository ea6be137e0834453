//! Computing threads that a test holds, so that what is to be computed waits for them.

use std::sync::mpsc;

use reveille::compute::Compute;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// All threads of a pool; they are given back when this is dropped.
pub struct HeldThreads {
    compute: Compute,
    /// Dropping one ends the computation that waits for it.
    held: Vec<mpsc::Sender<()>>,
}

/// Waits until so many computations wait for a thread.
pub async fn until_waiting(compute: &Compute, count: usize) {
    while compute.waiting() < count {
        yield_now().await;
    }
}

impl HeldThreads {
    pub async fn all(compute: &Compute) -> HeldThreads {
        let mut threads = HeldThreads { compute: compute.clone(), held: Vec::new() };
        let begun = threads.hold();
        futures::future::join_all(begun).await;
        threads
    }

    /// Lets what waits be computed, and holds all threads again before anything that comes after it.
    pub async fn let_pass(&mut self) {
        let (before, waiting) = (std::mem::take(&mut self.held), self.compute.waiting());
        let begun = self.hold();
        until_waiting(&self.compute, waiting + begun.len()).await;
        drop(before);
        futures::future::join_all(begun).await;
    }

    fn hold(&mut self) -> Vec<oneshot::Receiver<()>> {
        let hold = |_| {
            let (release, released) = mpsc::channel::<()>();
            let (began, begun) = oneshot::channel();
            let compute = self.compute.clone();
            tokio::spawn(async move {
                let wait = move || {
                    let _ = began.send(());
                    // ends when its sender is dropped
                    let _ = released.recv();
                };
                let _ = compute.run("who holds the threads", wait).await;
            });
            (release, begun)
        };
        let (held, begun): (Vec<_>, Vec<_>) = (0..self.compute.threads()).map(hold).unzip();
        self.held = held;
        begun
    }
}
