//! Faults of a configuration, told with the place where the operator has to look.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::base::invalid::did_you_mean;

/// The configuration can't be used. Each line of its message begins with `file:line:column` or the variable's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(Vec<String>);

impl ConfigError {
    pub(super) fn at(place: &str, message: &str) -> ConfigError {
        ConfigError(vec![format!("{place}: {message}")])
    }

    pub(super) fn all(errors: impl Iterator<Item = ConfigError>) -> ConfigError {
        ConfigError(errors.flat_map(|error| error.0).collect())
    }

    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
        ConfigError::at(&path.display().to_string(), &error.to_string())
    }

    pub(super) fn syntax(name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
        let at = error.span().map(|span| span.start).unwrap_or_default();
        ConfigError::at(&position(name, text, at), error.message())
    }
}

/// A fault by the path of its key; where that was written is looked up by [`ConfigFault::at_place`].
pub(super) struct ConfigFault {
    /// The keys from the top down.
    pub path: Vec<String>,
    pub message: String,
    /// The variable that said so, if it was not the file.
    pub variable: Option<String>,
}

impl ConfigFault {
    /// The error, with its place in the file `name` of this text, or the variable that holds the value.
    pub fn at_place(self, name: &str, text: &str) -> ConfigError {
        let message = self.sentence();
        let place = match self.variable {
            Some(variable) => variable,
            None => match offset(text, &self.path, self.unknown_field().is_some()) {
                Some(at) => position(name, text, at),
                None => name.to_owned(),
            },
        };
        ConfigError::at(&place, &message)
    }

    /// The rest of serde's sentence about a key that nothing reads.
    fn unknown_field(&self) -> Option<&str> {
        self.message.strip_prefix("unknown field ")
    }

    /// Serde's sentence in our words.
    fn sentence(&self) -> String {
        let path = self.path.join(".");
        let Some(listed) = self.unknown_field() else {
            let message = without_value(&self.message);
            return if path.is_empty() { message } else { format!("`{path}`: {message}") };
        };
        let parent = &self.path[..self.path.len().saturating_sub(1)];
        let siblings: Vec<String> = expected_fields(listed)
            .map(|field| parent.iter().map(String::as_str).chain([field]).collect::<Vec<_>>().join("."))
            .collect();
        let meant = did_you_mean(&path, siblings.iter().map(String::as_str));
        match meant.as_str() {
            "" if siblings.is_empty() => format!("unknown key `{path}`; there are no keys here"),
            "" => format!("unknown key `{path}`; known are `{}`", siblings.join("`, `")),
            meant => format!("unknown key `{path}`{meant}"),
        }
    }
}

/// Serde quotes a text of the wrong type, and that may be a secret in the wrong place.
fn without_value(message: &str) -> String {
    match (message.split_once(" string \""), message.rsplit_once("\", expected ")) {
        (Some((before, _)), Some((_, after))) => format!("{before} string, expected {after}"),
        _ => message.to_owned(),
    }
}

/// The names in serde's "unknown field `x`, expected one of `a`, `b`", the written one left out.
pub(super) fn expected_fields(message: &str) -> impl Iterator<Item = &str> {
    let (_, list) = message.split_once(", expected ").unwrap_or_default();
    list.split('`').skip(1).step_by(2)
}

/// Where in `text` the key or the value of `path` begins; the nearest written table if it is not there itself.
fn offset(text: &str, path: &[String], key_itself: bool) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut at = None;
    let mut table = root.get_ref();
    for (depth, name) in path.iter().enumerate() {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name.as_str()) else { break };
        let last = depth + 1 == path.len();
        at = Some(if last && !key_itself { value.span().start } else { key.span().start });
        match table_below(value, path.get(depth + 1)) {
            Some(next) => table = next,
            None => break,
        }
    }
    at
}

/// The table under a value: itself, or the element that the path goes on with.
fn table_below<'a, 'i>(value: &'a Spanned<DeValue<'i>>, next: Option<&String>) -> Option<&'a DeTable<'i>> {
    match value.get_ref() {
        DeValue::Table(table) => Some(table),
        DeValue::Array(items) => match items.get(next?.parse::<usize>().ok()?)?.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => None,
        },
        _ => None,
    }
}

/// `name:line:column`, both counted from 1 in characters.
fn position(name: &str, text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{name}:{line}:{column}")
}
