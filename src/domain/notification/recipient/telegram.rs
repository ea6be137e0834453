//! Telegram addresses: the id of a chat, or the `@name` of a channel.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::reading::{given, text};
use super::secrets::Seal;
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::domain::notification::AddressKind;

/// Letters of a public name (Telegram's own limits), and digits of an id (52 bits).
const NAME_LENGTH: std::ops::RangeInclusive<usize> = 4..=32;
const ID_LENGTH: std::ops::RangeInclusive<usize> = 1..=16;

/// The address of the channel `telegram`.
pub struct Telegram;

/// A chat as a request writes it.
#[derive(Serialize, ToSchema)]
pub struct Written {
    /// A chat's id, or the name of a channel.
    #[schema(required = false, example = "-1001234567890")]
    telegram: Option<String>,
}

/// A chat as it is shown.
#[derive(Serialize, ToSchema)]
pub struct Shown {
    #[schema(required = false)]
    telegram: Option<String>,
}

impl AddressKind for Telegram {
    type Draft = Option<String>;
    type Stored = Option<String>;
    type Written = Written;
    type Shown = Shown;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--telegram",
        takes: FlagValue::Hyphened("CHAT"),
        field: "addresses.telegram",
        help: "Chat id or @name for the channel `telegram`",
    }];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<String> {
        let address = match given(kinds, "telegram")? {
            Value::Number(id) if id.is_i64() => id.to_string(),
            _ => text(kinds, "telegram", "/addresses", faults)?.to_owned(),
        };
        if !is_chat(&address) {
            let message =
                format!("`{address}` is not the id of a chat such as `-1001234567890`, or a name such as `@news`");
            faults.add("/addresses/telegram", message);
        }
        Some(address)
    }

    fn settle<S: Seal>(draft: Option<String>, _: &Option<String>, _: &S) -> Result<Option<String>, S::Error> {
        Ok(draft)
    }

    fn places(stored: &Option<String>) -> Vec<String> {
        stored.iter().map(|chat| format!("telegram {}", chat.to_lowercase())).collect()
    }
}

fn is_chat(address: &str) -> bool {
    if let Some(name) = address.strip_prefix('@') {
        return NAME_LENGTH.contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    }
    let digits = address.strip_prefix('-').unwrap_or(address);
    ID_LENGTH.contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit()) && !digits.starts_with('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chats_have_ids_and_channels_have_names() {
        for good in ["12345", "-1001234567890", "@news_of_the_day"] {
            assert!(is_chat(good), "{good}");
        }
        for bad in ["", "-", "@", "@abc", "news", "0123", "12 34", "@with-dash", "--5", "12345678901234567"] {
            assert!(!is_chat(bad), "{bad}");
        }
    }
}
