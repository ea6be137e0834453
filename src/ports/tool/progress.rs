//! How far a call of a tool is, told while it is made.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::unicode_safety::on_one_line;

/// Longest message about how far a call is, in characters.
pub const MESSAGE_CHARS: usize = 200;
/// The least time between two notes of one call.
pub const PACE: Duration = Duration::from_millis(500);

/// How far a call is.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressNote {
    /// How much is done, in a unit of the tool's.
    pub progress: f64,
    /// How much there is to do, in this unit.
    pub total: Option<f64>,
    /// The tool's words about it.
    pub message: Option<String>,
}

impl ProgressNote {
    /// The note as it is shown: its message on one line, with hidden characters shown, and cut. `None`: its number is
    /// none, and so it says nothing.
    pub fn shown(self) -> Option<ProgressNote> {
        let cut = |message: String| on_one_line(&message).chars().take(MESSAGE_CHARS).collect();
        self.progress.is_finite().then(|| ProgressNote {
            progress: self.progress,
            total: self.total.filter(|total| total.is_finite()),
            message: self.message.map(cut),
        })
    }
}

/// Where a call tells how far it is. Nobody may listen.
#[derive(Clone, Default)]
pub struct ToolProgress(Option<Arc<dyn Fn(ProgressNote) + Send + Sync>>);

impl ToolProgress {
    /// Notes go to this listener, which is told of one in half a second and of none that says nothing.
    pub fn to(tell: impl Fn(ProgressNote) + Send + Sync + 'static) -> ToolProgress {
        let told_at: Mutex<Option<Instant>> = Mutex::default();
        ToolProgress(Some(Arc::new(move |note: ProgressNote| {
            let Some(note) = note.shown() else { return };
            if is_due(&mut told_at.lock().expect("progress lock"), Instant::now()) {
                tell(note);
            }
        })))
    }

    /// Whether anybody listens.
    pub fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Tells how far the call is. A note too soon after another is dropped, and secrets are not looked for: a tool
    /// keeps its own out of its message.
    pub fn tell(&self, note: ProgressNote) {
        if let Some(tell) = &self.0 {
            tell(note);
        }
    }
}

/// Whether a note may be told now; if so, it was told now.
fn is_due(told_at: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = told_at.is_none_or(|told_at| now.saturating_duration_since(told_at) >= PACE);
    if is_due {
        *told_at = Some(now);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(progress: f64, message: &str) -> ProgressNote {
        ProgressNote { progress, total: None, message: Some(message.to_owned()) }
    }

    #[test]
    fn message_is_shown_at_its_longest_and_cut_beyond_it() {
        for (chars, shown) in [(MESSAGE_CHARS, MESSAGE_CHARS), (MESSAGE_CHARS + 1, MESSAGE_CHARS)] {
            assert_eq!(note(1.0, &"ü".repeat(chars)).shown(), Some(note(1.0, &"ü".repeat(shown))));
        }
        assert_eq!(note(1.0, "one\ntwo\u{202e}").shown(), Some(note(1.0, "one two\u{27e6}U+202E\u{27e7}")));
    }

    #[test]
    fn number_that_is_none_is_not_told() {
        for progress in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(note(progress, "on").shown(), None);
        }
        let endless = ProgressNote { total: Some(f64::INFINITY), ..note(1.0, "on") };
        assert_eq!(endless.shown(), Some(note(1.0, "on")));
    }

    #[test]
    fn note_is_told_once_the_pace_allows_it() {
        let (mut told_at, begun) = (None, Instant::now());
        let just_before = PACE - Duration::from_millis(1);
        for (after, is_told) in [(Duration::ZERO, true), (just_before, false), (PACE, true), (PACE, false)] {
            assert_eq!(is_due(&mut told_at, begun + after), is_told, "{after:?}");
        }
    }

    #[test]
    fn listener_is_told_the_first_of_many_notes_at_once_and_where_there_is_none_nothing_happens() {
        let heard: Arc<Mutex<Vec<ProgressNote>>> = Arc::default();
        let listener = Arc::clone(&heard);
        let progress = ToolProgress::to(move |note| listener.lock().unwrap().push(note));
        assert!(progress.is_heard() && progress.clone().is_heard() && !ToolProgress::default().is_heard());
        ToolProgress::default().tell(note(1.0, "to nobody"));
        progress.tell(note(f64::NAN, "says nothing, and takes nobody's turn"));
        (1..=100).for_each(|done| progress.tell(note(f64::from(done), "on")));
        assert_eq!(*heard.lock().unwrap(), [note(1.0, "on")]);
    }
}
