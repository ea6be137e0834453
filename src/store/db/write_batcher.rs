//! Batches of concurrent writes: while one statement is under way, later callers wait for the next, and go together.
//! Nobody waits for others to come. A batch that can't take all who wait takes the first of each owner before the
//! second of one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, oneshot};

use crate::base::clock::pause;
use crate::store::{Store, StoreError, with_timeout};

/// How long items wait for the batch before theirs until a second one may begin beside it.
const LONG_TURN: Duration = Duration::from_millis(100);

/// Items of callers that wait, each with the way to its answer.
pub(in crate::store) struct WriteBatcher<T, R>(Arc<Shared<T, R>>);

struct Shared<T, R> {
    waiting: Mutex<Vec<WaitingItem<T, R>>>,
    /// One batch is under way at once: others gather meanwhile, which costs less than a second statement beside it.
    turn: Semaphore,
    /// A second one begins where the first takes long: it may be held up by what concerns its own items alone.
    second_turn: Semaphore,
    limit: BatchLimit,
    /// Where the work is done, whoever asks for it.
    runtime: Handle,
}

struct WaitingItem<T, R> {
    item: T,
    owner: String,
    bytes: usize,
    answer: oneshot::Sender<R>,
}

/// The most that goes together; one item goes alone, however large it is.
#[derive(Clone, Copy)]
pub(in crate::store) struct BatchLimit {
    pub items: usize,
    pub bytes: usize,
}

impl<T, R> Clone for WriteBatcher<T, R> {
    fn clone(&self) -> WriteBatcher<T, R> {
        WriteBatcher(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static, R: Send + 'static> WriteBatcher<T, R> {
    /// At most so many items go together, of any size.
    pub(in crate::store) fn new(items: usize) -> WriteBatcher<T, R> {
        WriteBatcher::limited(BatchLimit { items, bytes: usize::MAX })
    }

    pub(in crate::store) fn limited(limit: BatchLimit) -> WriteBatcher<T, R> {
        WriteBatcher(Arc::new(Shared {
            waiting: Mutex::default(),
            turn: Semaphore::new(1),
            second_turn: Semaphore::new(1),
            limit,
            runtime: Handle::current(),
        }))
    }

    /// As [`WriteBatcher::submit_for`], for items that are alike in size and belong to nobody.
    pub(in crate::store) async fn submit<W>(
        &self,
        item: T,
        work: impl FnOnce(Vec<T>) -> W + Send + 'static,
    ) -> Option<R>
    where
        W: Future<Output = Vec<R>> + Send,
    {
        self.submit_for(String::new(), 0, item, work).await
    }

    /// Does the work for this item, together with those of others that wait. `work` answers every item that it was
    /// given, in their order. `None`: it was broken off, and nobody knows what it did.
    pub(in crate::store) async fn submit_for<W>(
        &self,
        owner: String,
        bytes: usize,
        item: T,
        work: impl FnOnce(Vec<T>) -> W + Send + 'static,
    ) -> Option<R>
    where
        W: Future<Output = Vec<R>> + Send,
    {
        let (sender, answer) = oneshot::channel();
        let shared = Arc::clone(&self.0);
        let waiting = WaitingItem { item, owner, bytes, answer: sender };
        shared.waiting.lock().expect("batcher lock").push(waiting);
        // a caller who goes away must not take along what others wait for
        let runtime = shared.runtime.clone();
        runtime.spawn(async move {
            let Ok(_turn) = shared.take_turn().await else { return };
            let batch = next_batch(&mut shared.waiting.lock().expect("batcher lock"), shared.limit);
            // those who came before have taken it along
            if batch.is_empty() {
                return;
            }
            let (items, senders): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.item, waiting.answer)).unzip();
            for (sender, done) in senders.into_iter().zip(work(items).await) {
                let _ = sender.send(done);
            }
        });
        answer.await.ok()
    }
}

impl<T, R> Shared<T, R> {
    async fn take_turn(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        tokio::select! {
            biased;
            turn = self.turn.acquire() => turn,
            turn = async {
                pause(LONG_TURN).await;
                self.second_turn.acquire().await
            } => turn,
        }
    }
}

/// Writes items in one transaction, and answers each, in their order.
type WriteItems<T, R> = for<'a> fn(&'a Store, &'a [T]) -> BoxFuture<'a, Result<Vec<Result<R, StoreError>>, StoreError>>;

/// Writes items in one transaction, as long as the database has nothing against any of them; else each by itself, so
/// that one that is refused takes no other along.
pub(in crate::store) async fn together_or_alone<T, R>(
    store: &Store,
    items: &[T],
    write: WriteItems<T, R>,
) -> Vec<Result<R, StoreError>> {
    match with_timeout(write(store, items)).await {
        Ok(written) => written,
        // it may have taken effect
        Err(StoreError::Unavailable(why)) => items.iter().map(|_| Err(StoreError::Unavailable(why.clone()))).collect(),
        Err(error) if items.len() == 1 => vec![Err(error)],
        Err(_) => {
            let mut written = Vec::with_capacity(items.len());
            for item in items {
                let alone = with_timeout(write(store, std::slice::from_ref(item))).await;
                written.push(alone.and_then(|mut only| only.remove(0)));
            }
            written
        }
    }
}

/// Takes the items of the next batch: those come first before which least of their owner waits, and among these those
/// that came first.
fn next_batch<T, R>(waiting: &mut Vec<WaitingItem<T, R>>, limit: BatchLimit) -> Vec<WaitingItem<T, R>> {
    let bytes = waiting.iter().fold(0_usize, |sum, one| sum.saturating_add(one.bytes));
    if waiting.len() <= limit.items && bytes <= limit.bytes {
        return std::mem::take(waiting);
    }
    let mut before: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut order: Vec<((usize, usize), usize)> = Vec::with_capacity(waiting.len());
    for (index, one) in waiting.iter().enumerate() {
        let (bytes, items) = before.entry(&one.owner).or_default();
        order.push(((*bytes, *items), index));
        (*bytes, *items) = (bytes.saturating_add(one.bytes), *items + 1);
    }
    order.sort_unstable();
    let mut left = limit.bytes;
    let fits = |(place, index): &(usize, usize)| {
        let bytes = waiting[*index].bytes;
        let fits = *place == 0 || bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    };
    let taken = order.into_iter().map(|(_, index)| index).enumerate().take(limit.items).take_while(fits);
    let mut taken: Vec<usize> = taken.map(|(_, index)| index).collect();
    taken.sort_unstable();
    let (mut index, mut taken) = (0, taken.into_iter().peekable());
    let is_next = |_: &mut WaitingItem<T, R>| {
        index += 1;
        taken.next_if_eq(&(index - 1)).is_some()
    };
    waiting.extract_if(.., is_next).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn write_batcher_joins_waiting_items_and_answers_each() {
        let batcher: WriteBatcher<u32, u32> = WriteBatcher::new(10);
        let batches = Arc::new(AtomicUsize::new(0));
        let one = |item: u32| {
            let (batcher, batches) = (batcher.clone(), Arc::clone(&batches));
            async move {
                batcher
                    .submit(item, move |items| async move {
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
    async fn batch_that_takes_long_holds_up_no_other() {
        let batcher: WriteBatcher<u32, u32> = WriteBatcher::new(10);
        let (begins, begun) = oneshot::channel();
        let held = batcher.submit(1, |_| async move {
            let _ = begins.send(());
            std::future::pending::<Vec<u32>>().await
        });
        let others = async {
            begun.await.expect("it begins");
            for item in 2..4 {
                assert_eq!(batcher.submit(item, |items| async move { items }).await, Some(item));
            }
        };
        tokio::select! {
            _ = held => panic!("it goes on"),
            () = others => {}
        }
    }

    #[tokio::test]
    async fn work_that_panics_leaves_nobody_waiting_and_the_next_is_done() {
        let batcher: WriteBatcher<u32, u32> = WriteBatcher::new(10);
        let broken = batcher.submit(1, |items| async move { if items.len() == 1 { panic!("as told") } else { items } });
        assert_eq!(broken.await, None);
        for item in 2..6 {
            assert_eq!(batcher.submit(item, |items| async move { items }).await, Some(item));
        }
    }

    #[tokio::test]
    async fn batch_that_is_full_takes_the_first_of_each_owner_and_ends_at_its_bytes() {
        let limit = BatchLimit { items: 3, bytes: 10 };
        let waiting = |owner: &str, bytes| {
            let (answer, _) = oneshot::channel::<()>();
            WaitingItem { item: format!("{owner}{bytes}"), owner: owner.into(), bytes, answer }
        };
        let mut all: Vec<_> =
            [("a", 4), ("a", 5), ("a", 20), ("b", 6), ("a", 1), ("c", 1)].map(|(o, b)| waiting(o, b)).into();
        let mut batches = Vec::new();
        while !all.is_empty() {
            let batch = next_batch(&mut all, limit);
            batches.push(batch.into_iter().map(|one| one.item).collect::<Vec<_>>());
        }
        // a write larger than a batch goes alone, and those of its owner behind it go after it
        assert_eq!(batches, [vec!["a4", "b6"], vec!["a5", "c1"], vec!["a20"], vec!["a1"]]);
    }
}
