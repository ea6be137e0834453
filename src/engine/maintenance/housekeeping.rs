//! Housekeeping: rounds on cron times in UTC, in each instance. Tasks of tenants never come here.
//!
//! Old rows are forgotten in small transactions, each kind in its turn, and after each the database has a rest as long
//! as that took: so no start waits behind more than one of them, and at most half of one connection is used. A night's
//! backlog takes as many rounds as it takes; a round ends when nothing is left, when its time is over, or when the
//! service stops. A crash loses nothing: the rest is found again.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::base::clock::pause;
use crate::domain::budget::day_of;
use crate::domain::conversation::KEPT_FOR;
use crate::domain::trigger::schedule::{Schedule, When};
use crate::domain::trigger::timetable::Timetable;
use crate::engine::Settings;
use crate::ports::bus::Bus;
use crate::store::{Store, StoreError, with_timeout};

/// Runs, deliveries, uses of credentials, or answers forgotten in one transaction.
pub const BATCH: i64 = 200;
/// Conversations that are deleted before the next rest.
const CONVERSATIONS: i64 = 5;
/// The shortest rest between two transactions.
const REST: Duration = Duration::from_millis(20);
/// The longest round: what is left by then waits for the next.
const ROUND: Duration = Duration::from_secs(30 * 60);
/// How long a transaction that has begun is waited for when the service stops.
const LAST_BATCH: Duration = Duration::from_secs(5);
/// How long a day's interruptions are known: no zone's today is older.
const COUNTS_MEMORY: TimeDelta = TimeDelta::days(2);
/// How long an instance may go without a look at the index of event tasks and need not read all of it anew.
const INDEX_MEMORY: TimeDelta = TimeDelta::days(1);
/// How long usage is kept: a year and a month can be compared with those before.
const USAGE_MEMORY: TimeDelta = TimeDelta::days(400);
/// How long a session that comes back may be told what it has missed.
const LIVE_MEMORY: TimeDelta = TimeDelta::hours(1);

/// How long an extraction waits for somebody to work it off.
const EXTRACTION_MEMORY: TimeDelta = TimeDelta::days(7);
/// For how long a link that signs in says that it is used or too old.
const LINK_MEMORY: TimeDelta = TimeDelta::days(1);

/// Kinds of rows that are deleted after their retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HousekeepingJob {
    Runs,
    Links,
    Deliveries,
    CredentialUses,
    Counts,
    Answers,
    EventRules,
    LiveMessages,
    EventTasks,
    BudgetDays,
    BudgetReservations,
    UsageDays,
    Conversations,
    Extractions,
    Tokens,
    UiSessions,
    LoginLinks,
}

const KINDS: [HousekeepingJob; 17] = [
    HousekeepingJob::Runs,
    HousekeepingJob::Links,
    HousekeepingJob::Deliveries,
    HousekeepingJob::CredentialUses,
    HousekeepingJob::Counts,
    HousekeepingJob::Answers,
    HousekeepingJob::EventRules,
    HousekeepingJob::LiveMessages,
    HousekeepingJob::EventTasks,
    HousekeepingJob::BudgetDays,
    HousekeepingJob::BudgetReservations,
    HousekeepingJob::UsageDays,
    HousekeepingJob::Conversations,
    HousekeepingJob::Extractions,
    HousekeepingJob::Tokens,
    HousekeepingJob::UiSessions,
    HousekeepingJob::LoginLinks,
];

/// Deletes rows after their retention.
#[derive(Clone)]
pub struct Housekeeping {
    store: Store,
    bus: Arc<dyn Bus>,
    cron: String,
    retention: TimeDelta,
}

/// When there are rounds by this cron expression.
///
/// # Errors
/// It can't be read, or never comes.
pub fn times(cron: &str, now: DateTime<Utc>) -> Result<Timetable, String> {
    let times = Schedule::new(When::Cron(cron.to_owned())).compile(now).map_err(|fault| fault.message)?;
    match times.next_after(now) {
        Some(_) => Ok(times),
        None => Err(format!("`{cron}` never comes")),
    }
}

/// The rounds while they go on.
pub struct Rounds {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Housekeeping {
    /// The service with its cron expression and its retention.
    pub fn new(store: Store, bus: Arc<dyn Bus>, settings: &Settings) -> Housekeeping {
        Housekeeping { store, bus, cron: settings.housekeeping.clone(), retention: settings.retention() }
    }

    /// Forgets what is older than it is kept, until nothing is left, the round's time is over, or `stop`; answers how
    /// many runs. What fails is left to the next round, and does not keep the rest from being forgotten.
    pub async fn delete_expired(store: &Store, retention: TimeDelta, stop: &CancellationToken) -> usize {
        let began = Instant::now();
        let mut runs = 0;
        let mut left = KINDS.to_vec();
        while !left.is_empty() && began.elapsed() < ROUND {
            let mut more = Vec::new();
            for kind in left {
                if stop.is_cancelled() {
                    return runs;
                }
                let begun = Instant::now();
                match with_timeout(delete_batch(store, kind, retention)).await {
                    Ok(0) => continue,
                    Ok(count) => {
                        runs += if kind == HousekeepingJob::Runs { count as usize } else { 0 };
                        more.push(kind);
                    }
                    Err(error) => {
                        tracing::warn!(?kind, %error, "housekeeping failed, it is done again at its next time")
                    }
                }
                stop.run_until_cancelled(pause(begun.elapsed().max(REST))).await;
            }
            left = more;
        }
        runs
    }

    /// Goes round at its times until it is stopped.
    ///
    /// # Errors
    /// The times can't be read, or never come.
    pub(in crate::engine) fn start(&self) -> anyhow::Result<Rounds> {
        let times = self.times().with_context(|| format!("`engine.housekeeping` is `{}`", self.cron))?;
        let (stop, keeper) = (CancellationToken::new(), self.clone());
        let asked = stop.clone();
        Ok(Rounds { stop, task: tokio::spawn(async move { keeper.run_rounds(times, &asked).await }) })
    }

    fn times(&self) -> anyhow::Result<Timetable> {
        times(&self.cron, self.store.clock().now()).map_err(anyhow::Error::msg)
    }

    /// A round that takes longer than the times are apart leaves out those that pass meanwhile.
    async fn run_rounds(&self, times: Timetable, stop: &CancellationToken) {
        let clock = self.store.clock();
        while let Some(next) = times.next_after(clock.now()) {
            if stop.run_until_cancelled(clock.sleep_until(next)).await.is_none() {
                return;
            }
            if AssertUnwindSafe(self.round(stop)).catch_unwind().await.is_err() {
                tracing::error!("housekeeping panicked, it is done again at its next time");
            }
        }
    }

    async fn round(&self, stop: &CancellationToken) {
        match Housekeeping::delete_expired(&self.store, self.retention, stop).await {
            0 => {}
            runs => tracing::info!(runs, "old runs are forgotten"),
        }
        match stop.run_until_cancelled(self.bus.trim(self.store.clock().now())).await {
            None | Some(Ok(0)) => {}
            Some(Ok(events)) => tracing::info!(events, "old events are forgotten"),
            Some(Err(error)) => {
                tracing::warn!(%error, "the bus could not be trimmed, it is done again at its next time");
            }
        }
    }
}

impl Rounds {
    /// Returns once none goes on. A transaction that takes too long is broken off.
    pub(in crate::engine) async fn stop(self) {
        self.stop.cancel();
        let breaks_off = self.task.abort_handle();
        if tokio::time::timeout(LAST_BATCH, self.task).await.is_err() {
            breaks_off.abort();
        }
    }
}

/// Forgets one batch of a kind; answers how much that was. None: nothing is left.
async fn delete_batch(store: &Store, kind: HousekeepingJob, retention: TimeDelta) -> Result<u64, StoreError> {
    let now = store.clock().now();
    let old = now - retention;
    match kind {
        HousekeepingJob::Runs => store.forget_runs(old, BATCH).await.map(|runs| runs as u64),
        HousekeepingJob::Links => store.forget_links(old, BATCH).await,
        HousekeepingJob::Deliveries => store.forget_deliveries(old, BATCH).await,
        HousekeepingJob::CredentialUses => store.forget_credential_uses(old, BATCH).await,
        HousekeepingJob::Counts => store.forget_counts(now - COUNTS_MEMORY, BATCH).await,
        HousekeepingJob::Extractions => store.forget_extractions(now - EXTRACTION_MEMORY, BATCH).await,
        HousekeepingJob::Tokens => store.forget_tokens(old, BATCH).await,
        HousekeepingJob::UiSessions => store.forget_ui_sessions(now, BATCH).await,
        HousekeepingJob::LoginLinks => store.forget_login_links(now - LINK_MEMORY, BATCH).await,
        HousekeepingJob::Answers => store.forget_answers(now, BATCH).await,
        HousekeepingJob::EventRules => store.forget_event_rules(now, old, BATCH).await,
        HousekeepingJob::LiveMessages => store.forget_live_messages(now - LIVE_MEMORY, BATCH).await,
        HousekeepingJob::EventTasks => store.forget_event_tasks(now - INDEX_MEMORY, BATCH).await,
        HousekeepingJob::UsageDays => store.forget_usage_days(day_of(now - USAGE_MEMORY), BATCH).await,
        HousekeepingJob::BudgetDays => store.forget_budget_days(day_of(old), BATCH).await,
        HousekeepingJob::Conversations => store.expire_conversations(now - KEPT_FOR, CONVERSATIONS).await,
        HousekeepingJob::BudgetReservations => {
            store.release_stale_reservations(None, BATCH).await.map(|taken| taken as u64)
        }
    }
}
