//! VAPID (RFC 8292): how this service says to a push service who it is.
//!
//! Browsers subscribe to one public key; with another private key every subscription is lost. So the key is either
//! configured, the same for all instances, or lies in a file that is made once and never again.

mod key;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::EcdsaKeyPair;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::ports::vault::WithoutKeys;

/// The key file's name within the data directory.
pub const KEY_FILE: &str = "vapid.key";
/// How long a token is good; push services refuse more than 24 hours.
const LIFETIME: TimeDelta = TimeDelta::hours(12);

/// `[channels.push.vapid]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A private key of P-256: its 32 bytes in base64url, or PEM. Absent: on SQLite a key file in the data directory,
    /// else no Web Push.
    pub private_key: Option<Secret>,
    /// Whom a push service may write to: `mailto:…` or `https://…`; absent: the public URL, if that is https. Some
    /// services refuse messages without it.
    pub subject: Option<String>,
}

/// The identity of this service before push services. Cheap to clone.
#[derive(Clone)]
pub struct Vapid {
    pair: Arc<EcdsaKeyPair>,
    /// As browsers take it: base64url without padding.
    public_key: Arc<str>,
    subject: Option<Arc<str>>,
}

impl Vapid {
    /// The configured key; without one that of the key file, made if there is none; `None` where several instances
    /// would have to share it. Tells where a key file was made.
    pub fn open(
        settings: &Settings,
        without: WithoutKeys,
    ) -> Result<(Option<Vapid>, Option<PathBuf>), ValidationErrors> {
        let fault = |name: &str, why: String| ValidationErrors::one(format!("/channels/push/vapid/{name}"), why);
        if settings.subject.as_deref().is_some_and(|subject| !is_subject(subject)) {
            return Err(fault("subject", "must begin with `mailto:` or `https://`".into()));
        }
        let (pair, made) = match (&settings.private_key, without) {
            (Some(key), _) => (key::read(key).map_err(|why| fault("private_key", why))?, None),
            (None, WithoutKeys::KeyFile(dir)) => {
                key::from_file(&dir.join(KEY_FILE)).map_err(|why| fault("private_key", why))?
            }
            (None, WithoutKeys::Refuse) => return Ok((None, None)),
        };
        Ok((Some(Vapid::of(pair, settings)), made))
    }

    /// Reads the key pair and makes none: `None` as well where the key file is not there yet.
    pub fn read_existing(settings: &Settings, without: WithoutKeys) -> Result<Option<Vapid>, ValidationErrors> {
        let is_there = |dir: &Path| dir.join(KEY_FILE).exists();
        match (&settings.private_key, without) {
            (None, WithoutKeys::KeyFile(dir)) if !is_there(dir) => Ok(None),
            _ => Vapid::open(settings, without).map(|(vapid, _)| vapid),
        }
    }

    fn of(pair: EcdsaKeyPair, settings: &Settings) -> Vapid {
        let public_key = URL_SAFE_NO_PAD.encode(key::public(&pair)).into();
        Vapid { pair: Arc::new(pair), public_key, subject: settings.subject.as_deref().map(Into::into) }
    }

    /// The public key that a page gives to `subscribe` as `applicationServerKey`.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// The value of `Authorization` for a message to this endpoint; `None` where the endpoint has no origin.
    pub fn authorization(&self, endpoint: &Url, now: DateTime<Utc>) -> Option<String> {
        let origin = endpoint.origin();
        let expires = (now + LIFETIME).timestamp();
        let mut claims = json!({ "aud": origin.is_tuple().then(|| origin.ascii_serialization())?, "exp": expires });
        if let Some(subject) = self.subject.as_deref() {
            claims["sub"] = json!(subject);
        }
        let encode = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(json!({ "typ": "JWT", "alg": "ES256" })), encode(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).ok()?;
        Some(format!("vapid t={signed}.{}, k={}", URL_SAFE_NO_PAD.encode(signature), self.public_key))
    }
}

impl std::fmt::Debug for Vapid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vapid").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

fn is_subject(subject: &str) -> bool {
    subject.strip_prefix("mailto:").or(subject.strip_prefix("https://")).is_some_and(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    /// The key pair of the example in RFC 8291, appendix A.
    const RAW: &str = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
    const PUBLIC: &str = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8";

    fn opened(private_key: &str, subject: Option<&str>) -> Result<Vapid, ValidationErrors> {
        let settings = Settings { private_key: Some(Secret::new(private_key)), subject: subject.map(str::to_owned) };
        Vapid::open(&settings, WithoutKeys::Refuse).map(|(vapid, _)| vapid.expect("a key"))
    }

    fn now() -> DateTime<Utc> {
        "2026-12-24T07:00:00Z".parse().unwrap()
    }

    #[test]
    fn message_is_signed_for_the_origin_of_its_endpoint_and_no_longer_than_a_day() {
        let vapid = opened(RAW, Some("mailto:ops@example.org")).unwrap();
        let endpoint = Url::parse("https://push.example.net:8443/wpush/v2/gAAAA?x=1").unwrap();
        let header = vapid.authorization(&endpoint, now()).unwrap();
        let (token, key) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(key, PUBLIC);
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let read = |part: &str| String::from_utf8(URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
        let parts: Vec<String> = signed.split('.').map(read).collect();
        assert_eq!(
            parts,
            [
                r#"{"alg":"ES256","typ":"JWT"}"#,
                r#"{"aud":"https://push.example.net:8443","exp":1798138800,"sub":"mailto:ops@example.org"}"#
            ]
        );
        assert_eq!(now().timestamp() + 12 * 3600, 1_798_138_800);
        let public = URL_SAFE_NO_PAD.decode(PUBLIC).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public);
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        public.verify(signed.as_bytes(), &signature).expect("the signature verifies");
        assert!(public.verify(b"else", &signature).is_err());
    }

    #[test]
    fn origin_has_no_usual_port_and_without_a_subject_none_is_claimed() {
        let vapid = opened(RAW, None).unwrap();
        let claims = |endpoint: &str| {
            let header = vapid.authorization(&Url::parse(endpoint).unwrap(), now())?;
            let claims = URL_SAFE_NO_PAD.decode(header.split('.').nth(1).unwrap()).unwrap();
            Some(String::from_utf8(claims).unwrap())
        };
        let expected = r#"{"aud":"https://fcm.googleapis.com","exp":1798138800}"#;
        assert_eq!(claims("https://fcm.googleapis.com:443/fcm/send/a").as_deref(), Some(expected));
        assert_eq!(claims("data:text/plain,x"), None);
    }

    #[test]
    fn subject_is_an_address_to_write_to() {
        for subject in ["ops@example.org", "mailto:", "http://example.org", ""] {
            let refused = opened(RAW, Some(subject)).unwrap_err().to_string();
            assert_eq!(refused, "/channels/push/vapid/subject: must begin with `mailto:` or `https://`", "{subject}");
        }
        assert!(opened(RAW, Some("https://example.org/contact")).is_ok());
    }

    #[test]
    fn identity_is_shown_by_its_public_key() {
        let shown = format!("{:?}", opened(RAW, None).unwrap());
        assert_eq!(shown, format!("Vapid {{ public_key: \"{PUBLIC}\", .. }}"));
    }
}
