//! The envelope of JSON-RPC 2.0: a message is a request or a notification, and nothing else is taken.

use serde_json::{Map, Value};

use crate::http::mcp::rpc_error::RpcError;

/// Longest method, in bytes.
const METHOD_BYTES: usize = 100;
/// Longest id that is a text, in bytes.
const ID_BYTES: usize = 256;

/// A message of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum RpcMessage {
    /// It has an id, and an answer.
    Request(RpcRequest),
    /// It has neither.
    Notification,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcRequest {
    /// A text or a whole number.
    pub id: Value,
    /// The method.
    pub method: String,
    /// Its parameters; empty where there are none.
    pub params: Map<String, Value>,
}

/// Reads a message. An error comes with the id of the request where it has one.
pub fn read(value: Value) -> Result<RpcMessage, (Option<Value>, RpcError)> {
    let mut message = match value {
        Value::Object(message) => message,
        Value::Array(_) => return Err(refused(None, "send each message by itself; batches are not taken")),
        _ => return Err(refused(None, "a message is an object with `jsonrpc`, `id`, `method` and `params`")),
    };
    if !message.contains_key("method") && (message.contains_key("result") || message.contains_key("error")) {
        // its id is one of ours, of which there are none
        return Err(refused(None, "no answer is expected: clients are asked nothing here"));
    }
    let id = match message.remove("id") {
        None => None,
        Some(id) if is_id(&id) => Some(id),
        Some(_) => {
            let why = format!("`id` must be a whole number or a text of at most {ID_BYTES} bytes");
            return Err(refused(None, why));
        }
    };
    let fault = |why: String| Err(refused(id.clone(), why));
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return fault("`jsonrpc` must be \"2.0\"".to_owned());
    }
    let method = match message.remove("method") {
        Some(Value::String(method)) if (1..=METHOD_BYTES).contains(&method.len()) => method,
        _ => return fault(format!("`method` must be a text of 1 to {METHOD_BYTES} bytes")),
    };
    let params = match message.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return fault("`params` must be an object, or absent".to_owned()),
    };
    Ok(match id {
        Some(id) => RpcMessage::Request(RpcRequest { id, method, params }),
        None => RpcMessage::Notification,
    })
}

fn refused(id: Option<Value>, why: impl Into<String>) -> (Option<Value>, RpcError) {
    (id, RpcError::invalid_request(why))
}

fn is_id(id: &Value) -> bool {
    match id {
        Value::String(id) => id.len() <= ID_BYTES,
        id => id.is_i64() || id.is_u64(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(value: Value) -> (Option<Value>, i64) {
        let (id, error) = read(value).unwrap_err();
        assert_eq!(error.status.as_u16(), 400);
        (id, error.code)
    }

    #[test]
    fn request_has_an_id_and_a_notification_has_none() {
        let request = json!({ "jsonrpc": "2.0", "id": "a", "method": "ping" });
        let expected = RpcRequest { id: json!("a"), method: "ping".into(), params: Map::new() };
        assert_eq!(read(request), Ok(RpcMessage::Request(expected)));
        let request = json!({ "jsonrpc": "2.0", "id": -1, "method": "tools/list", "params": { "a": 1 }, "more": true });
        let Ok(RpcMessage::Request(request)) = read(request) else { panic!("no request") };
        assert_eq!((request.id, request.params["a"].clone()), (json!(-1), json!(1)));
        let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(read(notification), Ok(RpcMessage::Notification));
    }

    #[test]
    fn fault_comes_with_the_id_where_there_is_one() {
        for value in [json!([]), json!([{ "jsonrpc": "2.0", "id": 1, "method": "ping" }]), json!(null), json!("ping")] {
            assert_eq!(fault(value), (None, -32600));
        }
        for (field, value) in [
            ("jsonrpc", json!("1.0")),
            ("jsonrpc", json!(2.0)),
            ("method", json!(7)),
            ("method", json!("")),
            ("params", json!([])),
            ("params", json!(null)),
        ] {
            let mut request = json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" });
            request[field] = value;
            assert_eq!(fault(request), (Some(json!(7)), -32600), "{field}");
        }
        assert_eq!(fault(json!({ "jsonrpc": "2.0", "id": 7 })), (Some(json!(7)), -32600));
    }

    #[test]
    fn answer_is_no_message_of_a_client() {
        assert_eq!(fault(json!({ "jsonrpc": "2.0", "id": 7, "result": {} })), (None, -32600));
        assert_eq!(
            fault(json!({ "jsonrpc": "2.0", "id": 7, "error": { "code": 1, "message": "no" } })),
            (None, -32600)
        );
    }

    #[test]
    fn id_is_a_whole_number_or_a_text_up_to_its_length() {
        let of = |id: Value| read(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })).is_ok();
        assert!(of(json!(0)) && of(json!(u64::MAX)) && of(json!("")) && of(json!("x".repeat(ID_BYTES))));
        for id in [json!(null), json!(1.5), json!({}), json!([1]), json!(true), json!("x".repeat(ID_BYTES + 1))] {
            assert!(!of(id.clone()), "{id}");
        }
    }

    #[test]
    fn method_is_read_at_its_longest_and_refused_one_byte_beyond() {
        let of = |bytes: usize| read(json!({ "jsonrpc": "2.0", "id": 1, "method": "x".repeat(bytes) })).is_ok();
        assert!(of(METHOD_BYTES) && !of(METHOD_BYTES + 1));
    }
}
