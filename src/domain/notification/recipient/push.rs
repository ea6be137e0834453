//! Devices and topics of a recipient: ntfy topics, and browsers by their Web Push subscription.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::reading::{flag, given, object, only_of, text, url};
use super::secrets::{Seal, SecretPlace};
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::AddressKind;

/// Addresses of a recipient at most.
const ADDRESSES: usize = 8;
/// Longest topic (ntfy's own limit).
const TOPIC_LENGTH: usize = 64;
/// An uncompressed point of P-256, as RFC 8291 has the browser's key, and its authentication secret, in bytes.
const KEY_LENGTH: usize = 65;
const AUTH_LENGTH: usize = 16;

/// The addresses of the channel `push`.
pub struct Push;

/// One device or topic for push messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PushAddress {
    /// A topic of the operator's ntfy server, or of another one.
    Ntfy {
        /// Topic on the server.
        topic: String,
        /// Base address of the server; `None`: the operator's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<String>,
    },
    /// A browser's subscription (RFC 8030); its keys as RFC 8291 has them, base64url without padding.
    WebPush {
        /// Address of the push service for this browser.
        endpoint: String,
        /// Public key of the browser, base64url.
        p256dh: String,
        /// The authentication secret, as the vault sealed it.
        sealed_auth: String,
    },
}

/// One address as it was asked for.
#[derive(Debug, Clone)]
pub enum PushDraft {
    /// A topic of ntfy.
    Ntfy {
        /// Topic on the server.
        topic: String,
        /// Base address of the server; `None`: the operator's.
        server: Option<String>,
    },
    /// A browser with Web Push.
    WebPush {
        /// Address of the push service for this browser.
        endpoint: String,
        /// Public key of the browser, base64url.
        p256dh: String,
        /// Absent: the one that is stored for this endpoint is kept.
        auth: Option<Secret>,
    },
}

impl AddressKind for Push {
    type Draft = Vec<PushDraft>;
    type Stored = Vec<PushAddress>;
    type Written = schema::Written;
    type Shown = schema::Shown;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--ntfy-topic",
        takes: FlagValue::Text("TOPIC"),
        field: "addresses.push.topic",
        help: "Topic of the configured ntfy server for the channel `push`; browsers and other servers go by --file",
    }];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Vec<PushDraft> {
        read(kinds, faults)
    }

    fn settle<S: Seal>(drafts: Vec<PushDraft>, old: &Vec<PushAddress>, seal: &S) -> Result<Vec<PushAddress>, S::Error> {
        drafts.into_iter().enumerate().map(|(n, draft)| draft.settle(n, old, seal)).collect()
    }

    fn public(stored: &Vec<PushAddress>) -> Value {
        stored.iter().map(public).collect()
    }

    fn places(stored: &Vec<PushAddress>) -> Vec<String> {
        let place = |push: &PushAddress| match push {
            PushAddress::Ntfy { topic, server } => format!("ntfy {} {topic}", server.as_deref().unwrap_or_default()),
            PushAddress::WebPush { endpoint, .. } => format!("browser {endpoint}"),
        };
        stored.iter().map(place).collect()
    }
}

/// One address, or a list of them.
fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Vec<PushDraft> {
    let place = "/addresses/push";
    match given(kinds, "push") {
        None => vec![],
        Some(Value::Array(several)) => {
            if several.len() > ADDRESSES {
                faults.add(place, format!("at most {ADDRESSES} addresses"));
            }
            let each = several.iter().enumerate();
            each.filter_map(|(n, value)| read_one(value, &format!("{place}/{n}"), faults)).collect()
        }
        Some(one) => read_one(one, place, faults).into_iter().collect(),
    }
}

fn read_one(value: &Value, place: &str, faults: &mut ValidationErrors) -> Option<PushDraft> {
    let fields = object(value, place, faults)?;
    match (given(fields, "topic"), given(fields, "endpoint")) {
        (Some(_), None) => read_ntfy(fields, place, faults),
        (None, Some(_)) => read_browser(fields, place, faults),
        _ => {
            let forms = "expected `{\"topic\": …}` of an ntfy server, or a browser's subscription `{\"endpoint\": …, \
                         \"keys\": {\"p256dh\": …, \"auth\": …}}`";
            faults.add(place, forms);
            None
        }
    }
}

fn read_ntfy(fields: &Map<String, Value>, place: &str, faults: &mut ValidationErrors) -> Option<PushDraft> {
    only_of::<schema::Ntfy>(fields, place, faults);
    let topic = text(fields, "topic", place, faults)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if topic.is_empty() || topic.len() > TOPIC_LENGTH || !topic.chars().all(plain) {
        let message = format!("a topic has 1 to {TOPIC_LENGTH} letters, digits, `-` and `_`");
        faults.add(format!("{place}/topic"), message);
    }
    let server = url(fields, "server", place, faults).map(|url| url.trim_end_matches('/').to_owned());
    Some(PushDraft::Ntfy { topic: topic.to_owned(), server })
}

fn read_browser(fields: &Map<String, Value>, place: &str, faults: &mut ValidationErrors) -> Option<PushDraft> {
    // as `PushSubscription.toJSON()` writes it; when it ends is the push service's to know
    only_of::<schema::NewBrowser>(fields, place, faults);
    let endpoint = url(fields, "endpoint", place, faults);
    let is_whole = |end: &Value| end.as_f64().is_some_and(|end| end.fract() == 0.0);
    if given(fields, "expirationTime").is_some_and(|end| !is_whole(end)) {
        faults.add(format!("{place}/expirationTime"), "expected milliseconds, a whole number, or null");
    }
    let keys = match given(fields, "keys") {
        Some(keys) => object(keys, &format!("{place}/keys"), faults)?,
        None => {
            faults.add(format!("{place}/keys"), "is needed: `p256dh` and `auth` of the browser's subscription");
            return None;
        }
    };
    let place = format!("{place}/keys");
    only_of::<schema::NewKeys>(keys, &place, faults);
    flag(keys, "auth_set", &place, faults);
    let key = decoded(keys, "p256dh", &place, faults);
    let p256dh = match key {
        Some(key) if key.len() == KEY_LENGTH && key[0] == 4 => URL_SAFE_NO_PAD.encode(key),
        _ => {
            faults.add(format!("{place}/p256dh"), "expected an uncompressed P-256 key, 65 bytes in base64url");
            return None;
        }
    };
    let auth = given(keys, "auth").and_then(|_| match decoded(keys, "auth", &place, faults) {
        Some(auth) if auth.len() == AUTH_LENGTH => Some(Secret::new(URL_SAFE_NO_PAD.encode(auth))),
        _ => {
            faults.add(format!("{place}/auth"), "expected 16 bytes in base64url");
            None
        }
    });
    Some(PushDraft::WebPush { endpoint: endpoint?, p256dh, auth })
}

/// Base64 of any of the usual kinds; browsers and libraries differ.
fn decoded(fields: &Map<String, Value>, name: &str, place: &str, faults: &mut ValidationErrors) -> Option<Vec<u8>> {
    let encoded = text(fields, name, place, faults)?;
    [URL_SAFE_NO_PAD, URL_SAFE, STANDARD_NO_PAD, STANDARD].iter().find_map(|kind| kind.decode(encoded).ok())
}

impl PushDraft {
    /// The address at place `n` of the list, its secret sealed, or the one that is stored for the same endpoint.
    fn settle<S: Seal>(self, n: usize, old: &[PushAddress], seal: &S) -> Result<PushAddress, S::Error> {
        let (endpoint, p256dh, auth) = match self {
            PushDraft::Ntfy { topic, server } => return Ok(PushAddress::Ntfy { topic, server }),
            PushDraft::WebPush { endpoint, p256dh, auth } => (endpoint, p256dh, auth),
        };
        let sealed_auth = match auth {
            Some(auth) => seal.seal(SecretPlace::Push(&endpoint), &auth)?,
            None => stored_auth(old, &endpoint, &p256dh).map(str::to_owned).ok_or_else(|| {
                let message = "is needed: the authentication secret of the browser's subscription";
                ValidationErrors::one(format!("/addresses/push/{n}/keys/auth"), message)
            })?,
        };
        Ok(PushAddress::WebPush { endpoint, p256dh, sealed_auth })
    }
}

fn stored_auth<'a>(old: &'a [PushAddress], endpoint: &str, p256dh: &str) -> Option<&'a str> {
    old.iter().find_map(|address| match address {
        PushAddress::WebPush { endpoint: e, p256dh: key, sealed_auth } if e == endpoint && key == p256dh => {
            Some(sealed_auth.as_str())
        }
        _ => None,
    })
}

/// The document that is shown of one.
fn public(address: &PushAddress) -> Value {
    match address {
        PushAddress::Ntfy { topic, server: None } => json!({ "topic": topic }),
        PushAddress::Ntfy { topic, server } => json!({ "topic": topic, "server": server }),
        PushAddress::WebPush { endpoint, p256dh, .. } => {
            json!({ "endpoint": endpoint, "keys": { "p256dh": p256dh, "auth_set": true } })
        }
    }
}

/// Its schemas in the API. The reader takes the fields of what a request writes.
#[allow(dead_code, reason = "nothing is read into these enums: they are shapes for the document of the API")]
pub(super) mod schema {
    use serde::Serialize;
    use utoipa::ToSchema;

    /// Addresses as a request writes them.
    #[derive(Serialize, ToSchema)]
    pub struct Written {
        /// Up to 8; a message goes to each.
        #[schema(required = false)]
        push: Option<NewPushes>,
    }

    /// Addresses as they are shown.
    #[derive(Serialize, ToSchema)]
    pub struct Shown {
        #[schema(required = false)]
        push: Vec<Push>,
    }

    /// One address of this kind, or several.
    #[derive(Serialize, ToSchema)]
    #[serde(untagged)]
    pub enum NewPushes {
        /// One address by itself.
        One(NewPush),
        /// Up to 8 addresses.
        Several(Vec<NewPush>),
    }

    /// A topic of ntfy, or a browser's subscription.
    #[derive(Serialize, ToSchema)]
    #[serde(untagged)]
    pub enum NewPush {
        /// A topic of ntfy.
        Ntfy(Ntfy),
        /// A browser's subscription.
        Browser(NewBrowser),
    }

    /// A topic of ntfy.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Ntfy {
        /// The topic that messages are published to.
        #[schema(min_length = 1, max_length = 64)]
        pub topic: String,
        /// Absent: the server of the configuration.
        #[schema(required = false, format = Uri)]
        pub server: Option<String>,
    }

    /// A browser's subscription, as `PushSubscription.toJSON()` writes it.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct NewBrowser {
        /// The address at the browser's push service.
        #[schema(format = Uri)]
        pub endpoint: String,
        /// Taken, and not used.
        #[serde(rename = "expirationTime")]
        #[schema(required = false)]
        pub expiration_time: Option<i64>,
        /// The keys that messages are encrypted with.
        pub keys: NewKeys,
    }

    /// The keys of a browser's subscription (RFC 8291), each in base64url.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct NewKeys {
        /// The browser's public key.
        pub p256dh: String,
        /// Left out, the one stored for this endpoint is kept.
        #[schema(required = false, write_only)]
        pub auth: Option<String>,
        /// As an answer shows it; changes nothing.
        #[schema(required = false)]
        pub auth_set: Option<bool>,
    }

    /// A topic of ntfy, or a browser's subscription without its secret.
    #[derive(Serialize, ToSchema)]
    #[serde(untagged)]
    pub enum Push {
        /// A topic of ntfy.
        Ntfy(Ntfy),
        /// A browser's subscription.
        Browser(Browser),
    }

    /// A browser's subscription, without its secret.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Browser {
        /// The address at the browser's push service.
        pub endpoint: String,
        /// The keys that messages are encrypted with.
        pub keys: Keys,
    }

    /// The keys of a browser's subscription, without the secret.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Keys {
        /// The browser's public key, in base64url.
        pub p256dh: String,
        /// Whether a secret is stored.
        pub auth_set: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipient_has_as_many_push_addresses_as_it_may_and_no_more() {
        let places = |count: usize| {
            let mut faults = ValidationErrors::new();
            let kinds = json!({ "push": vec![json!({ "topic": "news" }); count] });
            read(kinds.as_object().unwrap(), &mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        assert_eq!((places(ADDRESSES), places(ADDRESSES + 1)), (vec![], vec!["/addresses/push".to_owned()]));
    }
}
