//! Words of the service that the model reads before the result of a call, a paragraph each.
//!
//! Some hold for as long as the conversation does: a change or an answer by a person, and where all of a result is. They stay in it when their
//! result is shown no more.

use serde_json::Value;
use uuid::Uuid;

use crate::ports::tool::builtin::read_data_file::READ_DATA_FILE;

/// The end of a paragraph.
const END: &str = "\n\n";
/// The beginnings of notices that hold on.
const EDITED: &str = "The user changed the arguments before approving: ";
const ANSWERED: &str = "The user answered: ";
const DATA_FILE: &str = "[Data file ";

/// Tells that a person has changed the arguments of the call, and to what.
pub fn edited_notice(arguments: &Value) -> String {
    format!("{EDITED}{arguments}{END}")
}

/// Tells what a person has answered who was asked for it.
pub fn answered_notice(given: &Value) -> String {
    format!("{ANSWERED}{given}{END}")
}

/// Tells in which data file all of the result is.
pub fn data_file_notice(id: Uuid, bytes: usize, media_type: &str) -> String {
    format!(
        "{DATA_FILE}{id}: all {bytes} bytes of this result, {media_type}. Read parts of it with {READ_DATA_FILE}.]{END}"
    )
}

/// Tells why all of the result is in no data file.
pub fn no_data_file_notice(why: &str) -> String {
    format!("[No data file was written: {why}]{END}")
}

/// The paragraphs of a notice that hold on.
pub fn lasting(notice: &str) -> impl Iterator<Item = &str> {
    notice.split(END).filter(|paragraph| [EDITED, ANSWERED, DATA_FILE].iter().any(|mark| paragraph.starts_with(mark)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_and_references_hold_on_and_other_notices_do_not() {
        let edited = edited_notice(&json!({ "text": "one\n\n[Data file none" }));
        let file = data_file_notice(Uuid::nil(), 7, "text/plain");
        let all = format!("[Repetition] Stop.\n\n{edited}{file}{}", no_data_file_notice("it is full"));
        let expected = [
            "The user changed the arguments before approving: {\"text\":\"one\\n\\n[Data file none\"}",
            "[Data file 00000000-0000-0000-0000-000000000000: all 7 bytes of this result, text/plain. Read parts of it with \
             read_data_file.]",
        ];
        assert_eq!(lasting(&all).collect::<Vec<_>>(), expected);
        assert_eq!(lasting("").next(), None);
    }
}
