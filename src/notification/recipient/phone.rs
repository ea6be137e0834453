//! Telephone numbers, kept as E.164 has them: `+` and up to 15 digits, without anything between.

use serde_json::{Map, Value};

use super::reading::text;
use crate::invalid::Faults;

/// Digits of a number with its country code (E.164: at most 15; no country has numbers shorter than 7).
const DIGITS: std::ops::RangeInclusive<usize> = 7..=15;
/// Characters that people write between the digits.
const BETWEEN: [char; 8] = [' ', '\u{a0}', '-', '\u{2011}', '(', ')', '.', '/'];

pub(super) fn read(kinds: &Map<String, Value>, faults: &mut Faults) -> Option<String> {
    let number = text(kinds, "sms", "/addresses", faults)?;
    let normal = normalized(number);
    if normal.is_none() {
        faults.add(
            "/addresses/sms",
            format!("`{number}` is not a number with its country code, such as `+4915123456789`"),
        );
    }
    normal
}

fn normalized(number: &str) -> Option<String> {
    let digits: String = number.trim().strip_prefix('+')?.chars().filter(|c| !BETWEEN.contains(c)).collect();
    let real = digits.chars().all(|c| c.is_ascii_digit()) && !digits.starts_with('0');
    (real && DIGITS.contains(&digits.len())).then(|| format!("+{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_in_one_form() {
        for same in ["+4915123456789", " +49 151 2345-6789 ", "+49 (151) 23456789", "+49.151/23\u{a0}456\u{2011}789"] {
            assert_eq!(normalized(same).as_deref(), Some("+4915123456789"), "{same}");
        }
    }

    #[test]
    fn unroutable_number_is_refused() {
        let bad =
            ["", "+", "015123456789", "004915123456789", "+0151234567", "+123456", "+1234567890123456", "+49x5123456"];
        for bad in bad {
            assert_eq!(normalized(bad), None, "{bad}");
        }
    }
}
