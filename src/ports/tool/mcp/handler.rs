//! Requests and notices of an MCP server: it may tell that its list has changed, and nothing else.
//!
//! No capability of a client is declared. A request for one is refused as unknown, never answered in a person's place.

use std::sync::Arc;

use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ErrorCode, ErrorData, Implementation,
    ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use tokio::sync::Notify;

/// The client's side of a connection, for what its server asks and tells.
pub struct McpHandler {
    changed: Arc<Notify>,
    config: ClientConfig,
}

impl McpHandler {
    /// Wakes `changed` whenever the list of tools has changed; speaks this version where there is a handshake.
    pub fn new(changed: Arc<Notify>, version: ProtocolVersion) -> McpHandler {
        let name = Implementation::new("reveille", env!("CARGO_PKG_VERSION"));
        let config = ClientConfig::new(ClientCapabilities::default(), name).with_protocol_version(version);
        McpHandler { changed, config }
    }
}

impl ClientHandler for McpHandler {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    /// The library would decline, which would be an answer for a person.
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(unsupported("elicitation"))
    }

    /// The library would answer that there are no roots.
    #[allow(deprecated)] // the revision of 2026 has no roots, and servers of before may ask for them
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(unsupported("roots"))
    }
}

fn unsupported(name: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("{name}: not supported"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_names_itself_and_declares_no_capability() {
        let handler = McpHandler::new(Arc::default(), ProtocolVersion::V_2025_11_25);
        let info = serde_json::to_value(handler.get_info()).unwrap();
        assert_eq!(
            info,
            serde_json::json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "reveille", "version": env!("CARGO_PKG_VERSION") },
            })
        );
    }

    #[test]
    fn request_that_only_a_person_could_answer_is_refused_as_unknown() {
        assert_eq!(unsupported("elicitation").code, ErrorCode::METHOD_NOT_FOUND);
    }
}
