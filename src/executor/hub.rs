//! Watchers of runs, in this process. Keeps nothing for runs that nobody watches, and nothing over a crash: the
//! transcript is the truth, this is only how it is heard at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::broadcast;
use uuid::Uuid;

use crate::agent::StreamSink;
use crate::domain::run::StreamEvent;

/// Events that a slow watcher may lag behind before it misses some.
const BACKLOG: usize = 1024;

/// Cheap to clone; all clones are one hub.
#[derive(Debug, Clone, Default)]
pub struct Hub(Arc<Mutex<HashMap<Uuid, broadcast::Sender<StreamEvent>>>>);

/// One watcher of one run; dropping it ends the watch.
#[derive(Debug)]
pub struct RunSubscription {
    hub: Hub,
    run_id: Uuid,
    events: broadcast::Receiver<StreamEvent>,
}

/// An event for a watcher.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchedEvent {
    /// An event of the run.
    Event(StreamEvent),
    /// Too slow: this many events are gone; the transcript has what they led to.
    Missed(u64),
}

impl Hub {
    /// A hub without watchers.
    pub fn new() -> Hub {
        Hub::default()
    }

    /// Watches a run from now on, whether it has begun or not.
    pub fn subscribe(&self, run_id: Uuid) -> RunSubscription {
        let mut runs = self.0.lock().expect("hub lock");
        let events = runs.entry(run_id).or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe();
        RunSubscription { hub: self.clone(), run_id, events }
    }

    /// Tells all who watch the run; what nobody would hear is not even made.
    pub fn publish(&self, run_id: Uuid, event: impl FnOnce() -> StreamEvent) {
        let watchers = self.0.lock().expect("hub lock").get(&run_id).cloned();
        if let Some(watchers) = watchers {
            // an error says that the last watcher has just gone
            let _ = watchers.send(event());
        }
    }

    /// A sink that publishes to the watchers of one run.
    pub fn sink(&self, run_id: Uuid) -> StreamSink {
        let hub = self.clone();
        Arc::new(move |event| hub.publish(run_id, || event))
    }

    /// How many runs are watched.
    pub fn watched(&self) -> usize {
        self.0.lock().expect("hub lock").len()
    }
}

impl RunSubscription {
    /// The next thing to hear. Waits; safe to drop and call again.
    pub async fn next(&mut self) -> WatchedEvent {
        match self.events.recv().await {
            Ok(event) => WatchedEvent::Event(event),
            Err(broadcast::error::RecvError::Lagged(missed)) => WatchedEvent::Missed(missed),
            // the hub keeps the sender as long as there is a subscription
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Drop for RunSubscription {
    fn drop(&mut self) {
        let mut runs = self.hub.0.lock().expect("hub lock");
        // this watcher is still counted
        if runs.get(&self.run_id).is_some_and(|watchers| watchers.receiver_count() <= 1) {
            runs.remove(&self.run_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(turn: i64) -> StreamEvent {
        StreamEvent::MessageChunk { turn, text: "x".into() }
    }

    #[tokio::test]
    async fn each_watcher_hears_its_own_run_and_the_last_one_leaves_nothing_behind() {
        let hub = Hub::new();
        let (run, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        hub.publish(run, || panic!("made for nobody"));
        let (mut first, mut second) = (hub.subscribe(run), hub.subscribe(run));
        hub.publish(other, || panic!("made for nobody"));
        hub.sink(run)(chunk(1));
        assert_eq!(first.next().await, WatchedEvent::Event(chunk(1)));
        assert_eq!(second.next().await, WatchedEvent::Event(chunk(1)));
        drop(first);
        assert_eq!(hub.watched(), 1);
        drop(second);
        assert_eq!(hub.watched(), 0);
    }

    #[tokio::test]
    async fn slow_watcher_is_told_how_much_it_missed() {
        let hub = Hub::new();
        let mut slow = hub.subscribe(Uuid::nil());
        for turn in 0..BACKLOG as i64 + 3 {
            hub.publish(Uuid::nil(), || chunk(turn));
        }
        assert_eq!(slow.next().await, WatchedEvent::Missed(3));
        assert_eq!(slow.next().await, WatchedEvent::Event(chunk(3)));
    }
}
