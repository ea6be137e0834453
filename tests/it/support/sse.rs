//! Server-sent events of answers as tests read them (<https://html.spec.whatwg.org/multipage/server-sent-events.html>):
//! each is held against the published document.

use serde_json::{Value, json};

use super::reference::reference;

/// The media type of streams.
pub const EVENT_STREAM: &str = "text/event-stream";

/// One event; what it does not have is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SentEvent {
    pub name: String,
    pub id: String,
    pub data: String,
}

impl SentEvent {
    /// The data as JSON; null where there is none.
    pub fn json(&self) -> Value {
        match self.data.is_empty() {
            true => Value::Null,
            false => serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}")),
        }
    }
}

/// The answer to a request that is a stream, as it comes.
pub struct HeldStream {
    method: String,
    path: String,
    /// The part of the stream that no event was made of yet.
    rest: Vec<u8>,
}

impl HeldStream {
    /// The answer to a request of this method and path.
    pub fn of(method: &str, path: &str) -> HeldStream {
        HeldStream { method: method.to_owned(), path: path.to_owned(), rest: Vec::new() }
    }

    /// Adds a part that has come.
    pub fn push(&mut self, part: &[u8]) {
        self.rest.extend_from_slice(part);
    }

    /// The next event that is there whole; comments are passed over.
    pub fn next(&mut self) -> Option<SentEvent> {
        loop {
            let end = self.rest.windows(2).position(|two| two == b"\n\n")?;
            let block: Vec<u8> = self.rest.drain(..end + 2).collect();
            let event = read(std::str::from_utf8(&block).expect("a stream is UTF-8"));
            if event == SentEvent::default() {
                continue;
            }
            self.hold(&event);
            return Some(event);
        }
    }

    /// An event without data only moves the client's place on.
    fn hold(&self, event: &SentEvent) {
        if event.data.is_empty() {
            return;
        }
        let mut told = json!({});
        // an event without a name has a word as its data
        told["data"] = if event.name.is_empty() { json!(event.data) } else { event.json() };
        for (field, text) in [("event", &event.name), ("id", &event.id)] {
            if !text.is_empty() {
                told[field] = json!(text);
            }
        }
        reference().hold_event(&self.method, &self.path, &told);
    }
}

/// All events of an answer that has come whole.
pub fn events_of(method: &str, path: &str, answer: &[u8]) -> Vec<SentEvent> {
    let mut stream = HeldStream::of(method, path);
    stream.push(answer);
    std::iter::from_fn(|| stream.next()).collect()
}

fn read(block: &str) -> SentEvent {
    let mut event = SentEvent::default();
    let mut data: Vec<&str> = Vec::new();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => event.name = value.to_owned(),
            "id" => event.id = value.to_owned(),
            "data" => data.push(value),
            _ => {}
        }
    }
    event.data = data.join("\n");
    event
}

#[test]
fn events_are_read_whole_and_comments_are_passed_over() {
    let mut stream = HeldStream::of("GET", "/v1/live");
    stream.push(b": alive\n\nid: 7\n\nevent: session\ndata: {\"event\":\"session\",");
    assert_eq!(stream.next(), Some(SentEvent { id: "7".into(), ..SentEvent::default() }));
    assert_eq!(stream.next(), None);
    stream.push(b"\ndata: \"tenant_id\":\"ann\"}\n\n: alive\n\n");
    let event = stream.next().expect("an event");
    assert_eq!((event.name.as_str(), event.json()), ("session", json!({ "event": "session", "tenant_id": "ann" })));
    assert_eq!(stream.next(), None);
}

#[test]
fn event_that_the_document_does_not_have_is_found() {
    let is_held = |method: &str, path: &str, event: &str| {
        std::panic::catch_unwind(|| events_of(method, path, event.as_bytes())).is_ok()
    };
    let run = "/v1/runs/01890000-0000-7000-8000-000000000000/stream";
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"turn\":1}\n\n";
    assert!(is_held("GET", run, start) && is_held("POST", "/v1/chat", start));
    assert!(!is_held("GET", "/v1/events/stream", start) && !is_held("GET", "/v1/tasks", start), "of another stream");
    let end = "data: [DONE]\n\n";
    assert!(is_held("POST", "/v1/responses", end) && !is_held("POST", "/v1/chat", end));
    for wrong in [
        "event: message_begin\ndata: {\"type\":\"message_start\",\"turn\":1}\n\n",
        "event: message_start\ndata: {\"type\":\"message_end\",\"turn\":1}\n\n",
        "event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
        "event: message_start\ndata: {\"type\":\"message_start\",\"turn\":1,\"more\":2}\n\n",
        "event: message_start\ndata: {\"type\":\"message_start\",\"turn\":\"1\"}\n\n",
    ] {
        assert!(!is_held("GET", run, wrong), "{wrong}");
    }
}
