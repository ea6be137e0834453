//! A tool as an MCP server lists it, and the definition that it has here.
//!
//! Name, description and schemas are words of the server. Kind and weight of a call are the operator's: a hint of the
//! server makes them stricter and never milder.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::base::json::length::is_longer_than;
use crate::base::unicode_safety::escape_hidden;
use crate::domain::approval::proposal::{canonical_hash, canonical_text, text_hash};
use crate::domain::approval::{Category, Consequence, SeenDefinition};
use crate::ports::tool::Definition;
use crate::ports::tool::mcp::settings::{McpToolSettings, PreparedServer, ServerTarget, only_looks};

/// Longest description of a tool, in bytes.
pub const DESCRIPTION_BYTES: usize = 8 * 1_024;
/// Longest schema of a tool, in bytes as JSON.
pub const SCHEMA_BYTES: usize = 64 * 1_024;
/// Longest name of a tool, as its server has it.
pub const TOOL_NAME_BYTES: usize = 128;
/// Characters of a hash that tell one version, or one command, from another.
const SHORT_HASH: usize = 12;

/// A tool as its server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedTool {
    /// Its name at the server.
    pub name: String,
    /// Its description, with hidden characters shown.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// JSON Schema of the structured result.
    pub output_schema: Option<Value>,
    /// Its effects, as the server has them.
    pub hints: ToolHints,
}

/// Hints of a server about the effects of a tool; `None`: it says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToolHints {
    /// It changes nothing.
    pub read_only: Option<bool>,
    /// It may destroy something.
    pub destructive: Option<bool>,
    /// A second call with the same arguments changes nothing.
    pub idempotent: Option<bool>,
}

/// Whether a server may name a tool so.
pub fn is_tool_name(name: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    !name.is_empty() && name.len() <= TOOL_NAME_BYTES && name.chars().all(is_of_name)
}

impl ListedTool {
    /// Reads a tool of a list.
    ///
    /// # Errors
    /// Why it can't be used, in a sentence.
    pub fn read(tool: &rmcp::model::Tool) -> Result<ListedTool, String> {
        if !is_tool_name(&tool.name) {
            return Err(format!("its name must be 1 to {TOOL_NAME_BYTES} letters, digits, `_`, `-` or `.`"));
        }
        let hints = tool.annotations.as_ref().map_or_else(ToolHints::default, |hints| ToolHints {
            read_only: hints.read_only_hint,
            destructive: hints.destructive_hint,
            idempotent: hints.idempotent_hint,
        });
        let output_schema = tool.output_schema.as_ref().map(|schema| bounded_schema("result", schema)).transpose()?;
        Ok(ListedTool {
            name: tool.name.to_string(),
            description: description(tool)?,
            parameters: parameters(&tool.input_schema)?,
            output_schema: output_schema.map(Value::Object),
            hints,
        })
    }

    /// SHA-256 over RFC 8785 JSON of name, description, parameters, output schema and hints.
    pub fn hash(&self) -> String {
        self.seen().hash
    }

    /// Its definition as the operator accepts it: the text that [`ListedTool::hash`] is taken over.
    pub fn seen(&self) -> SeenDefinition {
        let ToolHints { read_only, destructive, idempotent } = self.hints;
        let text = canonical_text(&json!({
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "output_schema": self.output_schema,
            "hints": { "read_only": read_only, "destructive": destructive, "idempotent": idempotent },
        }));
        SeenDefinition { tool: self.name.clone(), hash: text_hash(&text), text }
    }

    /// The definition of the tool: its own words, under the settings of the operator.
    pub fn definition(&self, server: &PreparedServer) -> Definition {
        let settings = server.settings(&self.name);
        let (category, consequence) = (self.category(&settings), self.consequence(&settings));
        let may_repeat = server.is_trusted && self.hints.idempotent == Some(true);
        let definition = Definition::new(
            &server.full_name(&self.name),
            &self.description,
            self.parameters.clone(),
            category,
            consequence,
        );
        Definition {
            requires_confirmation: settings.requires_confirmation,
            timeout: settings.timeout_seconds.map(Duration::from_secs).or(server.call_limit),
            version: short_hash(self.hash()),
            idempotent: only_looks(category) || may_repeat,
            request: Some(self.request(server)),
            ..definition
        }
    }

    /// A tool that says of itself that it changes something does not only look.
    fn category(&self, settings: &McpToolSettings) -> Category {
        match self.hints.read_only {
            Some(false) if only_looks(settings.category) => Category::SideEffect,
            _ => settings.category,
        }
    }

    /// A mistake of a tool that says of itself that it destroys something can't be made good.
    fn consequence(&self, settings: &McpToolSettings) -> Consequence {
        match (self.hints.destructive, self.hints.read_only) {
            (Some(true), Some(false) | None) => Consequence::High,
            _ => settings.consequence,
        }
    }

    /// The server that a call goes to, and the credential that goes along: part of what a person agrees to. A command,
    /// the query of an address and another tenant's credential are told by their hashes: arguments and queries may hold
    /// secrets, and tenants do not hear of each other.
    fn request(&self, server: &PreparedServer) -> Value {
        let mut request = Map::new();
        request.insert("mcp_server".to_owned(), json!(server.name));
        request.insert("tool".to_owned(), json!(self.name));
        match &server.target {
            ServerTarget::Url(url) => {
                let shown = url.origin().ascii_serialization() + url.path();
                request.insert("url".to_owned(), json!(shown));
                if let Some(query) = url.query() {
                    request.insert("query_hash".to_owned(), json!(short_hash(canonical_hash(&json!(query)))));
                }
            }
            ServerTarget::Command { command, .. } => {
                request.insert("program".to_owned(), json!(command.first()));
                request.insert("command_hash".to_owned(), json!(short_hash(canonical_hash(&json!(command)))));
            }
        }
        if let Some(credential) = &server.credential {
            let reference = credential.reference.to_string();
            match &credential.owner {
                None => request.insert("credential".to_owned(), json!(reference)),
                Some(owner) => {
                    let hash = short_hash(canonical_hash(&json!([owner.as_str(), reference])));
                    request.insert("credential_hash".to_owned(), json!(hash))
                }
            };
        }
        Value::Object(request)
    }
}

fn short_hash(mut hash: String) -> String {
    hash.truncate(SHORT_HASH);
    hash
}

/// The description, else the title: a text that reads as it looks.
fn description(tool: &rmcp::model::Tool) -> Result<String, String> {
    let told = [tool.description.as_deref(), tool.title.as_deref()];
    let told = told.into_iter().flatten().map(str::trim).find(|text| !text.is_empty());
    let text = escape_hidden(&told.unwrap_or("A tool of an MCP server.").replace("\r\n", "\n"));
    match text.len() <= DESCRIPTION_BYTES {
        true => Ok(text),
        false => Err(format!("its description is longer than {DESCRIPTION_BYTES} bytes")),
    }
}

/// The schema of the arguments, which says of itself that it is one of an object: models are shown no other.
fn parameters(schema: &Map<String, Value>) -> Result<Value, String> {
    let mut schema = bounded_schema("arguments", schema)?;
    if schema.entry("type").or_insert_with(|| json!("object")) != "object" {
        return Err("its arguments are no object".to_owned());
    }
    schema.entry("properties").or_insert_with(|| json!({}));
    Ok(Value::Object(schema))
}

fn bounded_schema(of: &str, schema: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    match is_longer_than(schema, SCHEMA_BYTES) {
        true => Err(format!("the schema of its {of} is longer than {SCHEMA_BYTES} bytes")),
        false => Ok(schema.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::settings::{McpServerDefinition, read};

    fn tool(written: Value) -> rmcp::model::Tool {
        let mut whole = json!({ "name": "search", "description": "Searches.", "inputSchema": { "type": "object" } });
        whole.as_object_mut().unwrap().extend(written.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn listed(written: Value) -> ListedTool {
        ListedTool::read(&tool(written)).unwrap()
    }

    fn refused(written: Value) -> String {
        ListedTool::read(&tool(written)).unwrap_err()
    }

    fn server(written: Value) -> Arc<PreparedServer> {
        let mut whole = json!({ "name": "github" });
        whole.as_object_mut().unwrap().extend(written.as_object().unwrap().clone());
        let server: McpServerDefinition = serde_json::from_value(whole).unwrap();
        read(&[server], &Egress::new(&Settings::default()).unwrap()).unwrap().remove(0)
    }

    fn at_url(mut more: Value) -> Arc<PreparedServer> {
        more["url"] = json!("https://mcp.example.org/mcp");
        server(more)
    }

    fn hinted(hints: Value) -> ListedTool {
        listed(json!({ "annotations": hints }))
    }

    #[test]
    fn tool_is_read_with_its_description_else_its_title_and_hidden_characters_shown() {
        let read = listed(json!({ "outputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true } }));
        assert_eq!((read.name.as_str(), read.description.as_str()), ("search", "Searches."));
        assert_eq!(read.parameters, json!({ "type": "object", "properties": {} }));
        assert_eq!(read.output_schema, Some(json!({ "type": "object" })));
        assert_eq!(read.hints, ToolHints { read_only: Some(true), ..ToolHints::default() });
        let described = |written: Value| listed(written).description;
        assert_eq!(described(json!({ "description": " ", "title": "Search" })), "Search");
        assert_eq!(described(json!({ "description": null })), "A tool of an MCP server.");
        assert_eq!(described(json!({ "description": "a\r\nb\u{202e}c" })), "a\nb\u{27e6}U+202E\u{27e7}c");
    }

    #[test]
    fn name_of_a_tool_is_taken_at_its_longest_and_refused_one_byte_beyond_it() {
        assert_eq!(listed(json!({ "name": "a".repeat(TOOL_NAME_BYTES) })).name.len(), TOOL_NAME_BYTES);
        for name in ["", "a b", "a/b", "é", &"a".repeat(TOOL_NAME_BYTES + 1)] {
            assert!(refused(json!({ "name": name })).starts_with("its name must be"), "{name:?}");
        }
    }

    #[test]
    fn description_and_schema_are_taken_at_their_longest_and_refused_one_byte_beyond_it() {
        let described = |bytes: usize| json!({ "description": "x".repeat(bytes) });
        assert_eq!(listed(described(DESCRIPTION_BYTES)).description.len(), DESCRIPTION_BYTES);
        assert_eq!(refused(described(DESCRIPTION_BYTES + 1)), "its description is longer than 8192 bytes");
        let frame = json!({ "type": "object", "title": "" }).to_string().len();
        let schema = |bytes: usize| json!({ "type": "object", "title": "x".repeat(bytes - frame) });
        for (key, of) in [("inputSchema", "arguments"), ("outputSchema", "result")] {
            listed(json!({ key: schema(SCHEMA_BYTES) }));
            let why = refused(json!({ key: schema(SCHEMA_BYTES + 1) }));
            assert_eq!(why, format!("the schema of its {of} is longer than 65536 bytes"));
        }
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(listed(json!({ "inputSchema": {} })).parameters, json!({ "type": "object", "properties": {} }));
        for kind in [json!("array"), json!(["object", "null"])] {
            assert_eq!(refused(json!({ "inputSchema": { "type": kind } })), "its arguments are no object");
        }
    }

    #[test]
    fn hints_make_category_and_consequence_stricter_and_never_milder() {
        let judged = |hints: Value, settings: Value| {
            let server = at_url(json!({ "tools": { "search": settings } }));
            let Definition { category, consequence, .. } = hinted(hints).definition(&server);
            (category, consequence)
        };
        let read = || json!({ "category": "read", "consequence": "low" });
        let delete = || json!({ "category": "delete", "consequence": "medium" });
        use Category::{Delete, Read, SideEffect};
        use Consequence::{High, Low, Medium};
        assert_eq!(judged(json!({}), read()), (Read, Low));
        assert_eq!(judged(json!({ "readOnlyHint": true, "destructiveHint": true }), read()), (Read, Low));
        assert_eq!(judged(json!({ "readOnlyHint": false }), read()), (SideEffect, Low));
        assert_eq!(judged(json!({ "destructiveHint": true }), read()), (Read, High));
        assert_eq!(judged(json!({ "readOnlyHint": true }), delete()), (Delete, Medium));
        assert_eq!(judged(json!({ "readOnlyHint": false, "destructiveHint": true }), delete()), (Delete, High));
        assert_eq!(judged(json!({ "readOnlyHint": false, "destructiveHint": false }), delete()), (Delete, Medium));
    }

    #[test]
    fn call_may_be_repeated_where_it_only_reads_or_a_trusted_server_says_so() {
        let idempotent = |hints: Value, server: Value| hinted(hints).definition(&at_url(server)).idempotent;
        let read = || json!({ "tools": { "search": { "category": "read" } } });
        assert!(idempotent(json!({}), read()));
        assert!(!idempotent(json!({ "readOnlyHint": false }), read()));
        assert!(!idempotent(json!({ "idempotentHint": true }), json!({})));
        assert!(idempotent(json!({ "idempotentHint": true }), json!({ "trusted": true })));
        assert!(!idempotent(json!({}), json!({ "trusted": true })));
        // a server's word that it only reads is no word of the operator's
        assert!(!idempotent(json!({ "readOnlyHint": true }), json!({ "trusted": true })));
    }

    #[test]
    fn time_limit_is_the_tools_else_the_servers() {
        let timeout =
            |server: Value| listed(json!({})).definition(&at_url(server)).timeout.map(|limit| limit.as_secs());
        assert_eq!(timeout(json!({})), None);
        assert_eq!(timeout(json!({ "timeout_seconds": 60 })), Some(60));
        let own = json!({ "timeout_seconds": 60, "tools": { "search": { "timeout_seconds": 5 } } });
        assert_eq!(timeout(own), Some(5));
    }

    #[test]
    fn definition_is_bound_to_its_server_and_to_the_credential() {
        let own = listed(json!({})).definition(&at_url(json!({ "credential": "github/work" })));
        assert_eq!(own.name, "github.search");
        let expected = json!({
            "mcp_server": "github", "tool": "search", "url": "https://mcp.example.org/mcp", "credential": "github/work",
        });
        assert_eq!(own.request, Some(expected));
        let of = |tenant: &str| {
            let server = at_url(json!({ "credential": "github", "credential_of": tenant }));
            listed(json!({})).definition(&server).request.unwrap()
        };
        assert!(!of("ops").to_string().contains("ops") && of("ops").get("credential").is_none());
        assert_ne!(of("ops"), of("ann"), "another tenant's credential is another request");
        let query = |key: &str| {
            let server = server(json!({ "url": format!("https://mcp.example.org/mcp?key={key}") }));
            listed(json!({})).definition(&server).request.unwrap()
        };
        assert_eq!(query("canary")["url"], "https://mcp.example.org/mcp");
        assert!(!query("canary").to_string().contains("canary"));
        assert_ne!(query("canary"), query("other"), "another query is another request");
        let program = |token: &str| {
            let server = server(json!({ "command": ["npx", "server", format!("--token={token}")] }));
            listed(json!({})).definition(&server).request.unwrap()
        };
        assert_eq!(program("canary")["program"], "npx");
        assert!(!program("canary").to_string().contains("canary"));
        assert_ne!(program("canary"), program("other"));
    }

    #[test]
    fn definition_that_is_accepted_has_all_words_of_the_server_and_nothing_of_the_operator() {
        let SeenDefinition { tool, hash, text } = listed(json!({ "annotations": { "readOnlyHint": true } })).seen();
        assert_eq!(
            (tool.as_str(), &hash),
            ("search", &listed(json!({ "annotations": { "readOnlyHint": true } })).hash())
        );
        let expected = json!({
            "name": "search", "description": "Searches.", "output_schema": null,
            "parameters": { "type": "object", "properties": {} },
            "hints": { "read_only": true, "destructive": null, "idempotent": null },
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn another_description_schema_or_hint_is_another_version() {
        let version = |written: Value| listed(written).definition(&at_url(json!({}))).version;
        let one = version(json!({}));
        assert_eq!((one.len(), &one), (12, &version(json!({}))));
        for other in [
            json!({ "description": "Searches all." }),
            json!({ "inputSchema": { "type": "object", "required": ["q"] } }),
            json!({ "outputSchema": { "type": "object" } }),
            json!({ "annotations": { "destructiveHint": false } }),
        ] {
            assert_ne!(version(other.clone()), one, "{other}");
        }
        assert_eq!(version(json!({ "icons": [] })), one, "what nobody reads is no part of it");
    }
}
