//! `${NAME}` in the requests of declared tools: values from the environment, filled in once, at the start.
//!
//! For what differs from one place to another, such as a host. Secrets belong into credentials: what is filled in is
//! part of the tool's definition, which people see.

use serde_json::Value;

use crate::base::invalid::ValidationErrors;
use crate::ports::tool::http::{HttpToolDefinition, ToolCallRequest};

/// Variables with this prefix are settings of the service itself, and may be secrets.
const OURS: &str = "REVEILLE_";

/// Fills in all variables; `$${` stands for `${` itself. Pointers begin with `/tools`.
///
/// # Errors
/// Variables that are not set, and names that are none.
pub fn fill_variables(
    tools: &mut [HttpToolDefinition],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), ValidationErrors> {
    let mut faults = ValidationErrors::new();
    for (index, tool) in tools.iter_mut().enumerate() {
        let place = format!("/tools/{index}/http");
        let ToolCallRequest { url, headers, query, body, .. } = &mut tool.http;
        let mut fill = |below: &str, text: &mut String| match filled(text, &variable) {
            Ok(done) => *text = done,
            Err(why) => faults.add(format!("{place}/{below}"), why),
        };
        fill("url", url);
        headers.values_mut().for_each(|text| fill("headers", text));
        query.values_mut().for_each(|text| fill("query", text));
        if let Some(body) = body {
            each_text(body, &mut |text| fill("body", text));
        }
    }
    faults.into_result(())
}

fn each_text(value: &mut Value, each: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, each)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, each)),
        _ => {}
    }
}

/// A text with its variables filled in.
///
/// # Errors
/// A variable that is not set, or a name that is none.
pub(in crate::ports::tool) fn filled(text: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(literal) = before.strip_suffix('$') {
            done.push_str(literal);
            done.push_str("${");
            rest = after;
            continue;
        }
        let Some((name, behind)) = after.split_once('}') else {
            return Err("`${` has no `}`; write `$${` where the text itself is meant".into());
        };
        done.push_str(before);
        done.push_str(&value_of(name, variable)?);
        rest = behind;
    }
    Ok(done + rest)
}

fn value_of(name: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(format!("`${{{name}}}` names no environment variable: letters, digits and `_`"));
    }
    if name.starts_with(OURS) {
        return Err(format!("`{name}` is a setting of the service itself, and can't be part of a request"));
    }
    variable(name).ok_or_else(|| format!("the environment variable `{name}` is not set"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variable(name: &str) -> Option<String> {
        [("NOTES_URL", "https://notes.example.org"), ("ROOM", "a${b}")]
            .into_iter()
            .find_map(|(known, value)| (known == name).then(|| value.to_owned()))
    }

    fn tool(http: Value) -> HttpToolDefinition {
        let declared = json!({
            "name": "send", "description": "x", "category": "side_effect", "consequence": "low", "http": http,
        });
        serde_json::from_value(declared).unwrap()
    }

    #[test]
    fn variables_are_filled_in_everywhere_in_a_request_and_only_once() {
        let mut tools = [tool(json!({
            "method": "POST", "url": "${NOTES_URL}/rooms/{{ args.room }}", "headers": { "x-room": "${ROOM}" },
            "query": { "q": "$${ROOM} costs $5" }, "body": { "texts": ["${ROOM}-${ROOM}", 7], "${ROOM}": null },
        }))];
        fill_variables(&mut tools, variable).unwrap();
        let ToolCallRequest { url, headers, query, body, .. } = &tools[0].http;
        assert_eq!(url, "https://notes.example.org/rooms/{{ args.room }}");
        assert_eq!((headers["x-room"].as_str(), query["q"].as_str()), ("a${b}", "${ROOM} costs $5"));
        assert_eq!(*body, Some(json!({ "texts": ["a${b}-a${b}", 7], "${ROOM}": null })));
    }

    #[test]
    fn variable_that_is_none_or_not_set_or_a_setting_is_named_with_its_place() {
        let mut tools = [
            tool(json!({ "method": "GET", "url": "https://${HOST}/" })),
            tool(json!({ "method": "POST", "url": "https://a/${", "body": ["${REVEILLE_DATABASE__URL}", "${a-b}"] })),
        ];
        let faults = fill_variables(&mut tools, variable).unwrap_err();
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        assert_eq!(
            told,
            [
                "/tools/0/http/url: the environment variable `HOST` is not set",
                "/tools/1/http/url: `${` has no `}`; write `$${` where the text itself is meant",
                "/tools/1/http/body: `REVEILLE_DATABASE__URL` is a setting of the service itself, and can't be part of \
                 a request",
                "/tools/1/http/body: `${a-b}` names no environment variable: letters, digits and `_`",
            ]
        );
    }
}
