//! Kinds of messages, how urgent each is, and the reasons for which they may be held.

use crate::base::words::words;
use crate::domain::task::Urgency;

words! {
    /// Kinds of deliveries.
    #[derive(utoipa::ToSchema)]
    pub enum MessageKind {
        /// The answer of a run.
        Result = "result",
        /// That a run failed or expired, and why.
        Failure = "failure",
        /// A message that an agent or a pipeline sends.
        Message = "message",
        /// Something about the tasks themselves: one was paused, a credential is missing.
        Notice = "notice",
        /// A question about what a run wants to do, with a link.
        Ask = "ask",
        /// A reminder of a question, before its time is over.
        Reminder = "reminder",
        /// Messages that were held, together.
        Digest = "digest",
        /// That the channel works; somebody has asked for it.
        Test = "test",
        /// A code that proves the address; somebody has asked for it.
        Code = "code",
    }
}

impl MessageKind {
    /// How urgent a message of this kind is, unless somebody says otherwise.
    pub fn urgency(self) -> Urgency {
        match self {
            MessageKind::Result
            | MessageKind::Failure
            | MessageKind::Message
            | MessageKind::Notice
            | MessageKind::Digest => Urgency::Normal,
            MessageKind::Ask | MessageKind::Reminder | MessageKind::Test | MessageKind::Code => Urgency::High,
        }
    }

    /// Whether somebody is waited for.
    pub fn asks(self) -> bool {
        matches!(self, MessageKind::Ask | MessageKind::Reminder)
    }

    /// Whether quiet hours and the budget concern it. A digest has its own time, and what a person has asked for just
    /// now comes now.
    pub fn may_be_held(self) -> bool {
        !matches!(self, MessageKind::Digest | MessageKind::Test | MessageKind::Code)
    }
}

words! {
    /// Why a message was held.
    #[derive(utoipa::ToSchema)]
    pub enum HoldReason {
        /// The recipient's quiet hours.
        QuietHours = "quiet_hours",
        /// The recipient's budget of interruptions a day.
        Budget = "budget",
    }
}

words! {
    /// The kind of a notice about a task: a word in keys, in names of templates and in the database.
    pub enum NoticeKind {
        /// A credential can't be used.
        Credential = "credential",
        /// The task fails as before.
        Failing = "failing",
        /// The task was paused because it kept failing.
        Paused = "paused",
        /// The task was disabled because it can't go on as it is stored.
        Disabled = "disabled",
        /// The task works again.
        Recovered = "recovered",
        /// The poll of a condition fails.
        PollFailing = "poll_failing",
        /// The poll of a condition answers again.
        PollRecovered = "poll_recovered",
        /// The task fires at other instants because the rules of its time zone have changed.
        ZoneRules = "zone_rules",
        /// An expression of the task looks for a field that is not there.
        MissingField = "missing_field",
        /// A tool that the task names is new or changed, and waits for the operator.
        ToolChanged = "tool_changed",
        /// Of a budget of the day, most is used.
        BudgetWarning = "budget_warning",
        /// A budget of the day is used up.
        BudgetUsedUp = "budget_used_up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back() {
        for kind in MessageKind::ALL {
            assert_eq!(MessageKind::parse(kind.as_str()), Some(kind));
        }
        for held in HoldReason::ALL {
            assert_eq!(HoldReason::parse(held.as_str()), Some(held));
        }
    }
}
