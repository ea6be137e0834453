//! A message of a host: the text that goes on, and what has to be known of it on the way.

use serde_json::Value;

/// A message of JSON-RPC, or another JSON that the service will refuse.
#[derive(Debug)]
pub struct HostMessage {
    text: String,
    value: Value,
}

impl HostMessage {
    /// Reads a line; `None`: it is no JSON.
    pub fn read(line: Vec<u8>) -> Option<HostMessage> {
        let text = String::from_utf8(line).ok()?;
        let value = serde_json::from_str(&text).ok()?;
        Some(HostMessage { text, value })
    }

    /// The message as it came.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Its method; empty where it has none.
    pub fn method(&self) -> &str {
        self.value.get("method").and_then(Value::as_str).unwrap_or_default()
    }

    /// A parameter.
    pub fn param(&self, name: &str) -> Option<&Value> {
        self.value.get("params")?.get(name)
    }

    /// The id of a request; `None`: it expects no answer, or none that could be told apart.
    pub fn id(&self) -> Option<&Value> {
        self.value.get("id").filter(|id| !id.is_null())
    }

    /// Whether it has a method and no id.
    pub fn is_notification(&self) -> bool {
        !self.method().is_empty() && self.value.get("id").is_none()
    }

    /// Whether it answers a request, of which there are none.
    pub fn is_answer(&self) -> bool {
        let has = |field| self.value.get(field).is_some();
        !has("method") && (has("result") || has("error"))
    }

    /// The request that it takes back: its id, where it is a notice of that kind.
    pub fn takes_back(&self) -> Option<&Value> {
        match self.method() {
            "notifications/cancelled" if self.is_notification() => self.param("requestId"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> HostMessage {
        HostMessage::read(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn message_is_a_request_a_notice_or_an_answer() {
        let request = read(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#);
        assert_eq!((request.id(), request.is_notification(), request.is_answer()), (Some(&0.into()), false, false));
        let notice = read(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert!(notice.is_notification() && notice.takes_back().is_none());
        let back = read(r#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#);
        assert_eq!(back.takes_back(), Some(&"a".into()));
        assert!(read(r#"{"id":1,"result":{}}"#).is_answer() && read(r#"{"id":1,"error":{}}"#).is_answer());
        let other = read("[1]");
        assert!(!other.is_notification() && !other.is_answer() && other.id().is_none());
        for odd in ["", "{", "\u{feff}{}", "nothing"] {
            assert!(HostMessage::read(odd.as_bytes().to_vec()).is_none(), "{odd}");
        }
        assert!(HostMessage::read(vec![b'"', 0xff, b'"']).is_none());
    }
}
