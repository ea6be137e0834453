//! The headers of a message over HTTP. A host that starts a program sends none, so they are made of the message.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::cli::remote::mcp::host_message::HostMessage;

const VERSION_OF_REQUEST: &str = "io.modelcontextprotocol/protocolVersion";

/// The headers of a message. `agreed` is the version that `initialize` was answered with, where the host began so.
pub fn headers(message: &HostMessage, agreed: Option<&str>) -> Vec<(&'static str, String)> {
    let mut headers = vec![("accept", "application/json, text/event-stream".to_owned())];
    let said = message.param("_meta").and_then(|meta| meta.get(VERSION_OF_REQUEST)).and_then(Value::as_str);
    let version = match message.method() {
        "initialize" => said,
        _ => said.or(agreed),
    };
    // one that is no header is the service's to refuse
    headers.extend(version.filter(|version| is_plain(version)).map(|version| ("mcp-protocol-version", version.into())));
    if said.is_some() {
        headers.push(("mcp-method", encoded(message.method())));
        headers.extend(name_of(message).map(|name| ("mcp-name", encoded(name))));
    }
    headers
}

/// The parameter that names what a request is about.
fn name_of(message: &HostMessage) -> Option<&str> {
    let field = match message.method() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        method if method.starts_with("tasks/") => "taskId",
        _ => return None,
    };
    message.param(field).and_then(Value::as_str)
}

/// A text as the value of a header: as it is, or in base64 where it would be changed on the way.
fn encoded(text: &str) -> String {
    match is_plain(text) && !text.starts_with("=?base64?") {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(message: Value, agreed: Option<&str>) -> Vec<(&'static str, String)> {
        let message = HostMessage::read(message.to_string().into_bytes()).unwrap();
        let mut headers = headers(&message, agreed);
        assert_eq!(headers.remove(0), ("accept", "application/json, text/event-stream".to_owned()));
        headers
    }

    fn call(method: &str, mut params: Value, version: &str) -> Value {
        params["_meta"] = json!({ VERSION_OF_REQUEST: version });
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
    }

    #[test]
    fn request_of_the_new_era_is_repeated_in_its_headers() {
        let version = ("mcp-protocol-version", "2026-07-28".to_owned());
        let method = |method: &str| ("mcp-method", method.to_owned());
        let name = |name: &str| ("mcp-name", name.to_owned());
        let list = call("tools/list", json!({}), "2026-07-28");
        // whatever was agreed on before
        assert_eq!(of(list, Some("2025-11-25")), [version.clone(), method("tools/list")]);
        for (called, field) in [
            ("tools/call", "name"),
            ("prompts/get", "name"),
            ("resources/read", "uri"),
            ("tasks/get", "taskId"),
            ("tasks/update", "taskId"),
            ("tasks/cancel", "taskId"),
        ] {
            let sent = of(call(called, json!({ field: "abc" }), "2026-07-28"), None);
            assert_eq!(sent, [version.clone(), method(called), name("abc")], "{called}");
        }
        for (text, sent) in [
            ("größe", "=?base64?Z3LDtsOfZQ==?="),
            (" a", "=?base64?IGE=?="),
            ("a\nb", "=?base64?YQpi?="),
            ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
            ("a b", "a b"),
        ] {
            let headers = of(call("tools/call", json!({ "name": text }), "2026-07-28"), None);
            assert_eq!(headers[2], name(sent), "{text:?}");
        }
        let unnamed = of(call("tools/call", json!({ "name": 7 }), "2026-07-28"), None);
        assert_eq!(unnamed, [version, method("tools/call")]);
        assert_eq!(of(call("tools/list", json!({}), "a\nb"), None), [method("tools/list")]);
    }

    #[test]
    fn request_of_the_old_era_has_the_version_that_was_agreed_on() {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        assert!(of(list.clone(), None).is_empty());
        assert_eq!(of(list, Some("2025-06-18")), [("mcp-protocol-version", "2025-06-18".to_owned())]);
        let begin = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
        assert!(of(begin, Some("2025-06-18")).is_empty(), "it begins anew");
    }
}
