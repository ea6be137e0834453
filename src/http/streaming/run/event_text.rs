//! Events of a run's stream as they are sent.

use std::sync::Arc;

use axum::response::sse::Event;

use crate::base::compute::Compute;
use crate::http::streaming::run::keyed_event::steps_of;
use crate::http::streaming::run::memory::ClientEvent;

/// The text of an event. That of a long one is written on a computing thread, in the turn of the client's name.
pub async fn written_in_turn(told: ClientEvent, compute: Compute, name: Arc<str>) -> Event {
    let steps = told.event.as_ref().map_or(0, steps_of);
    compute.run_if_costly(&name, steps, move || written(told)).await.unwrap_or_default()
}

/// The text of an event.
pub fn written(ClientEvent { event: told, id }: ClientEvent) -> Event {
    let mut event = Event::default();
    if let Some(told) = told {
        let data = serde_json::to_string(&told).expect("a stream event is JSON");
        event = event.event(told.name()).data(data);
    }
    match id {
        Some(id) => event.id(id),
        None => event,
    }
}
