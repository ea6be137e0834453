//! The stream of dead letters: `<prefix>:dead`, with the fields `entry`, `event`, `error`, `deliveries`, `tenant`.

use chrono::DateTime;
use redis::{Cmd, cmd, pipe};

use crate::base::compute::ADMIN;
use crate::base::id::Scope;
use crate::ports::bus::redis::event_head::wanted_event;
use crate::ports::bus::redis::look::{LookBudget, LookStep};
use crate::ports::bus::redis::servers::RedisLink;
use crate::ports::bus::redis::streams::{
    FIELD, RawEntry, StreamFields, StreamId, StreamNames, entry_bytes, event_of, read_entry_name, text_of,
};
use crate::ports::bus::{
    BusDeadLetter, BusEntry, BusError, DeadLetterFilter, DeadLetterPage, UnreadableEntry, fits, write_entry,
};

/// Letters that one look goes through, those of others among them, and their bytes.
const LETTERS: usize = 10_000;
const LETTER_BYTES: usize = 64 * 1_024 * 1_024;

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
        Ok(event) => (event.text().to_owned(), event.tenant.as_str()),
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

/// Looks at letters, newest first, until there are as many as are asked for, or the look is at its end.
pub(super) async fn list(
    link: &RedisLink,
    names: &StreamNames,
    scope: &Scope,
    filter: &DeadLetterFilter,
) -> Result<DeadLetterPage, BusError> {
    let mut seen = filter.before.as_deref().map(position).transpose()?;
    let (seen_by, wanted, name) = (scope.clone(), filter.clone(), scope.tenant().unwrap_or(ADMIN));
    let read = move |raw: RawEntry| is_wanted(&raw, &seen_by, &wanted).then(|| letter(raw));
    // one more tells whether there is more
    let mut step = LookStep::first(filter.limit.saturating_add(1), 1);
    let mut budget = LookBudget::new(LETTERS, LETTER_BYTES);
    let mut letters = Vec::new();
    loop {
        let is_full = letters.len() >= filter.limit || budget.is_spent();
        let count = if is_full { 1 } else { step.count().min(budget.entries()) };
        let raws = older(link, names, seen, count).await?;
        let is_last = raws.len() < count;
        step = step.after(&raws);
        for raw in raws {
            if letters.len() >= filter.limit || budget.is_spent() {
                return Ok(DeadLetterPage { letters, next: seen.map(|last| last.to_string()) });
            }
            budget.take(entry_bytes(&raw));
            seen = Some(StreamId::from_redis(&raw.0)?);
            letters.extend(link.reader.read_one(name, raw, entry_bytes, read.clone()).await?);
        }
        if is_last {
            return Ok(DeadLetterPage { letters, next: None });
        }
    }
}

/// The position behind a letter.
fn position(text: &str) -> Result<StreamId, BusError> {
    StreamId::parse(text).ok_or_else(|| BusError::Invalid { why: "this is no position that this bus gave".into() })
}

/// So many letters behind a position, or of all: the newest first.
async fn older(
    link: &RedisLink,
    names: &StreamNames,
    seen: Option<StreamId>,
    count: usize,
) -> Result<Vec<RawEntry>, BusError> {
    let from = seen.map_or("+".to_owned(), |last| format!("({last}"));
    Ok(link.ask(cmd("XREVRANGE").arg(names.dead()).arg(from).arg("-").arg("COUNT").arg(count)).await?)
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
    let found = raw(link, names, scope, id).await?;
    let read = |(id, fields): RawEntry| (id, event_of(&fields));
    let name = scope.tenant().unwrap_or(ADMIN);
    let (id, event) = link.reader.read_one(name, found, entry_bytes, read).await?;
    let event =
        event.map_err(|unreadable| BusError::Invalid { why: format!("it can't be replayed: {}", unreadable.why) })?;
    let stream = names.stream(names.of_tenant(event.tenant.as_str()));
    let _: String = link.ask(cmd("XADD").arg(stream).arg("*").arg(FIELD).arg(write_entry(&event))).await?;
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
    let error = |part: &str| text_of(fields, "error").to_lowercase().contains(&part.to_lowercase());
    is_visible(&text_of(fields, "tenant"), scope)
        && filter.error.as_deref().is_none_or(error)
        && (filter.source.is_none() && filter.kind.is_none() || has_wanted_event(fields, filter))
}

fn has_wanted_event(fields: &StreamFields, filter: &DeadLetterFilter) -> bool {
    let event = wanted_event(fields, |head| {
        filter.source.as_deref().is_none_or(|source| head.source == source)
            && filter.kind.as_deref().is_none_or(|kind| fits(kind, &head.kind))
    });
    event.is_some()
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
