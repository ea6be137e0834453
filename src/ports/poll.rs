//! Polls: one look at what a condition watches, through an address, a tool, a query or a key.
//!
//! A poll reads and never writes, is bounded in time and size, and keeps nothing: what it saw goes to the condition's
//! state. What the operator has not named (databases, networks) can't be reached.

mod http;
mod rate_limiter;
mod redis;
mod sql;
mod tool;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape};
use crate::base::json::length::is_longer_than;
use crate::domain::trigger::condition::{PollFault, PollResult, PollSpec, Validators};
use crate::ports::poll::rate_limiter::HostRateLimiter;
use crate::ports::poll::redis::{RedisSource, Settings as RedisSettings};
use crate::ports::poll::tool::{ToolHost, Tools};
use crate::ports::vault::credentials::{CredentialError, Credentials};

/// Largest value, in bytes of JSON: it is kept with the condition, and with the runs that it causes.
pub const VALUE_BYTES: usize = 64 * 1024;
/// Polls that one instance may be told to make at once.
const MOST_AT_ONCE: usize = 100_000;
/// Every tenant, in the list of those who may use a source.
const EVERYBODY: &str = "*";

/// `[poll]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Polls that this instance makes at the same time.
    pub max_concurrent: usize,
    /// Of those, polls of one host, source or tool, so that a slow one does not hold up the others.
    pub per_host_concurrent: usize,
    /// Polls of one host in a second, by this instance.
    pub per_host_per_second: f64,
    /// Databases that `sql` polls may name.
    pub sql: BTreeMap<String, sql::Settings>,
    /// Servers that `redis` polls may name.
    pub redis: BTreeMap<String, RedisSettings>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_concurrent: 64,
            per_host_concurrent: 8,
            per_host_per_second: 5.0,
            sql: BTreeMap::new(),
            redis: BTreeMap::new(),
        }
    }
}

/// Sources that can be polled here.
pub struct Sources {
    credentials: Credentials,
    tools: Tools,
    sql: BTreeMap<String, sql::SqlSource>,
    redis: BTreeMap<String, RedisSource>,
    limiter: HostRateLimiter,
}

/// One look.
pub struct PollRequest<'a> {
    /// On whose behalf.
    pub tenant: &'a Tenant,
    /// The task that asks; for a trial an id of its own.
    pub id: Uuid,
    /// Somebody tries it out.
    pub trial: bool,
    /// The poll to make.
    pub poll: &'a PollSpec,
    /// Of the answer that is known already.
    pub known: Option<&'a Validators>,
    /// Time limit of the poll.
    pub time_limit: Duration,
}

/// Why a poll saw nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollFailure {
    /// It failed.
    Fault(PollFault),
    /// It was not made: others are at the same host. It may be made after this time.
    Busy(Duration),
}

impl From<PollFault> for PollFailure {
    fn from(fault: PollFault) -> PollFailure {
        PollFailure::Fault(fault)
    }
}

impl Settings {
    /// Adds the numbers that make no sense, and names that no tenant can have; pointers begin with `/poll`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        for (name, number) in
            [("max_concurrent", self.max_concurrent), ("per_host_concurrent", self.per_host_concurrent)]
        {
            if !(1..=MOST_AT_ONCE).contains(&number) {
                faults.add(format!("/poll/{name}"), format!("must be from 1 to {MOST_AT_ONCE}"));
            }
        }
        if !(self.per_host_per_second > 0.0 && self.per_host_per_second <= 10_000.0) {
            faults.add("/poll/per_host_per_second", "must be more than 0, and at most 10000");
        }
        let sql = self.sql.iter().map(|(name, source)| ("sql", name, &source.tenants));
        let redis = self.redis.iter().map(|(name, source)| ("redis", name, &source.tenants));
        for (kind, name, tenants) in sql.chain(redis) {
            for (index, tenant) in tenants.iter().enumerate().filter(|(_, tenant)| *tenant != EVERYBODY) {
                if let Err(why) = Tenant::new(tenant.as_str()) {
                    faults.add(format!("/poll/{kind}/{}/tenants/{index}", escape(name)), why);
                }
            }
        }
    }
}

impl Sources {
    /// Reads the settings; pointers of faults begin with `/poll`. `{data_dir}` in an address is the data directory.
    pub fn new(
        settings: &Settings,
        credentials: &Credentials,
        tools: impl Into<tool::ToolCatalog>,
        data_dir: &Path,
    ) -> Result<Sources, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        settings.check(&mut faults);
        let (mut sql, mut redis) = (BTreeMap::new(), BTreeMap::new());
        for (name, source) in &settings.sql {
            match sql::SqlSource::new(source, data_dir) {
                Ok(source) => drop(sql.insert(name.clone(), source)),
                Err(why) => faults.add(format!("/poll/sql/{name}/url"), why),
            }
        }
        for (name, source) in &settings.redis {
            match RedisSource::new(source) {
                Ok(source) => drop(redis.insert(name.clone(), source)),
                Err(why) => faults.add(format!("/poll/redis/{name}/url"), why),
            }
        }
        let limiter = HostRateLimiter::new(settings.per_host_concurrent, settings.per_host_per_second);
        faults.into_result(Sources { credentials: credentials.clone(), tools: Tools::new(tools), sql, redis, limiter })
    }

    /// Adds what is wrong with what a tenant wants to poll, which stands at `at`.
    pub fn check(&self, tenant: &Tenant, poll: &PollSpec, at: &str, faults: &mut ValidationErrors) {
        let place = format!("{at}/{}", poll.field());
        match poll {
            PollSpec::Http(http) => {
                if let Err(error) = self.credentials.egress().check(&http.url) {
                    faults.add(format!("{place}/url"), error.to_string());
                }
            }
            PollSpec::Tool(tool) => self.tools.check(tool, &place, faults),
            PollSpec::Sql(sql) => {
                if let Err(why) = self.sql_source(tenant, &sql.source) {
                    faults.add(format!("{place}/source"), why);
                } else if let Err(why) = self.sql[&sql.source].check(&sql.query) {
                    faults.add(format!("{place}/query"), why);
                }
            }
            PollSpec::Redis(redis) => match self.redis_source(tenant, &redis.source) {
                Err(why) => faults.add(format!("{place}/source"), why),
                Ok(source) => {
                    if let Err(why) = source.check(&redis.key) {
                        faults.add(format!("{place}/key"), why);
                    }
                }
            },
        }
    }

    fn sql_source(&self, tenant: &Tenant, name: &str) -> Result<&sql::SqlSource, String> {
        visible_source(tenant, name, &self.sql, |source| &source.tenants)
    }

    fn redis_source(&self, tenant: &Tenant, name: &str) -> Result<&RedisSource, String> {
        visible_source(tenant, name, &self.redis, |source| &source.tenants)
    }
}

/// The source of this name, if the tenant may use it. One that it may not use is as one that is not there.
fn visible_source<'a, S>(
    tenant: &Tenant,
    name: &str,
    sources: &'a BTreeMap<String, S>,
    tenants: impl Fn(&S) -> &[String],
) -> Result<&'a S, String> {
    let open = |source: &S| tenants(source).iter().any(|one| one == EVERYBODY || one == tenant.as_str());
    if let Some(source) = sources.get(name).filter(|source| open(source)) {
        return Ok(source);
    }
    let known: Vec<&str> = sources.iter().filter(|(_, source)| open(source)).map(|(name, _)| name.as_str()).collect();
    let there = match known.is_empty() {
        true => "the operator has opened none to this tenant".to_owned(),
        false => format!("there are: {}", known.join(", ")),
    };
    Err(format!("there is no source `{name}`{}; {there}", did_you_mean(name, known.iter().copied())))
}

/// Makes polls. Cheap to clone.
#[derive(Clone)]
pub struct Poller {
    sources: Arc<Sources>,
    /// The host of tools.
    host: Arc<dyn ToolHost>,
    clock: Clock,
    compute: Compute,
}

impl Poller {
    /// A poller of these sources; `host` calls tools.
    pub fn new(sources: Arc<Sources>, host: Arc<dyn ToolHost>, clock: Clock, compute: Compute) -> Poller {
        Poller { sources, host, clock, compute }
    }

    /// Looks once. Safe to drop at any await.
    pub async fn poll(&self, ask: &PollRequest<'_>) -> Result<PollResult, PollFailure> {
        self.poll_from(ask, "").await
    }

    /// Looks once for somebody who tries a condition out: with a limit of the tenant's own, so that the polls of
    /// others are never sent away for it.
    pub async fn try_out(&self, ask: &PollRequest<'_>) -> Result<PollResult, PollFailure> {
        self.poll_from(ask, ask.tenant.as_str()).await
    }

    async fn poll_from(&self, ask: &PollRequest<'_>, whose: &str) -> Result<PollResult, PollFailure> {
        let _pass = self.acquire(ask, whose)?;
        let limit = ask.time_limit;
        let seen = tokio::time::timeout(limit, self.poll_source(ask)).await.unwrap_or_else(|_| Err(too_slow(limit)))?;
        if let PollResult::Value { value, .. } = &seen {
            bounded(value)?;
        }
        Ok(seen)
    }

    /// Leave to look at this host, source or tool now. It lasts as long as it is held.
    fn acquire(&self, ask: &PollRequest<'_>, whose: &str) -> Result<rate_limiter::PollPermit, PollFailure> {
        let (limiter, now, tenant) = (&self.sources.limiter, self.clock.elapsed(), ask.tenant.as_str());
        let (place, rated) = match ask.poll {
            PollSpec::Http(http) => (http::host(&http.url), true),
            // a tool that asks a host is measured like a poll of that host
            PollSpec::Tool(tool) => match tool.args.get("url").and_then(Value::as_str) {
                Some(url) => (http::host(url), true),
                None => (format!("tool:{}", tool.name), false),
            },
            // trials have a connection of their own, which all tenants share
            PollSpec::Sql(poll) => {
                let (kind, most) = if whose.is_empty() { ("", sql::POLLED) } else { ("trial", sql::TRIED) };
                let place = format!("{kind}\nsql:{}", poll.source);
                return limiter.acquire_bounded(place, tenant, (false, most), now).map_err(PollFailure::Busy);
            }
            PollSpec::Redis(redis) => (format!("redis:{}", redis.source), false),
        };
        let place = format!("{whose}\n{place}");
        limiter.acquire(place, tenant, rated, now).map_err(PollFailure::Busy)
    }

    async fn poll_source(&self, ask: &PollRequest<'_>) -> Result<PollResult, PollFault> {
        let sources = &self.sources;
        // who may use a source is asked each time: the operator may have changed it
        let refused = |why| PollFault::new("denied", why);
        let value = match ask.poll {
            PollSpec::Http(poll) => {
                return http::poll(&sources.credentials, poll, ask, self.clock.now(), &self.compute).await;
            }
            PollSpec::Tool(poll) => sources.tools.poll(poll, ask, &self.host, &self.clock, &self.compute).await?,
            PollSpec::Sql(poll) => {
                let source = sources.sql_source(ask.tenant, &poll.source).map_err(refused)?;
                source.poll(&poll.query, ask.time_limit).await?
            }
            PollSpec::Redis(poll) => {
                let source = sources.redis_source(ask.tenant, &poll.source).map_err(refused)?;
                source.poll(poll).await?
            }
        };
        Ok(PollResult::Value { value, validators: Validators::default() })
    }
}

fn of_credential(error: &CredentialError) -> PollFault {
    PollFault { credential_issue: error.owner_issue().map(Box::new), ..PollFault::new(error.code(), error.to_string()) }
}

fn too_slow(limit: Duration) -> PollFault {
    PollFault::new("timeout", format!("no complete answer within {} s", limit.as_secs_f64()))
}

fn bounded(value: &Value) -> Result<(), PollFault> {
    match is_longer_than(value, VALUE_BYTES) {
        false => Ok(()),
        true => {
            let message = format!("the value has more than {VALUE_BYTES} bytes as JSON; poll something narrower");
            Err(PollFault::new("too_large", message))
        }
    }
}

/// JSON where it is JSON, else the text.
fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_there_for_those_who_are_named() {
        let sources = BTreeMap::from([
            ("all".to_owned(), vec!["*".to_owned()]),
            ("ann's".to_owned(), vec!["ann".to_owned()]),
            ("nobody's".to_owned(), vec![]),
        ]);
        let opened = |tenant: &str, name: &str| {
            visible_source(&Tenant::new(tenant).unwrap(), name, &sources, |tenants| tenants).map(drop)
        };
        assert_eq!(opened("ann", "ann's"), Ok(()));
        assert_eq!(opened("bob", "all"), Ok(()));
        assert_eq!(opened("bob", "ann's"), Err("there is no source `ann's`; there are: all".into()));
        assert!(opened("ann", "nobody's").is_err());
    }

    #[test]
    fn name_that_no_tenant_can_have_is_refused_with_its_place() {
        let settings = |tenants: Value| {
            serde_json::from_value::<Settings>(serde_json::json!({
                "sql": { "a/b": { "url": "sqlite:///shop.db", "tenants": tenants } },
                "redis": { "prices": { "url": "redis://localhost", "tenants": tenants } },
            }))
            .unwrap()
        };
        let told = |tenants: Value| {
            let mut faults = ValidationErrors::new();
            settings(tenants).check(&mut faults);
            faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect::<Vec<_>>()
        };
        assert_eq!(told(serde_json::json!(["*", "ann"])), [""; 0]);
        assert_eq!(
            told(serde_json::json!(["ann", "ann "])),
            [
                "/poll/sql/a~1b/tenants/1: must not begin or end with a space",
                "/poll/redis/prices/tenants/1: must not begin or end with a space",
            ]
        );
    }

    #[test]
    fn value_that_is_too_large_to_keep_is_a_failing_poll() {
        assert_eq!(bounded(&Value::String("x".repeat(VALUE_BYTES - 2))), Ok(()));
        assert_eq!(bounded(&Value::String("x".repeat(VALUE_BYTES - 1))).unwrap_err().kind, "too_large");
    }
}
