//! Words of the service that the model reads before the result of a call, a paragraph each.
//!
//! Some hold for as long as the conversation does: a change or an answer by a person, and where all of a result is.
//! They stay in it when their result is shown no more. They are known by their kind, whatever they say.

use serde_json::Value;
use uuid::Uuid;

use crate::domain::run::{ResultNotice, ResultNoticeKind};
use crate::ports::tool::builtin::read_data_file::READ_DATA_FILE;

/// The end of a paragraph.
const END: &str = "\n\n";

/// Tells that a person has changed the arguments of the call, and to what.
pub fn edited_notice(arguments: &Value) -> ResultNotice {
    notice(ResultNoticeKind::Edited, &format!("The user changed the arguments before approving: {arguments}"))
}

/// Tells what a person has answered who was asked for it.
pub fn answered_notice(given: &Value) -> ResultNotice {
    notice(ResultNoticeKind::Answered, &format!("The user answered: {given}"))
}

/// Tells that a person has done at another place, and not in a form, what they were asked for.
pub fn done_notice() -> ResultNotice {
    notice(ResultNoticeKind::Answered, "The user said that what the server asked for is done.")
}

/// Tells that a person did not want to answer a server.
pub fn declined_notice() -> ResultNotice {
    notice(ResultNoticeKind::Answered, "The user declined to answer the server.")
}

/// Tells in which data file all of the result is.
pub fn data_file_notice(id: Uuid, bytes: usize, media_type: &str) -> ResultNotice {
    let text = format!(
        "[Data file {id}: all {bytes} bytes of this result, {media_type}. Read parts of it with {READ_DATA_FILE}.]"
    );
    notice(ResultNoticeKind::DataFile, &text)
}

/// Tells why all of the result is in no data file.
pub fn no_data_file_notice(why: &str) -> ResultNotice {
    notice(ResultNoticeKind::Other, &format!("[No data file was written: {why}]"))
}

/// Tells that the agent that was called has not come to its end.
pub fn turn_limit_notice() -> ResultNotice {
    let text = "The agent was stopped at its limit of turns; this is as far as it came.";
    notice(ResultNoticeKind::Other, text)
}

/// Tells that the model goes round in circles.
pub fn repetition_notice(happened: &str) -> ResultNotice {
    notice(ResultNoticeKind::Repetition, &format!("[Repetition] {happened}"))
}

fn notice(kind: ResultNoticeKind, paragraph: &str) -> ResultNotice {
    ResultNotice { kind, text: format!("{paragraph}{END}") }
}

/// The words of those notices that hold on.
pub fn lasting(notices: &[ResultNotice]) -> impl Iterator<Item = &str> {
    let lasting = notices.iter().filter(|notice| is_lasting(notice.kind));
    lasting.map(|notice| notice.text.strip_suffix(END).unwrap_or(notice.text.as_str()))
}

fn is_lasting(kind: ResultNoticeKind) -> bool {
    match kind {
        ResultNoticeKind::Edited | ResultNoticeKind::Answered | ResultNoticeKind::DataFile => true,
        ResultNoticeKind::Repetition | ResultNoticeKind::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_answers_and_references_hold_on_and_other_notices_do_not() {
        let all = [
            repetition_notice("Stop."),
            answered_notice(&json!({ "party": 4 })),
            declined_notice(),
            done_notice(),
            edited_notice(&json!({ "text": "one\n\n[Data file none" })),
            data_file_notice(Uuid::nil(), 7, "text/plain"),
            no_data_file_notice("it is full"),
        ];
        let expected = [
            "The user answered: {\"party\":4}",
            "The user declined to answer the server.",
            "The user said that what the server asked for is done.",
            "The user changed the arguments before approving: {\"text\":\"one\\n\\n[Data file none\"}",
            "[Data file 00000000-0000-0000-0000-000000000000: all 7 bytes of this result, text/plain. Read parts of it with \
             read_data_file.]",
        ];
        assert_eq!(lasting(&all).collect::<Vec<_>>(), expected);
        assert_eq!(lasting(&[]).next(), None);
    }

    #[test]
    fn notice_in_other_words_holds_on_by_its_kind() {
        let reworded =
            |kind: ResultNoticeKind| ResultNotice { kind, text: format!("Geändert: {}.\n\n", kind.as_str()) };
        let all = ResultNoticeKind::ALL.map(reworded);
        let expected = ["Geändert: edited.", "Geändert: answered.", "Geändert: data_file."];
        assert_eq!(lasting(&all).collect::<Vec<_>>(), expected);
        let others = ["The user answered: x\n\n", "[Data file none.\n\n"].map(ResultNotice::other);
        assert_eq!(lasting(&others).next(), None, "no words make a notice hold on");
    }
}
