//! Watchers of runs, in this process. Keeps nothing for runs that nobody watches, and nothing over a crash: the
//! transcript is the truth, this is only how it is heard at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::agent::StreamSink;
use crate::base::json::length::estimated_bytes;
use crate::domain::run::StreamEvent;

/// Events that a slow watcher may lag behind before it misses some.
const BACKLOG: usize = 1024;
/// Bytes of these events, beside those of the newest.
const BACKLOG_BYTES: usize = 4 * 1_024 * 1_024;

/// Cheap to clone; all clones are one hub.
#[derive(Debug, Clone, Default)]
pub struct Hub(Arc<Mutex<HashMap<Uuid, Arc<WatchedRun>>>>);

/// One watcher of one run; dropping it ends the watch.
#[derive(Debug)]
pub struct RunSubscription {
    hub: Hub,
    run_id: Uuid,
    run: Arc<WatchedRun>,
    /// Number of the event that comes next.
    position: u64,
}

/// A run that somebody watches.
#[derive(Debug, Default)]
struct WatchedRun {
    backlog: Mutex<RunBacklog>,
    told: Notify,
}

/// The events of a run that some watcher has not heard yet.
#[derive(Debug, Default)]
struct RunBacklog {
    unheard: VecDeque<UnheardEvent>,
    /// Number of the first of them.
    first: u64,
    bytes: usize,
    watchers: usize,
}

#[derive(Debug)]
struct UnheardEvent {
    event: StreamEvent,
    bytes: usize,
    /// How many watchers are yet to hear it.
    left: usize,
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
        let run = runs.entry(run_id).or_default().clone();
        let position = run.backlog.lock().expect("backlog lock").join();
        RunSubscription { hub: self.clone(), run_id, run, position }
    }

    /// Tells all who watch the run; what nobody would hear is not even made.
    pub fn publish(&self, run_id: Uuid, event: impl FnOnce() -> StreamEvent) {
        let run = self.0.lock().expect("hub lock").get(&run_id).cloned();
        if let Some(run) = run {
            let event = event();
            run.backlog.lock().expect("backlog lock").push(event);
            run.told.notify_waiters();
        }
    }

    /// A sink that publishes to the watchers of one run.
    pub fn sink(&self, run_id: Uuid) -> StreamSink {
        let hub = self.clone();
        Arc::new(move |event| hub.publish(run_id, || event))
    }

    /// The runs that are watched, in any order.
    pub fn watched_runs(&self) -> Vec<Uuid> {
        self.0.lock().expect("hub lock").keys().copied().collect()
    }

    /// How many runs are watched.
    pub fn watched(&self) -> usize {
        self.0.lock().expect("hub lock").len()
    }
}

impl RunSubscription {
    /// The next thing to hear. Waits; safe to drop and call again.
    pub async fn next(&mut self) -> WatchedEvent {
        let run = self.run.clone();
        loop {
            // made before the look: what is told after the look wakes it
            let told = run.told.notified();
            let heard = run.backlog.lock().expect("backlog lock").take(&mut self.position);
            if let Some(heard) = heard {
                return heard;
            }
            told.await;
        }
    }
}

impl Drop for RunSubscription {
    fn drop(&mut self) {
        let mut runs = self.hub.0.lock().expect("hub lock");
        if self.run.backlog.lock().expect("backlog lock").leave(self.position) == 0 {
            runs.remove(&self.run_id);
        }
    }
}

impl RunBacklog {
    /// One watcher more; answers the number of the event that it hears first.
    fn join(&mut self) -> u64 {
        self.watchers += 1;
        self.first + self.unheard.len() as u64
    }

    /// One watcher less, which has heard all before this number; answers how many are left.
    fn leave(&mut self, position: u64) -> usize {
        self.watchers -= 1;
        let heard = position.saturating_sub(self.first) as usize;
        self.unheard.iter_mut().skip(heard).for_each(|unheard| unheard.left -= 1);
        while self.unheard.front().is_some_and(|unheard| unheard.left == 0) {
            self.drop_first();
        }
        self.watchers
    }

    /// Adds an event. The oldest go where there is too much.
    fn push(&mut self, event: StreamEvent) {
        if self.watchers == 0 {
            return;
        }
        let bytes = bytes_of(&event);
        self.bytes += bytes;
        self.unheard.push_back(UnheardEvent { event, bytes, left: self.watchers });
        while self.unheard.len() > BACKLOG || self.bytes - bytes > BACKLOG_BYTES {
            self.drop_first();
        }
    }

    /// The event at this number, or how many before it are gone, for one watcher, whose number moves on.
    fn take(&mut self, position: &mut u64) -> Option<WatchedEvent> {
        if *position < self.first {
            let missed = self.first - *position;
            *position = self.first;
            return Some(WatchedEvent::Missed(missed));
        }
        let unheard = self.unheard.get_mut((*position - self.first) as usize)?;
        *position += 1;
        unheard.left -= 1;
        // the last to hear one has heard all before it, and so have the others
        let event = match unheard.left {
            0 => self.drop_first()?,
            _ => unheard.event.clone(),
        };
        Some(WatchedEvent::Event(event))
    }

    fn drop_first(&mut self) -> Option<StreamEvent> {
        let UnheardEvent { event, bytes, .. } = self.unheard.pop_front()?;
        self.first += 1;
        self.bytes -= bytes;
        Some(event)
    }
}

/// Bytes of an event in memory, about.
fn bytes_of(event: &StreamEvent) -> usize {
    let long = match event {
        StreamEvent::MessageChunk { text, .. } | StreamEvent::MessageEnd { text, .. } => text.len(),
        StreamEvent::ToolCallStart { args, .. } => estimated_bytes(args, BACKLOG_BYTES),
        StreamEvent::ToolResult { result, .. } => result.len(),
        StreamEvent::ApprovalRequired { summary, .. } => summary.len(),
        StreamEvent::InputRequired { question, fields, .. } => question.len() + estimated_bytes(fields, BACKLOG_BYTES),
        StreamEvent::ToolWarning { message, .. } | StreamEvent::Error { message, .. } => message.len(),
        StreamEvent::ToolProgress { message, .. } => message.as_ref().map_or(0, String::len),
        StreamEvent::Session { .. }
        | StreamEvent::MessageStart { .. }
        | StreamEvent::StateChange { .. }
        | StreamEvent::ExecutionEnd { .. } => 0,
    };
    long + size_of::<StreamEvent>()
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
        assert_eq!((hub.watched(), hub.watched_runs()), (1, vec![run]));
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

    fn long_chunk(turn: i64, bytes: usize) -> StreamEvent {
        StreamEvent::MessageChunk { turn, text: "x".repeat(bytes) }
    }

    #[tokio::test]
    async fn events_wait_up_to_their_bytes_and_the_oldest_is_missed_one_byte_beyond_them() {
        let half = BACKLOG_BYTES / 2 - size_of::<StreamEvent>();
        for (more, gone) in [(0, 0), (1, 1)] {
            let hub = Hub::new();
            let (mut slow, mut fast) = (hub.subscribe(Uuid::nil()), hub.subscribe(Uuid::nil()));
            // the newest counts for nobody, however long it is
            for (turn, bytes) in [(0, half), (1, half + more), (2, 2 * BACKLOG_BYTES)] {
                hub.publish(Uuid::nil(), || long_chunk(turn, bytes));
                assert_eq!(fast.next().await, WatchedEvent::Event(long_chunk(turn, bytes)), "it misses nothing");
            }
            if gone > 0 {
                assert_eq!(slow.next().await, WatchedEvent::Missed(gone));
            }
            for turn in gone as i64..3 {
                let heard = slow.next().await;
                let is_it =
                    matches!(&heard, WatchedEvent::Event(StreamEvent::MessageChunk { turn: of, .. }) if *of == turn);
                assert!(is_it, "{turn} with {more} more");
            }
        }
    }

    #[tokio::test]
    async fn event_is_kept_until_the_last_watcher_has_heard_it_or_has_gone() {
        let hub = Hub::new();
        let (mut one, other) = (hub.subscribe(Uuid::nil()), hub.subscribe(Uuid::nil()));
        let kept = |of: &RunSubscription| {
            let backlog = of.run.backlog.lock().unwrap();
            (backlog.unheard.len(), backlog.bytes > 0)
        };
        for turn in 0..3 {
            hub.publish(Uuid::nil(), || chunk(turn));
        }
        one.next().await;
        assert_eq!(kept(&one), (3, true));
        let late = hub.subscribe(Uuid::nil());
        drop(other);
        assert_eq!(kept(&one), (2, true));
        for turn in 1..3 {
            assert_eq!(one.next().await, WatchedEvent::Event(chunk(turn)));
        }
        assert_eq!(kept(&late), (0, false));
    }

    #[tokio::test]
    async fn watcher_that_waits_is_woken() {
        let hub = Hub::new();
        let mut waits = hub.subscribe(Uuid::nil());
        let told = async { hub.publish(Uuid::nil(), || chunk(7)) };
        let (heard, ()) = tokio::join!(waits.next(), told);
        assert_eq!(heard, WatchedEvent::Event(chunk(7)));
    }
}
