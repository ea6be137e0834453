//! An event that was read from the bus and is not acknowledged yet.

use std::sync::Arc;

use crate::domain::trigger::event::Arrival;
use crate::ports::bus::BusEntry;

/// An entry that is an event.
pub struct ReceivedEvent {
    pub id: String,
    pub deliveries: u32,
    pub arrival: Arc<Arrival>,
}

impl ReceivedEvent {
    pub fn entry(&self) -> BusEntry {
        BusEntry { id: self.id.clone(), event: Ok(self.arrival.event.clone()), deliveries: self.deliveries }
    }
}
