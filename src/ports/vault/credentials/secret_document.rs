//! A document in the clear, for as long as it is used.

use serde_json::Value;

use crate::base::secret::{Secret, erase};

/// Longer texts are read aside, where they keep nothing else waiting, in bytes.
pub(super) const READ_IN_PLACE: usize = 4 * 1024;

/// The document of a credential in the clear, zeroed when it is dropped. It has no debug form.
pub struct SecretDocument(Value);

impl SecretDocument {
    /// Reads JSON; `None`: it is none.
    pub fn read(secret: &Secret) -> Option<SecretDocument> {
        serde_json::from_str(secret.expose()).ok().map(SecretDocument)
    }

    /// The document.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The document as JSON.
    pub fn text(&self) -> Secret {
        Secret::new(self.0.to_string())
    }
}

impl Drop for SecretDocument {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}
