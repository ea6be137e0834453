//! Computing threads that a test holds, so that what is to be computed waits for them.

use std::sync::mpsc;

use reveille::base::compute::Compute;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// All threads of a pool; they are given back when this is dropped.
pub struct HeldThreads {
    compute: Compute,
    /// The tenant that holds all that it may have; `None`: each thread is held by another.
    tenant: Option<&'static str>,
    /// Dropping one ends the computation that waits for it.
    held: Vec<mpsc::Sender<()>>,
}

/// Waits until so many computations wait for a thread.
pub async fn until_waiting(compute: &Compute, count: usize) {
    while compute.queued() < count {
        yield_now().await;
    }
}

impl HeldThreads {
    pub async fn all(compute: &Compute) -> HeldThreads {
        HeldThreads::begin(compute, None).await
    }

    /// Holds those that a tenant may have in its name; its own computations wait in line with them.
    pub async fn all_of(compute: &Compute, tenant: &'static str) -> HeldThreads {
        HeldThreads::begin(compute, Some(tenant)).await
    }

    async fn begin(compute: &Compute, tenant: Option<&'static str>) -> HeldThreads {
        let mut threads = HeldThreads { compute: compute.clone(), tenant, held: Vec::new() };
        let begun = threads.hold();
        futures::future::join_all(begun).await;
        threads
    }

    /// Lets what waits in the tenant's own name be computed, and holds all threads again before its next computation:
    /// what one tenant asks for is computed in the order in which it asked.
    pub async fn let_pass(&mut self) {
        let (before, waiting) = (std::mem::take(&mut self.held), self.compute.queued());
        let begun = self.hold();
        until_waiting(&self.compute, waiting + begun.len()).await;
        drop(before);
        futures::future::join_all(begun).await;
    }

    fn hold(&mut self) -> Vec<oneshot::Receiver<()>> {
        let hold = |thread: usize| {
            let (release, released) = mpsc::channel::<()>();
            let (began, begun) = oneshot::channel();
            let compute = self.compute.clone();
            let tenant = self.tenant.map_or_else(|| format!("holder of thread {thread}"), str::to_owned);
            tokio::spawn(async move {
                let wait = move || {
                    let _ = began.send(());
                    // ends when its sender is dropped
                    let _ = released.recv();
                };
                let _ = compute.run(&tenant, wait).await;
            });
            (release, begun)
        };
        let count = if self.tenant.is_some() { self.compute.threads_per_tenant() } else { self.compute.threads() };
        let (held, begun): (Vec<_>, Vec<_>) = (0..count).map(hold).unzip();
        self.held = held;
        begun
    }
}
