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
const HANDLES: &str = "[Earlier in this conversation] These notices on results of your calls still hold:";

/// The notices of a message that hold on, each behind the name of its tool.
pub fn handles_of(message: &TranscriptMessage) -> Vec<String> {
    match message {
        TranscriptMessage::Tool { name, notice: Some(notice), .. } => {
            lasting(notice).map(|notice| format!("{name}: {}", beginning(notice, LONGEST))).collect()
        }
        _ => Vec::new(),
    }
}

/// The last of them, as many as there is room for.
pub fn bounded(mut handles: Vec<String>) -> Vec<String> {
    let mut room = MOST;
    let mut fits = |handle: &String| {
        let left = room.checked_sub(handle.chars().count());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = handles.iter().rev().take_while(|handle| fits(handle)).count();
    handles.split_off(handles.len() - kept)
}

/// The message that tells the model of them. They are words of the service, and no data from outside.
pub fn handles_text(handles: &[String]) -> String {
    handles.iter().fold(HANDLES.to_owned(), |text, handle| format!("{text}\n- {handle}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::calls::notice::edited_notice;

    #[test]
    fn handle_is_shown_up_to_its_longest() {
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
            (handles_of(&message).remove(0), format!("look: {}", notice.trim_end()))
        };
        let (shown, whole) = edited(LONGEST - edited(0).1.len() + "look: ".len());
        assert_eq!((shown.as_str(), whole.len()), (whole.as_str(), LONGEST + "look: ".len()));
        let (shown, whole) = edited(LONGEST);
        assert_eq!(shown, format!("{}…", &whole[..LONGEST + "look: ".len()]));
    }

    #[test]
    fn oldest_handles_go_where_there_are_too_many() {
        let handle = |number: usize| format!("{number:03}{}", "x".repeat(97));
        assert_eq!(bounded((0..80).map(handle).collect()).len(), 80);
        let kept = bounded((0..81).map(handle).collect());
        assert_eq!((kept.len(), &kept[0]), (80, &handle(1)));
        assert_eq!(bounded(vec!["x".repeat(MOST + 1)]), Vec::<String>::new());
    }
}
