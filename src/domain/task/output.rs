//! The answer of a task's runs: where it is told, how urgent it is, and which ends are told at all.

use serde::{Deserialize, Serialize};

use crate::base::words::words;

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

/// Where the result is told: a channel, or several, the later ones when the earlier fail.
#[derive(Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Output)]
pub(super) struct OutputShape {
    /// Absent: the recipient's own order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel: Option<OneOrMany>,
    /// Against the recipient's quiet hours and budget. Absent: `normal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    urgency: Option<Urgency>,
}

#[derive(Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = Channels)]
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

words! {
    /// Urgency of a message. One that is at least as urgent as quiet hours demand breaks through them.
    #[derive(PartialOrd, Ord, utoipa::ToSchema)]
    pub enum Urgency {
        /// It can wait.
        Low = "low",
        /// The usual urgency.
        Normal = "normal",
        /// Somebody is waited for.
        High = "high",
        /// The highest urgency.
        Urgent = "urgent",
    }
}

words! {
    /// Which ends of a task's runs are told.
    #[derive(Default, utoipa::ToSchema)]
    pub enum Notify {
        /// Every end: results and failures.
        #[default]
        Always = "always",
        /// Results that differ from the one told last, and failures.
        OnChange = "on_change",
        /// Failures, and that all is well again.
        OnFailure = "on_failure",
        /// Neither; questions reach people all the same.
        Never = "never",
    }
}

impl Notify {
    /// Whether this is the default.
    pub fn is_always(&self) -> bool {
        *self == Notify::Always
    }
}
