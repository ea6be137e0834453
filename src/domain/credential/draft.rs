//! A credential as it was asked for: the body of a PUT, checked. No fault repeats a value that was sent, because any of
//! them may be a secret that stands in the wrong place; the document leaves here as a [`Secret`] alone.

mod fit;
mod hosts;
mod new_credential;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value};
use url::Url;
use utoipa::PartialSchema;

use crate::base::invalid::{ValidationErrors, bounded, did_you_mean, escape, unknown_fields};
use crate::base::json::typed::field_names;
use crate::base::secret::{Secret, erase};
use crate::domain::credential::{
    ClientAuth, Credential, DOCUMENT_BYTES, DOCUMENT_TEXTS, Inject, InjectForm, MISSED_SCOPES, OAuth,
};

pub use fit::check_places;
pub use hosts::split_port;
pub use new_credential::NewCredential;

/// Longest text among the fields beside the document, in characters.
const TEXT_LENGTH: usize = 2_048;
/// How many scopes an OAuth client may ask for.
pub const SCOPES: usize = 100;

/// A credential as it was asked for.
#[derive(Debug, Clone)]
pub struct CredentialDraft {
    /// As JSON text. `None`: the stored one is kept.
    pub document: Option<Secret>,
    /// Of the access token in the document, where it says so.
    pub expires_at: Option<DateTime<Utc>>,
    /// Hosts that it may be sent to, each with an optional port.
    pub hosts: Vec<String>,
    /// The form in which it is put into requests.
    pub inject: Option<Inject>,
    /// Renewal by OAuth.
    pub oauth: Option<OAuth>,
}

impl CredentialDraft {
    /// Reads the body of a PUT at `now`; every fault is named. The body is erased after it was read.
    ///
    /// # Errors
    /// Everything that is wrong, each with its place.
    pub fn parse(mut body: Value, now: DateTime<Utc>) -> Result<CredentialDraft, ValidationErrors> {
        let read = read(&body, now);
        erase(&mut body);
        read
    }

    /// Whether the stored document, which is kept, is one that can be put into requests in the way that is asked for.
    ///
    /// # Errors
    /// What is wrong, each with its place.
    pub fn check_document(&self, kept: &Secret) -> Result<(), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        if let (Some(inject), Ok(mut document)) = (&self.inject, serde_json::from_str::<Value>(kept.expose())) {
            fit::check(inject, &document, self.oauth.is_some(), &mut faults);
            erase(&mut document);
        }
        faults.into_result(())
    }

    /// Whether the stored document, which is kept, would go nowhere that its owner has not bound it to: who may write a
    /// credential may not read it, and must not have it sent to a place of their own.
    ///
    /// # Errors
    /// What is wrong, each with its place.
    pub fn check_hosts(&self, stored: &Credential) -> Result<(), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        if !self.hosts.iter().all(|host| hosts::covers(&stored.hosts, host)) {
            faults.add("/hosts", "send the document again: without it hosts can be taken away, and none be added");
        }
        let place = |oauth: &OAuth| {
            (oauth.provider.clone(), oauth.issuer.clone(), oauth.token_url.clone(), oauth.client_id.clone())
        };
        if self.oauth.is_some() && self.oauth.as_ref().map(place) != stored.oauth.as_ref().map(place) {
            let why = "send the document again: without it `provider`, `issuer`, `token_url` and `client_id` stay as \
                       they are";
            faults.add("/oauth", why);
        }
        faults.into_result(())
    }
}

fn read(body: &Value, now: DateTime<Utc>) -> Result<CredentialDraft, ValidationErrors> {
    let Some(fields) = body.as_object() else { return Err(ValidationErrors::one("", "the body is a JSON object")) };
    let mut faults = ValidationErrors::new();
    refuse_unknown::<NewCredential>(fields, "", &mut faults);
    let document = present(fields, "document");
    let secret = document.and_then(|document| written(document, &mut faults));
    let hosts = hosts::read(present(fields, "hosts"), &mut faults);
    let inject = present(fields, "inject").and_then(|inject| read_inject(inject, &mut faults));
    let oauth = present(fields, "oauth").and_then(|oauth| read_oauth(oauth, &mut faults));
    if let (Some(inject), Some(document)) = (&inject, document) {
        fit::check(inject, document, present(fields, "oauth").is_some(), &mut faults);
    }
    if oauth.is_some() && document.is_some_and(|document| !document.is_object()) {
        faults.add("/document", "must be an object where `oauth` is given: `access_token`, `refresh_token`, …");
    }
    let expires_at = document.filter(|_| oauth.is_some()).and_then(|document| expiry(document, now, &mut faults));
    faults.into_result(CredentialDraft { document: secret, expires_at, hosts, inject, oauth })
}

/// A field that is there; `null` is as good as absent.
fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// Adds a fault for each field that is not published of a `T`.
fn refuse_unknown<T: PartialSchema + 'static>(
    fields: &Map<String, Value>,
    pointer: &str,
    faults: &mut ValidationErrors,
) {
    let known = field_names::<T>();
    for name in unknown_fields(fields, known) {
        let near = did_you_mean(name, known.iter().copied());
        let place = format!("{pointer}/{}", escape(name));
        faults.add(place, format!("unknown field; known are {}{near}", known.join(", ")));
    }
}

/// The document as text, in a buffer that never grows: no half of it is left behind.
fn written(document: &Value, faults: &mut ValidationErrors) -> Option<Secret> {
    let mut text = zeroize::Zeroizing::new(Vec::with_capacity(DOCUMENT_BYTES));
    let mut room = DraftLimit { text: &mut text, length: 0 };
    if serde_json::to_writer(&mut room, document).is_err() {
        faults.add("/document", "can't be written as JSON");
        return None;
    }
    let length = room.length;
    if length > DOCUMENT_BYTES {
        faults.add("/document", format!("must be at most {DOCUMENT_BYTES} bytes of JSON, this has {length}"));
        return None;
    }
    let count = texts(document);
    if count > DOCUMENT_TEXTS {
        faults.add("/document", format!("must have at most {DOCUMENT_TEXTS} texts and numbers, this has {count}"));
        return None;
    }
    std::str::from_utf8(&text).ok().map(Secret::new)
}

/// How many texts and numbers there are, however deep.
fn texts(value: &Value) -> usize {
    match value {
        Value::String(_) | Value::Number(_) => 1,
        Value::Array(items) => items.iter().map(texts).sum(),
        Value::Object(fields) => fields.values().map(texts).sum(),
        Value::Null | Value::Bool(_) => 0,
    }
}

/// Takes what fits and counts all.
struct DraftLimit<'a> {
    text: &'a mut Vec<u8>,
    length: usize,
}

impl std::io::Write for DraftLimit<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.length += bytes.len();
        if self.length <= DOCUMENT_BYTES {
            self.text.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn read_inject(inject: &Value, faults: &mut ValidationErrors) -> Option<Inject> {
    let Some(fields) = inject.as_object() else {
        faults.add("/inject", "expected an object such as {\"as\": \"bearer\", \"from\": \"/access_token\"}");
        return None;
    };
    refuse_unknown::<Inject>(fields, "/inject", faults);
    let forms = InjectForm::ALL.map(|form| (form.as_str(), form));
    let form = word(fields, "/inject", "as", &forms, faults);
    if present(fields, "as").is_none() {
        faults.add("/inject/as", format!("is needed: one of {}", InjectForm::WORDS.join(", ")));
    }
    let mut part = |name: &str| text(fields, "/inject", name, faults);
    let (from, name, template) = (part("from"), part("name"), part("template"));
    let inject = Inject { form: form?, from, name, template };
    fit::check_form(&inject, faults);
    Some(inject)
}

fn read_oauth(oauth: &Value, faults: &mut ValidationErrors) -> Option<OAuth> {
    let place = "/oauth";
    let Some(fields) = oauth.as_object() else {
        faults.add(place, "expected an object: {\"provider\": …}, or {\"token_url\": …, \"client_id\": …}");
        return None;
    };
    refuse_unknown::<OAuth>(fields, place, faults);
    let mut part = |name: &str| text(fields, place, name, faults);
    let (provider, token_url, client_id) = (part("provider"), part("token_url"), part("client_id"));
    let issuer = part("issuer");
    let ways = ClientAuth::ALL.map(|way| (way.as_str(), way));
    let client_auth = word(fields, place, "client_auth", &ways, faults);
    match (&provider, &token_url, &client_id) {
        (Some(_), None, None) | (None, Some(_), Some(_)) => {}
        // as it was connected
        (Some(_), None, Some(_)) if issuer.is_some() => {}
        (Some(_), ..) => {
            faults.add(place, "has a `provider`, which brings its own `token_url` and `client_id`; leave those out");
        }
        _ => faults.add(place, "needs `provider`, or both `token_url` and `client_id`"),
    }
    if issuer.is_some() && provider.is_none() {
        faults.add("/oauth/issuer", "goes with a `provider`; leave it out");
    }
    if token_url.as_deref().is_some_and(|url| !is_plain_url(url)) {
        faults.add("/oauth/token_url", "must be an http or https address without user, password or fragment");
    }
    let mut list = |name: &str, most: usize| scopes(fields, (name, most), faults);
    let (scopes, missed_scopes) = (list("scopes", SCOPES), list("missed_scopes", MISSED_SCOPES));
    Some(OAuth { provider, issuer, token_url, client_id, client_auth, scopes, missed_scopes })
}

fn is_plain_url(text: &str) -> bool {
    let plain = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none()
    };
    Url::parse(text).is_ok_and(|url| plain(&url))
}

/// RFC 6749, appendix A.4: a scope is of printable ASCII without blank, quote and backslash.
fn scopes(fields: &Map<String, Value>, (name, most): (&str, usize), faults: &mut ValidationErrors) -> Vec<String> {
    let Some(scopes) = present(fields, name) else { return vec![] };
    let scope = |value: &Value| {
        let text = value.as_str()?;
        let fine = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
        (!text.is_empty() && text.len() <= 200 && text.chars().all(fine)).then(|| text.to_owned())
    };
    let read: Option<Vec<String>> =
        scopes.as_array().filter(|list| list.len() <= most).and_then(|list| list.iter().map(scope).collect());
    read.unwrap_or_else(|| {
        let why = format!("must be a list of at most {most} scopes, such as [\"mail.read\"]");
        faults.add(format!("/oauth/{name}"), why);
        vec![]
    })
}

/// `expires_at` of the document, an RFC 3339 time or seconds since 1970; else `expires_in`, seconds from now.
fn expiry(document: &Value, now: DateTime<Utc>, faults: &mut ValidationErrors) -> Option<DateTime<Utc>> {
    match (document.get("expires_at"), document.get("expires_in").and_then(Value::as_i64)) {
        (Some(Value::String(text)), _) => {
            let short = bounded(text, TEXT_LENGTH).ok();
            let read = short.and_then(|text| DateTime::parse_from_rfc3339(text).ok()).map(|at| at.to_utc());
            if read.is_none() {
                faults.add("/document/expires_at", "must be an RFC 3339 time, or seconds since 1970");
            }
            read
        }
        (Some(Value::Number(seconds)), _) => DateTime::from_timestamp(seconds.as_f64()? as i64, 0),
        (_, Some(seconds)) => now.checked_add_signed(TimeDelta::try_seconds(seconds)?),
        _ => None,
    }
}

fn text(fields: &Map<String, Value>, place: &str, name: &str, faults: &mut ValidationErrors) -> Option<String> {
    match present(fields, name)? {
        Value::String(text) if text.chars().count() <= TEXT_LENGTH && !text.chars().any(char::is_control) => {
            Some(text.clone())
        }
        _ => {
            faults.add(
                format!("{place}/{name}"),
                format!("must be a text of at most {TEXT_LENGTH} characters, none of them control characters"),
            );
            None
        }
    }
}

/// One of a closed set of words; what was written is not repeated, the nearest word is named.
fn word<T: Copy>(
    fields: &Map<String, Value>,
    place: &str,
    name: &str,
    words: &[(&str, T)],
    faults: &mut ValidationErrors,
) -> Option<T> {
    let written = present(fields, name)?;
    let found = written.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
    if found.is_none() {
        let names = words.iter().map(|(word, _)| *word);
        let near = did_you_mean(written.as_str().unwrap_or_default(), names.clone());
        let list = names.collect::<Vec<_>>().join(", ");
        faults.add(format!("{place}/{name}"), format!("must be one of {list}{near}"));
    }
    found.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_800_000_000, 0).unwrap();

    fn parse(body: Value) -> Result<CredentialDraft, ValidationErrors> {
        CredentialDraft::parse(body, NOW)
    }

    fn faults(body: Value) -> Vec<(String, String)> {
        let shown = body.to_string();
        let faults = parse(body).expect_err(&shown);
        faults.0.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
    }

    #[test]
    fn credential_is_read_whole() {
        let draft = parse(json!({
            "document": { "id": 7, "key": "canary" }, "hosts": ["API.example.org", "*.bücher.example:8443"],
            "inject": { "as": "header", "name": "X-Key", "template": "Token {/id}:{/key}" },
        }))
        .unwrap();
        assert_eq!(draft.document.unwrap().expose(), r#"{"id":7,"key":"canary"}"#);
        assert_eq!(draft.hosts, ["api.example.org", "*.xn--bcher-kva.example:8443"]);
        let inject = Inject {
            form: InjectForm::Header,
            from: None,
            name: Some("X-Key".into()),
            template: Some("Token {/id}:{/key}".into()),
        };
        assert_eq!((draft.inject, draft.oauth, draft.expires_at), (Some(inject), None, None));
        let kept = parse(json!({ "hosts": [] })).unwrap();
        assert!(kept.document.is_none() && kept.inject.is_none());
    }

    #[test]
    fn hosts_and_scopes_are_taken_up_to_their_number_and_refused_one_beyond_it() {
        let hosts = |count: usize| {
            let hosts: Vec<String> = (0..count).map(|n| format!("h{n}.example.org")).collect();
            json!({ "hosts": hosts })
        };
        assert_eq!(parse(hosts(50)).unwrap().hosts.len(), 50);
        assert_eq!(faults(hosts(51))[0].0, "/hosts");
        let taken = |count: usize| {
            let (fields, mut faults) = (json!({ "scopes": vec!["mail.read"; count] }), ValidationErrors::new());
            (scopes(fields.as_object().unwrap(), ("scopes", SCOPES), &mut faults).len(), faults.0.len())
        };
        assert_eq!((taken(SCOPES), taken(SCOPES + 1)), ((SCOPES, 0), (0, 1)));
    }

    #[test]
    fn oauth_client_is_described_here_or_by_the_operator() {
        let draft = |oauth, document: Value| parse(json!({ "document": document, "oauth": oauth }));
        let named = draft(json!({ "provider": "google" }), json!({})).unwrap().oauth.unwrap();
        assert_eq!(named.provider.as_deref(), Some("google"));
        let own = json!({ "token_url": "https://id.example.org/token", "client_id": "c", "client_auth": "body",
                          "scopes": ["mail.read"] });
        let expiring = [
            (json!({ "expires_at": "2027-01-15T08:00:10Z" }), 10),
            (json!({ "expires_at": 1_800_000_020 }), 20),
            (json!({ "expires_in": 30 }), 30),
        ];
        for (document, seconds) in expiring {
            let draft = draft(own.clone(), document).unwrap();
            assert_eq!(draft.expires_at, Some(NOW + TimeDelta::seconds(seconds)));
            assert_eq!(draft.oauth.unwrap().client_auth, Some(ClientAuth::Body));
        }
        for (oauth, place) in [
            (json!({}), "/oauth"),
            (json!({ "token_url": "https://id.example.org/" }), "/oauth"),
            (json!({ "provider": "google", "client_id": "c" }), "/oauth"),
            (json!({ "provider": "google", "token_url": "https://x", "client_id": "c", "issuer": "i" }), "/oauth"),
            (json!({ "token_url": "https://x", "client_id": "c", "issuer": "i" }), "/oauth/issuer"),
            (json!({ "token_url": "ftp://x", "client_id": "c" }), "/oauth/token_url"),
            (json!({ "token_url": "https://u:canary@x.example", "client_id": "c" }), "/oauth/token_url"),
            (json!({ "provider": "google", "scopes": ["a b"] }), "/oauth/scopes"),
            (json!({ "provider": "google", "client_auth": "canary" }), "/oauth/client_auth"),
            (json!({ "provider": "google", "client_secret": "canary" }), "/oauth/client_secret"),
            (json!("canary"), "/oauth"),
        ] {
            let found = faults(json!({ "document": {}, "oauth": oauth }));
            assert_eq!(found.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(), [place]);
        }
        let text = faults(json!({ "document": "canary", "oauth": { "provider": "google" } }));
        assert_eq!(text[0].0, "/document");
    }

    #[test]
    fn document_is_anything_of_json_up_to_64_kib() {
        for document in [json!("a"), json!(7), json!([1]), json!({}), json!("é".repeat(32_767))] {
            let text = parse(json!({ "document": document })).unwrap().document.unwrap().expose().to_owned();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
        }
        let large = faults(json!({ "document": "a".repeat(65_535) }));
        assert_eq!(large, [("/document".into(), "must be at most 65536 bytes of JSON, this has 65537".into())]);
    }

    #[test]
    fn document_is_taken_with_its_most_texts_and_refused_with_one_more() {
        let document = |count: usize| json!({ "keys": vec!["key"; count - 2], "deep": [{ "pin": 7 }, "text", true] });
        assert!(parse(json!({ "document": document(DOCUMENT_TEXTS) })).is_ok());
        let refused = faults(json!({ "document": document(DOCUMENT_TEXTS + 1) }));
        assert_eq!(refused, [("/document".into(), "must have at most 200 texts and numbers, this has 201".into())]);
    }

    #[test]
    fn every_fault_has_its_place_and_none_repeats_what_was_sent() {
        let found = faults(json!({
            "documnt": "canary", "hosts": ["https://u:canary@x.example/", "canary canary", "*", 7],
            "inject": { "as": "canary", "from": 7, "nam": "canary" }, "oauth": ["canary"],
        }));
        let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(
            places,
            [
                "/documnt",
                "/hosts/0",
                "/hosts/1",
                "/hosts/2",
                "/hosts/3",
                "/inject/nam",
                "/inject/as",
                "/inject/from",
                "/oauth"
            ]
        );
        for (place, message) in &found {
            assert!(!message.contains("canary"), "{place}: {message}");
        }
        assert_eq!(found[0].1, "unknown field; known are document, hosts, inject, oauth; did you mean `document`?");
        assert_eq!(faults(json!("canary")), [(String::new(), "the body is a JSON object".into())]);
        let shown = format!("{:?}", parse(json!({ "document": "canary-7" })).unwrap());
        assert!(!shown.contains("canary"), "{shown}");
    }

    #[test]
    fn each_published_field_is_read() {
        let places = |body: Value| faults(body).into_iter().map(|(place, _)| place).collect::<Vec<_>>();
        // no field is such a text
        let wrong = json!("a".repeat(DOCUMENT_BYTES));
        for (pointer, names, body) in [
            ("", field_names::<NewCredential>(), json!({})),
            ("/inject", field_names::<Inject>(), json!({ "inject": { "as": "bearer" } })),
            ("/oauth", field_names::<OAuth>(), json!({ "oauth": { "provider": "google" } })),
        ] {
            assert!(names.len() > 3, "{pointer}");
            for name in names {
                let mut body = body.clone();
                body.pointer_mut(pointer).unwrap()[*name] = wrong.clone();
                let place = format!("{pointer}/{name}");
                assert!(places(body).contains(&place), "{place} is not read");
            }
        }
    }

    #[test]
    fn kept_document_is_held_against_a_new_way_of_use() {
        let draft = parse(json!({ "inject": { "as": "bearer", "from": "/key" } })).unwrap();
        assert_eq!(draft.check_document(&Secret::new(r#"{"key":"canary"}"#)), Ok(()));
        let refused = draft.check_document(&Secret::new(r#"{"token":"canary"}"#)).unwrap_err();
        assert_eq!(refused.0[0].pointer, "/inject/from");
        assert!(!refused.to_string().contains("canary"));
    }
}
