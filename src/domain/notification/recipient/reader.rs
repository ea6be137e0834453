//! The reader of a message, as far as its words depend on them.

use chrono_tz::Tz;

/// The reader of a message: the zone in which instants are told, and the language, where there are templates for it.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// Zone in which instants are told.
    pub timezone: Tz,
    /// A language tag: `de-AT`.
    pub locale: &'a str,
}

impl Reader<'_> {
    /// Nobody of whom anything is known.
    pub const NOBODY: Reader<'static> = Reader { timezone: Tz::UTC, locale: "en" };
}
