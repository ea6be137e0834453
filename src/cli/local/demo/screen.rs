//! How the demo looks: a column of times, one of what happens, one of how; colours on a terminal, plain in a pipe.

use std::io;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use crate::cli::{Screen, Tone};
use crate::domain::trigger::zone::shown_in;

/// Columns of the time, and of what happens.
const TIME: usize = 14;
const EVENT: usize = 26;
/// Widest line: longer ones are hard to read.
const WIDEST: usize = 110;

/// The screen that the story is told on.
pub struct DemoScreen<'a> {
    screen: &'a mut Screen,
    zone: Tz,
    width: usize,
    /// The time that the last event was printed with.
    last: DateTime<Utc>,
}

impl<'a> DemoScreen<'a> {
    /// Times are shown in `zone`.
    pub fn new(screen: &'a mut Screen, zone: Tz) -> DemoScreen<'a> {
        let width = screen.width().map_or(WIDEST, |columns| usize::from(columns).clamp(60, WIDEST));
        DemoScreen { screen, zone, width, last: DateTime::UNIX_EPOCH }
    }

    pub fn title(&mut self, title: &str, subtitle: &str) -> io::Result<()> {
        let title = self.screen.tone(Tone::Strong, title);
        let subtitle = self.screen.tone(Tone::Faint, subtitle);
        self.screen.line(format!("\n{title}  {subtitle}\n"))?;
        self.screen.flush()
    }

    /// Prints an event of the time `at`; each line of `how` stands beside it.
    ///
    /// The demo hears of some events later than of others that come after them: a stream may be replayed when a
    /// notification has already arrived. The times never go back: an event that was heard of late takes the time of the
    /// one before it.
    pub fn print_event(&mut self, at: DateTime<Utc>, what: &str, tone: Tone, how: &str) -> io::Result<()> {
        self.last = self.last.max(at);
        let time = shown_in(self.last, self.zone).format("%H:%M:%S%.3f").to_string();
        let mut left = format!(
            "{}{}",
            self.screen.tone(Tone::Faint, format!("{time:TIME$}")),
            self.screen.tone(tone, format!("{what:EVENT$}"))
        );
        for line in how.lines().flat_map(|line| wrapped(line, self.width - TIME - EVENT)) {
            self.screen.line(format!("{left}{line}").trim_end())?;
            left = " ".repeat(TIME + EVENT);
        }
        self.screen.flush()
    }

    /// More of what is happening.
    pub fn print_details(&mut self, tone: Tone, how: &str) -> io::Result<()> {
        for line in how.lines().flat_map(|line| wrapped(line, self.width - TIME - EVENT)) {
            let line = self.screen.tone(tone, line);
            self.screen.line(format!("{:width$}{line}", "", width = TIME + EVENT))?;
        }
        self.screen.flush()
    }

    /// A line that is replaced by the next one; a pipe never sees it.
    pub fn show_progress(&mut self, text: &str) -> io::Result<()> {
        match self.screen.coloured {
            true => {
                let text = self.screen.tone(Tone::Faint, format!("{:TIME$}{text}", ""));
                self.screen.piece(&format!("\r\u{1b}[2K{text}"))
            }
            false => Ok(()),
        }
    }

    /// Takes the passing line away.
    pub fn clear_progress(&mut self) -> io::Result<()> {
        if self.screen.coloured { self.screen.piece("\r\u{1b}[2K") } else { Ok(()) }
    }

    /// A message as it looks on a phone.
    pub fn note(&mut self, heading: &str, text: &str) -> io::Result<()> {
        let inner = (self.width - TIME - 4).min(64);
        let indent = " ".repeat(TIME);
        let lines: Vec<String> = text.lines().flat_map(|line| wrapped(line, inner)).collect();
        let rule = "─".repeat(inner + 2);
        self.screen.line(format!("{indent}╭{rule}╮"))?;
        let heading = format!("{heading:inner$}");
        self.screen.line(format!("{indent}│ {} │", self.screen.tone(Tone::Strong, heading)))?;
        for line in lines {
            self.screen.line(format!("{indent}│ {line}{} │", " ".repeat(inner - line.chars().count())))?;
        }
        self.screen.line(format!("{indent}╰{rule}╯"))?;
        self.screen.flush()
    }

    /// A link to be opened, whole and on a line of its own however long it is.
    pub fn link(&mut self, link: &str) -> io::Result<()> {
        let link = self.screen.tone(Tone::Strong, link);
        self.screen.line(format!("{:TIME$}{link}", ""))?;
        self.screen.flush()
    }

    /// A paragraph below the story.
    pub fn paragraph(&mut self, text: &str) -> io::Result<()> {
        self.screen.line("")?;
        for line in text.lines().flat_map(|line| wrapped(line, self.width)) {
            self.screen.line(line)?;
        }
        self.screen.flush()
    }
}

/// A line as lines of at most `width` characters, broken between words where that is possible.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut rest = line;
    while let Some((end, past)) = rest.char_indices().nth(width) {
        // a space right behind the last column will do, too
        let at = rest[..end + past.len_utf8()].rfind(' ').filter(|at| *at > 0).unwrap_or(end);
        lines.push(rest[..at].trim_end().to_owned());
        rest = rest[at..].trim_start();
    }
    lines.push(rest.to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn times_never_go_back_where_an_event_is_heard_of_late() {
        let page = TextPage::default();
        let mut screen = Screen::plain(page.clone());
        let mut screen = DemoScreen::new(&mut screen, Tz::UTC);
        for (second, what) in [(3, "turn 2"), (2, "the run waits"), (4, "the phone rings")] {
            let at = DateTime::from_timestamp(second, 0).unwrap();
            screen.print_event(at, what, Tone::Strong, "as told").unwrap();
        }
        let printed = page.text();
        let times: Vec<&str> = printed.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(times, ["00:00:03.000", "00:00:03.000", "00:00:04.000"], "{printed}");
    }

    #[test]
    fn lines_are_broken_between_words_and_long_words_within() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("äöüäöüäöü", 4), ["äöüä", "öüäö", "ü"]);
        assert_eq!(wrapped("fits", 4), ["fits"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
