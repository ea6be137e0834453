//! CSV by RFC 4180: whether an answer is meant as such, and what is wrong with it. Both look at each character once.

/// Rows of an answer that is taken for CSV where its channel carries other formats, too, with the names of the columns.
const FEWEST_ROWS: usize = 3;
/// The fence of a code block in Markdown.
const FENCE: &str = "```";

/// Where a reader of CSV stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldState {
    /// Before the first character of a field.
    Begun,
    /// In a field without quotes.
    Plain,
    /// Between quotes.
    Quoted,
    /// Behind a quote that may have been the last one.
    Closed,
}

/// Whether a text looks like rows, with the names of the columns first: most lines have as many commas, with no space
/// behind them, as the first one. Prose has its commas before spaces.
pub fn looks_like_csv(text: &str) -> bool {
    let text = text.trim();
    if text.strip_prefix(FENCE).is_some_and(|rest| rest.starts_with("csv")) {
        return true;
    }
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let is_name = |field: &str| field.trim() == field && field.contains(char::is_alphabetic);
    let columns = commas(header);
    if columns == 0 || !header.split(',').all(is_name) {
        return false;
    }
    let (mut rows, mut alike) = (1, 1);
    for line in lines.filter(|line| !line.trim().is_empty()) {
        rows += 1;
        alike += usize::from(commas(line) >= columns);
    }
    rows >= FEWEST_ROWS && alike * 2 > rows
}

/// Commas of a line with no space behind them.
fn commas(line: &str) -> usize {
    let bytes = line.as_bytes();
    let is_followed = |at: usize| bytes.get(at + 1) == Some(&b' ');
    bytes.iter().enumerate().filter(|(at, byte)| **byte == b',' && !is_followed(*at)).count()
}

/// Why a text is not CSV: rows have as many fields as the first one, and quotes stand around whole fields.
pub fn fault(text: &str) -> Option<String> {
    let text = text.trim_end_matches(['\r', '\n']);
    if text.trim().is_empty() {
        return Some("it has no rows".into());
    }
    if text.trim_start().starts_with(FENCE) {
        return Some("it stands in a code block".into());
    }
    let mut state = FieldState::Begun;
    let (mut line, mut row_begins, mut quote_opens) = (1, 1, 1);
    let (mut fields, mut columns) = (1, None);
    // the end of the text ends the last row
    for byte in text.bytes().chain([b'\n']) {
        match (state, byte) {
            (FieldState::Quoted, b'"') => state = FieldState::Closed,
            (FieldState::Quoted, b'\n') => line += 1,
            (FieldState::Quoted, _) | (_, b'\r') => {}
            (_, b',') => (fields, state) = (fields + 1, FieldState::Begun),
            (_, b'\n') => {
                let columns = *columns.get_or_insert(fields);
                if columns != fields {
                    return Some(format!("line {row_begins} has {}, and the first row has {columns}", counted(fields)));
                }
                line += 1;
                (row_begins, fields, state) = (line, 1, FieldState::Begun);
            }
            (FieldState::Begun, b'"') => (quote_opens, state) = (line, FieldState::Quoted),
            // two quotes between quotes stand for one
            (FieldState::Closed, b'"') => state = FieldState::Quoted,
            (FieldState::Closed, _) => return Some(format!("in line {line} text stands behind a quoted field")),
            (FieldState::Plain, b'"') => {
                return Some(format!("in line {line} a quote stands in a field that is not quoted"));
            }
            (FieldState::Begun | FieldState::Plain, _) => state = FieldState::Plain,
        }
    }
    (state == FieldState::Quoted).then(|| format!("the quoted field that begins in line {quote_opens} has no end"))
}

/// `1 field`, `2 fields`.
fn counted(fields: usize) -> String {
    let plural = if fields == 1 { "" } else { "s" };
    format!("{fields} field{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_by_rfc_4180_is_sound() {
        for sound in [
            "name,price\nTea,3",
            "name,price\r\nTea,3\r\n",
            "name,note\nTea,\"black, \"\"strong\"\"\"\nMilk,\"two\nlines\"\n",
            "name,price\nTea,\n,3\n",
            "name\nTea\nMilk",
            "名前,値\n茶,3",
            "name,\"price, EUR\"\n\"\",3",
        ] {
            assert_eq!(fault(sound), None, "{sound:?}");
        }
    }

    #[test]
    fn fault_is_named_with_its_line() {
        for (broken, told) in [
            ("", "it has no rows"),
            (" \n", "it has no rows"),
            ("```csv\na,b\n1,2\n```", "it stands in a code block"),
            ("Here are the rows:\na,b\n1,2", "line 2 has 2 fields, and the first row has 1"),
            ("a,b\n1,2\n\n3,4", "line 3 has 1 field, and the first row has 2"),
            ("a,b\n\"x\ny\",2\n1,2,3", "line 4 has 3 fields, and the first row has 2"),
            ("a,b\n1,\"2\n3,4", "the quoted field that begins in line 2 has no end"),
            ("a,b\n\"1\"x,2", "in line 2 text stands behind a quoted field"),
            ("a,b\n5\" disk,2", "in line 2 a quote stands in a field that is not quoted"),
        ] {
            assert_eq!(fault(broken).as_deref(), Some(told), "{broken:?}");
        }
    }

    #[test]
    fn rows_are_told_from_prose() {
        for rows in
            ["name,price\nTea,3\nMilk,1,50", "```csv\na,b\n```", "name,note\nTea,\"black, strong\"\nMilk,cold\n"]
        {
            assert!(looks_like_csv(rows), "{rows:?}");
        }
        for prose in [
            "",
            "Hello, Ann.\nTea is at 3, milk at 1.\nSee you, Bob.",
            "Dear Ann,\nthe tea is here,\nyours,\nBob",
            "- Tea,3\nThat is all.\nNothing else, today.",
            "1,000 rows\n2,000 rows\n3,000 rows",
            "name,price",
        ] {
            assert!(!looks_like_csv(prose), "{prose:?}");
        }
    }
}
