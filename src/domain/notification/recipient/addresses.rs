//! All addresses of a recipient: shown without their secrets, told apart, and what is said where one is missing.

use serde_json::{Map, Value};

use crate::base::invalid::did_you_mean;
use crate::domain::notification::Addresses;

impl Addresses {
    /// The document that the API shows: everything but the secrets.
    pub fn public(&self) -> Value {
        let mut shown = Map::new();
        for kind in Addresses::KINDS.iter().filter(|kind| self.has(kind)) {
            shown.insert((*kind).to_owned(), self.public_of(kind));
        }
        Value::Object(shown)
    }

    /// Why nothing is sent through a channel that there is no address for: it is no channel, or its address is missing.
    pub fn missing_address(&self, name: &str) -> String {
        if !Addresses::KINDS.contains(&name) {
            return format!("there is no channel `{name}`{}", did_you_mean(name, Addresses::KINDS));
        }
        let others: Vec<&str> = Addresses::KINDS.into_iter().filter(|kind| self.has(kind)).collect();
        let has = match others.as_slice() {
            [] => String::new(),
            others => format!("; it has one for `{}`", others.join("`, `")),
        };
        format!("the recipient has no address for `{name}`{has}")
    }

    /// Where this channel leads to, as a text that is another for every other place; `None` where there is no address.
    pub fn identity(&self, kind: &str) -> Option<String> {
        self.has(kind).then(|| self.identity_of(kind).to_string())
    }
}
