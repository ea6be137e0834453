//! With measure: whether the end of a run is told, by what its task wants and by what was told before.
//!
//! A failure is told once for its cause; the same again is counted and summed up once a day; the first success after it
//! says that all is well again. Decided purely, in the transaction that ends the run: see `store/runs/alerts.rs`.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::notification::new_delivery::channels;
use crate::domain::notification::{
    MessageKind, MessageLanguage, NewDelivery, NoticeKind, Recipient, SubjectRef, notices,
};
use crate::domain::run::Run;
use crate::domain::task::{Notify, Route, Task};

/// How long the same failures of a task are counted before they are told of again.
const SUM_UP_EVERY: TimeDelta = TimeDelta::days(1);

/// Causes that are known of one task at most; beyond, the one that was told longest ago is told anew.
const CAUSES: usize = 20;

/// How a run ended, as far as people hear of it.
#[derive(Debug, Clone, Copy)]
pub enum RunEnd<'a> {
    /// The run succeeded, with its output.
    Succeeded {
        /// The answer; `None` where there was none.
        output: Option<&'a str>,
    },
    /// The run failed for good, with the code of its error.
    Failed {
        /// Code of the error.
        code: &'a str,
    },
}

/// The end of a run that may be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunNotification {
    /// The task that the run belongs to.
    pub task_id: Uuid,
    /// Name of the task, for the message.
    pub task_name: String,
    /// The part of the end that is compared with earlier ones.
    pub outcome: NotifiedOutcome,
    /// In which notices about it are written.
    pub language: MessageLanguage,
    /// The message, if it is to be told.
    pub delivery: NewDelivery,
}

/// An end, as far as it is compared with earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotifiedOutcome {
    /// The run succeeded.
    Success {
        /// False where the task wants failures only.
        wanted: bool,
        /// Where only changes are told: of the output.
        hash: Option<Vec<u8>>,
    },
    /// The run failed for good.
    Failure {
        /// Code of the error, by which failures are grouped.
        code: String,
    },
}

/// The messages that a task has told, as far as they decide about later ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlertState {
    /// Of the output that was told last.
    pub output_hash: Option<Vec<u8>>,
    /// Causes of failures that have been told of since the last success.
    pub alerts: BTreeMap<String, Alert>,
}

/// Failures of one cause that have been told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Failures of this cause since the last success.
    pub count: i64,
    /// The instant of the first failure.
    pub since: DateTime<Utc>,
    /// The instant of the last message about them.
    pub notified_at: DateTime<Utc>,
}

impl RunNotification {
    /// Whether a recipient makes a difference to the end of a run of this task.
    pub fn may_be_sent(task: &Task) -> bool {
        task.spec.output.route != Route::Nobody && task.spec.notify != Notify::Never
    }

    /// Of the end of a run; `None` where nobody can be told, or is to be.
    pub fn of(run: &Run, task: Option<&Task>, recipient: Option<&Recipient>, end: RunEnd) -> Option<RunNotification> {
        let task = task.filter(|task| RunNotification::may_be_sent(task))?;
        let notify = task.spec.notify;
        let (kind, outcome) = match end {
            RunEnd::Failed { code } => (MessageKind::Failure, NotifiedOutcome::Failure { code: code.to_owned() }),
            RunEnd::Succeeded { output } => {
                let hash = || digest(&SHA256, output.unwrap_or_default().trim().as_bytes()).as_ref().to_vec();
                let hash = (notify == Notify::OnChange).then(hash);
                (MessageKind::Result, NotifiedOutcome::Success { wanted: notify != Notify::OnFailure, hash })
            }
        };
        let order = channels(&task.spec.output, recipient);
        let delivery = NewDelivery::of_run(&run.tenant_id, run.id, kind, order)?.with_urgency(task.spec.output.urgency);
        let language = Recipient::language_of(recipient);
        Some(RunNotification { task_id: task.id, task_name: task.name.clone(), outcome, language, delivery })
    }

    /// Whether what was told before makes no difference to a success, and it makes none to what is told later.
    pub fn is_stateless(&self) -> bool {
        matches!(self.outcome, NotifiedOutcome::Success { hash: None, .. })
    }

    /// The message where earlier ones make no difference.
    pub fn stateless_delivery(&self) -> Option<NewDelivery> {
        let wanted = !matches!(self.outcome, NotifiedOutcome::Success { wanted: false, .. });
        wanted.then(|| self.delivery.clone())
    }

    /// The `n`th notice of a kind about its task.
    fn notice(&self, kind: NoticeKind, n: i64, (subject, text): (String, String)) -> NewDelivery {
        let (subject_ref, dedupe_key) = SubjectRef::notice(kind, self.task_id, n);
        NewDelivery {
            dedupe_key,
            subject_ref: Some(subject_ref),
            kind: MessageKind::Notice,
            subject: Some(subject),
            text: Some(text),
            ..self.delivery.clone()
        }
    }
}

impl AlertState {
    /// The messages about an end at `now`, and the state after them.
    pub fn apply(self, end: &RunNotification, now: DateTime<Utc>) -> (AlertState, Vec<NewDelivery>) {
        match &end.outcome {
            NotifiedOutcome::Failure { code } => self.failed(end, code, now),
            NotifiedOutcome::Success { wanted, hash } => {
                let failures = self.alerts.values().map(|alert| alert.count).sum();
                let again = self.alerts.values().map(|alert| alert.since).min().map(|since| {
                    let words = notices::recovered(end.language, &end.task_name, failures);
                    end.notice(NoticeKind::Recovered, since.timestamp_millis(), words)
                });
                let changed = hash.is_none() || *hash != self.output_hash;
                let result = (*wanted && changed).then(|| end.delivery.clone());
                let told = AlertState { output_hash: hash.clone().or(self.output_hash), alerts: BTreeMap::new() };
                (told, again.into_iter().chain(result).collect())
            }
        }
    }

    fn failed(mut self, end: &RunNotification, code: &str, now: DateTime<Utc>) -> (AlertState, Vec<NewDelivery>) {
        let Some(alert) = self.alerts.get_mut(code) else {
            if self.alerts.len() >= CAUSES {
                self.evict_oldest();
            }
            self.alerts.insert(code.to_owned(), Alert { count: 1, since: now, notified_at: now });
            return (self, vec![end.delivery.clone()]);
        };
        alert.count += 1;
        if now - alert.notified_at < SUM_UP_EVERY {
            return (self, vec![]);
        }
        alert.notified_at = now;
        let words = notices::still_failing(end.language, &end.task_name, alert.count, code);
        let notice = end.notice(NoticeKind::Failing, now.timestamp_millis(), words);
        (self, vec![notice])
    }

    fn evict_oldest(&mut self) {
        let oldest = self.alerts.iter().min_by_key(|(_, alert)| alert.notified_at).map(|(code, _)| code.clone());
        oldest.map(|code| self.alerts.remove(&code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(outcome: NotifiedOutcome) -> RunNotification {
        let run = Uuid::from_u128(2);
        let kind =
            if matches!(outcome, NotifiedOutcome::Failure { .. }) { MessageKind::Failure } else { MessageKind::Result };
        let delivery = NewDelivery::of_run("ann", run, kind, vec!["email".into()]).unwrap();
        RunNotification {
            task_id: Uuid::from_u128(1),
            task_name: "Mail".into(),
            outcome,
            language: MessageLanguage::English,
            delivery,
        }
    }

    fn failure(code: &str) -> RunNotification {
        end(NotifiedOutcome::Failure { code: code.into() })
    }

    fn success(hash: Option<u8>) -> RunNotification {
        end(NotifiedOutcome::Success { wanted: true, hash: hash.map(|byte| vec![byte]) })
    }

    /// The messages about ends, each so many hours after the beginning: the kind, and the subject where it has its own.
    fn told(ends: &[(i64, RunNotification)]) -> Vec<Vec<String>> {
        let start: DateTime<Utc> = "2027-03-01T08:00:00Z".parse().unwrap();
        let mut told = AlertState::default();
        let shown = |one: NewDelivery| one.subject.unwrap_or_else(|| one.kind.as_str().to_owned());
        let after = |(hours, end): &(i64, RunNotification)| {
            let (next, outcome) = std::mem::take(&mut told).apply(end, start + TimeDelta::hours(*hours));
            told = next;
            outcome.into_iter().map(shown).collect()
        };
        ends.iter().map(after).collect()
    }

    #[test]
    fn cause_is_told_once_summed_up_daily_and_its_end_is_told() {
        let hours = [0, 1, 2, 25, 26, 49].map(|hour| (hour, failure("llm_auth")));
        let mut ends = hours.to_vec();
        ends.extend([(50, failure("timeout")), (50, failure("llm_auth")), (50, failure("timeout"))]);
        ends.extend([(51, success(None)), (52, success(None)), (53, failure("timeout"))]);
        let expected: [&[&str]; 12] = [
            &["failure"],
            &[],
            &[],
            &["Still failing: Mail"],
            &[],
            &["Still failing: Mail"],
            &["failure"],
            &[],
            &[],
            &["Well again: Mail", "result"],
            &["result"],
            &["failure"],
        ];
        assert_eq!(
            told(&ends),
            expected.map(|outcome| outcome.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
        );
    }

    #[test]
    fn output_on_change_sends_changes_only() {
        let ends = [(0, success(Some(1))), (1, success(Some(1))), (2, success(Some(2))), (3, success(Some(1)))];
        assert_eq!(told(&ends).iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 1, 1]);
        let unwanted = end(NotifiedOutcome::Success { wanted: false, hash: None });
        assert_eq!(
            told(&[(0, unwanted.clone()), (1, failure("x")), (2, unwanted)]),
            [vec![], vec!["failure".to_owned()], vec!["Well again: Mail".to_owned()]]
        );
    }
}
