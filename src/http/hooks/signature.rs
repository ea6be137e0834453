//! Signatures of foreign webhooks, over the body as it came, each scheme as its service describes it.
//!
//! A request is let in only when one of its signatures was made with one of the secrets, and lately where the scheme
//! says when. Everything else is refused in the same words. Comparisons take the same time wherever they differ.

use aws_lc_rs::{constant_time, digest, hmac};
use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::base::secret::Secret;

/// How far a timestamp may be from now, before or after it.
pub const TOLERANCE: TimeDelta = TimeDelta::minutes(5);
/// The least that a secret has, in bytes.
const LEAST: usize = 8;
/// Signatures of one request that are looked at.
const MOST_SIGNATURES: usize = 16;

/// Signature schemes of services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Standard Webhooks 1.0:
    /// <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>
    #[default]
    Standard,
    /// `X-Hub-Signature-256`: <https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries>
    Github,
    /// `Stripe-Signature`, `v1`: <https://docs.stripe.com/webhooks#verify-manually>
    Stripe,
    /// `X-Slack-Signature`, `v0`: <https://docs.slack.dev/authentication/verifying-requests-from-slack>
    Slack,
    /// A shared token in a header.
    Token,
}

/// Why a request is not let in; for the log of the operator, never for its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureRefusal {
    /// A header that the scheme needs is not there once, or can't be read.
    Header,
    /// The timestamp is more than five minutes away.
    Time,
    /// No signature was made with any of the secrets.
    Signature,
}

/// A secret as it is used.
pub enum HookKey {
    /// A key of HMAC-SHA-256.
    Hmac(Box<hmac::Key>),
    /// SHA-256 of the token: texts of any length are compared in the same time.
    Token(digest::Digest),
}

impl Preset {
    /// Every scheme.
    pub const ALL: [Preset; 5] = [Preset::Standard, Preset::Github, Preset::Stripe, Preset::Slack, Preset::Token];
}

impl HookKey {
    /// # Errors
    /// What is wrong with the secret.
    pub fn of(preset: Preset, secret: &Secret) -> Result<HookKey, String> {
        let text = secret.expose();
        let hmac = |bytes: &[u8]| match bytes.len() {
            0..LEAST => Err(format!("must have at least {LEAST} bytes")),
            _ => Ok(HookKey::Hmac(Box::new(hmac::Key::new(hmac::HMAC_SHA256, bytes)))),
        };
        match preset {
            _ if text.trim().len() < LEAST => Err(format!("must have at least {LEAST} characters")),
            Preset::Standard => {
                let encoded = text.strip_prefix("whsec_").unwrap_or(text);
                hmac(&STANDARD.decode(encoded).map_err(|_| "must be `whsec_` and base64 (RFC 4648, section 4)")?)
            }
            Preset::Github | Preset::Stripe | Preset::Slack => hmac(text.as_bytes()),
            Preset::Token => Ok(HookKey::Token(digest::digest(&digest::SHA256, text.as_bytes()))),
        }
    }

    fn has_signed(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        match self {
            HookKey::Hmac(key) => {
                let mut context = hmac::Context::with_key(key);
                parts.iter().for_each(|part| context.update(part));
                constant_time::verify_slices_are_equal(context.sign().as_ref(), signature).is_ok()
            }
            HookKey::Token(_) => false,
        }
    }

    fn is_token(&self, text: &str) -> bool {
        let sent = digest::digest(&digest::SHA256, text.as_bytes());
        matches!(self, HookKey::Token(token) if constant_time::verify_slices_are_equal(token.as_ref(), sent.as_ref()).is_ok())
    }
}

/// Lets a request in, or says why not. `token_header` carries the token of [`Preset::Token`].
pub fn verify(
    preset: Preset,
    keys: &[HookKey],
    token_header: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: DateTime<Utc>,
) -> Result<(), SignatureRefusal> {
    let signed = |parts: &[&[u8]], signatures: &[Vec<u8>]| {
        let each = signatures.iter().take(MOST_SIGNATURES);
        // every key and signature is tried: how long it takes tells nothing of which one was near
        let fitting = each.flat_map(|one| keys.iter().map(move |key| (key, one)));
        match fitting.filter(|(key, one)| key.has_signed(parts, one)).count() {
            0 => Err(SignatureRefusal::Signature),
            _ => Ok(()),
        }
    };
    match preset {
        Preset::Standard => {
            let (id, time) = (header(headers, "webhook-id")?, header(headers, "webhook-timestamp")?);
            fresh(time, now)?;
            let list = header(headers, "webhook-signature")?.split(' ');
            let signatures = list.filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok()).collect::<Vec<_>>();
            signed(&[id.as_bytes(), b".", time.as_bytes(), b".", body], &signatures)
        }
        Preset::Github => {
            let signature =
                header(headers, "x-hub-signature-256")?.strip_prefix("sha256=").ok_or(SignatureRefusal::Header)?;
            signed(&[body], &[hex::decode(signature).map_err(|_| SignatureRefusal::Header)?])
        }
        Preset::Stripe => {
            let list = header(headers, "stripe-signature")?;
            let mut parts = list.split(',').filter_map(|part| part.trim().split_once('='));
            let time =
                parts.clone().find(|(name, _)| *name == "t").map(|(_, time)| time).ok_or(SignatureRefusal::Header)?;
            if parts.clone().filter(|(name, _)| *name == "t").count() > 1 {
                return Err(SignatureRefusal::Header);
            }
            fresh(time, now)?;
            let signatures: Vec<_> =
                parts.by_ref().filter(|(name, _)| *name == "v1").filter_map(|(_, one)| hex::decode(one).ok()).collect();
            signed(&[time.as_bytes(), b".", body], &signatures)
        }
        Preset::Slack => {
            let time = header(headers, "x-slack-request-timestamp")?;
            fresh(time, now)?;
            let signature =
                header(headers, "x-slack-signature")?.strip_prefix("v0=").ok_or(SignatureRefusal::Header)?;
            let signature = hex::decode(signature).map_err(|_| SignatureRefusal::Header)?;
            signed(&[b"v0:", time.as_bytes(), b":", body], &[signature])
        }
        Preset::Token => {
            let sent = header(headers, token_header)?;
            match keys.iter().filter(|key| key.is_token(sent)).count() {
                0 => Err(SignatureRefusal::Signature),
                _ => Ok(()),
            }
        }
    }
}

/// A header that is there once.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, SignatureRefusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next().and_then(|value| value.to_str().ok()), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value),
        _ => Err(SignatureRefusal::Header),
    }
}

/// Seconds since 1970, near enough to now. Only digits: another spelling of the same instant is another text to sign.
fn fresh(time: &str, now: DateTime<Utc>) -> Result<(), SignatureRefusal> {
    if time.len() > 12 || !time.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SignatureRefusal::Header);
    }
    let at =
        time.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0)).ok_or(SignatureRefusal::Header)?;
    if (now - at).abs() > TOLERANCE { Err(SignatureRefusal::Time) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that its service has described, with its secret and its time.
    struct Vector {
        preset: Preset,
        secret: &'static str,
        headers: Vec<(&'static str, String)>,
        body: &'static [u8],
        at: i64,
    }

    fn vectors() -> Vec<Vector> {
        vec![
            // the reference libraries of Standard Webhooks (and of Svix) test with this one
            Vector {
                preset: Preset::Standard,
                secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                headers: vec![
                    ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".into()),
                    ("webhook-timestamp", "1614265330".into()),
                    ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".into()),
                ],
                body: br#"{"test": 2432232314}"#,
                at: 1_614_265_330,
            },
            // the example of GitHub's page
            Vector {
                preset: Preset::Github,
                secret: "It's a Secret to Everybody",
                headers: vec![(
                    "x-hub-signature-256",
                    "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17".into(),
                )],
                body: b"Hello, World!",
                at: 0,
            },
            // the example of Slack's page
            Vector {
                preset: Preset::Slack,
                secret: "8f742231b10e8888abcd99yyyzzz85a5",
                headers: vec![
                    ("x-slack-request-timestamp", "1531420618".into()),
                    (
                        "x-slack-signature",
                        "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503".into(),
                    ),
                ],
                body: b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
                at: 1_531_420_618,
            },
            // printf '1492774577.{"id":"evt_1"}' | openssl dgst -sha256 -hmac whsec_test_secret_1
            Vector {
                preset: Preset::Stripe,
                secret: "whsec_test_secret_1",
                headers: vec![(
                    "stripe-signature",
                    "t=1492774577,v1=7ae13213ba9de3a8af213923c70a6808f7a23076b200f2dfd9af062740c90246,v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39".into(),
                )],
                body: br#"{"id":"evt_1"}"#,
                at: 1_492_774_577,
            },
            Vector {
                preset: Preset::Token,
                secret: "a-shared-token",
                headers: vec![("x-hook-token", "a-shared-token".into())],
                body: b"{}",
                at: 0,
            },
        ]
    }

    impl Vector {
        fn verify(&self, headers: &[(&'static str, String)], body: &[u8], at: i64) -> Result<(), SignatureRefusal> {
            let keys = [
                HookKey::of(self.preset, &Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSX")).unwrap(),
                HookKey::of(self.preset, &Secret::new(self.secret)).unwrap(),
            ];
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            let now = DateTime::from_timestamp(at, 0).unwrap();
            verify(self.preset, &keys, "x-hook-token", &headers, body, now)
        }
    }

    #[test]
    fn documented_signature_of_each_service_is_accepted_also_with_the_old_secret() {
        for vector in vectors() {
            assert_eq!(vector.verify(&vector.headers, vector.body, vector.at), Ok(()), "{:?}", vector.preset);
        }
    }

    #[test]
    fn five_minutes_either_way_are_near_enough_and_no_more() {
        for vector in vectors().iter().filter(|vector| vector.at != 0) {
            for (off, verdict) in
                [(300, Ok(())), (-300, Ok(())), (301, Err(SignatureRefusal::Time)), (-301, Err(SignatureRefusal::Time))]
            {
                assert_eq!(
                    vector.verify(&vector.headers, vector.body, vector.at + off),
                    verdict,
                    "{:?}",
                    vector.preset
                );
            }
        }
    }

    #[test]
    fn one_good_signature_among_others_is_enough() {
        let vector = &vectors()[0];
        let mut headers = vector.headers.clone();
        headers[2].1 = format!("v1a,x v1,AAAA {} v2,y", headers[2].1);
        assert_eq!(vector.verify(&headers, vector.body, vector.at), Ok(()));
    }

    #[test]
    fn five_thousand_mutations_of_body_signature_and_time_are_all_refused() {
        let mut tried = 0;
        for vector in vectors() {
            let refused = |headers: &[(&'static str, String)], body: &[u8], what: &str| {
                assert!(vector.verify(headers, body, vector.at).is_err(), "{:?}: {what}", vector.preset);
            };
            if vector.preset != Preset::Token {
                for at in 0..vector.body.len() {
                    for bit in 0..8 {
                        let mut body = vector.body.to_vec();
                        body[at] ^= 1 << bit;
                        refused(&vector.headers, &body, "another body");
                        tried += 1;
                    }
                    refused(&vector.headers, &vector.body[..at], "a body that was cut");
                    tried += 1;
                }
                refused(&vector.headers, &[vector.body, b" "].concat(), "a longer body");
            }
            for (place, (name, value)) in vector.headers.iter().enumerate() {
                let mut without = vector.headers.clone();
                without.remove(place);
                refused(&without, vector.body, "a header is missing");
                let twice = [vector.headers.clone(), vec![(*name, value.clone())]].concat();
                refused(&twice, vector.body, "a header is there twice");
                // of Stripe's header only the first two parts are judged; hex is the same in capitals
                let judged = value.rfind(",v0=").unwrap_or(value.len());
                for at in 0..judged {
                    for other in ["0", "a", "Z", "=", " ", ","] {
                        let mut changed = value.clone();
                        changed.replace_range(at..=at, other);
                        if changed.trim() != value.as_str() && !changed.eq_ignore_ascii_case(value) {
                            let mut headers = vector.headers.clone();
                            headers[place].1 = changed.clone();
                            refused(&headers, vector.body, &format!("{name}: {changed}"));
                            tried += 1;
                        }
                    }
                    let mut headers = vector.headers.clone();
                    headers[place].1 = value[..at].to_owned();
                    refused(&headers, vector.body, "a header that was cut");
                    tried += 1;
                }
            }
        }
        assert!(tried >= 5000, "only {tried} mutations were tried");
    }

    #[test]
    fn hook_without_a_key_accepts_nothing() {
        for vector in vectors() {
            let headers =
                vector.headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            let now = DateTime::from_timestamp(vector.at, 0).unwrap();
            assert!(verify(vector.preset, &[], "x-hook-token", &headers, vector.body, now).is_err());
        }
    }
}
