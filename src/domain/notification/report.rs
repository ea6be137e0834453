//! A provider's later report about a message that it took on, and its consequences.
//!
//! Reports come in any order, more than once, and after a message was sent again; what they can no longer change, they
//! leave as it is.

use chrono::TimeDelta;

use crate::domain::notification::{DeliveryEvent, DeliveryState};

/// How long a provider has to report on what it took on. After that the outcome is unknown.
pub const PATIENCE: TimeDelta = TimeDelta::hours(24);

/// A report on one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The provider's id of the message.
    pub provider_id: Option<String>,
    /// The reported fate of the message.
    pub fate: ReportedFate,
}

/// How a message went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedFate {
    /// Nothing is decided yet.
    UnderWay,
    /// It arrived.
    Delivered,
    /// It did not arrive, and will not. The text is shown to people.
    Failed {
        /// The provider's reason, in a sentence.
        why: String,
    },
}

impl DeliveryReport {
    /// The state that it brings a delivery to whose last known attempt the provider called `provider_id`; `None` where
    /// it changes nothing. A message that has arrived has arrived, by whichever attempt; that one did not says nothing
    /// of another.
    pub fn next_state(&self, state: DeliveryState, provider_id: Option<&str>) -> Option<DeliveryState> {
        let event = match &self.fate {
            ReportedFate::UnderWay => return None,
            ReportedFate::Delivered => DeliveryEvent::Confirm,
            ReportedFate::Failed { .. } => DeliveryEvent::Reject,
        };
        let same = self.provider_id.as_deref().zip(provider_id).map(|(theirs, ours)| theirs == ours);
        let of_another_attempt = match state {
            // the one that is known is over
            DeliveryState::Pending => same == Some(true),
            _ => same == Some(false),
        };
        if event == DeliveryEvent::Reject && of_another_attempt {
            return None;
        }
        state.on(event).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_leads_where_it_should() {
        let failed = || ReportedFate::Failed { why: "no such number".into() };
        let mut table = String::new();
        for state in DeliveryState::ALL {
            for (word, known) in [("none", None), ("this", Some("SM1")), ("another", Some("SM0"))] {
                for fate in [ReportedFate::UnderWay, ReportedFate::Delivered, failed()] {
                    let report = DeliveryReport { provider_id: Some("SM1".into()), fate };
                    if let Some(next) = report.next_state(state, known) {
                        table.push_str(&format!("{} knowing {word}: {}\n", state.as_str(), next.as_str()));
                    }
                }
            }
        }
        insta::assert_snapshot!(table, @r"
        pending knowing none: delivered
        pending knowing none: failed
        pending knowing this: delivered
        pending knowing another: delivered
        pending knowing another: failed
        sent knowing none: delivered
        sent knowing none: failed
        sent knowing this: delivered
        sent knowing this: failed
        sent knowing another: delivered
        unknown knowing none: delivered
        unknown knowing none: failed
        unknown knowing this: delivered
        unknown knowing this: failed
        unknown knowing another: delivered
        ");
    }
}
