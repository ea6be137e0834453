//! A delivery: one message on its way through one channel, and the only table of what may follow what.
//!
//! The row is written in the transaction that makes its reason (a finished run), so no message is lost with a crash.
//! A delivery is unique by (tenant, recipient, channel, `dedupe_key`), so none is made twice. Falling back makes a new
//! delivery with the same key on the next channel.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::words::words;
pub use crate::domain::notification::dedupe;
use crate::domain::notification::{HoldReason, MessageKind, NewDelivery, SubjectRef};
use crate::domain::task::Urgency;

/// Waits before the second, third, … attempt. The delivery fails with the attempt after the last of them.
pub const BACKOFF: [Duration; 6] = [
    Duration::from_secs(5),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 3600),
    Duration::from_secs(5 * 3600),
    Duration::from_secs(10 * 3600),
];
/// Share of a wait by which jitter may shorten or lengthen it.
const JITTER: f64 = 0.2;
/// A Retry-After longer than this is not believed.
const LONGEST_HINT: Duration = Duration::from_secs(24 * 3600);

words! {
    /// Where a delivery stands.
    #[derive(utoipa::ToSchema)]
    pub enum DeliveryState {
        /// To be sent, at once or at `next_at`.
        Pending = "pending",
        /// The provider took it on and will report how it went.
        Sent = "sent",
        /// The other side said so: a webhook answered 2xx; for email, the mail server took it.
        Delivered = "delivered",
        /// Refused, or given up; `last_error` says why.
        Failed = "failed",
        /// It may have arrived or not, and nobody can say; it is not sent again by itself. A late report settles it.
        Unknown = "unknown",
    }
}

/// Events in the life of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryEvent {
    /// The provider took it on.
    Accept,
    /// The other side confirmed it.
    Confirm,
    /// Another attempt follows.
    Postpone,
    /// Refused for good, or attempts used up.
    Reject,
    /// Its outcome can't be learnt.
    Lose,
    /// A person asks for it to be sent again.
    Again,
}

/// A transition that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a delivery that is {} can't {event:?}", state.as_str())]
pub struct IllegalDeliveryTransition {
    /// The state that the delivery had.
    pub state: DeliveryState,
    /// The event that the state does not allow.
    pub event: DeliveryEvent,
}

impl DeliveryState {
    /// The state after `event`. Total: every pair that is not listed is illegal.
    pub fn on(self, event: DeliveryEvent) -> Result<DeliveryState, IllegalDeliveryTransition> {
        use DeliveryEvent::*;
        use DeliveryState::*;
        Ok(match (self, event) {
            (Pending, Accept) => Sent,
            (Pending, Postpone) => Pending,
            // a report may come before the attempt is recorded, and after it was given up as lost
            (Pending | Sent | Unknown, Confirm) => Delivered,
            (Pending | Sent | Unknown, Reject) => Failed,
            (Pending | Sent, Lose) => Unknown,
            (Failed | Unknown, Again) => Pending,
            (state, event) => return Err(IllegalDeliveryTransition { state, event }),
        })
    }
}

/// A stored delivery, as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Delivery {
    /// Id of the delivery, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns it.
    pub tenant_id: String,
    /// Id of the recipient.
    pub recipient: String,
    /// The channel of this attempt, such as `email`.
    pub channel: String,
    /// Channels to try next, in order.
    pub fallback: Vec<String>,
    /// Key that is unique with tenant, recipient and channel: `docs/keys.md`, "Messages".
    pub dedupe_key: String,
    /// The run that the message is about.
    pub run_id: Option<Uuid>,
    /// The subject of the message beside its run, as data.
    #[serde(skip)]
    pub subject_ref: Option<SubjectRef>,
    /// Kind of message.
    pub kind: MessageKind,
    /// Urgency, which decides about quiet hours.
    pub urgency: Urgency,
    /// Subject of a message that is stored with its words.
    pub subject: Option<String>,
    /// Text of a message that is stored with its words.
    pub text: Option<String>,
    /// State of the delivery.
    pub state: DeliveryState,
    /// Attempts begun; claiming begins one.
    pub attempts: i32,
    /// When it is tried next; `null` once it is no longer pending, and where a digest tells it.
    pub next_at: Option<DateTime<Utc>>,
    /// Why it was not sent at once, if the recipient's quiet hours or budget held it.
    pub hold_reason: Option<HoldReason>,
    /// Since when it is to be sent, if that is later than it was made: it was held, the other side asked to wait, or
    /// somebody sends it again.
    #[serde(skip)]
    pub due_at: Option<DateTime<Utc>>,
    /// The digest that tells it, or told it.
    pub digest_id: Option<Uuid>,
    /// An attempt before may have got through, and nobody knows.
    #[serde(skip)]
    pub maybe_delivered: bool,
    /// Reason of the last failed attempt, without secrets.
    pub last_error: Option<String>,
    /// The provider's id of the message.
    pub provider_id: Option<String>,
    /// The instant at which it was recorded.
    pub created_at: DateTime<Utc>,
    /// The instant at which the other side took it on.
    pub sent_at: Option<DateTime<Utc>>,
    /// The instant at which it is known to have arrived.
    pub delivered_at: Option<DateTime<Utc>>,
}

/// A delivery that one worker may now attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryClaim {
    /// The delivery as it was claimed.
    pub delivery: Delivery,
    /// Fences the mark: whoever claims later has another.
    pub lease_token: i64,
    /// An earlier attempt was begun and its outcome never recorded: its worker died.
    pub interrupted: bool,
}

/// The outcome of one attempt, to be recorded at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The other side says that it arrived.
    Delivered {
        /// The provider's id of the message.
        provider_id: Option<String>,
    },
    /// The provider took it on; whether it arrived is reported later.
    Sent {
        /// The provider's id of the message.
        provider_id: Option<String>,
    },
    /// The attempt failed and is made again.
    Retry {
        /// The instant of the next attempt.
        at: DateTime<Utc>,
        /// The reason, without secrets.
        error: String,
        /// The other side asked to be left alone until then: its age counts from then on.
        asked: bool,
        /// This attempt may have got through, and nobody knows.
        maybe_delivered: bool,
    },
    /// Nothing was attempted, and no attempt is used up.
    Wait {
        /// The instant from which it is due again.
        at: DateTime<Utc>,
        /// The rule that holds it; `None`: a sick channel or the service itself.
        hold_reason: Option<HoldReason>,
        /// The reason, where it is an error.
        error: Option<String>,
    },
    /// Nothing was attempted, and no attempt is used up: `digest` tells it, which is made or joined.
    Hold {
        /// The rule that holds it.
        hold_reason: HoldReason,
        /// The digest that will tell it.
        digest: Box<NewDelivery>,
        /// When the digest is due.
        at: DateTime<Utc>,
    },
    /// It was refused for good, or no attempt is left.
    Failed {
        /// The reason, without secrets.
        error: String,
        /// The message through the next channel, to be stored in this transaction.
        fall_back: Option<Box<NewDelivery>>,
    },
    /// Whether it arrived is not known.
    Unknown {
        /// The reason, without secrets.
        error: String,
        /// As with `Failed`: what was tried until no attempt was left, in doubt, is told by another way.
        fall_back: Option<Box<NewDelivery>>,
    },
}

impl DeliveryClaim {
    /// An attempt before may have got through: its process died, or no answer came.
    pub fn may_have_been_sent(&self) -> bool {
        self.interrupted || self.delivery.maybe_delivered
    }
}

impl Mark {
    /// The event that the mark is for the delivery's state.
    pub fn event(&self) -> DeliveryEvent {
        match self {
            Mark::Delivered { .. } => DeliveryEvent::Confirm,
            Mark::Sent { .. } => DeliveryEvent::Accept,
            Mark::Retry { .. } | Mark::Wait { .. } | Mark::Hold { .. } => DeliveryEvent::Postpone,
            Mark::Failed { .. } => DeliveryEvent::Reject,
            Mark::Unknown { .. } => DeliveryEvent::Lose,
        }
    }
}

impl Delivery {
    /// The message through the first channel of `fallback`; `None` when there is no further one.
    pub fn fall_back(&self) -> Option<NewDelivery> {
        let (next, rest) = self.fallback.split_first()?;
        Some(NewDelivery {
            tenant_id: self.tenant_id.clone(),
            recipient: self.recipient.clone(),
            channel: next.clone(),
            fallback: rest.to_vec(),
            dedupe_key: self.dedupe_key.clone(),
            run_id: self.run_id,
            subject_ref: self.subject_ref.clone(),
            kind: self.kind,
            urgency: self.urgency,
            subject: self.subject.clone(),
            text: self.text.clone(),
        })
    }

    /// Since when it is to be sent: what was held, was to wait or is sent again from then on, a digest from its own
    /// time on, all else from its beginning.
    pub fn due_since(&self) -> DateTime<Utc> {
        let of_digest = match &self.subject_ref {
            Some(SubjectRef::Digest { due_at }) => Some(*due_at),
            _ => None,
        };
        self.due_at.or(of_digest).unwrap_or(self.created_at)
    }

    /// The digest that is to tell it at an instant, by the same ways.
    pub fn digest(&self, at: DateTime<Utc>) -> NewDelivery {
        NewDelivery {
            tenant_id: self.tenant_id.clone(),
            recipient: self.recipient.clone(),
            channel: self.channel.clone(),
            fallback: self.fallback.clone(),
            dedupe_key: dedupe::digest(&self.channel, at),
            run_id: None,
            subject_ref: Some(SubjectRef::Digest { due_at: at }),
            kind: MessageKind::Digest,
            urgency: MessageKind::Digest.urgency(),
            subject: None,
            text: None,
        }
    }
}

/// The attempt behind which the longest wait comes.
pub const LAST_WAIT: i32 = BACKOFF.len() as i32;

/// When the next attempt follows after `attempts` have been made, or `None` when they are used up. `hint` is what the
/// other side asked for (Retry-After): never earlier than that, up to a day. `random` lies in 0..1.
pub fn retry_after(attempts: i32, hint: Option<Duration>, random: f64) -> Option<Duration> {
    let made = usize::try_from(attempts.max(1)).ok()?;
    let wait = BACKOFF.get(made - 1)?.mul_f64(1.0 + JITTER * (2.0 * random - 1.0));
    Some(wait.max(hint.unwrap_or_default().min(LONGEST_HINT)))
}

/// The instant of the next attempt, in whole milliseconds.
pub fn retry_at(now: DateTime<Utc>, attempts: i32, hint: Option<Duration>, random: f64) -> Option<DateTime<Utc>> {
    let wait = retry_after(attempts, hint, random)?;
    Some(now + TimeDelta::milliseconds(i64::try_from(wait.as_millis()).ok()?))
}

#[cfg(test)]
impl Delivery {
    /// One that waits to be sent to ann by email, at its first attempt.
    pub fn sample(kind: MessageKind) -> Delivery {
        Delivery {
            id: Uuid::from_u128(1),
            tenant_id: "ann".into(),
            recipient: "ann".into(),
            channel: "email".into(),
            fallback: vec![],
            dedupe_key: "k".into(),
            run_id: None,
            subject_ref: None,
            kind,
            urgency: kind.urgency(),
            subject: None,
            text: None,
            state: DeliveryState::Pending,
            attempts: 1,
            next_at: None,
            hold_reason: None,
            due_at: None,
            digest_id: None,
            maybe_delivered: false,
            last_error: None,
            provider_id: None,
            created_at: DateTime::UNIX_EPOCH,
            sent_at: None,
            delivered_at: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::notification::NoticeKind;

    const EVENTS: [DeliveryEvent; 6] = [
        DeliveryEvent::Accept,
        DeliveryEvent::Confirm,
        DeliveryEvent::Postpone,
        DeliveryEvent::Reject,
        DeliveryEvent::Lose,
        DeliveryEvent::Again,
    ];

    #[test]
    fn table_of_transitions_is_the_one_that_is_written_down() {
        let mut table = String::new();
        for state in DeliveryState::ALL {
            for event in EVENTS {
                if let Ok(next) = state.on(event) {
                    table.push_str(&format!("{} {event:?} {}\n", state.as_str(), next.as_str()));
                }
            }
        }
        insta::assert_snapshot!(table, @r"
        pending Accept sent
        pending Confirm delivered
        pending Postpone pending
        pending Reject failed
        pending Lose unknown
        sent Confirm delivered
        sent Reject failed
        sent Lose unknown
        failed Again pending
        unknown Confirm delivered
        unknown Reject failed
        unknown Again pending
        ");
    }

    #[test]
    fn every_word_reads_back() {
        for state in DeliveryState::ALL {
            assert_eq!(DeliveryState::parse(state.as_str()), Some(state));
        }
    }

    #[test]
    fn waits_follow_the_table_and_end() {
        let seconds = |attempts| retry_after(attempts, None, 0.5).map(|wait| wait.as_secs());
        let waits: Vec<Option<u64>> = (0..=8).map(seconds).collect();
        let table = [Some(5), Some(5), Some(300), Some(1800), Some(7200), Some(18_000), Some(36_000), None, None];
        assert_eq!(waits, table);
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        assert_eq!(retry_after(2, None, 0.0), Some(Duration::from_secs(240)));
        assert_eq!(retry_after(2, None, 1.0), Some(Duration::from_secs(360)));
    }

    #[test]
    fn retry_after_of_the_other_side_is_kept_up_to_a_day() {
        let hinted = |hint| retry_after(1, Some(Duration::from_secs(hint)), 0.5).unwrap().as_secs();
        assert_eq!((hinted(1), hinted(90), hinted(1_000_000)), (5, 90, 86_400));
        assert_eq!(retry_after(7, Some(Duration::from_secs(90)), 0.5), None);
    }

    #[test]
    fn delivery_falls_back_with_the_same_key_until_no_channel_is_left() {
        let run = Uuid::from_u128(7);
        let new = NewDelivery::of_run("ann", run, MessageKind::Result, vec!["sms".into(), "email".into()]).unwrap();
        let stored = Delivery {
            tenant_id: new.tenant_id.clone(),
            recipient: new.recipient.clone(),
            channel: new.channel.clone(),
            fallback: new.fallback.clone(),
            dedupe_key: new.dedupe_key.clone(),
            run_id: new.run_id,
            subject_ref: new.subject_ref.clone(),
            urgency: new.urgency,
            ..Delivery::sample(new.kind)
        };
        let next = stored.fall_back().unwrap();
        assert_eq!(next, NewDelivery { channel: "email".into(), fallback: vec![], ..new });
        assert_eq!(Delivery { fallback: next.fallback, ..stored }.fall_back(), None);
        assert_eq!(NewDelivery::of_run("ann", run, MessageKind::Result, vec![]), None);
    }

    #[test]
    fn digest_is_due_as_its_subject_ref_says_whatever_its_key_says() {
        let at = DateTime::UNIX_EPOCH + TimeDelta::hours(9);
        let digest = Delivery {
            dedupe_key: "a key".into(),
            subject_ref: Delivery::sample(MessageKind::Message).digest(at).subject_ref,
            ..Delivery::sample(MessageKind::Digest)
        };
        assert_eq!(digest.due_since(), at);
        let keyed = Delivery { dedupe_key: dedupe::digest("email", at), ..Delivery::sample(MessageKind::Digest) };
        assert_eq!(keyed.due_since(), keyed.created_at);
    }

    #[test]
    fn keys_have_the_forms_of_the_data_page() {
        let id = Uuid::from_u128(0x42);
        assert_eq!(
            [
                dedupe::run_result(id),
                dedupe::call(id, 3, "call_9"),
                dedupe::notice(NoticeKind::Paused, id, 2),
                dedupe::ask(id),
                dedupe::reminder(id, 2),
                dedupe::digest("sms", DateTime::UNIX_EPOCH),
                dedupe::code("sms", id),
            ],
            [
                "run:00000000-0000-0000-0000-000000000042:result",
                "call:00000000-0000-0000-0000-000000000042:3:call_9",
                "notice:paused:00000000-0000-0000-0000-000000000042:2",
                "batch:00000000-0000-0000-0000-000000000042:ask",
                "batch:00000000-0000-0000-0000-000000000042:reminder:2",
                "digest:sms:1970-01-01T00:00:00.000Z",
                "code:sms:00000000-0000-0000-0000-000000000042",
            ]
        );
    }
}
