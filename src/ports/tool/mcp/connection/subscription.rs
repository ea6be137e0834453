//! The subscription to changes of a server's list of tools, which servers of the new era ask for.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ErrorCode, SubscriptionFilter};
use rmcp::service::{Peer, RoleClient, ServiceError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::base::clock;

/// How long after its end a subscription is asked for again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Wakes `changed` at each change of the list, until the connection has closed.
pub(super) async fn watch(peer: Peer<RoleClient>, changed: Arc<Notify>, closed: CancellationToken) {
    closed.run_until_cancelled(subscribe(&peer, &changed)).await;
}

/// Subscribes again and again; ends where the server knows no subscriptions.
async fn subscribe(peer: &Peer<RoleClient>, changed: &Notify) {
    loop {
        match follow(peer, changed).await {
            Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => return,
            // the next subscription tells of what this one did not
            _ => clock::pause(AGAIN_AFTER).await,
        }
    }
}

/// Follows one subscription to its end. It begins with a change: there may have been one since the list was read.
async fn follow(peer: &Peer<RoleClient>, changed: &Notify) -> Result<(), ServiceError> {
    let mut subscription = peer.listen(SubscriptionFilter::builder().tools_list_changed().build()).await?;
    changed.notify_one();
    while subscription.next().await?.is_some() {
        changed.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::ports::tool::mcp::connection::fixture::NewServer;

    #[tokio::test]
    async fn subscription_that_is_there_counts_as_a_change() {
        let (mut server, connection) = NewServer::connected().await;
        let listen = server.next("subscriptions/listen").await;
        assert!(connection.changed().now_or_never().is_none());
        let meta = json!({ "io.modelcontextprotocol/subscriptionId": listen["id"] });
        let params = json!({ "_meta": meta, "notifications": { "toolsListChanged": true } });
        let method = "notifications/subscriptions/acknowledged";
        server.say(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        timeout(Duration::from_secs(60), connection.changed()).await.expect("a change");
    }
}
