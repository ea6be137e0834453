//! Runs that wait for people. Whom to remind, whom to ask as well, when to look again.
//!
//! Due reminders are worked out purely from the questions and the clock, so a look that is made twice or late does no
//! harm: a message has its key and is made once, and of reminders that were missed only the latest is sent. Whether a
//! question has expired is the store's to say, by the database's own time; no answer is never a yes.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::domain::approval::{Approval, ApprovalStatus, Settings};
use crate::domain::notification::{NewDelivery, Recipient};
use crate::engine::service::{IdlePolicy, NextTick, ServiceLoop, TickError};
use crate::store::{Store, StoreError, WaitingOutcome, WaitingRun, WaitingUpdate};

/// Waiting runs that are looked at in one batch.
const PAGE: i64 = 100;
/// When a run is looked at again whose time is over by our clock and not by the database's.
const ONCE_MORE: TimeDelta = TimeDelta::seconds(1);
/// When a run is looked at again of which nothing is awaited; it is woken by what settles it.
const AT_LEISURE: TimeDelta = TimeDelta::minutes(1);

/// Reminds people of the questions that runs wait for.
pub struct ApprovalReminder {
    store: Store,
    settings: Settings,
}

/// Steps that are due for a batch of questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueQuestion {
    /// The latest reminder whose time has come, counted from 1.
    pub reminder: Option<usize>,
    /// Somebody can answer still.
    pub is_open: bool,
    /// Those that are asked after a while have to be asked by now.
    pub escalated: bool,
    /// Reminds the others who were asked, too: the reminder came after they were.
    pub reminds_all: bool,
    /// When something else falls due.
    pub wake_at: DateTime<Utc>,
}

/// Steps that are due at `now` for the questions of a run.
pub fn due(approvals: &[Approval], settings: &Settings, now: DateTime<Utc>) -> DueQuestion {
    let open = || approvals.iter().filter(|approval| approval.status == ApprovalStatus::Pending);
    let mut instants: Vec<DateTime<Utc>> = approvals.iter().filter_map(|held| held.hold_until).collect();
    instants.extend(open().map(|approval| approval.expires_at.max(now + ONCE_MORE)));
    // those that are open still; the first to expire sets the pace
    let pace = open().filter(|approval| approval.expires_at > now).min_by_key(|approval| approval.expires_at);
    let mut due =
        DueQuestion { reminder: None, is_open: pace.is_some(), escalated: false, reminds_all: false, wake_at: now };
    if let Some(asked) = pace {
        let mut shares = settings.reminders.clone();
        shares.sort_by(f64::total_cmp);
        let reminders: Vec<DateTime<Utc>> = shares.iter().map(|share| instant(asked, *share)).collect();
        let passed = reminders.iter().take_while(|at| **at <= now).count();
        due.reminder = (passed > 0).then_some(passed);
        instants.extend(&reminders);
        if settings.escalate_to.is_some() {
            let escalation = instant(asked, settings.escalate_after);
            due.escalated = escalation <= now;
            due.reminds_all = due.escalated && passed > 0 && escalation < reminders[passed - 1];
            instants.push(escalation);
        }
    }
    due.wake_at = instants.into_iter().filter(|at| *at > now).min().unwrap_or(now + AT_LEISURE);
    due
}

/// The instant after this share of the time that there is to answer, in whole milliseconds. It is counted from the end:
/// a time for which the run was paused is none of it.
fn instant(asked: &Approval, share: f64) -> DateTime<Utc> {
    let given = i64::try_from(asked.proposal.timeout_seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
    let span = (asked.expires_at - asked.created_at).num_milliseconds().clamp(0, given);
    asked.expires_at - TimeDelta::milliseconds(span - (span as f64 * share) as i64)
}

/// Recipients that have to be asked by now besides the owner, and whether the reminder is theirs, too. Nobody stands in
/// it twice.
fn escalation_recipients<'a>(settings: &'a Settings, due: &DueQuestion, owner: &str) -> Vec<(&'a str, bool)> {
    let mut others: Vec<(&str, bool)> = Vec::new();
    let named = settings.additional_approvers.iter().filter(|_| due.is_open).map(|name| (name.as_str(), true));
    let escalated = settings.escalate_to.iter().filter(|_| due.escalated).map(|name| (name.as_str(), due.reminds_all));
    for (name, reminds) in named.chain(escalated) {
        if name != owner && !others.iter().any(|(asked, _)| *asked == name) {
            others.push((name, reminds));
        }
    }
    others
}

/// The questions of a turn; one that was put anew stands in a batch of its own.
fn by_batch(approvals: &[Approval]) -> BTreeMap<Uuid, Vec<Approval>> {
    let mut batches: BTreeMap<Uuid, Vec<Approval>> = BTreeMap::new();
    for approval in approvals {
        batches.entry(approval.batch_id).or_default().push(approval.clone());
    }
    batches
}

impl ApprovalReminder {
    /// The service on this store, with the settings of `[approvals]`.
    pub fn new(store: Store, settings: Settings) -> ApprovalReminder {
        ApprovalReminder { store, settings }
    }

    async fn remind(&self, waiting: &WaitingRun) -> Result<(), StoreError> {
        let update = self.plan_reminder(waiting).await?;
        let run_id = waiting.run.id;
        match self.store.settle_waiting(run_id, &update).await {
            Ok(WaitingOutcome::Expired) => tracing::warn!(%run_id, "nobody approved in time, the run has expired"),
            Ok(WaitingOutcome::Woken) => tracing::info!(%run_id, "a run that waited for people goes on"),
            Ok(WaitingOutcome::Resumed) => {
                tracing::info!(%run_id, "a run that was paused as long as may be waits for people again")
            }
            Ok(WaitingOutcome::Waits | WaitingOutcome::Gone) | Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn plan_reminder(
        &self,
        WaitingRun { run, task, approvals }: &WaitingRun,
    ) -> Result<WaitingUpdate, StoreError> {
        let now = self.store.clock().now();
        let owner = self.recipient(&run.tenant_id).await?;
        let (mut deliveries, mut wake_at) = (vec![], now + AT_LEISURE);
        for (batch, approvals) in by_batch(approvals) {
            let due = due(&approvals, &self.settings, now);
            wake_at = wake_at.min(due.wake_at);
            let put = |reminder, to: (&str, Option<&Recipient>), output| {
                NewDelivery::question((&run.tenant_id, run.id), to, output, batch, reminder)
            };
            // the task's channels are its owner's; another recipient has an order of their own
            let own = task.as_ref().map(|task| &task.spec.output);
            deliveries.extend(due.reminder.and_then(|n| put(Some(n), (&run.tenant_id, owner.as_ref()), own)));
            for (other, reminds) in escalation_recipients(&self.settings, &due, &run.tenant_id) {
                let recipient = self.recipient(other).await?;
                deliveries.extend(put(None, (other, recipient.as_ref()), None));
                let again = due.reminder.filter(|_| reminds);
                deliveries.extend(again.and_then(|n| put(Some(n), (other, recipient.as_ref()), None)));
            }
        }
        let output = task.as_ref().map(|task| &task.spec.output);
        let if_expired = NewDelivery::failure_of_asked(run, output, owner.as_ref());
        Ok(WaitingUpdate { wake_at, deliveries, if_expired: if_expired.into_iter().collect() })
    }

    async fn recipient(&self, id: &str) -> Result<Option<Recipient>, StoreError> {
        self.store.recipient_to_tell(id).await
    }
}

impl ServiceLoop for ApprovalReminder {
    const NAME: &'static str = "approval_reminder";
    const POLL_INTERVAL: Duration = Duration::from_secs(3);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: Self::POLL_INTERVAL, next: |_, pending| pending.parked });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.store.clock().is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        let waiting = self.store.waiting_for_people(self.store.clock().now(), PAGE).await?;
        let full = waiting.len() as i64 == PAGE;
        for waiting in &waiting {
            match self.remind(waiting).await {
                Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
                Err(error) => self.store.set_aside_parked(waiting.run.id, &error).await?,
                Ok(()) => {}
            }
        }
        Ok(if full { NextTick::Now } else { self.store.next_waiting_at().await?.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::test_question as question;

    /// An instant of a question that is put at 08:00 and expires at 08:30.
    fn at(time: &str) -> DateTime<Utc> {
        format!("2027-03-01T{time}:00Z").parse().unwrap()
    }

    fn asked() -> Vec<Approval> {
        vec![question("pay 5", at("08:00"), at("08:30")), question("pay 7", at("08:00"), at("08:30"))]
    }

    fn escalating() -> Settings {
        Settings { escalate_to: Some("boss".into()), escalate_after: 0.6, ..Settings::default() }
    }

    /// At each instant: which reminder, whether another is asked, whether he is reminded, when to look again.
    fn line(approvals: &[Approval], settings: &Settings, now: &str) -> (Option<usize>, bool, bool, String) {
        let due = due(approvals, settings, at(now));
        (due.reminder, due.escalated, due.reminds_all, due.wake_at.format("%H:%M:%S").to_string())
    }

    #[test]
    fn reminders_fall_due_at_half_and_nine_tenths_and_only_the_latest_is_sent() {
        let plain = Settings::default();
        let line = |now| line(&asked(), &plain, now);
        assert_eq!(line("08:00"), (None, false, false, "08:15:00".into()));
        assert_eq!(line("08:14"), (None, false, false, "08:15:00".into()));
        assert_eq!(line("08:15"), (Some(1), false, false, "08:27:00".into()));
        assert_eq!(line("08:27"), (Some(2), false, false, "08:30:00".into()));
        assert_eq!(line("08:29"), (Some(2), false, false, "08:30:00".into()));
    }

    #[test]
    fn time_for_which_a_run_was_paused_is_no_time_to_answer() {
        let resumed = vec![question("pay 5", at("08:00"), at("20:30"))];
        let line = |now| line(&resumed, &escalating(), now);
        assert_eq!(line("20:10"), (None, false, false, "20:15:00".into()));
        assert_eq!(line("20:15"), (Some(1), false, false, "20:18:00".into()));
        assert_eq!(line("20:27"), (Some(2), true, true, "20:30:00".into()));
    }

    #[test]
    fn escalation_asks_another_recipient_after_its_share_of_the_time() {
        let line = |now| line(&asked(), &escalating(), now);
        assert_eq!(line("08:15"), (Some(1), false, false, "08:18:00".into()));
        assert_eq!(line("08:18"), (Some(1), true, false, "08:27:00".into()));
        assert_eq!(line("08:28"), (Some(2), true, true, "08:30:00".into()));
    }

    #[test]
    fn finisher_stops_logging_after_its_deadline_and_retries_the_store() {
        assert_eq!(line(&asked(), &escalating(), "08:30"), (None, false, false, "08:30:01".into()));
    }

    #[test]
    fn reminder_skips_settled_questions_and_wakes_when_a_hold_ends() {
        let mut batch = asked();
        for approval in &mut batch {
            approval.status = ApprovalStatus::Approved;
        }
        assert_eq!(line(&batch, &escalating(), "08:20"), (None, false, false, "08:21:00".into()));
        batch[1].hold_until = Some(at("08:20") + TimeDelta::seconds(30));
        assert_eq!(line(&batch, &escalating(), "08:20"), (None, false, false, "08:20:30".into()));
        batch[0].status = ApprovalStatus::Pending;
        assert_eq!(line(&batch, &Settings::default(), "08:20"), (Some(1), false, false, "08:20:30".into()));
    }

    #[test]
    fn order_in_which_reminders_are_written_does_not_matter() {
        let settings = Settings { reminders: vec![0.9, 0.1, 0.5], ..Settings::default() };
        assert_eq!(line(&asked(), &settings, "08:15"), (Some(2), false, false, "08:27:00".into()));
        let none = Settings { reminders: vec![], ..Settings::default() };
        assert_eq!(line(&asked(), &none, "08:15"), (None, false, false, "08:30:00".into()));
    }
}
