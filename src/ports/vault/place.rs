//! The places of secrets that lie within other things, or are looked for by two: who seals one, who opens it and who
//! puts it under another master key all name it from here, so that none of them looks for it elsewhere.

use std::borrow::Cow;

use aws_lc_rs::digest::{SHA256, digest};
use uuid::Uuid;

use crate::ports::vault::Context;

/// A place, with what its account is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedPlace<'a> {
    tenant: &'a str,
    service: &'static str,
    account: Cow<'a, str>,
    field: &'a str,
}

impl<'a> SealedPlace<'a> {
    /// The place of the signing secret of messages to a recipient's webhook.
    pub fn webhook(recipient: &'a str) -> SealedPlace<'a> {
        SealedPlace::of_recipient(recipient, "webhook", "secret")
    }

    /// The address of a recipient's incoming webhook of Slack.
    pub fn slack(recipient: &'a str) -> SealedPlace<'a> {
        SealedPlace::of_recipient(recipient, "slack", "webhook_url")
    }

    /// The authentication secret of a recipient's browser, good for this endpoint only.
    pub fn push(recipient: &'a str, endpoint: &str) -> SealedPlace<'a> {
        SealedPlace::of_recipient(
            recipient,
            format!("push/{}", hex::encode(digest(&SHA256, endpoint.as_bytes()))),
            "auth",
        )
    }

    /// A secret in the action of a task, by its executor and its name there.
    pub fn task(tenant: &'a str, executor: &'a str, field: &'a str) -> SealedPlace<'a> {
        SealedPlace { tenant, service: "task", account: executor.into(), field }
    }

    /// A message to the sessions that a tenant has open.
    pub fn live(tenant: &'a str, message: Uuid) -> SealedPlace<'a> {
        SealedPlace { tenant, service: "live", account: message.to_string().into(), field: "body" }
    }

    fn of_recipient(recipient: &'a str, account: impl Into<Cow<'a, str>>, field: &'a str) -> SealedPlace<'a> {
        SealedPlace { tenant: recipient, service: "recipient", account: account.into(), field }
    }

    /// The context to which a secret in this place is bound.
    pub fn context(&self) -> Context<'_> {
        Context { tenant: self.tenant, service: self.service, account: &self.account, field: self.field }
    }
}
