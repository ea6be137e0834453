//! The fields of a form as a browser has sent them.

use std::collections::HashMap;

/// The fields that were sent: the first value of each name.
#[derive(Debug, Default)]
pub struct SubmittedFields(HashMap<String, String>);

impl SubmittedFields {
    /// Reads `application/x-www-form-urlencoded`.
    pub fn parse(body: &[u8]) -> SubmittedFields {
        let pairs = url::form_urlencoded::parse(body);
        pairs.fold(SubmittedFields::default(), |sent, (name, value)| sent.with(&name, &value))
    }

    /// The fields of a form that was read already.
    pub fn of<'f>(fields: impl Iterator<Item = (&'f str, &'f str)>) -> SubmittedFields {
        fields.fold(SubmittedFields::default(), |sent, (name, value)| sent.with(name, value))
    }

    fn with(mut self, name: &str, value: &str) -> SubmittedFields {
        self.0.entry(name.to_owned()).or_insert_with(|| lines(value));
        self
    }

    /// The text of a field that was submitted.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Line ends as forms have them become those of texts.
fn lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}
