//! Webhooks of a recipient: where messages are posted to, and the secrets that they are signed with.

use secrecy::zeroize::Zeroizing;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::reading::{flag, given, object, only_of, url};
use super::secrets::{Seal, SecretPlace};
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::AddressKind;

/// How many signing secrets a webhook may have at once, the newest first, so that they can be rotated.
const SECRETS: usize = 4;
/// Prefix of a signing secret (Standard Webhooks).
const SECRET_PREFIX: &str = "whsec_";
/// How long a signing key may be, in bytes (Standard Webhooks).
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;
const SECRET_FORM: &str =
    "`whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints";

/// The address of the channel `webhook`.
pub struct Webhook;

/// Target of webhooks: an address, and the secrets that sign messages to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookAddress {
    /// The address that messages are posted to.
    pub url: String,
    /// The signing secrets, as the vault sealed them.
    pub sealed_secret: String,
}

/// Target of webhooks, as it is put.
#[derive(Debug, Clone)]
pub struct WebhookDraft {
    /// The address that messages are posted to.
    pub url: String,
    /// Absent: the stored one is kept.
    pub secret: Option<Secret>,
}

impl AddressKind for Webhook {
    type Draft = Option<WebhookDraft>;
    type Stored = Option<WebhookAddress>;
    type Written = schema::Written;
    type Shown = schema::Shown;

    const FLAGS: &'static [Flag] = &[
        Flag {
            name: "--webhook",
            takes: FlagValue::Text("URL"),
            field: "addresses.webhook.url",
            help: "Address for the channel `webhook`; its secret is read from standard input with --webhook-secret-stdin",
        },
        Flag {
            name: "--webhook-secret-stdin",
            takes: FlagValue::StandardInput("--webhook"),
            field: "addresses.webhook.secret",
            help: "Read the webhook's secret (`whsec_…`) from standard input: flags can be seen by others on this machine",
        },
    ];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<WebhookDraft> {
        WebhookDraft::read(kinds, faults)
    }

    fn settle<S: Seal>(
        draft: Option<WebhookDraft>,
        old: &Option<WebhookAddress>,
        seal: &S,
    ) -> Result<Option<WebhookAddress>, S::Error> {
        draft.map(|draft| draft.settle(old.as_ref(), seal)).transpose()
    }

    fn public(stored: &Option<WebhookAddress>) -> Value {
        stored.as_ref().map(|address| json!({ "url": address.url, "secret_set": true })).unwrap_or_default()
    }

    fn places(stored: &Option<WebhookAddress>) -> Vec<String> {
        stored.iter().map(|webhook| format!("webhook {}", webhook.url)).collect()
    }
}

impl WebhookDraft {
    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<WebhookDraft> {
        let place = "/addresses/webhook";
        let fields = object(given(kinds, "webhook")?, place, faults)?;
        only_of::<schema::NewWebhook>(fields, place, faults);
        let secret = read_secret(fields, place, faults);
        // what `GET` shows may be sent along
        flag(fields, "secret_set", place, faults);
        if given(fields, "url").is_none() {
            faults.add(format!("{place}/url"), "is needed: where the message is posted to");
        }
        Some(WebhookDraft { url: url(fields, "url", place, faults)?, secret })
    }

    /// With its secret sealed, or the one that is stored.
    fn settle<S: Seal>(self, old: Option<&WebhookAddress>, seal: &S) -> Result<WebhookAddress, S::Error> {
        let missing = || ValidationErrors::one("/addresses/webhook/secret", format!("is needed: {SECRET_FORM}"));
        let sealed_secret = match self.secret {
            Some(secret) => seal.seal(SecretPlace::Webhook, &secret)?,
            None => old.map(|old| old.sealed_secret.clone()).ok_or_else(missing)?,
        };
        Ok(WebhookAddress { url: self.url, sealed_secret })
    }
}

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

/// One secret, or several while they are rotated: a list, the newest first.
fn read_secret(fields: &Map<String, Value>, place: &str, faults: &mut ValidationErrors) -> Option<Secret> {
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

/// Its schemas in the API. The reader takes the fields of what a request writes.
#[allow(dead_code, reason = "nothing is read into these enums: they are shapes for the document of the API")]
pub(super) mod schema {
    use serde::Serialize;
    use utoipa::ToSchema;

    /// An address as a request writes it.
    #[derive(Serialize, ToSchema)]
    pub struct Written {
        #[schema(required = false)]
        webhook: Option<NewWebhook>,
    }

    /// An address as it is shown.
    #[derive(Serialize, ToSchema)]
    pub struct Shown {
        #[schema(required = false)]
        webhook: Option<Webhook>,
    }

    /// An address of your own that messages are posted to, signed.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct NewWebhook {
        /// The address that takes the messages.
        #[schema(format = Uri)]
        pub url: String,
        /// A signing secret, or several while they are rotated. Left out, the stored one is kept.
        #[schema(required = false, write_only)]
        pub secret: Option<Secrets>,
        /// As an answer shows it; changes nothing.
        #[schema(required = false)]
        pub secret_set: Option<bool>,
    }

    /// Signing secrets: `whsec_` and 24 to 64 random bytes in base64 each.
    #[derive(Serialize, ToSchema)]
    #[serde(untagged)]
    pub enum Secrets {
        /// The one that signs.
        One(String),
        /// Those that sign together, while they are rotated.
        Several(Vec<String>),
    }

    /// An address of your own that messages are posted to, without the secret.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Webhook {
        /// The address that takes the messages.
        pub url: String,
        /// Whether a signing secret is stored.
        pub secret_set: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

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
    }
}
