//! Runs computations that a tenant controls (expressions, templates, schemas, schedules, searches in texts) on threads of
//! their own, so that timers, heartbeats and connections never wait for them.
//!
//! Every computation is bounded before it comes here; this bounds how many run at once, and serves tenants in turn: a
//! tenant with a thousand computations queued delays another tenant's one by at most the computations that are running.
//! Nothing in here survives the process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

/// Steps that a computation may take where it is asked for, instead of on a thread. A step is about a nanosecond of the
/// slowest way through an evaluator, so these are half a millisecond.
pub const IN_PLACE: u64 = 500_000;

/// Steps to read a byte of what a tenant wrote, the expressions and templates in it included.
const READ_BYTE: u64 = 1_000;

/// The steps that it takes at most to read what a tenant wrote as JSON. A pattern in it may take long, however short it is.
pub fn steps_to_read(written: &Value) -> u64 {
    let text = written.to_string();
    if text.contains("matches") { u64::MAX } else { (text.len() as u64).saturating_mul(READ_BYTE) }
}

/// In whose name the engine computes a batch of many tenants. It waits for what is running, and for no tenant's turn: all
/// of them wait for it.
pub const ENGINE: &str = "";
/// In whose name an admin computes what belongs to no single tenant.
pub const ADMIN: &str = "*";

/// A limited number of computing threads, shared fairly by tenants. Cheap to clone; all clones share the limit. A process
/// has one: it is the store's.
#[derive(Clone)]
pub struct Compute(Arc<Shared>);

/// The computation panicked. Its thread is intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the computation panicked")]
pub struct Panicked;

struct Shared {
    threads: usize,
    queue: Mutex<Queue>,
}

struct Queue {
    /// Computations that may still start at once.
    free: usize,
    /// Waiting computations by tenant. A tenant without any has no entry.
    waiting: HashMap<String, VecDeque<oneshot::Sender<Permit>>>,
    /// The tenants in `waiting`, in the order in which they are served.
    turns: VecDeque<String>,
}

/// The right to run one computation. Dropping it starts the next one.
struct Permit(Arc<Shared>);

impl Compute {
    /// With so many threads at most; one at least.
    pub fn new(threads: usize) -> Compute {
        let threads = threads.max(1);
        let queue = Queue { free: threads, waiting: HashMap::new(), turns: VecDeque::new() };
        Compute(Arc::new(Shared { threads, queue: Mutex::new(queue) }))
    }

    /// With as many threads as the machine has processors.
    pub fn of_machine() -> Compute {
        Compute::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Computes `work` for a tenant, once it is its turn. Dropping the future before its turn cancels it; a computation
    /// that has started runs to its end, and keeps its thread until then.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let permit = self.permit(tenant).await;
        let computed = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        computed.await.map_err(|_| Panicked)
    }

    /// Computes `work` in place where its bound is at most [`IN_PLACE`] steps, else as [`Compute::run`] does: a
    /// microsecond is not worth a change of threads.
    pub async fn run_if_costly<T: Send + 'static>(
        &self,
        tenant: &str,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        match steps {
            ..=IN_PLACE => Ok(work()),
            _ => self.run(tenant, work).await,
        }
    }

    /// Computations that run, or may start, at once.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Computations that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.0.lock().waiting.values().map(VecDeque::len).sum()
    }

    async fn permit(&self, tenant: &str) -> Permit {
        let turn = {
            let mut queue = self.0.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Permit(Arc::clone(&self.0));
            }
            queue.enter(tenant)
        };
        // the queue holds the other end until it sends the permit
        turn.await.unwrap_or_else(|_| Permit(Arc::clone(&self.0)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("compute lock")
    }
}

impl Queue {
    fn enter(&mut self, tenant: &str) -> oneshot::Receiver<Permit> {
        let (sender, receiver) = oneshot::channel();
        let waiting = self.waiting.entry(tenant.to_owned()).or_default();
        if waiting.is_empty() {
            match tenant {
                ENGINE => self.turns.push_front(tenant.to_owned()),
                _ => self.turns.push_back(tenant.to_owned()),
            }
        }
        waiting.push_back(sender);
        receiver
    }

    /// The next that still waits: the first of the tenant whose turn it is.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        while let Some(tenant) = self.turns.pop_front() {
            let waiting = self.waiting.get_mut(&tenant)?;
            while waiting.front().is_some_and(oneshot::Sender::is_closed) {
                waiting.pop_front();
            }
            let next = waiting.pop_front();
            match waiting.is_empty() {
                true => drop(self.waiting.remove(&tenant)),
                false => self.turns.push_back(tenant),
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.lock();
            let next = queue.next();
            queue.free += usize::from(next.is_none());
            next
        };
        // a permit that nobody takes any more is dropped here, and so given to the one after
        if let Some(next) = next {
            let _ = next.send(Permit(Arc::clone(&self.0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn tenants_are_served_in_turn() {
        let compute = Compute::new(1);
        let running = compute.permit("loud").await;
        let (order, served) = mpsc::channel();
        let ask = |tenant: &'static str| {
            let (compute, order) = (compute.clone(), order.clone());
            async move { compute.run(tenant, move || order.send(tenant).unwrap()).await.unwrap() }
        };
        let loud = futures::future::join_all((0..3).map(|_| ask("loud")));
        let both = async { tokio::join!(loud, ask("quiet")) };
        let mut both = pin!(both);
        assert!((&mut both).now_or_never().is_none(), "the only thread is taken");
        drop(running);
        both.await;
        assert_eq!(served.try_iter().collect::<Vec<_>>(), ["loud", "quiet", "loud", "loud"]);
    }

    #[tokio::test]
    async fn a_batch_of_the_engine_waits_for_what_is_running_and_for_no_tenant_twice() {
        let compute = Compute::new(1);
        let running = compute.permit("loud").await;
        let (order, served) = mpsc::channel();
        let ask = |tenant: &'static str| {
            let (compute, order) = (compute.clone(), order.clone());
            async move { compute.run(tenant, move || order.send(tenant).unwrap()).await.unwrap() }
        };
        let all = futures::future::join_all(["loud", "quiet", ENGINE, ENGINE].map(ask));
        let mut all = pin!(all);
        assert!((&mut all).now_or_never().is_none(), "the only thread is taken");
        assert_eq!(compute.waiting(), 4);
        drop(running);
        all.await;
        assert_eq!(served.try_iter().collect::<Vec<_>>(), [ENGINE, "loud", "quiet", ENGINE]);
        assert_eq!(compute.waiting(), 0);
    }

    #[test]
    fn short_texts_without_patterns_are_read_where_they_are() {
        let text = |bytes: usize| Value::String("x".repeat(bytes - 2));
        assert_eq!((steps_to_read(&text(500)), steps_to_read(&text(501))), (IN_PLACE, IN_PLACE + READ_BYTE));
        assert_eq!(steps_to_read(&serde_json::json!({ "map": "event.t.matches('a')" })), u64::MAX);
    }

    #[tokio::test]
    async fn cheap_work_stays_where_it_is_and_costly_work_takes_a_thread() {
        let compute = Compute::new(1);
        let here = std::thread::current().id();
        let thread_of = |steps| compute.run_if_costly("a", steps, || std::thread::current().id());
        assert_eq!(thread_of(IN_PLACE).await, Ok(here));
        assert_ne!(thread_of(IN_PLACE + 1).await, Ok(here));
    }

    #[tokio::test]
    async fn a_dropped_request_leaves_the_queue_and_a_panic_gives_its_thread_back() {
        let compute = Compute::new(1);
        let running = compute.permit("a").await;
        {
            let mut dropped = pin!(compute.run("a", || unreachable!("nobody waits for it")));
            assert!((&mut dropped).now_or_never().is_none());
        }
        drop(running);
        assert_eq!(compute.run("a", || panic!("on purpose")).await, Err::<(), _>(Panicked));
        assert_eq!(compute.run("b", || 7).await, Ok(7));
        assert_eq!(compute.0.lock().free, 1);
    }
}
