//! A secret value from the configuration: it can be read in and used, and never printed, logged or written out.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroize;

/// Text in the place of a secret wherever one would be shown.
pub const REDACTED: &str = "[redacted]";

/// A text that is zeroed when dropped and shown as [`REDACTED`] by `Debug` and `Serialize`.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(SecretString);

impl Secret {
    /// A secret; the text is wiped when it is dropped.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(SecretString::from(text.into()))
    }

    /// The text itself, for the one place that puts it to use.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(REDACTED)
    }
}

/// Zeroes every text of a value. What grew or moved before is out of reach.
pub fn erase(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(erase),
        Value::Object(fields) => fields.values_mut().for_each(erase),
        _ => {}
    }
}

/// A URL that may hold a password; shown without it.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(SecretString);

impl SecretUrl {
    /// A secret address; the text is wiped when it is dropped.
    pub fn new(text: impl Into<String>) -> SecretUrl {
        SecretUrl(SecretString::from(text.into()))
    }

    /// The URL itself, for the one place that connects to it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The URL with [`REDACTED`] for its password; where a password may hide in something that is no URL, all of it.
    pub fn shown(&self) -> String {
        let text = self.expose();
        let Some((scheme, rest)) = text.split_once("://") else { return REDACTED.to_owned() };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        // a password may hold an unescaped `/`, which every parser refuses; an `@` past it gives that away
        let in_authority = rest[..end].rsplit_once('@');
        match in_authority {
            _ if rest[end..].contains('@') => format!("{scheme}://{REDACTED}"),
            Some((user, host)) => {
                let name = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:{REDACTED}"));
                format!("{scheme}://{name}@{host}{}", without_password(&rest[end..]))
            }
            None => format!("{scheme}://{}", without_password(rest)),
        }
    }
}

/// libpq takes `?password=…` as well.
fn without_password(rest: &str) -> String {
    match rest.split_once('?') {
        Some((path, query)) if query.contains("password") => format!("{path}?{REDACTED}"),
        _ => rest.to_owned(),
    }
}

impl std::fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_its_password() {
        let shown = |text: &str| SecretUrl::new(text).shown();
        assert_eq!(shown("sqlite://{data_dir}/reveille.db"), "sqlite://{data_dir}/reveille.db");
        assert_eq!(shown("postgres://h/d?sslmode=require"), "postgres://h/d?sslmode=require");
        assert_eq!(shown("postgres://u:canary@h:5432/d"), "postgres://u:[redacted]@h:5432/d");
        for text in ["postgres://u:can/ary@h/d", "postgres://h/d?password=canary", "u:canary@h", "pg://u:canary@x@h"] {
            assert!(!shown(text).contains("can"), "{}", shown(text));
        }
        assert_eq!(format!("{:?}", SecretUrl::new("postgres://u:canary@h/d")), "postgres://u:[redacted]@h/d");
    }

    #[test]
    fn secret_is_read_and_used_but_never_shown() {
        let secret: Secret = serde_json::from_str("\"canary-7\"").unwrap();
        assert_eq!(secret.expose(), "canary-7");
        assert_eq!(format!("{secret:?} {secret:#?}"), "[redacted] [redacted]");
        assert_eq!(serde_json::to_string(&[secret]).unwrap(), r#"["[redacted]"]"#);
    }
}
