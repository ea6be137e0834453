//! Answers of tools in the form of MCP: what was found or done, and why nothing was, in words for a model.
//!
//! A model reads a refusal as it reads a result, so each one ends with what to do about it.

use serde_json::{Map, Value, json};

use crate::base::compute::steps_to_serialize;
use crate::base::invalid::{FieldError, NAMED, shorten_middle};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::in_process::CallError;

/// Longest text in a result, in characters.
pub const SHOWN_CHARS: usize = 16_000;
/// Longest result as JSON, in bytes.
pub const RESULT_BYTES: usize = 131_072;
/// Longest refusal, in bytes.
const REFUSAL_BYTES: usize = 16_384;
/// Field of a result that says what to do next.
const NEXT: &str = "next_steps";
/// Tools that list the things that a refusal may name.
const LISTS: [(&str, &str); 5] = [
    ("task", "list_tasks"),
    ("run", "list_runs"),
    ("approval", "list_approvals"),
    ("credential", "list_credentials"),
    ("fact", "list_facts"),
];

/// Result of a tool: what it has found or done.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// The facts.
    pub data: Map<String, Value>,
    /// Advice on what to do next, a sentence each.
    pub next: Vec<String>,
    /// Whether what the tool tells of did not end well.
    pub is_error: bool,
}

impl ToolResult {
    /// A result with these facts. What is no object goes below `result`.
    pub fn of(data: Value) -> ToolResult {
        let data = match data {
            Value::Object(fields) => fields,
            other => Map::from_iter([("result".to_owned(), other)]),
        };
        ToolResult { data, next: Vec::new(), is_error: false }
    }

    /// A page as the tool that lists answers it: with how to have the next one.
    pub fn of_page(tool: &str, page: Value) -> ToolResult {
        let has_more = page["next_cursor"].is_string();
        let listed = ToolResult::of(page);
        match has_more {
            true => listed.then(format!("There are more: call `{tool}` again with `cursor` as in `next_cursor`.")),
            false => listed,
        }
    }

    /// With one more sentence on what to do next.
    pub fn then(mut self, next: impl Into<String>) -> ToolResult {
        self.next.push(next.into());
        self
    }

    /// The steps that it takes at most to write it.
    pub fn steps(&self) -> u64 {
        steps_to_serialize(&self.data)
    }

    /// The result as clients read it: its facts as JSON, and as a text for clients that read no structure. Long texts
    /// are cut; of a long result its beginning is shown, without structure.
    pub fn into_call_result(self) -> Value {
        let ToolResult { mut data, next, is_error } = self;
        data.values_mut().for_each(cut_all);
        if !next.is_empty() {
            data.insert(NEXT.to_owned(), next.clone().into());
        }
        let data = Value::Object(data);
        let text = data.to_string();
        if text.len() <= RESULT_BYTES {
            return json!({ "content": [text_block(&text)], "structuredContent": data, "isError": is_error });
        }
        let (bytes, begin) = (text.len(), &text[..text.floor_char_boundary(RESULT_BYTES)]);
        let advice = "Ask for less: a smaller `limit`, a narrower filter, or one thing by its `id`.";
        let text = format!(
            "{begin}…\n\nThis is the beginning of {bytes} bytes, {RESULT_BYTES} are shown at most. {advice} {}",
            next.join(" ")
        );
        json!({ "content": [text_block(text.trim_end())], "isError": is_error })
    }
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// Cuts every text in a value.
fn cut_all(value: &mut Value) {
    match value {
        Value::String(text) if is_long(text) => *text = cut(text),
        Value::Array(items) => items.iter_mut().for_each(cut_all),
        Value::Object(fields) => fields.values_mut().for_each(cut_all),
        _ => {}
    }
}

fn is_long(text: &str) -> bool {
    text.len() > SHOWN_CHARS && text.chars().nth(SHOWN_CHARS).is_some()
}

/// At most [`SHOWN_CHARS`] characters of a text, and where it is cut, that it is. What is cut already stays as it is.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}… (cut; the API has the whole)", &text[..end]),
        None => text.to_owned(),
    }
}

/// Why a tool did nothing, in words for a model; becomes a result with `isError`.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRefusal {
    /// The words, which end with what to do.
    pub message: String,
    /// The faults that they tell of, by their places in the request to the API.
    faults: Vec<FieldError>,
}

impl ToolRefusal {
    /// A refusal in these words.
    pub fn new(message: impl Into<String>) -> ToolRefusal {
        ToolRefusal { message: shorten_middle(message.into(), REFUSAL_BYTES), faults: Vec::new() }
    }

    /// A refusal of these faults.
    pub fn of_faults(faults: Vec<FieldError>) -> ToolRefusal {
        ToolRefusal { faults, ..ToolRefusal::new("") }.with_names(&[])
    }

    /// With the names of arguments in place of places in the request to the API: of each pair the beginning of a
    /// pointer, and the argument that was written there.
    pub fn with_names(self, names: &[(&str, &str)]) -> ToolRefusal {
        if self.faults.is_empty() {
            return self;
        }
        let told = self.faults.iter().take(NAMED).map(|fault| match fault.pointer.as_str() {
            "" => fault.message.clone(),
            pointer => format!("`{}`: {}", argument_at(pointer, names), fault.message),
        });
        let told = told.collect::<Vec<_>>().join("\n");
        let more = match self.faults.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!("\nAnd {more} more."),
        };
        let message = format!("{told}{more}\nMend this and call again.");
        ToolRefusal { message: shorten_middle(message, REFUSAL_BYTES), ..self }
    }

    /// The refusal as clients read it.
    pub fn into_call_result(self) -> Value {
        json!({ "content": [text_block(&self.message)], "isError": true })
    }

    fn of_problem(status: u16, kind: &str, detail: &str, faults: Vec<FieldError>) -> ToolRefusal {
        let words = match status {
            400 | 422 if !faults.is_empty() => return ToolRefusal::of_faults(faults),
            401 | 403 => format!("{detail}. Tell the person, and do not try again."),
            404 => format!("{detail}. {}", where_to_look(detail)),
            409 => format!("{detail}. Read it anew before you decide again."),
            429 if kind.ends_with(":quota_exceeded") => format!(
                "{detail}. Tell the person: there is no room until something is removed or the operator allows more."
            ),
            429 => format!("{detail}. Wait a minute, then call again."),
            400..=499 => format!("{detail}. Mend this and call again."),
            _ => format!(
                "The service can't do this now: {detail}. Try again in a minute; look first whether it has happened."
            ),
        };
        ToolRefusal::new(words)
    }
}

/// The argument that stands at a pointer; where none is known, the place itself.
fn argument_at(pointer: &str, names: &[(&str, &str)]) -> String {
    let below = |(prefix, argument): &(&str, &str)| {
        let rest = pointer.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{argument}{}", dotted(rest)))
    };
    names.iter().find_map(below).unwrap_or_else(|| dotted(pointer).trim_start_matches('.').to_owned())
}

fn dotted(pointer: &str) -> String {
    pointer.replace('/', ".").replace("~1", "/").replace("~0", "~")
}

/// Where a model finds what there is, of a thing that is not there: its kind is the last word of the detail.
fn where_to_look(detail: &str) -> String {
    let kind = detail.rsplit(' ').next().unwrap_or_default();
    match LISTS.iter().find(|(listed, _)| *listed == kind) {
        Some((_, tool)) => format!("Look it up with `{tool}`."),
        None => "Look at what there is with a tool that lists.".to_owned(),
    }
}

impl From<CallError> for ToolRefusal {
    fn from(error: CallError) -> ToolRefusal {
        let text = |name: &str| error.problem[name].as_str().unwrap_or_default();
        let faults = serde_json::from_value(error.problem["errors"].clone()).unwrap_or_default();
        ToolRefusal::of_problem(error.status, text("type"), text("detail"), faults)
    }
}

impl From<ApiError> for ToolRefusal {
    fn from(error: ApiError) -> ToolRefusal {
        let ProblemDetails { kind, status, detail, errors, .. } = error.into_problem();
        ToolRefusal::of_problem(status, &kind, &detail, errors)
    }
}

/// Answer of a tool that was not refused.
#[derive(Debug, Clone, PartialEq)]
pub enum Answered {
    /// Facts that it has found, or that come of it.
    Result(ToolResult),
    /// An answer of another kind: its `resultType` is `input_required` or `task`.
    Other(Value),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::invalid::ValidationErrors;

    fn text_of(result: &Value) -> &str {
        assert_eq!(result["content"].as_array().map(Vec::len), Some(1));
        result["content"][0]["text"].as_str().unwrap()
    }

    #[test]
    fn result_is_told_as_structure_and_as_text_with_what_to_do_next() {
        let result = ToolResult::of(json!({ "id": "a", "next": [1] })).then("Wait.").then("Look.").into_call_result();
        let expected = json!({ "id": "a", "next": [1], "next_steps": ["Wait.", "Look."] });
        assert_eq!((&result["structuredContent"], &result["isError"]), (&expected, &json!(false)));
        assert_eq!(serde_json::from_str::<Value>(text_of(&result)).unwrap(), expected);
        let plain = ToolResult::of(json!([1])).into_call_result();
        assert_eq!(plain["structuredContent"], json!({ "result": [1] }));
        assert_eq!(ToolResult::of(Value::Null).into_call_result()["structuredContent"], json!({ "result": null }));
    }

    #[test]
    fn text_is_whole_at_the_bound_and_cut_one_beyond() {
        let told = |chars: usize| {
            let result = ToolResult::of(json!({ "deep": [{ "text": "ä".repeat(chars) }] })).into_call_result();
            result["structuredContent"]["deep"][0]["text"].as_str().unwrap().to_owned()
        };
        assert_eq!(told(SHOWN_CHARS), "ä".repeat(SHOWN_CHARS));
        let beyond = told(SHOWN_CHARS + 1);
        assert_eq!(beyond, format!("{}… (cut; the API has the whole)", "ä".repeat(SHOWN_CHARS)));
        assert_eq!(cut(&beyond), beyond, "once is enough");
    }

    #[test]
    fn result_has_its_structure_up_to_the_bound_and_text_alone_beyond() {
        let of = |bytes: usize| {
            let mut texts = vec!["x".repeat(SHOWN_CHARS); 8];
            let rest = bytes - json!({ "a": texts, "b": "" }).to_string().len();
            texts.push("x".repeat(SHOWN_CHARS.min(rest)));
            ToolResult::of(json!({ "a": &texts[..8], "b": texts[8] })).then("Look.")
        };
        // with what to do next
        let more = json!({ "a": [], "next_steps": ["Look."] }).to_string().len() - json!({ "a": [] }).to_string().len();
        let whole = of(RESULT_BYTES - more).into_call_result();
        assert_eq!(text_of(&whole).len(), RESULT_BYTES);
        assert!(whole["structuredContent"].is_object());
        let cut = of(RESULT_BYTES - more + 1).into_call_result();
        assert_eq!(cut.get("structuredContent"), None);
        let text = text_of(&cut);
        assert!(text.contains("131073 bytes") && text.contains("Ask for less") && text.ends_with(" Look."), "{text}");
        assert!(text.len() < RESULT_BYTES + 500, "{}", text.len());
    }

    #[test]
    fn each_status_says_what_to_do() {
        let of = |status: u16, kind: &str, detail: &str| {
            let kind = format!("urn:reveille:problem:{kind}");
            ToolRefusal::from(CallError { status, problem: json!({ "type": kind, "detail": detail }) }).message
        };
        for status in [401, 403] {
            let told = of(status, "forbidden", "this needs a token with `tasks:write`");
            assert!(told.contains("`tasks:write`") && told.contains("do not try again"), "{told}");
        }
        assert_eq!(
            of(404, "not-found", "there is no such task"),
            "there is no such task. Look it up with `list_tasks`."
        );
        assert!(of(404, "not-found", "there is no such tenant").contains("there is no such tenant. Look"));
        assert!(of(409, "conflict", "the task is completed").starts_with("the task is completed. Read it anew"));
        assert!(of(429, "quota_exceeded", "10 tasks").contains("Tell the person"));
        assert!(of(429, "too-many-requests", "too fast").contains("Wait a minute"));
        assert!(of(413, "too-large", "at most 9 bytes").contains("Mend this"));
        for status in [500, 503] {
            assert!(of(status, "unavailable", "the database is away").contains("look first whether it has happened"));
        }
        let away = ApiError::Unavailable { detail: "the bus is away", retry_after: Duration::from_secs(1) };
        assert!(ToolRefusal::from(away).message.contains("the bus is away"));
        let result = ToolRefusal::new("No.").into_call_result();
        assert_eq!(result, json!({ "content": [{ "type": "text", "text": "No." }], "isError": true }));
    }

    #[test]
    fn fault_names_the_argument_and_not_the_place_in_the_request() {
        let mut faults = ValidationErrors::one("/trigger/cron", "is no pattern");
        faults.add("/trigger/poll/http/url", "must be https");
        faults.add("/output/channel/0", "unknown channel");
        faults.add("/metadata/a~1b", "is unknown");
        faults.add("", "one of them is missing");
        let names = [("/trigger/cron", "cron"), ("/output/channel", "channel"), ("/metadata/a", "wrong")];
        let told = ToolRefusal::from(ApiError::from(faults)).with_names(&names).message;
        let expected = "`cron`: is no pattern\n`trigger.poll.http.url`: must be https\n`channel.0`: unknown channel\n\
             `metadata.a/b`: is unknown\none of them is missing\nMend this and call again.";
        assert_eq!(told, expected);
        let mut many = ValidationErrors::new();
        (0..NAMED + 3).for_each(|n| many.add(format!("/{n}"), "is unknown"));
        let told = ToolRefusal::from(ApiError::from(many)).message;
        assert!(told.contains("`19`: is unknown\nAnd 3 more.\n") && !told.contains("`20`"), "{told}");
        assert_eq!(ToolRefusal::new("No.").with_names(&names).message, "No.");
        assert!(ToolRefusal::new("x".repeat(1_000_000)).message.len() <= REFUSAL_BYTES);
    }
}
