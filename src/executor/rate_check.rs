//! The gate's check of rates: so many messages of a tenant go to models within a minute, over all instances. Those
//! beyond are skipped before a model is asked. A message counts once, however often its run or its step is tried.

use futures::future::BoxFuture;

use crate::agent::gate::rates::RateSettings;
use crate::agent::gate::{GateCheck, GateMessage, GateRefusal};
use crate::agent::{FROM_AGENT, STEP};
use crate::store::Store;

/// Counts by the meter of quotas.
pub struct RateCheck {
    /// Where messages are counted.
    pub store: Store,
    /// The limits.
    pub rates: RateSettings,
}

impl RateCheck {
    /// The limit for a message, and the reason of a run beyond it; `None`: it is not counted.
    fn limit_for(&self, message: &GateMessage<'_>) -> Option<(u64, &'static str)> {
        // a call of an agent is part of a message that was counted
        let is_counted = message.source != FROM_AGENT && !message.is_repeated;
        self.rates.limit_of(message.tenant).filter(|_| is_counted)
    }
}

impl GateCheck for RateCheck {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(async move {
            let Some((limit, reason)) = self.limit_for(&message) else { return Ok(()) };
            match self.store.take_model_message(message.tenant, limit).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(GateRefusal::Skip(reason.into())),
                // where it can't be counted, it may be later
                Err(_) => Err(GateRefusal::NotNow),
            }
        })
    }

    fn withdraw(&self, message: GateMessage<'_>) {
        // a step that comes again has begun by then, and is not counted any more
        if message.source != STEP && self.limit_for(&message).is_some() {
            self.store.give_model_message_back(message.tenant);
        }
    }
}
