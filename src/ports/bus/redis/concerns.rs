//! Faults in the setup of a Redis, for the operator.

use std::collections::HashMap;

use redis::{RedisError, Value, cmd, from_redis_value};

use crate::ports::bus::BusError;
use crate::ports::bus::redis::servers::RedisLink;

/// The oldest whose XCLAIM forgets deleted entries, and that tells the lag of a group.
const OLDEST: u32 = 7;

pub(super) async fn find(link: &RedisLink) -> Result<Vec<String>, BusError> {
    let info = texts(link.ask(&cmd("INFO")).await?);
    let mut found = Vec::new();
    for line in info.iter().flat_map(|text| text.lines()) {
        match line.split_once(':') {
            Some(("redis_version", version)) if major(version) < OLDEST => found.push(format!(
                "Redis {version} is too old: use Redis {OLDEST} or later, or entries of dead instances may not be taken over"
            )),
            Some(("role", "slave")) if !link.servers.is_cluster() => {
                found.push("this Redis is a replica: give bus.url the address of its master, or of the sentinels".into());
            }
            Some(("aof_enabled", "0")) => found.push(
                "Redis has no append-only file: a crash loses events that were accepted (set `appendonly yes`)".into(),
            ),
            _ => {}
        }
    }
    match link.ask::<Value>(cmd("CONFIG").arg("GET").arg("maxmemory-policy")).await {
        Ok(policy) if policies(policy.clone()).iter().any(|policy| policy != "noeviction") => found.push(format!(
            "Redis may evict streams when its memory is full: set `maxmemory-policy noeviction` (it is {})",
            policies(policy).join(", ")
        )),
        Ok(_) => {}
        Err(error) if is_forbidden(&error) => {
            found.push(
                "Redis does not tell its `maxmemory-policy` (CONFIG is forbidden): make sure that it is `noeviction`"
                    .into(),
            );
        }
        Err(error) => return Err(error.into()),
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn is_forbidden(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOPERM" | "ERR"))
}

fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}

/// The texts of an answer: one from one server, one for each from a cluster.
fn texts(value: Value) -> Vec<String> {
    match from_redis_value::<HashMap<String, String>>(value.clone()) {
        Ok(by_node) if !matches!(value, Value::BulkString(_) | Value::SimpleString(_)) => {
            by_node.into_values().collect()
        }
        _ => from_redis_value::<String>(value).into_iter().collect(),
    }
}

/// The values of `CONFIG GET`, of one server or by node.
fn policies(value: Value) -> Vec<String> {
    match from_redis_value::<HashMap<String, String>>(value.clone()) {
        Ok(settings) => settings.into_values().collect(),
        Err(_) => from_redis_value::<HashMap<String, HashMap<String, String>>>(value)
            .map(|by_node| by_node.into_values().flat_map(HashMap::into_values).collect())
            .unwrap_or_default(),
    }
}
