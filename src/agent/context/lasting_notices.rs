//! Notices that hold on where their results are shown no more: references to data files, and changes by a person.
//!
//! They come from the transcript, whatever a summary has kept of them. Of more than [`MOST`] characters the oldest go.

use crate::agent::calls::notice::lasting;
use crate::agent::context::cut::beginning;
use crate::domain::run::TranscriptMessage;

/// Characters of all of them together.
const MOST: usize = 8_000;
/// Longest one, in characters.
const LONGEST: usize = 1_000;
/// The words before them.
const INTRODUCTION: &str = "[Earlier in this conversation] These notices on results of your calls still hold:";

/// The notices of a message that hold on, each behind the name of its tool.
pub fn lasting_notices_of(message: &TranscriptMessage) -> Vec<String> {
    match message {
        TranscriptMessage::Tool { name, notice: Some(notice), .. } => {
            lasting(notice).map(|notice| format!("{name}: {}", beginning(notice, LONGEST))).collect()
        }
        _ => Vec::new(),
    }
}

/// The last of them, as many as there is room for.
pub fn bounded(mut notices: Vec<String>) -> Vec<String> {
    let mut room = MOST;
    let mut fits = |notice: &String| {
        let left = room.checked_sub(notice.chars().count());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = notices.iter().rev().take_while(|notice| fits(notice)).count();
    notices.split_off(notices.len() - kept)
}

/// The message that tells the model of them. They are words of the service, and no data from outside.
pub fn lasting_notices_text(notices: &[String]) -> String {
    notices.iter().fold(INTRODUCTION.to_owned(), |text, notice| format!("{text}\n- {notice}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::calls::notice::edited_notice;

    #[test]
    fn lasting_notice_is_shown_up_to_its_longest() {
        let edited = |length: usize| {
            let notice = edited_notice(&serde_json::json!("x".repeat(length)));
            let message = TranscriptMessage::Tool {
                call_id: "1".into(),
                name: "look".into(),
                notice: Some(notice.clone()),
                content: String::new(),
                is_error: false,
                reasons: vec![],
                fetched_at: None,
            };
            (lasting_notices_of(&message).remove(0), format!("look: {}", notice.trim_end()))
        };
        let (shown, whole) = edited(LONGEST - edited(0).1.len() + "look: ".len());
        assert_eq!((shown.as_str(), whole.len()), (whole.as_str(), LONGEST + "look: ".len()));
        let (shown, whole) = edited(LONGEST);
        assert_eq!(shown, format!("{}…", &whole[..LONGEST + "look: ".len()]));
    }

    #[test]
    fn oldest_lasting_notices_go_where_there_are_too_many() {
        let notice = |number: usize| format!("{number:03}{}", "x".repeat(97));
        assert_eq!(bounded((0..80).map(notice).collect()).len(), 80);
        let kept = bounded((0..81).map(notice).collect());
        assert_eq!((kept.len(), &kept[0]), (80, &notice(1)));
        assert_eq!(bounded(vec!["x".repeat(MOST + 1)]), Vec::<String>::new());
    }
}
