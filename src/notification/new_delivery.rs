//! A delivery that is to be made: what is told, to whom, and through which channels in which order.
//!
//! Each reason to tell somebody something has its way to make one here. It is stored in the transaction that makes the
//! reason, and stores references: its words are made when it is sent. Nothing is kept here.

use uuid::Uuid;

use crate::notification::{Kind, Recipient, Urgency, dedupe};
use crate::task::{Output, Route, Task};

/// A delivery that is to be made. Storing one whose key is taken does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelivery {
    pub tenant_id: String,
    /// Whose addresses: the tenant's own recipient has the tenant's id.
    pub recipient: String,
    pub channel: String,
    /// Channels to be tried after this one has failed, in order.
    pub fallback: Vec<String>,
    /// One of the functions in [`dedupe`].
    pub dedupe_key: String,
    pub run_id: Option<Uuid>,
    pub kind: Kind,
    pub urgency: Urgency,
    /// `None` where it is made from the run.
    pub subject: Option<String>,
    /// `None` where it is made from the run.
    pub text: Option<String>,
}

impl NewDelivery {
    /// What a finished run tells through the first of `channels`, the others in reserve; `None` where there are none.
    pub fn of_run(tenant_id: &str, run_id: Uuid, kind: Kind, channels: Vec<String>) -> Option<NewDelivery> {
        let (first, rest) = channels.split_first()?;
        Some(NewDelivery {
            tenant_id: tenant_id.to_owned(),
            recipient: tenant_id.to_owned(),
            channel: first.clone(),
            fallback: rest.to_vec(),
            dedupe_key: dedupe::run_result(run_id),
            run_id: Some(run_id),
            kind,
            urgency: kind.urgency(),
            subject: None,
            text: None,
        })
    }

    /// As urgent as somebody says, where somebody does.
    pub fn pressing(self, urgency: Option<Urgency>) -> NewDelivery {
        NewDelivery { urgency: urgency.unwrap_or(self.urgency), ..self }
    }

    /// A question, or a reminder of one, to a recipient; `None` where there is no way to. It reaches people whatever
    /// becomes of the run's result.
    pub fn question(
        of: (&str, Uuid),
        to: &str,
        recipient: Option<&Recipient>,
        kind: Kind,
        dedupe_key: String,
    ) -> Option<NewDelivery> {
        let order = channels(&Output::default(), recipient);
        let (first, rest) = order.split_first()?;
        Some(NewDelivery {
            tenant_id: of.0.to_owned(),
            recipient: to.to_owned(),
            channel: first.clone(),
            fallback: rest.to_vec(),
            dedupe_key,
            run_id: Some(of.1),
            kind,
            urgency: kind.urgency(),
            subject: None,
            text: None,
        })
    }

    /// Something about a task that its owner is told, even where its results are told to nobody; `None` where there is
    /// no way to.
    pub fn notice(
        task: &Task,
        recipient: Option<&Recipient>,
        dedupe_key: String,
        (subject, text): (String, String),
    ) -> Option<NewDelivery> {
        let order = match task.spec.output.route {
            Route::Nobody => channels(&Output::default(), recipient),
            _ => channels(&task.spec.output, recipient),
        };
        let (first, rest) = order.split_first()?;
        Some(NewDelivery {
            tenant_id: task.tenant_id.clone(),
            recipient: task.tenant_id.clone(),
            channel: first.clone(),
            fallback: rest.to_vec(),
            dedupe_key,
            run_id: None,
            kind: Kind::Notice,
            urgency: Kind::Notice.urgency(),
            subject: Some(subject),
            text: Some(text),
        })
    }
}

/// The channels that a task's output goes through, in order. None: nobody is told. A named channel is kept even where
/// the recipient has no such address, so that the failed delivery shows it.
pub fn channels(output: &Output, recipient: Option<&Recipient>) -> Vec<String> {
    match &output.route {
        Route::Nobody => vec![],
        Route::Channels(named) => named.clone(),
        Route::RecipientOrder => recipient.map(Recipient::order).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_says_who_is_told() {
        let named = Output::channels(vec!["sms".into(), "email".into()]);
        assert_eq!(channels(&named, None), ["sms", "email"]);
        assert_eq!(channels(&Output::nobody(), None), [""; 0]);
        assert_eq!(channels(&Output::default(), None), [""; 0]);
    }
}
