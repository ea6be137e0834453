//! Pages of lists that the API answers whole: tools and skills, of which there are hundreds at the most.

use serde_json::{Value, json};

use crate::http::ui::frame::UiList;

/// Rows of a page.
const ROWS: usize = 50;

/// The page of these rows that begins behind the row of this name, as [`UiList::view`] has it. A name that is gone
/// leads to the first page.
pub(super) fn page_of(list: &UiList, href: &str, behind: Option<&str>, rows: Vec<Value>) -> Value {
    list.view(href, cut(behind, rows))
}

/// The rows of a page, and the name behind which the next one begins.
fn cut(behind: Option<&str>, rows: Vec<Value>) -> Value {
    let last = behind.and_then(|name| rows.iter().position(|row| row["name"] == name));
    let first = last.map_or(0, |last| last + 1);
    let has_more = rows.len() > first + ROWS;
    let shown: Vec<Value> = rows.into_iter().skip(first).take(ROWS).collect();
    let next = shown.last().filter(|_| has_more).map(|row| row["name"].clone());
    json!({ "items": shown, "next_cursor": next })
}

/// Whether one of these fields of a row has the text in it, whatever the case of its letters. `None`: every row is
/// looked for.
pub(super) fn has_text(row: &Value, fields: &[&str], text: Option<&str>) -> bool {
    let Some(text) = text.map(str::to_lowercase) else { return true };
    fields.iter().any(|field| row[*field].as_str().is_some_and(|value| value.to_lowercase().contains(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<Value> {
        (0..count).map(|number| json!({ "name": format!("t{number:03}") })).collect()
    }

    #[test]
    fn page_has_fifty_rows_and_the_next_begins_behind_its_last() {
        let first = cut(None, rows(ROWS + 1));
        assert_eq!((first["items"].as_array().unwrap().len(), &first["next_cursor"]), (ROWS, &json!("t049")));
        let second = cut(Some("t049"), rows(ROWS + 1));
        assert_eq!((&second["items"], &second["next_cursor"]), (&json!([{ "name": "t050" }]), &Value::Null));
        assert_eq!(cut(None, rows(ROWS))["next_cursor"], Value::Null);
        assert_eq!(cut(Some("gone"), rows(3))["items"], json!(rows(3)));
    }

    #[test]
    fn text_is_looked_for_in_the_named_fields_in_any_case() {
        let row = json!({ "name": "github.Merge", "description": "Merges a branch." });
        assert!(has_text(&row, &["name"], Some("merge")) && has_text(&row, &["name", "description"], Some("BRANCH")));
        assert!(!has_text(&row, &["name"], Some("branch")) && has_text(&row, &["name"], None));
    }
}
