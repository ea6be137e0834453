//! The stream of dead letters: `<prefix>:dead`, with the fields `entry`, `event`, `error`, `deliveries`, `tenant`.

use chrono::DateTime;
use redis::{Cmd, cmd, pipe};

use crate::base::id::Scope;
use crate::ports::bus::redis::servers::RedisLink;
use crate::ports::bus::redis::streams::{FIELD, RawEntry, StreamId, StreamNames, event_of, read_entry_name, text_of};
use crate::ports::bus::{BusDeadLetter, BusEntry, BusError, DeadLetterFilter, UnreadableEntry, fits};

/// Letters that are read at once, and that are looked at by one call.
const PAGE: usize = 100;
const MOST_LOOKED_AT: usize = 10_000;

/// Puts an entry among the dead letters and acknowledges it: at once where one server has both streams.
pub(super) async fn dead_letter_entry(
    link: &RedisLink,
    names: &StreamNames,
    group: &str,
    entry: &BusEntry,
    error: &str,
) -> Result<(), BusError> {
    let (partition, id) = read_entry_name(&entry.id)?;
    let (body, tenant) = match &entry.event {
        Ok(event) => (event.to_value().to_string(), event.tenant.as_str()),
        Err(unreadable) => (unreadable.text.clone(), ""),
    };
    let add = letter_of(names, &entry.id, &body, error, entry.deliveries, tenant);
    let mut acknowledge = cmd("XACK");
    acknowledge.arg(names.stream(partition)).arg(group).arg(id.to_string());
    if link.servers.is_cluster() {
        let _: String = link.ask(&add).await?;
        let _: u64 = link.ask(&acknowledge).await?;
    } else {
        let _: (String, u64) = link.ask_all(pipe().atomic().add_command(add).add_command(acknowledge)).await?;
    }
    Ok(())
}

/// Puts what never was an entry among the dead letters. Asked again after an answer was lost, it is there twice.
pub(super) async fn dead_letter_kept(
    link: &RedisLink,
    names: &StreamNames,
    seq: i64,
    unreadable: &UnreadableEntry,
) -> Result<(), BusError> {
    let add = letter_of(names, &format!("outbox:{seq}"), &unreadable.text, &unreadable.why, 0, "");
    let _: String = link.ask(&add).await?;
    Ok(())
}

fn letter_of(names: &StreamNames, entry: &str, body: &str, error: &str, deliveries: u32, tenant: &str) -> Cmd {
    let mut add = cmd("XADD");
    add.arg(names.dead()).arg("*");
    let deliveries = deliveries.to_string();
    for (name, value) in
        [("entry", entry), (FIELD, body), ("error", error), ("deliveries", &deliveries), ("tenant", tenant)]
    {
        add.arg(name).arg(value);
    }
    add
}

/// Newest first.
pub(super) async fn list(
    link: &RedisLink,
    names: &StreamNames,
    scope: &Scope,
    filter: &DeadLetterFilter,
) -> Result<Vec<BusDeadLetter>, BusError> {
    let mut before = match filter.before.as_deref() {
        None => "+".to_owned(),
        Some(id) => match StreamId::parse(id) {
            Some(id) => format!("({id}"),
            None => return Err(BusError::Invalid { why: "this is no dead letter of this bus".into() }),
        },
    };
    let (mut found, mut looked_at) = (Vec::new(), 0);
    loop {
        let raws: Vec<RawEntry> =
            link.ask(cmd("XREVRANGE").arg(names.dead()).arg(&before).arg("-").arg("COUNT").arg(PAGE)).await?;
        looked_at += raws.len();
        let last = raws.len() < PAGE || looked_at >= MOST_LOOKED_AT;
        if let Some((id, _)) = raws.last() {
            before = format!("({id}");
        }
        found.extend(raws.into_iter().filter(|raw| is_wanted(raw, scope, filter)).map(letter));
        if last || found.len() >= filter.limit {
            found.truncate(filter.limit);
            return Ok(found);
        }
    }
}

pub(super) async fn get(
    link: &RedisLink,
    names: &StreamNames,
    scope: &Scope,
    id: &str,
) -> Result<BusDeadLetter, BusError> {
    Ok(letter(raw(link, names, scope, id).await?))
}

/// Adds it to its tenant's stream once more, and removes the letter after it: a crash in between doubles it, which its
/// identity makes harmless.
pub(super) async fn replay(link: &RedisLink, names: &StreamNames, scope: &Scope, id: &str) -> Result<(), BusError> {
    let (id, fields) = raw(link, names, scope, id).await?;
    let event = event_of(&fields)
        .map_err(|unreadable| BusError::Invalid { why: format!("it can't be replayed: {}", unreadable.why) })?;
    let stream = names.stream(names.of_tenant(event.tenant.as_str()));
    let _: String = link.ask(cmd("XADD").arg(stream).arg("*").arg(FIELD).arg(event.to_value().to_string())).await?;
    let _: u64 = link.ask(cmd("XDEL").arg(names.dead()).arg(id)).await?;
    Ok(())
}

pub(super) async fn remove(link: &RedisLink, names: &StreamNames, scope: &Scope, id: &str) -> Result<(), BusError> {
    let (id, _) = raw(link, names, scope, id).await?;
    let removed: u64 = link.ask(cmd("XDEL").arg(names.dead()).arg(id)).await?;
    if removed == 0 { Err(BusError::NotFound) } else { Ok(()) }
}

async fn raw(link: &RedisLink, names: &StreamNames, scope: &Scope, id: &str) -> Result<RawEntry, BusError> {
    let id = StreamId::parse(id).ok_or(BusError::NotFound)?.to_string();
    let raws: Vec<RawEntry> = link.ask(cmd("XRANGE").arg(names.dead()).arg(&id).arg(&id)).await?;
    raws.into_iter()
        .next()
        .filter(|(_, fields)| is_visible(&text_of(fields, "tenant"), scope))
        .ok_or(BusError::NotFound)
}

fn is_visible(tenant: &str, scope: &Scope) -> bool {
    scope.tenant().is_none_or(|own| own == tenant)
}

fn is_wanted((_, fields): &RawEntry, scope: &Scope, filter: &DeadLetterFilter) -> bool {
    let event = event_of(fields).ok();
    let error = |part: &str| text_of(fields, "error").to_lowercase().contains(&part.to_lowercase());
    is_visible(&text_of(fields, "tenant"), scope)
        && filter.error.as_deref().is_none_or(error)
        && filter.source.as_deref().is_none_or(|source| event.as_ref().is_some_and(|event| event.source == source))
        && filter.kind.as_deref().is_none_or(|kind| event.as_ref().is_some_and(|event| fits(kind, &event.kind)))
}

fn letter((id, fields): RawEntry) -> BusDeadLetter {
    let millis = StreamId::parse(&id).map_or(0, |id| id.0).try_into().unwrap_or(0);
    BusDeadLetter {
        id,
        tenant: Some(text_of(&fields, "tenant")).filter(|tenant| !tenant.is_empty()),
        body: text_of(&fields, FIELD),
        error: text_of(&fields, "error"),
        deliveries: text_of(&fields, "deliveries").parse().unwrap_or(0),
        dead_lettered_at: DateTime::from_timestamp_millis(millis).unwrap_or_default(),
    }
}
