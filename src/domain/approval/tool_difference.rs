//! The difference between two definitions of a tool, in lines that a person reads.
//!
//! Definitions are words of a server: hidden characters are shown, and there is a bound to each line and to all of
//! them. A line that is longer than its bound goes on in the next one, so that nothing of it is left out.

use serde_json::{Map, Value};

use crate::base::unicode_safety::escape_hidden;

/// Lines that are shown.
pub const LINES: usize = 400;
/// Lines of a section that are compared one by one, of each side.
pub const COMPARED: usize = 1_000;
/// Longest line, in characters, besides its sign.
pub const LINE_CHARS: usize = 500;
/// Lines that are shown before and behind a change.
const CONTEXT: usize = 2;
/// Stands for lines that are not shown since they stay as they are.
const GAP: &str = "…";
/// Parts of a definition, in the order in which they are shown.
const SECTIONS: [&str; 4] = ["description", "hints", "parameters", "output_schema"];
/// Stands for all parts where a text is no definition.
const WHOLE: &str = "definition";

/// A line behind the sign of its side: `-` before, `+` after, and a blank on both.
type SignedLine<'a> = (char, &'a str);

/// The lines in which a definition differs from the one before it, each behind its sign: `- `, `+ `, and two blanks
/// where it stays as it is. A section with a change begins with its name and a colon, without a sign. `before` is
/// `None` for a tool that is new.
pub fn difference(before: Option<&str>, after: &str) -> Vec<String> {
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    let lines: Vec<String> = match (before.map_or(Some(Map::new()), read), read(after)) {
        (Some(before), Some(after)) => {
            let sections =
                SECTIONS.iter().map(|name| section(name, &lines(before.get(*name)), &lines(after.get(*name))));
            sections.flatten().collect()
        }
        _ => section(WHOLE, &before.map_or_else(Vec::new, lines_of), &lines_of(after)),
    };
    bounded(lines)
}

fn bounded(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES);
    if more > 0 {
        lines.truncate(LINES);
        lines.push(format!("… {more} more {}", if more == 1 { "line" } else { "lines" }));
    }
    lines
}

/// Lines of a part: a text as it is, all else as indented JSON.
fn lines(part: Option<&Value>) -> Vec<String> {
    match part {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => lines_of(text),
        Some(value) => lines_of(&format!("{value:#}")),
    }
}

/// Lines of a text, none longer than [`LINE_CHARS`].
fn lines_of(text: &str) -> Vec<String> {
    text.split('\n').flat_map(|line| pieces(&escape_hidden(line))).collect()
}

fn pieces(line: &str) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    match chars.is_empty() {
        true => vec![String::new()],
        false => chars.chunks(LINE_CHARS).map(|piece| piece.iter().collect()).collect(),
    }
}

/// The changes of a section below its name; nothing where it stays as it is.
fn section(name: &str, before: &[String], after: &[String]) -> Vec<String> {
    if before == after {
        return Vec::new();
    }
    let mut lines = vec![format!("{name}:")];
    lines.extend(with_context(&compared(before, after)));
    lines
}

/// The changes with the lines around them, and a gap for the others.
fn with_context(lines: &[SignedLine<'_>]) -> Vec<String> {
    let mut shown = Vec::new();
    let mut is_in_gap = false;
    for (at, (sign, text)) in lines.iter().enumerate() {
        let around = &lines[at.saturating_sub(CONTEXT)..lines.len().min(at + CONTEXT + 1)];
        let is_shown = around.iter().any(|(sign, _)| *sign != ' ');
        if is_shown {
            shown.push(format!("{sign} {text}"));
        } else if !is_in_gap {
            shown.push(GAP.to_owned());
        }
        is_in_gap = !is_shown;
    }
    shown
}

/// The lines of both sides in one order.
fn compared<'a>(before: &'a [String], after: &'a [String]) -> Vec<SignedLine<'a>> {
    let begin = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let rest = before.len().min(after.len()) - begin;
    let ends = before.iter().rev().zip(after.iter().rev()).take(rest);
    let end = ends.take_while(|(one, other)| one == other).count();
    let (gone, new) = (&before[begin..before.len() - end], &after[begin..after.len() - end]);
    let mut lines = signed(' ', &before[..begin]);
    match gone.len().max(new.len()) > COMPARED {
        true => lines.extend(signed('-', gone).into_iter().chain(signed('+', new))),
        false => lines.extend(aligned(gone, new)),
    }
    lines.extend(signed(' ', &before[before.len() - end..]));
    lines
}

/// As [`compared`], by the longest sequence of lines that both sides have in common.
fn aligned<'a>(gone: &'a [String], new: &'a [String]) -> Vec<SignedLine<'a>> {
    let width = new.len() + 1;
    // at `i * width + j`: the length of that sequence behind line `i` of the one side and line `j` of the other
    let mut common = vec![0_u16; (gone.len() + 1) * width];
    for i in (0..gone.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = match gone[i] == new[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let mut lines = Vec::with_capacity(gone.len() + new.len());
    let (mut i, mut j) = (0, 0);
    while i < gone.len() && j < new.len() {
        if gone[i] == new[j] {
            lines.push((' ', gone[i].as_str()));
            (i, j) = (i + 1, j + 1);
        } else if common[(i + 1) * width + j] >= common[i * width + j + 1] {
            lines.push(('-', gone[i].as_str()));
            i += 1;
        } else {
            lines.push(('+', new[j].as_str()));
            j += 1;
        }
    }
    lines.extend(signed('-', &gone[i..]));
    lines.extend(signed('+', &new[j..]));
    lines
}

fn signed(sign: char, lines: &[String]) -> Vec<SignedLine<'_>> {
    lines.iter().map(|line| (sign, line.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::approval::proposal::canonical_text;

    fn described(description: &str) -> String {
        definition(description, json!({ "type": "object", "properties": {} }))
    }

    fn definition(description: &str, parameters: Value) -> String {
        let hints = json!({ "read_only": null, "destructive": null, "idempotent": null });
        let whole = json!({
            "name": "search", "description": description, "parameters": parameters, "output_schema": null,
            "hints": hints,
        });
        canonical_text(&whole)
    }

    /// So many lines with their numbers.
    fn numbered(of: &str, count: usize) -> String {
        (0..count).map(|n| format!("{of}{n}")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn changed_lines_of_a_description_are_shown_with_two_around_them() {
        let before = described("a\nb\nc\nd\ne\nf\ng\nh");
        let after = described("a\nb\nc\nd\nE\nf\ng\nh");
        let shown = difference(Some(&before), &after);
        assert_eq!(shown, ["description:", "…", "  c", "  d", "- e", "+ E", "  f", "  g", "…"]);
        assert!(difference(Some(&before), &before).is_empty());
    }

    #[test]
    fn lines_that_are_taken_away_and_added_are_told_from_those_that_stay() {
        let shown = difference(Some(&described("a\nb\nc\nd")), &described("b\nx\nd\ny"));
        assert_eq!(shown, ["description:", "- a", "  b", "- c", "+ x", "  d", "+ y"]);
    }

    #[test]
    fn keys_that_are_added_to_a_schema_are_shown_and_those_that_stay_are_not() {
        let one = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let two = json!({ "type": "object", "properties": { "b": { "type": "number" }, "a": { "type": "string" } } });
        let shown = difference(Some(&definition("Searches.", one)), &definition("Searches.", two));
        assert_eq!(shown.first().map(String::as_str), Some("parameters:"));
        assert!(shown.contains(&"+     \"b\": {".to_owned()), "{shown:?}");
        assert!(!shown.iter().any(|line| line.starts_with('-')), "{shown:?}");
    }

    #[test]
    fn hints_and_the_schema_of_the_result_are_sections_of_their_own() {
        let before = described("Searches.");
        let after = before.replace(r#""destructive":null"#, r#""destructive":true"#);
        let after = after.replace(r#""output_schema":null"#, r#""output_schema":{"type":"object"}"#);
        let shown = difference(Some(&before), &after);
        let hint = shown.iter().position(|line| line == "+   \"destructive\": true,").expect("the hint");
        let result = shown.iter().position(|line| line == "output_schema:").expect("the result");
        assert!(shown[0] == "hints:" && hint < result, "{shown:?}");
        assert!(shown.contains(&"+   \"type\": \"object\"".to_owned()), "{shown:?}");
    }

    #[test]
    fn hidden_characters_are_shown_and_a_return_is_a_change() {
        let shown = difference(Some(&described("pay\nnow")), &described("pay\u{202e}\nnow\r"));
        let expected = ["description:", "- pay", "- now", "+ pay\u{27e6}U+202E\u{27e7}", "+ now\u{240d}"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn all_lines_of_a_new_tool_are_new() {
        let shown = difference(None, &described("Searches."));
        assert_eq!(shown[..3], ["description:", "+ Searches.", "hints:"]);
        assert!(shown.iter().all(|line| line.starts_with("+ ") || line.ends_with(':')), "{shown:?}");
    }

    #[test]
    fn text_that_is_no_definition_is_one_block() {
        assert_eq!(difference(Some("[1]"), "two\nlines"), ["definition:", "- [1]", "+ two", "+ lines"]);
        assert_eq!(difference(None, "[1]"), ["definition:", "+ [1]"]);
    }

    #[test]
    fn line_goes_on_in_the_next_one_beyond_its_bound() {
        let shown = |chars: usize| difference(Some(&described("a")), &described(&"é".repeat(chars)));
        assert_eq!(shown(LINE_CHARS), ["description:", "- a", &format!("+ {}", "é".repeat(LINE_CHARS))]);
        let longer = shown(LINE_CHARS + 1);
        assert_eq!(longer[2..], [format!("+ {}", "é".repeat(LINE_CHARS)), "+ é".to_owned()]);
        // a change behind the bound is seen, too
        let long = |end: &str| described(&format!("{}{end}", "x".repeat(LINE_CHARS)));
        let shown = difference(Some(&long("before")), &long("after"));
        assert_eq!(shown[2..], ["- before", "+ after"]);
    }

    #[test]
    fn lines_are_shown_up_to_the_most_and_counted_beyond_it() {
        let shown = |lines: usize| difference(Some(&described("old")), &described(&numbered("new", lines)));
        // besides the name of the section and the line that is gone
        let most = shown(LINES - 2);
        assert_eq!((most.len(), most[LINES - 1].as_str()), (LINES, "+ new397"));
        let beyond = shown(LINES - 1);
        assert_eq!((beyond.len(), beyond[LINES].as_str()), (LINES + 1, "… 1 more line"));
        assert_eq!(shown(LINES + 8).last().map(String::as_str), Some("… 10 more lines"));
    }

    #[test]
    fn lines_are_compared_up_to_the_most_and_beyond_it_all_are_gone_and_new() {
        // both ends differ, and all between them stays
        let text = |first: &str, lines: usize| {
            let between = numbered("line", lines - 2);
            described(&format!("{first}\n{between}\nlast but for {first}"))
        };
        let is_compared = |lines: usize| {
            let shown = difference(Some(&text("one", lines)), &text("another", lines));
            shown.iter().any(|line| line == GAP)
        };
        assert!(is_compared(COMPARED));
        assert!(!is_compared(COMPARED + 1));
    }
}
