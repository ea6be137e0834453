//! The gate's check of rates: so many messages of a tenant go to models within a minute, over all instances. Those beyond
//! are skipped before a model is asked.

use futures::future::BoxFuture;

use crate::agent::FROM_AGENT;
use crate::agent::gate::rates::RateSettings;
use crate::agent::gate::{GateCheck, GateMessage, GateRefusal};
use crate::store::Store;

/// Counts by the meter of quotas.
pub struct RateCheck {
    /// Where messages are counted.
    pub store: Store,
    /// The limits.
    pub rates: RateSettings,
}

impl GateCheck for RateCheck {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(async move {
            // a call of an agent is part of a message that was counted
            let limited = self.rates.limit_of(message.tenant).filter(|_| message.source != FROM_AGENT);
            let Some((limit, reason)) = limited else { return Ok(()) };
            match self.store.take_model_message(message.tenant, limit).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(GateRefusal::Skip(reason.into())),
                // where it can't be counted, it may be later
                Err(_) => Err(GateRefusal::NotNow),
            }
        })
    }
}
