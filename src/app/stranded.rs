//! Events that a change of `bus.url` leaves behind in the database, where nothing reads them any more.
//!
//! Those that a change leaves in a Redis can't be told of: which one was the bus before is not known.

use crate::ports::bus::Settings;
use crate::store::{EventBacklog, Store, StoreError};

/// Advice for stranded events.
pub const WAY_BACK: &str = "set bus.url back to `embedded` until the events are handled, then change it again; whoever publishes should stop before";

/// The warning where another bus is configured and the one in the database holds events that were not handled yet.
pub async fn stranded_events_warning(settings: &Settings, store: &Store) -> Result<Option<String>, StoreError> {
    if settings.is_embedded() {
        return Ok(None);
    }
    let EventBacklog { unread, leased } = store.event_backlog().await?;
    Ok(match unread + leased {
        0 => None,
        1 => Some(warning_text("1 event waits")),
        some => Some(warning_text(&format!("{some} events wait"))),
    })
}

/// A change of the bus takes no events along.
pub(super) async fn warn_of_stranded_events(bus: &Settings, store: &Store) -> anyhow::Result<()> {
    if let Some(events) = stranded_events_warning(bus, store).await? {
        tracing::warn!("{events}; {WAY_BACK}");
    }
    Ok(())
}

fn warning_text(events: &str) -> String {
    format!("{events} on the bus in the database, which nothing reads while bus.url names a Redis")
}
