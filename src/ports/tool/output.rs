//! Output levels: how much of a result the model is shown.
//!
//! Levels are for tools that only read and that have a level by default ([`DefaultLevel`]): then a call may name one in
//! its argument [`LEVEL_ARGUMENT`]. The results of all other tools are shown whole. The level of a call is the one that
//! it names, else the tool's, else `brief` when the context is over 80 % full, else `[react] output_level`.
//!
//! - `brief`: how many there are, or the status, in 100 characters.
//! - `standard`: the first three items and how many more there are, or the beginning, in 500 characters.
//! - `full`: all of it.
//!
//! A result that is no longer than its level allows is shown as it is, and one that is cut says that `full` shows the
//! rest.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::compute::{steps_to_parse, steps_to_write};
use crate::base::words::words;

/// The argument by which a call names its level.
pub const LEVEL_ARGUMENT: &str = "output_level";
/// Longest brief result, in characters.
const BRIEF: usize = 100;
/// Longest standard result, in characters.
const STANDARD: usize = 500;
/// Items of a list that a standard result shows.
const ITEMS: usize = 3;
/// Fields that a summary names.
const FIELDS: usize = 10;

words! {
    /// The part of a result that the model is shown.
    #[derive(Default)]
    pub enum OutputLevel {
        /// A count, or the status.
        Brief = "brief",
        /// The first items, or the beginning.
        #[default]
        Standard = "standard",
        /// All of it.
        Full = "full",
    }
}

words! {
    /// The level of a tool whose call names none.
    #[derive(utoipa::ToSchema)]
    pub enum DefaultLevel {
        /// `brief` when the context is over 80 % full, else `[react] output_level`.
        Auto = "auto",
        /// Always `brief`.
        Brief = "brief",
        /// Always `standard`.
        Standard = "standard",
        /// Always `full`.
        Full = "full",
    }
}

/// The answer of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// The data that the call found, or made.
    pub data: Value,
    /// The data in the tool's own words, for the model; `None`: they speak for themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Instructions of the operator that come along: the model follows them, unlike the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl DefaultLevel {
    /// The level of a call, which may name one itself. `usual`: `[react] output_level`.
    pub fn of_call(self, named: Option<OutputLevel>, is_context_full: bool, usual: OutputLevel) -> OutputLevel {
        match (named, self) {
            (Some(named), _) => named,
            (None, DefaultLevel::Brief) => OutputLevel::Brief,
            (None, DefaultLevel::Standard) => OutputLevel::Standard,
            (None, DefaultLevel::Full) => OutputLevel::Full,
            (None, DefaultLevel::Auto) if is_context_full => OutputLevel::Brief,
            (None, DefaultLevel::Auto) => usual,
        }
    }

    /// The parameters of a tool with the argument by which a call names its level. Unchanged where the tool has one of
    /// this name itself.
    pub fn parameters(parameters: &Value) -> Value {
        let mut parameters = parameters.clone();
        if let Some(schema) = parameters.as_object_mut() {
            let properties = schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
            if let Some(properties) = properties.as_object_mut() {
                properties.entry(LEVEL_ARGUMENT).or_insert_with(level_schema);
            }
        }
        parameters
    }
}

fn level_schema() -> Value {
    json!({
        "enum": OutputLevel::WORDS,
        "description": "how much of the result you are shown: `brief` (how many, or the status), `standard` (the first \
                        items), `full` (all)",
    })
}

impl OutputLevel {
    /// Takes the level out of the arguments of a call.
    pub fn take_from(arguments: &mut Value) -> Option<OutputLevel> {
        let named = arguments.as_object_mut()?.remove(LEVEL_ARGUMENT)?;
        OutputLevel::parse(named.as_str()?)
    }

    /// The result as the model is shown it; `None`: it is shown whole.
    pub fn shorten(self, output: &ToolOutput, whole: &str) -> Option<String> {
        let most = match self {
            OutputLevel::Brief => BRIEF,
            OutputLevel::Standard => STANDARD,
            OutputLevel::Full => return None,
        };
        whole.char_indices().nth(most)?;
        Some(match (self, &output.text) {
            (_, Some(text)) => cut(text, most),
            (OutputLevel::Brief, None) => cut(&brief(&output.data), BRIEF),
            (_, None) => standard(&output.data),
        })
    }

    /// The notice before a result that this level has shortened.
    pub fn hint(self, whole: &str) -> String {
        let (level, length) = (self.as_str(), whole.chars().count());
        format!(
            "[{level}: shortened from {length} characters; call again with \"{LEVEL_ARGUMENT}\": \"full\" for all]\n\n"
        )
    }
}

impl ToolOutput {
    /// An answer in words.
    pub fn text(text: impl Into<String>) -> ToolOutput {
        ToolOutput { data: Value::String(text.into()), text: None, instructions: None }
    }

    /// An answer in JSON.
    pub fn json(data: Value) -> ToolOutput {
        ToolOutput { data, text: None, instructions: None }
    }

    /// The answer with instructions of the operator.
    pub fn with_instructions(self, instructions: impl Into<String>) -> ToolOutput {
        ToolOutput { instructions: Some(instructions.into()), ..self }
    }

    /// The steps that it takes at most to write it, and to read its text a few times.
    pub fn steps(&self) -> u64 {
        steps_to_write(&self.data).saturating_add(steps_to_parse(self.text.as_ref().map_or(0, String::len)))
    }

    /// All of it, as the model reads it. JSON has its line breaks: a model reads it better, and it is cut at one.
    pub fn whole(&self) -> Cow<'_, str> {
        match (&self.text, &self.data) {
            (Some(text), _) | (None, Value::String(text)) => Cow::Borrowed(text),
            (None, data) => Cow::Owned(format!("{data:#}")),
        }
    }

    /// All of it as a value. A text that reads as JSON is JSON: steps and conditions can then name its parts.
    pub fn into_value(self) -> Value {
        match self.data {
            Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            data => data,
        }
    }

    /// The content of a data file of it, and its media type: the data, and the tool's own words where it has some.
    pub fn content(&self) -> (Cow<'_, str>, &'static str) {
        match (&self.text, &self.data) {
            (Some(text), data) => {
                (Cow::Owned(format!("{:#}", json!({ "text": text, "data": data }))), "application/json")
            }
            (None, Value::String(text)) => (Cow::Borrowed(text), "text/plain"),
            (None, data) => (Cow::Owned(format!("{data:#}")), "application/json"),
        }
    }

    /// A line about what it is, to find one's way in it.
    pub fn summary(&self) -> String {
        let line = match (&self.data, list_in(&self.data)) {
            (Value::String(text), _) => {
                let lines = text.lines().count();
                format!("text of {lines} lines: {}", text.split_whitespace().take(20).collect::<Vec<_>>().join(" "))
            }
            (_, Some(list)) => format!("{}; the first: {}", list.count(), fields_of(list.items.first())),
            (data, None) => fields_of(Some(data)),
        };
        cut(&line.replace(['\n', '\r'], " "), 2 * BRIEF)
    }
}

/// A list in a result, and where it stands.
struct ListIn<'d> {
    pointer: String,
    items: &'d [Value],
}

impl ListIn<'_> {
    fn count(&self) -> String {
        let items = match self.items.len() {
            1 => "1 item".to_owned(),
            count => format!("{count} items"),
        };
        if self.pointer.is_empty() { items } else { format!("{items} in {}", self.pointer) }
    }
}

/// The list that a result is, or that it has: the only one among its fields, or in the body of an answer over HTTP.
fn list_in(data: &Value) -> Option<ListIn<'_>> {
    match data {
        Value::Array(items) => Some(ListIn { pointer: String::new(), items }),
        Value::Object(fields) => {
            let mut lists = fields.iter().filter_map(|(name, value)| Some((name, value.as_array()?)));
            match (lists.next(), lists.next()) {
                (Some((name, items)), None) => Some(ListIn { pointer: format!("/{name}"), items }),
                (None, _) => {
                    let list = list_in(fields.get("body").filter(|body| body.is_object())?)?;
                    Some(ListIn { pointer: format!("/body{}", list.pointer), ..list })
                }
                (Some(_), Some(_)) => None,
            }
        }
        _ => None,
    }
}

fn fields_of(value: Option<&Value>) -> String {
    match value {
        Some(Value::Object(fields)) => {
            let names: Vec<&str> = fields.keys().take(FIELDS).map(String::as_str).collect();
            let more = if fields.len() > FIELDS { ", …" } else { "" };
            format!("an object with {} fields: {}{more}", fields.len(), names.join(", "))
        }
        Some(Value::Array(items)) => format!("a list of {}", items.len()),
        Some(Value::String(_)) => "a text".to_owned(),
        Some(other) => other.to_string(),
        None => "none".to_owned(),
    }
}

/// How many there are, or the status.
fn brief(data: &Value) -> String {
    let status = match (data.get("success"), data.get("status")) {
        (Some(Value::Bool(true)), _) => Some("succeeded".to_owned()),
        (Some(Value::Bool(false)), _) => Some("failed".to_owned()),
        (_, Some(Value::String(status))) => Some(format!("status {status}")),
        (_, Some(Value::Number(status))) => Some(format!("status {status}")),
        _ => None,
    };
    let message = data.get("message").and_then(Value::as_str).map(str::to_owned);
    let what = match (list_in(data), data) {
        (Some(list), _) => Some(list.count()),
        (None, Value::String(text)) => Some(text.lines().next().unwrap_or_default().to_owned()),
        (None, _) if status.is_some() => message,
        (None, data) => Some(fields_of(Some(data))),
    };
    status.into_iter().chain(what).collect::<Vec<_>>().join("; ")
}

/// The first items and how many more there are, or the beginning.
fn standard(data: &Value) -> String {
    let Some(list) = list_in(data).filter(|list| !list.items.is_empty()) else {
        return cut(&ToolOutput::json(data.clone()).whole(), STANDARD);
    };
    let shown = list.items.len().min(ITEMS);
    let more = match list.items.len() - shown {
        0 => String::new(),
        more => format!("\n{more} more"),
    };
    let head = cut(&list.count(), BRIEF);
    let frame = head.chars().count() + more.chars().count() + ITEMS * "\n- ".len();
    let each = STANDARD.saturating_sub(frame) / shown;
    let lines: String =
        list.items[..shown].iter().map(|item| format!("\n- {}", cut(&item.to_string(), each))).collect();
    format!("{head}{lines}{more}")
}

/// At most `most` characters; `…` stands at the end of what was cut.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(level: OutputLevel, data: Value) -> Option<String> {
        let output = ToolOutput::json(data);
        let whole = output.whole().into_owned();
        level.shorten(&output, &whole)
    }

    fn items(count: usize) -> Value {
        (0..count).map(|id| json!({ "id": id, "name": "x".repeat(50) })).collect()
    }

    #[test]
    fn call_comes_before_the_tool_the_tool_before_the_context_and_that_before_the_usual_level() {
        use OutputLevel::*;
        let level = |own: DefaultLevel, named, is_full| own.of_call(named, is_full, Standard);
        for own in DefaultLevel::ALL {
            for named in OutputLevel::ALL {
                assert_eq!((level(own, Some(named), true), level(own, Some(named), false)), (named, named));
            }
        }
        for (own, expected) in
            [(DefaultLevel::Brief, Brief), (DefaultLevel::Standard, Standard), (DefaultLevel::Full, Full)]
        {
            assert_eq!((level(own, None, true), level(own, None, false)), (expected, expected));
        }
        assert_eq!((level(DefaultLevel::Auto, None, true), level(DefaultLevel::Auto, None, false)), (Brief, Standard));
        assert_eq!(DefaultLevel::Auto.of_call(None, false, Full), Full);
    }

    #[test]
    fn result_that_fits_its_level_is_shown_as_it_is_and_one_character_more_is_shortened() {
        let text = |length: usize| json!("x".repeat(length));
        for (level, most) in [(OutputLevel::Brief, 100), (OutputLevel::Standard, 500)] {
            assert_eq!(shortened(level, text(most)), None, "{level:?}");
            let cut = shortened(level, text(most + 1)).unwrap();
            assert_eq!(cut, format!("{}…", "x".repeat(most - 1)));
        }
        assert_eq!(shortened(OutputLevel::Full, text(100_000)), None);
        assert_eq!(shortened(OutputLevel::Standard, json!([1, 2, 3, 4, 5])), None, "five small items");
    }

    #[test]
    fn brief_counts_or_tells_the_status() {
        let brief = |data: Value| shortened(OutputLevel::Brief, data).unwrap();
        assert_eq!(brief(items(40)), "40 items");
        assert_eq!(brief(json!({ "items": items(40), "next": null })), "40 items in /items");
        assert_eq!(
            brief(json!({ "status": 200, "url": "u", "body": { "rows": items(9) } })),
            "status 200; 9 items in /body/rows"
        );
        assert_eq!(brief(json!({ "success": false, "message": "no", "why": "x".repeat(200) })), "failed; no");
        assert_eq!(brief(json!({ "a": items(3), "b": items(3) })), "an object with 2 fields: a, b");
        assert_eq!(brief(json!(format!("first line\n{}", "x".repeat(200)))), "first line");
        let many: Value = (0..9).map(|n| (format!("{n}{}", "k".repeat(40)), json!(1))).collect::<Map<_, _>>().into();
        assert_eq!(brief(many).chars().count(), 100);
    }

    #[test]
    fn standard_shows_three_items_and_how_many_more_in_five_hundred_characters() {
        let standard = |data: Value| shortened(OutputLevel::Standard, data).unwrap();
        let shown = standard(items(40));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[4]), (5, "40 items", "37 more"));
        assert_eq!(lines[1], format!("- {}", items(1)[0]));
        let long: Value = (0..3).map(|_| json!("é".repeat(400))).collect();
        let shown = standard(long);
        assert!(shown.chars().count() <= STANDARD && shown.ends_with('…'), "{shown}");
        assert_eq!(shown.lines().count(), 4, "there are no more");
        let object = standard(json!({ "a": "x".repeat(600) }));
        assert!(object.starts_with("{\n  \"a\": \"xx") && object.chars().count() == STANDARD, "{object}");
    }

    #[test]
    fn own_words_of_a_tool_are_shown_in_place_of_its_data() {
        let output = ToolOutput { text: Some("two".into()), ..ToolOutput::json(items(2)) };
        assert_eq!(output.whole(), "two");
        let output = ToolOutput { text: Some("w".repeat(600)), ..output };
        let shown = OutputLevel::Standard.shorten(&output, &output.whole()).unwrap();
        assert_eq!(shown, format!("{}…", "w".repeat(499)));
        assert_eq!(
            OutputLevel::Standard.hint(&output.whole()),
            "[standard: shortened from 600 characters; call again with \"output_level\": \"full\" for all]\n\n"
        );
        let both = json!({ "text": output.text.as_deref(), "data": items(2) });
        assert_eq!(output.content(), (format!("{both:#}").into(), "application/json"));
        assert_eq!(ToolOutput::text("{\"a\": 1}").into_value(), json!({ "a": 1 }));
        assert_eq!(ToolOutput::text("a").into_value(), json!("a"));
    }

    #[test]
    fn summary_says_what_is_in_it() {
        assert_eq!(
            ToolOutput::json(json!({ "rows": items(12) })).summary(),
            "12 items in /rows; the first: an object with 2 fields: id, name"
        );
        assert_eq!(ToolOutput::text("a b\nc").summary(), "text of 2 lines: a b c");
        assert_eq!(ToolOutput::json(json!({ "a": 1 })).summary(), "an object with 1 fields: a");
    }

    #[test]
    fn level_is_an_argument_beside_the_tools_own() {
        let own =
            json!({ "type": "object", "properties": { "q": { "type": "string" } }, "additionalProperties": false });
        let with = DefaultLevel::parameters(&own);
        assert_eq!(with["properties"]["output_level"]["enum"], json!(["brief", "standard", "full"]));
        assert_eq!(with["properties"]["q"], own["properties"]["q"]);
        let mut arguments = json!({ "q": "x", "output_level": "full" });
        assert_eq!(OutputLevel::take_from(&mut arguments), Some(OutputLevel::Full));
        assert_eq!(arguments, json!({ "q": "x" }));
        assert_eq!(OutputLevel::take_from(&mut arguments), None);
    }
}
