//! The tools of a connection of one tenant, listed again when they change. They are offered to nobody: the library
//! learns from a list of the same connection which arguments of a call go into headers.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::base::clock::pause;
use crate::ports::tool::mcp::connection::{ConnectionEvents, McpConnection};
use crate::ports::tool::mcp::listing::{LISTED_WITHIN, list_within};
use crate::ports::tool::mcp::settings::PreparedServer;

/// Lists of one connection begin so far apart at least, whatever the server says of changes. Each is a use of the
/// tenant's credential, which is on the record.
const PACE: Duration = Duration::from_secs(5);

/// Lists the tools again after each change, until the connection has closed. It keeps no connection open.
pub async fn relist(connection: Weak<McpConnection>, events: ConnectionEvents, server: Arc<PreparedServer>) {
    relist_at(PACE, connection, events, server).await;
}

async fn relist_at(
    pace: Duration,
    connection: Weak<McpConnection>,
    events: ConnectionEvents,
    server: Arc<PreparedServer>,
) {
    let mut listed = Instant::now();
    while events.next_change().await {
        pause(pace.saturating_sub(listed.elapsed())).await;
        let Some(connection) = connection.upgrade() else { return };
        listed = Instant::now();
        // one that can't be had changes nothing: calls go out as they did
        if let Err(fault) = list_within(&connection, &server, LISTED_WITHIN).await {
            tracing::debug!(server = server.name, fault = fault.word(), "a tenant's tools can't be listed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::connection::ServerEra;
    use crate::ports::tool::mcp::connection::fixture::OldServer;
    use crate::ports::tool::mcp::settings::{McpServerDefinition, read};

    #[tokio::test]
    async fn tools_are_listed_again_after_each_change_until_the_connection_is_dropped() {
        let definition = json!({ "name": "remote", "url": "https://mcp.example.org/mcp", "credential": "remote" });
        let definition: McpServerDefinition = serde_json::from_value(definition).unwrap();
        let prepared = read(&[definition], &Egress::new(&Settings::default()).unwrap()).unwrap().remove(0);
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let connection = Arc::new(connection);
        let events = connection.events();
        let listing = tokio::spawn(relist_at(Duration::ZERO, Arc::downgrade(&connection), events, prepared));
        for _ in 0..2 {
            server.say_changed();
            server.next_list().await;
        }
        drop(connection);
        listing.await.unwrap();
    }
}
