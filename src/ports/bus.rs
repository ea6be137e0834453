//! The event bus: the port, and the list of its adapters.
//!
//! An event that `publish` has accepted survives a crash and is delivered until it is acknowledged, more than once
//! where a consumer dies in between; who consumes makes that harmless by its key. Order holds for a tenant as long as
//! no consumer dies, or has enough of that tenant. The bus never judges an event and never drops one that was not
//! acknowledged or put among the dead letters.

/// Methods that a bus around another one passes on: the log and the dead letters are those of the one inside.
macro_rules! pass_on {
    () => {
        fn longest_read(&self) -> std::time::Duration {
            self.bus.longest_read()
        }

        fn interrupt_reads(&self) -> futures::future::BoxFuture<'_, ()> {
            self.bus.interrupt_reads()
        }

        fn log<'a>(
            &'a self,
            scope: &'a $crate::base::id::Scope,
            filter: &'a $crate::ports::bus::LogFilter,
        ) -> futures::future::BoxFuture<'a, Result<$crate::ports::bus::Log, $crate::ports::bus::BusError>> {
            self.bus.log(scope, filter)
        }

        fn find<'a>(
            &'a self,
            tenant: &'a $crate::base::id::Tenant,
            source: Option<&'a str>,
            id: &'a str,
        ) -> futures::future::BoxFuture<'a, Result<Option<$crate::domain::event::Event>, $crate::ports::bus::BusError>>
        {
            self.bus.find(tenant, source, id)
        }

        fn ids<'a>(
            &'a self,
            tenant: &'a $crate::base::id::Tenant,
            source: Option<&'a str>,
            beginning: &'a str,
        ) -> futures::future::BoxFuture<'a, Result<Vec<String>, $crate::ports::bus::BusError>> {
            self.bus.ids(tenant, source, beginning)
        }

        fn newest<'a>(
            &'a self,
            tenant: &'a $crate::base::id::Tenant,
            filter: &'a $crate::ports::bus::NewestFilter,
        ) -> futures::future::BoxFuture<'a, Result<Vec<$crate::domain::event::Event>, $crate::ports::bus::BusError>> {
            self.bus.newest(tenant, filter)
        }

        fn end<'a>(
            &'a self,
            scope: &'a $crate::base::id::Scope,
        ) -> futures::future::BoxFuture<'a, Result<String, $crate::ports::bus::BusError>> {
            self.bus.end(scope)
        }

        fn dead_letters<'a>(
            &'a self,
            scope: &'a $crate::base::id::Scope,
            filter: &'a $crate::ports::bus::DeadLetterFilter,
        ) -> futures::future::BoxFuture<'a, Result<$crate::ports::bus::DeadLetterPage, $crate::ports::bus::BusError>> {
            self.bus.dead_letters(scope, filter)
        }

        fn dead_letter<'a>(
            &'a self,
            scope: &'a $crate::base::id::Scope,
            id: &'a str,
        ) -> futures::future::BoxFuture<'a, Result<$crate::ports::bus::BusDeadLetter, $crate::ports::bus::BusError>> {
            self.bus.dead_letter(scope, id)
        }

        fn replay<'a>(
            &'a self,
            scope: &'a $crate::base::id::Scope,
            id: &'a str,
        ) -> futures::future::BoxFuture<'a, Result<(), $crate::ports::bus::BusError>> {
            self.bus.replay(scope, id)
        }

        fn drop_dead_letter<'a>(
            &'a self,
            scope: &'a $crate::base::id::Scope,
            id: &'a str,
        ) -> futures::future::BoxFuture<'a, Result<(), $crate::ports::bus::BusError>> {
            self.bus.drop_dead_letter(scope, id)
        }
    };
}

pub mod counted;
pub mod embedded;
mod entry_reader;
mod entry_text;
pub mod open;
pub mod outbox;
mod pattern;
pub mod redis;
pub mod settings;

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;

use crate::base::id::{Scope, Tenant};
use crate::base::words::words;
use crate::domain::event::Event;
use crate::domain::event::written::WrittenEvent;

pub use entry_text::{check_entry, check_stored, read_entry, read_stored, write_entry};
pub use open::{check_address, open};
pub use pattern::fits;
pub use settings::Settings;

/// One entry on its way to a consumer.
#[derive(Debug, Clone, PartialEq)]
pub struct BusEntry {
    /// The bus's own name of it, for [`Bus::acknowledge`] and [`Bus::dead_letter_entry`]; means nothing elsewhere.
    pub id: String,
    /// The event as its text, or why the entry can't be read as one.
    pub event: Result<WrittenEvent, UnreadableEntry>,
    /// How often it was handed to a consumer, this time included.
    pub deliveries: u32,
}

/// An entry that is no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableEntry {
    /// The bytes that were found, as text; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// The reason, in a sentence.
    pub why: String,
}

/// An event with its place in the log of the bus.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedEvent {
    /// Where reading goes on after it; opaque, safe in a URL and in `Last-Event-ID`.
    pub position: String,
    /// The event as it was published.
    pub event: Event,
    /// How long its entry is, in bytes.
    pub bytes: usize,
}

words! {
    /// Which events of the log come first.
    #[derive(Default, utoipa::ToSchema)]
    pub enum LogOrder {
        /// The oldest that are kept.
        #[default]
        Oldest = "oldest",
        /// The newest.
        Newest = "newest",
    }
}

/// Which part of the log to read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogFilter {
    /// Exact.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    /// Only those that the bus has taken from this instant on.
    pub since: Option<DateTime<Utc>>,
    /// Only those that it has taken before this instant.
    pub until: Option<DateTime<Utc>>,
    /// Which come first.
    pub order: LogOrder,
    /// Behind this position in that order; `None`: from its first.
    pub after: Option<String>,
    /// Most events of one page.
    pub limit: usize,
}

/// Which of the newest events of a tenant to read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewestFilter {
    /// Exact, or with a trailing `*`.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    /// Newest entries that are looked at: of the tenant, or of all tenants that share a part of the bus with it.
    pub among: usize,
    /// Most events that are answered.
    pub limit: usize,
}

/// A part of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Events of the page, in the order that was asked for.
    pub events: Vec<LoggedEvent>,
    /// Where reading goes on: behind all that was looked at, whether it matched or not.
    pub position: String,
    /// Whether there was more to look at when it was read.
    pub more: bool,
}

/// Counts of the events that wait on the bus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusBacklog {
    /// Published, and handed to no consumer yet.
    pub unread: u64,
    /// Handed to a consumer that has not acknowledged it yet.
    pub pending: u64,
}

/// An entry that could not be handled, kept until a person replays or drops it.
#[derive(Debug, Clone, PartialEq)]
pub struct BusDeadLetter {
    /// Id of the letter, as the bus writes it.
    pub id: String,
    /// `None` where it could not be read.
    pub tenant: Option<String>,
    /// The entry as it was found.
    pub body: String,
    /// The reason of the last failure, in a sentence.
    pub error: String,
    /// The number of times that the entry was delivered.
    pub deliveries: u32,
    /// The instant from which the entry is delivered no more.
    pub dead_lettered_at: DateTime<Utc>,
}

/// Which dead letters are meant. Those without a tenant belong to `Scope::Every` alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeadLetterFilter {
    /// Only events of this source.
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub kind: Option<String>,
    /// Contained in the error, whatever its case.
    pub error: Option<String>,
    /// Behind this position, which an earlier page gave; `None`: from the newest.
    pub before: Option<String>,
    /// Most letters of one page.
    pub limit: usize,
}

/// A part of the dead letters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeadLetterPage {
    /// Letters that were found, newest first.
    pub letters: Vec<BusDeadLetter>,
    /// Where the list goes on: behind all that was looked at, whether it matched or not. `None`: there is nothing
    /// behind it.
    pub next: Option<String>,
}

/// Why the bus could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// A repeated call may work later, and this one may have taken effect.
    #[error("the event bus is not available: {why}")]
    Unavailable {
        /// The reason, in a sentence.
        why: String,
    },
    /// The bus has no such letter or position.
    #[error("not found")]
    NotFound,
    /// A position that this bus did not give.
    #[error("{why}")]
    Invalid {
        /// The reason, in a sentence.
        why: String,
    },
    /// Asking again does not mend it.
    #[error("the event bus answers what can't be read: {why}")]
    Corrupt {
        /// The reason, in a sentence.
        why: String,
    },
}

/// A way of events from those who publish to those who match.
pub trait Bus: Send + Sync {
    /// `embedded`, `redis`.
    fn name(&self) -> &'static str;

    /// Takes events on, all or (on `Unavailable`) any part of them. Durable once it has returned.
    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Result<(), BusError>>;

    /// Entries that nobody has handled: new ones, and those whose consumer has stalled. Waits up to `wait` for the
    /// first; a stop may end the wait with nothing. Safe to drop while it waits: an entry that was taken and not
    /// answered comes again when its lease has run out.
    fn read(&self, limit: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<BusEntry>, BusError>> {
        self.read_except(&[], limit, wait)
    }

    /// Like [`Bus::read`], for a consumer that has enough of some tenants: their entries are left for later, uncounted,
    /// and those of other tenants behind them are looked for, a bounded number at each read.
    fn read_except<'a>(
        &'a self,
        full: &'a [Tenant],
        limit: usize,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Vec<BusEntry>, BusError>>;

    /// How long one read should wait at most: who stops reading waits for the end of the last.
    fn longest_read(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Ends the reads that wait now, with nothing, where no stop ends them by itself. One that begins meanwhile may
    /// miss it, so it is asked until none waits.
    fn interrupt_reads(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// These are handled, and what follows from them is committed.
    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), BusError>>;

    /// Puts an entry among the dead letters, and then acknowledges it.
    fn dead_letter_entry<'a>(&'a self, entry: &'a BusEntry, error: &'a str) -> BoxFuture<'a, Result<(), BusError>>;

    /// Puts what was kept for this bus while it was away, and is no event, among the dead letters. Only a bus behind an
    /// outbox is asked.
    fn dead_letter_kept<'a>(
        &'a self,
        seq: i64,
        unreadable: &'a UnreadableEntry,
    ) -> BoxFuture<'a, Result<(), BusError>> {
        let why = format!("row {seq} of bus_outbox: {}", unreadable.why);
        Box::pin(std::future::ready(Err(BusError::Corrupt { why })))
    }

    /// The log, oldest or newest first. A position goes on in the order in which it was given.
    fn log<'a>(&'a self, scope: &'a Scope, filter: &'a LogFilter) -> BoxFuture<'a, Result<Log, BusError>>;

    /// An event of a tenant by its id: of a source, or where none is named the newest of any. A bus without an index of
    /// ids looks for it among a bounded number of the newest entries, however long they are.
    fn find<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Event>, BusError>>;

    /// Ids of a tenant's events that begin so, two at most, of a source, or of any: a bounded number of events is
    /// looked at.
    fn ids<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        beginning: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, BusError>>;

    /// Some of the newest events of a tenant, newest first.
    fn newest<'a>(
        &'a self,
        tenant: &'a Tenant,
        filter: &'a NewestFilter,
    ) -> BoxFuture<'a, Result<Vec<Event>, BusError>>;

    /// The position behind the newest entry: a tail begins here.
    fn end<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<String, BusError>>;

    /// Dead letters, newest first. A bounded number of them is looked at: a page may have fewer than its limit, or
    /// none, and go on behind them.
    fn dead_letters<'a>(
        &'a self,
        scope: &'a Scope,
        filter: &'a DeadLetterFilter,
    ) -> BoxFuture<'a, Result<DeadLetterPage, BusError>>;

    /// A dead letter by its id, if the scope sees it.
    fn dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<BusDeadLetter, BusError>>;

    /// Publishes it once more, under the same identity, and removes it from the dead letters. One that is no event
    /// stays, with `Invalid`.
    fn replay<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>>;

    /// Removes it for good.
    fn drop_dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>>;

    /// Forgets acknowledged entries older than the retention, never what is pending or unread. Answers how many.
    fn trim(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<u64, BusError>>;

    /// How much waits now, over all consumers.
    fn backlog(&self) -> BoxFuture<'_, Result<BusBacklog, BusError>>;

    /// Hands on some of what was taken while the bus was away (`bus.outbox`): tenants in turn, of each its oldest.
    /// Answers how many.
    fn forward(&self) -> BoxFuture<'_, Result<usize, BusError>> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Faults in the setup of the server behind the bus, in sentences for the operator; empty when all is well.
    fn concerns(&self) -> BoxFuture<'_, Result<Vec<String>, BusError>>;
}
