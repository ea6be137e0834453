//! All addresses of a recipient: read, made ready to be stored, shown without their secrets.

use serde_json::{Map, Value, json};

use super::push::{self, PushDraft};
use super::reading::{flag, only};
use super::secrets::Seal;
use super::slack::{self, SlackDraft};
use super::webhook::{self, WebhookDraft};
use super::{email, phone, telegram};
use crate::invalid::{Faults, did_you_mean};
use crate::notification::Addresses;

/// The addresses as they were asked for, checked.
#[derive(Debug, Clone, Default)]
pub struct AddressesDraft {
    /// Address of email.
    pub email: Option<String>,
    /// Phone number in E.164 form, such as `+4915112345678`.
    pub sms: Option<String>,
    /// Devices and topics for push messages.
    pub push: Vec<PushDraft>,
    /// Target of webhooks.
    pub webhook: Option<WebhookDraft>,
    /// Target in Slack.
    pub slack: Option<SlackDraft>,
    /// Id of the chat with the operator's bot.
    pub telegram: Option<String>,
    /// Messages go to open sessions.
    pub live: bool,
}

impl AddressesDraft {
    pub(super) fn read(kinds: &Map<String, Value>, faults: &mut Faults) -> AddressesDraft {
        only(kinds, "/addresses", &Addresses::KINDS, faults);
        AddressesDraft {
            email: email::read(kinds, faults),
            sms: phone::read(kinds, faults),
            push: push::read(kinds, faults),
            webhook: WebhookDraft::read(kinds, faults),
            slack: SlackDraft::read(kinds, faults),
            telegram: telegram::read(kinds, faults),
            live: flag(kinds, "live", "/addresses", faults),
        }
    }

    /// The addresses to be stored in the place of `old`: new secrets sealed, those that are not given kept.
    pub(super) fn settle<S: Seal>(self, old: Option<&Addresses>, seal: &S) -> Result<Addresses, S::Error> {
        let webhook = |draft: WebhookDraft| draft.settle(old.and_then(|old| old.webhook.as_ref()), seal);
        let slack = |draft: SlackDraft| draft.settle(old.and_then(|old| old.slack.as_ref()), seal);
        Ok(Addresses {
            email: self.email,
            sms: self.sms,
            push: push::settle(self.push, old.map_or(&[], |old| &old.push), seal)?,
            webhook: self.webhook.map(webhook).transpose()?,
            slack: self.slack.map(slack).transpose()?,
            telegram: self.telegram,
            live: self.live,
        })
    }
}

impl Addresses {
    /// The document that the API shows: everything but the secrets.
    pub fn public(&self) -> Value {
        let mut shown = Map::new();
        for kind in Addresses::KINDS.iter().filter(|kind| self.has(kind)) {
            shown.insert((*kind).to_owned(), self.public_of(kind));
        }
        Value::Object(shown)
    }

    fn public_of(&self, kind: &str) -> Value {
        match kind {
            "email" => json!(self.email),
            "sms" => json!(self.sms),
            "push" => self.push.iter().map(push::public).collect(),
            "webhook" => self.webhook.as_ref().map(webhook::public).unwrap_or_default(),
            "slack" => self.slack.as_ref().map(slack::public).unwrap_or_default(),
            "telegram" => json!(self.telegram),
            _ => json!(self.live),
        }
    }

    /// Why nothing is sent through a channel that there is no address for: it is no channel, or its address is missing.
    pub fn lack(&self, name: &str) -> String {
        if !Addresses::KINDS.contains(&name) {
            return format!("there is no channel `{name}`{}", did_you_mean(name, Addresses::KINDS));
        }
        let others: Vec<&str> = Addresses::KINDS.into_iter().filter(|kind| self.has(kind)).collect();
        let has = match others.as_slice() {
            [] => String::new(),
            others => format!("; it has one for `{}`", others.join("`, `")),
        };
        format!("the recipient has no address for `{name}`{has}")
    }

    /// Where this channel leads to, as a text that is another for every other place; `None` where there is no address.
    pub fn identity(&self, kind: &str) -> Option<String> {
        let address = match kind {
            // what is shown of an incoming webhook does not tell it from another
            "slack" => json!(self.slack),
            _ => self.public_of(kind),
        };
        self.has(kind).then(|| address.to_string())
    }
}
