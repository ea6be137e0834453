//! Reading `[[tools]]`: every fault in one answer, each with its place and what would be right.

use std::collections::BTreeMap;

use http::{HeaderName, Method};
use regex::Regex;
use serde_json::Value;

use crate::base::invalid::{ValidationErrors, did_you_mean, escape};
use crate::base::template::{Template, TemplateNames, TextTemplates, Tree, UrlTemplate};
use crate::domain::approval::Category;
use crate::domain::credential::{Reference, UnsettableHeader, settable_header};
use crate::ports::egress::Egress;
use crate::ports::tool::http::{ARGUMENTS, BodyTemplate, HttpToolDefinition, PreparedTool, ToolCallRequest};

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Longest name, as models take it.
const NAME_LENGTH: usize = 64;
/// For one call, in seconds.
const TIMEOUTS: std::ops::RangeInclusive<u64> = 1..=300;
/// Longest time to stop an approved call, in seconds.
const LONGEST_UNDO: u64 = 3_600;

/// Reads all of them; pointers of faults begin with `/tools`.
///
/// # Errors
/// What is wrong with any of them.
pub fn read(declared: &[HttpToolDefinition], egress: &Egress) -> Result<Vec<PreparedTool>, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let mut prepared = Vec::with_capacity(declared.len());
    for (index, tool) in declared.iter().enumerate() {
        let place = format!("/tools/{index}");
        if declared[..index].iter().any(|other| other.name == tool.name) {
            faults.add(format!("{place}/name"), format!("two tools are named `{}`", tool.name));
        }
        let templates = TextTemplates::default();
        let mut reader = DeclarationReader { tool, egress, templates, place, faults: &mut faults };
        reader.words();
        reader.arguments();
        prepared.extend(reader.request());
    }
    faults.into_result(prepared)
}

struct DeclarationReader<'a> {
    tool: &'a HttpToolDefinition,
    egress: &'a Egress,
    templates: TextTemplates,
    place: String,
    faults: &'a mut ValidationErrors,
}

fn names() -> TemplateNames<'static> {
    TemplateNames { variables: &[ARGUMENTS], steps: &[] }
}

impl DeclarationReader<'_> {
    fn fault(&mut self, below: &str, message: impl Into<String>) {
        let place = format!("{}{below}", self.place);
        self.faults.add(place, message);
    }

    fn words(&mut self) {
        let HttpToolDefinition { name, description, version, timeout_seconds, undo_seconds, .. } = self.tool;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if name.is_empty() || name.len() > NAME_LENGTH || !name.chars().all(is_name) {
            self.fault("/name", format!("must be 1 to {NAME_LENGTH} letters, digits, `_` or `-`"));
        }
        for (below, text) in [("/description", description), ("/version", version)] {
            if text.trim().is_empty() {
                self.fault(below, "must not be empty");
            }
        }
        if timeout_seconds.is_some_and(|seconds| !TIMEOUTS.contains(&seconds)) {
            self.fault("/timeout_seconds", format!("must be from {} to {}", TIMEOUTS.start(), TIMEOUTS.end()));
        }
        let place = self.place.clone();
        self.tool.policy().check(&self.tool.definition(), &place, self.faults);
        if undo_seconds.is_some_and(|seconds| seconds > LONGEST_UNDO) {
            self.fault("/undo_seconds", format!("must be at most {LONGEST_UNDO}"));
        }
    }

    /// The schema, and whether it has what the request names.
    fn arguments(&mut self) {
        let HttpToolDefinition { parameters, http, .. } = self.tool;
        if parameters.get("type").and_then(Value::as_str) != Some("object") {
            self.fault("/parameters", "must be a JSON Schema with `type = \"object\"`");
            return;
        }
        let properties = parameters.get("properties").and_then(Value::as_object);
        let known: Vec<&str> = properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let named = Regex::new(r"\bargs\.([A-Za-z_][A-Za-z0-9_]*)").expect("a pattern");
        let ToolCallRequest { url, headers, query, body, .. } = http;
        let places = [
            ("/http/url", url.clone()),
            ("/http/headers", values(headers)),
            ("/http/query", values(query)),
            ("/http/body", body.as_ref().map(Value::to_string).unwrap_or_default()),
        ];
        for (below, text) in places {
            for argument in named.captures_iter(&text).map(|found| found[1].to_owned()) {
                if !known.contains(&argument.as_str()) {
                    let hint = did_you_mean(&argument, known.iter().copied());
                    self.fault(below, format!("`parameters` has no property `{argument}`{hint}"));
                }
            }
        }
    }

    /// `None` only where a fault was added.
    fn request(&mut self) -> Option<PreparedTool> {
        let call = &self.tool.http;
        let (method, url) = (self.method(), self.url());
        let headers: Vec<_> = call.headers.iter().filter_map(|(name, text)| self.header(name, text)).collect();
        let query: Vec<_> =
            call.query.iter().filter_map(|(name, text)| self.template("/http/query", name, text)).collect();
        let body = call.body.as_ref().map(|body| self.body(body));
        let credential = match call.credential.as_deref().map(Reference::parse).transpose() {
            Ok(credential) => credential,
            Err(why) => {
                self.fault("/http/credential", why);
                None
            }
        };
        let definition = self.tool.definition();
        Some(PreparedTool { definition, method: method?, url: url?, headers, query, body, credential })
    }

    fn method(&mut self) -> Option<Method> {
        let HttpToolDefinition { category, http, .. } = self.tool;
        let method = http.method.as_str();
        if !METHODS.contains(&method) {
            let hint = did_you_mean(method, METHODS);
            self.fault("/http/method", format!("must be one of {}{hint}", METHODS.join(", ")));
            return None;
        }
        // nobody is asked about what reads
        if matches!(category, Category::Read | Category::Analysis) && matches!(method, "PUT" | "PATCH" | "DELETE") {
            self.fault("/category", format!("a {method} changes something: write, delete or side_effect"));
        }
        if http.body.is_some() && matches!(method, "GET" | "HEAD") {
            self.fault("/http/body", format!("a {method} request has no body"));
        }
        Method::from_bytes(method.as_bytes()).ok()
    }

    fn url(&mut self) -> Option<UrlTemplate> {
        let read = UrlTemplate::read(&self.tool.http.url, &self.templates, names());
        let why = match read {
            Ok(url) => match self.egress.check(url.origin()) {
                Ok(_) => return Some(url),
                Err(error) => error.to_string(),
            },
            Err(fault) => fault.to_string(),
        };
        self.fault("/http/url", why);
        None
    }

    fn header(&mut self, name: &str, text: &str) -> Option<(HeaderName, Template)> {
        let below = format!("/http/headers/{}", escape(name));
        let why = match settable_header(name, |_| false) {
            Ok(name) => return self.template("/http/headers", name.as_str(), text).map(|(_, text)| (name, text)),
            Err(UnsettableHeader::Secret) => {
                "can't be set here: it holds a secret; save it as a credential and name that in `credential`"
            }
            Err(unsettable) => unsettable.message(),
        };
        self.fault(&below, why);
        None
    }

    fn template(&mut self, below: &str, name: &str, text: &str) -> Option<(String, Template)> {
        match self.templates.read(text, names()) {
            Ok(template) => Some((name.to_owned(), template)),
            Err(fault) => {
                self.fault(&format!("{below}/{}", escape(name)), fault.to_string());
                None
            }
        }
    }

    fn body(&mut self, body: &Value) -> BodyTemplate {
        let place = format!("{}/http/body", self.place);
        let Value::Object(fields) = body else {
            return BodyTemplate::Whole(Tree::read(body, &place, &self.templates, names(), self.faults));
        };
        let mut read = Vec::with_capacity(fields.len());
        for (key, field) in fields {
            let place = format!("{place}/{}", escape(key));
            read.push((key.clone(), Tree::read(field, &place, &self.templates, names(), self.faults)));
        }
        BodyTemplate::Fields(read)
    }
}

fn values(named: &BTreeMap<String, String>) -> String {
    named.values().map(String::as_str).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ports::egress::Settings;

    fn note() -> Value {
        json!({
            "name": "send_note", "description": "Send a note.", "category": "side_effect", "consequence": "high",
            "parameters": { "type": "object", "properties": { "room": { "type": "string" }, "text": { "type": "string" } } },
            "http": { "method": "POST", "url": "https://notes.example.org/rooms/{{ args.room }}", "credential": "notes",
                      "body": { "text": "{{ args.text }}" } },
        })
    }

    fn faults(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut tool = note();
        change(&mut tool);
        let tool: HttpToolDefinition = serde_json::from_value(tool).unwrap();
        let read = read(&[tool], &Egress::new(&Settings::default()).unwrap());
        let faults = read.err().map_or(vec![], |faults| faults.0);
        faults.into_iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect()
    }

    #[test]
    fn fault_names_its_place_and_what_would_be_right() {
        assert_eq!(faults(|_| ()), Vec::<String>::new());
        let named = |pointer: &str, part: &str, found: Vec<String>| {
            assert!(found.len() == 1 && found[0].starts_with(&format!("/tools/0{pointer}: ")), "{pointer}: {found:?}");
            assert!(found[0].contains(part), "{found:?}");
        };
        named("/name", "letters", faults(|tool| tool["name"] = json!("send note")));
        named("/description", "empty", faults(|tool| tool["description"] = json!(" ")));
        named("/timeout_seconds", "1 to 300", faults(|tool| tool["timeout_seconds"] = json!(0)));
        named("/parameters", "type", faults(|tool| tool["parameters"] = json!({})));
        named("/http/method", "did you mean `POST`?", faults(|tool| tool["http"]["method"] = json!("PST")));
        named(
            "/category",
            "DELETE",
            faults(|tool| {
                tool["category"] = json!("read");
                tool["http"]["method"] = json!("DELETE");
            }),
        );
        named("/http/body", "no body", faults(|tool| tool["http"]["method"] = json!("GET")));
        named("/http/url", "host", faults(|tool| tool["http"]["url"] = json!("https://{{ args.room }}/x")));
        named("/http/url", "not allowed", faults(|tool| tool["http"]["url"] = json!("https://10.0.0.1/x")));
        named(
            "/http/url",
            "did you mean `room`?",
            faults(|tool| {
                tool["http"]["url"] = json!("https://notes.example.org/{{ args.rom }}");
            }),
        );
        named("/http/body/text", "unknown name", faults(|tool| tool["http"]["body"]["text"] = json!("{{ arg.text }}")));
        named("/http/credential", "service", faults(|tool| tool["http"]["credential"] = json!("{{ args.text }}")));
        for (name, part) in [("Authorization", "credential"), ("Idempotency-Key", "itself"), ("a b", "no name")] {
            named(
                &format!("/http/headers/{name}"),
                part,
                faults(|tool| tool["http"]["headers"] = json!({ name: "x" })),
            );
        }
    }

    #[test]
    fn two_tools_of_one_name_are_refused() {
        let tool: HttpToolDefinition = serde_json::from_value(note()).unwrap();
        let faults = read(&[tool.clone(), tool], &Egress::new(&Settings::default()).unwrap()).err().unwrap();
        assert_eq!(faults.0.len(), 1);
        assert_eq!(faults.0[0].pointer, "/tools/1/name");
    }

    #[test]
    fn another_address_or_credential_is_another_definition() {
        let hash = |change: fn(&mut Value)| {
            let mut tool = note();
            change(&mut tool);
            let tool: HttpToolDefinition = serde_json::from_value(tool).unwrap();
            serde_json::to_value(tool.definition()).unwrap()
        };
        let one = hash(|_| ());
        assert_eq!(one, hash(|_| ()));
        assert_ne!(one, hash(|tool| tool["http"]["url"] = json!("https://notes.example.org/{{ args.room }}")));
        assert_ne!(one, hash(|tool| tool["http"]["credential"] = json!("notes/other")));
        assert_ne!(one, hash(|tool| tool["http"]["body"] = json!({ "text": "fixed" })));
    }
}
