//! Reasons to hold a message: the recipient's quiet hours and budget, and addresses that nobody has proved.
//!
//! Decided before an attempt, and uses up none. What may have gone out already is never held, nor what somebody asked
//! for just now. A question is never put into a digest: where it does not break through the quiet hours, it waits for
//! their end; where it would expire before, it is sent, because without an answer nothing happens at all.

use chrono::{DateTime, Utc};

use crate::domain::notification::quiet::{day, ignores_budget, interrupts};
use crate::domain::notification::{ApprovalQuestion, DeliveryClaim, HoldReason, Mark, MessageKind, Recipient};
use crate::engine::delivery::attempt::abandon;
use crate::store::{Store, StoreError};

/// The mark of a message that quiet hours hold; `None` where it may be told now.
pub fn quiet_hours_mark(
    claim: &DeliveryClaim,
    recipient: &Recipient,
    question: Option<&ApprovalQuestion>,
    now: DateTime<Utc>,
) -> Option<Mark> {
    let delivery = &claim.delivery;
    if claim.may_have_been_sent() || !delivery.kind.may_be_held() {
        return None;
    }
    let (zone, channel, urgency) = (recipient.timezone, delivery.channel.as_str(), delivery.urgency);
    let end = recipient.quiet.until(zone, channel, urgency, now)?;
    if delivery.kind.asks() {
        let in_time = question.is_none_or(|question| end < question.until());
        return in_time.then_some(Mark::Wait { at: end, hold_reason: Some(HoldReason::QuietHours), error: None });
    }
    let at = recipient.quiet.digest_after_quiet(zone, channel, urgency, (now, end));
    Some(Mark::Hold { hold_reason: HoldReason::QuietHours, digest: Box::new(delivery.digest(at)), at })
}

/// The decision of the day's budget about a message.
pub enum BudgetState {
    /// It counts for nothing, or was counted before.
    Free,
    /// It was counted on this day; where the attempt is refused, nobody was interrupted and it is given back.
    Counted(String),
    /// There is no room for it today.
    Over(Mark),
}

/// Counts an interruption, where there is room for it today.
pub async fn check_budget(
    store: &Store,
    claim: &DeliveryClaim,
    recipient: &Recipient,
    now: DateTime<Utc>,
) -> Result<BudgetState, StoreError> {
    let delivery = &claim.delivery;
    let Some(budget) = recipient.quiet.budget else { return Ok(BudgetState::Free) };
    // each message counts once, however often it is attempted
    let counts = delivery.attempts == 1 && !claim.interrupted && delivery.kind.may_be_held();
    if !counts || !interrupts(&delivery.channel) {
        return Ok(BudgetState::Free);
    }
    let zone = recipient.timezone;
    let day = day(zone, now);
    let limit = (!ignores_budget(delivery.urgency)).then_some(budget.per_day);
    if store.count_interruption(&delivery.recipient, &day, limit).await? {
        return Ok(BudgetState::Counted(day));
    }
    let at = recipient.quiet.digest_after_budget(zone, &delivery.channel, delivery.urgency, now);
    Ok(BudgetState::Over(Mark::Hold { hold_reason: HoldReason::Budget, digest: Box::new(delivery.digest(at)), at }))
}

/// The mark of a message to an address that was not proved, where only proved ones get any.
pub fn unverified_mark(claim: &DeliveryClaim, recipient: &Recipient) -> Option<Mark> {
    let delivery = &claim.delivery;
    // open sessions have shown a token; and an address that is not there fails by itself
    let proved = delivery.channel == "live" || recipient.verified.contains_key(&delivery.channel);
    if proved || delivery.kind == MessageKind::Code || !recipient.addresses.has(&delivery.channel) {
        return None;
    }
    Some(abandon(claim, format!("the address for `{}` is not verified", delivery.channel)))
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::base::secret::Secret;
    use crate::domain::approval::test_question;
    use crate::domain::notification::{Addresses, Delivery};
    use crate::domain::task::Urgency;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn claim(kind: MessageKind) -> DeliveryClaim {
        let delivery = Delivery {
            channel: "sms".into(),
            fallback: vec!["email".into()],
            run_id: Some(Uuid::from_u128(7)),
            ..Delivery::sample(kind)
        };
        DeliveryClaim { delivery, lease_token: 3, interrupted: false }
    }

    /// One whose attempt before may have got through.
    fn in_doubt(kind: MessageKind) -> DeliveryClaim {
        let claim = claim(kind);
        DeliveryClaim { delivery: Delivery { maybe_delivered: true, ..claim.delivery }, ..claim }
    }

    fn recipient(hours: Value) -> Recipient {
        let addresses = Addresses { sms: Some("+4915123456789".into()), ..Addresses::default() };
        let quiet = serde_json::from_value(json!({ "quiet_hours": [hours] })).unwrap();
        Recipient { locale: "en".into(), addresses, quiet, ..Recipient::default() }
    }

    #[test]
    fn held_message_joins_the_digest_of_its_channel_with_its_own_fallbacks() {
        let night = recipient(json!({ "from": "22:00", "to": "07:00" }));
        let (now, end) = (at("2027-03-01T23:00:00Z"), at("2027-03-02T07:00:00Z"));
        let Some(Mark::Hold { hold_reason: HoldReason::QuietHours, digest, at }) =
            quiet_hours_mark(&claim(MessageKind::Result), &night, None, now)
        else {
            panic!("held")
        };
        assert_eq!((at, digest.kind, digest.run_id), (end, MessageKind::Digest, None));
        assert_eq!(digest.dedupe_key, "digest:sms:2027-03-02T07:00:00.000Z");
        assert_eq!((digest.channel.as_str(), digest.fallback), ("sms", vec!["email".to_owned()]));
        for exempt in [MessageKind::Test, MessageKind::Code, MessageKind::Digest] {
            let urgent = recipient(json!({ "from": "22:00", "to": "07:00", "breaks_through": "never" }));
            assert_eq!(quiet_hours_mark(&claim(exempt), &urgent, None, now), None, "{exempt:?}");
        }
        let died = DeliveryClaim { interrupted: true, ..claim(MessageKind::Result) };
        for may_have_been_sent in [died, in_doubt(MessageKind::Result)] {
            assert_eq!(quiet_hours_mark(&may_have_been_sent, &night, None, now), None);
        }
    }

    #[test]
    fn question_breaks_through_or_waits_or_is_sent_before_it_expires() {
        let now = at("2027-03-01T23:00:00Z");
        let end = at("2027-03-02T07:00:00Z");
        let asked = |hours: Value, expires: DateTime<Utc>| {
            let question = ApprovalQuestion {
                items: vec![test_question("Pay", now, expires)],
                link: Secret::new("https://a.example/x"),
            };
            quiet_hours_mark(&claim(MessageKind::Ask), &recipient(hours), Some(&question), now)
        };
        let hours = |breaks: &str| json!({ "from": "22:00", "to": "07:00", "breaks_through": breaks });
        let wait = Some(Mark::Wait { at: end, hold_reason: Some(HoldReason::QuietHours), error: None });
        assert_eq!(asked(hours("high"), end + TimeDelta::hours(1)), None);
        assert_eq!(asked(hours("urgent"), end + TimeDelta::hours(1)), wait);
        assert_eq!(asked(hours("never"), end + TimeDelta::hours(1)), wait);
        assert_eq!(asked(hours("never"), end), None, "nobody could answer it after them");
    }

    #[test]
    fn address_that_nobody_proved_gets_codes_alone_and_the_next_channel_takes_over() {
        let mut ann = recipient(json!({ "from": "22:00", "to": "07:00" }));
        let refused = unverified_mark(&claim(MessageKind::Message), &ann);
        let Some(Mark::Failed { error, fall_back: Some(next) }) = refused else { panic!("{refused:?}") };
        assert_eq!((error.as_str(), next.channel.as_str()), ("the address for `sms` is not verified", "email"));
        let error = "the address for `sms` is not verified; it may have got through at one of the attempts".to_owned();
        assert_eq!(
            unverified_mark(&in_doubt(MessageKind::Message), &ann),
            Some(Mark::Unknown { error, fall_back: claim(MessageKind::Message).delivery.fall_back().map(Box::new) })
        );
        assert_eq!(unverified_mark(&claim(MessageKind::Code), &ann), None);
        ann.verified.insert("sms".into(), DateTime::UNIX_EPOCH);
        assert_eq!(unverified_mark(&claim(MessageKind::Message), &ann), None);
        let urgent = DeliveryClaim {
            delivery: Delivery { urgency: Urgency::Urgent, ..claim(MessageKind::Ask).delivery },
            ..claim(MessageKind::Ask)
        };
        ann.verified.clear();
        assert!(unverified_mark(&urgent, &ann).is_some(), "however urgent it is");
    }
}
