//! Names of tools as every provider of models takes them.
//!
//! A tool of an MCP server is named `server.tool` in here, and providers take no dot. The name in their form goes to
//! models alone; records, rules and people have the tool's own.

use std::borrow::Cow;

use aws_lc_rs::digest::{SHA256, digest};

/// Longest name of a tool that every provider takes, in characters.
pub const LONGEST_PORTABLE_NAME: usize = 64;
/// Hexadecimal digits of the hash behind a name that was cut.
const HASH_DIGITS: usize = 12;

/// The name of a tool as every provider takes it: letters, digits, `_` and `-`. A `.` becomes `__` and any other
/// character `_`; of a longer name the beginning stays, with 12 hexadecimal digits of its hash behind it.
pub fn portable_name(name: &str) -> Cow<'_, str> {
    if is_portable(name) {
        return Cow::Borrowed(name);
    }
    let mut portable = String::with_capacity(name.len() + 1);
    for letter in name.chars() {
        match letter {
            '.' => portable.push_str("__"),
            letter if is_portable_letter(letter) => portable.push(letter),
            _ => portable.push('_'),
        }
    }
    if portable.is_empty() {
        portable.push('_');
    }
    if portable.len() > LONGEST_PORTABLE_NAME {
        let hash = hex::encode(digest(&SHA256, name.as_bytes()));
        portable.truncate(LONGEST_PORTABLE_NAME - 1 - HASH_DIGITS);
        portable.push('_');
        portable.push_str(&hash[..HASH_DIGITS]);
    }
    Cow::Owned(portable)
}

fn is_portable(name: &str) -> bool {
    (1..=LONGEST_PORTABLE_NAME).contains(&name.len()) && name.chars().all(is_portable_letter)
}

fn is_portable_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_every_provider_takes_stays_as_it_is() {
        let longest = "n".repeat(LONGEST_PORTABLE_NAME);
        for name in ["current_time", "a-b", "x", longest.as_str()] {
            assert!(matches!(portable_name(name), Cow::Borrowed(same) if same == name), "{name}");
        }
    }

    #[test]
    fn name_of_an_mcp_tool_has_two_underscores_for_its_dot_and_one_for_any_other_character() {
        let cases = [
            ("github.create_issue", "github__create_issue"),
            ("a.b.c", "a__b__c"),
            ("my tool.é", "my_tool___"),
            ("", "_"),
        ];
        for (name, portable) in cases {
            assert_eq!(portable_name(name), portable);
        }
    }

    #[test]
    fn long_name_is_cut_and_told_from_others_by_its_hash() {
        let name = |end: &str| format!("{}.{end}", "s".repeat(LONGEST_PORTABLE_NAME));
        let (one, other) = (name("one"), name("other"));
        let (one, other) = (portable_name(&one), portable_name(&other));
        assert_eq!((one.len(), other.len()), (LONGEST_PORTABLE_NAME, LONGEST_PORTABLE_NAME));
        let (begins, hash) = one.rsplit_once('_').unwrap();
        assert_eq!((begins.len(), hash.len()), (51, 12));
        assert!(other.starts_with(begins) && one != other);
        assert_eq!(portable_name(&one), one, "it is one that every provider takes");
    }

    #[test]
    fn name_that_grows_too_long_by_its_dot_is_cut_as_well() {
        let name = format!("{}.tool", "s".repeat(LONGEST_PORTABLE_NAME - 5));
        assert_eq!(name.len(), LONGEST_PORTABLE_NAME);
        assert_eq!(portable_name(&name).len(), LONGEST_PORTABLE_NAME);
    }
}
