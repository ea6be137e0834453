//! A request of an MCP client, and the one way by which it has an effect: the API of this process, in the caller's
//! name.
//!
//! So scopes, tenants, quotas, checks and the record are those of the API, and an effect happens once where the client
//! has sent a key.

use aws_lc_rs::digest::{SHA256, digest};
use axum::http::Method;
use serde_json::Value;

use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::in_process::{CallError, InProcessApi};
use crate::http::mcp::client::McpCaller;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::request::AuthenticatedCaller;

/// A request of an MCP client: the service that answers it, who asks, and what the client can do.
#[derive(Clone)]
pub struct McpCall {
    /// The service.
    pub state: HttpState,
    /// The caller, as their token has it.
    pub caller: AuthenticatedCaller,
    /// The API, for the caller's requests.
    pub api: InProcessApi,
    /// The client.
    pub client: McpCaller,
}

impl McpCall {
    /// Reads.
    ///
    /// # Errors
    /// The problem with which the API answers; so has each of these.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, CallError> {
        self.ask(Method::GET, &address(path, query), None, None).await
    }

    /// Makes or does something. Where the client or the model has sent a key, it happens once.
    pub async fn post(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: Value,
        key: Option<&str>,
    ) -> Result<Value, CallError> {
        let of_client = || self.client.key.as_ref().map(|key| key_at(path, key));
        let key = key.map(str::to_owned).or_else(of_client);
        self.ask(Method::POST, &address(path, query), Some(body), key.as_deref()).await
    }

    /// Changes something.
    pub async fn patch(&self, path: &[&str], body: Value) -> Result<Value, CallError> {
        self.ask(Method::PATCH, &address(path, &[]), Some(body), None).await
    }

    /// Removes something.
    pub async fn delete(&self, path: &[&str]) -> Result<Value, CallError> {
        self.ask(Method::DELETE, &address(path, &[]), None, None).await
    }

    async fn ask(
        &self,
        method: Method,
        address: &str,
        body: Option<Value>,
        key: Option<&str>,
    ) -> Result<Value, CallError> {
        self.api.call_as(&self.caller, (method, address), body, key).await
    }

    /// Computes in the caller's turn where it takes long.
    pub async fn compute<T: Send + 'static>(
        &self,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RpcError> {
        let computed = self.state.compute.run_if_costly(self.caller.computes_for(), steps, work).await;
        computed.map_err(|panicked| RpcError::internal(&panicked.to_string()))
    }

    /// Whether the caller's token permits this.
    pub fn holds(&self, permission: Permission) -> bool {
        self.caller.holds(permission)
    }

    /// Whether the caller sees all tenants, and so has to name one.
    pub fn sees_all(&self) -> bool {
        matches!(self.caller.scope, Scope::Every)
    }
}

/// The key of a request whose client has sent one with its call: a call may take several requests. It is hashed, since
/// both parts of it may be long.
fn key_at(path: &[&str], key: &str) -> String {
    let written = format!("POST {}\n{key}", address(path, &[]));
    format!("mcp:{}", hex::encode(digest(&SHA256, written.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_client_is_one_of_each_address_and_short() {
        let long = "k".repeat(200);
        let key = key_at(&["v1", "tasks", &long, "run"], &long);
        assert!(key.starts_with("mcp:") && key.len() <= 255, "{key}");
        assert_eq!(key, key_at(&["v1", "tasks", &long, "run"], &long));
        assert_ne!(key, key_at(&["v1", "tasks", &long, "pause"], &long));
        assert_ne!(key, key_at(&["v1", "tasks", &long, "run"], "another"));
    }
}
