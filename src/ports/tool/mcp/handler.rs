//! Requests and notices of an MCP server: it may tell that its list has changed and how far a call is, and ask a person
//! in the middle of a call.
//!
//! No other capability of a client is declared, and a request for one is refused as unknown. Nothing is answered in a
//! person's place.

use std::sync::Arc;

use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorCode, ErrorData,
    FormElicitationCapability, Implementation, ProgressNotificationParam, ProtocolVersion, UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext, RoleClient};
use tokio::sync::Notify;

use crate::ports::tool::mcp::connection::live_calls::LiveCalls;
use crate::ports::tool::mcp::connection::progress::ProgressRoutes;

/// The client's side of a connection, for what its server asks and tells.
pub struct McpHandler {
    changed: Arc<Notify>,
    live: Arc<LiveCalls>,
    progress: ProgressRoutes,
    config: ClientConfig,
}

impl McpHandler {
    /// Wakes `changed` whenever the list of tools has changed, and hands questions and progress to the calls under way;
    /// speaks this version where there is a handshake.
    pub fn new(
        changed: Arc<Notify>,
        live: Arc<LiveCalls>,
        progress: ProgressRoutes,
        version: ProtocolVersion,
    ) -> McpHandler {
        let name = Implementation::new("reveille", env!("CARGO_PKG_VERSION"));
        let config = ClientConfig::new(capabilities(), name).with_protocol_version(version);
        McpHandler { changed, live, progress, config }
    }
}

impl ClientHandler for McpHandler {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.put(params);
    }

    /// The library would decline, which would be an answer for a person.
    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let origin = context.extensions.get::<InboundStreamOrigin>().cloned();
        Ok(self.live.answer(asked, origin.as_ref()).await)
    }

    /// The library would answer that there are no roots.
    #[allow(deprecated)] // the revision of 2026 has no roots, and servers of before may ask for them
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(unsupported("roots"))
    }
}

/// A person may be asked by a form, and sent to a page.
fn capabilities() -> ClientCapabilities {
    let asks = ElicitationCapability::new().with_form(FormElicitationCapability::new());
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(asks.with_url(UrlElicitationCapability::new()));
    capabilities
}

fn unsupported(name: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("{name}: not supported"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_names_itself_and_says_that_a_person_may_be_asked_and_nothing_more() {
        let handler =
            McpHandler::new(Arc::default(), Arc::default(), Default::default(), ProtocolVersion::V_2025_11_25);
        let info = serde_json::to_value(handler.get_info()).unwrap();
        assert_eq!(
            info,
            serde_json::json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "elicitation": { "form": {}, "url": {} } },
                "clientInfo": { "name": "reveille", "version": env!("CARGO_PKG_VERSION") },
            })
        );
    }

    #[test]
    fn request_for_what_is_not_there_is_refused_as_unknown() {
        assert_eq!(unsupported("roots").code, ErrorCode::METHOD_NOT_FOUND);
    }
}
