//! Email addresses: one plain mailbox.

use serde::Serialize;
use serde_json::{Map, Value};
use unicode_normalization::is_nfkc;
use utoipa::ToSchema;

use super::reading::text;
use super::secrets::Seal;
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::base::unicode_safety::is_traceless;
use crate::domain::notification::AddressKind;

/// Longest part before the `@`, in bytes, and longest domain behind it (RFC 5321, section 4.5.3.1).
const LOCAL_BYTES: usize = 64;
const DOMAIN_BYTES: usize = 255;

/// The address of the channel `email`.
pub struct Email;

/// An address of email in the API.
#[derive(Serialize, ToSchema)]
pub struct EmailForm {
    #[schema(required = false)]
    email: Option<String>,
}

impl AddressKind for Email {
    type Draft = Option<String>;
    type Stored = Option<String>;
    type Written = EmailForm;
    type Shown = EmailForm;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--email",
        takes: FlagValue::Text("ADDRESS"),
        field: "addresses.email",
        help: "Address for the channel `email`",
    }];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<String> {
        read(kinds, faults)
    }

    fn settle<S: Seal>(draft: Option<String>, _: &Option<String>, _: &S) -> Result<Option<String>, S::Error> {
        Ok(draft)
    }

    fn places(stored: &Option<String>) -> Vec<String> {
        stored.iter().map(|email| format!("email {}", email.to_lowercase())).collect()
    }
}

fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<String> {
    let address = text(kinds, "email", "/addresses", faults)?;
    if !is_email(address) {
        faults.add("/addresses/email", format!("`{address}` is not an address such as `ann@example.org`"));
    }
    Some(address.to_owned())
}

/// Whether this is one plain address (RFC 5321's lengths; no name, no comment, no quoted part), in which everything is
/// seen and nothing stands for something else.
fn is_email(address: &str) -> bool {
    if !is_nfkc(address) || address.chars().any(is_traceless) {
        return false;
    }
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let odd = |c: char| c.is_whitespace() || c.is_control() || "@<>()[]\\,;:\"".contains(c);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    (1..=LOCAL_BYTES).contains(&local.len())
        && !local.contains(odd)
        && local.split('.').all(|part| !part.is_empty())
        && domain.len() <= DOMAIN_BYTES
        && domain.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn email_addresses_are_plain_ones() {
        for good in ["ann@example.org", "a.b+c@x", "o'neil@example.org", "jörg@bücher.example", "a@1.2"] {
            assert!(is_email(good), "{good}");
        }
        for bad in [
            "",
            "@",
            "ann",
            "ann@",
            "@example.org",
            "a b@example.org",
            "a@b@c",
            "Ann <ann@example.org>",
            "a@-b.org",
            "a@b..org",
            ".a@b.org",
            "a@b.org\r\nBcc: x@y.org",
            "a@[127.0.0.1]",
            "a,b@example.org",
            "a@b.org.",
            "a\u{202e}nn@example.org",
            "ann\u{200b}@example.org",
            "ann@exam\u{ad}ple.org",
            "ann\u{fe0f}@example.org",
            "ann\u{2800}@example.org",
            "\u{ff41}nn@example.org",
            "ann@\u{ff45}xample.org",
        ] {
            assert!(!is_email(bad), "{bad:?}");
        }
    }

    #[test]
    fn address_is_taken_at_its_longest_and_refused_one_beyond_it() {
        let label = "d".repeat(63);
        let of = |local: usize, last: &str| format!("{}@{label}.{label}.{label}.{last}", "l".repeat(local));
        let longest = of(LOCAL_BYTES, &label);
        assert_eq!(longest.len(), LOCAL_BYTES + 1 + DOMAIN_BYTES);
        let faults = |address: String| {
            let mut faults = ValidationErrors::new();
            read(serde_json::json!({ "email": address }).as_object().unwrap(), &mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        assert_eq!(faults(longest), [""; 0]);
        for beyond in [of(65, &label), of(64, &format!("{}.d", "d".repeat(62)))] {
            assert_eq!((beyond.len(), faults(beyond)), (321, vec!["/addresses/email".to_owned()]));
        }
    }
}
