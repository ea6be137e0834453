//! Streams that go on in a task of their own.
//!
//! The body of an answer is asked for more as fast as its reader reads. If it asked the database itself, a reader that
//! stops reading would stop it halfway through a statement, and so keep a connection for as long as it likes.

use futures::stream::unfold;
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The items of a stream that a task asks for, one ahead of the reader. The task ends when the returned stream is
/// dropped; the room that the stream has, its `permit`, is given back at that moment.
pub fn detached<T: Send + 'static>(
    permit: impl Send,
    items: impl Stream<Item = T> + Send + 'static,
) -> impl Stream<Item = T> + Send {
    let (sender, receiver) = mpsc::channel(1);
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut items = std::pin::pin!(items);
        while let Some(item) = items.next().await {
            if sender.send(item).await.is_err() {
                return;
            }
        }
    }));
    let state = (receiver, task, permit);
    unfold(
        state,
        |(mut receiver, task, permit)| async move { Some((receiver.recv().await?, (receiver, task, permit))) },
    )
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use futures::FutureExt;
    use tokio::sync::Semaphore;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn reader_that_stops_reading_keeps_nothing_that_the_stream_had_for_a_moment() {
        let connections = Arc::new(Semaphore::new(1));
        let numbers = unfold((Arc::clone(&connections), 0), |(connections, number)| async move {
            let held = Arc::clone(&connections).acquire_owned().await.unwrap();
            yield_now().await;
            drop(held);
            Some((number, (connections, number + 1)))
        });
        let mut stream = pin!(detached((), numbers));
        assert_eq!(stream.next().await, Some(0));
        // the reader asks once more, and then no more
        let _ = stream.next().now_or_never();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(connections.available_permits(), 1);
    }

    #[tokio::test]
    async fn stream_ends_with_its_reader_and_with_its_last_item() {
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let endless = futures::stream::repeat_with(move || Arc::strong_count(&held));
        drop(detached((), endless));
        while Arc::strong_count(&alive) > 1 {
            yield_now().await;
        }
        assert_eq!(detached((), futures::stream::iter([1, 2, 3])).collect::<Vec<_>>().await, [1, 2, 3]);
    }
}
