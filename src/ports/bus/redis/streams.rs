//! The names of the streams, and the ids and entries in them.

use std::fmt;

use crate::domain::event::{Event, partition};
use crate::ports::bus::{BusEntry, BusError, UnreadableEntry, check_entry, read_entry};

/// The one field of an entry.
pub(super) const FIELD: &str = "event";

/// Fields and values of an entry, in turn.
pub(super) type StreamFields = Vec<Vec<u8>>;
/// An entry as Redis answers it.
pub(super) type RawEntry = (String, StreamFields);
/// An entry on its way to a consumer: its partition, and how often it was handed to one, this time included.
pub(super) type FoundEntry = (u32, RawEntry, u32);

/// How streams are called.
#[derive(Clone)]
pub(super) struct StreamNames {
    prefix: String,
    /// Number of streams over which tenants are spread.
    pub partitions: u32,
}

impl StreamNames {
    /// Names of the streams under a prefix, which has no braces.
    pub fn new(prefix: &str, partitions: u32) -> StreamNames {
        StreamNames { prefix: prefix.to_owned(), partitions }
    }

    /// Key of a partition's stream, such as `reveille:events:7`.
    pub fn stream(&self, partition: u32) -> String {
        format!("{}:{partition}", self.prefix)
    }

    /// The stream of the dead letters.
    pub fn dead(&self) -> String {
        format!("{}:dead", self.prefix)
    }

    /// How many streams there have been at most: the old ones are read until they are empty.
    pub fn max_count(&self) -> String {
        format!("{}:partitions", self.prefix)
    }

    /// The partition of a tenant's events.
    pub fn of_tenant(&self, tenant: &str) -> u32 {
        partition(tenant, self.partitions)
    }
}

/// The id of an entry: milliseconds, and a count within them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamId(pub u64, pub u64);

impl StreamId {
    /// Reads an id of the form `<milliseconds>-<count>`.
    pub fn parse(text: &str) -> Option<StreamId> {
        let (millis, count) = text.split_once('-')?;
        Some(StreamId(millis.parse().ok()?, count.parse().ok()?))
    }

    /// As Redis answers it; what can't be read is Redis's fault.
    pub fn from_redis(text: &str) -> Result<StreamId, BusError> {
        StreamId::parse(text).ok_or_else(|| BusError::Corrupt { why: format!("`{text}` is no id of an entry") })
    }

    /// The least id after this one.
    pub fn next(self) -> StreamId {
        match self.1.checked_add(1) {
            Some(count) => StreamId(self.0, count),
            None => StreamId(self.0 + 1, 0),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// An entry's name on the bus: `7/1712345678901-0`.
pub(super) fn entry_name(partition: u32, id: &str) -> String {
    format!("{partition}/{id}")
}

pub(super) fn read_entry_name(name: &str) -> Result<(u32, StreamId), BusError> {
    let parts = name.split_once('/').and_then(|(p, id)| Some((p.parse().ok()?, StreamId::parse(id)?)));
    parts.ok_or_else(|| BusError::Invalid { why: "this is no entry that this bus gave".into() })
}

/// The value of a field.
pub(super) fn field<'a>(fields: &'a StreamFields, name: &str) -> Option<&'a [u8]> {
    fields.chunks_exact(2).find(|pair| pair[0] == name.as_bytes()).map(|pair| pair[1].as_slice())
}

/// The value of a field as text; absent is empty.
pub(super) fn text_of(fields: &StreamFields, name: &str) -> String {
    field(fields, name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

/// How long an entry is, in bytes.
pub(super) fn entry_bytes((_, fields): &RawEntry) -> usize {
    fields.iter().map(Vec::len).sum()
}

/// An entry as the bus hands it to a consumer.
pub(super) fn bus_entry((partition, (id, fields), deliveries): FoundEntry) -> BusEntry {
    let event = value_of(&fields).and_then(check_entry);
    BusEntry { id: entry_name(partition, &id), event, deliveries }
}

/// The event of an entry.
pub(super) fn event_of(fields: &StreamFields) -> Result<Event, UnreadableEntry> {
    value_of(fields).and_then(read_entry)
}

/// The bytes in the field of an entry.
fn value_of(fields: &StreamFields) -> Result<&[u8], UnreadableEntry> {
    field(fields, FIELD).ok_or_else(|| {
        let words: Vec<_> = fields.iter().map(|word| String::from_utf8_lossy(word)).collect();
        UnreadableEntry { text: words.join(" "), why: format!("it has no field `{FIELD}`") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_as_redis_sorts_them_and_read_back() {
        let ids = ["9-0", "10-0", "10-2", "10-10"].map(|text| StreamId::parse(text).unwrap());
        assert!(ids.is_sorted());
        assert_eq!(ids[3].to_string(), "10-10");
        assert_eq!((StreamId(1, 2).next(), StreamId(1, u64::MAX).next()), (StreamId(1, 3), StreamId(2, 0)));
        assert_eq!(StreamId::parse("10"), None);
        assert_eq!(read_entry_name(&entry_name(7, "1-2")).unwrap(), (7, StreamId(1, 2)));
    }

    #[test]
    fn entry_without_its_field_is_told_with_what_it_has() {
        let fields = ["a", "1", "b", "2"].map(|word| word.as_bytes().to_vec()).to_vec();
        let unreadable = event_of(&fields).unwrap_err();
        assert_eq!((unreadable.text.as_str(), unreadable.why.as_str()), ("a 1 b 2", "it has no field `event`"));
    }
}
