//! OAuth fields of a credential's document, and the answer of a token endpoint: read, judged by time, written back.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::secret::{Secret, erase};

/// How long before its end an access token is renewed, at most.
const AHEAD: Duration = Duration::from_secs(5 * 60);
/// Of the life of a short one.
const SHARE_OF_LIFE: f64 = 0.1;
/// How much earlier it may be, by chance that is the credential's own: many that were made together part ways.
const SPREAD: f64 = 0.2;

/// The fields of a document that OAuth knows. The rest stays as it is.
#[derive(Debug, Deserialize)]
pub struct OAuthTokens {
    #[serde(default)]
    pub access_token: Option<Secret>,
    #[serde(default)]
    pub refresh_token: Option<Secret>,
    #[serde(default)]
    pub client_secret: Option<Secret>,
    /// The life of the access token in seconds, from when it was given.
    #[serde(default, deserialize_with = "seconds")]
    pub expires_in: Option<u64>,
}

impl OAuthTokens {
    /// Reads a document; `None` where it is no object, or one of the fields is not what it should be.
    pub fn read(document: &Secret) -> Option<OAuthTokens> {
        serde_json::from_str(document.expose()).ok()
    }
}

/// The answer of a token endpoint (RFC 6749, section 5.1).
#[derive(Debug, Deserialize)]
pub struct OAuthTokenResponse {
    pub access_token: Secret,
    #[serde(default)]
    pub token_type: Option<String>,
    #[serde(default, deserialize_with = "seconds")]
    pub expires_in: Option<u64>,
    /// Absent: the old one stays good.
    #[serde(default)]
    pub refresh_token: Option<Secret>,
    #[serde(default)]
    pub scope: Option<String>,
}

impl OAuthTokenResponse {
    /// When the access token ends, where the answer says so.
    pub fn expires_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        now.checked_add_signed(to_delta(Duration::from_secs(self.expires_in?)))
    }

    /// The document with what was given in its place; without an old one a new document.
    pub fn written_into(&self, old: Option<&Secret>) -> Secret {
        let mut document =
            OpenDocument(old.and_then(|old| serde_json::from_str(old.expose()).ok()).unwrap_or_default());
        if !document.0.is_object() {
            document.0 = Value::Object(Default::default());
        }
        let fields = [
            ("access_token", Some(self.access_token.expose().into())),
            ("token_type", self.token_type.as_deref().map(Value::from)),
            ("expires_in", Some(self.expires_in.map_or(Value::Null, Value::from))),
            (
                "refresh_token",
                self.refresh_token.as_ref().map(Secret::expose).filter(|token| !token.is_empty()).map(Value::from),
            ),
            ("scope", self.scope.as_deref().map(Value::from)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                erase(&mut document.0[name]);
                document.0[name] = value;
            }
        }
        // what its owner wrote of the old token's end
        document.0.as_object_mut().map(|fields| fields.remove("expires_at"));
        Secret::new(document.0.to_string())
    }
}

/// A document in the clear, overwritten when it is no longer needed.
struct OpenDocument(Value);

impl Drop for OpenDocument {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}

/// A number of seconds, which some providers write as a text.
fn seconds<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum WrittenTokens {
        Number(f64),
        Text(String),
    }
    let written = Option::<WrittenTokens>::deserialize(from)?;
    let number = match written {
        None => return Ok(None),
        Some(WrittenTokens::Number(number)) => Some(number),
        Some(WrittenTokens::Text(text)) => text.trim().parse().ok(),
    };
    // what is no length of time says nothing
    Ok(number.filter(|number: &f64| *number >= 0.0 && *number < 1e10).map(|number| number as u64))
}

/// Where an access token stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// Nothing is to be done; or nobody knows, and only the API can say.
    Fresh,
    /// Good, and to be renewed.
    Due,
    Over,
}

impl Age {
    /// Of a token that ends at an instant after a life of so many seconds, as far as they are known.
    pub fn of(id: Uuid, expires_at: Option<DateTime<Utc>>, life: Option<u64>, now: DateTime<Utc>) -> Age {
        let Some(end) = expires_at else { return Age::Fresh };
        let of_life = life.map(|life| Duration::from_secs(life).mul_f64(SHARE_OF_LIFE));
        let ahead = of_life.map_or(AHEAD, |share| share.min(AHEAD)).mul_f64(1.0 + SPREAD * share(id));
        match end - now {
            left if left <= chrono::TimeDelta::zero() => Age::Over,
            left if left <= to_delta(ahead) => Age::Due,
            _ => Age::Fresh,
        }
    }
}

/// A number in 0..1 that is the credential's own.
fn share(id: Uuid) -> f64 {
    f64::from(crc32fast::hash(id.as_bytes())) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::json;

    use super::*;

    fn granted(json: Value) -> OAuthTokenResponse {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn new_tokens_replace_the_old_and_the_rest_stays() {
        let old = Secret::new(
            json!({ "access_token": "a1", "refresh_token": "r1", "client_secret": "c", "expires_in": 60, "expires_at": 7, "note": [1] })
                .to_string(),
        );
        let read = |secret: Secret| serde_json::from_str::<Value>(secret.expose()).unwrap();
        let rotated = granted(json!({ "access_token": "a2", "refresh_token": "r2", "expires_in": "3600" }));
        assert_eq!(
            read(rotated.written_into(Some(&old))),
            json!({ "access_token": "a2", "refresh_token": "r2", "client_secret": "c", "expires_in": 3600, "note": [1] })
        );
        let kept = granted(json!({ "access_token": "a2", "token_type": "Bearer", "id_token": "x.y.z" }));
        assert_eq!(
            read(kept.written_into(Some(&old))),
            json!({ "access_token": "a2", "refresh_token": "r1", "client_secret": "c", "expires_in": null,
                "note": [1], "token_type": "Bearer" })
        );
        assert_eq!(
            read(kept.written_into(None)),
            json!({ "access_token": "a2", "expires_in": null, "token_type": "Bearer" })
        );
    }

    #[test]
    fn length_of_time_is_a_number_or_a_text_and_nonsense_is_nothing() {
        let life = |value: Value| granted(json!({ "access_token": "a", "expires_in": value })).expires_in;
        assert_eq!([life(json!(60)), life(json!("60")), life(json!(59.9))], [Some(60), Some(60), Some(59)]);
        for nothing in [json!(-1), json!("soon"), json!(1e300), Value::Null] {
            assert_eq!(life(nothing.clone()), None, "{nothing}");
        }
    }

    #[test]
    fn token_is_renewed_five_minutes_or_a_tenth_of_its_life_ahead_and_a_little_earlier_by_chance() {
        let end: DateTime<Utc> = "2026-11-21T12:00:00Z".parse().unwrap();
        for id in (0..100).map(|n| Uuid::from_u128(n * 7919)) {
            let age = |life, left| Age::of(id, Some(end), life, end - TimeDelta::seconds(left));
            assert_eq!([age(Some(3600), 361), age(Some(3600), 300)], [Age::Fresh, Age::Due]);
            assert_eq!([age(Some(100), 13), age(Some(100), 10)], [Age::Fresh, Age::Due]);
            assert_eq!([age(None, 361), age(None, 300), age(None, 1)], [Age::Fresh, Age::Due, Age::Due]);
            assert_eq!([age(Some(100), 0), age(None, -5)], [Age::Over, Age::Over]);
            assert_eq!(Age::of(id, None, Some(100), end), Age::Fresh);
        }
        let shares: Vec<f64> = (0..1000).map(|n| share(Uuid::from_u128(n))).collect();
        let mean = shares.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean) && shares.iter().all(|share| (0.0..=1.0).contains(share)), "{mean}");
    }

    #[test]
    fn document_that_is_no_object_of_texts_holds_no_tokens() {
        for odd in ["\"text\"", "7", "{\"access_token\":7}", "{", "null"] {
            assert!(OAuthTokens::read(&Secret::new(odd)).is_none(), "{odd}");
        }
        let read = OAuthTokens::read(&Secret::new("{\"access_token\":\"canary\"}")).unwrap();
        assert!(!format!("{read:?}").contains("canary"));
    }
}
