//! A secret value from the configuration: it can be read in and used, and never printed, logged or written out.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

/// What stands in the place of a secret wherever one would be shown.
pub const REDACTED: &str = "[redacted]";

/// A text that is zeroed when dropped and shown as [`REDACTED`] by `Debug` and `Serialize`.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(SecretString);

impl Secret {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_and_used_but_never_shown() {
        let secret: Secret = serde_json::from_str("\"canary-7\"").unwrap();
        assert_eq!(secret.expose(), "canary-7");
        assert_eq!(format!("{secret:?} {secret:#?}"), "[redacted] [redacted]");
        assert_eq!(serde_json::to_string(&[secret]).unwrap(), r#"["[redacted]"]"#);
    }
}
