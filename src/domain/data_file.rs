//! Data files: results of tools that are too large for a conversation, kept beside it for a while.
//!
//! A file belongs to a tenant and to the call that made it. It is text, named by its id, and read in parts: a page, the
//! lines that match a pattern, or the value at a JSON pointer. An attachment that is no text, as an image, is kept as
//! base64. The store keeps the content in chunks; the rules here are pure.

pub mod page;
pub mod pointer;
pub mod search;

use std::borrow::Cow;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;

/// Longest data file, in bytes.
pub const FILE_BYTES: usize = 16 * 1_024 * 1_024;
/// Largest number of bytes in the settings; every JSON reader holds it exactly.
const MOST_BYTES: u64 = 1_000_000_000_000_000;
/// Longest `max_age_hours`: a year.
const MOST_HOURS: u32 = 8_760;
/// The part of `max_bytes`, in hundredths, down to which files are given up once it is passed.
const SHRUNK_TO_PERCENT: u64 = 80;

/// `[data_files]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataFileSettings {
    /// Hours after its last use for which a file is kept.
    pub max_age_hours: u32,
    /// Bytes of all files.
    pub max_bytes: u64,
}

impl Default for DataFileSettings {
    fn default() -> DataFileSettings {
        DataFileSettings { max_age_hours: 24, max_bytes: 10 << 30 }
    }
}

impl DataFileSettings {
    /// How long a file is kept after its last use.
    pub fn max_age(&self) -> TimeDelta {
        TimeDelta::hours(self.max_age_hours.into())
    }

    /// How many bytes are to be given up of so many.
    pub fn excess(&self, stored: u64) -> u64 {
        match stored > self.max_bytes {
            true => stored - self.max_bytes * SHRUNK_TO_PERCENT / 100,
            false => 0,
        }
    }

    /// Adds the numbers that make no sense; pointers begin with `/data_files`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if !(1..=MOST_HOURS).contains(&self.max_age_hours) {
            faults.add("/data_files/max_age_hours", format!("must be from 1 to {MOST_HOURS} hours"));
        }
        if !(1..=MOST_BYTES).contains(&self.max_bytes) {
            faults.add("/data_files/max_bytes", format!("must be from 1 to {MOST_BYTES} bytes"));
        }
    }
}

/// A file that is to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDataFile {
    /// The run that makes it.
    pub run_id: Uuid,
    /// The idempotency key of the call that makes it: the same call's file takes the place of an earlier one.
    pub call_key: String,
    /// Name of the tool that was called.
    pub tool: String,
    /// `application/json`, `text/plain`, or the type of an attachment with `;base64` behind it.
    pub media_type: Cow<'static, str>,
    /// A line about the content, for the model.
    pub summary: String,
    /// The content itself.
    pub content: String,
}

/// A file that is kept, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// The reference by which it is read.
    pub id: Uuid,
    /// The run that made it.
    pub run_id: Uuid,
    /// Name of the tool that was called.
    pub tool: String,
    /// `application/json`, `text/plain`, or the type of an attachment with `;base64` behind it.
    pub media_type: String,
    /// Length of the content.
    pub bytes: i64,
    /// A line about the content.
    pub summary: String,
    /// When it was written.
    pub created_at: DateTime<Utc>,
    /// When it was read last; when it was written, where it was not.
    pub last_used_at: DateTime<Utc>,
}

/// The part of a file that is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataFilePart {
    /// So many bytes from an offset on.
    Page {
        /// In bytes.
        offset: u64,
        /// In bytes.
        limit: usize,
    },
    /// The lines that match a regular expression, from an offset on.
    Lines {
        /// The regular expression.
        pattern: String,
        /// In bytes.
        offset: u64,
    },
    /// The value at a JSON pointer, so many bytes of it from an offset in it on.
    Value {
        /// RFC 6901.
        pointer: String,
        /// In bytes of the value.
        offset: u64,
        /// In bytes.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound_and_numbers_that_make_no_sense_are_named() {
        let faults = |settings: DataFileSettings| {
            let mut faults = ValidationErrors::new();
            settings.check(&mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        assert_eq!(faults(DataFileSettings::default()), [""; 0]);
        let none = DataFileSettings { max_age_hours: 0, max_bytes: 0 };
        assert_eq!(faults(none), ["/data_files/max_age_hours", "/data_files/max_bytes"]);
        let much = DataFileSettings { max_age_hours: MOST_HOURS + 1, max_bytes: MOST_BYTES + 1 };
        assert_eq!(faults(much).len(), 2);
        assert_eq!(faults(DataFileSettings { max_age_hours: MOST_HOURS, max_bytes: MOST_BYTES }), [""; 0]);
    }

    #[test]
    fn files_are_given_up_down_to_eighty_hundredths_once_there_are_too_many() {
        let settings = DataFileSettings { max_bytes: 1000, ..DataFileSettings::default() };
        assert_eq!([0, 800, 1000, 1001, 1500].map(|stored| settings.excess(stored)), [0, 0, 0, 201, 700]);
        let small = DataFileSettings { max_bytes: 50, ..settings };
        assert_eq!([50, 51].map(|stored| small.excess(stored)), [0, 11]);
    }
}
