//! Telephone numbers, kept as E.164 has them: `+` and up to 15 digits, without anything between.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::reading::text;
use super::secrets::Seal;
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::domain::notification::AddressKind;

/// Digits of a number with its country code (E.164: at most 15; no country has numbers shorter than 7).
const DIGITS: std::ops::RangeInclusive<usize> = 7..=15;
/// Characters that people write between the digits.
const BETWEEN: [char; 8] = [' ', '\u{a0}', '-', '\u{2011}', '(', ')', '.', '/'];

/// The address of the channel `sms`.
pub struct Phone;

/// A telephone number as a request writes it.
#[derive(Serialize, ToSchema)]
pub struct Written {
    /// With its country code; kept as `+` and digits.
    #[schema(required = false, example = "+4915123456789")]
    sms: Option<String>,
}

/// A telephone number as it is shown.
#[derive(Serialize, ToSchema)]
pub struct Shown {
    #[schema(required = false)]
    sms: Option<String>,
}

impl AddressKind for Phone {
    type Draft = Option<String>;
    type Stored = Option<String>;
    type Written = Written;
    type Shown = Shown;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--sms",
        takes: FlagValue::Text("NUMBER"),
        field: "addresses.sms",
        help: "Telephone number for the channel `sms`, with its country code",
    }];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<String> {
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

    fn settle<S: Seal>(draft: Option<String>, _: &Option<String>, _: &S) -> Result<Option<String>, S::Error> {
        Ok(draft)
    }

    fn places(stored: &Option<String>) -> Vec<String> {
        stored.iter().map(|phone| format!("phone {phone}")).collect()
    }
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
