//! The reports of Twilio and SignalWire on how a message went: form fields, signed over the address and all fields.
//!
//! <https://www.twilio.com/docs/messaging/guides/outbound-message-status-in-status-callbacks> and
//! <https://www.twilio.com/docs/usage/security#validating-requests>
//!
//! SignalWire's rule is that of its own validators
//! (<https://signalwire.com/docs/platform/webhooks#verify-webhook-signature> and `validate_webhook_signature` of its
//! server SDKs, whose vectors are the tests' here): the signing key of the dashboard in the place of the auth token;
//! the header `X-SignalWire-Signature`, or on what is compatible with Twilio `X-Twilio-Signature`; in it Twilio's
//! signature, but with fields of one name in the order in which they came, or the hexadecimal HMAC-SHA1 of the address
//! and the body as it is. Either is taken: each proves the key, the address and the whole body.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use url::{Url, form_urlencoded};

use super::SmsProvider;
use super::judgement::failed;
use crate::base::secret::Secret;
use crate::domain::notification::{DeliveryReport, ReportedFate};
use crate::ports::channel::provider::ProviderApi;
use crate::ports::channel::{Callback, CallbackError};

/// Fields of a report that are looked at.
const MOST_FIELDS: usize = 200;

/// The provider that signs reports, with its key.
pub struct Signer {
    provider: SmsProvider,
    key: hmac::Key,
}

impl Signer {
    /// Checks reports of this provider, which signs with this key.
    pub fn new(provider: SmsProvider, key: &Secret) -> Signer {
        Signer { provider, key: hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.expose().trim().as_bytes()) }
    }

    /// Whether the provider has signed this report.
    pub fn verify(&self, callback: &Callback) -> Result<(), CallbackError> {
        let names: &[&str] = match self.provider {
            SmsProvider::Twilio => &["x-twilio-signature"],
            SmsProvider::Signalwire => &["x-signalwire-signature", "x-twilio-signature"],
        };
        let header = names.iter().find(|name| callback.headers.contains_key(**name)).ok_or(CallbackError::NotSigned)?;
        let mut sent = callback.headers.get_all(*header).iter();
        let (Some(signature), None) = (sent.next(), sent.next()) else { return Err(CallbackError::NotSigned) };
        let signed = match self.provider {
            SmsProvider::Twilio => self.is_of_fields(signature.as_bytes(), callback),
            SmsProvider::Signalwire => {
                self.is_of_fields(signature.as_bytes(), callback) || self.is_of_body(signature.as_bytes(), callback)
            }
        };
        signed.then_some(()).ok_or(CallbackError::NotSigned)
    }

    /// Base64 over the address and all fields, sorted.
    fn is_of_fields(&self, signature: &[u8], callback: &Callback) -> bool {
        let mut fields = fields(callback.body);
        match self.provider {
            SmsProvider::Twilio => {
                fields.sort();
                fields.dedup();
            }
            SmsProvider::Signalwire => fields.sort_by(|one, other| one.0.cmp(&other.0)),
        }
        let fields: String = fields.into_iter().flat_map(|(name, value)| [name, value]).collect();
        STANDARD
            .decode(signature)
            .is_ok_and(|signature| self.has_signed(callback.address, fields.as_bytes(), &signature))
    }

    /// Hexadecimal over the address and the body as it is.
    fn is_of_body(&self, signature: &[u8], callback: &Callback) -> bool {
        hex::decode(signature).is_ok_and(|signature| self.has_signed(callback.address, callback.body, &signature))
    }

    fn has_signed(&self, address: &str, rest: &[u8], signature: &[u8]) -> bool {
        let signed =
            |address: &String| hmac::verify(&self.key, &[address.as_bytes(), rest].concat(), signature).is_ok();
        spellings(address).iter().any(signed)
    }
}

/// Reads a report.
pub fn read(body: &[u8], provider: &ProviderApi) -> Result<DeliveryReport, CallbackError> {
    let fields = fields(body);
    let field = |names: [&str; 2]| {
        let named = |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        names.into_iter().find_map(named)
    };
    let status = field(["MessageStatus", "SmsStatus"]);
    let status = status.ok_or_else(|| CallbackError::Unreadable("the field MessageStatus is missing".into()))?;
    let fate = match status {
        "delivered" | "read" => ReportedFate::Delivered,
        "undelivered" | "failed" | "canceled" => {
            let code = field(["ErrorCode", "SmsErrorCode"]).and_then(|code| code.parse().ok());
            ReportedFate::Failed {
                why: failed(provider, code, field(["ErrorMessage", "SmsErrorMessage"]).unwrap_or_default()),
            }
        }
        _ => ReportedFate::UnderWay,
    };
    Ok(DeliveryReport { provider_id: field(["MessageSid", "SmsSid"]).map(|id| provider.public_text(id)), fate })
}

fn fields(body: &[u8]) -> Vec<(String, String)> {
    let pairs = form_urlencoded::parse(body).take(MOST_FIELDS);
    pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

/// The address as it was told; Twilio may sign it without its port, or with the usual one.
fn spellings(address: &str) -> Vec<String> {
    let mut found = vec![address.to_owned()];
    if let Ok(mut url) = Url::parse(address) {
        let usual = url.port_or_known_default();
        let host = url.host_str().unwrap_or_default().to_owned();
        if url.port().is_some() {
            let _ = url.set_port(None);
            found.push(url.to_string());
        } else if let Some(port) = usual {
            found.push(address.replacen(&host, &format!("{host}:{port}"), 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    /// The example of Twilio's documentation and of its libraries.
    const EXAMPLE: &str = "RSOYDt4T1cUTdK1PDd93/VVr8B8=";
    const FIELDS: &[u8] =
        b"CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212";
    const ADDRESS: &str = "https://mycompany.com/myapp.php?foo=1&bar=2";

    fn verified(key: &str, address: &str, body: &[u8], signatures: &[&str]) -> bool {
        let signatures: Vec<_> = signatures.iter().map(|signature| ("x-twilio-signature", *signature)).collect();
        verified_by(SmsProvider::Twilio, key, address, body, &signatures)
    }

    fn verified_by(provider: SmsProvider, key: &str, address: &str, body: &[u8], signatures: &[(&str, &str)]) -> bool {
        let header = |(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        let headers: HeaderMap<http::HeaderValue> =
            signatures.iter().map(header).collect::<Vec<(http::HeaderName, _)>>().into_iter().collect();
        let callback = Callback { address, headers: &headers, body };
        Signer::new(provider, &Secret::new(key)).verify(&callback).is_ok()
    }

    /// The vectors A and B of SignalWire's server SDKs.
    #[test]
    fn signature_of_signalwire_is_the_one_of_its_vectors() {
        const BODY: &[u8] = br#"{"event":"call.state","params":{"call_id":"abc-123","state":"answered"}}"#;
        const HOOK: &str = "https://example.ngrok.io/webhook";
        const OF_BODY: &str = "c3c08c1fefaf9ee198a100d5906765a6f394bf0f";
        let (key, own) = ("PSKtest1234567890abcdef", "x-signalwire-signature");
        let by = |provider, key, address, body, signatures: &[(&str, &str)]| {
            verified_by(provider, key, address, body, signatures)
        };
        let signalwire =
            |key, address, body, name, signature| by(SmsProvider::Signalwire, key, address, body, &[(name, signature)]);
        for name in [own, "x-twilio-signature"] {
            assert!(signalwire("12345", ADDRESS, FIELDS, name, EXAMPLE), "{name}");
            assert!(signalwire(key, HOOK, BODY, name, OF_BODY), "{name}");
        }
        assert!(!signalwire("12346", ADDRESS, FIELDS, own, EXAMPLE), "another key");
        assert!(!signalwire("wrong-key", HOOK, BODY, own, OF_BODY), "another key");
        assert!(!signalwire(key, "https://example.ngrok.io/different", BODY, own, OF_BODY), "another address");
        assert!(!signalwire(key, HOOK, &BODY[1..], own, OF_BODY), "another body");
        // its own header is the one that counts, and Twilio has no other form
        let both = [(own, "x"), ("x-twilio-signature", EXAMPLE)];
        assert!(!by(SmsProvider::Signalwire, "12345", ADDRESS, FIELDS, &both));
        assert!(!by(SmsProvider::Twilio, key, HOOK, BODY, &[("x-twilio-signature", OF_BODY)]));
        assert!(!by(SmsProvider::Twilio, "12345", ADDRESS, FIELDS, &[(own, EXAMPLE)]));
    }

    #[test]
    fn fields_of_one_name_are_signed_in_the_order_in_which_they_came_by_signalwire() {
        let (key, address) = ("test-key", "https://example.com/hook");
        let signed = |text: String| {
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
            STANDARD.encode(hmac::sign(&key, text.as_bytes()))
        };
        let signature = signed(format!("{address}TobToaTob"));
        let verified = |provider, body: &[u8], name| verified_by(provider, key, address, body, &[(name, &signature)]);
        assert!(verified(SmsProvider::Signalwire, b"To=b&To=a&To=b", "x-signalwire-signature"));
        assert!(!verified(SmsProvider::Signalwire, b"To=a&To=b&To=b", "x-signalwire-signature"));
        assert!(
            !verified(SmsProvider::Twilio, b"To=b&To=a&To=b", "x-twilio-signature"),
            "Twilio sorts them, and takes each once"
        );
    }

    #[test]
    fn signature_is_the_one_of_twilio_s_example() {
        assert!(verified("12345", ADDRESS, FIELDS, &[EXAMPLE]));
        assert!(!verified("12346", ADDRESS, FIELDS, &[EXAMPLE]), "another key");
        assert!(!verified("12345", "https://mycompany.com/myapp.php", FIELDS, &[EXAMPLE]), "another address");
        assert!(!verified("12345", ADDRESS, &FIELDS[1..], &[EXAMPLE]), "other fields");
        for bad in [&[][..], &[""], &["x"], &[EXAMPLE, EXAMPLE]] {
            assert!(!verified("12345", ADDRESS, FIELDS, bad), "{bad:?}");
        }
    }

    #[test]
    fn address_is_signed_with_its_port_or_without() {
        assert_eq!(spellings("https://a.org/x?y=1"), ["https://a.org/x?y=1", "https://a.org:443/x?y=1"]);
        assert_eq!(spellings("https://a.org:8443/x"), ["https://a.org:8443/x", "https://a.org/x"]);
    }

    #[test]
    fn every_status_has_its_meaning() {
        let provider = ProviderApi::new("Twilio", "", "https://a.org", Secret::new("canary"), 1).unwrap();
        let parse = |body: &str| read(body.as_bytes(), &provider);
        let fate = |status: &str| parse(&format!("MessageStatus={status}")).unwrap().fate;
        for under_way in ["queued", "accepted", "scheduled", "sending", "sent", "something new"] {
            assert_eq!(fate(under_way), ReportedFate::UnderWay, "{under_way}");
        }
        assert_eq!((fate("delivered"), fate("read")), (ReportedFate::Delivered, ReportedFate::Delivered));
        let why = "the message did not arrive, and no reason was given".to_owned();
        for failed in ["failed", "undelivered", "canceled"] {
            assert_eq!(fate(failed), ReportedFate::Failed { why: why.clone() }, "{failed}");
        }
        assert_eq!(
            parse("MessageSid=SM1&SmsStatus=undelivered&ErrorCode=30005"),
            Ok(DeliveryReport {
                provider_id: Some("SM1".into()),
                fate: ReportedFate::Failed {
                    why: "the message did not arrive: the number is not known (error 30005)".into()
                },
            })
        );
        let said = parse("MessageStatus=failed&ErrorCode=39999&ErrorMessage=no+canary+today").unwrap().fate;
        let why = "the message did not arrive: no [redacted] today (error 39999)".into();
        assert_eq!(said, ReportedFate::Failed { why });
        assert_eq!(parse("{}"), Err(CallbackError::Unreadable("the field MessageStatus is missing".into())));
    }
}
