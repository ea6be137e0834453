//! One attempt at one delivery: what is to be recorded of it.
//!
//! It decides and sends; the claim before it and the mark after it are the store's. A process that dies in between
//! leaves a claim whose lease runs out: where the other side drops repeats it is sent again, else it is `unknown`. So
//! is what was sent again to the last and may have got through at one of the attempts: doubt is recorded as doubt.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::clock::Clock;
use crate::domain::notification::delivery::retry_at;
use crate::domain::notification::{Delivery, DeliveryClaim, Mark, Recipient, RenderedMessage};
use crate::ports::channel::{
    ATTEMPT_LIMIT, Channel, ChannelError, ChannelRegistry, OutgoingMessage, Receipt, ReceiptLevel,
};

/// The longest wait for a channel of a question that has another one: somebody is waited for, and the question expires.
const PATIENCE_OF_A_QUESTION: TimeDelta = TimeDelta::seconds(30);

/// How long a claim holds: an attempt and its recording, with room.
pub const LEASE: Duration = ATTEMPT_LIMIT.saturating_mul(2);

/// The signal of an attempt about the place that it went to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It answered, be it with a refusal.
    Well,
    /// It did not take the message, and may later; or gave no answer.
    Ill,
    /// Nothing was sent, or nothing can be said.
    Silent,
}

/// Facts that an attempt needs besides its claim, read just before it.
#[derive(Clone, Copy)]
pub struct AttemptContext<'a> {
    /// `None` where the tenant has none.
    pub recipient: Option<&'a Recipient>,
    /// The words of the message; an error says which part is gone.
    pub words: &'a Result<RenderedMessage, String>,
    /// For jitter, in 0..1.
    pub random: f64,
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptResult {
    /// To be recorded.
    pub mark: Mark,
    /// The signal about the channel.
    pub signal: Signal,
}

/// Attempts a delivery and says what is to be recorded.
pub async fn attempt(
    claim: &DeliveryClaim,
    context: AttemptContext<'_>,
    channels: &ChannelRegistry,
    clock: &Clock,
) -> AttemptResult {
    let delivery = &claim.delivery;
    let channel = channels.get(&delivery.channel);
    let repeatable = channel.is_some_and(|channel| channel.capabilities().deduplicates);
    let (signal, answer) = match channel {
        None => (Signal::Silent, Err(not_configured(&delivery.channel))),
        // another attempt may have got through, and nothing is sent now
        Some(_) if claim.may_have_been_sent() && !repeatable => (Signal::Silent, Err(interrupted())),
        Some(channel) => send(delivery, context, channel, clock.now()).await,
    };
    AttemptResult { mark: judge(claim, answer, repeatable, clock.now(), context.random), signal }
}

fn signal(answer: &Result<Receipt, ChannelError>) -> Signal {
    match answer {
        Ok(_) | Err(ChannelError::Rejected { .. }) => Signal::Well,
        // one recipient, or too many messages, are no illness of a channel that many share
        Err(ChannelError::Busy { .. } | ChannelError::Transient { retry_after: Some(_), .. }) => Signal::Silent,
        // whoever hangs is as ill as whoever fails
        Err(ChannelError::Transient { .. } | ChannelError::Unknown { .. }) => Signal::Ill,
        // what went nowhere says nothing of what is there
        Err(ChannelError::Misconfigured { .. } | ChannelError::Unsendable { .. }) => Signal::Silent,
    }
}

/// Sends it; what went nowhere says nothing about the channel.
async fn send(
    delivery: &Delivery,
    context: AttemptContext<'_>,
    channel: &dyn Channel,
    now: DateTime<Utc>,
) -> (Signal, Result<Receipt, ChannelError>) {
    let nowhere = |why| (Signal::Silent, Err(ChannelError::Unsendable { why }));
    let Some(recipient) = context.recipient else {
        return nowhere("the tenant has no recipient".into());
    };
    let words = match context.words {
        Ok(words) => words,
        Err(why) => return nowhere(why.clone()),
    };
    let message = OutgoingMessage {
        id: delivery.id,
        recipient_id: &delivery.recipient,
        created_at: delivery.created_at,
        now,
        recipient,
        words,
        urgency: delivery.urgency,
    };
    let sent = tokio::time::timeout(ATTEMPT_LIMIT, channel.deliver(&message)).await;
    let answer = sent.unwrap_or_else(|_| Err(too_late()));
    (signal(&answer), answer)
}

/// Judges an answer. A message that is refused for good, or can't be sent as things are configured, goes on to the next
/// channel at once; without one, the operator may mend the configuration before the attempts are used up. A doubtful
/// message goes on where it was tried to the last: told twice is better than not at all. A question goes on as soon as
/// its channel is not soon there again, or its arrival is unknown: it is decided once, however often it is read.
fn judge(
    claim: &DeliveryClaim,
    answer: Result<Receipt, ChannelError>,
    repeatable: bool,
    now: DateTime<Utc>,
    random: f64,
) -> Mark {
    let delivery = &claim.delivery;
    let fall_back = || delivery.fall_back().map(Box::new);
    let presses = delivery.kind.asks() && !delivery.fallback.is_empty();
    let maybe_delivered = matches!(answer, Err(ChannelError::Unknown { .. }));
    let later = |error: String, hint: Option<Duration>| match retry_at(now, delivery.attempts, hint, random) {
        Some(at) if presses && at - now > PATIENCE_OF_A_QUESTION => {
            abandoned_mark(claim.may_have_been_sent() || maybe_delivered, delivery, error)
        }
        Some(at) => Mark::Retry { at, error, asked: hint.is_some(), maybe_delivered },
        None => {
            let error = format!("given up after {} attempts: {error}", delivery.attempts);
            abandoned_mark(claim.may_have_been_sent() || maybe_delivered, delivery, error)
        }
    };
    match answer {
        Ok(Receipt { provider_id, confirmed: ReceiptLevel::Delivered }) => Mark::Delivered { provider_id },
        Ok(Receipt { provider_id, confirmed: ReceiptLevel::Sent }) => Mark::Sent { provider_id },
        Err(ChannelError::Transient { why, retry_after }) => later(why, retry_after),
        Err(ChannelError::Busy { why }) => later(why, None),
        Err(ChannelError::Misconfigured { why }) if delivery.fallback.is_empty() => later(why, None),
        Err(ChannelError::Misconfigured { why }) => abandon(claim, why),
        Err(ChannelError::Rejected { why }) => Mark::Failed { error: why, fall_back: fall_back() },
        Err(ChannelError::Unsendable { why }) => abandon(claim, why),
        Err(ChannelError::Unknown { why }) if repeatable => later(why, None),
        Err(ChannelError::Unknown { why }) => {
            Mark::Unknown { error: why, fall_back: presses.then(fall_back).flatten() }
        }
    }
}

/// The end of a delivery that nobody refused, without another attempt: `failed`, or `unknown` where one before may have
/// got through. Either way the next channel takes over.
pub fn abandon(claim: &DeliveryClaim, error: String) -> Mark {
    abandoned_mark(claim.may_have_been_sent(), &claim.delivery, error)
}

fn abandoned_mark(doubt: bool, delivery: &Delivery, error: String) -> Mark {
    let fall_back = delivery.fall_back().map(Box::new);
    match doubt {
        true => Mark::Unknown { error: format!("{error}; it may have got through at one of the attempts"), fall_back },
        false => Mark::Failed { error, fall_back },
    }
}

fn not_configured(channel: &str) -> ChannelError {
    ChannelError::Misconfigured { why: format!("the channel `{channel}` is not configured") }
}

fn interrupted() -> ChannelError {
    ChannelError::Unknown { why: "the process that was sending it died; it may have been sent or not".into() }
}

fn too_late() -> ChannelError {
    ChannelError::Unknown { why: format!("no end within {} s", ATTEMPT_LIMIT.as_secs()) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use chrono_tz::Tz;
    use futures::future::BoxFuture;
    use uuid::Uuid;

    use super::*;
    use crate::domain::notification::{Addresses, MessageKind, References};
    use crate::ports::channel::Capabilities;

    /// Answers what it was told to, and keeps what it was given.
    struct ScriptedChannel {
        deduplicates: bool,
        answer: Result<Receipt, ChannelError>,
        given: Arc<Mutex<Vec<(Uuid, String, String)>>>,
    }

    impl Channel for ScriptedChannel {
        fn name(&self) -> &'static str {
            "email"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { supported_formats: &["plain"], max_response_length: 60, deduplicates: self.deduplicates }
        }

        fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
            let words = message.words.clone();
            self.given.lock().unwrap().push((message.id, words.subject, words.text));
            Box::pin(async { self.answer.clone() })
        }
    }

    fn now() -> DateTime<Utc> {
        "2026-12-24T07:00:00Z".parse().unwrap()
    }

    fn claim(attempts: i32, fallback: &[&str]) -> DeliveryClaim {
        let delivery = Delivery {
            fallback: fallback.iter().map(|name| (*name).to_owned()).collect(),
            dedupe_key: "run:1:result".into(),
            subject: Some("Hello".into()),
            text: Some("x".repeat(100)),
            attempts,
            next_at: Some(now()),
            created_at: now(),
            ..Delivery::sample(MessageKind::Message)
        };
        DeliveryClaim { delivery, lease_token: 3, interrupted: false }
    }

    fn recipient() -> Recipient {
        let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
        Recipient { timezone: Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() }
    }

    struct AttemptEffects {
        mark: Mark,
        signal: Signal,
        given: Vec<(Uuid, String, String)>,
    }

    async fn attempted(
        claim: &DeliveryClaim,
        deduplicates: bool,
        answer: Result<Receipt, ChannelError>,
    ) -> AttemptEffects {
        let given = Arc::default();
        let channel = ScriptedChannel { deduplicates, answer, given: Arc::clone(&given) };
        let recipient = recipient();
        let channels = ChannelRegistry::of(vec![Box::new(channel)]);
        let words = words(&claim.delivery, &channels);
        let context = AttemptContext { recipient: Some(&recipient), words: &words, random: 0.5 };
        let AttemptResult { mark, signal } = attempt(claim, context, &channels, &Clock::manual(now())).await;
        AttemptEffects { mark, signal, given: given.lock().unwrap().clone() }
    }

    fn words(delivery: &Delivery, channels: &ChannelRegistry) -> Result<RenderedMessage, String> {
        let channel = channels.get(&delivery.channel).unwrap();
        channels.templates().words(delivery, References::default(), recipient().reader(), channel)
    }

    fn delivered() -> Result<Receipt, ChannelError> {
        Ok(Receipt { provider_id: Some("queued as 7".into()), confirmed: ReceiptLevel::Delivered })
    }

    fn transient(retry_after: Option<Duration>) -> Result<Receipt, ChannelError> {
        Err(ChannelError::Transient { why: "busy".into(), retry_after })
    }

    fn after(seconds: i64) -> DateTime<Utc> {
        now() + chrono::TimeDelta::seconds(seconds)
    }

    fn again(seconds: i64, error: &str) -> Mark {
        Mark::Retry { at: after(seconds), error: error.into(), asked: false, maybe_delivered: false }
    }

    #[tokio::test]
    async fn message_is_sent_within_the_channels_limit_under_the_deliverys_id() {
        let done = attempted(&claim(1, &[]), false, delivered()).await;
        assert_eq!(done.mark, Mark::Delivered { provider_id: Some("queued as 7".into()) });
        let [(id, subject, text)] = done.given.as_slice() else { panic!("sent {} times", done.given.len()) };
        assert_eq!((*id, subject.as_str(), text.chars().count()), (Uuid::from_u128(1), "Hello", 60));
    }

    #[tokio::test]
    async fn message_that_the_provider_took_on_is_sent_not_delivered() {
        let sent = Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Sent });
        assert_eq!(attempted(&claim(1, &[]), false, sent).await.mark, Mark::Sent { provider_id: None });
    }

    #[tokio::test]
    async fn temporary_failure_is_retried_by_the_table_and_by_the_other_sides_request() {
        let retry = |seconds| again(seconds, "busy");
        assert_eq!(attempted(&claim(1, &["webhook"]), true, transient(None)).await.mark, retry(5));
        assert_eq!(attempted(&claim(6, &[]), true, transient(None)).await.mark, retry(36_000));
        let wished = transient(Some(Duration::from_secs(77)));
        let Mark::Retry { at, error, maybe_delivered, .. } = retry(77) else { panic!("no retry") };
        let as_asked = Mark::Retry { at, error, asked: true, maybe_delivered };
        assert_eq!(attempted(&claim(1, &[]), true, wished).await.mark, as_asked);
        let busy = Err(ChannelError::Busy { why: "busy".into() });
        assert_eq!(attempted(&claim(1, &["webhook"]), true, busy).await.mark, retry(5));
    }

    #[tokio::test]
    async fn delivery_falls_back_after_its_last_attempt() {
        let claim = claim(7, &["webhook"]);
        let fall_back = claim.delivery.fall_back().map(Box::new);
        let error = "given up after 7 attempts: busy".into();
        assert_eq!(attempted(&claim, true, transient(None)).await.mark, Mark::Failed { error, fall_back });
    }

    #[tokio::test]
    async fn refused_message_falls_back_at_once() {
        let claim = claim(1, &["webhook"]);
        let fall_back = claim.delivery.fall_back().map(Box::new);
        assert_eq!(fall_back.as_ref().unwrap().channel, "webhook");
        let refused = Err(ChannelError::Rejected { why: "no such user".into() });
        let error = "no such user".into();
        assert_eq!(attempted(&claim, false, refused).await.mark, Mark::Failed { error, fall_back });
    }

    #[tokio::test]
    async fn wrong_configuration_falls_back_or_else_waits_to_be_mended() {
        let wrong = || Err(ChannelError::Misconfigured { why: "bad password".into() });
        let alone = attempted(&claim(1, &[]), false, wrong()).await.mark;
        assert_eq!(alone, again(5, "bad password"));
        let with_another = attempted(&claim(1, &["webhook"]), false, wrong()).await.mark;
        assert!(matches!(with_another, Mark::Failed { fall_back: Some(_), .. }), "{with_another:?}");
    }

    #[tokio::test]
    async fn unknown_outcome_is_never_repeated_and_never_falls_back() {
        let unknown = Err(ChannelError::Unknown { why: "no answer".into() });
        let mark = attempted(&claim(1, &["webhook"]), false, unknown).await.mark;
        assert_eq!(mark, Mark::Unknown { error: "no answer".into(), fall_back: None });
    }

    #[tokio::test]
    async fn question_goes_on_to_the_next_channel_as_soon_as_its_own_is_not_soon_there_again() {
        let asks = |attempts, fallback: &[&str]| {
            let claim = claim(attempts, fallback);
            DeliveryClaim { delivery: Delivery { kind: MessageKind::Reminder, ..claim.delivery }, ..claim }
        };
        let judged = |claim: &DeliveryClaim, answer| judge(claim, answer, false, now(), 0.5);
        let (first, second) = (asks(1, &["webhook"]), asks(2, &["webhook"]));
        let fall_back = || second.delivery.fall_back().map(Box::new);
        assert_eq!(judged(&first, transient(None)), again(5, "busy"), "a hiccup is waited for");
        let given_up = Mark::Failed { error: "busy".into(), fall_back: fall_back() };
        assert_eq!(judged(&second, transient(None)), given_up);
        assert_eq!(
            judged(&first, transient(Some(Duration::from_secs(77)))),
            given_up,
            "however long it is asked to wait"
        );
        let unknown = || Err(ChannelError::Unknown { why: "no answer".into() });
        assert_eq!(judged(&first, unknown()), Mark::Unknown { error: "no answer".into(), fall_back: fall_back() });
        // without another channel it waits as any other
        assert_eq!(judged(&asks(2, &[]), transient(None)), again(300, "busy"));
        assert_eq!(judged(&asks(1, &[]), unknown()), Mark::Unknown { error: "no answer".into(), fall_back: None });
        let doubtful =
            DeliveryClaim { delivery: Delivery { maybe_delivered: true, ..second.delivery.clone() }, ..second.clone() };
        let error = "busy; it may have got through at one of the attempts".into();
        assert_eq!(judged(&doubtful, transient(None)), Mark::Unknown { error, fall_back: fall_back() });
    }

    #[tokio::test]
    async fn message_that_any_attempt_may_have_delivered_ends_unknown_and_falls_back() {
        let unknown = || Err(ChannelError::Unknown { why: "no answer".into() });
        let first = attempted(&claim(1, &["webhook"]), true, unknown()).await.mark;
        assert_eq!(first, Mark::Retry { at: after(5), error: "no answer".into(), asked: false, maybe_delivered: true });
        let last = claim(7, &["webhook"]);
        let fall_back = || last.delivery.fall_back().map(Box::new);
        let given_up = |why: &str| Mark::Unknown {
            error: format!("given up after 7 attempts: {why}; it may have got through at one of the attempts"),
            fall_back: fall_back(),
        };
        assert_eq!(attempted(&last, true, unknown()).await.mark, given_up("no answer"));
        let before =
            DeliveryClaim { delivery: Delivery { maybe_delivered: true, ..last.delivery.clone() }, ..last.clone() };
        assert_eq!(attempted(&before, true, transient(None)).await.mark, given_up("busy"));
        let died = DeliveryClaim { interrupted: true, ..last.clone() };
        assert_eq!(attempted(&died, true, transient(None)).await.mark, given_up("busy"));
        // who drops repeats and refuses this one has not taken it before
        let refused = Err(ChannelError::Rejected { why: "gone".into() });
        let failed = Mark::Failed { error: "gone".into(), fall_back: fall_back() };
        assert_eq!(attempted(&before, true, refused).await.mark, failed);
    }

    #[tokio::test]
    async fn delivery_after_a_crash_is_repeated_only_where_repeats_are_dropped() {
        let interrupted = DeliveryClaim { interrupted: true, ..claim(2, &[]) };
        let again = attempted(&interrupted, true, delivered()).await;
        assert_eq!((again.given.len(), matches!(again.mark, Mark::Delivered { .. })), (1, true));
        let doubtful = attempted(&interrupted, false, delivered()).await;
        assert_eq!((doubtful.given.len(), matches!(doubtful.mark, Mark::Unknown { .. })), (0, true));
    }

    #[tokio::test]
    async fn faults_outside_a_channel_do_not_count_against_it() {
        let signal = async |answer| attempted(&claim(1, &[]), false, answer).await.signal;
        let refused = ChannelError::Rejected { why: "no such user".into() };
        assert_eq!((signal(delivered()).await, signal(Err(refused)).await), (Signal::Well, Signal::Well));
        assert_eq!(signal(transient(None)).await, Signal::Ill);
        assert_eq!(signal(transient(Some(Duration::from_secs(7)))).await, Signal::Silent, "it says when it is well");
        assert_eq!(signal(Err(ChannelError::Busy { why: "mailbox full".into() })).await, Signal::Silent);
        let wrong = ChannelError::Misconfigured { why: "bad password".into() };
        assert_eq!(signal(Err(wrong)).await, Signal::Silent);
        let doubt = || Err(ChannelError::Unknown { why: "no answer".into() });
        assert_eq!(signal(doubt()).await, Signal::Ill, "who hangs is ill");
        let interrupted = DeliveryClaim { interrupted: true, ..claim(2, &[]) };
        assert_eq!(attempted(&interrupted, false, doubt()).await.signal, Signal::Silent, "nothing was sent");
    }

    #[tokio::test]
    async fn delivery_without_recipient_or_channel_says_why() {
        let claim = claim(1, &[]);
        let context = AttemptContext { recipient: None, words: &Err("nothing".into()), random: 0.5 };
        let clock = Clock::manual(now());
        let none = ChannelRegistry::of(vec![]);
        assert_eq!(
            attempt(&claim, context, &none, &clock).await.mark,
            again(5, "the channel `email` is not configured")
        );
        let scripted = ScriptedChannel { deduplicates: true, answer: delivered(), given: Arc::default() };
        assert_eq!(
            attempt(&claim, context, &ChannelRegistry::of(vec![Box::new(scripted)]), &clock).await.mark,
            Mark::Failed { error: "the tenant has no recipient".into(), fall_back: None }
        );
    }

    #[tokio::test]
    async fn unsent_message_does_not_count_for_or_against_the_channel() {
        let signal = async |delivery: &Delivery, recipient: Option<&Recipient>, answer: ChannelError| {
            let claim = DeliveryClaim { delivery: delivery.clone(), ..claim(1, &[]) };
            let scripted = ScriptedChannel { deduplicates: true, answer: Err(answer), given: Arc::default() };
            let channels = ChannelRegistry::of(vec![Box::new(scripted)]);
            let words = words(delivery, &channels);
            let context = AttemptContext { recipient, words: &words, random: 0.5 };
            attempt(&claim, context, &channels, &Clock::manual(now())).await.signal
        };
        let refused = || ChannelError::Rejected { why: "no such user".into() };
        let (message, ann) = (claim(1, &[]).delivery, recipient());
        assert_eq!(signal(&message, Some(&ann), refused()).await, Signal::Well, "it refused");
        assert_eq!(signal(&message, None, refused()).await, Signal::Silent, "nobody");
        let nowhere = ChannelError::Unsendable { why: "the address is not allowed: private".into() };
        assert_eq!(signal(&message, Some(&ann), nowhere).await, Signal::Silent, "no address that may be reached");
        let gone = Delivery { kind: MessageKind::Result, ..message };
        assert_eq!(signal(&gone, Some(&ann), refused()).await, Signal::Silent, "no words");
    }
}
