//! The store, as lists of MCP servers see it: the definitions of tools that the operator has accepted.

use futures::future::BoxFuture;

use crate::domain::approval::{PinVerdict, SeenDefinition};
use crate::ports::tool::pins::{PinsAway, ToolPins};
use crate::store::{Store, StoreError, with_timeout};

/// Pins that are kept in a store.
#[derive(Clone)]
pub struct StorePins(pub Store);

impl ToolPins for StorePins {
    fn judge<'a>(
        &'a self,
        server: &'a str,
        seen: &'a [SeenDefinition],
    ) -> BoxFuture<'a, Result<Vec<PinVerdict>, PinsAway>> {
        Box::pin(async move { with_timeout(self.0.judge_tools(server, seen)).await.map_err(away) })
    }

    fn version(&self) -> BoxFuture<'_, Result<i64, PinsAway>> {
        Box::pin(async move { with_timeout(self.0.tool_pin_version()).await.map_err(away) })
    }
}

/// It is asked every few seconds: that it is away is logged once, by whoever lists.
fn away(error: StoreError) -> PinsAway {
    tracing::debug!(%error, "the accepted definitions of tools can't be read");
    PinsAway
}
