//! Texts of statements that are put together of constants.

use crate::store::Split;

/// Constant texts, one behind the other, as one. Or a text with another one in each place of a name, which has one at
/// least: `TEXT; "{name}" = OTHER`.
macro_rules! sql {
    ($text:expr; $name:literal = $value:expr; $($more:tt)+) => {
        sql!(sql!($text; $name = $value); $($more)+)
    };
    ($text:expr; $name:literal = $value:expr) => {{
        const SOURCE: &str = $text;
        const WITH: &str = $value;
        const BYTES: [u8; $crate::store::sql::filled_length(SOURCE, $name, WITH)] =
            $crate::store::sql::fill(SOURCE, $name, WITH);
        const TEXT: &str = match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("a text within a text is a text"),
        };
        TEXT
    }};
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&str] = &[$($part),+];
        const BYTES: [u8; $crate::store::sql::length(PARTS)] = $crate::store::sql::join(PARTS);
        const TEXT: &str = match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("texts one behind the other are a text"),
        };
        TEXT
    }};
}
pub(super) use sql;

/// Follows a table: the rows whose ids a select answers. Postgres may plan a join with a table that is empty in any
/// order, and keep that plan: it would go through everybody's rows. So it has the ids before it looks for a row. Rounds
/// of the housekeeping, which come once an hour and delete many rows, do without.
pub(super) const CHOSEN: Split = Split { postgres: " where id = any (array({ids}))", sqlite: " where id in ({ids})" };

/// Waits for a lock of a tenant ($1), which has the name `{lock}`, and keeps it until the end of the transaction.
/// SQLite has one writer.
pub(super) const TENANT_LOCK: Split = Split {
    postgres: "select pg_advisory_xact_lock(
                   hashtextextended(concat_ws('/', '{lock}', current_schema(), $1::text), 0))",
    sqlite: "select $1",
};

/// Begins a statement of Postgres whose changes are made again if they are lost, and which reads `unflushed`: it is
/// answered before they are on the disk, and a crash of the server in the next moment undoes them. What others commit does
/// not wait behind it, either.
pub(super) const UNFLUSHED: &str =
    "with unflushed as materialized (select set_config('synchronous_commit', 'off', true) as setting)";

pub(super) const fn length(parts: &[&str]) -> usize {
    let (mut length, mut at) = (0, 0);
    while at < parts.len() {
        length += parts[at].len();
        at += 1;
    }
    length
}

pub(super) const fn join<const LENGTH: usize>(parts: &[&str]) -> [u8; LENGTH] {
    let mut joined = [0; LENGTH];
    let (mut end, mut at) = (0, 0);
    while at < parts.len() {
        let part = parts[at].as_bytes();
        let mut byte = 0;
        while byte < part.len() {
            joined[end] = part[byte];
            (end, byte) = (end + 1, byte + 1);
        }
        at += 1;
    }
    joined
}

/// Whether the name stands at this place.
const fn stands_at(text: &[u8], at: usize, name: &[u8]) -> bool {
    if at + name.len() > text.len() {
        return false;
    }
    let mut byte = 0;
    while byte < name.len() {
        if text[at + byte] != name[byte] {
            return false;
        }
        byte += 1;
    }
    true
}

pub(super) const fn filled_length(text: &str, name: &str, with: &str) -> usize {
    let (text, name) = (text.as_bytes(), name.as_bytes());
    let (mut length, mut at, mut is_there) = (0, 0, false);
    while at < text.len() {
        let found = stands_at(text, at, name);
        length += if found { with.len() } else { 1 };
        at += if found { name.len() } else { 1 };
        is_there |= found;
    }
    assert!(is_there, "the text has no place of this name");
    length
}

pub(super) const fn fill<const LENGTH: usize>(text: &str, name: &str, with: &str) -> [u8; LENGTH] {
    let (text, name, with) = (text.as_bytes(), name.as_bytes(), with.as_bytes());
    let mut filled = [0; LENGTH];
    let (mut end, mut at) = (0, 0);
    while at < text.len() {
        if stands_at(text, at, name) {
            let mut byte = 0;
            while byte < with.len() {
                filled[end] = with[byte];
                (end, byte) = (end + 1, byte + 1);
            }
            at += name.len();
        } else {
            filled[end] = text[at];
            (end, at) = (end + 1, at + 1);
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::TENANT_LOCK;

    #[test]
    fn texts_are_put_together_and_names_are_filled_in() {
        const START: &str = "select é from {table} ";
        assert_eq!(sql!(START, "where ", "true"), "select é from {table} where true");
        assert_eq!(sql!("{a}{b}{a}"; "{a}" = "ö"; "{b}" = ""), "öö");
        assert_eq!(sql!(START; "{table}" = "runs"), "select é from runs ");
    }

    #[test]
    fn lock_of_a_tenant_goes_by_its_name_the_schema_and_the_tenant() {
        let lock = sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_tokens");
        let key = "hashtextextended(concat_ws('/', 'reveille_tokens', current_schema(), $1::text), 0))";
        assert!(lock.starts_with("select pg_advisory_xact_lock(") && lock.ends_with(key), "{lock}");
    }
}
