//! An event that was read from the bus and is not acknowledged yet.

use std::sync::Arc;

use crate::base::compute::JSON_IN_PLACE;
use crate::domain::trigger::event::Arrival;
use crate::ports::bus::BusEntry;

/// An entry that is an event.
pub struct ReceivedEvent {
    pub id: String,
    pub deliveries: u32,
    pub arrival: Arc<Arrival>,
}

/// How much of a tenant is here: its events, and the bytes of their texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventLoad {
    pub count: usize,
    pub bytes: usize,
    /// The longest text, of those that are too long to be read in place; one event of a tenant is read at once.
    pub longest: usize,
}

impl ReceivedEvent {
    /// The entry of the bus that it came from.
    pub fn entry(&self) -> BusEntry {
        BusEntry { id: self.id.clone(), event: Ok(self.arrival.event.clone()), deliveries: self.deliveries }
    }
}

impl EventLoad {
    /// The load of these events.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a ReceivedEvent>) -> EventLoad {
        let mut load = EventLoad::default();
        for taken in events {
            load.count += 1;
            load.bytes += taken.arrival.bytes();
            load.longest = load.longest.max(taken.arrival.event.bytes());
        }
        if load.longest <= JSON_IN_PLACE {
            load.longest = 0;
        }
        load
    }

    /// Adds events that stand beside these.
    pub fn add(&mut self, other: EventLoad) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.longest = self.longest.max(other.longest);
    }
}
