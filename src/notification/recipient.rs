//! A recipient: where a tenant is reached, in which order, in which time zone.
//!
//! The secret of a webhook is write-only: it comes in with a draft, is sealed before it is stored, and no view shows it.

use chrono_tz::Tz;
use secrecy::zeroize::Zeroizing;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use url::Url;

use crate::invalid::{Faults, did_you_mean, escape};
use crate::notification::{Addresses, WebhookAddress};
use crate::secret::Secret;

/// Longest address of any kind, in bytes.
const ADDRESS_LENGTH: usize = 2048;
/// How many signing secrets a webhook may have at once, the newest first, so that they can be rotated.
const SECRETS: usize = 4;
/// What a signing secret begins with (Standard Webhooks).
const SECRET_PREFIX: &str = "whsec_";
/// How long a signing key may be, in bytes (Standard Webhooks).
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// Where a tenant is reached. Its JSON form is the stored one; [`Recipient::public`] is the one that is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipient {
    pub timezone: Tz,
    pub locale: String,
    pub addresses: Addresses,
    /// Channels in the order in which they are tried; empty: every address there is, in the order of [`Addresses::KINDS`].
    #[serde(default)]
    pub fallback: Vec<String>,
}

/// A recipient as it was asked for, checked.
#[derive(Debug, Clone)]
pub struct RecipientDraft {
    pub timezone: Tz,
    pub locale: String,
    pub email: Option<String>,
    pub webhook: Option<WebhookDraft>,
    pub fallback: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct WebhookDraft {
    pub url: String,
    /// Absent: the stored one is kept.
    pub secret: Option<Secret>,
}

impl Recipient {
    /// The channels to be tried, in order.
    pub fn order(&self) -> Vec<String> {
        match self.fallback.as_slice() {
            [] => Addresses::KINDS.into_iter().filter(|kind| self.addresses.has(kind)).map(str::to_owned).collect(),
            order => order.to_vec(),
        }
    }

    /// What the API shows: everything but the secret.
    pub fn public(&self) -> Value {
        let mut addresses = Map::new();
        if let Some(email) = &self.addresses.email {
            addresses.insert("email".into(), json!(email));
        }
        if let Some(webhook) = &self.addresses.webhook {
            addresses.insert("webhook".into(), json!({ "url": webhook.url, "secret_set": true }));
        }
        json!({
            "timezone": self.timezone.name(), "locale": self.locale, "addresses": addresses, "fallback": self.fallback,
        })
    }
}

impl RecipientDraft {
    /// Reads the body of a PUT; every fault is named. What [`Recipient::public`] shows can be put back unchanged.
    pub fn parse(body: &Value) -> Result<RecipientDraft, Faults> {
        let mut faults = Faults::new();
        let Some(fields) = object(body, "", &mut faults) else { return Err(faults) };
        let mut fields = fields.clone();
        if fields.remove("quiet_hours").is_some_and(|hours| !hours.is_null() && hours != json!([])) {
            faults.add("/quiet_hours", "is not supported yet; leave it out");
        }
        let fields = &fields;
        only(fields, "", &["timezone", "locale", "addresses", "fallback"], &mut faults);
        let nothing = json!({});
        let addresses = fields.get("addresses").unwrap_or(&nothing);
        let (email, webhook) = match object(addresses, "/addresses", &mut faults) {
            Some(kinds) => {
                only(kinds, "/addresses", &Addresses::KINDS, &mut faults);
                (read_email(kinds, &mut faults), read_webhook(kinds, &mut faults))
            }
            None => (None, None),
        };
        let draft = RecipientDraft {
            timezone: read_timezone(fields, &mut faults),
            locale: read_locale(fields, &mut faults),
            email,
            webhook,
            fallback: read_fallback(fields, addresses, &mut faults),
        };
        faults.or(draft)
    }

    /// The recipient to be stored in the place of `old`. A new secret is sealed by `seal`, one that is not given is
    /// kept; a webhook needs one.
    pub fn settle<E: From<Faults>>(
        self,
        old: Option<&Recipient>,
        seal: impl FnOnce(&Secret) -> Result<String, E>,
    ) -> Result<Recipient, E> {
        let kept = old.and_then(|old| old.addresses.webhook.as_ref()).map(|old| old.sealed_secret.clone());
        let webhook = match self.webhook {
            None => None,
            Some(WebhookDraft { url, secret: Some(secret) }) => {
                Some(WebhookAddress { url, sealed_secret: seal(&secret)? })
            }
            Some(WebhookDraft { url, secret: None }) => {
                let missing = || Faults::one("/addresses/webhook/secret", format!("is needed: {SECRET_FORM}"));
                Some(WebhookAddress { url, sealed_secret: kept.ok_or_else(missing)? })
            }
        };
        Ok(Recipient {
            timezone: self.timezone,
            locale: self.locale,
            addresses: Addresses { email: self.email, webhook, ..Addresses::default() },
            fallback: self.fallback,
        })
    }
}

const SECRET_FORM: &str =
    "`whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints";

/// The keys in a text of signing secrets, which stand apart by spaces, the newest first.
pub fn signing_keys(secrets: &Secret) -> Result<Vec<Zeroizing<Vec<u8>>>, String> {
    use base64::Engine;
    let read = |secret: &str| {
        let encoded = secret.strip_prefix(SECRET_PREFIX)?;
        let key = Zeroizing::new(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?);
        KEY_LENGTH.contains(&key.len()).then_some(key)
    };
    let keys: Option<Vec<_>> = secrets.expose().split_ascii_whitespace().map(read).collect();
    match keys {
        Some(keys) if (1..=SECRETS).contains(&keys.len()) => Ok(keys),
        Some(keys) if keys.len() > SECRETS => Err(format!("at most {SECRETS} secrets at once")),
        _ => Err(format!("expected {SECRET_FORM}")),
    }
}

fn object<'a>(value: &'a Value, pointer: &str, faults: &mut Faults) -> Option<&'a Map<String, Value>> {
    if value.as_object().is_none() {
        faults.add(pointer, "expected an object");
    }
    value.as_object()
}

fn only(fields: &Map<String, Value>, pointer: &str, known: &[&str], faults: &mut Faults) {
    for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
        let what = if pointer == "/addresses" { "channel" } else { "field" };
        faults.add(format!("{pointer}/{}", escape(name)), unknown(what, name, known));
    }
}

fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match did_you_mean(name, known.iter().copied()) {
        none if none.is_empty() => format!("unknown {what} `{name}`; known are {}", known.join(", ")),
        hint => format!("unknown {what} `{name}`{hint}"),
    }
}

/// A text field; absent and `null` are the same.
fn text<'a>(fields: &'a Map<String, Value>, name: &str, pointer: &str, faults: &mut Faults) -> Option<&'a str> {
    match fields.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text.len() <= ADDRESS_LENGTH => Some(text),
        Some(Value::String(_)) => {
            faults.add(format!("{pointer}/{name}"), format!("must be at most {ADDRESS_LENGTH} bytes"));
            None
        }
        Some(_) => {
            faults.add(format!("{pointer}/{name}"), "expected a text");
            None
        }
    }
}

fn read_timezone(fields: &Map<String, Value>, faults: &mut Faults) -> Tz {
    let Some(name) = text(fields, "timezone", "", faults) else { return Tz::UTC };
    name.parse().unwrap_or_else(|_| {
        let hint = did_you_mean(name, chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()));
        faults.add("/timezone", format!("unknown time zone `{name}`{hint}"));
        Tz::UTC
    })
}

fn read_locale(fields: &Map<String, Value>, faults: &mut Faults) -> String {
    let Some(locale) = text(fields, "locale", "", faults) else { return "en".into() };
    let parts: Vec<&str> = locale.split('-').collect();
    let plain = |part: &&str| (1..=8).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric());
    let language = (2..=3).contains(&parts[0].len()) && parts[0].chars().all(|c| c.is_ascii_alphabetic());
    if !language || !parts.iter().all(plain) {
        faults.add("/locale", format!("`{locale}` is not a language tag such as `en`, `de-AT`, `zh-Hans-CN`"));
    }
    locale.to_owned()
}

fn read_email(kinds: &Map<String, Value>, faults: &mut Faults) -> Option<String> {
    let address = text(kinds, "email", "/addresses", faults)?;
    if !is_email(address) {
        faults.add("/addresses/email", format!("`{address}` is not an address such as `ann@example.org`"));
    }
    Some(address.to_owned())
}

/// Whether this is one plain address (RFC 5321's lengths; no name, no comment, no quoted part).
fn is_email(address: &str) -> bool {
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let odd = |c: char| c.is_whitespace() || c.is_control() || "@<>()[]\\,;:\"".contains(c);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    (1..=64).contains(&local.len())
        && !local.contains(odd)
        && local.split('.').all(|part| !part.is_empty())
        && domain.len() <= 255
        && domain.split('.').all(label)
}

fn read_webhook(kinds: &Map<String, Value>, faults: &mut Faults) -> Option<WebhookDraft> {
    let place = "/addresses/webhook";
    let value = kinds.get("webhook").filter(|value| !value.is_null())?;
    let fields = object(value, place, faults)?;
    only(fields, place, &["url", "secret", "secret_set"], faults);
    let secret = read_secret(fields, place, faults);
    let Some(url) = text(fields, "url", place, faults) else {
        faults.add(format!("{place}/url"), "is needed: where the message is posted to");
        return None;
    };
    match Url::parse(url) {
        Ok(read) if !matches!(read.scheme(), "http" | "https") => {
            faults.add(format!("{place}/url"), format!("expected http or https, not `{}`", read.scheme()));
        }
        Ok(read) if !read.username().is_empty() || read.password().is_some() => {
            faults.add(format!("{place}/url"), "may not hold a user or a password: messages are signed instead");
        }
        Ok(_) => {}
        Err(error) => faults.add(format!("{place}/url"), format!("is not a URL: {error}")),
    }
    Some(WebhookDraft { url: url.to_owned(), secret })
}

/// One secret, or several while they are rotated: a list, the newest first.
fn read_secret(fields: &Map<String, Value>, place: &str, faults: &mut Faults) -> Option<Secret> {
    let secret = match fields.get("secret") {
        None | Some(Value::Null) => return None,
        Some(Value::String(one)) => Secret::new(one.as_str()),
        Some(Value::Array(several)) if several.iter().all(Value::is_string) => {
            Secret::new(several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
        }
        Some(_) => {
            faults.add(format!("{place}/secret"), "expected a text, or a list of texts");
            return None;
        }
    };
    if let Err(why) = signing_keys(&secret) {
        faults.add(format!("{place}/secret"), why);
    }
    Some(secret)
}

fn read_fallback(fields: &Map<String, Value>, addresses: &Value, faults: &mut Faults) -> Vec<String> {
    let Some(value) = fields.get("fallback").filter(|value| !value.is_null()) else { return vec![] };
    let order: Vec<String> = faults.read(value, "/fallback").unwrap_or_default();
    for (index, name) in order.iter().enumerate() {
        let place = format!("/fallback/{index}");
        if !Addresses::KINDS.contains(&name.as_str()) {
            faults.add(place, unknown("channel", name, &Addresses::KINDS));
        } else if addresses.get(name).is_none_or(Value::is_null) {
            faults.add(place, format!("there is no `{name}` among the addresses"));
        } else if order[..index].contains(name) {
            faults.add(place, format!("`{name}` stands there twice"));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn faults(body: Value) -> Vec<(String, String)> {
        let faults = RecipientDraft::parse(&body).expect_err("a fault").0;
        faults.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
    }

    fn settled(body: Value, old: Option<&Recipient>) -> Result<Recipient, Faults> {
        RecipientDraft::parse(&body)?.settle(old, |secret| Ok::<_, Faults>(format!("sealed {}", secret.expose().len())))
    }

    #[test]
    fn a_recipient_is_read_stored_and_shown_without_its_secret() {
        let body = json!({
            "timezone": "Europe/Berlin", "locale": "de-AT",
            "addresses": { "email": "ann@example.org", "webhook": { "url": "https://hooks.example.org/a", "secret": SECRET } },
            "fallback": ["webhook", "email"],
        });
        let recipient = settled(body, None).unwrap();
        assert_eq!(
            recipient,
            Recipient {
                timezone: Tz::Europe__Berlin,
                locale: "de-AT".into(),
                addresses: Addresses {
                    email: Some("ann@example.org".into()),
                    webhook: Some(WebhookAddress {
                        url: "https://hooks.example.org/a".into(),
                        sealed_secret: "sealed 38".into()
                    }),
                    ..Addresses::default()
                },
                fallback: vec!["webhook".into(), "email".into()],
            }
        );
        let stored = serde_json::to_string(&recipient).unwrap();
        assert_eq!(serde_json::from_str::<Recipient>(&stored).unwrap(), recipient);
        assert_eq!(
            recipient.public(),
            json!({
                "timezone": "Europe/Berlin", "locale": "de-AT",
                "addresses": {
                    "email": "ann@example.org",
                    "webhook": { "url": "https://hooks.example.org/a", "secret_set": true },
                },
                "fallback": ["webhook", "email"],
            })
        );
    }

    #[test]
    fn what_is_shown_can_be_put_back_and_keeps_the_secret() {
        let body = json!({ "addresses": { "webhook": { "url": "https://a.example", "secret": SECRET } } });
        let old = settled(body, None).unwrap();
        assert_eq!(settled(old.public(), Some(&old)).unwrap(), old);
    }

    #[test]
    fn a_webhook_without_any_secret_is_refused() {
        let body = json!({ "addresses": { "webhook": { "url": "https://a.example" } } });
        let faults = settled(body, None).unwrap_err();
        assert_eq!(faults.0[0].pointer, "/addresses/webhook/secret");
        assert!(faults.0[0].message.contains("openssl rand"), "{faults}");
    }

    #[test]
    fn an_empty_body_is_a_recipient_that_is_reached_nowhere() {
        let recipient = settled(json!({}), None).unwrap();
        assert_eq!((recipient.timezone, recipient.locale.as_str(), recipient.order()), (Tz::UTC, "en", vec![]));
    }

    #[test]
    fn every_fault_is_named_with_its_place_and_what_was_meant() {
        let found = faults(json!({
            "timezone": "Europe/Berln", "locale": "german", "quiet_hours": [{ "from": "22:00", "to": "07:00" }],
            "addresses": { "emial": "x", "email": "ann at example", "webhook": { "url": "ftp://a.example", "secret": "abc" } },
            "fallback": ["email", "sms", "webhok", "email"], "telephone": 1,
        }));
        let found: Vec<String> = found.into_iter().map(|(pointer, message)| format!("{pointer}: {message}")).collect();
        insta::assert_snapshot!(found.join("\n"), @r"
        /quiet_hours: is not supported yet; leave it out
        /telephone: unknown field `telephone`; known are timezone, locale, addresses, fallback
        /addresses/emial: unknown channel `emial`; did you mean `email`?
        /addresses/email: `ann at example` is not an address such as `ann@example.org`
        /addresses/webhook/secret: expected `whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints
        /addresses/webhook/url: expected http or https, not `ftp`
        /timezone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?
        /locale: `german` is not a language tag such as `en`, `de-AT`, `zh-Hans-CN`
        /fallback/1: unknown channel `sms`; known are email, webhook
        /fallback/2: unknown channel `webhok`; did you mean `webhook`?
        /fallback/3: `email` stands there twice
        ");
    }

    #[test]
    fn email_addresses_are_plain_ones() {
        for good in ["ann@example.org", "a.b+c@x", "o'neil@example.org", "jörg@bücher.example", "a@1.2"] {
            assert!(is_email(good), "{good}");
        }
        for bad in [
            "",
            "@",
            "ann",
            "ann@",
            "@example.org",
            "a b@example.org",
            "a@b@c",
            "Ann <ann@example.org>",
            "a@-b.org",
            "a@b..org",
            ".a@b.org",
            "a@b.org\r\nBcc: x@y.org",
            "a@[127.0.0.1]",
            "a,b@example.org",
            "a@b.org.",
        ] {
            assert!(!is_email(bad), "{bad:?}");
        }
    }

    #[test]
    fn signing_secrets_are_one_or_a_few_while_they_are_rotated() {
        let keys = |text: &str| signing_keys(&Secret::new(text)).map(|keys| keys.len());
        assert_eq!(keys(SECRET), Ok(1));
        assert_eq!(keys(&format!("{SECRET} {SECRET}")), Ok(2));
        assert_eq!(keys(&[SECRET; 5].join(" ")), Err("at most 4 secrets at once".into()));
        for bad in [
            "",
            " ",
            "whsec_",
            "whsec_c2hvcnQ=",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_!!!",
            &format!("{SECRET} x"),
        ] {
            assert!(keys(bad).is_err(), "{bad:?}");
        }
        let list = json!({ "addresses": { "webhook": { "url": "https://a.example", "secret": [SECRET, SECRET] } } });
        assert_eq!(settled(list, None).unwrap().addresses.webhook.unwrap().sealed_secret, "sealed 77");
    }

    #[test]
    fn the_order_is_the_one_asked_for_or_every_address_there_is() {
        let body =
            json!({ "addresses": { "email": "a@b.org", "webhook": { "url": "https://a.example", "secret": SECRET } } });
        let mut recipient = settled(body, None).unwrap();
        assert_eq!(recipient.order(), ["email", "webhook"]);
        recipient.fallback = vec!["webhook".into()];
        assert_eq!(recipient.order(), ["webhook"]);
    }
}
