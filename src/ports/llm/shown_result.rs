//! Results of tools in the shape in which every provider is sent them: `{tool, fetched_at, data|error}`.
//!
//! Data that are JSON stand in it as they are, and all else as a text. The transcript keeps the result alone, so what
//! is cut in it leaves the shape whole. A result without an instant is of an older release, and is sent as it stands.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::base::template::untrusted::fenced;
use crate::domain::run::ResultNotice;

#[derive(Serialize)]
struct SentResult<'r> {
    tool: &'r str,
    fetched_at: String,
    #[serde(flatten)]
    outcome: SentOutcome<'r>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum SentOutcome<'r> {
    Data(ShownData<'r>),
    Error(&'r str),
}

#[derive(Serialize)]
#[serde(untagged)]
enum ShownData<'r> {
    Json(&'r RawValue),
    Text(&'r str),
}

/// The result of a call of this tool as a model reads it: words of the service about it, then the result, labelled as
/// data.
pub fn result_text(
    notices: &[ResultNotice],
    tool: &str,
    fetched_at: Option<DateTime<Utc>>,
    content: &str,
    is_error: bool,
) -> String {
    let result = fenced("tool", &shown_result(tool, fetched_at, content, is_error));
    ResultNotice::joined(notices).into_owned() + &result
}

/// The result in its shape.
fn shown_result<'r>(tool: &str, fetched_at: Option<DateTime<Utc>>, content: &'r str, is_error: bool) -> Cow<'r, str> {
    let Some(fetched_at) = fetched_at else { return Cow::Borrowed(content) };
    let outcome = match is_error {
        true => SentOutcome::Error(content),
        false => SentOutcome::Data(data(content)),
    };
    let fetched_at = fetched_at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let shown = serde_json::to_string(&SentResult { tool, fetched_at, outcome });
    shown.map_or(Cow::Borrowed(content), Cow::Owned)
}

/// Objects and lists as JSON.
fn data(content: &str) -> ShownData<'_> {
    let document = content.starts_with(['{', '[']).then(|| serde_json::from_str(content).ok()).flatten();
    document.map_or(ShownData::Text(content), ShownData::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(content: &str, is_error: bool) -> String {
        let at = "2026-12-24T07:00:00.123Z".parse().unwrap();
        shown_result("look", Some(at), content, is_error).into_owned()
    }

    #[test]
    fn data_stand_as_they_are_and_texts_and_errors_as_texts() {
        let frame = |outcome: &str| format!(r#"{{"tool":"look","fetched_at":"2026-12-24T07:00:00Z",{outcome}}}"#);
        assert_eq!(shown("{\n  \"a\": 1\n}", false), frame("\"data\":{\n  \"a\": 1\n}"));
        assert_eq!(shown("[1, 2]", false), frame(r#""data":[1, 2]"#));
        assert_eq!(shown("plain \"text\"\nend", false), frame(r#""data":"plain \"text\"\nend""#));
        assert_eq!(shown("{\"a\": 1\n[...truncated]", false), frame(r#""data":"{\"a\": 1\n[...truncated]""#));
        assert_eq!(shown("7", false), frame(r#""data":"7""#));
        assert_eq!(shown("{}", true), frame(r#""error":"{}""#));
    }

    #[test]
    fn result_without_an_instant_is_sent_as_it_stands() {
        assert_eq!(shown_result("look", None, "as it is", true), "as it is");
    }
}
