//! Entries of a bus as texts: how events are written in them, and what is read of them.

use crate::domain::event::written::WrittenEvent;
use crate::domain::event::{EVENT_BYTES, Event};
use crate::ports::bus::UnreadableEntry;

/// The event that an entry of another's writing holds, or why it holds none.
pub fn read_entry(bytes: &[u8]) -> Result<Event, UnreadableEntry> {
    if bytes.len() > EVENT_BYTES {
        let why = format!("it has {} bytes, and an event at most {EVENT_BYTES}", bytes.len());
        return Err(UnreadableEntry { text: String::from_utf8_lossy(bytes).into_owned(), why });
    }
    read_stored(bytes)
}

/// The event that an entry holds which the service has stored, or why it holds none. Its length was judged when it was
/// published, and is another one now: PostgreSQL writes JSON with spaces.
pub fn read_stored(bytes: &[u8]) -> Result<Event, UnreadableEntry> {
    let unreadable = |why: String| UnreadableEntry { text: String::from_utf8_lossy(bytes).into_owned(), why };
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| unreadable(format!("it is not JSON: {error}")))?;
    Event::try_from(value).map_err(|faults| unreadable(format!("it is no CloudEvent: {faults}")))
}

/// As [`read_entry`], with the event as its text: an event that is read takes far more memory, and many wait.
pub fn check_entry(bytes: &[u8]) -> Result<WrittenEvent, UnreadableEntry> {
    read_entry(bytes).map(|event| WrittenEvent::of_text(event, &String::from_utf8_lossy(bytes)))
}

/// As [`read_stored`], with the event as its text: a short one, where the database has written a long one.
pub fn check_stored(bytes: &[u8]) -> Result<WrittenEvent, UnreadableEntry> {
    let event = read_stored(bytes)?;
    Ok(match bytes.len() > EVENT_BYTES {
        true => WrittenEvent::of(&event),
        false => WrittenEvent::of_text(event, &String::from_utf8_lossy(bytes)),
    })
}

/// An event as an entry holds it.
pub fn write_entry(event: &Event) -> String {
    // texts and JSON can always be written as JSON
    serde_json::to_string(event).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_event_that_the_database_has_written_with_spaces_is_kept_without_them() {
        let event = |separator: &str| {
            let beginning = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","tenantid":"a","data":[0"#;
            format!("{beginning}{}]}}", separator.repeat(120_000))
        };
        let (written, short) = (event(", 0"), event(",0"));
        assert!(written.len() > EVENT_BYTES && short.len() < EVENT_BYTES);
        let kept = check_stored(written.as_bytes()).unwrap();
        assert_eq!(kept.event(), check_entry(short.as_bytes()).unwrap().event());
        assert!(kept.text().len() < EVENT_BYTES, "{} bytes", kept.text().len());
        assert_eq!(check_stored(short.as_bytes()).unwrap().text(), short, "as it stands");
    }
}
