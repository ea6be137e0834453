//! Forgetting: entries that every group has handled and that are older than the retention, and consumers that are gone.
//!
//! An entry stays as long as it is pending or unread in any group. A stream without a group is not trimmed.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use redis::{Value, cmd, from_redis_value};

use crate::base::id::Scope;
use crate::ports::bus::redis::log;
use crate::ports::bus::redis::servers::RedisLink;
use crate::ports::bus::redis::streams::{StreamId, StreamNames};
use crate::ports::bus::{BusBacklog, BusError};

/// Entries that are removed by one command.
const BATCH: u64 = 10_000;
/// A consumer that has not asked for this long and holds nothing is removed.
const GONE_AFTER: TimeDelta = TimeDelta::days(2);

/// A group of a stream, as XINFO GROUPS tells it.
struct Group {
    name: String,
    pending: u64,
    last_delivered: StreamId,
    /// Entries that it was not given yet, where Redis knows the number.
    lag: Option<u64>,
}

pub(super) async fn trim(
    link: &RedisLink,
    names: &StreamNames,
    group: &str,
    before: DateTime<Utc>,
) -> Result<u64, BusError> {
    let streams = log::streams(link, names, &Scope::Every).await?;
    let oldest_kept = StreamId(before.timestamp_millis().max(0) as u64, 0);
    let (mut removed, mut old_ones_read) = (0, true);
    for partition in &streams {
        let stream = names.stream(*partition);
        let groups = groups(link, &stream).await?;
        if let Some(handled) = handled(link, &stream, &groups).await? {
            removed += remove(link, &stream, handled.min(oldest_kept)).await?;
        }
        let ours = groups.iter().find(|known| known.name == group);
        if ours.is_some() {
            forget_consumers(link, &stream, group).await?;
        }
        let is_read = ours.is_none_or(|group| group.pending == 0 && group.lag == Some(0));
        old_ones_read &= *partition < names.partitions || is_read;
    }
    if old_ones_read && streams.len() > names.partitions as usize {
        let () = link.ask(cmd("SET").arg(names.max_count()).arg(names.partitions)).await?;
    }
    Ok(removed)
}

/// The backlog of all streams for the group.
pub(super) async fn backlog(link: &RedisLink, names: &StreamNames, group: &str) -> Result<BusBacklog, BusError> {
    let mut backlog = BusBacklog::default();
    for partition in log::streams(link, names, &Scope::Every).await? {
        let groups = groups(link, &names.stream(partition)).await?;
        if let Some(ours) = groups.iter().find(|known| known.name == group) {
            backlog.pending += ours.pending;
            backlog.unread += ours.lag.unwrap_or(0);
        }
    }
    Ok(backlog)
}

/// Up to where every group is done, exclusively; `None` where there is no group.
async fn handled(link: &RedisLink, stream: &str, groups: &[Group]) -> Result<Option<StreamId>, BusError> {
    let mut least: Option<StreamId> = None;
    for group in groups {
        let done = match group.pending {
            0 => group.last_delivered.next(),
            _ => {
                let summary: (u64, Option<String>, Option<String>, Value) =
                    link.ask(cmd("XPENDING").arg(stream).arg(&group.name)).await?;
                match summary.1 {
                    Some(oldest) => StreamId::from_redis(&oldest)?,
                    None => group.last_delivered.next(),
                }
            }
        };
        least = Some(least.map_or(done, |least| least.min(done)));
    }
    Ok(least)
}

/// Removes in parts, so that Redis is not held up; the last part is exact.
async fn remove(link: &RedisLink, stream: &str, before: StreamId) -> Result<u64, BusError> {
    let mut removed = 0;
    loop {
        let mut trim = cmd("XTRIM");
        trim.arg(stream).arg("MINID").arg("~").arg(before.to_string()).arg("LIMIT").arg(BATCH);
        let some: u64 = link.ask(&trim).await?;
        removed += some;
        if some == 0 {
            break;
        }
    }
    let rest: u64 = link.ask(cmd("XTRIM").arg(stream).arg("MINID").arg("=").arg(before.to_string())).await?;
    Ok(removed + rest)
}

async fn forget_consumers(link: &RedisLink, stream: &str, group: &str) -> Result<(), BusError> {
    let consumers: Vec<HashMap<String, Value>> = link.ask(cmd("XINFO").arg("CONSUMERS").arg(stream).arg(group)).await?;
    for consumer in consumers {
        let gone = number(&consumer, "idle").is_some_and(|idle| idle > GONE_AFTER.num_milliseconds() as u64);
        if gone && number(&consumer, "pending") == Some(0) {
            let name: String = text(&consumer, "name")?;
            let _: u64 = link.ask(cmd("XGROUP").arg("DELCONSUMER").arg(stream).arg(group).arg(name)).await?;
        }
    }
    Ok(())
}

async fn groups(link: &RedisLink, stream: &str) -> Result<Vec<Group>, BusError> {
    let answer: Result<Vec<HashMap<String, Value>>, redis::RedisError> =
        link.ask(cmd("XINFO").arg("GROUPS").arg(stream)).await;
    let known = match answer {
        Ok(known) => known,
        // no such stream: nobody has published or read there
        Err(error) if error.code() == Some("ERR") => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let group = |facts: &HashMap<String, Value>| {
        Ok(Group {
            name: text(facts, "name")?,
            pending: number(facts, "pending").unwrap_or(0),
            last_delivered: StreamId::from_redis(&text(facts, "last-delivered-id")?)?,
            lag: number(facts, "lag"),
        })
    };
    known.iter().map(group).collect()
}

fn number(facts: &HashMap<String, Value>, name: &str) -> Option<u64> {
    from_redis_value::<Option<u64>>(facts.get(name)?.clone()).ok()?
}

fn text(facts: &HashMap<String, Value>, name: &str) -> Result<String, BusError> {
    let read = facts.get(name).and_then(|value| from_redis_value(value.clone()).ok());
    read.ok_or_else(|| BusError::Corrupt { why: format!("XINFO tells no `{name}`") })
}
