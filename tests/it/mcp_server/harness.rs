//! An MCP client of these tests: what it sends is what a host would, in either era.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tower::ServiceExt;

const NEWEST: &str = "2026-07-28";
const OLD: &str = "2025-11-25";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A client with a token. It can do nothing but what it is told that it can.
pub struct McpHost {
    router: Router,
    token: String,
    capabilities: Value,
    version: &'static str,
}

impl McpHost {
    /// A client of the new era.
    pub fn new(router: Router, token: &str) -> McpHost {
        McpHost { router, token: token.to_owned(), capabilities: json!({}), version: NEWEST }
    }

    /// The client in the era of `initialize`, which it has behind it.
    pub fn old(self) -> McpHost {
        McpHost { version: OLD, ..self }
    }

    /// It follows tasks.
    pub fn with_tasks(mut self) -> McpHost {
        self.capabilities["extensions"][TASKS] = json!({});
        self
    }

    /// It shows forms.
    pub fn with_forms(mut self) -> McpHost {
        self.capabilities["elicitation"]["form"] = json!({});
        self
    }

    /// It opens addresses.
    pub fn with_links(mut self) -> McpHost {
        self.capabilities["elicitation"]["url"] = json!({});
        self
    }

    /// Sends a request as the era has it; status and message of the answer, which has the request's id.
    pub async fn send(&self, method: &str, params: Value) -> (u16, Value) {
        let id = fastrand::u32(..);
        let mut params = if params.is_null() { json!({}) } else { params };
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
            ("mcp-protocol-version", self.version.to_owned()),
        ];
        if self.version == NEWEST {
            headers.push(("mcp-method", method.to_owned()));
            headers.extend(name_of(method, &params).map(|name| ("mcp-name", name)));
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(self.version);
            params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "a host", "version": "1" });
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let (status, answer) = self.send_raw(&headers, &message.to_string()).await;
        if answer["jsonrpc"] == "2.0" {
            assert_eq!(answer["id"], json!(id), "{method}: {answer:#}");
        }
        (status, answer)
    }

    /// Sends a body with these headers and the token; status and body of the answer, null where that is no JSON.
    pub async fn send_raw(&self, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let mut request = Request::builder().method("POST").uri("/mcp");
        request = request.header("authorization", format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.expect("a whole answer");
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// The result of a request.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn result(&self, method: &str, params: Value) -> Value {
        let (status, answer) = self.send(method, params).await;
        assert_eq!((status, answer.get("error")), (200, None), "{method}: {answer:#}");
        let result = answer["result"].clone();
        assert!(result.is_object(), "{method}: {answer:#}");
        result
    }

    /// Status, code and error of a request.
    ///
    /// # Panics
    /// If it is answered with a result, or not in the protocol.
    pub async fn error(&self, method: &str, params: Value) -> (u16, i64, Value) {
        let (status, answer) = self.send(method, params).await;
        let code = answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {status} {answer:#}"));
        assert!(answer["error"]["message"].is_string() && answer.get("result").is_none(), "{method}: {answer:#}");
        (status, code, answer["error"].clone())
    }

    /// The result of a tool, whatever it says.
    pub async fn tool(&self, name: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    /// The data that a tool has found or done.
    ///
    /// # Panics
    /// If it did nothing, or has not done it yet.
    pub async fn done(&self, name: &str, arguments: Value) -> Value {
        let result = self.tool(name, arguments).await;
        assert_ne!(result["isError"], true, "{name}: {result:#}");
        let data = result["structuredContent"].clone();
        assert!(data.is_object(), "{name}: {result:#}");
        data
    }

    /// The words in which a tool refuses.
    ///
    /// # Panics
    /// If it does not.
    pub async fn refused(&self, name: &str, arguments: Value) -> String {
        let result = self.tool(name, arguments).await;
        assert_eq!(result["isError"], true, "{name}: {result:#}");
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{name}: {result:#}")).to_owned()
    }
}

/// The value of `Mcp-Name`, where the method has one.
fn name_of(method: &str, params: &Value) -> Option<String> {
    let field = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    let name = params[field].as_str()?;
    let is_plain = name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && name.trim() == name;
    Some(if is_plain { name.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(name)) })
}
