//! The gate's check of quotas: no message of a tenant that has stored all that it may begins a run, and none of its
//! chats in a minute whose fires are used up. They are skipped before a model is asked.
//!
//! A message of a chat counts with the first execution of its run. One that was lost on its way to the gate is not
//! counted later: to know of it would take a write for each message.

use futures::future::BoxFuture;

use crate::agent::gate::{GateCheck, GateMessage, GateRefusal};
use crate::agent::{CHAT, FROM_AGENT, STEP};
use crate::domain::quota::REASON_QUOTA;
use crate::store::Store;

/// Counts by the quotas of tenants.
pub struct QuotaCheck(pub Store);

/// Whether the message is a fire of this minute.
fn is_counted(message: &GateMessage<'_>) -> bool {
    message.source == CHAT && !message.is_repeated
}

impl GateCheck for QuotaCheck {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(async move {
            // they are parts of runs that have begun, and those come to their end
            if [FROM_AGENT, STEP].contains(&message.source) {
                return Ok(());
            }
            match self.0.admit_message(message.tenant, is_counted(&message)).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(GateRefusal::Skip(REASON_QUOTA.into())),
                // where it is not known, it may be later
                Err(_) => Err(GateRefusal::NotNow),
            }
        })
    }

    fn withdraw(&self, message: GateMessage<'_>) {
        if is_counted(&message) {
            self.0.give_fires_back(message.tenant, 1);
        }
    }
}
