//! The watcher: polls of conditions that are due are made, each in a task of its own, so that a slow one delays none.
//!
//! Between claim and record nothing is locked and nothing is kept: a crash costs the poll, which is claimed anew when
//! its claim has run out. A poll that panics is a failing poll of its task and of no other.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use chrono::Utc;
use futures::FutureExt;
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::clock::{cut, pause, signed};
use crate::engine::Bell;
use crate::engine::service::{AtRest, Next, REST, Service, TickError};
use crate::expr::Language;
use crate::id::{Scope, Tenant};
use crate::metrics::Metrics;
use crate::notification::dedupe;
use crate::notification::{NewDelivery, wording};
use crate::poll::{Ask, Missed, Poller};
use crate::store::{Lacked, PollClaim, RecordedPoll, Store, StoreError, Topic, answered};
use crate::trigger::Trigger;
use crate::trigger::condition::{Condition, Notice, PollFault, Seen, Step};

/// How long a poll is one worker's: longer than the longest poll and the wait for a store that is slow to record it.
pub const CLAIM: Duration = Duration::from_secs(45);
/// How long polls that are under way may go on when the service stops. What is cut off is polled again.
const DRAIN: Duration = Duration::from_secs(5);
/// The wait before a store that is away is asked again to record a poll.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Polls that found no room come again up to this much later than they have to: other instances send theirs away, too.
const SPREAD: Duration = Duration::from_millis(250);

pub struct Watcher {
    work: Work,
    places: Arc<Semaphore>,
    under_way: TaskTracker,
    /// Rung after each poll: its place is free, and the next one of its task may be the earliest there is.
    done: Bell,
}

/// What each poll needs.
#[derive(Clone)]
struct Work {
    store: Store,
    poller: Poller,
    language: Language,
    polls: Counter,
    failing: Counter,
    busy: Counter,
    fired: Counter,
    skipped: Counter,
}

impl Watcher {
    pub fn new(store: Store, poller: Poller, at_once: usize, metrics: &Metrics) -> Watcher {
        let counted = |name: &str, help: &str| {
            let counter = Counter::default();
            metrics.register(name, help, counter.clone());
            counter
        };
        let work = Work {
            store,
            poller,
            language: Language::default(),
            polls: counted("polls", "Polls of conditions that were made"),
            failing: counted("polls_failing", "Polls of conditions that failed"),
            busy: counted("polls_postponed", "Polls put off because others were at the same host"),
            fired: counted("condition_fires", "Fires of conditions that became runs"),
            skipped: counted("condition_fires_skipped", "Fires of conditions recorded as skipped"),
        };
        Watcher {
            work,
            places: Arc::new(Semaphore::new(at_once.max(1))),
            under_way: TaskTracker::new(),
            done: Bell::default(),
        }
    }

    /// Waits for polls that are under way, but not for ever.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
        self.under_way.reopen();
    }
}

impl Service for Watcher {
    const NAME: &'static str = "watcher";
    const LOOK_AGAIN: Duration = Duration::from_secs(5);
    const AT_REST: Option<AtRest<Self>> = Some(AtRest { longest: REST, next: |_, outlook| outlook.poll });

    async fn tick(&self) -> Result<Next, TickError> {
        let clock = self.work.store.clock();
        if !clock.trusted() {
            return Err(TickError::ClockUnknown);
        }
        let free = self.places.available_permits();
        if free == 0 {
            return Ok(Next::OnWake);
        }
        let now = clock.now();
        let claims = self.work.store.claim_polls(now, now + signed(CLAIM), free as i64).await?;
        let full = claims.len() == free;
        for claim in claims {
            let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
            let (work, done) = (self.work.clone(), Arc::clone(&self.done));
            self.under_way.spawn(async move {
                work.watch(claim).await;
                drop(place);
                done.notify_one();
            });
        }
        if full {
            return Ok(Next::OnWake);
        }
        Ok(match self.work.store.next_poll().await? {
            Some(next) => Next::At(next),
            None => Next::OnWake,
        })
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        let mut due = self.work.store.listen(Topic::Due);
        let done = Arc::clone(&self.done);
        Box::pin(async move {
            tokio::select! {
                _ = due.changed() => {}
                () = done.notified() => {}
            }
        })
    }
}

/// What is to be done with a claim.
enum Outcome {
    Record {
        step: Box<Step>,
        next_at: Option<DateTime<Utc>>,
    },
    Postpone {
        at: DateTime<Utc>,
    },
    /// Nothing can be said about such a condition, not even when it is polled.
    Disable {
        why: String,
    },
}

impl Work {
    /// Polls, decides, records.
    async fn watch(&self, claim: PollClaim) {
        let outcome = self.outcome(&claim).await;
        let give_up = claim.until;
        while let Err(error) = answered(self.write(&claim, &outcome)).await {
            if !matches!(error, StoreError::Unavailable(_) | StoreError::TimedOut(_))
                || self.store.clock().now() >= give_up
            {
                tracing::error!(task_id = %claim.subject.id, %error, "a poll could not be recorded; it is made again");
                return;
            }
            pause(ASK_AGAIN).await;
        }
    }

    async fn outcome(&self, claim: &PollClaim) -> Outcome {
        let condition = match Trigger::deserialize(&claim.trigger) {
            Ok(Trigger::Condition(condition)) => condition,
            _ => return Outcome::Disable { why: "the trigger can't be read".into() },
        };
        let question = match condition.compile(&self.language) {
            Ok(question) => question,
            Err(fault) => return Outcome::Disable { why: format!("{}: {}", fault.pointer, fault.message) },
        };
        let polled = match self.poll(claim, &condition).await {
            Err(Missed::Busy(wait)) => {
                self.busy.inc();
                let spread = SPREAD.mul_f64(fastrand::f64());
                return Outcome::Postpone { at: cut(self.store.clock().now() + signed(wait + spread)) };
            }
            Err(Missed::Fault(fault)) => Err(fault),
            Ok(seen) => Ok(seen),
        };
        self.polls.inc();
        let now = self.store.clock().now();
        let step = claim.state.on_poll(&question, &claim.subject, polled, now, fastrand::f64());
        if let Some(failing) = &step.state.failing {
            self.failing.inc();
            tracing::debug!(task_id = %claim.subject.id, count = failing.count, error = %failing.error, "a poll failed");
        }
        let next_at = condition.within_end(cut(step.next_poll_at));
        Outcome::Record { step: Box::new(step), next_at }
    }

    async fn poll(&self, claim: &PollClaim, condition: &Condition) -> Result<Seen, Missed> {
        let tenant = Tenant::stored(&claim.tenant_id).map_err(|why| PollFault::new("tenant", why))?;
        let ask = Ask {
            tenant: &tenant,
            id: claim.subject.id,
            trial: false,
            poll: &condition.poll,
            // without a good poll there is no value that could be unchanged
            known: claim.state.last_good_at.map(|_| &claim.state.validators),
            time_limit: condition.time_limit().to_std().unwrap_or_default(),
        };
        let polled = AssertUnwindSafe(self.poller.poll(&ask)).catch_unwind().await;
        polled.unwrap_or_else(|_| Err(PollFault::new("panicked", "the poll broke down").into()))
    }

    async fn write(&self, claim: &PollClaim, outcome: &Outcome) -> Result<(), StoreError> {
        let (step, next_at) = match outcome {
            Outcome::Postpone { at } => return self.store.postpone_poll(claim, *at).await.map(drop),
            Outcome::Disable { why } => {
                tracing::error!(task_id = %claim.subject.id, why, "a condition can't be polled any more, it is disabled");
                return self.store.disable_condition(claim, why).await.map(drop);
            }
            Outcome::Record { step, next_at } => (step, *next_at),
        };
        let lack = step.state.failing.as_ref().and_then(|failing| failing.error.lack.as_deref());
        let notice = match &step.notice {
            // that it is paused says more
            _ if lack.is_some() => None,
            Some(notice) => self.notice(claim, notice).await?,
            None => None,
        };
        let now = self.store.clock().now();
        match self.store.record_poll(claim, step, next_at, notice.as_ref(), now).await? {
            RecordedPoll::Fired(_) => drop(self.fired.inc()),
            RecordedPoll::Skipped(_) => drop(self.skipped.inc()),
            RecordedPoll::Quiet => {}
            RecordedPoll::Void => return Ok(()),
        }
        if let Some(lack) = lack {
            match self.store.pause_for_credential(claim.subject.id, lack).await {
                Ok(Lacked::Paused) => {
                    tracing::warn!(task_id = %claim.subject.id, "a condition lacks a credential, it is paused")
                }
                Ok(Lacked::Told | Lacked::Mended) => {}
                // the next poll comes to the same
                Err(error) => tracing::warn!(task_id = %claim.subject.id, %error, "a condition is not paused yet"),
            }
        }
        Ok(())
    }

    /// What the owner is told; `None` where nobody can be.
    async fn notice(&self, claim: &PollClaim, notice: &Notice) -> Result<Option<NewDelivery>, StoreError> {
        let task = match self.store.get_task(&Scope::Every, claim.subject.id).await {
            Ok(task) => task,
            Err(StoreError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let recipient = match self.store.get_recipient(&Scope::Every, &task.tenant_id).await {
            Ok(stored) => Some(stored.recipient),
            Err(StoreError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let (kind, failing, words) = match notice {
            Notice::Failing(failing) => ("poll_failing", failing, wording::poll_failing(&task.name, failing)),
            Notice::Recovered(failing) => ("poll_recovered", failing, wording::poll_recovered(&task.name, failing)),
        };
        // the instant at which it began tells one time of failing from the next
        let key = dedupe::notice(kind, task.id, failing.since.timestamp_millis());
        Ok(NewDelivery::notice(&task, recipient.as_ref(), key, words))
    }
}
