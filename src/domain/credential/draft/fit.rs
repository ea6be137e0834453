//! Whether the way in which a credential is put into requests can be gone at all, and with this document. Pure.

use http::HeaderName;
use serde_json::Value;

use crate::base::invalid::ValidationErrors;
use crate::domain::credential::{Inject, InjectForm};

/// Longest name of a header, parameter or field, in characters.
const NAME_LENGTH: usize = 200;
/// Longest JSON pointer into a document, in bytes, and its most parts.
const POINTER_BYTES: usize = 512;
const POINTER_PARTS: usize = 16;
/// Most values that a template names.
const TEMPLATE_PLACES: usize = 32;
/// Headers that the client or Reveille writes, and those of one hop (RFC 9110, section 7.6.1).
const OURS: [&str; 16] = [
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-connection",
    "accept-encoding",
    "idempotency-key",
];

/// Checks the form, as far as this is possible without the document.
pub fn check_form(inject: &Inject, faults: &mut ValidationErrors) {
    match (inject.form, inject.name.as_deref()) {
        (InjectForm::Bearer | InjectForm::Basic, Some(_)) => {
            faults.add("/inject/name", "is for `header`, `query` and `field`; this one writes `Authorization`");
        }
        (InjectForm::Header | InjectForm::Query | InjectForm::Field, None) => {
            faults.add("/inject/name", "is needed: the name of the header, query parameter or body field");
        }
        (InjectForm::Header, Some(name)) => check_header(name, faults),
        (InjectForm::Query | InjectForm::Field, Some(name)) => {
            if name.is_empty() || name.chars().count() > NAME_LENGTH {
                faults.add("/inject/name", format!("must have 1 to {NAME_LENGTH} characters"));
            }
        }
        (InjectForm::Bearer | InjectForm::Basic, None) => {}
    }
    if let Err((field, why)) = check_places(inject) {
        faults.add(format!("/inject/{field}"), why);
    }
    let Some(template) = &inject.template else { return };
    if inject.from.is_some() {
        faults.add("/inject/from", "can't stand beside `template`, which names its values itself");
    }
    match places(template) {
        Some(places) if places.is_empty() => {
            faults.add("/inject/template", "names no value of the document: write `{/pointer}` where it goes");
        }
        Some(_) => {}
        None => faults.add("/inject/template", "has a `{/` without its `}`"),
    }
}

/// Whether the places of the document that are named can be looked up: pointers, within their bounds. The field at
/// fault and what would be right, where not. Asked again before each use: what is stored may be older than a bound.
pub fn check_places(inject: &Inject) -> Result<(), (&'static str, String)> {
    if let Some(from) = &inject.from {
        check_pointer(from, "must be a JSON pointer such as `/access_token`").map_err(|why| ("from", why))?;
    }
    let Some(template) = &inject.template else { return Ok(()) };
    let fault = |why: String| Err(("template", why));
    let places = places(template).unwrap_or_default();
    if places.len() > TEMPLATE_PLACES {
        return fault(format!("must name at most {TEMPLATE_PLACES} values, names {}", places.len()));
    }
    let each = |place| check_pointer(place, "has a `{…}` that is no JSON pointer such as `{/key}`");
    places.into_iter().try_for_each(each).map_err(|why| ("template", why))
}

fn check_pointer(text: &str, what: &str) -> Result<(), String> {
    if text.len() > POINTER_BYTES {
        return Err(format!("{what}, of at most {POINTER_BYTES} bytes"));
    }
    match text.matches('/').count() {
        _ if !is_pointer(text) => Err(what.to_owned()),
        parts if parts > POINTER_PARTS => Err(format!("{what}, of at most {POINTER_PARTS} parts")),
        _ => Ok(()),
    }
}

fn check_header(name: &str, faults: &mut ValidationErrors) {
    match name.parse::<HeaderName>() {
        Ok(name) if OURS.contains(&name.as_str()) || name.as_str().starts_with("webhook-") => {
            faults.add("/inject/name", "is a header that is written by Reveille, or that is for one hop only");
        }
        Ok(_) if name.len() <= NAME_LENGTH => {}
        _ => faults.add("/inject/name", "must be the name of a header, such as `X-Api-Key`"),
    }
}

/// Whether each value is there. `grows`: tokens come into the document by OAuth, so some may be missing yet.
pub fn check(inject: &Inject, document: &Value, grows: bool, faults: &mut ValidationErrors) {
    let missing = |place: &str| !(grows && document.is_object() && document.pointer(place).is_none());
    if let Some(template) = &inject.template {
        for place in places(template).unwrap_or_default() {
            if !is_value(document.pointer(place)) && missing(place) {
                let why = "names a place of the document where there is no text and no number";
                faults.add("/inject/template", why);
            }
        }
        return;
    }
    let from = inject.from.as_deref().unwrap_or_default();
    let value = document.pointer(from);
    let pair = |value: &Value| is_value(value.get("username")) && is_value(value.get("password"));
    let fits = match inject.form {
        InjectForm::Basic => {
            value.is_some_and(|value| pair(value) || value.as_str().is_some_and(|text| text.contains(':')))
        }
        _ => is_value(value),
    };
    if fits || (!from.is_empty() && !missing(from)) {
        return;
    }
    let why = match (inject.form, from.is_empty()) {
        (InjectForm::Basic, _) => {
            "must lead to a text `user:password`, or to an object with the texts `username` and `password`"
        }
        (_, true) => "is needed: the document is no text, so name the value within it, such as `/access_token`",
        (_, false) => "must lead to a text or a number within the document; there is none at this place",
    };
    faults.add("/inject/from", why);
}

/// A number, or a text that is not empty.
fn is_value(value: Option<&Value>) -> bool {
    match value {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Number(_)) => true,
        _ => false,
    }
}

/// RFC 6901: empty, or a slash before each part, and `~` only as `~0` or `~1`.
fn is_pointer(text: &str) -> bool {
    let escaped = |part: &str| part.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.is_empty() || (text.starts_with('/') && escaped(text))
}

/// The pointers in a template; `None` where one has no end.
fn places(template: &str) -> Option<Vec<&str>> {
    let mut places = vec![];
    let mut rest = template;
    while let Some(at) = rest.find("{/") {
        let end = at + rest[at..].find('}')?;
        places.push(&rest[at + 1..end]);
        rest = &rest[end + 1..];
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(inject: Value, document: Value, grows: bool) -> Vec<String> {
        let inject: Inject = serde_json::from_value(inject).unwrap();
        let mut faults = ValidationErrors::new();
        check_form(&inject, &mut faults);
        check(&inject, &document, grows, &mut faults);
        faults.0.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn every_way_of_use_is_held_against_the_document() {
        let document = json!({ "key": "k", "id": 7, "list": [], "empty": "", "a/b": "x", "login": { "username": "u", "password": "p" } });
        let none: [&str; 0] = [];
        for inject in [
            json!({ "as": "bearer", "from": "/key" }),
            json!({ "as": "bearer", "from": "/id" }),
            json!({ "as": "basic", "from": "/login" }),
            json!({ "as": "basic", "template": "{/id}:{/key}" }),
            json!({ "as": "header", "name": "X-Key", "from": "/a~1b" }),
            json!({ "as": "query", "name": "k", "template": "{/key}{x}" }),
            json!({ "as": "field", "name": "k", "from": "/key" }),
        ] {
            assert_eq!(faults(inject.clone(), document.clone(), false), none, "{inject}");
        }
        for (inject, place) in [
            (json!({ "as": "bearer" }), "/inject/from"),
            (json!({ "as": "bearer", "from": "/none" }), "/inject/from"),
            (json!({ "as": "bearer", "from": "/list" }), "/inject/from"),
            (json!({ "as": "bearer", "from": "/empty" }), "/inject/from"),
            (json!({ "as": "basic", "from": "/key" }), "/inject/from"),
            (json!({ "as": "bearer", "from": "/key", "name": "x" }), "/inject/name"),
            (json!({ "as": "header", "from": "/key" }), "/inject/name"),
            (json!({ "as": "header", "from": "/key", "name": "a b" }), "/inject/name"),
            (json!({ "as": "header", "from": "/key", "name": "Host" }), "/inject/name"),
            (json!({ "as": "header", "from": "/key", "name": "Transfer-Encoding" }), "/inject/name"),
            (json!({ "as": "header", "from": "/key", "name": "webhook-id" }), "/inject/name"),
            (json!({ "as": "query", "from": "/key", "name": "" }), "/inject/name"),
            (json!({ "as": "query", "name": "k", "template": "plain" }), "/inject/template"),
            (json!({ "as": "query", "name": "k", "template": "{/key" }), "/inject/template"),
            (json!({ "as": "query", "name": "k", "template": "{/none}" }), "/inject/template"),
        ] {
            assert_eq!(faults(inject.clone(), document.clone(), false), [place], "{inject}");
        }
        assert_eq!(
            faults(json!({ "as": "bearer", "from": "key" }), document.clone(), false).first().unwrap(),
            "/inject/from"
        );
        let both = json!({ "as": "bearer", "from": "/key", "template": "{/key}" });
        assert_eq!(faults(both, document, false), ["/inject/from"]);
        assert_eq!(faults(json!({ "as": "bearer" }), json!("text"), false), none);
        assert_eq!(faults(json!({ "as": "basic" }), json!("user:password"), false), none);
    }

    #[test]
    fn pointers_and_templates_are_bounded_in_length_and_parts() {
        let deep = |parts: usize| (0..parts).fold(json!("x"), |inner, _| json!({ "a": inner }));
        let from = |pointer: String, document| faults(json!({ "as": "bearer", "from": pointer }), document, false);
        let none: [&str; 0] = [];
        assert_eq!(from("/a".repeat(POINTER_PARTS), deep(POINTER_PARTS)), none);
        assert_eq!(from("/a".repeat(POINTER_PARTS + 1), deep(POINTER_PARTS + 1)), ["/inject/from"]);
        let long = |bytes: usize| "k".repeat(bytes - 1);
        let named = |bytes| from(format!("/{}", long(bytes)), json!({ long(bytes): "x" }));
        assert_eq!(named(POINTER_BYTES), none);
        assert_eq!(named(POINTER_BYTES + 1), ["/inject/from"]);
        let template =
            |template: String| faults(json!({ "as": "bearer", "template": template }), json!({ "k": "x" }), false);
        assert_eq!(template("{/k}".repeat(TEMPLATE_PLACES)), none);
        assert_eq!(template("{/k}".repeat(TEMPLATE_PLACES + 1)), ["/inject/template"]);
        let nested = |parts: usize| {
            let inject = json!({ "as": "bearer", "template": format!("{{{}}}", "/a".repeat(parts)) });
            faults(inject, deep(parts), false)
        };
        assert_eq!((nested(POINTER_PARTS), nested(POINTER_PARTS + 1)), (vec![], vec!["/inject/template".to_owned()]));
    }

    #[test]
    fn tokens_that_oauth_brings_may_be_missing_yet() {
        let none: [&str; 0] = [];
        let bearer = json!({ "as": "bearer", "from": "/access_token" });
        assert_eq!(faults(bearer.clone(), json!({ "refresh_token": "r" }), true), none);
        assert_eq!(faults(bearer.clone(), json!({ "access_token": [] }), true), ["/inject/from"]);
        assert_eq!(faults(bearer, json!({ "refresh_token": "r" }), false), ["/inject/from"]);
        assert_eq!(faults(json!({ "as": "bearer" }), json!({}), true), ["/inject/from"]);
    }
}
