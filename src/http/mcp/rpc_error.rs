//! The errors of JSON-RPC, each with its code and its HTTP status.
//!
//! They are faults of the request itself. A tool that refuses, or that fails, answers a result that says so.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::base::invalid::shorten_middle;
use crate::http::mcp::version;

/// Longest message of an error, in bytes: what a request holds is never sent back whole.
const MESSAGE_LIMIT: usize = 1_000;
/// Longest version that an error names, in bytes.
const REQUESTED_BYTES: usize = 100;

/// Why a message was not answered with a result.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    /// The code of JSON-RPC, or of MCP.
    pub code: i64,
    /// A sentence that says what would be right.
    pub message: String,
    /// More of it, for programs.
    pub data: Option<Value>,
    /// In the new era; in the old one it is 200.
    pub status: StatusCode,
}

impl RpcError {
    fn new(code: i64, status: StatusCode, message: impl Into<String>) -> RpcError {
        RpcError { code, message: shorten_middle(message.into(), MESSAGE_LIMIT), data: None, status }
    }

    /// The body is no JSON.
    pub fn parse(why: &str) -> RpcError {
        RpcError::new(-32700, StatusCode::BAD_REQUEST, why)
    }

    /// The body is no request.
    pub fn invalid_request(why: impl Into<String>) -> RpcError {
        RpcError::new(-32600, StatusCode::BAD_REQUEST, why)
    }

    /// There is no such method in the client's revision.
    pub fn method_not_found(method: &str) -> RpcError {
        let message = format!("there is no method `{method}` here");
        RpcError::new(-32601, StatusCode::NOT_FOUND, message)
    }

    /// The parameters of a method are not right.
    pub fn invalid_params(why: impl Into<String>) -> RpcError {
        RpcError::new(-32602, StatusCode::OK, why)
    }

    /// The `_meta` of a request is not right.
    pub fn malformed_meta(why: impl Into<String>) -> RpcError {
        RpcError::new(-32602, StatusCode::BAD_REQUEST, why)
    }

    /// A header says something else than the body.
    pub fn header_mismatch(why: impl Into<String>) -> RpcError {
        RpcError::new(-32020, StatusCode::BAD_REQUEST, why)
    }

    /// The client has not declared what the request takes, `{"elicitation": {}}` for example.
    pub fn missing_capability(required: Value) -> RpcError {
        let message = "this request is for clients that declare the capability in `data`";
        let error = RpcError::new(-32021, StatusCode::BAD_REQUEST, message);
        error.with_data(json!({ "requiredCapabilities": required }))
    }

    /// The version of the protocol is none of ours.
    pub fn unsupported_version(requested: &str) -> RpcError {
        let requested = shorten_middle(requested.to_owned(), REQUESTED_BYTES);
        let supported: Vec<&str> = version::all().collect();
        let message = format!("version `{requested}` of the protocol is not spoken here; use one of `data.supported`");
        let error = RpcError::new(-32022, StatusCode::BAD_REQUEST, message);
        error.with_data(json!({ "supported": supported, "requested": requested }))
    }

    /// The API refuses, outside of tools.
    pub fn refused(why: impl Into<String>) -> RpcError {
        RpcError::new(-32000, StatusCode::OK, why)
    }

    /// A fault of ours. `log` is written to the log and not told.
    pub fn internal(log: &str) -> RpcError {
        tracing::error!(cause = log, "a message of an MCP client failed");
        RpcError::new(-32603, StatusCode::OK, "the fault is ours, and it is in the log; try again in a minute")
    }

    /// With more of it for programs.
    pub fn with_data(self, data: Value) -> RpcError {
        RpcError { data: Some(data), ..self }
    }

    /// The message that answers the request with this id; without one nobody knows which request it was.
    pub fn into_message(self, id: Option<Value>) -> Value {
        let mut error =
            Map::from_iter([("code".to_owned(), self.code.into()), ("message".to_owned(), self.message.into())]);
        error.extend(self.data.map(|data| ("data".to_owned(), data)));
        let mut message = Map::from_iter([("jsonrpc".to_owned(), Value::from("2.0"))]);
        message.extend(id.map(|id| ("id".to_owned(), id)));
        message.insert("error".to_owned(), error.into());
        message.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_nothing_that_is_not_there() {
        let plain = RpcError::invalid_params("`name` is missing");
        let expected =
            json!({ "jsonrpc": "2.0", "id": 7, "error": { "code": -32602, "message": "`name` is missing" } });
        assert_eq!(plain.clone().into_message(Some(json!(7))), expected);
        assert!(plain.into_message(None).get("id").is_none());
        let unsupported = RpcError::unsupported_version("v999").into_message(Some(json!("a")));
        assert_eq!(unsupported["error"]["data"]["requested"], "v999");
        assert_eq!(unsupported["error"]["data"]["supported"].as_array().unwrap().len(), 5);
        let missing = RpcError::missing_capability(json!({ "elicitation": {} }));
        assert_eq!((missing.code, missing.status.as_u16()), (-32021, 400));
        assert_eq!(missing.data, Some(json!({ "requiredCapabilities": { "elicitation": {} } })));
    }

    #[test]
    fn text_of_a_request_is_not_sent_back_whole() {
        let long = "x".repeat(100_000);
        for error in [
            RpcError::parse(&long),
            RpcError::method_not_found(&long),
            RpcError::unsupported_version(&long),
            RpcError::refused(long.clone()),
        ] {
            let bytes = error.into_message(None).to_string().len();
            assert!(bytes < 2_000, "{bytes}");
        }
    }
}
