//! An event as its text, with the names by which it is told apart: all that is kept of one while it waits. Read, it may
//! take twenty times as much memory.

use std::sync::Arc;

use serde_json::Value;

use crate::base::id::Tenant;
use crate::domain::event::{Event, event_key};

/// A text that was read as an event before. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenEvent {
    /// The tenant that owns the event.
    pub tenant: Tenant,
    /// Unique within tenant and source.
    pub id: String,
    /// Source of the event.
    pub source: String,
    /// `type`.
    pub kind: String,
    text: Arc<str>,
}

impl WrittenEvent {
    /// An event as it is written.
    pub fn of(event: &Event) -> WrittenEvent {
        // texts and JSON can always be written as JSON
        let text = serde_json::to_string(event).unwrap_or_default();
        let Event { tenant, id, source, kind, .. } = event;
        WrittenEvent {
            tenant: tenant.clone(),
            id: id.clone(),
            source: source.clone(),
            kind: kind.clone(),
            text: text.into(),
        }
    }

    /// The text that this event was just read from.
    pub fn of_text(event: Event, text: &str) -> WrittenEvent {
        let Event { tenant, id, source, kind, .. } = event;
        WrittenEvent { tenant, id, source, kind, text: text.into() }
    }

    /// Reads the event once more.
    pub fn event(&self) -> Event {
        let value: Value = serde_json::from_str(&self.text).expect("a text that was read as JSON before");
        Event::try_from(value).expect("a text that was read as an event before")
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How long the text is, in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// See [`Event::key`].
    pub fn key(&self) -> String {
        event_key(&self.tenant, &self.source, &self.id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_event_reads_back_as_the_event_that_it_is_of() {
        let text =
            r#"{ "specversion": "1.0", "tenantid": "ann", "id": "1", "source": "s", "type": "t", "data": [0, 1e3] }"#;
        let event = Event::try_from(serde_json::from_str::<Value>(text).unwrap()).unwrap();
        for written in [WrittenEvent::of(&event), WrittenEvent::of_text(event.clone(), text)] {
            assert_eq!((written.event(), written.key()), (event.clone(), event.key()));
            assert_eq!(written.bytes(), written.text().len());
        }
        assert_eq!(WrittenEvent::of_text(event.clone(), text).text(), text);
        assert_eq!(event.to_value()["data"], json!([0, 1000.0]));
    }
}
