//! A recipient: where a tenant is reached, in which order, in which time zone, and when not.
//!
//! Secrets among the addresses are write-only: they come in with a draft, are sealed before they are stored, and no
//! view shows them.

mod addresses;
mod email;
mod live;
mod phone;
mod push;
mod quiet;
mod reader;
mod reading;
mod secrets;
mod slack;
mod telegram;
mod webhook;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use push::{PushAddress, PushDraft};
pub use reader::Reader;
pub use secrets::{Seal, SecretPlace};
pub use slack::{SlackAddress, SlackDraft};
pub use webhook::{WebhookAddress, WebhookDraft, signing_keys};

use crate::base::field::{Flag, Form};
use crate::base::invalid::ValidationErrors;
use crate::domain::notification::address::address_kinds;
use crate::domain::notification::recipient::reading::{given, object, only, text, texts, unknown};
use crate::domain::notification::{AddressKind, MessageLanguage, QuietRules};
use crate::domain::trigger::zone::parse_zone;

address_kinds! {
    /// One plain mailbox.
    email: email::Email,
    /// E.164: `+` and up to 15 digits.
    sms: phone::Phone,
    /// Devices and topics; a message goes to each, and has arrived when one has it.
    push: push::Push,
    /// Target of webhooks.
    webhook: webhook::Webhook,
    /// Channel or user in Slack.
    slack: slack::Slack,
    /// A chat id, or `@name` of a channel.
    telegram: telegram::Telegram,
    /// Sessions that the tenant has open, if any.
    live: live::Live;
    tried as email, push, telegram, slack, sms, webhook, live
}

/// Fields that are shown besides, and nobody sets.
const READ_ONLY: [&str; 4] = ["tenant_id", "verified", "version", "updated_at"];
/// Where a tenant is reached. Its JSON form is the stored one; [`Recipient::public`] is the one that is shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Recipient {
    /// Zone in which instants are told.
    pub timezone: Tz,
    /// Language tag of messages, such as `de-AT`.
    pub locale: String,
    /// Addresses by channel, secrets sealed.
    pub addresses: Addresses,
    /// Channels in the order in which they are tried; empty: every address there is, in the order of
    /// [`Addresses::KINDS`].
    #[serde(default)]
    pub fallback: Vec<String>,
    /// Quiet hours, digest and budget.
    #[serde(flatten)]
    pub quiet: QuietRules,
    /// When which address was proved to be the tenant's own, by channel.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub verified: BTreeMap<String, DateTime<Utc>>,
}

/// A recipient as it was asked for, checked.
#[derive(Debug, Clone)]
pub struct RecipientDraft {
    /// Zone in which instants are told.
    pub timezone: Tz,
    /// Language tag of messages, such as `de-AT`.
    pub locale: String,
    /// Addresses by channel.
    pub addresses: AddressesDraft,
    /// Order of the channels, first choice first.
    pub fallback: Vec<String>,
    /// Quiet hours, digest and budget.
    pub quiet: QuietRules,
}

impl Recipient {
    /// The channels to be tried, in order.
    pub fn order(&self) -> Vec<String> {
        match self.fallback.as_slice() {
            [] => Addresses::KINDS.into_iter().filter(|kind| self.addresses.has(kind)).map(str::to_owned).collect(),
            order => order.to_vec(),
        }
    }

    /// The language of built-in messages for a recipient; English where none is known.
    pub fn language_of(recipient: Option<&Recipient>) -> MessageLanguage {
        recipient.map_or(MessageLanguage::English, |recipient| MessageLanguage::of(&recipient.locale))
    }

    /// For whom messages are written.
    pub fn reader(&self) -> Reader<'_> {
        Reader { timezone: self.timezone, locale: &self.locale }
    }

    /// The document that the API shows: everything but the secrets.
    pub fn public(&self) -> Value {
        json!({
            "timezone": self.timezone.name(), "locale": self.locale, "addresses": self.addresses.public(),
            "fallback": self.fallback, "quiet_hours": self.quiet.quiet_hours, "digest": self.quiet.digest,
            "budget": self.quiet.budget, "verified": self.verified,
        })
    }
}

impl RecipientDraft {
    /// Fields that are read of a recipient.
    pub const FIELDS: [&str; 7] = ["timezone", "locale", "addresses", "fallback", "quiet_hours", "digest", "budget"];

    /// Reads the body of a PUT; every fault is named. What [`Recipient::public`] shows can be put back unchanged.
    pub fn parse(body: &Value) -> Result<RecipientDraft, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let Some(fields) = object(body, "", &mut faults) else { return Err(faults) };
        let mut asked = fields.clone();
        asked.retain(|name, _| !READ_ONLY.contains(&name.as_str()));
        only(&asked, "", &RecipientDraft::FIELDS, &mut faults);
        let nothing = json!({});
        let addresses = fields.get("addresses").filter(|addresses| !addresses.is_null()).unwrap_or(&nothing);
        let kinds = object(addresses, "/addresses", &mut faults);
        let draft = RecipientDraft {
            timezone: read_timezone(fields, &mut faults),
            locale: read_locale(fields, &mut faults),
            addresses: kinds.map(|kinds| AddressesDraft::read(kinds, &mut faults)).unwrap_or_default(),
            fallback: read_fallback(fields, addresses, &mut faults),
            quiet: quiet::read(fields, &mut faults),
        };
        faults.into_result(draft)
    }

    /// The recipient to be stored in the place of `old`. New secrets are sealed, those that are not given are kept; an
    /// address that has changed is no longer verified.
    pub fn settle<S: Seal>(self, old: Option<&Recipient>, seal: &S) -> Result<Recipient, S::Error> {
        let before = old.map(|old| old.addresses.clone()).unwrap_or_default();
        let addresses = self.addresses.settle(&before, seal)?;
        let mut verified = old.map(|old| old.verified.clone()).unwrap_or_default();
        verified.retain(|kind, _| addresses.has(kind) && addresses.identity(kind) == before.identity(kind));
        let RecipientDraft { timezone, locale, fallback, quiet, .. } = self;
        Ok(Recipient { timezone, locale, addresses, fallback, quiet, verified })
    }
}

fn read_timezone(fields: &Map<String, Value>, faults: &mut ValidationErrors) -> Tz {
    let Some(name) = text(fields, "timezone", "", faults) else { return Tz::UTC };
    parse_zone(name).unwrap_or_else(|why| {
        faults.add("/timezone", why);
        Tz::UTC
    })
}

fn read_locale(fields: &Map<String, Value>, faults: &mut ValidationErrors) -> String {
    let Some(locale) = text(fields, "locale", "", faults) else { return "en".into() };
    if !is_language(locale) {
        faults.add("/locale", format!("`{locale}` is not a language tag such as `en`, `de-AT`, `zh-Hans-CN`"));
    }
    locale.to_owned()
}

/// Whether it has the form of a language tag (RFC 5646, section 2.1).
pub fn is_language(tag: &str) -> bool {
    let mut parts = tag.split('-');
    let language = parts.next().unwrap_or_default();
    let plain = |part: &str| (1..=8).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric());
    (2..=3).contains(&language.len()) && language.chars().all(|c| c.is_ascii_alphabetic()) && parts.all(plain)
}

fn read_fallback(fields: &Map<String, Value>, addresses: &Value, faults: &mut ValidationErrors) -> Vec<String> {
    let Some(value) = given(fields, "fallback") else { return vec![] };
    let order = texts(value, "/fallback", faults);
    for (index, (place, name)) in order.iter().enumerate() {
        if !Addresses::KINDS.contains(name) {
            faults.add(place, unknown("channel", name, &Addresses::KINDS));
        } else if addresses.get(*name).is_none_or(|address| address.is_null() || address == &json!(false)) {
            faults.add(place, format!("there is no `{name}` among the addresses"));
        } else if order[..index].iter().any(|(_, before)| before == name) {
            faults.add(place, format!("`{name}` stands there twice"));
        }
    }
    order.into_iter().map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::secret::Secret;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    /// Of RFC 8291, appendix A.
    const P256DH: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    /// Seals by naming the place and the length.
    struct NamingSealer;

    impl Seal for NamingSealer {
        type Error = ValidationErrors;

        fn seal(&self, place: SecretPlace, secret: &Secret) -> Result<String, ValidationErrors> {
            Ok(format!("{place:?} {}", secret.expose().len()))
        }
    }

    fn faults(body: Value) -> Vec<(String, String)> {
        let faults = RecipientDraft::parse(&body).expect_err("a fault").0;
        faults.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
    }

    fn settled(body: Value, old: Option<&Recipient>) -> Result<Recipient, ValidationErrors> {
        RecipientDraft::parse(&body)?.settle(old, &NamingSealer)
    }

    fn everything() -> Value {
        json!({
            "timezone": "Europe/Berlin", "locale": "de-AT",
            "addresses": {
                "email": "ann@example.org", "sms": "+49 151 234567-89",
                "push": [{ "topic": "ann_1", "server": "https://ntfy.example.org/" },
                    { "endpoint": "https://push.example.org/x", "expirationTime": null,
                      "keys": { "p256dh": P256DH, "auth": AUTH } }],
                "webhook": { "url": "https://hooks.example.org/a", "secret": [SECRET, SECRET] },
                "slack": { "webhook_url": "https://hooks.slack.com/services/T0/B0/x" },
                "telegram": -1001234, "live": true,
            },
            "fallback": ["webhook", "email"],
            "quiet_hours": [{ "from": "22:00", "to": "07:00", "days": ["sat", "mon"], "channels": ["sms"],
                "breaks_through": "urgent" }],
            "digest": { "at": ["18:00", "08:00"] }, "budget": { "per_day": 20 },
        })
    }

    #[test]
    fn recipient_is_read_stored_and_shown_without_its_secrets() {
        let recipient = settled(everything(), None).unwrap();
        assert_eq!(
            recipient.addresses,
            Addresses {
                email: Some("ann@example.org".into()),
                sms: Some("+4915123456789".into()),
                push: vec![
                    PushAddress::Ntfy { topic: "ann_1".into(), server: Some("https://ntfy.example.org".into()) },
                    PushAddress::WebPush {
                        endpoint: "https://push.example.org/x".into(),
                        p256dh: P256DH.into(),
                        sealed_auth: "Push(\"https://push.example.org/x\") 22".into(),
                    }
                ],
                webhook: Some(WebhookAddress {
                    url: "https://hooks.example.org/a".into(),
                    sealed_secret: "Webhook 77".into()
                }),
                slack: Some(SlackAddress::Webhook { sealed_url: "Slack 40".into() }),
                telegram: Some("-1001234".into()),
                live: true,
            }
        );
        let stored = serde_json::to_string(&recipient).unwrap();
        assert_eq!(serde_json::from_str::<Recipient>(&stored).unwrap(), recipient);
        assert_eq!(
            recipient.public(),
            json!({
                "timezone": "Europe/Berlin", "locale": "de-AT",
                "addresses": {
                    "email": "ann@example.org", "sms": "+4915123456789",
                    "push": [{ "topic": "ann_1", "server": "https://ntfy.example.org" },
                        { "endpoint": "https://push.example.org/x", "keys": { "p256dh": P256DH, "auth_set": true } }],
                    "webhook": { "url": "https://hooks.example.org/a", "secret_set": true },
                    "slack": { "webhook_url_set": true }, "telegram": "-1001234", "live": true,
                },
                "fallback": ["webhook", "email"],
                "quiet_hours": [{ "from": "22:00", "to": "07:00", "days": ["mon", "sat"], "channels": ["sms"],
                    "breaks_through": "urgent" }],
                "digest": { "at": ["08:00", "18:00"] }, "budget": { "per_day": 20 }, "verified": {},
            })
        );
    }

    #[test]
    fn shown_recipient_can_be_put_back_and_keeps_the_secrets() {
        let old = settled(everything(), None).unwrap();
        let mut shown = old.public();
        for (name, value) in [("tenant_id", json!("ann")), ("version", json!(3)), ("updated_at", json!("x"))] {
            shown[name] = value;
        }
        assert_eq!(settled(shown, Some(&old)).unwrap(), old);
    }

    #[test]
    fn browser_that_moves_in_the_list_keeps_its_secret() {
        let old = settled(everything(), None).unwrap();
        let mut body = old.public();
        body["addresses"]["push"] = body["addresses"]["push"][1].clone();
        assert_eq!(settled(body, Some(&old)).unwrap().addresses.push, old.addresses.push[1..]);
    }

    #[test]
    fn address_that_changes_is_no_longer_verified() {
        let mut old = settled(everything(), None).unwrap();
        for kind in ["email", "sms", "slack", "webhook", "push"] {
            old.verified.insert(kind.into(), DateTime::UNIX_EPOCH);
        }
        let kept = |body: Value| settled(body, Some(&old)).unwrap().verified.into_keys().collect::<Vec<_>>();
        assert_eq!(kept(old.public()), ["email", "push", "slack", "sms", "webhook"]);
        let mut body = everything();
        body["fallback"] = json!([]);
        body["addresses"]["sms"] = json!("+4915123456780");
        body["addresses"].as_object_mut().unwrap().remove("email");
        body["addresses"]["slack"] = json!({ "webhook_url": "https://hooks.slack.com/services/T0/B0/another" });
        body["verified"] = json!({ "sms": "2027-01-01T00:00:00Z" });
        assert_eq!(kept(body), ["push", "webhook"], "another number, no mail, another webhook of Slack");
    }

    #[test]
    fn address_without_its_secret_is_refused() {
        let missing = |addresses: Value| {
            let faults = settled(json!({ "addresses": addresses }), None).unwrap_err();
            (faults.0[0].pointer.clone(), faults.0[0].message.clone())
        };
        let (place, message) = missing(json!({ "webhook": { "url": "https://a.example" } }));
        assert_eq!(place, "/addresses/webhook/secret");
        assert!(message.contains("openssl rand"), "{message}");
        let browser = json!({ "push": [{ "endpoint": "https://p.example", "keys": { "p256dh": P256DH } }] });
        assert_eq!(missing(browser).0, "/addresses/push/0/keys/auth");
        assert_eq!(missing(json!({ "slack": { "webhook_url_set": true } })).0, "/addresses/slack/webhook_url");
    }

    #[test]
    fn empty_body_is_a_recipient_that_is_reached_nowhere() {
        let recipient = settled(json!({}), None).unwrap();
        assert_eq!((recipient.timezone, recipient.locale.as_str(), recipient.order()), (Tz::UTC, "en", vec![]));
    }

    #[test]
    fn every_fault_is_named_with_its_place_and_what_was_meant() {
        let found = faults(json!({
            "timezone": "Europe/Berln", "locale": "german",
            "quiet_hours": [{ "from": "22:00", "to": "7:00" }], "digest": { "at": [], "channels": ["emial"] },
            "budget": { "per_day": -1 },
            "addresses": { "emial": "x", "email": "ann at example", "webhook": { "url": "ftp://a.example", "secret": "abc" },
                "sms": "0151 1", "push": [{ "topic": "a b" }, {}, { "endpoint": "https://p.example", "keys": { "p256dh": "x" } }],
                "slack": {}, "telegram": "ann", "live": "yes" },
            "fallback": ["email", "telegrm", "webhok", "email"], "telephone": 1,
        }));
        let found: Vec<String> = found.into_iter().map(|(pointer, message)| format!("{pointer}: {message}")).collect();
        insta::assert_snapshot!(found.join("\n"), @r#"
        /telephone: unknown field `telephone`; known are timezone, locale, addresses, fallback, quiet_hours, digest, budget
        /timezone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?
        /locale: `german` is not a language tag such as `en`, `de-AT`, `zh-Hans-CN`
        /addresses/emial: unknown channel `emial`; did you mean `email`?
        /addresses/email: `ann at example` is not an address such as `ann@example.org`
        /addresses/sms: `0151 1` is not a number with its country code, such as `+4915123456789`
        /addresses/push/0/topic: a topic has 1 to 64 letters, digits, `-` and `_`
        /addresses/push/1: expected `{"topic": …}` of an ntfy server, or a browser's subscription `{"endpoint": …, "keys": {"p256dh": …, "auth": …}}`
        /addresses/push/2/keys/p256dh: expected an uncompressed P-256 key, 65 bytes in base64url
        /addresses/webhook/secret: expected `whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints
        /addresses/webhook/url: expected http or https, not `ftp`
        /addresses/slack: expected `{"channel": …}` or `{"webhook_url": …}`
        /addresses/telegram: `ann` is not the id of a chat such as `-1001234567890`, or a name such as `@news`
        /addresses/live: expected `true` or `false`
        /fallback/1: unknown channel `telegrm`; did you mean `telegram`?
        /fallback/2: unknown channel `webhok`; did you mean `webhook`?
        /fallback/3: `email` stands there twice
        /quiet_hours/0/to: `7:00` is not a time such as `22:00`, from 00:00 to 23:59
        /digest/channels/0: unknown channel `emial`; did you mean `email`?
        /digest/at: expected 1 to 24 times such as `08:00`
        /budget/per_day: expected a whole number from 0 to 10000
        "#);
    }

    #[test]
    fn each_kind_of_address_is_tried_once_and_each_of_its_flags_writes_into_it() {
        let mut tried = Addresses::KINDS.map(|kind| format!("addresses.{kind}"));
        let mut listed: Vec<&str> = Addresses::FLAGS.iter().map(|(kind, _)| *kind).collect();
        tried.sort();
        listed.sort();
        assert_eq!(tried.as_slice(), listed);
        for (kind, flags) in Addresses::FLAGS {
            let writes = |flag: &Flag| flag.field == *kind || flag.field.starts_with(&format!("{kind}."));
            assert!(!flags.is_empty() && flags.iter().all(writes), "{kind}: {flags:?}");
        }
    }

    #[test]
    fn order_is_the_one_asked_for_or_every_address_there_is() {
        let body =
            json!({ "addresses": { "email": "a@b.org", "webhook": { "url": "https://a.example", "secret": SECRET } } });
        let mut recipient = settled(body, None).unwrap();
        assert_eq!(recipient.order(), ["email", "webhook"]);
        recipient.fallback = vec!["webhook".into()];
        assert_eq!(recipient.order(), ["webhook"]);
    }
}
