//! The answer of a task's runs: where it is told, how urgent it is, and which ends are told at all.

use serde::{Deserialize, Serialize};

/// Where the result is told, and how much it presses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// Recipient and channels of the answer.
    pub route: Route,
    /// `None`: as urgent as messages of their kind are.
    pub urgency: Option<Urgency>,
}

/// The channels that a result takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Route {
    /// `output` is absent: the recipient's own order.
    #[default]
    RecipientOrder,
    /// `null`: the result is told to nobody.
    Nobody,
    /// The named channels, the later ones when the earlier fail.
    Channels(Vec<String>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputShape {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel: Option<OneOrMany>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    urgency: Option<Urgency>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Output {
    /// Told to nobody.
    pub fn nobody() -> Output {
        Output { route: Route::Nobody, urgency: None }
    }

    /// Told through these channels.
    pub fn channels(names: Vec<String>) -> Output {
        Output { route: Route::Channels(names), urgency: None }
    }

    /// Whether it is what a task has that says nothing of it.
    pub fn is_default(&self) -> bool {
        *self == Output::default()
    }
}

impl Serialize for Output {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let channel = match &self.route {
            Route::Nobody => return to.serialize_none(),
            Route::RecipientOrder => None,
            Route::Channels(names) => Some(match names.as_slice() {
                [one] => OneOrMany::One(one.clone()),
                many => OneOrMany::Many(many.to_vec()),
            }),
        };
        OutputShape { channel, urgency: self.urgency }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Output {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Output, D::Error> {
        let Some(OutputShape { channel, urgency }) = Option::<OutputShape>::deserialize(from)? else {
            return Ok(Output::nobody());
        };
        let route = match channel {
            None => Route::RecipientOrder,
            Some(OneOrMany::One(name)) => Route::Channels(vec![name]),
            Some(OneOrMany::Many(names)) => Route::Channels(names),
        };
        Ok(Output { route, urgency })
    }
}

/// Urgency of a message. One that is at least as urgent as quiet hours demand breaks through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// It can wait.
    Low,
    /// The usual urgency.
    Normal,
    /// Somebody is waited for.
    High,
    /// The highest urgency.
    Urgent,
}

impl Urgency {
    /// Every degree, the lowest first.
    pub const ALL: [Urgency; 4] = [Urgency::Low, Urgency::Normal, Urgency::High, Urgency::Urgent];

    /// The word in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Urgency::Low => "low",
            Urgency::Normal => "normal",
            Urgency::High => "high",
            Urgency::Urgent => "urgent",
        }
    }

    /// The degree of this word; `None` where there is none.
    pub fn parse(word: &str) -> Option<Urgency> {
        Urgency::ALL.into_iter().find(|urgency| urgency.as_str() == word)
    }
}

/// Which ends of a task's runs are told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notify {
    /// Every end: results and failures.
    #[default]
    Always,
    /// Results that differ from the one told last, and failures.
    OnChange,
    /// Failures, and that all is well again.
    OnFailure,
    /// Neither; questions reach people all the same.
    Never,
}

impl Notify {
    /// Every choice, the default first.
    pub const ALL: [Notify; 4] = [Notify::Always, Notify::OnChange, Notify::OnFailure, Notify::Never];

    /// The word in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Notify::Always => "always",
            Notify::OnChange => "on_change",
            Notify::OnFailure => "on_failure",
            Notify::Never => "never",
        }
    }

    /// Whether this is the default.
    pub fn is_always(&self) -> bool {
        *self == Notify::Always
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_urgency_reads_back() {
        for urgency in Urgency::ALL {
            assert_eq!(Urgency::parse(urgency.as_str()), Some(urgency));
        }
    }
}
