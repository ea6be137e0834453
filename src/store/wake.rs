//! Hints: what was committed here may concern a service that waits. A hint shortens a wait; polling is the truth.

use tokio::sync::watch;

use crate::store::Store;

/// What a service may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A task's next instant may be earlier than known.
    Due,
    /// A run may be ready.
    Queue,
    /// The end of a running run was asked for.
    Cancels,
    /// A delivery may be ready.
    Outbox,
    /// A window may close earlier than known.
    Windows,
    /// An event may be on the embedded bus.
    Events,
    /// A message for an open session was laid out or taken.
    Live,
}

/// One hint per topic; many at once are one.
#[derive(Debug, Clone)]
pub(super) struct Hints([watch::Sender<()>; 7]);

impl Hints {
    pub(super) fn new() -> Hints {
        Hints(std::array::from_fn(|_| watch::channel(()).0))
    }
}

impl Store {
    /// Hears the hints of a topic from now on. Listen before asking the database, or one may be missed.
    pub fn listen(&self, topic: Topic) -> watch::Receiver<()> {
        self.hints.0[topic as usize].subscribe()
    }

    /// Tells those who wait in this process that something was committed.
    pub(super) fn hint(&self, topic: Topic) {
        self.hints.0[topic as usize].send_replace(());
    }
}
