//! Webhooks of a recipient: where messages are posted to, and the secrets that they are signed with.

use secrecy::zeroize::Zeroizing;
use serde_json::{Map, Value, json};

use super::reading::{flag, given, object, only, url};
use super::secrets::{Seal, SecretPlace};
use crate::invalid::Faults;
use crate::notification::WebhookAddress;
use crate::secret::Secret;

/// How many signing secrets a webhook may have at once, the newest first, so that they can be rotated.
const SECRETS: usize = 4;
/// Prefix of a signing secret (Standard Webhooks).
const SECRET_PREFIX: &str = "whsec_";
/// How long a signing key may be, in bytes (Standard Webhooks).
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;
const SECRET_FORM: &str =
    "`whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints";

/// Target of webhooks, as it is put.
#[derive(Debug, Clone)]
pub struct WebhookDraft {
    /// The address that messages are posted to.
    pub url: String,
    /// Absent: the stored one is kept.
    pub secret: Option<Secret>,
}

impl WebhookDraft {
    pub(super) fn read(kinds: &Map<String, Value>, faults: &mut Faults) -> Option<WebhookDraft> {
        let place = "/addresses/webhook";
        let fields = object(given(kinds, "webhook")?, place, faults)?;
        only(fields, place, &["url", "secret", "secret_set"], faults);
        let secret = read_secret(fields, place, faults);
        // what `GET` shows may be sent along
        flag(fields, "secret_set", place, faults);
        if given(fields, "url").is_none() {
            faults.add(format!("{place}/url"), "is needed: where the message is posted to");
        }
        Some(WebhookDraft { url: url(fields, "url", place, faults)?, secret })
    }

    /// With its secret sealed, or the one that is stored.
    pub(super) fn settle<S: Seal>(self, old: Option<&WebhookAddress>, seal: &S) -> Result<WebhookAddress, S::Error> {
        let missing = || Faults::one("/addresses/webhook/secret", format!("is needed: {SECRET_FORM}"));
        let sealed_secret = match self.secret {
            Some(secret) => seal.seal(SecretPlace::Webhook, &secret)?,
            None => old.map(|old| old.sealed_secret.clone()).ok_or_else(missing)?,
        };
        Ok(WebhookAddress { url: self.url, sealed_secret })
    }
}

/// The document that is shown of it.
pub(super) fn public(address: &WebhookAddress) -> Value {
    json!({ "url": address.url, "secret_set": true })
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
