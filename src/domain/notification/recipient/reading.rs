//! Reading the body of a PUT: fields, texts and addresses of the web, each fault with its place. Keeps nothing.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};
use url::Url;
use utoipa::PartialSchema;

use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::base::json::typed::field_names;

/// Longest address of any kind, in bytes.
const ADDRESS_LENGTH: usize = 2048;
/// Elements of any list of a recipient.
const LISTED: usize = 100;

/// The fields of an object; a fault where it is none.
pub(super) fn object<'a>(
    value: &'a Value,
    pointer: &str,
    faults: &mut ValidationErrors,
) -> Option<&'a Map<String, Value>> {
    if value.as_object().is_none() {
        faults.add(pointer, "expected an object");
    }
    value.as_object()
}

/// Names each field that is not `known`.
pub(super) fn only(fields: &Map<String, Value>, pointer: &str, known: &[&str], faults: &mut ValidationErrors) {
    for name in unknown_fields(fields, known) {
        let what = if pointer == "/addresses" { "channel" } else { "field" };
        faults.add(format!("{pointer}/{}", escape(name)), unknown(what, name, known));
    }
}

/// Names each field that is not published of a `T`.
pub(super) fn only_of<T: PartialSchema + 'static>(
    fields: &Map<String, Value>,
    pointer: &str,
    faults: &mut ValidationErrors,
) {
    only(fields, pointer, field_names::<T>(), faults);
}

/// The fault of a name that is not known.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match did_you_mean(name, known.iter().copied()) {
        none if none.is_empty() => format!("unknown {what} `{name}`; known are {}", known.join(", ")),
        hint => format!("unknown {what} `{name}`{hint}"),
    }
}

/// A field that is there; `null` counts as absent.
pub(super) fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// A text field; absent and `null` are the same.
pub(super) fn text<'a>(
    fields: &'a Map<String, Value>,
    name: &str,
    pointer: &str,
    faults: &mut ValidationErrors,
) -> Option<&'a str> {
    match given(fields, name)? {
        Value::String(text) if text.len() <= ADDRESS_LENGTH => Some(text),
        Value::String(_) => {
            faults.add(format!("{pointer}/{name}"), format!("must be at most {ADDRESS_LENGTH} bytes"));
            None
        }
        _ => {
            faults.add(format!("{pointer}/{name}"), "expected a text");
            None
        }
    }
}

/// A whole number within a range; a fault where it is none.
pub(super) fn number(
    value: &Value,
    range: RangeInclusive<u32>,
    pointer: &str,
    faults: &mut ValidationErrors,
) -> Option<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| range.contains(number));
    if number.is_none() {
        faults.add(pointer, format!("expected a whole number from {} to {}", range.start(), range.end()));
    }
    number
}

/// A field that is `true` or `false`; absent and `null` are `false`.
pub(super) fn flag(fields: &Map<String, Value>, name: &str, pointer: &str, faults: &mut ValidationErrors) -> bool {
    match given(fields, name) {
        None => false,
        Some(Value::Bool(flag)) => *flag,
        Some(_) => {
            faults.add(format!("{pointer}/{name}"), "expected `true` or `false`");
            false
        }
    }
}

/// The elements of a list with their places; a fault, and none, where it is no list.
pub(super) fn list<'a>(value: &'a Value, pointer: &str, faults: &mut ValidationErrors) -> Vec<(String, &'a Value)> {
    match value {
        Value::Array(items) if items.len() > LISTED => {
            faults.add(pointer, format!("must have at most {LISTED} elements, has {}", items.len()));
            vec![]
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (format!("{pointer}/{index}"), item)).collect()
        }
        _ => {
            faults.add(pointer, "expected a list");
            vec![]
        }
    }
}

/// The texts of a list with their places; each that is none is a fault.
pub(super) fn texts<'a>(value: &'a Value, pointer: &str, faults: &mut ValidationErrors) -> Vec<(String, &'a str)> {
    let mut texts = vec![];
    for (place, item) in list(value, pointer, faults) {
        match item {
            Value::String(text) => texts.push((place, text.as_str())),
            _ => faults.add(place, "expected a text"),
        }
    }
    texts
}

/// One of these words.
pub(super) fn word<T: Copy>(
    value: &Value,
    words: &[(&str, T)],
    pointer: &str,
    faults: &mut ValidationErrors,
) -> Option<T> {
    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let Value::String(text) = value else {
        faults.add(pointer, format!("expected one of {}", known.join(", ")));
        return None;
    };
    let found = words.iter().find(|(word, _)| word == text).map(|(_, meant)| *meant);
    if found.is_none() {
        let hint = did_you_mean(text, known.iter().copied());
        faults.add(pointer, format!("expected one of {}, not `{text}`{hint}", known.join(", ")));
    }
    found
}

/// An address of the web that holds no user and no password. Which hosts may be reached is for `egress` to say.
pub(super) fn url(
    fields: &Map<String, Value>,
    name: &str,
    pointer: &str,
    faults: &mut ValidationErrors,
) -> Option<String> {
    let url = text(fields, name, pointer, faults)?;
    let place = format!("{pointer}/{name}");
    match Url::parse(url) {
        Ok(read) if !matches!(read.scheme(), "http" | "https") => {
            faults.add(place, format!("expected http or https, not `{}`", read.scheme()));
        }
        Ok(read) if !read.username().is_empty() || read.password().is_some() => {
            faults.add(place, "may not hold a user or a password");
        }
        Ok(_) => {}
        Err(error) => faults.add(place, format!("is not a URL: {error}")),
    }
    Some(url.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::notification::recipient::{RecipientDraft, push, slack, webhook};
    use crate::domain::notification::{DigestTimes, InterruptionBudget, QuietHours};

    /// The places of the faults of a body.
    fn places(body: Value) -> Vec<String> {
        let read = RecipientDraft::parse(&body).map(drop);
        read.err().into_iter().flat_map(|faults| faults.0).map(|fault| fault.pointer).collect()
    }

    #[test]
    fn addresses_and_locale_are_taken_at_their_longest_and_refused_one_beyond_it() {
        let url = |bytes: usize| format!("https://example.org/{}", "a".repeat(bytes - "https://example.org/".len()));
        let address = |kind: &str, address: Value| json!({ "addresses": { kind: address } });
        let language =
            |bytes: usize| json!({ "locale": format!("en{}", "-x".repeat(bytes))[..bytes - 1].to_owned() + "x" });
        let bodies: [(&str, &dyn Fn(usize) -> Value); 4] = [
            ("/addresses/webhook/url", &|bytes| address("webhook", json!({ "url": url(bytes) }))),
            ("/addresses/slack/webhook_url", &|bytes| address("slack", json!({ "webhook_url": url(bytes) }))),
            ("/addresses/push/server", &|bytes| address("push", json!({ "topic": "a", "server": url(bytes) }))),
            ("/locale", &language),
        ];
        for (place, body) in bodies {
            assert_eq!(places(body(ADDRESS_LENGTH)), [""; 0], "{place}");
            assert_eq!(places(body(ADDRESS_LENGTH + 1)), [place]);
        }
    }

    #[test]
    fn each_published_field_of_a_recipient_is_read() {
        let address = |kind: &str, address: Value| json!({ "addresses": { kind: address } });
        // the key of RFC 8291, appendix A
        let key = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        let browser = json!([{ "endpoint": "https://push.example.org/x", "keys": { "p256dh": key } }]);
        let own: &[&str] = &RecipientDraft::FIELDS;
        for (pointer, names, body) in [
            ("", own, json!({})),
            ("/addresses/slack", field_names::<slack::schema::NewSlack>(), address("slack", json!({}))),
            ("/addresses/webhook", field_names::<webhook::schema::NewWebhook>(), address("webhook", json!({}))),
            ("/addresses/push/0", field_names::<push::schema::Ntfy>(), address("push", json!([{ "topic": "a" }]))),
            ("/addresses/push/0", field_names::<push::schema::NewBrowser>(), address("push", browser.clone())),
            ("/addresses/push/0/keys", field_names::<push::schema::NewKeys>(), address("push", browser)),
            ("/quiet_hours/0", field_names::<QuietHours>(), json!({ "quiet_hours": [{}] })),
            ("/digest", field_names::<DigestTimes>(), json!({ "digest": {} })),
            ("/budget", field_names::<InterruptionBudget>(), json!({ "budget": {} })),
        ] {
            assert!(!names.is_empty(), "{pointer}");
            for name in names {
                let mut body = body.clone();
                // no field is a list of lists
                body.pointer_mut(pointer).unwrap()[*name] = json!([[]]);
                let place = format!("{pointer}/{name}");
                assert!(places(body).iter().any(|found| found.starts_with(&place)), "{place} is not read");
            }
        }
    }

    #[test]
    fn lists_are_taken_at_their_longest_and_refused_one_beyond_it() {
        let many = |word: &str, count: usize| vec![word.to_owned(); count];
        let quiet = |field: &str, words: Vec<String>| json!({ "quiet_hours": [{ "from": "22:00", "to": "07:00", field: words }] });
        let bodies: [(&str, &dyn Fn(usize) -> Value); 3] = [
            ("/quiet_hours/0/days", &|count| quiet("days", many("mon", count))),
            ("/quiet_hours/0/channels", &|count| quiet("channels", many("sms", count))),
            ("/digest/channels", &|count| json!({ "digest": { "at": ["08:00"], "channels": many("sms", count) } })),
        ];
        for (place, body) in bodies {
            assert_eq!(places(body(LISTED)), [""; 0], "{place}");
            assert_eq!(places(body(LISTED + 1)), [place]);
        }
        let fallback = |count: usize| places(json!({ "fallback": many("sms", count) }));
        assert_eq!(fallback(LISTED + 1), ["/fallback"], "none of them is looked at");
    }
}
