//! A table, as far as a format can show one: a real one in HTML, columns in a block of code, or a line for each cell.

use crate::ports::channel::templates::MessageFormat;
use crate::ports::channel::templates::markup::escaped;

/// Widest table that is shown in columns, in characters: a phone breaks wider lines.
const WIDEST: usize = 56;
/// Most columns that are shown.
pub const COLUMNS: usize = 50;
const BETWEEN: &str = "  ";

/// A table as it is read: texts alone.
#[derive(Debug, Default)]
pub struct MarkupTable {
    /// The first is the head.
    rows: Vec<Vec<String>>,
}

impl MarkupTable {
    /// Begins a row.
    pub fn row(&mut self) {
        self.rows.push(Vec::new());
    }

    /// Begins a cell of the last row, where it may have one more.
    pub fn cell(&mut self) {
        if let Some(row) = self.rows.last_mut().filter(|row| row.len() < COLUMNS) {
            row.push(String::new());
        }
    }

    /// Adds to the text of the last cell.
    pub fn text(&mut self, text: &str) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.last_mut()) {
            cell.push_str(text);
        }
    }

    /// The whole, as a block of its own. `push` is given one line after the other.
    pub fn show(&self, format: MessageFormat, push: &mut dyn FnMut(&str)) {
        match format {
            MessageFormat::Html => self.html(push),
            MessageFormat::Mrkdwn | MessageFormat::Telegram if self.width() <= WIDEST => self.columns(format, push),
            MessageFormat::Mrkdwn | MessageFormat::Telegram | MessageFormat::Plain => self.lines(format, push),
        }
    }

    fn html(&self, push: &mut dyn FnMut(&str)) {
        push("<table>");
        for (index, row) in self.rows.iter().enumerate() {
            let sign = if index == 0 { "th" } else { "td" };
            let cells: Vec<String> = row
                .iter()
                .map(|cell| format!("<{sign} dir=\"auto\">{}</{sign}>", escaped(cell.trim(), MessageFormat::Html)))
                .collect();
            push(&format!("\n<tr>{}</tr>", cells.concat()));
        }
        push("</table>");
    }

    fn columns(&self, format: MessageFormat, push: &mut dyn FnMut(&str)) {
        let widths = self.widths();
        push(if format == MessageFormat::Telegram { "<pre>" } else { "```\n" });
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                // a backtick would end the block
                .map(|(cell, width)| format!("{:width$}", cell.trim().replace('`', "'"), width = *width))
                .collect();
            let line = cells.join(BETWEEN);
            push(&format!("{}\n", escaped(line.trim_end(), format)));
            if index == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                push(&format!("{}\n", rule.join(BETWEEN)));
            }
        }
        push(if format == MessageFormat::Telegram { "</pre>" } else { "```" });
    }

    /// `head: cell`, and an empty line between rows.
    fn lines(&self, format: MessageFormat, push: &mut dyn FnMut(&str)) {
        let Some((head, rows)) = self.rows.split_first() else { return };
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                push("\n\n");
            }
            let filled = row.iter().enumerate().filter(|(_, cell)| !cell.trim().is_empty());
            for (place, (at, cell)) in filled.enumerate() {
                if place > 0 {
                    push("\n");
                }
                let head = head.get(at).map(|head| head.trim()).filter(|head| !head.is_empty());
                let head = head.map(|head| format!("{}: ", escaped(head, format))).unwrap_or_default();
                push(&format!("{head}{}", escaped(cell.trim(), format)));
            }
        }
        if rows.is_empty() {
            push(&escaped(&head.iter().map(|head| head.trim()).collect::<Vec<_>>().join(BETWEEN), format));
        }
    }

    /// Characters of the widest cell of each column.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.trim().chars().count()).max();
        (0..columns).map(|at| width(at).unwrap_or(0)).collect()
    }

    fn width(&self) -> usize {
        let widths = self.widths();
        widths.iter().sum::<usize>() + widths.len().saturating_sub(1) * BETWEEN.len()
    }
}
