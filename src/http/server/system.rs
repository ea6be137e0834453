//! The service as its operator looks at it: instances, services, queues, and what is not as it should be.
//!
//! All of it is read anew for each question. `reveille check` looks at more: at files, keys, models and accounts.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use tokio::time::timeout;
use uuid::Uuid;

use crate::base::metrics::ExpectedService;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::{Call, Json, Query};
use crate::ports::tool::mcp::{McpHealth, McpState};
use crate::store::{Depths, InstanceRecord};

/// How long the event bus is waited for.
const BUS_PATIENCE: Duration = Duration::from_secs(1);
/// An instance says once a minute that it lives; one that has missed two of these counts as missing.
const MISSING_AFTER: TimeDelta = TimeDelta::seconds(150);
/// A fire that was due this long ago, and is not recorded, is late.
const LATE_AFTER: i64 = 5;

/// The service, over all its instances.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct SystemView {
    /// Version of the instance that answers.
    #[schema(example = "0.1.0")]
    pub version: &'static str,
    /// The database.
    pub database: DatabaseView,
    /// Instances that live, and those that have said nothing for less than a day; up to 200.
    pub instances: Vec<InstanceView>,
    /// Services of the instance that answers.
    pub services: Vec<ServiceView>,
    /// How much waits, over all instances.
    pub queue: QueueView,
    /// MCP servers of the instance that answers.
    pub mcp_servers: Vec<McpHealth>,
    /// Faults in the setup, and things that are late; empty when all is well.
    pub findings: Vec<SystemFinding>,
}

/// The database of the service.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct DatabaseView {
    /// `postgres` or `sqlite`.
    #[schema(example = "postgres")]
    pub kind: &'static str,
    /// Version of the server or library.
    pub version: String,
}

/// An instance of the service.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct InstanceView {
    /// Its id: claims and leases carry it.
    pub id: Uuid,
    /// The machine's name, where it is known.
    #[schema(required)]
    pub host: Option<String>,
    /// Version of the program.
    pub version: String,
    /// The instant of its start.
    pub started_at: DateTime<Utc>,
    /// The instant at which it last said that it lives: once a minute.
    pub seen_at: DateTime<Utc>,
    /// It is the one that answers.
    pub answers: bool,
    /// It has said nothing for so long that it has died, or can't reach the database.
    pub missing: bool,
}

/// A service of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ServiceView {
    /// Name of the service.
    #[schema(example = "scheduler")]
    pub service: &'static str,
    /// `null`: not since the start.
    #[schema(required)]
    pub last_success: Option<DateTime<Utc>>,
    /// It is well as long as it succeeds at least this often, in seconds.
    pub within_seconds: u64,
    /// It has not succeeded lately enough.
    pub late: bool,
}

/// How much waits; each number stops at 10,000, which then means that many or more.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueView {
    /// Runs that no instance has taken.
    pub ready: i64,
    /// Runs that an instance has taken, and not started.
    pub claimed: i64,
    /// Runs that are executed.
    pub started: i64,
    /// Runs that wait for people, another system or another run.
    pub parked: i64,
    /// Tasks whose instant came over five seconds ago and that have not fired.
    pub tasks_late: i64,
    /// Questions that people have not answered.
    pub approvals_open: i64,
    /// Messages that are still to be sent.
    pub deliveries_pending: i64,
    /// How long ago the earliest fire was due that is not recorded yet, in seconds; 0: none was.
    pub lag_seconds: i64,
}

/// A thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct SystemFinding {
    /// The part that it is about.
    #[schema(example = "instances")]
    pub name: &'static str,
    /// It keeps work from being done, or tenants from being kept apart. Otherwise the service works on.
    pub wrong: bool,
    /// The fault, in a sentence.
    pub message: String,
}

/// Read how the service stands
///
/// For an admin token that may do everything. Answers which instances there are, what waits, and what is not as it
/// should be. Services and MCP servers are those of the instance that answers.
#[utoipa::path(get, path = "/v1/system", tag = "operations", security(("bearer" = ["*"])),
    responses((status = 200, body = SystemView)))]
pub async fn get_system(Call(state, caller): Call, query: Query) -> Result<Json<SystemView>, ApiError> {
    caller.is_operator()?;
    query.done()?;
    let now = state.clock.now();
    let facts = state.store.facts().await?;
    let own = state.store.own_instance();
    let instances = state.store.list_instances().await?;
    let due = state.store.next_due().await?;
    let mut system = SystemView {
        version: env!("CARGO_PKG_VERSION"),
        database: DatabaseView { kind: facts.kind, version: facts.version },
        instances: instances.into_iter().map(|instance| InstanceView::of(instance, own, now)).collect(),
        services: state.metrics.services(now).into_iter().map(ServiceView::of).collect(),
        queue: QueueView::of(state.store.depths().await?, due, now),
        mcp_servers: state.mcp.health(),
        findings: Vec::new(),
    };
    system.findings = findings_of(&system);
    if facts.above_row_security {
        let message = "the role is a superuser or has BYPASSRLS, so the database does not keep tenants apart";
        system.findings.push(SystemFinding::wrong("database role", message));
    }
    system.findings.extend(findings_of_state(&state).await?);
    Ok(Json(system))
}

impl InstanceView {
    fn of(instance: InstanceRecord, own: Option<Uuid>, now: DateTime<Utc>) -> InstanceView {
        let InstanceRecord { id, host, version, started_at, seen_at } = instance;
        let missing = now - seen_at > MISSING_AFTER;
        InstanceView { id, host, version, started_at, seen_at, answers: own == Some(id), missing }
    }
}

impl ServiceView {
    fn of(expected: ExpectedService) -> ServiceView {
        let ExpectedService { service, within, last_success, is_late } = expected;
        ServiceView { service, last_success, within_seconds: within.as_secs(), late: is_late }
    }
}

impl QueueView {
    fn of(depths: Depths, due: Option<DateTime<Utc>>, now: DateTime<Utc>) -> QueueView {
        QueueView {
            ready: depths.ready,
            claimed: depths.claimed,
            started: depths.started,
            parked: depths.parked,
            tasks_late: depths.due_late,
            approvals_open: depths.approvals_open,
            deliveries_pending: depths.deliveries_pending,
            lag_seconds: due.map_or(0, |due| (now - due).num_seconds().max(0)),
        }
    }
}

impl SystemFinding {
    fn odd(name: &'static str, message: impl Into<String>) -> SystemFinding {
        SystemFinding { name, wrong: false, message: message.into() }
    }

    fn wrong(name: &'static str, message: impl Into<String>) -> SystemFinding {
        SystemFinding { name, wrong: true, message: message.into() }
    }
}

/// Findings in what is shown.
fn findings_of(system: &SystemView) -> Vec<SystemFinding> {
    let mut findings = Vec::new();
    let late: Vec<&str> = system.services.iter().filter(|one| one.late).map(|one| one.service).collect();
    if !late.is_empty() {
        findings.push(SystemFinding::wrong("services", format!("late on this instance: {}", late.join(", "))));
    }
    if system.queue.lag_seconds > LATE_AFTER {
        let message = format!("a fire that was due {} s ago is not recorded yet", system.queue.lag_seconds);
        findings.push(SystemFinding::wrong("fires", message));
    }
    for instance in system.instances.iter().filter(|one| one.missing) {
        let host = instance.host.as_deref().unwrap_or("an unknown machine");
        let message = format!("{} on {host} has not been seen since {}", instance.id, instance.seen_at.to_rfc3339());
        findings.push(SystemFinding::odd("instances", message));
    }
    let living = system.instances.iter().filter(|one| !one.missing);
    let versions: BTreeSet<&str> = living.map(|one| one.version.as_str()).collect();
    if versions.len() > 1 {
        let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
        findings.push(SystemFinding::odd("instances", format!("several releases run: {versions}")));
    }
    for server in system.mcp_servers.iter().filter(|one| one.state == McpState::Unavailable) {
        let fault = server.fault.unwrap_or("no answer");
        findings.push(SystemFinding::odd("MCP servers", format!("{} is away: {fault}", server.name)));
    }
    findings
}

/// Findings in what this instance knows, and in what it reads for them.
async fn findings_of_state(state: &HttpState) -> Result<Vec<SystemFinding>, ApiError> {
    let mut findings = Vec::new();
    if !state.clock.is_trusted() {
        let message = "the database's clock is not known well enough, so nothing is claimed or fired";
        findings.push(SystemFinding::wrong("clock", message));
    }
    match timeout(BUS_PATIENCE, state.bus.concerns()).await {
        Ok(Ok(concerns)) => {
            findings.extend(concerns.into_iter().map(|concern| SystemFinding::odd("event bus", concern)))
        }
        Ok(Err(error)) => findings.push(SystemFinding::wrong("event bus", error.to_string())),
        Err(_) => findings.push(SystemFinding::wrong("event bus", "it does not answer within a second")),
    }
    let set_aside = state.store.zones_set_aside().await?;
    if !set_aside.is_empty() {
        let message = format!("stored releases that can't be read are set aside: {}", set_aside.join(", "));
        findings.push(SystemFinding::odd("time zones", message));
    }
    if state.settings.public_url.is_none() {
        let message = format!(
            "server.public_url is not set: links in messages lead to {}, which may open on this machine only",
            state.settings.public_url()
        );
        findings.push(SystemFinding::odd("public_url", message));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn instance(id: u128, version: &str, seen_at: &str) -> InstanceView {
        let record = InstanceRecord {
            id: Uuid::from_u128(id),
            host: Some("one".into()),
            version: version.into(),
            started_at: at("2026-11-21T00:00:00Z"),
            seen_at: at(seen_at),
        };
        InstanceView::of(record, Some(Uuid::from_u128(1)), at("2026-11-21T00:10:00Z"))
    }

    fn system(instances: Vec<InstanceView>) -> SystemView {
        let now = at("2026-11-21T00:10:00Z");
        SystemView {
            version: "1",
            database: DatabaseView { kind: "sqlite", version: "3".into() },
            instances,
            services: Vec::new(),
            queue: QueueView::of(Depths::default(), None, now),
            mcp_servers: Vec::new(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn instance_that_misses_two_signs_is_missing_and_its_release_counts_no_more() {
        let fresh = instance(1, "1", "2026-11-21T00:07:30Z");
        assert!(fresh.answers && !fresh.missing);
        let gone = instance(2, "2", "2026-11-21T00:07:29Z");
        assert!(gone.missing && !gone.answers);
        let [found] = &findings_of(&system(vec![fresh.clone(), gone]))[..] else { panic!("one finding") };
        assert!(!found.wrong && found.message.contains("has not been seen since 2026-11-21T00:07:29"), "{found:?}");
        let other = instance(2, "2", "2026-11-21T00:09:00Z");
        let [found] = &findings_of(&system(vec![fresh, other]))[..] else { panic!("one finding") };
        assert_eq!(found.message, "several releases run: 1, 2");
    }

    #[test]
    fn late_services_and_late_fires_are_wrong() {
        let now = at("2026-11-21T00:10:00Z");
        let mut late = system(Vec::new());
        assert_eq!(findings_of(&late), []);
        late.queue = QueueView::of(Depths::default(), Some(at("2026-11-21T00:09:54Z")), now);
        let expected = ExpectedService {
            service: "scheduler",
            within: Duration::from_secs(20),
            last_success: None,
            is_late: true,
        };
        late.services = vec![ServiceView::of(expected)];
        let found = findings_of(&late);
        assert!(found.iter().all(|finding| finding.wrong), "{found:?}");
        let messages: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(messages, ["late on this instance: scheduler", "a fire that was due 6 s ago is not recorded yet"]);
    }
}
