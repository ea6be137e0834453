//! Runs computations that a tenant controls (expressions, templates, schemas, schedules, searches in texts) on threads
//! of their own, so that timers, heartbeats and connections never wait for them.
//!
//! Every computation is bounded before it comes here; this bounds how many run at once, and serves tenants in turn: a
//! tenant with a thousand computations queued delays another tenant's one by at most the computations that are running,
//! and those that have more to compute than there is time for have equal parts of it.
//! Nothing in here survives the process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::base::collections::fair_queue::FairQueue;
use crate::base::json::length::{estimated_bytes, is_longer_than};
use crate::base::threads::LowPool;

/// Steps that a computation may take where it is asked for, instead of on a thread. A step is about a nanosecond of the
/// slowest way through an evaluator, so these are half a millisecond.
pub const IN_PLACE: u64 = 500_000;

/// Steps to read a byte of what a tenant wrote, the expressions and templates in it included.
const READ_BYTE: u64 = 1_000;

/// The steps that it takes at most to read what a tenant wrote as JSON. A pattern in it may take long, however short it
/// is.
pub fn steps_to_read(written: &Value) -> u64 {
    steps_to_read_text(&written.to_string())
}

/// As [`steps_to_read`], of an expression by itself.
pub fn steps_to_read_text(text: &str) -> u64 {
    if text.contains("matches") { u64::MAX } else { (text.len() as u64).saturating_mul(READ_BYTE) }
}

/// Bytes of JSON that are read or written in place: they take [`IN_PLACE`] steps at most, some 30 for each byte.
pub const JSON_IN_PLACE: usize = 16 * 1_024;

/// The steps that it takes at most to read an answer of so many bytes, as JSON or as text.
pub fn steps_to_parse(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(IN_PLACE).div_ceil(JSON_IN_PLACE as u64)
}

/// The steps that it takes at most to write a value as JSON, or to go through it otherwise. Of a value that is long no
/// more is looked at than shows that it is.
pub fn steps_to_write(value: &Value) -> u64 {
    steps_to_parse(estimated_bytes(value, JSON_IN_PLACE))
}

/// As [`steps_to_write`], of what is no [`Value`]. It is gone through as far as shows that it is long.
pub fn steps_to_serialize<T: Serialize + ?Sized>(value: &T) -> u64 {
    if is_longer_than(value, JSON_IN_PLACE) { u64::MAX } else { IN_PLACE }
}

/// In whose name the engine computes a batch of many tenants. It waits for what is running, and for no tenant's turn:
/// all of them wait for it.
pub const ENGINE: &str = "";
/// In whose name an admin computes what belongs to no single tenant.
pub const ADMIN: &str = "*";

/// A limited number of computing threads, shared fairly by tenants. Cheap to clone; all clones share the limit. A
/// process has one: it is the store's.
#[derive(Clone)]
pub struct Compute {
    turns: FairQueue<String>,
    threads: LowPool,
}

/// A name with the threads on which is computed in its turn. Cheap to clone.
#[derive(Clone)]
pub struct ComputeTurn {
    compute: Compute,
    name: Arc<str>,
}

/// The panic of a computation. Its thread is intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the computation panicked")]
pub struct ComputePanic;

impl Compute {
    /// With so many threads at most; one at least.
    pub fn new(threads: usize) -> Compute {
        Compute::shared(FairQueue::new(threads))
    }

    fn shared(turns: FairQueue<String>) -> Compute {
        let threads = LowPool::start("computing", turns.slots());
        Compute { turns, threads }
    }

    /// With as many threads as the machine has processors for each tenant, and one more for a tenant that has none.
    pub fn of_machine() -> Compute {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Compute::shared(FairQueue::with_reserve(processors + 1, 1))
    }

    /// Computes `work` for a tenant, once it is its turn. Dropping the future before its turn cancels it; a computation
    /// that has started runs to its end, and keeps its thread until then.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputePanic> {
        let turn = match tenant {
            ENGINE => self.turns.acquire_first(ENGINE).await,
            _ => self.turns.acquire(tenant).await,
        };
        let computed = self.threads.compute(move || {
            // given back before the answer is there, and after a panic, too
            let _turn = turn;
            work()
        });
        computed.await.ok_or(ComputePanic)
    }

    /// Computes `work` in place where its bound is at most [`IN_PLACE`] steps, else as [`Compute::run`] does: a
    /// microsecond is not worth a change of threads.
    pub async fn run_if_costly<T: Send + 'static>(
        &self,
        tenant: &str,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputePanic> {
        match steps {
            // as on a thread, a panic ends nothing but the work
            ..=IN_PLACE => catch_unwind(AssertUnwindSafe(work)).map_err(|_| ComputePanic),
            _ => self.run(tenant, work).await,
        }
    }

    /// Computations that run, or may start, at once.
    pub fn threads(&self) -> usize {
        self.turns.slots()
    }

    /// Of them, those that one tenant may have.
    pub fn threads_per_tenant(&self) -> usize {
        self.turns.slots_per_user()
    }

    /// Computations that wait for a thread.
    pub fn queued(&self) -> usize {
        self.turns.waiting()
    }

    /// The queue for the threads, to be measured.
    pub fn queue(&self) -> FairQueue<String> {
        self.turns.clone()
    }
}

impl ComputeTurn {
    /// The turn of this name.
    pub fn new(compute: &Compute, name: &str) -> ComputeTurn {
        ComputeTurn { compute: compute.clone(), name: name.into() }
    }

    /// As [`Compute::run_if_costly`], in this turn.
    pub async fn run_if_costly<T: Send + 'static>(
        &self,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputePanic> {
        self.compute.run_if_costly(&self.name, steps, work).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn tenant_with_little_to_compute_is_served_before_one_that_computes_all_the_time() {
        let compute = Compute::new(1);
        let running = compute.turns.acquire("loud").await;
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
        assert_eq!(served.try_iter().collect::<Vec<_>>(), ["quiet", "loud", "loud", "loud"]);
    }

    #[tokio::test]
    async fn engine_batch_waits_for_running_work_and_for_no_tenant_twice() {
        let compute = Compute::new(1);
        let running = compute.turns.acquire("loud").await;
        let (order, served) = mpsc::channel();
        let ask = |tenant: &'static str| {
            let (compute, order) = (compute.clone(), order.clone());
            async move { compute.run(tenant, move || order.send(tenant).unwrap()).await.unwrap() }
        };
        let all = futures::future::join_all(["loud", "quiet", ENGINE, ENGINE].map(ask));
        let mut all = pin!(all);
        assert!((&mut all).now_or_never().is_none(), "the only thread is taken");
        assert_eq!(compute.queued(), 4);
        drop(running);
        all.await;
        let served: Vec<&str> = served.try_iter().collect();
        assert_eq!((&served[..2], served.len()), (&[ENGINE, "quiet"][..], 4));
        assert_eq!(compute.queued(), 0);
    }

    #[test]
    fn short_texts_without_patterns_are_read_where_they_are() {
        let text = |bytes: usize| Value::String("x".repeat(bytes - 2));
        assert_eq!((steps_to_read(&text(500)), steps_to_read(&text(501))), (IN_PLACE, IN_PLACE + READ_BYTE));
        assert_eq!(steps_to_read(&serde_json::json!({ "map": "event.t.matches('a')" })), u64::MAX);
    }

    #[test]
    fn json_is_read_in_place_up_to_its_bound_and_not_one_byte_beyond_it() {
        assert_eq!(steps_to_parse(JSON_IN_PLACE), IN_PLACE);
        assert!(steps_to_parse(JSON_IN_PLACE + 1) > IN_PLACE && steps_to_parse(usize::MAX) > IN_PLACE);
        let of = |bytes: usize| steps_to_write(&Value::String("x".repeat(bytes)));
        assert!(of(JSON_IN_PLACE - 8) <= IN_PLACE);
        assert!(of(JSON_IN_PLACE) > IN_PLACE && of(1 << 20) > IN_PLACE);
        let serialized = |bytes: usize| steps_to_serialize(&["x".repeat(bytes - 4)]);
        assert!(serialized(JSON_IN_PLACE) <= IN_PLACE && serialized(JSON_IN_PLACE + 1) > IN_PLACE);
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
    async fn panic_in_place_ends_nothing_but_the_work_as_on_a_thread() {
        let compute = Compute::new(1);
        for steps in [IN_PLACE, IN_PLACE + 1] {
            let panicked: Result<(), ComputePanic> = compute.run_if_costly("a", steps, || panic!("on purpose")).await;
            assert_eq!(panicked, Err(ComputePanic), "{steps}");
        }
    }

    #[tokio::test]
    async fn dropped_request_leaves_the_queue_and_a_panic_gives_its_thread_back() {
        let compute = Compute::new(1);
        let running = compute.turns.acquire("a").await;
        {
            let mut dropped = pin!(compute.run("a", || unreachable!("nobody waits for it")));
            assert!((&mut dropped).now_or_never().is_none());
        }
        drop(running);
        assert_eq!(compute.run("a", || panic!("on purpose")).await, Err::<(), _>(ComputePanic));
        assert_eq!(compute.run("b", || 7).await, Ok(7));
        assert!(compute.turns.acquire("c").now_or_never().is_some(), "the thread is free");
    }
}
