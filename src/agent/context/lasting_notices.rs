//! Words that hold on where their messages are shown no more: references to data files, changes by a person, and what a
//! person has written, because a correction may be in it.
//!
//! They come from the transcript, whatever a summary has kept of them. Of more than [`MOST`] characters the oldest go.

use crate::agent::calls::notice::lasting;
use crate::agent::context::cut::beginning;
use crate::domain::conversation::is_of_person;
use crate::domain::run::TranscriptMessage;

/// Characters of all of them together.
const MOST: usize = 8_000;
/// Longest one, in characters.
const LONGEST: usize = 1_000;
/// The words before notices on results.
const RESULTS: &str = "[Earlier in this conversation] These notices on results of your calls still hold:";
/// The words before what a person has written.
const PERSON: &str = "[Earlier in this conversation] The user has written, oldest first:";

/// Words that hold on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastingNotice {
    /// A notice on a result, behind the name of its tool.
    OfResult(String),
    /// The beginning of a person's message.
    OfPerson(String),
}

impl LastingNotice {
    fn text(&self) -> &str {
        match self {
            LastingNotice::OfResult(text) | LastingNotice::OfPerson(text) => text,
        }
    }
}

/// The words of a message that hold on.
pub fn lasting_notices_of(message: &TranscriptMessage) -> Vec<LastingNotice> {
    match message {
        TranscriptMessage::Tool { name, notices, .. } => {
            let short = |notice: &str| format!("{name}: {}", beginning(notice, LONGEST));
            lasting(notices).map(|notice| LastingNotice::OfResult(short(notice))).collect()
        }
        TranscriptMessage::User { text, metadata } if is_of_person(metadata) => {
            vec![LastingNotice::OfPerson(beginning(text, LONGEST))]
        }
        _ => Vec::new(),
    }
}

/// The last of them, as many as there is room for.
pub fn bounded(mut notices: Vec<LastingNotice>) -> Vec<LastingNotice> {
    let mut room = MOST;
    let mut fits = |notice: &LastingNotice| {
        let left = room.checked_sub(notice.text().chars().count());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = notices.iter().rev().take_while(|notice| fits(notice)).count();
    notices.split_off(notices.len() - kept)
}

/// The message that tells the model of them. Notices are words of the service, and no data from outside.
pub fn lasting_notices_text(notices: &[LastingNotice]) -> String {
    let (of_person, of_results): (Vec<_>, Vec<_>) =
        notices.iter().partition(|notice| matches!(notice, LastingNotice::OfPerson(_)));
    let list = |(introduction, notices): (&str, Vec<&LastingNotice>)| {
        let lines = notices.iter().map(|notice| format!("\n- {}", notice.text())).collect::<String>();
        (!lines.is_empty()).then(|| format!("{introduction}{lines}"))
    };
    [(RESULTS, of_results), (PERSON, of_person)].into_iter().filter_map(list).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::calls::notice::edited_notice;

    #[test]
    fn lasting_notice_is_shown_up_to_its_longest() {
        let edited = |length: usize| {
            let notice = edited_notice(&json!("x".repeat(length)));
            let message = TranscriptMessage::Tool {
                call_id: "1".into(),
                name: "look".into(),
                notices: vec![notice.clone()],
                content: String::new(),
                is_error: false,
                reasons: vec![],
                fetched_at: None,
            };
            (lasting_notices_of(&message).remove(0).text().to_owned(), format!("look: {}", notice.text.trim_end()))
        };
        let (shown, whole) = edited(LONGEST - edited(0).1.len() + "look: ".len());
        assert_eq!((shown.as_str(), whole.len()), (whole.as_str(), LONGEST + "look: ".len()));
        let (shown, whole) = edited(LONGEST);
        assert_eq!(shown, format!("{}…", &whole[..LONGEST + "look: ".len()]));
    }

    #[test]
    fn oldest_lasting_notices_go_where_there_are_too_many() {
        let notice = |number: usize| {
            let text = format!("{number:03}{}", "x".repeat(97));
            if number.is_multiple_of(2) { LastingNotice::OfResult(text) } else { LastingNotice::OfPerson(text) }
        };
        assert_eq!(bounded((0..80).map(notice).collect()).len(), 80);
        let kept = bounded((0..81).map(notice).collect());
        assert_eq!((kept.len(), &kept[0]), (80, &notice(1)));
        assert_eq!(bounded(vec![LastingNotice::OfPerson("x".repeat(MOST + 1))]), []);
    }

    #[test]
    fn message_of_a_person_holds_on_up_to_its_longest_and_one_of_the_service_does_not() {
        let message = |text: &str, metadata: serde_json::Value| TranscriptMessage::User {
            text: text.into(),
            metadata: metadata.as_object().unwrap().clone(),
        };
        let chat = || json!({ "source": "chat", "trigger_type": "chat" });
        let long = "é".repeat(LONGEST + 1);
        let cut = format!("{}…", "é".repeat(LONGEST));
        for (text, shown) in [("In euros,\n- please.", "In euros, - please."), (long.as_str(), cut.as_str())] {
            let of_person = [LastingNotice::OfPerson(shown.into())];
            assert_eq!(lasting_notices_of(&message(text, chat())), of_person);
            let earlier = json!({ "source": "history", "trigger_type": "chat", "run_id": "1" });
            assert_eq!(lasting_notices_of(&message(text, earlier)), of_person);
        }
        for other in
            [json!({ "source": "trigger", "trigger_type": "schedule" }), json!({ "source": "agent" }), json!({})]
        {
            assert_eq!(lasting_notices_of(&message("Look.", other)), []);
        }
    }

    #[test]
    fn words_of_a_person_are_told_behind_notices_and_apart_from_them() {
        let (notice, word) =
            (LastingNotice::OfResult("look: x".into()), |text: &str| LastingNotice::OfPerson(text.into()));
        let all = [word("In euros."), notice.clone(), word("No, in yen.")];
        let (results, person) = (format!("{RESULTS}\n- look: x"), format!("{PERSON}\n- In euros.\n- No, in yen."));
        assert_eq!(lasting_notices_text(&all), format!("{results}\n\n{person}"));
        assert_eq!(lasting_notices_text(&[notice]), results);
        assert_eq!(lasting_notices_text(&[word("In euros."), word("No, in yen.")]), person);
    }
}
