//! Identities: UUIDv7 ids, tenants, and on whose behalf a call is made.

use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use unicode_normalization::{UnicodeNormalization, is_nfkc};
use uuid::Uuid;

use crate::base::invalid::bounded;
use crate::base::unicode_safety::is_traceless;

/// Ids made in the same millisecond by one process keep the order in which they were made. One for the process, as the
/// order is: where it begins makes no difference.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A new UUIDv7 for something that comes to be at `now`. Sorts by time, then by order of making.
pub fn new_id(now: DateTime<Utc>) -> Uuid {
    let millis = now.timestamp_millis().max(0) as u64;
    let count = MADE.fetch_add(1, Ordering::Relaxed);
    // 30 bits count (12 in rand_a, 18 in rand_b), the rest is chance: RFC 9562, section 6.2, method 1
    let mut bytes = [0_u8; 10];
    bytes[2..].copy_from_slice(&fastrand::u64(..).to_be_bytes());
    bytes[..2].copy_from_slice(&((count >> 18) as u16 & 0x0fff).to_be_bytes());
    bytes[2] = (count >> 12) as u8 & 0x3f;
    bytes[3] = (count >> 4) as u8;
    bytes[4] = ((count << 4) as u8 & 0xf0) | (bytes[4] & 0x0f);
    uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
}

/// The least id that can be made at an instant: where a look at what came to be since then begins.
pub fn first_id(instant: DateTime<Utc>) -> Uuid {
    let millis = instant.timestamp_millis().max(0) as u64;
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}

/// Longest tenant, in characters.
const TENANT_CHARACTERS: usize = 200;
/// Longest tenant, in bytes: a character has four at most.
const TENANT_BYTES: usize = 4 * TENANT_CHARACTERS;

/// The user or organisation that owns tasks and all that comes of them: an opaque string.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(String);

impl Tenant {
    /// A tenant that somebody names: 1 to 200 characters in one form, so that two tenants never look alike. Nothing is
    /// changed in it: a name in another form is refused.
    pub fn new(id: impl Into<String>) -> Result<Tenant, String> {
        let tenant = Tenant::stored(id)?;
        let id = tenant.as_str();
        if id.trim() != id {
            return Err("must not begin or end with a space".into());
        }
        if let Some(hidden) = id.chars().find(|c| is_traceless(*c)) {
            return Err(format!("must not contain U+{:04X}, which nobody sees", u32::from(hidden)));
        }
        if [".", ".."].contains(&id) {
            return Err("must not be `.` or `..`, which clients leave out of an address".into());
        }
        if !is_nfkc(id) {
            let normal: String = id.nfkc().collect();
            return Err(format!("must be in the normal form NFKC; write `{normal}`"));
        }
        Ok(tenant)
    }

    /// A tenant as it was stored. Those that were stored before there was one form stay as they are, so that what they
    /// have can be read and deleted.
    ///
    /// 1 to 200 characters, none of them control characters; `*` alone is kept for "every tenant".
    pub fn stored(id: impl Into<String>) -> Result<Tenant, String> {
        let id = bounded(&id.into(), TENANT_BYTES)?.to_owned();
        match id.chars().count() {
            0 => Err("must not be empty".into()),
            n if n > TENANT_CHARACTERS => Err(format!("must be at most {TENANT_CHARACTERS} characters, has {n}")),
            _ if id.chars().any(char::is_control) => Err("must not contain control characters".into()),
            _ if id == "*" => Err("must not be `*`, which means every tenant".into()),
            _ => Ok(Tenant(id)),
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// On whose behalf the store is asked. What lies outside a scope is not found there, never forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The engine itself, or an admin token.
    Every,
    /// One tenant's things only.
    Only(Tenant),
}

impl Scope {
    /// The tenant that confines this scope, as bound into SQL: `None` is every tenant.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Scope::Every => None,
            Scope::Only(tenant) => Some(tenant.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_version_7_carry_their_time_and_keep_their_order() {
        let now = DateTime::from_timestamp_millis(1_795_000_000_123).unwrap();
        let ids: Vec<Uuid> = (0..10_000).map(|_| new_id(now)).collect();
        assert!(ids.is_sorted(), "ids of one millisecond must sort as made");
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        assert!(first_id(now) <= ids[0] && ids[9_999] < first_id(now + chrono::TimeDelta::milliseconds(1)));
        let (seconds, nanos) = ids[0].get_timestamp().unwrap().to_unix();
        assert_eq!(seconds as i64 * 1000 + nanos as i64 / 1_000_000, now.timestamp_millis());
    }

    #[test]
    fn tenant_is_any_printable_text_but_the_star() {
        assert!(Tenant::new("user_123").is_ok());
        for bad in ["", "*", "a\nb", &"x".repeat(201)] {
            assert!(Tenant::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tenant_has_one_form_and_what_was_stored_in_another_is_still_read() {
        for good in ["ta", "user 123", "Ann@example.org", "søren", "东京", "می", "a:b/c-d_e", "👩"] {
            assert_eq!(Tenant::new(good).unwrap().as_str(), good);
        }
        let odd = [
            (" ta", "begin or end with a space"),
            ("ta ", "begin or end with a space"),
            ("\u{2003}ta", "begin or end with a space"),
            ("t\u{200b}a", "U+200B"),
            ("ta\u{feff}", "U+FEFF"),
            ("t\u{202e}a", "U+202E"),
            ("t\u{fe0f}a", "U+FE0F"),
            ("\u{2800}", "U+2800"),
            (".", "leave out of an address"),
            ("..", "leave out of an address"),
            ("\u{ff54}\u{ff41}", "write `ta`"),
            ("o\u{308}", "write `ö`"),
            ("a\u{a0}b", "write `a b`"),
            ("\u{2126}", "write `Ω`"),
        ];
        for (id, why) in odd {
            let refused = Tenant::new(id).unwrap_err();
            assert!(refused.contains(why), "{id:?}: {refused}");
            assert_eq!(Tenant::stored(id).unwrap().as_str(), id);
        }
    }

    #[test]
    fn tenant_is_taken_at_its_longest_and_refused_one_beyond_it() {
        for (character, why) in [("x", "at most 200 characters, has 201"), ("👩", "at most 800 bytes, has 804")] {
            assert!(Tenant::new(character.repeat(200)).is_ok());
            let refused = Tenant::new(character.repeat(201)).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
