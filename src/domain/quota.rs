//! Quotas: how much one tenant may have and do, so that one tenant's excess is never another tenant's outage.
//!
//! [`Quotas`] are the numbers that hold for a tenant: those of `[quotas]`, with the tenant's own [`Overrides`] over
//! them. A quota is a number of at least 1. There is no word for "without a limit": an operator who wants none sets a
//! large number. The numbers here are pure; the store counts against them.

pub mod meter;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::invalid::ValidationErrors;
use crate::base::words::words;

/// Largest number that a quota takes; every JSON reader holds it exactly.
pub const MOST: u64 = 1_000_000_000_000_000;

/// Why a fire is skipped that is one too many.
pub const REASON_QUOTA: &str = "quota";

words! {
    /// A countable resource of a tenant. The word is the key in `[quotas]` (but for `concurrent_runs`), in the API and
    /// in answers.
    #[derive(PartialOrd, Ord, utoipa::ToSchema)]
    pub enum Quota {
        /// Tasks of every kind and status.
        Tasks = "tasks",
        /// Event tasks that listen to one source; those without a source count together.
        EventTasksPerSource = "event_tasks_per_source",
        /// Events that are published within a minute, over HTTP, by hooks and by tools.
        EventsPerMinute = "events_per_minute",
        /// Fires that are recorded to run within a minute, and messages of chats that begin a run.
        FiresPerMinute = "fires_per_minute",
        /// Condition tasks, each of which polls.
        Polls = "polls",
        /// Bytes of tasks, runs, transcripts, events, messages, approvals, credentials, facts, answers and data that
        /// are kept.
        StoredBytes = "stored_bytes",
        /// Streams (SSE, live sessions) that are open at once on one instance.
        Streams = "streams",
        /// Runs that are under way at once, over all instances.
        ConcurrentRuns = "concurrent_runs",
        /// Bytes of the data files into which large results of tools are put.
        DataFileBytes = "data_file_bytes",
        /// Runs whose agents wait for people at once.
        SuspendedAgents = "suspended_agents",
    }
}

impl Quota {
    /// Advice for the caller who meets the quota.
    pub fn advice(self) -> &'static str {
        match self {
            Quota::Tasks => "delete tasks that are not needed any more, or ask the operator for more",
            Quota::EventTasksPerSource => {
                "delete event tasks of this source, let one task serve several, or ask the operator for more"
            }
            Quota::EventsPerMinute => "send the rest in the next minute, or ask the operator for more",
            Quota::FiresPerMinute => "make schedules rarer or filters narrower, or ask the operator for more",
            Quota::Polls => "delete conditions that are not needed any more, or ask the operator for more",
            Quota::StoredBytes => {
                "delete tasks, credentials, facts and dead letters that are not needed any more, wait until old runs and \
                 events are forgotten, or ask the operator for more"
            }
            Quota::Streams => "close streams that nobody reads, or ask the operator for more",
            Quota::ConcurrentRuns => "wait until runs have ended, or ask the operator for more",
            Quota::DataFileBytes => "ask for less at once, or ask the operator for more",
            Quota::SuspendedAgents => "answer or cancel what waits for people, or ask the operator for more",
        }
    }
}

/// The quotas of a tenant, and as `[quotas]` those of every tenant without overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Tasks of every kind and status.
    pub tasks: u64,
    /// Event tasks of one source.
    pub event_tasks_per_source: u64,
    /// Published events in a minute.
    pub events_per_minute: u64,
    /// Automatic fires and messages of chats in a minute.
    pub fires_per_minute: u64,
    /// Condition tasks.
    pub polls: u64,
    /// Stored bytes of long values.
    pub stored_bytes: u64,
    /// Open streams and sessions.
    pub streams: u64,
    /// `None`: as many as there are places. It has no key in `[quotas]`: `engine.max_runs_per_tenant` sets it.
    #[serde(skip)]
    pub concurrent_runs: Option<u64>,
    /// Bytes of data files: a new one takes the place of the oldest.
    pub data_file_bytes: u64,
    /// Runs that wait for people: of one more, the call that would make it wait is refused.
    pub suspended_agents: u64,
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas {
            tasks: 100_000,
            event_tasks_per_source: 1_000,
            events_per_minute: 60_000,
            fires_per_minute: 60_000,
            polls: 1_000,
            stored_bytes: 10 << 30,
            streams: 50,
            concurrent_runs: None,
            data_file_bytes: 1 << 30,
            suspended_agents: 10_000,
        }
    }
}

impl Quotas {
    /// The number; `None` where the quota has none.
    pub fn of(&self, quota: Quota) -> Option<u64> {
        match quota {
            Quota::Tasks => Some(self.tasks),
            Quota::EventTasksPerSource => Some(self.event_tasks_per_source),
            Quota::EventsPerMinute => Some(self.events_per_minute),
            Quota::FiresPerMinute => Some(self.fires_per_minute),
            Quota::Polls => Some(self.polls),
            Quota::StoredBytes => Some(self.stored_bytes),
            Quota::Streams => Some(self.streams),
            Quota::ConcurrentRuns => self.concurrent_runs,
            Quota::DataFileBytes => Some(self.data_file_bytes),
            Quota::SuspendedAgents => Some(self.suspended_agents),
        }
    }

    /// These, with what is said for one tenant over them.
    pub fn with(&self, overrides: &Overrides) -> Quotas {
        let or = |own: Option<u64>, usual| own.unwrap_or(usual);
        Quotas {
            tasks: or(overrides.tasks, self.tasks),
            event_tasks_per_source: or(overrides.event_tasks_per_source, self.event_tasks_per_source),
            events_per_minute: or(overrides.events_per_minute, self.events_per_minute),
            fires_per_minute: or(overrides.fires_per_minute, self.fires_per_minute),
            polls: or(overrides.polls, self.polls),
            stored_bytes: or(overrides.stored_bytes, self.stored_bytes),
            streams: or(overrides.streams, self.streams),
            concurrent_runs: overrides.concurrent_runs.or(self.concurrent_runs),
            data_file_bytes: or(overrides.data_file_bytes, self.data_file_bytes),
            suspended_agents: or(overrides.suspended_agents, self.suspended_agents),
        }
    }

    /// Faults of `[quotas]`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        for quota in Quota::ALL {
            check_number(quota, self.of(quota), "/quotas", faults);
        }
    }
}

/// Quotas of one tenant; an absent one is as `[quotas]` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    /// Override of `tasks`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub tasks: Option<u64>,
    /// Override of `event_tasks_per_source`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub event_tasks_per_source: Option<u64>,
    /// Override of `events_per_minute`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub events_per_minute: Option<u64>,
    /// Override of `fires_per_minute`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub fires_per_minute: Option<u64>,
    /// Override of `polls`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub polls: Option<u64>,
    /// Override of `stored_bytes`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub stored_bytes: Option<u64>,
    /// Override of `streams`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub streams: Option<u64>,
    /// Runs under way at once.
    #[schema(minimum = 1)]
    pub concurrent_runs: Option<u64>,
    /// Override of `data_file_bytes`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub data_file_bytes: Option<u64>,
    /// Override of `suspended_agents`; absent or null: the configured one.
    #[schema(minimum = 1)]
    pub suspended_agents: Option<u64>,
}

impl Overrides {
    /// The override of a quota.
    pub fn of(&self, quota: Quota) -> Option<u64> {
        match quota {
            Quota::Tasks => self.tasks,
            Quota::EventTasksPerSource => self.event_tasks_per_source,
            Quota::EventsPerMinute => self.events_per_minute,
            Quota::FiresPerMinute => self.fires_per_minute,
            Quota::Polls => self.polls,
            Quota::StoredBytes => self.stored_bytes,
            Quota::Streams => self.streams,
            Quota::ConcurrentRuns => self.concurrent_runs,
            Quota::DataFileBytes => self.data_file_bytes,
            Quota::SuspendedAgents => self.suspended_agents,
        }
    }

    /// Faults of a request.
    pub fn check(&self, faults: &mut ValidationErrors) {
        for quota in Quota::ALL {
            check_number(quota, self.of(quota), "", faults);
        }
    }
}

/// A quota that stands in the way of what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the quota `{}` is {limit}, and {usage} are used: {}", .quota.as_str(), .quota.advice())]
pub struct ExceededQuota {
    /// The tenant that asked.
    pub tenant: String,
    /// The quota that refuses.
    pub quota: Quota,
    /// The limit of the tenant.
    pub limit: u64,
    /// Usage of the tenant without this request.
    pub usage: u64,
    /// When it may be asked again with another outcome.
    pub retry_after: Duration,
}

impl ExceededQuota {
    /// When to try again where a quota is on an amount: only a deletion makes room, so an early repetition is in vain.
    pub const AMOUNT: Duration = Duration::from_secs(60);
    /// How the database begins its refusal; quota, limit, usage and tenant follow.
    const MARK: &str = "quota_exceeded ";

    /// Reads the refusal of a database.
    pub fn parse(message: &str) -> Option<ExceededQuota> {
        let mut words = message.strip_prefix(ExceededQuota::MARK)?.splitn(4, ' ');
        Some(ExceededQuota {
            quota: Quota::parse(words.next()?)?,
            limit: words.next()?.parse().ok()?,
            usage: words.next()?.parse().ok()?,
            tenant: words.next()?.to_owned(),
            retry_after: ExceededQuota::AMOUNT,
        })
    }
}

/// How much of a quota is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QuotaStanding {
    /// `null`: no number of its own.
    #[schema(required, minimum = 1)]
    pub limit: Option<u64>,
    /// Usage; of `streams` that on the instance which answers. `null`: it is not known.
    #[schema(required)]
    pub usage: Option<u64>,
}

fn check_number(quota: Quota, number: Option<u64>, below: &str, faults: &mut ValidationErrors) {
    if number.is_some_and(|number| !(1..=MOST).contains(&number)) {
        faults.add(format!("{below}/{}", quota.as_str()), format!("must be from 1 to {MOST}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn override_outweighs_the_default_and_what_is_absent_stays() {
        let overrides = Overrides { tasks: Some(5), streams: Some(2), ..Overrides::default() };
        let quotas = Quotas::default().with(&overrides);
        assert_eq!(quotas, Quotas { tasks: 5, streams: 2, ..Quotas::default() });
        for quota in Quota::ALL {
            let expected = overrides.of(quota).or(Quotas::default().of(quota));
            assert_eq!(quotas.of(quota), expected, "{quota:?}");
            assert_eq!(Quota::parse(quota.as_str()), Some(quota));
            assert_eq!(serde_json::to_value(quota).unwrap(), quota.as_str());
        }
    }

    #[test]
    fn refusal_of_a_database_is_read_whatever_the_tenant_is_called() {
        let read = ExceededQuota::parse("quota_exceeded polls 1000 998 a tenant").expect("a refusal");
        assert_eq!((read.quota, read.limit, read.usage, read.tenant.as_str()), (Quota::Polls, 1000, 998, "a tenant"));
        assert!(read.to_string().starts_with("the quota `polls` is 1000, and 998 are used: delete"), "{read}");
        for other in ["quota_exceeded", "quota_exceeded x 1 1 a", "quota_exceeded polls 1", "unique violation"] {
            assert_eq!(ExceededQuota::parse(other), None, "{other}");
        }
    }

    #[test]
    fn numbers_at_their_bounds_are_taken_and_those_beyond_are_named() {
        let faults = |number: u64| {
            let mut faults = ValidationErrors::new();
            Quotas { polls: number, streams: number, ..Quotas::default() }.check(&mut faults);
            let mut of_request = ValidationErrors::new();
            Overrides { polls: Some(number), streams: Some(number), ..Overrides::default() }.check(&mut of_request);
            let pointers =
                |faults: ValidationErrors| faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>();
            (pointers(faults), pointers(of_request))
        };
        for fine in [1, MOST] {
            assert_eq!(faults(fine), (Vec::new(), Vec::new()));
        }
        for wrong in [0, MOST + 1] {
            let (settings, request) = faults(wrong);
            assert_eq!(settings, ["/quotas/polls", "/quotas/streams"]);
            assert_eq!(request, ["/polls", "/streams"]);
        }
    }
}
