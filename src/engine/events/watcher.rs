//! The watcher: polls of conditions that are due are made, each in a task of its own, so that a slow one delays none.
//!
//! Those first that are due for the longest time; but where a tenant has all the permits that it may have, what waits
//! behind it is looked for from tenant to tenant, a bounded number at a time, and the search goes on at the next tick.
//!
//! Between claim and record nothing is locked and nothing is kept: a crash costs the poll, which is claimed anew when
//! its claim has run out. A poll that panics is a failing poll of its task and of no other.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use serde::Deserialize;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::base::clock::{pause, to_delta, truncate_millis};
use crate::base::compute::{Compute, steps_to_read};
use crate::base::expr::Language;
use crate::base::id::{Scope, Tenant};
use crate::base::metrics::Metrics;
use crate::domain::halt::Halts;
use crate::domain::notification::{NewDelivery, Recipient, notices};
use crate::domain::trigger::Trigger;
use crate::domain::trigger::condition::{
    CompiledCondition, Condition, ConditionNotice, ConditionStep, PollFault, PollResult,
};
use crate::engine::Wakeup;
use crate::engine::fair_limiter::{FairLimiter, FairPermit};
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::ports::poll::{PollFailure, PollRequest, Poller};
use crate::store::{DuePoll, PauseResult, PollClaim, RecordedPoll, Store, StoreError, Topic, with_timeout};

/// How long a poll is one worker's: longer than the longest poll and the wait for a store that is slow to record it.
pub const CLAIM: Duration = Duration::from_secs(45);
/// How many of the polls that are due are looked at, those first that are due for the longest time.
const LOOKED_AT: usize = 256;
/// How many tenants are looked at behind those that have all their permits, so many at a time and so many times.
const TENANTS: i64 = 1_000;
const PAGES: usize = 8;
/// The shortest wait for the next poll while polls wait for a permit: many fall due all the time.
const CROWDED: TimeDelta = TimeDelta::milliseconds(100);
/// How long polls that are under way may go on when the service stops. A poll that is cut off is made again.
const DRAIN: Duration = Duration::from_secs(5);
/// The wait before a store that is away is asked again to record a poll.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Polls that found no room come again up to this much later than they have to: other instances send theirs away, too.
const SPREAD: Duration = Duration::from_millis(250);

/// Polls due conditions.
pub struct Watcher {
    work: PollWork,
    limiter: FairLimiter,
    /// The tenant after which the search goes on.
    searched: Mutex<String>,
    under_way: TaskTracker,
    /// Rung after each poll: its permit is given back, and the next one of its task may be the earliest there is.
    done: Wakeup,
}

/// The parts that each poll needs.
#[derive(Clone)]
struct PollWork {
    store: Store,
    poller: Poller,
    compute: Compute,
    language: Language,
    polls: Counter,
    failing: Counter,
    busy: Counter,
    fired: Counter,
    skipped: Counter,
}

impl Watcher {
    /// The service with at most so many polls at once.
    pub fn new(store: Store, poller: Poller, compute: Compute, at_once: usize, metrics: &Metrics) -> Watcher {
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        let work = PollWork {
            store,
            poller,
            compute,
            language: Language::default(),
            polls: counted("polls", "Polls of conditions that were made"),
            failing: counted("poll_failures", "Polls of conditions that failed"),
            busy: counted("polls_postponed", "Polls put off because others were at the same host"),
            fired: counted("condition_fires", "Fires of conditions that became runs"),
            skipped: counted("condition_fires_skipped", "Fires of conditions recorded as skipped"),
        };
        Watcher {
            work,
            limiter: FairLimiter::new(at_once),
            searched: Mutex::default(),
            under_way: TaskTracker::new(),
            done: Wakeup::default(),
        }
    }

    /// The due polls for which there is a permit.
    async fn select_due(&self, halts: Arc<Halts>, now: DateTime<Utc>) -> Result<PollBatch, StoreError> {
        let mut chosen = PollBatch { halts, ..PollBatch::default() };
        let due = self.work.store.due_polls(now, LOOKED_AT as i64).await?;
        due.iter().for_each(|poll| chosen.acquire(&self.limiter, poll));
        chosen.more = due.len() == LOOKED_AT;
        if chosen.more && chosen.waits {
            self.search(&mut chosen, now).await?;
        }
        Ok(chosen)
    }

    /// Looks at the first poll of each tenant, from where the last search ended: tenants that have all their permits
    /// may stand before others.
    async fn search(&self, chosen: &mut PollBatch, now: DateTime<Utc>) -> Result<(), StoreError> {
        let mut after = self.searched.lock().expect("searched").clone();
        let mut from_the_first = after.is_empty();
        for _ in 0..PAGES {
            if self.limiter.available() == 0 {
                break;
            }
            let (polls, last) = self.work.store.polls_in_turn(now, &after, TENANTS).await?;
            let last_permit = polls.iter().find(|poll| {
                chosen.acquire(&self.limiter, poll);
                self.limiter.available() == 0
            });
            match (last_permit, last) {
                (Some(poll), _) => after.clone_from(&poll.tenant_id),
                (None, Some(last)) => after = last,
                (None, None) => {
                    after.clear();
                    if from_the_first {
                        break;
                    }
                    from_the_first = true;
                }
            }
        }
        *self.searched.lock().expect("searched") = after;
        Ok(())
    }

    /// Waits for polls that are under way, but not for ever.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
        self.under_way.reopen();
    }
}

/// Polls that a tick is about to make.
#[derive(Default)]
struct PollBatch {
    /// Tenants of which nothing is polled.
    halts: Arc<Halts>,
    permits: HashMap<Uuid, FairPermit>,
    /// Something that is due has to wait for a permit.
    waits: bool,
    /// More may be due than was looked at.
    more: bool,
}

impl PollBatch {
    /// Takes a permit for it, if there is one for its tenant. A halted tenant has none.
    fn acquire(&mut self, limiter: &FairLimiter, poll: &DuePoll) {
        if self.permits.contains_key(&poll.task_id) {
            return;
        }
        let permit = match self.halts.halt_of(&poll.tenant_id) {
            None => limiter.acquire_any(&poll.tenant_id).ok(),
            Some(_) => None,
        };
        match permit {
            Some(permit) => drop(self.permits.insert(poll.task_id, permit)),
            None => self.waits = true,
        }
    }
}

impl ServiceLoop for Watcher {
    const NAME: &'static str = "watcher";
    const POLL_INTERVAL: Duration = Duration::from_secs(5);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.poll });

    async fn tick(&self) -> Result<NextTick, TickError> {
        let clock = self.work.store.clock();
        if !clock.is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        if self.limiter.available() == 0 {
            return Ok(NextTick::OnWake);
        }
        let halts = self.work.store.halts().await?;
        if halts.all() {
            return Ok(NextTick::OnWake);
        }
        let now = clock.now();
        let mut chosen = self.select_due(halts, now).await?;
        let tasks: Vec<Uuid> = chosen.permits.keys().copied().collect();
        let claims = self.work.store.claim_polls(&tasks, now, now + to_delta(CLAIM)).await?;
        let any = !claims.is_empty();
        // before a poll that begins here can have ended, and is due again
        let behind = match chosen.waits {
            true => self.work.store.next_poll_after(now).await,
            false => Ok(None),
        };
        for claim in claims {
            let permit = chosen.permits.remove(&claim.subject.id);
            let (work, done) = (self.work.clone(), Arc::clone(&self.done));
            self.under_way.spawn(async move {
                work.watch(claim).await;
                drop(permit);
                done.notify_one();
            });
        }
        if chosen.waits {
            // a poll that ends gives its permit back; what falls due meanwhile may be another's
            return Ok(behind?.map_or(NextTick::OnWake, |next| NextTick::At(next.max(now + CROWDED))));
        }
        if chosen.more && any {
            return Ok(NextTick::Now);
        }
        Ok(self.work.store.next_poll().await?.into())
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
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

/// The decision about a claim.
enum PollOutcome {
    Record {
        step: Box<ConditionStep>,
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

impl PollWork {
    /// Polls, decides, records.
    async fn watch(&self, claim: PollClaim) {
        let outcome = self.outcome(&claim).await;
        let give_up = claim.until;
        while let Err(error) = with_timeout(self.write(&claim, &outcome)).await {
            if !matches!(error, StoreError::Unavailable(_) | StoreError::TimedOut(_))
                || self.store.clock().now() >= give_up
            {
                tracing::error!(task_id = %claim.subject.id, %error, "a poll could not be recorded; it is made again");
                return;
            }
            pause(ASK_AGAIN).await;
        }
    }

    async fn outcome(&self, claim: &PollClaim) -> PollOutcome {
        let (condition, question) = match self.compiled(claim).await {
            Ok(compiled) => compiled,
            Err(why) => return PollOutcome::Disable { why },
        };
        let polled = match self.poll(claim, &condition).await {
            Err(PollFailure::Busy(wait)) => {
                self.busy.inc();
                let spread = SPREAD.mul_f64(fastrand::f64());
                return PollOutcome::Postpone {
                    at: truncate_millis(self.store.clock().now() + to_delta(wait + spread)),
                };
            }
            Err(PollFailure::Fault(fault)) => Err(fault),
            Ok(seen) => Ok(seen),
        };
        self.polls.inc();
        let now = self.store.clock().now();
        let Some(step) = self.evaluate(claim, question, polled, now).await else {
            return PollOutcome::Disable { why: "its expressions can't be evaluated".into() };
        };
        if let Some(failing) = &step.state.failing {
            self.failing.inc();
            tracing::debug!(task_id = %claim.subject.id, count = failing.count, error = %failing.error, "a poll failed");
        }
        let next_at = condition.before_end(truncate_millis(step.next_poll_at));
        PollOutcome::Record { step: Box::new(step), next_at }
    }

    /// The condition and its expressions, or why they can't be read.
    async fn compiled(&self, claim: &PollClaim) -> Result<(Condition, CompiledCondition), String> {
        let (trigger, language) = (claim.trigger.clone(), self.language.clone());
        let read = move || {
            let Ok(Trigger::Condition(condition)) = Trigger::deserialize(&trigger) else {
                return Err("the trigger can't be read".to_owned());
            };
            let question = condition.compile(&language);
            let question = question.map_err(|fault| format!("{}: {}", fault.pointer, fault.message))?;
            Ok((condition, question))
        };
        let read = self.compute.run_if_costly(&claim.tenant_id, steps_to_read(&claim.trigger), read).await;
        read.unwrap_or_else(|panicked| Err(panicked.to_string()))
    }

    /// The step that follows from the poll. Slow expressions are computed on a thread of their own.
    async fn evaluate(
        &self,
        claim: &PollClaim,
        question: CompiledCondition,
        polled: Result<PollResult, PollFault>,
        now: DateTime<Utc>,
    ) -> Option<ConditionStep> {
        let (state, subject) = (claim.state.clone(), claim.subject.clone());
        let steps = match &polled {
            Ok(PollResult::Value { value, .. }) => question.steps(value, &state.value, &subject, now),
            Ok(PollResult::Unchanged) => question.steps(&state.value, &state.value, &subject, now),
            Err(_) => 0,
        };
        let work = move || state.on_poll(&question, &subject, polled, now, fastrand::f64());
        self.compute.run_if_costly(&claim.tenant_id, steps, work).await.ok()
    }

    async fn poll(&self, claim: &PollClaim, condition: &Condition) -> Result<PollResult, PollFailure> {
        let tenant = Tenant::stored(&claim.tenant_id).map_err(|why| PollFault::new("tenant", why))?;
        let ask = PollRequest {
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

    async fn write(&self, claim: &PollClaim, outcome: &PollOutcome) -> Result<(), StoreError> {
        let (step, next_at) = match outcome {
            PollOutcome::Postpone { at } => return self.store.postpone_poll(claim, *at).await.map(drop),
            PollOutcome::Disable { why } => {
                tracing::error!(task_id = %claim.subject.id, why, "a condition can't be polled any more, it is disabled");
                return self.store.disable_condition(claim, why).await.map(drop);
            }
            PollOutcome::Record { step, next_at } => (step, *next_at),
        };
        let issue = step.state.failing.as_ref().and_then(|failing| failing.error.credential_issue.as_deref());
        let notice = match &step.notice {
            // that it is paused says more
            _ if issue.is_some() => None,
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
        if let Some(issue) = issue {
            match self.store.pause_for_credential(claim.subject.id, issue).await {
                Ok(PauseResult::Paused) => {
                    tracing::warn!(task_id = %claim.subject.id, "a condition lacks a credential, it is paused")
                }
                Ok(PauseResult::Notified | PauseResult::Resolved) => {}
                // the next poll comes to the same
                Err(error) => tracing::warn!(task_id = %claim.subject.id, %error, "a condition is not paused yet"),
            }
        }
        Ok(())
    }

    /// The message to the owner; `None` where nobody can be told.
    async fn notice(&self, claim: &PollClaim, notice: &ConditionNotice) -> Result<Option<NewDelivery>, StoreError> {
        let Some(task) = self.store.find_task(&Scope::Every, claim.subject.id).await? else { return Ok(None) };
        let recipient = self.store.recipient_to_tell(&task.tenant_id).await?;
        let (about, words) = notices::of_poll(Recipient::language_of(recipient.as_ref()), &task, notice);
        Ok(NewDelivery::notice(&task, recipient.as_ref(), about, words))
    }
}
