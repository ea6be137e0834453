//! Batches of concurrent writes: while one statement is under way, later callers wait for the next, and go together.
//! Nobody waits for others to come.

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

/// Statements under way at once: while the commit of one is waited for, the other is executed.
const LANES: usize = 2;

/// Items of callers that wait, each with the way to its answer.
pub(in crate::store) struct WriteBatcher<T, R>(Arc<Shared<T, R>>);

struct Shared<T, R> {
    waiting: Mutex<Vec<(T, oneshot::Sender<R>)>>,
    lanes: Semaphore,
    most: usize,
    /// Where the work is done, whoever asks for it.
    runtime: Handle,
}

impl<T, R> Clone for WriteBatcher<T, R> {
    fn clone(&self) -> WriteBatcher<T, R> {
        WriteBatcher(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static, R: Send + 'static> WriteBatcher<T, R> {
    /// At most so many items go together.
    pub(in crate::store) fn new(most: usize) -> WriteBatcher<T, R> {
        WriteBatcher(Arc::new(Shared {
            waiting: Mutex::default(),
            lanes: Semaphore::new(LANES),
            most,
            runtime: Handle::current(),
        }))
    }

    /// Does the work for this item, together with those of others that wait. `work` answers every item that it was
    /// given, in their order. `None`: it was broken off, and nobody knows what it did.
    pub(in crate::store) async fn go<W>(&self, item: T, work: impl FnOnce(Vec<T>) -> W + Send + 'static) -> Option<R>
    where
        W: Future<Output = Vec<R>> + Send,
    {
        let (sender, answer) = oneshot::channel();
        let shared = Arc::clone(&self.0);
        shared.waiting.lock().expect("gathering lock").push((item, sender));
        // a caller who goes away must not take along what others wait for
        let runtime = shared.runtime.clone();
        runtime.spawn(async move {
            let Ok(_lane) = shared.lanes.acquire().await else { return };
            let batch: Vec<_> = {
                let mut waiting = shared.waiting.lock().expect("gathering lock");
                let count = waiting.len().min(shared.most);
                waiting.drain(..count).collect()
            };
            // those who came before have taken it along
            if batch.is_empty() {
                return;
            }
            let (items, senders): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            for (sender, done) in senders.into_iter().zip(work(items).await) {
                let _ = sender.send(done);
            }
        });
        answer.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn those_who_come_while_others_are_at_work_go_together_and_each_gets_its_own_answer() {
        let gathering: WriteBatcher<u32, u32> = WriteBatcher::new(10);
        let batches = Arc::new(AtomicUsize::new(0));
        let one = |item: u32| {
            let (gathering, batches) = (gathering.clone(), Arc::clone(&batches));
            async move {
                gathering
                    .go(item, move |items| async move {
                        batches.fetch_add(1, Ordering::Relaxed);
                        crate::base::clock::pause(std::time::Duration::from_millis(20)).await;
                        items.into_iter().map(|item| item * 2).collect()
                    })
                    .await
            }
        };
        let answers = join_all((0..50).map(one)).await;
        assert_eq!(answers, (0..50).map(|item| Some(item * 2)).collect::<Vec<_>>());
        let batches = batches.load(Ordering::Relaxed);
        assert!((5..=10).contains(&batches), "{batches} batches of ten at most");
    }

    #[tokio::test]
    async fn work_that_panics_leaves_nobody_waiting_and_the_next_is_done() {
        let gathering: WriteBatcher<u32, u32> = WriteBatcher::new(10);
        let broken = gathering.go(1, |items| async move { if items.len() == 1 { panic!("as told") } else { items } });
        assert_eq!(broken.await, None);
        for item in 2..6 {
            assert_eq!(gathering.go(item, |items| async move { items }).await, Some(item));
        }
    }
}
