//! The head of an event: by it most entries of a look are passed over, and their data is never built.

use std::borrow::Cow;

use serde::Deserialize;

use crate::domain::event::{EVENT_BYTES, Event};
use crate::ports::bus::redis::streams::{FIELD, StreamFields, event_of, field};

/// The attributes by which events are looked for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct EventHead<'a> {
    /// Tenant of the event.
    #[serde(borrow, rename = "tenantid")]
    pub tenant: Cow<'a, str>,
    /// Id of the event.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// Source of the event.
    #[serde(borrow)]
    pub source: Cow<'a, str>,
    /// Type of the event.
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
}

impl<'a> EventHead<'a> {
    /// The head of an event that was read.
    fn of(event: &'a Event) -> EventHead<'a> {
        EventHead {
            tenant: event.tenant.as_str().into(),
            id: event.id.as_str().into(),
            source: event.source.as_str().into(),
            kind: event.kind.as_str().into(),
        }
    }

    /// The head of an entry, if it can be read without the rest.
    fn of_entry(fields: &'a StreamFields) -> Option<EventHead<'a>> {
        let bytes = field(fields, FIELD).filter(|bytes| bytes.len() <= EVENT_BYTES)?;
        serde_json::from_slice(bytes).ok()
    }
}

/// The event of an entry, if it is one and `wanted` says so of its head. One that is not wanted is seldom read as a
/// whole: only where its head alone can't be read.
pub(super) fn wanted_event(fields: &StreamFields, wanted: impl Fn(&EventHead<'_>) -> bool) -> Option<Event> {
    if EventHead::of_entry(fields).is_some_and(|head| !wanted(&head)) {
        return None;
    }
    event_of(fields).ok().filter(|event| wanted(&EventHead::of(event)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        r#"{"specversion":"1.0","id":"a\u0062","source":"shop","type":"new","tenantid":"ann","data":[{"id":7}]}"#;

    fn entry(json: &str) -> StreamFields {
        vec![FIELD.as_bytes().to_vec(), json.as_bytes().to_vec()]
    }

    #[test]
    fn event_is_read_by_its_head() {
        let fields = entry(ONE);
        let event = wanted_event(&fields, |head| head.id == "ab").expect("the event");
        assert_eq!(EventHead::of_entry(&fields), Some(EventHead::of(&event)));
        assert_eq!((&*event.id, &*event.source, &*event.kind, event.tenant.as_str()), ("ab", "shop", "new", "ann"));
        assert_eq!(wanted_event(&fields, |head| head.tenant == "bob"), None);
    }

    #[test]
    fn entry_whose_head_says_too_little_is_read_as_a_whole() {
        // the last of two names counts
        let twice = entry(&ONE.replace(r#""source""#, r#""id":"z","source""#));
        assert_eq!(EventHead::of_entry(&twice), None);
        assert!(wanted_event(&twice, |head| head.id == "z").is_some());
        assert_eq!(wanted_event(&twice, |head| head.id == "ab"), None);
        // a head makes no event
        let no_event = entry(&ONE.replace("1.0", "7"));
        assert!(EventHead::of_entry(&no_event).is_some());
        assert_eq!(wanted_event(&no_event, |_| true), None);
        assert_eq!(wanted_event(&entry("{"), |_| true), None);
        assert_eq!(wanted_event(&vec![], |_| true), None);
    }
}
