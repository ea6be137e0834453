//! The words and the recipient of a delivery, read just before it is sent, and the checks before it may be.
//!
//! In this order: who is told, what is told, whether the address is proved, quiet hours, the breaker, the budget, the
//! attempt. Each of them may end it with a mark; only the attempt sends. Nothing is kept here.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::clock::to_delta;
use crate::base::compute::IN_PLACE;
use crate::base::id::Scope;
use crate::base::json::length::is_longer_than;
use crate::base::secret::Secret;
use crate::domain::notification::delivery::BACKOFF;
use crate::domain::notification::recipient::Reader;
use crate::domain::notification::{
    ApprovalQuestion, Delivery, DeliveryClaim, DigestItem, Mark, MessageKind, Recipient, References, RenderedMessage,
};
use crate::engine::delivery::approval_links::{Links, UnsentReason, redact_mark};
use crate::engine::delivery::attempt::{AttemptContext, Signal, abandon, attempt};
use crate::engine::delivery::breaker::{Breakers, CircuitTarget, OpenCircuit};
use crate::engine::delivery::hold_policy::{self, BudgetState};
use crate::engine::run_metrics::RunMetrics;
use crate::ports::channel::ChannelRegistry;
use crate::store::{ReferredRecords, Store, StoreError, with_timeout};

/// Messages that a digest tells in their own words.
const IN_A_DIGEST: i64 = 50;
/// Bytes of a message with its run, as JSON, up to which its words are made where it is sent: of so little they are made
/// several times within half a millisecond.
const SHORT: usize = 2 * 1_024;

/// Sends deliveries, with state that all attempts of this process share. Cheap to clone.
#[derive(Clone)]
pub struct DeliverySender {
    pub store: Store,
    pub channels: ChannelRegistry,
    pub links: Links,
    pub breakers: Breakers,
    /// Addresses that nobody proved get codes alone.
    pub require_verified: bool,
    pub metrics: RunMetrics,
}

/// The message, with all that its words are made of.
struct MessageParts {
    delivery: Delivery,
    referred: ReferredRecords,
    question: Option<ApprovalQuestion>,
    digest: Vec<DigestItem>,
    /// Messages of a digest beyond those.
    more: usize,
    code: Option<Secret>,
    /// Where all of it can be read; `None` of what is asked, and of codes.
    whole: Option<Secret>,
}

impl MessageParts {
    fn references(&self) -> References<'_> {
        References {
            question: self.question.as_ref(),
            digest: &self.digest,
            more: self.more,
            code: self.code.as_ref(),
            whole: self.whole.as_ref(),
            ..self.referred.references()
        }
    }

    /// The steps that it takes at most to make its words. Questions, digests and credentials are told at more length.
    fn steps_to_render(&self) -> u64 {
        let told = (&self.delivery.subject, &self.delivery.text, &self.referred.run, &self.referred.task_name);
        let is_plain = self.question.is_none() && self.digest.is_empty() && self.referred.credential.is_none();
        if is_plain && !is_longer_than(&told, SHORT) { IN_PLACE } else { u64::MAX }
    }

    /// The mark without what must not be recorded: a server that refuses a message may quote from it.
    fn redact(&self, mut mark: Mark) -> Mark {
        for link in self.question.iter().map(|question| &question.link).chain(&self.whole) {
            let link = link.expose();
            mark = redact_mark(mark, &[link, link.rsplit('/').next().unwrap_or(link)]);
        }
        match &self.code {
            Some(code) => redact_mark(mark, &[code.expose()]),
            None => mark,
        }
    }
}

impl DeliverySender {
    /// Does what there is to be done for a claim, and says what is to be recorded, or why nothing is to be sent.
    pub async fn deliver(&self, claim: &DeliveryClaim) -> Result<Result<Mark, UnsentReason>, StoreError> {
        let stored = with_timeout(self.store.find_recipient(&Scope::Every, &claim.delivery.recipient)).await?;
        let stored = stored.map(|stored| Arc::new(stored.recipient));
        match self.message_parts(&claim.delivery, stored.as_ref()).await? {
            Ok(parts) => self.send(claim, Arc::new(parts), stored).await.map(Ok),
            Err(unsent) => Ok(Err(unsent)),
        }
    }

    async fn send(
        &self,
        claim: &DeliveryClaim,
        parts: Arc<MessageParts>,
        stored: Option<Arc<Recipient>>,
    ) -> Result<Mark, StoreError> {
        let delivery = &claim.delivery;
        let recipient = stored.as_deref();
        let now = self.store.clock().now();
        if let Some(recipient) = recipient {
            let unverified = || self.require_verified.then(|| hold_policy::unverified_mark(claim, recipient)).flatten();
            let mark =
                unverified().or_else(|| hold_policy::quiet_hours_mark(claim, recipient, parts.question.as_ref(), now));
            if let Some(mark) = mark {
                return Ok(mark);
            }
        }
        let target = CircuitTarget::for_recipient(&delivery.channel, recipient);
        let mut counted = None;
        if self.may_send(claim) {
            if let Err(open) = self.breakers.admit(&target, now) {
                return Ok(wait_for_circuit(claim, &target, (now, open), fastrand::f64()));
            }
            if let Some(recipient) = recipient {
                let budget = with_timeout(hold_policy::check_budget(&self.store, claim, recipient, now)).await;
                if matches!(budget, Ok(BudgetState::Over(_)) | Err(_)) {
                    // it may have been let through as the probe
                    self.breakers.report(&target, Signal::Silent, now);
                }
                match budget? {
                    BudgetState::Over(mark) => return Ok(mark),
                    BudgetState::Counted(day) => counted = Some(day),
                    BudgetState::Free => {}
                }
            }
        }
        let words = match &stored {
            Some(recipient) if self.may_send(claim) => self.render(&parts, recipient, &delivery.channel).await?,
            _ => Err("there is nobody to tell, or nothing is sent".into()),
        };
        let context = AttemptContext { recipient, words: &words, random: fastrand::f64() };
        let attempted = attempt(claim, context, &self.channels, self.store.clock()).await;
        self.breakers.report(&target, attempted.signal, self.store.clock().now());
        if let (Some(day), Mark::Failed { .. }) = (counted, &attempted.mark) {
            self.give_back(&delivery.recipient, &day).await;
        }
        Ok(parts.redact(attempted.mark))
    }

    /// Gives back the interruption of a message that was refused. Where that can't be written, the day has one
    /// interruption less: no message waits for it.
    async fn give_back(&self, recipient: &str, day: &str) {
        if let Err(error) = with_timeout(self.store.uncount_interruption(recipient, day)).await {
            tracing::warn!(%error, "an interruption that was none could not be given back");
        }
    }

    /// Whether an attempt would send anything: what may have gone out is sent again only where repeats are dropped.
    fn may_send(&self, claim: &DeliveryClaim) -> bool {
        let channel = self.channels.get(&claim.delivery.channel);
        channel.is_some_and(|channel| !claim.may_have_been_sent() || channel.capabilities().deduplicates)
    }

    /// The words for this channel. Markdown and templates take time: those of a message that is not short are made on a
    /// computing thread. An error says which part is gone.
    async fn render(
        &self,
        parts: &Arc<MessageParts>,
        recipient: &Arc<Recipient>,
        channel: &str,
    ) -> Result<Result<RenderedMessage, String>, StoreError> {
        let (channels, parts, recipient) = (self.channels.clone(), Arc::clone(parts), Arc::clone(recipient));
        let (tenant, name, steps) = (parts.delivery.tenant_id.clone(), channel.to_owned(), parts.steps_to_render());
        let work = move || match channels.get(&name) {
            Some(channel) => {
                channels.templates().words(&parts.delivery, parts.references(), recipient.reader(), channel)
            }
            None => Err(format!("the channel `{name}` is not configured")),
        };
        let words = self.store.computing().run_if_costly(&tenant, steps, work).await;
        words.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))
    }

    /// The message to tell, or why there is none.
    async fn message_parts(
        &self,
        delivery: &Delivery,
        recipient: Option<&Arc<Recipient>>,
    ) -> Result<Result<MessageParts, UnsentReason>, StoreError> {
        let whole = self.links.full_text_link(delivery);
        if delivery.kind == MessageKind::Digest {
            let digest = self.digest_parts(delivery, recipient).await?;
            return Ok(digest.map(|parts| MessageParts { whole, ..parts }));
        }
        let mut parts = MessageParts { whole, ..self.referred(delivery).await? };
        if delivery.kind.asks() {
            match with_timeout(self.links.question(&self.store, delivery)).await? {
                Ok(question) => parts.question = Some(question),
                Err(unsent) => return Ok(Err(unsent)),
            }
        }
        if delivery.kind == MessageKind::Code {
            parts.code = recipient.and_then(|recipient| self.links.code(delivery, recipient));
        }
        Ok(Ok(parts))
    }

    /// The messages of a digest in their own words. A digest of one is that message.
    async fn digest_parts(
        &self,
        delivery: &Delivery,
        recipient: Option<&Arc<Recipient>>,
    ) -> Result<Result<MessageParts, UnsentReason>, StoreError> {
        let (members, count) = with_timeout(self.store.digest_members(&Scope::Every, delivery.id, IN_A_DIGEST)).await?;
        if let [only] = members.as_slice() {
            return Ok(Ok(self.referred(only).await?));
        }
        if members.is_empty() {
            return Ok(Err(UnsentReason::NothingHeld));
        }
        let mut digest = Vec::with_capacity(members.len());
        for member in members {
            let referred = with_timeout(self.store.referred(&member)).await?;
            let (channels, recipient) = (self.channels.clone(), recipient.cloned());
            let item = move || {
                let reader = recipient.as_deref().map_or(Reader::NOBODY, Recipient::reader);
                channels.templates().item(&member, referred.references(), reader)
            };
            digest.push(self.store.compute(&delivery.tenant_id, item).await?);
        }
        let more = usize::try_from(count).unwrap_or(0).saturating_sub(digest.len());
        Ok(Ok(MessageParts { digest, more, ..MessageParts::of(delivery) }))
    }

    /// The things to which a message refers, as they stand now.
    async fn referred(&self, delivery: &Delivery) -> Result<MessageParts, StoreError> {
        Ok(MessageParts { referred: with_timeout(self.store.referred(delivery)).await?, ..MessageParts::of(delivery) })
    }
}

impl MessageParts {
    fn of(delivery: &Delivery) -> MessageParts {
        MessageParts {
            delivery: delivery.clone(),
            referred: ReferredRecords::default(),
            question: None,
            digest: vec![],
            more: 0,
            code: None,
            whole: None,
        }
    }
}

/// The mark of a message whose channel is left alone. It can wait, but not longer than its attempts would have taken;
/// where somebody is waited for, the next channel takes over at once.
fn wait_for_circuit(
    claim: &DeliveryClaim,
    target: &CircuitTarget,
    (now, open): (DateTime<Utc>, OpenCircuit),
    random: f64,
) -> Mark {
    let delivery = &claim.delivery;
    let error = format!("not attempted: {target} fails at present, and is left alone for a while");
    let attempts: Duration = BACKOFF.iter().sum();
    if now > delivery.due_since() + to_delta(attempts) {
        return abandon(claim, format!("given up: {target} has failed for too long"));
    }
    match delivery.kind.asks() && !delivery.fallback.is_empty() {
        true => abandon(claim, error),
        false => Mark::Wait { at: jittered(open, random), hold_reason: None, error: Some(error) },
    }
}

fn jittered(open: OpenCircuit, random: f64) -> DateTime<Utc> {
    open.until + TimeDelta::milliseconds((open.spread.as_millis() as f64 * random) as i64)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::domain::notification::SubjectRef;

    fn delivery(kind: MessageKind, fallback: &[&str]) -> Delivery {
        Delivery {
            channel: "sms".into(),
            fallback: fallback.iter().map(|name| (*name).to_owned()).collect(),
            ..Delivery::sample(kind)
        }
    }

    /// The mark so many hours after 1970 began, where the channel is tried again in 30 s.
    fn after(delivery: &Delivery, hours: i64) -> Mark {
        let now = DateTime::UNIX_EPOCH + TimeDelta::hours(hours);
        let open = OpenCircuit { until: now + TimeDelta::seconds(30), spread: Duration::from_secs(60) };
        let claim = DeliveryClaim { delivery: delivery.clone(), lease_token: 3, interrupted: false };
        wait_for_circuit(&claim, &CircuitTarget { channel: "sms".into(), host: None }, (now, open), 0.5)
    }

    #[test]
    fn message_waits_and_is_spread_and_a_question_goes_on_at_once() {
        let at = DateTime::UNIX_EPOCH + TimeDelta::seconds(3600 + 30 + 30);
        let error = "not attempted: `sms` fails at present, and is left alone for a while".to_owned();
        let wait = Mark::Wait { at, hold_reason: None, error: Some(error.clone()) };
        assert_eq!(after(&delivery(MessageKind::Message, &["email"]), 1), wait);
        assert_eq!(after(&delivery(MessageKind::Ask, &[]), 1), wait, "there is no other way");
        let ask = delivery(MessageKind::Ask, &["email"]);
        assert_eq!(after(&ask, 1), Mark::Failed { error, fall_back: ask.fall_back().map(Box::new) });
    }

    #[test]
    fn delivery_waits_no_longer_than_its_attempts_would_take() {
        let message = delivery(MessageKind::Message, &["email"]);
        assert!(matches!(after(&message, 17), Mark::Wait { .. }));
        let error = "given up: `sms` has failed for too long".to_owned();
        let fall_back = message.fall_back().map(Box::new);
        assert_eq!(after(&message, 18), Mark::Failed { error, fall_back: fall_back.clone() });
        let error =
            "given up: `sms` has failed for too long; it may have got through at one of the attempts".to_owned();
        let in_doubt = Delivery { maybe_delivered: true, ..message.clone() };
        assert_eq!(after(&in_doubt, 18), Mark::Unknown { error, fall_back });
        let due = DateTime::UNIX_EPOCH + TimeDelta::hours(9);
        let held = Delivery { due_at: Some(due), ..message };
        assert!(matches!(after(&held, 26), Mark::Wait { .. }), "what was held counts from its end");
        let about = Some(SubjectRef::Digest { due_at: due });
        let digest = Delivery { subject_ref: about, ..delivery(MessageKind::Digest, &[]) };
        assert!(matches!(after(&digest, 18), Mark::Wait { .. }), "a digest counts from its own time");
        assert!(matches!(after(&digest, 27), Mark::Failed { .. }));
    }
}
