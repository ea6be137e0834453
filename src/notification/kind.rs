//! Kinds of messages, how urgent each is, and the reasons for which they may be held.

use serde::{Deserialize, Serialize};

use crate::task::Urgency;

/// Kinds of deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The answer of a run.
    Result,
    /// That a run failed or expired, and why.
    Failure,
    /// A message that an agent or a pipeline sends.
    Message,
    /// Something about the tasks themselves: one was paused, a credential is missing.
    Notice,
    /// A question about what a run wants to do, with a link.
    Ask,
    /// A reminder of a question, before its time is over.
    Reminder,
    /// Messages that were held, together.
    Digest,
    /// That the channel works; somebody has asked for it.
    Test,
    /// A code that proves the address; somebody has asked for it.
    Code,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Result,
        Kind::Failure,
        Kind::Message,
        Kind::Notice,
        Kind::Ask,
        Kind::Reminder,
        Kind::Digest,
        Kind::Test,
        Kind::Code,
    ];

    /// The word in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Result => "result",
            Kind::Failure => "failure",
            Kind::Message => "message",
            Kind::Notice => "notice",
            Kind::Ask => "ask",
            Kind::Reminder => "reminder",
            Kind::Digest => "digest",
            Kind::Test => "test",
            Kind::Code => "code",
        }
    }

    /// The kind of this word; `None` where there is none.
    pub fn parse(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl Kind {
    /// How urgent a message of this kind is, unless somebody says otherwise.
    pub fn urgency(self) -> Urgency {
        match self {
            Kind::Result | Kind::Failure | Kind::Message | Kind::Notice | Kind::Digest => Urgency::Normal,
            Kind::Ask | Kind::Reminder | Kind::Test | Kind::Code => Urgency::High,
        }
    }

    /// Whether somebody is waited for.
    pub fn asks(self) -> bool {
        matches!(self, Kind::Ask | Kind::Reminder)
    }

    /// Whether quiet hours and the budget concern it. A digest has its own time, and what a person has asked for just
    /// now comes now.
    pub fn may_be_held(self) -> bool {
        !matches!(self, Kind::Digest | Kind::Test | Kind::Code)
    }
}

/// Why a message was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The recipient's quiet hours.
    QuietHours,
    /// The recipient's budget of interruptions a day.
    Budget,
}

impl Held {
    /// Every rule that holds messages.
    pub const ALL: [Held; 2] = [Held::QuietHours, Held::Budget];

    /// The word in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Held::QuietHours => "quiet_hours",
            Held::Budget => "budget",
        }
    }

    /// The rule of this word; `None` where there is none.
    pub fn parse(word: &str) -> Option<Held> {
        Held::ALL.into_iter().find(|held| held.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.as_str()), Some(kind));
        }
        for held in Held::ALL {
            assert_eq!(Held::parse(held.as_str()), Some(held));
        }
    }
}
