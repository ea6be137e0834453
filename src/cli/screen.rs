//! Standard output: tables and colour on a terminal, plain aligned text in a pipe, JSON where asked for.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use serde_json::Value;
use uuid::Uuid;

use crate::config::Environment;

/// Where a command prints to.
pub struct Screen {
    out: Box<dyn Write + Send>,
    /// A person reads along, and nothing keeps what is printed.
    pub terminal: bool,
    /// Colours and line drawing may be used.
    pub coloured: bool,
    /// Columns of the terminal; `None` in a pipe, where lines are as long as they are.
    width: Option<u16>,
}

/// How a piece of text stands out on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Notable,
}

impl Tone {
    fn colour(self) -> Option<Color> {
        match self {
            Tone::Good => Some(Color::Green),
            Tone::Bad => Some(Color::Red),
            Tone::Notable => Some(Color::Yellow),
            Tone::Plain | Tone::Strong | Tone::Faint => None,
        }
    }
}

/// Columns whose cells are a state.
const STATES: [&str; 3] = ["state", "status", "last run"];

/// How a state of anything stands out: what went well, what did not, and what somebody may want to look at.
pub fn tone_of(state: &str) -> Tone {
    match state {
        "active" | "succeeded" | "delivered" | "sent" | "approved" | "edited" | "connected" => Tone::Good,
        "failed" | "expired" | "unknown" | "disabled" | "needs_consent" => Tone::Bad,
        "queued" | "running" | "pending" | "completed" | "" => Tone::Plain,
        _ => Tone::Notable,
    }
}

impl Screen {
    pub fn of_process(environment: &Environment) -> Screen {
        let out = io::stdout();
        let terminal = out.is_terminal();
        let width = rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col).filter(|columns| *columns > 0);
        // https://no-color.org
        let coloured = terminal && environment.get("NO_COLOR").is_none() && environment.get("TERM") != Some("dumb");
        // a pipe gets whole blocks, a terminal each line
        let out: Box<dyn Write + Send> = if terminal { Box::new(out) } else { Box::new(io::BufWriter::new(out)) };
        Screen { out, terminal, coloured, width: width.filter(|_| terminal) }
    }

    /// Prints to `out` as to a pipe.
    #[cfg(test)]
    pub fn plain(out: impl Write + Send + 'static) -> Screen {
        Screen { out: Box::new(out), terminal: false, coloured: false, width: None }
    }

    /// Columns of the terminal; `None` in a pipe.
    pub fn width(&self) -> Option<u16> {
        self.width
    }

    pub fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.out, "{}", text.as_ref())
    }

    /// Prints text without ending the line, at once: an answer as it comes.
    pub fn piece(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    pub fn json(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{value:#}")
    }

    /// One JSON value to a line, flushed: for streams.
    pub fn json_line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{value}")?;
        self.out.flush()
    }

    pub fn tone(&self, tone: Tone, text: impl AsRef<str>) -> String {
        let code = match tone {
            Tone::Plain => return text.as_ref().to_owned(),
            _ if !self.coloured => return text.as_ref().to_owned(),
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Notable => "33",
        };
        format!("\u{1b}[{code}m{}\u{1b}[0m", text.as_ref())
    }

    /// A table with a heading; cells that are too wide for the terminal are wrapped.
    pub fn table(&mut self, heading: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        match self.width {
            Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        table.set_header(heading.iter().map(|name| name.to_uppercase()));
        if self.coloured {
            table.enforce_styling();
        }
        let whole = whole_columns(heading, &rows);
        let cell = |(name, text): (&&str, String)| {
            let tone = if STATES.contains(name) { tone_of(&text) } else { Tone::Plain };
            let cell = Cell::new(single_line(text));
            match tone.colour().filter(|_| self.coloured) {
                Some(colour) => cell.fg(colour),
                None => cell,
            }
        };
        table.add_rows(rows.into_iter().map(|row| heading.iter().zip(row).map(cell).collect::<Vec<_>>()));
        // what stands there is copied: an id over two lines is none
        for index in whole {
            if let Some(column) = table.column_mut(index) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        for (index, line) in table.lines().enumerate() {
            let line = line.trim_end().strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
            self.line(if index == 0 { self.tone(Tone::Strong, line) } else { line })?;
        }
        Ok(())
    }

    /// Names and values below one another; those without a value are left out.
    pub fn facts(&mut self, facts: &[(&str, String)]) -> io::Result<()> {
        let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
            let name = self.tone(Tone::Faint, format!("{name:<width$}"));
            let value = value.replace('\n', &format!("\n{:width$}  ", ""));
            self.line(format!("{name}  {value}"))?;
        }
        Ok(())
    }
}

/// The columns whose cells are never wrapped: the first, those of ids, which are copied, and those of states.
fn whole_columns(heading: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let is_id = |cell: &String| Uuid::try_parse(cell).is_ok();
    let holds_ids = |index: usize| heading[index] == "id" || rows.iter().filter_map(|row| row.get(index)).any(is_id);
    let is_whole = |index: &usize| *index == 0 || STATES.contains(&heading[*index]) || holds_ids(*index);
    (0..heading.len()).filter(is_whole).collect()
}

/// Foreign text can't move the cursor or break the table.
fn single_line(text: String) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A field of an answer as text: nothing for `null`, a string without its quotes.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// An instant to the second: `2026-12-24 15:00:00Z`; other text stays as it is.
pub fn time_of(value: &Value) -> String {
    let text = text_of(value);
    match chrono::DateTime::parse_from_rfc3339(&text) {
        Ok(instant) => instant.to_utc().format("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => text,
    }
}

/// At most `longest` characters, with `…` where something was cut.
pub fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some(_) => text.chars().take(longest.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// The text that a test's screen was given.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct TextPage(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl TextPage {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for TextPage {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn table_in_a_pipe_is_aligned_text_without_escapes() {
        let page = TextPage::default();
        let mut screen = Screen::plain(page.clone());
        let rows = vec![vec!["a".into(), "x\u{1b}[2Jy\nz".into()], vec!["longer".into(), "2".into()]];
        screen.table(&["name", "value"], rows).unwrap();
        assert_eq!(page.text(), "NAME    VALUE\na       x [2Jy z\nlonger  2\n");
    }

    #[test]
    fn ids_are_never_wrapped_and_states_are_coloured_on_a_terminal() {
        let page = TextPage::default();
        let id = "01a1fbdb-57c8-7000-8001-36569b0c637c";
        let mut screen = Screen { terminal: true, coloured: true, width: Some(70), ..Screen::plain(page.clone()) };
        let rows = vec![vec!["2026-11-21".into(), "failed".into(), "some longer text to be wrapped".into(), id.into()]];
        screen.table(&["at", "state", "outcome", "run"], rows).unwrap();
        let text = page.text();
        assert!(text.lines().any(|line| line.contains(id) && line.starts_with("2026-11-21")), "{text}");
        assert!(text.contains("\u{1b}[38;5;9m") && text.contains("failed"), "{text:?}");
        assert!(text.lines().count() > 2, "the rest is wrapped: {text}");
    }

    #[test]
    fn times_are_shown_to_the_second_in_utc() {
        assert_eq!(time_of(&json!("2026-12-24T16:00:00.123+01:00")), "2026-12-24 15:00:00Z");
        assert_eq!(time_of(&json!(null)), "");
    }

    #[test]
    fn text_is_cut_by_characters() {
        assert_eq!(cut("Grüße", 5), "Grüße");
        assert_eq!(cut("Grüße an", 5), "Grüß…");
    }
}
