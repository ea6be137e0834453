//! The threads on which a tenant's texts are searched for secrets, and on which their redactor is built.

use crate::base::compute::{Compute, IN_PLACE};
use crate::base::threads::LowPool;

/// Name of a thread that reads for nobody's turn.
const THREAD: &str = "reading";

/// The computing threads, and the tenant in whose turn they compute. By default neither is known, and a thread of its
/// own does the work, which gives way as they do.
#[derive(Clone, Default)]
pub struct ReadingTurn(Option<(Compute, String)>);

impl ReadingTurn {
    /// These threads, in the turn of this tenant.
    pub fn new(compute: &Compute, tenant: &str) -> ReadingTurn {
        ReadingTurn(Some((compute.clone(), tenant.to_owned())))
    }

    /// Uses these threads, in the turn of this tenant, unless others are known already.
    pub fn set(&mut self, compute: &Compute, tenant: &str) {
        self.0.get_or_insert_with(|| (compute.clone(), tenant.to_owned()));
    }

    /// Does what takes long on a thread that keeps nothing else waiting. `None`: it could not be done.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match &self.0 {
            Some((compute, tenant)) => compute.run(tenant, work).await.ok(),
            None => LowPool::start(THREAD, 1).compute(work).await,
        }
    }

    /// As [`ReadingTurn::run`], but in place where it takes [`IN_PLACE`] steps at most.
    pub async fn run_if_costly<T: Send + 'static>(
        &self,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        match steps {
            ..=IN_PLACE => Some(work()),
            _ => self.run(work).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::process::getpriority_process;

    use super::*;
    use crate::base::threads::lower_priority;

    #[tokio::test]
    async fn work_gives_way_whether_its_turn_is_known_or_not() {
        let priority = || getpriority_process(None).unwrap();
        let low = thread::spawn(move || {
            lower_priority();
            priority()
        });
        let low = low.join().unwrap();
        for (turn, name) in
            [(ReadingTurn::default(), THREAD), (ReadingTurn::new(&Compute::new(1), "acme"), "computing")]
        {
            let seen = move || (priority(), thread::current().name().map(str::to_owned));
            assert_eq!(turn.run(seen).await, Some((low, Some(name.to_owned()))));
        }
    }
}
