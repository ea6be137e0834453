//! Putting a credential into a request. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue, Method, header};
use serde_json::{Map, Value, json};
use url::Url;
use zeroize::Zeroizing;

use crate::domain::credential::{Inject, InjectForm, check_places};
use crate::ports::egress::EgressRequest;

/// Header of a body's signature (Standard Webhooks).
const SIGNATURE: &str = "webhook-signature";

/// A text that is zeroed when it is dropped.
type Text = Zeroizing<String>;

/// The injected values: the value itself, and the parts of the document that it was made of.
pub struct Injected {
    pub parts: Vec<Text>,
}

/// Why a credential can't be put into a request; the ends of sentences, without secrets.
#[derive(Debug, PartialEq, Eq)]
pub enum InjectFault {
    /// The request holds one already.
    Taken(String),
    /// There is no value, or it can't stand where it is to be put.
    Value(String),
}

/// Puts the credential in. `replaces`: a query parameter that is there goes, because the other side has put it there.
pub fn inject(
    request: &mut EgressRequest,
    how: &Inject,
    document: &Value,
    replaces: bool,
) -> Result<Injected, InjectFault> {
    check_places(how).map_err(|(field, why)| InjectFault::Value(format!("`inject.{field}` {why}")))?;
    let mut parts = Vec::new();
    let value = match how.form {
        InjectForm::Basic => pair(how, document, &mut parts)?,
        _ => value(how, document, &mut parts)?,
    };
    match how.form {
        InjectForm::Bearer => {
            put_header(request, header::AUTHORIZATION, &Zeroizing::new(format!("Bearer {}", *value)))?
        }
        InjectForm::Basic => {
            let encoded = Zeroizing::new(STANDARD.encode(value.as_bytes()));
            put_header(request, header::AUTHORIZATION, &Zeroizing::new(format!("Basic {}", *encoded)))?;
        }
        InjectForm::Header => {
            let name = named(how)?;
            let name = name.parse().map_err(|_| InjectFault::Value(format!("`{name}` is no name of a header")))?;
            put_header(request, name, &value)?;
        }
        InjectForm::Query => put_parameter(request, named(how)?, &value, replaces)?,
        InjectForm::Field => put_field(request, named(how)?, &value)?,
    }
    parts.push(value);
    Ok(Injected { parts })
}

/// The parts of a document that go into requests.
pub fn parts(how: &Inject, document: &Value) -> Vec<Text> {
    let mut request =
        EgressRequest { body: "{}".into(), ..EgressRequest::new(Method::POST, "https://example.invalid/") };
    inject(&mut request, how, document, true).map_or_else(|_| Vec::new(), |injected| injected.parts)
}

fn named(how: &Inject) -> Result<&str, InjectFault> {
    how.name.as_deref().ok_or_else(|| InjectFault::Value("`inject.name` is missing".into()))
}

/// The value that is put in; what it is made of is added to `parts`.
fn value(how: &Inject, document: &Value, parts: &mut Vec<Text>) -> Result<Text, InjectFault> {
    match (&how.template, &how.from) {
        (Some(template), _) => filled(template, document, parts),
        (None, from) => scalar(document, from.as_deref().unwrap_or_default()),
    }
}

/// `user:password`.
fn pair(how: &Inject, document: &Value, parts: &mut Vec<Text>) -> Result<Text, InjectFault> {
    let from = how.from.as_deref().unwrap_or_default();
    match document.pointer(from) {
        Some(Value::Object(_)) if how.template.is_none() => {
            let user = scalar(document, &format!("{from}/username"))?;
            let password = scalar(document, &format!("{from}/password"))?;
            if user.contains(':') {
                return Err(InjectFault::Value("a user's name with a colon can't be sent (RFC 7617)".into()));
            }
            let pair = Zeroizing::new(format!("{}:{}", *user, *password));
            parts.push(password);
            Ok(pair)
        }
        _ => {
            let pair = value(how, document, parts)?;
            let Some((_, password)) = pair.split_once(':') else {
                return Err(InjectFault::Value("its value is not `user:password`".into()));
            };
            parts.push(Zeroizing::new(password.to_owned()));
            Ok(pair)
        }
    }
}

/// A text or a number at a place of the document.
fn scalar(document: &Value, pointer: &str) -> Result<Text, InjectFault> {
    let missing = || {
        let place = if pointer.is_empty() { "in the whole document" } else { pointer };
        InjectFault::Value(format!("there is no text at `{place}`"))
    };
    let text = match document.pointer(pointer).ok_or_else(missing)? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Err(missing()),
    };
    if text.is_empty() { Err(missing()) } else { Ok(Zeroizing::new(text)) }
}

/// The template with each `{/pointer}` in it filled in; a brace that begins nothing of the kind stays.
fn filled(template: &str, document: &Value, parts: &mut Vec<Text>) -> Result<Text, InjectFault> {
    let mut text = Zeroizing::new(String::new());
    let mut rest = template;
    while let Some(at) = rest.find("{/") {
        let Some(end) = rest[at..].find('}') else { break };
        text.push_str(&rest[..at]);
        let part = scalar(document, &rest[at + 1..at + end])?;
        text.push_str(&part);
        parts.push(part);
        rest = &rest[at + end + 1..];
    }
    text.push_str(rest);
    Ok(text)
}

fn put_header(request: &mut EgressRequest, name: HeaderName, text: &Text) -> Result<(), InjectFault> {
    if request.headers.contains_key(&name) {
        return Err(InjectFault::Taken(format!("the header `{name}`")));
    }
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        InjectFault::Value("a header can carry its value only if that is ASCII without line breaks".into())
    })?;
    value.set_sensitive(true);
    request.headers.insert(name, value);
    Ok(())
}

fn put_parameter(request: &mut EgressRequest, name: &str, text: &Text, replaces: bool) -> Result<(), InjectFault> {
    let mut url = Url::parse(&request.url).map_err(|_| InjectFault::Value("the address is no URL".into()))?;
    if url.query_pairs().any(|(key, _)| key == name) {
        if !replaces {
            return Err(InjectFault::Taken(format!("the parameter `{name}`")));
        }
        let others: Vec<(String, String)> = url.query_pairs().into_owned().filter(|(key, _)| key != name).collect();
        url.query_pairs_mut().clear().extend_pairs(others);
    }
    url.query_pairs_mut().append_pair(name, text);
    request.url = url.into();
    Ok(())
}

fn put_field(request: &mut EgressRequest, name: &str, text: &Text) -> Result<(), InjectFault> {
    if request.headers.contains_key(SIGNATURE) {
        return Err(InjectFault::Value("the body is signed, so nothing can be put into it".into()));
    }
    let no_object =
        || InjectFault::Value("it goes into a field of the JSON body, and the body is no JSON object".into());
    let mut fields: Map<String, Value> = serde_json::from_slice(&request.body).map_err(|_| no_object())?;
    if fields.contains_key(name) {
        return Err(InjectFault::Taken(format!("the field `{name}`")));
    }
    fields.insert(name.to_owned(), json!(text.as_str()));
    request.body = Value::Object(fields).to_string().into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(form: &str, more: Value) -> Inject {
        let mut how = json!({ "as": form });
        how.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(how).unwrap()
    }

    fn request() -> EgressRequest {
        EgressRequest { body: r#"{"to":"ann"}"#.into(), ..EgressRequest::new(Method::POST, "https://h.example/a?q=1") }
    }

    fn document() -> Value {
        json!({ "token": "t0ken-7", "id": 17, "login": { "username": "ann", "password": "pass:word" }, "odd": "a\nb", "empty": "" })
    }

    fn put(form: &str, more: Value) -> Result<EgressRequest, InjectFault> {
        let mut request = request();
        inject(&mut request, &how(form, more), &document(), false).map(|_| request)
    }

    fn header_of(request: &EgressRequest, name: &str) -> String {
        assert!(request.headers[name].is_sensitive(), "{name}");
        request.headers[name].to_str().unwrap().to_owned()
    }

    #[test]
    fn stored_pointer_beyond_its_bound_is_not_looked_up() {
        let deep = |parts| json!({ "from": "/a".repeat(parts) });
        let missing = InjectFault::Value(format!("there is no text at `{}`", "/a".repeat(16)));
        assert_eq!(put("bearer", deep(16)).unwrap_err(), missing);
        let InjectFault::Value(why) = put("bearer", deep(17)).unwrap_err() else { panic!("it was looked up") };
        assert!(why.starts_with("`inject.from` must be a JSON pointer"), "{why}");
    }

    #[test]
    fn each_form_has_its_place() {
        let bearer = put("bearer", json!({ "from": "/token" })).unwrap();
        assert_eq!(header_of(&bearer, "authorization"), "Bearer t0ken-7");
        let basic = put("basic", json!({ "from": "/login" })).unwrap();
        assert_eq!(header_of(&basic, "authorization"), format!("Basic {}", STANDARD.encode("ann:pass:word")));
        let basic = put("basic", json!({ "template": "key:{/token}" })).unwrap();
        assert_eq!(header_of(&basic, "authorization"), format!("Basic {}", STANDARD.encode("key:t0ken-7")));
        let header = put("header", json!({ "name": "X-Key", "template": "Token {/id}:{/token} {x}{" })).unwrap();
        assert_eq!(header_of(&header, "x-key"), "Token 17:t0ken-7 {x}{");
        let query = put("query", json!({ "name": "k&y", "from": "/token" })).unwrap();
        assert_eq!(query.url, "https://h.example/a?q=1&k%26y=t0ken-7");
        let field = put("field", json!({ "name": "key", "from": "/token" })).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&field.body).unwrap(), json!({ "to": "ann", "key": "t0ken-7" }));
        let mut whole = request();
        inject(&mut whole, &how("bearer", json!({})), &json!("all-of-it"), false).unwrap();
        assert_eq!(header_of(&whole, "authorization"), "Bearer all-of-it");
    }

    #[test]
    fn header_that_the_request_carries_is_not_replaced() {
        let mut carried = request();
        carried.headers.insert("x-key", HeaderValue::from_static("mine"));
        let taken = |request: &EgressRequest, form, more| {
            inject(&mut request.clone(), &how(form, more), &document(), false).err().unwrap()
        };
        let header = taken(&carried, "header", json!({ "name": "X-KEY", "from": "/token" }));
        assert_eq!(header, InjectFault::Taken("the header `x-key`".into()));
        let query = taken(&carried, "query", json!({ "name": "q", "from": "/token" }));
        assert_eq!(query, InjectFault::Taken("the parameter `q`".into()));
        let field = taken(&carried, "field", json!({ "name": "to", "from": "/token" }));
        assert_eq!(field, InjectFault::Taken("the field `to`".into()));
        let mut again = EgressRequest::new(Method::GET, "https://h.example/a?q=old&x=1&q=older");
        inject(&mut again, &how("query", json!({ "name": "q", "from": "/token" })), &document(), true).unwrap();
        assert_eq!(again.url, "https://h.example/a?x=1&q=t0ken-7");
    }

    #[test]
    fn value_that_is_not_there_or_does_not_fit_is_told_without_it() {
        for (form, more) in [
            ("bearer", json!({ "from": "/none" })),
            ("bearer", json!({ "from": "/login" })),
            ("bearer", json!({ "from": "/empty" })),
            ("bearer", json!({ "from": "/odd" })),
            ("bearer", json!({})),
            ("basic", json!({ "from": "/token" })),
            ("header", json!({ "from": "/token" })),
            ("header", json!({ "from": "/token", "name": "no header" })),
            ("query", json!({ "template": "{/none}", "name": "k" })),
        ] {
            let Err(InjectFault::Value(why)) = put(form, more.clone()) else { panic!("{form} {more}") };
            assert!(!why.contains("t0ken") && !why.contains("a\nb"), "{why}");
        }
        let mut text = EgressRequest { body: "plain".into(), ..request() };
        let into_text =
            inject(&mut text, &how("field", json!({ "name": "key", "from": "/token" })), &document(), false);
        assert!(matches!(into_text, Err(InjectFault::Value(_))));
        let mut signed = request();
        signed.headers.insert(SIGNATURE, HeaderValue::from_static("v1,x"));
        let into_signed =
            inject(&mut signed, &how("field", json!({ "name": "key", "from": "/token" })), &document(), false);
        assert!(matches!(into_signed, Err(InjectFault::Value(why)) if why.contains("signed")));
        assert_eq!(signed.body, request().body);
    }

    #[test]
    fn all_that_went_in_is_named_so_that_it_can_be_taken_out_again() {
        let parts = |form, more| -> Vec<String> {
            let injected = inject(&mut request(), &how(form, more), &document(), false).unwrap();
            injected.parts.iter().map(|part| part.to_string()).collect()
        };
        assert_eq!(parts("basic", json!({ "from": "/login" })), ["pass:word", "ann:pass:word"]);
        assert_eq!(
            parts("header", json!({ "name": "x", "template": "{/id}-{/token}" })),
            ["17", "t0ken-7", "17-t0ken-7"]
        );
    }
}
