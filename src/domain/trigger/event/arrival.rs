//! An event that is to be judged: as its text while it waits, and read while it is judged.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::base::expr::Variables;
use crate::domain::event::Event;
use crate::domain::event::written::WrittenEvent;
use crate::domain::run::Cause;

/// An event that is to be judged by many matchers: converted once. It waits as its text, before and after.
pub struct Arrival {
    /// The event as its text.
    pub event: WrittenEvent,
    // most events match nothing, and need none of these
    key: OnceLock<String>,
    cause: OnceLock<Arc<RawValue>>,
    /// The event as it was read, while it is judged.
    read: Mutex<Option<Arc<ReadEvent>>>,
}

/// An event with what expressions see of it.
pub(super) struct ReadEvent {
    /// The event itself.
    pub event: Event,
    variables: OnceLock<Variables>,
}

/// A cause that is read back for its event.
#[derive(Deserialize)]
struct EventOfCause<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
}

impl Arrival {
    /// An arrival, with its keys computed at their first use.
    pub fn new(event: Event) -> Arrival {
        let arrival = Arrival::of_text(WrittenEvent::of(&event));
        arrival.keep(event);
        arrival
    }

    /// An arrival whose event is read once something in it is asked for.
    pub fn of_text(event: WrittenEvent) -> Arrival {
        Arrival { event, key: OnceLock::new(), cause: OnceLock::new(), read: Mutex::default() }
    }

    /// See [`Event::key`].
    pub fn key(&self) -> &str {
        self.key.get_or_init(|| self.event.key())
    }

    /// The [`Cause`] of a run of this event alone, as JSON.
    pub fn cause(&self) -> &Arc<RawValue> {
        self.cause.get_or_init(|| {
            let cause = Cause::Event { event: self.read().event.to_value(), events: Vec::new() };
            to_raw_value(&cause).expect("texts for names").into()
        })
    }

    /// The event of the cause: the structured form of CloudEvents, as JSON.
    pub fn document(&self) -> &RawValue {
        serde_json::from_str::<EventOfCause<'_>>(self.cause().get()).expect("a cause that was just written").event
    }

    /// Converts all that its recording asks for, so that no transaction has to wait for it.
    pub fn prepare(&self) {
        self.key();
        self.cause();
    }

    /// Forgets the event as it was read: its text stays, and is read again where it is asked for.
    pub fn forget_read(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Bytes of the texts that are kept of it: the event, and its cause once that is written.
    pub fn bytes(&self) -> usize {
        self.event.bytes() + self.cause.get().map_or(0, |cause| cause.get().len())
    }

    /// Whether its text is held as values, too.
    #[cfg(test)]
    pub fn is_read(&self) -> bool {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(super) fn read(&self) -> Arc<ReadEvent> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(read.get_or_insert_with(|| ReadEvent::new(self.event.event())))
    }

    fn keep(&self, event: Event) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(ReadEvent::new(event));
    }
}

impl ReadEvent {
    fn new(event: Event) -> Arc<ReadEvent> {
        Arc::new(ReadEvent { event, variables: OnceLock::new() })
    }

    /// The event for expressions.
    pub fn variables(&self) -> &Variables {
        self.variables.get_or_init(|| Variables::new().with("event", &self.event.to_value()))
    }
}
