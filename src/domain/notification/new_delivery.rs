//! A delivery that is to be made: what is told, to whom, and through which channels in which order.
//!
//! Each reason to tell somebody something has its way to make one here. It is stored in the transaction that makes the
//! reason, and stores references: its words are made when it is sent. Nothing is kept here.

use uuid::Uuid;

use crate::domain::notification::{MessageKind, Recipient, SubjectRef, dedupe};
use crate::domain::run::Run;
use crate::domain::task::{Output, Route, Task, Urgency};

/// A delivery that is to be made. Storing one whose key is taken does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelivery {
    /// The tenant that owns the message.
    pub tenant_id: String,
    /// The recipient with the addresses: the tenant's own has the tenant's id.
    pub recipient: String,
    /// The first channel to try.
    pub channel: String,
    /// Channels to be tried after this one has failed, in order.
    pub fallback: Vec<String>,
    /// One of the functions in [`dedupe`].
    pub dedupe_key: String,
    /// The run that the message is about.
    pub run_id: Option<Uuid>,
    /// The subject beside its run, as data; `None` where it tells of its run, or says what it says.
    pub subject_ref: Option<SubjectRef>,
    /// Kind of message.
    pub kind: MessageKind,
    /// Urgency of the message.
    pub urgency: Urgency,
    /// `None` where it is made from the run.
    pub subject: Option<String>,
    /// `None` where it is made from the run.
    pub text: Option<String>,
}

impl NewDelivery {
    /// A message to a tenant's own recipient, through the first channel of `order`, the others in reserve; `None` where
    /// there are none.
    pub fn new(tenant_id: &str, order: &[String], kind: MessageKind, dedupe_key: String) -> Option<NewDelivery> {
        let (first, rest) = order.split_first()?;
        Some(NewDelivery {
            tenant_id: tenant_id.to_owned(),
            recipient: tenant_id.to_owned(),
            channel: first.clone(),
            fallback: rest.to_vec(),
            dedupe_key,
            run_id: None,
            subject_ref: None,
            kind,
            urgency: kind.urgency(),
            subject: None,
            text: None,
        })
    }

    /// The message of a finished run through the first of `channels`, the others in reserve; `None` where there are
    /// none.
    pub fn of_run(tenant_id: &str, run_id: Uuid, kind: MessageKind, channels: Vec<String>) -> Option<NewDelivery> {
        let new = NewDelivery::new(tenant_id, &channels, kind, dedupe::run_result(run_id))?;
        Some(NewDelivery { run_id: Some(run_id), ..new })
    }

    /// The failure of a run about which its owner was asked, who hears of it even where results are told to nobody;
    /// `None` where there is no way to.
    pub fn failure_of_asked(run: &Run, output: Option<&Output>, recipient: Option<&Recipient>) -> Option<NewDelivery> {
        let usual = Output::default();
        let output = output.filter(|output| output.route != Route::Nobody).unwrap_or(&usual);
        let new = NewDelivery::of_run(&run.tenant_id, run.id, MessageKind::Failure, channels(output, recipient))?;
        Some(new.with_urgency(output.urgency))
    }

    /// As urgent as somebody says, where somebody does.
    pub fn with_urgency(self, urgency: Option<Urgency>) -> NewDelivery {
        NewDelivery { urgency: urgency.unwrap_or(self.urgency), ..self }
    }

    /// The question about a batch of calls, or its `reminder`th reminder, to a recipient, through the channels of
    /// `output` first; `None` where there is no way to. It reaches people whatever becomes of the run's result.
    pub fn question(
        of: (&str, Uuid),
        to: (&str, Option<&Recipient>),
        output: Option<&Output>,
        batch_id: Uuid,
        reminder: Option<usize>,
    ) -> Option<NewDelivery> {
        let (kind, dedupe_key) = match reminder {
            None => (MessageKind::Ask, dedupe::ask(batch_id)),
            Some(n) => (MessageKind::Reminder, dedupe::reminder(batch_id, n)),
        };
        let (to, recipient) = to;
        let new = NewDelivery::new(of.0, &channels_of_questions(output, recipient), kind, dedupe_key)?;
        let subject_ref = Some(SubjectRef::Questions { batch_id });
        Some(NewDelivery { recipient: to.to_owned(), run_id: Some(of.1), subject_ref, ..new })
    }

    /// Something about a task that its owner is told, even where its results are told to nobody; `None` where there is
    /// no way to. `about` has its key beside it.
    pub fn notice(
        task: &Task,
        recipient: Option<&Recipient>,
        about: (SubjectRef, String),
        words: (String, String),
    ) -> Option<NewDelivery> {
        NewDelivery::notice_of(&task.tenant_id, &task.spec.output, recipient, about, words)
    }

    /// A notice about a task of which no more than its tenant and its output can be read.
    pub fn notice_of(
        tenant_id: &str,
        output: &Output,
        recipient: Option<&Recipient>,
        (subject_ref, dedupe_key): (SubjectRef, String),
        (subject, text): (String, String),
    ) -> Option<NewDelivery> {
        let order = match output.route {
            Route::Nobody => channels(&Output::default(), recipient),
            _ => channels(output, recipient),
        };
        let new = NewDelivery::new(tenant_id, &order, MessageKind::Notice, dedupe_key)?;
        Some(NewDelivery { subject_ref: Some(subject_ref), subject: Some(subject), text: Some(text), ..new })
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

/// The channels that questions about a task go through: those that its results do, then the recipient's others.
fn channels_of_questions(output: Option<&Output>, recipient: Option<&Recipient>) -> Vec<String> {
    let mut order = output.map(|output| channels(output, recipient)).unwrap_or_default();
    for channel in channels(&Output::default(), recipient) {
        if !order.contains(&channel) {
            order.push(channel);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_says_who_is_told() {
        let named = Output::channels(vec!["sms".into(), "email".into()]);
        assert_eq!(channels(&named, None), ["sms", "email"]);
        assert_eq!(channels(&Output::nobody(), None), [""; 0]);
        assert_eq!(channels(&Output::default(), None), [""; 0]);
    }

    #[test]
    fn questions_go_by_the_output_first_and_reach_people_whatever_it_says() {
        let recipient: Recipient = serde_json::from_value(serde_json::json!({
            "timezone": "UTC", "locale": "en", "addresses": { "email": "ann@example.org", "sms": "+14155550100" },
            "fallback": ["email", "sms"],
        }))
        .unwrap();
        let order = |output: Option<Output>| channels_of_questions(output.as_ref(), Some(&recipient));
        assert_eq!(order(Some(Output::channels(vec!["sms".into()]))), ["sms", "email"]);
        assert_eq!(order(Some(Output::channels(vec!["webhook".into(), "email".into()]))), ["webhook", "email", "sms"]);
        for output in [None, Some(Output::nobody()), Some(Output::default())] {
            assert_eq!(order(output), ["email", "sms"]);
        }
        assert_eq!(channels_of_questions(Some(&Output::nobody()), None), [""; 0]);
    }
}
