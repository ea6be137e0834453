//! The gate's first check: the stop switch and disabled tenants. Runs of halted tenants are not started, so this is for
//! one that was started in the moment of the order: it goes back into the queue.

use futures::future::BoxFuture;

use crate::agent::gate::{GateCheck, GateMessage, GateRefusal};
use crate::store::Store;

/// Asks the store for halts.
pub struct HaltCheck(pub Store);

impl GateCheck for HaltCheck {
    fn name(&self) -> &'static str {
        "halt"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(async move {
            match self.0.halts().await {
                Ok(halts) if halts.halt_of(message.tenant).is_none() => Ok(()),
                // where it is not known, nothing begins either
                Ok(_) | Err(_) => Err(GateRefusal::NotNow),
            }
        })
    }
}
