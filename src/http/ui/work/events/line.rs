//! An event as a list shows it.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::http::address::address;
use crate::http::ui::frame::text::beginning_of;

/// Characters of an event's data that a list shows.
const CHARACTERS: usize = 160;
/// Bytes of data that are written for them.
const BYTES: usize = CHARACTERS * 4;

/// The line of an event, which is a CloudEvent.
pub fn line(event: &Value) -> Value {
    let text = |name: &str| event[name].as_str();
    json!({
        "id": event["id"],
        "source": event["source"],
        "type": event["type"],
        "subject": event["subject"],
        "time": event["time"],
        "tenant": event["tenantid"],
        "data": beginning(event.get("data").or_else(|| event.get("data_base64"))),
        "href": href(text("id").unwrap_or_default(), text("source"), text("tenantid")),
    })
}

/// Address of the page of an event.
pub fn href(id: &str, source: Option<&str>, tenant: Option<&str>) -> String {
    let given = [("source", source), ("tenant_id", tenant)];
    let query: Vec<(&str, String)> =
        given.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned()))).collect();
    address(&["ui", "events", id], &query)
}

/// The beginning of the data as JSON. No more is written of it, however long it is.
fn beginning(data: Option<&Value>) -> String {
    let Some(data) = data else { return String::new() };
    let mut written = Beginning(Vec::new());
    let is_whole = serde_json::to_writer(&mut written, data).is_ok();
    let text = String::from_utf8_lossy(&written.0);
    match beginning_of(&text, CHARACTERS) {
        (shown, false) if is_whole => shown.to_owned(),
        (shown, _) => format!("{shown}…"),
    }
}

/// The first bytes of what is written; the rest is refused.
struct Beginning(Vec<u8>);

impl Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BYTES - self.0.len();
        self.0.extend(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_shown_whole_or_by_its_beginning() {
        assert_eq!(beginning(None), "");
        assert_eq!(beginning(Some(&json!({ "a": [1, "é"] }))), "{\"a\":[1,\"é\"]}");
        for long in ["x".repeat(100_000), "é".repeat(100_000)] {
            let shown = beginning(Some(&json!(long)));
            assert_eq!((shown.chars().count(), shown.ends_with('…')), (CHARACTERS + 1, true), "{shown}");
        }
    }

    #[test]
    fn address_of_an_event_keeps_its_id_source_and_tenant() {
        assert_eq!(href("a/b?c", Some("/shop&x"), None), "/ui/events/a%2Fb%3Fc?source=%2Fshop%26x");
        assert_eq!(href("1", None, Some("ann")), "/ui/events/1?tenant_id=ann");
    }
}
