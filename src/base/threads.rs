//! Threads that give way to the engine's: those that serve requests, compute what tenants wrote, and read for tenants,
//! in the service's own database and in files that they poll.
//!
//! A machine may be kept busy by requests alone. The threads of the engine have the ordinary priority of the process,
//! these threads a lower one; so the system runs a fire that is due first, and requests share what is left. Linux keeps
//! a priority for each thread; elsewhere all threads of the process have the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{io, thread};

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Bytes of the stack of a thread that may evaluate an expression: they go deep.
pub const STACK: usize = 8 * 1024 * 1024;

/// How much the niceness of these threads is above that of the process: about a quarter of the weight of the engine's.
const NICENESS: i32 = if cfg!(target_os = "linux") { 6 } else { 0 };

/// The niceness of the process, as the first thread that gives way has found it.
static OF_PROCESS: OnceLock<i32> = OnceLock::new();

/// Lowers the priority of the calling thread, for good. Doing it twice lowers it once.
pub fn lower_priority() {
    let of_process = *OF_PROCESS.get_or_init(|| getpriority_process(None).unwrap_or(0));
    // the call concerns the calling thread alone; where it is refused, requests are served with the engine's priority
    let _ = setpriority_process(None, of_process + NICENESS);
}

/// A runtime whose threads give way. What runs on it is left where it is when this is dropped.
pub struct LowRuntime(Option<Runtime>);

impl LowRuntime {
    /// With as many threads as the machine has processors.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub fn start() -> io::Result<LowRuntime> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("requests")
            .thread_stack_size(STACK)
            .on_thread_start(lower_priority)
            .build()?;
        Ok(LowRuntime(Some(runtime)))
    }

    /// The way to run tasks on it.
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("a runtime that is there until it is dropped").handle()
    }
}

impl Drop for LowRuntime {
    fn drop(&mut self) {
        // it may be dropped where nothing may block
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

type LowPriorityJob = Box<dyn FnOnce() + Send>;

/// A number of threads that give way and run jobs. They end when the last clone is dropped.
#[derive(Clone)]
pub struct LowPool(Sender<LowPriorityJob>);

impl LowPool {
    /// With so many threads.
    pub fn start(name: &str, count: usize) -> LowPool {
        let (jobs, waiting) = channel::<LowPriorityJob>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..count {
            let waiting = Arc::clone(&waiting);
            let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
            let started = thread.spawn(move || {
                lower_priority();
                while let Some(job) = next(&waiting) {
                    job();
                }
            });
            started.expect("a thread of the service");
        }
        LowPool(jobs)
    }

    /// Computes `work` on the next thread that is free. `None`: it panicked, and its thread goes on.
    ///
    /// Dropping the future before that cancels it; work that has started runs to its end, and keeps its thread until
    /// then.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, computed) = oneshot::channel();
        self.run(move || {
            if !sender.is_closed() {
                // the panic ends nothing but the work: nobody sees what it leaves behind
                let _ = sender.send(catch_unwind(AssertUnwindSafe(work)).ok());
            }
        });
        computed.await.ok().flatten()
    }

    /// Has a job run by the next thread that is free. The job must not panic: its thread would end with it.
    fn run(&self, job: impl FnOnce() + Send + 'static) {
        // the threads end after this end of the channel
        self.0.send(Box::new(job)).expect("threads that wait for jobs");
    }
}

/// Waits for a job; `None`: nobody can ask for one any more.
fn next(waiting: &Mutex<Receiver<LowPriorityJob>>) -> Option<LowPriorityJob> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;

    #[test]
    fn compute_threads_alone_have_a_lower_priority() {
        let before = getpriority_process(None).unwrap();
        let low = std::thread::spawn(|| {
            lower_priority();
            lower_priority();
            // a thread that it starts inherits the priority, and gives way no further
            let inherits = std::thread::spawn(|| {
                lower_priority();
                getpriority_process(None).unwrap()
            });
            (getpriority_process(None).unwrap(), inherits.join().unwrap())
        });
        assert_eq!(low.join().unwrap(), (before + NICENESS, before + NICENESS));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }

    #[tokio::test]
    async fn tasks_of_the_low_runtime_give_way_and_it_ends_where_nothing_may_block() {
        let before = getpriority_process(None).unwrap();
        let low = LowRuntime::start().unwrap();
        let priority = low.handle().spawn(async { getpriority_process(None).unwrap() }).await.unwrap();
        assert_eq!(priority, before + NICENESS);
        drop(low);
    }

    #[tokio::test]
    async fn work_of_a_low_pool_gives_way_and_its_panic_leaves_the_thread() {
        let before = getpriority_process(None).unwrap();
        let pool = LowPool::start("low", 1);
        assert_eq!(pool.compute(|| panic!("on purpose")).await, None::<()>);
        let seen = pool.compute(|| (getpriority_process(None).unwrap(), thread::current().name().map(str::to_owned)));
        assert_eq!(seen.await, Some((before + NICENESS, Some("low".to_owned()))));
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_is_not_begun() {
        let pool = LowPool::start("low", 1);
        let (free, is_free) = channel::<()>();
        let mut busy = pin!(pool.compute(move || is_free.recv()));
        assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
        {
            let mut dropped = pin!(pool.compute(|| unreachable!("nobody waits for it")));
            assert!((&mut dropped).now_or_never().is_none());
        }
        free.send(()).unwrap();
        assert_eq!(busy.await, Some(Ok(())));
        assert_eq!(pool.compute(|| 7).await, Some(7));
    }
}
