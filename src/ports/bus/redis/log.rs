//! The log: all streams that a scope concerns, merged in the order of their ids, or against it.
//!
//! A position names the last entry that was looked at in each stream, so that nothing is missed between streams. A
//! tenant's log is its own stream only; events that were published under another number of partitions are not in it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use chrono::{DateTime, Utc};
use redis::cmd;

use crate::base::compute::ADMIN;
use crate::base::id::{Scope, Tenant};
use crate::domain::event::Event;
use crate::ports::bus::redis::event_head::{EventHead, wanted_event};
use crate::ports::bus::redis::look::{LOOKED_AT, LOOKED_AT_BYTES, LookBudget, LookStep};
use crate::ports::bus::redis::servers::RedisLink;
use crate::ports::bus::redis::streams::{RawEntry, StreamId, StreamNames, entry_bytes};
use crate::ports::bus::{BusError, Log, LogFilter, LogOrder, LoggedEvent, NewestFilter, fits};

/// Bytes of entries after which a page of the log ends.
const PAGE_BYTES: usize = 2 * 1_024 * 1_024;
/// Entries of the first step where one of the newest is looked for.
const FEW: usize = 8;

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
    let (source, id) = (source.map(str::to_owned), id.to_owned());
    let mut found = None;
    each_newest(
        link,
        names,
        (tenant, LOOKED_AT),
        move |head| is_of(source.as_deref(), head) && head.id == id,
        |event| {
            found = Some(event);
            true
        },
    )
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
    let (source, beginning) = (source.map(str::to_owned), beginning.to_owned());
    let mut found: Vec<String> = Vec::new();
    each_newest(
        link,
        names,
        (tenant, LOOKED_AT),
        move |head| is_of(source.as_deref(), head) && head.id.starts_with(beginning.as_str()),
        |event| {
            if !found.contains(&event.id) {
                found.push(event.id);
            }
            found.len() == 2
        },
    )
    .await?;
    Ok(found)
}

/// The newest events of a tenant that a filter names, newest first.
pub(super) async fn newest(
    link: &RedisLink,
    names: &StreamNames,
    tenant: &Tenant,
    filter: &NewestFilter,
) -> Result<Vec<Event>, BusError> {
    let (source, kind) = (filter.source.clone(), filter.kind.clone());
    let mut found: Vec<Event> = Vec::new();
    each_newest(
        link,
        names,
        (tenant, filter.among),
        move |head| {
            source.as_deref().is_none_or(|source| fits(source, &head.source))
                && kind.as_deref().is_none_or(|kind| fits(kind, &head.kind))
        },
        |event| {
            found.push(event);
            found.len() >= filter.limit
        },
    )
    .await?;
    Ok(found)
}

/// Looks at a tenant's newest events that are `wanted` until `enough` says so, among so many entries of its stream.
/// Their bytes are no bound: long events of others hide none. Entries are fetched step by step, and one event is read
/// at once.
async fn each_newest(
    link: &RedisLink,
    names: &StreamNames,
    (tenant, among): (&Tenant, usize),
    wanted: impl Fn(&EventHead<'_>) -> bool + Clone + Send + 'static,
    mut enough: impl FnMut(Event) -> bool,
) -> Result<(), BusError> {
    let (stream, own) = (names.stream(names.of_tenant(tenant.as_str())), tenant.as_str().to_owned());
    let read = move |(_, fields): RawEntry| wanted_event(&fields, |head| head.tenant == own && wanted(head));
    let (mut before, mut step, mut left) = ("+".to_owned(), LookStep::first(FEW, 1), among);
    while left > 0 {
        let count = step.count().min(left);
        let entries: Vec<RawEntry> =
            link.ask(cmd("XREVRANGE").arg(&stream).arg(&before).arg("-").arg("COUNT").arg(count)).await?;
        let is_last = entries.len() < count;
        before = entries.last().map(|(last, _)| format!("({last}")).unwrap_or_default();
        step = step.after(&entries);
        left = left.saturating_sub(entries.len());
        for entry in entries {
            let event = link.reader.read_one(tenant.as_str(), entry, entry_bytes, read.clone()).await?;
            if event.is_some_and(&mut enough) {
                return Ok(());
            }
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

fn is_of(source: Option<&str>, head: &EventHead<'_>) -> bool {
    source.is_none_or(|source| head.source == source)
}

pub(super) async fn read(
    link: &RedisLink,
    names: &StreamNames,
    scope: &Scope,
    filter: &LogFilter,
) -> Result<Log, BusError> {
    let mut position = filter.after.as_deref().map_or(Ok(Position::default()), Position::parse)?;
    // one more tells whether there is more
    let (order, wanted) = (filter.order, filter.limit.saturating_add(1));
    let mut streams = unmerged(&streams(link, names, scope).await?, &position, &LogSpan::of(filter), wanted);
    let (seen_by, asked) = (scope.clone(), filter.clone());
    let read = move |(_, fields): RawEntry| wanted_event(&fields, |head| is_wanted(head, &seen_by, &asked));
    let name = scope.tenant().unwrap_or(ADMIN);
    let (mut events, mut bytes, mut budget) = (Vec::new(), 0, LookBudget::new(LOOKED_AT, LOOKED_AT_BYTES));
    loop {
        let is_full = events.len() >= filter.limit || bytes >= PAGE_BYTES || budget.is_spent();
        let more = match is_full {
            true => any_more(link, names, &mut streams).await?,
            false => fill_all(link, names, &mut streams).await?,
        };
        let next = if is_full { None } else { take_next(&mut streams, order) };
        let Some((partition, id, entry)) = next else {
            return Ok(Log { events, position: position.text(), more });
        };
        let length = entry_bytes(&entry);
        budget.take(length);
        position.0.insert(partition, id);
        if let Some(event) = link.reader.read_one(name, entry, entry_bytes, read.clone()).await? {
            bytes += length;
            events.push(LoggedEvent { position: position.text(), event, bytes: length });
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

/// How streams are read and merged in an order.
impl LogOrder {
    /// The command that reads a stream in this order.
    fn command(self) -> &'static str {
        match self {
            LogOrder::Oldest => "XRANGE",
            LogOrder::Newest => "XREVRANGE",
        }
    }
}

/// The part of each stream that a log has. Ids of entries are the milliseconds at which the server took them.
struct LogSpan {
    order: LogOrder,
    /// The least id, or `-`.
    oldest: String,
    /// The id before which it ends (see [`before`]), or `+`.
    newest: String,
}

impl LogSpan {
    fn of(filter: &LogFilter) -> LogSpan {
        let id = |at: DateTime<Utc>| StreamId(at.timestamp_millis().max(0).unsigned_abs(), 0);
        LogSpan {
            order: filter.order,
            oldest: filter.since.map_or("-".to_owned(), |at| id(at).to_string()),
            newest: filter.until.map_or("+".to_owned(), |at| before(id(at))),
        }
    }

    /// Where the stream of a partition is read on behind a position. Of one that the position does not name nothing was
    /// taken: newest first, its entries are none that came after those that were.
    fn start(&self, position: &Position, partition: u32) -> String {
        match (position.0.get(&partition), self.order) {
            (Some(id), LogOrder::Oldest) => format!("({id}"),
            (Some(id), LogOrder::Newest) => before(*id),
            (None, LogOrder::Oldest) => self.oldest.clone(),
            (None, LogOrder::Newest) => position.0.values().min().map_or(self.newest.clone(), StreamId::to_string),
        }
    }

    /// Where each stream ends in its order.
    fn end(&self) -> String {
        match self.order {
            LogOrder::Oldest => self.newest.clone(),
            LogOrder::Newest => self.oldest.clone(),
        }
    }
}

/// The end of a range whose entries come before this one. No id is less than the least, which servers refuse to step
/// back from; no entry has it.
fn before(id: StreamId) -> String {
    match id {
        StreamId(0, 0) => id.to_string(),
        id => format!("({id}"),
    }
}

/// A stream whose entries are merged with those of others.
struct UnmergedStream {
    partition: u32,
    order: LogOrder,
    /// Where it is read on: an end of the stream, an entry, or `(` and the last entry that was read.
    from: String,
    /// Where it ends.
    end: String,
    step: LookStep,
    /// Entries that were read and not taken yet.
    entries: VecDeque<(StreamId, RawEntry)>,
    /// Whether there was nothing behind them.
    has_ended: bool,
}

impl UnmergedStream {
    /// Reads on if nothing is left, `most` entries at most.
    async fn fill(&mut self, link: &RedisLink, names: &StreamNames, most: usize) -> Result<(), BusError> {
        if self.has_ended || !self.entries.is_empty() {
            return Ok(());
        }
        let (stream, count) = (names.stream(self.partition), self.step.count().min(most));
        let command = self.order.command();
        let read: Vec<RawEntry> =
            link.ask(cmd(command).arg(stream).arg(&self.from).arg(&self.end).arg("COUNT").arg(count)).await?;
        self.has_ended = read.len() < count;
        self.step = self.step.after(&read);
        if let Some((last, _)) = read.last() {
            self.from = format!("({last}");
        }
        for entry in read {
            self.entries.push_back((StreamId::from_redis(&entry.0)?, entry));
        }
        Ok(())
    }
}

/// These streams behind a position within a span, where so many entries are wanted.
fn unmerged(partitions: &[u32], position: &Position, span: &LogSpan, wanted: usize) -> Vec<UnmergedStream> {
    let step = LookStep::first(wanted, partitions.len());
    let of = |partition: &u32| UnmergedStream {
        partition: *partition,
        order: span.order,
        from: span.start(position, *partition),
        end: span.end(),
        step,
        entries: VecDeque::new(),
        has_ended: false,
    };
    partitions.iter().map(of).collect()
}

/// Reads on in each stream of which nothing is left: the next entry of all is known then. Answers whether there is one.
async fn fill_all(link: &RedisLink, names: &StreamNames, streams: &mut [UnmergedStream]) -> Result<bool, BusError> {
    for stream in streams.iter_mut() {
        stream.fill(link, names, usize::MAX).await?;
    }
    Ok(streams.iter().any(|stream| !stream.entries.is_empty()))
}

/// Whether there is another entry, by as few reads as will do.
async fn any_more(link: &RedisLink, names: &StreamNames, streams: &mut [UnmergedStream]) -> Result<bool, BusError> {
    if streams.iter().any(|stream| !stream.entries.is_empty()) {
        return Ok(true);
    }
    for stream in streams.iter_mut() {
        stream.fill(link, names, 1).await?;
        if !stream.entries.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the entry that is the next of all in this order, with its partition.
fn take_next(streams: &mut [UnmergedStream], order: LogOrder) -> Option<(u32, StreamId, RawEntry)> {
    let first = |(at, stream): (usize, &UnmergedStream)| Some((stream.entries.front()?.0, stream.partition, at));
    let firsts = streams.iter().enumerate().filter_map(first);
    let (_, partition, at) = match order {
        LogOrder::Oldest => firsts.min(),
        LogOrder::Newest => firsts.max(),
    }?;
    let (id, entry) = streams[at].entries.pop_front()?;
    Some((partition, id, entry))
}

fn is_wanted(head: &EventHead<'_>, scope: &Scope, filter: &LogFilter) -> bool {
    scope.tenant().is_none_or(|tenant| head.tenant == tenant)
        && filter.source.as_deref().is_none_or(|source| head.source == source)
        && filter.kind.as_deref().is_none_or(|kind| fits(kind, &head.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_first_a_stream_of_which_nothing_was_taken_goes_on_at_the_oldest_that_was() {
        let start = |order: LogOrder, text: &str| {
            LogSpan::of(&LogFilter { order, ..LogFilter::default() }).start(&Position::parse(text).unwrap(), 7)
        };
        assert_eq!([LogOrder::Oldest, LogOrder::Newest].map(|order| start(order, "0")), ["-", "+"]);
        assert_eq!(start(LogOrder::Newest, "7.5.0_8.3.1"), "(5-0");
        assert_eq!(start(LogOrder::Newest, "6.5.0_8.3.1"), "3-1");
        assert_eq!(start(LogOrder::Oldest, "6.5.0_8.3.1"), "-");
    }

    #[test]
    fn log_between_two_instants_has_the_entries_that_were_taken_from_the_first_on_and_before_the_second() {
        let (since, until) = (DateTime::from_timestamp_millis(3), DateTime::from_timestamp_millis(8));
        let span = |order: LogOrder| LogSpan::of(&LogFilter { order, since, until, ..LogFilter::default() });
        let ends = |order: LogOrder| (span(order).start(&Position::default(), 7), span(order).end());
        assert_eq!(ends(LogOrder::Oldest), ("3-0".to_owned(), "(8-0".to_owned()));
        assert_eq!(ends(LogOrder::Newest), ("(8-0".to_owned(), "3-0".to_owned()));
        let none = LogSpan::of(&LogFilter { until: DateTime::from_timestamp_millis(-1), ..LogFilter::default() });
        assert_eq!((none.oldest.as_str(), none.newest.as_str()), ("-", "0-0"), "no entry has this id");
        let whole = LogSpan::of(&LogFilter::default());
        assert_eq!((whole.oldest.as_str(), whole.newest.as_str()), ("-", "+"));
    }

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
