//! The log: all streams that a scope concerns, merged in the order of their ids.
//!
//! A position names the last entry that was looked at in each stream, so that nothing is missed between streams. A
//! tenant's log is its own stream only; events that were published under another number of partitions are not in it.

use std::collections::BTreeMap;
use std::fmt::Write;

use redis::cmd;

use crate::base::id::{Scope, Tenant};
use crate::domain::event::Event;
use crate::ports::bus::redis::servers::RedisLink;
use crate::ports::bus::redis::streams::{RawEntry, StreamId, StreamNames, event_of};
use crate::ports::bus::{BusError, Log, LogFilter, LoggedEvent, fits};

/// Entries of a stream that are read at once, and that are looked at by one call.
const PAGE: usize = 200;
const MOST_LOOKED_AT: usize = 5_000;

/// The last entry that was looked at, by partition: `7.1712345678901.0_8.1712345678902.0`; nowhere: `0`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Position(BTreeMap<u32, StreamId>);

impl Position {
    fn parse(text: &str) -> Result<Position, BusError> {
        if text == "0" {
            return Ok(Position::default());
        }
        let one = |part: &str| {
            let mut numbers = part.splitn(3, '.').map(|number| number.parse::<u64>().ok());
            let (partition, millis, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some((u32::try_from(partition).ok()?, StreamId(millis, count)))
        };
        let parts: Option<BTreeMap<u32, StreamId>> = text.split('_').map(one).collect();
        parts.map(Position).ok_or_else(|| BusError::Invalid { why: "this is no position that this bus gave".into() })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (partition, StreamId(millis, count)) in &self.0 {
            let gap = if text.is_empty() { "" } else { "_" };
            let _ = write!(text, "{gap}{partition}.{millis}.{count}");
        }
        if text.is_empty() { "0".into() } else { text }
    }
}

/// The newest event of a tenant with this id, among the newest entries of its stream.
pub(super) async fn find(
    link: &RedisLink,
    names: &StreamNames,
    tenant: &Tenant,
    source: Option<&str>,
    id: &str,
) -> Result<Option<Event>, BusError> {
    let mut found = None;
    each_newest(link, names, tenant, source, |event| {
        found = (event.id == id).then_some(event);
        found.is_some()
    })
    .await?;
    Ok(found)
}

/// Ids that begin so, two at most, among the newest entries of a tenant's stream.
pub(super) async fn ids(
    link: &RedisLink,
    names: &StreamNames,
    tenant: &Tenant,
    source: Option<&str>,
    beginning: &str,
) -> Result<Vec<String>, BusError> {
    let mut found: Vec<String> = Vec::new();
    each_newest(link, names, tenant, source, |event| {
        if event.id.starts_with(beginning) && !found.contains(&event.id) {
            found.push(event.id);
        }
        found.len() == 2
    })
    .await?;
    Ok(found)
}

/// Looks at a tenant's newest events, of a source or of any, until `enough` says so.
async fn each_newest(
    link: &RedisLink,
    names: &StreamNames,
    tenant: &Tenant,
    source: Option<&str>,
    mut enough: impl FnMut(Event) -> bool,
) -> Result<(), BusError> {
    let stream = names.stream(names.of_tenant(tenant.as_str()));
    let mut before = "+".to_owned();
    for _ in 0..MOST_LOOKED_AT / PAGE {
        let page: Vec<RawEntry> =
            link.ask(cmd("XREVRANGE").arg(&stream).arg(&before).arg("-").arg("COUNT").arg(PAGE)).await?;
        let events = page.iter().filter_map(|(_, fields)| event_of(fields).ok());
        let mut of_these =
            events.filter(|event| event.tenant == *tenant && source.is_none_or(|source| event.source == source));
        if of_these.any(&mut enough) || page.len() < PAGE {
            break;
        }
        before = page.last().map(|(last, _)| format!("({last}")).unwrap_or_default();
    }
    Ok(())
}

pub(super) async fn read(
    link: &RedisLink,
    names: &StreamNames,
    scope: &Scope,
    filter: &LogFilter,
) -> Result<Log, BusError> {
    let mut position = filter.after.as_deref().map_or(Ok(Position::default()), Position::parse)?;
    let streams = streams(link, names, scope).await?;
    let (mut events, mut looked_at) = (Vec::new(), 0);
    loop {
        let (merged, mut more) = page(link, names, &streams, &position).await?;
        let last = merged.is_empty();
        for (id, partition, event) in merged {
            if events.len() == filter.limit || looked_at == MOST_LOOKED_AT {
                more = true;
                break;
            }
            looked_at += 1;
            position.0.insert(partition, id);
            if let Some(event) = event.filter(|event| is_wanted(event, scope, filter)) {
                events.push(LoggedEvent { position: position.text(), event });
            }
        }
        if last || !more || events.len() == filter.limit || looked_at == MOST_LOOKED_AT {
            return Ok(Log { events, position: position.text(), more });
        }
    }
}

/// The position behind the newest entries.
pub(super) async fn end(link: &RedisLink, names: &StreamNames, scope: &Scope) -> Result<String, BusError> {
    let mut position = Position::default();
    for partition in streams(link, names, scope).await? {
        let last: Vec<RawEntry> =
            link.ask(cmd("XREVRANGE").arg(names.stream(partition)).arg("+").arg("-").arg("COUNT").arg(1)).await?;
        if let Some((id, _)) = last.first() {
            position.0.insert(partition, StreamId::from_redis(id)?);
        }
    }
    Ok(position.text())
}

/// The streams that there are, as far as a scope may see them.
pub(super) async fn streams(link: &RedisLink, names: &StreamNames, scope: &Scope) -> Result<Vec<u32>, BusError> {
    if let Some(tenant) = scope.tenant() {
        return Ok(vec![names.of_tenant(tenant)]);
    }
    let most: Option<u32> = link.ask(cmd("GET").arg(names.max_count())).await?;
    Ok((0..most.unwrap_or(0).max(names.partitions)).collect())
}

type ReadEntry = (StreamId, u32, Option<Event>);

/// The next entries of all streams in the order of their ids, and whether there may be more.
async fn page(
    link: &RedisLink,
    names: &StreamNames,
    streams: &[u32],
    position: &Position,
) -> Result<(Vec<ReadEntry>, bool), BusError> {
    let mut merged = Vec::new();
    // beyond the last entry of a stream that was cut, others must wait for it
    let mut bound: Option<StreamId> = None;
    for partition in streams {
        let from = position.0.get(partition).map_or("-".to_owned(), |id| format!("({id}"));
        let raws: Vec<RawEntry> =
            link.ask(cmd("XRANGE").arg(names.stream(*partition)).arg(from).arg("+").arg("COUNT").arg(PAGE)).await?;
        let cut = raws.len() == PAGE;
        for (id, fields) in raws {
            merged.push((StreamId::from_redis(&id)?, *partition, event_of(&fields).ok()));
        }
        if let Some((id, ..)) = merged.last().filter(|_| cut) {
            bound = Some(bound.map_or(*id, |bound| bound.min(*id)));
        }
    }
    merged.retain(|(id, ..)| bound.is_none_or(|bound| *id <= bound));
    merged.sort_by_key(|(id, partition, _)| (*id, *partition));
    Ok((merged, bound.is_some()))
}

fn is_wanted(event: &Event, scope: &Scope, filter: &LogFilter) -> bool {
    scope.tenant().is_none_or(|tenant| event.tenant.as_str() == tenant)
        && filter.source.as_deref().is_none_or(|source| event.source == source)
        && filter.kind.as_deref().is_none_or(|kind| fits(kind, &event.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_reads_back_and_others_are_refused() {
        for text in ["0", "7.1712345678901.0", "0.1.2_15.3.4"] {
            assert_eq!(Position::parse(text).unwrap().text(), text);
        }
        for text in ["", "7", "7.1", "7.1.x", "7.1.2_", "-1.1.1"] {
            assert!(matches!(Position::parse(text), Err(BusError::Invalid { .. })), "{text}");
        }
    }
}
