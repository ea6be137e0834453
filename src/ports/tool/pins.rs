//! The place where the accepted definitions of tools are kept: a definition that a server lists is offered once it is
//! accepted.

use futures::future::BoxFuture;

use crate::domain::approval::{PinVerdict, SeenDefinition};

/// Judges definitions by those that were accepted.
pub trait ToolPins: Send + Sync {
    /// The verdict on each definition that a server lists, in their order.
    fn judge<'a>(
        &'a self,
        server: &'a str,
        seen: &'a [SeenDefinition],
    ) -> BoxFuture<'a, Result<Vec<PinVerdict>, PinsAway>>;

    /// A number that is another one after each acceptance, on whichever instance.
    fn version(&self) -> BoxFuture<'_, Result<i64, PinsAway>>;
}

/// The place where pins are kept is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the place where accepted definitions of tools are kept is away")]
pub struct PinsAway;
