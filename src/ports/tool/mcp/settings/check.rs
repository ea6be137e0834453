//! Reading `[[mcp_servers]]`: every fault in one answer, each with its place and what would be right.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, escape};
use crate::domain::credential::Reference;
use crate::ports::egress::Egress;
use crate::ports::tool::Definition;
use crate::ports::tool::mcp::listed_tool::{TOOL_NAME_BYTES, is_tool_name};
use crate::ports::tool::mcp::settings::{
    McpCredential, McpServerDefinition, McpToolSettings, PreparedServer, ServerTarget, only_looks,
};

/// Most servers of an instance.
pub const SERVERS: usize = 32;
/// Longest name of a server.
const NAME_BYTES: usize = 32;
/// Most words of a command.
const WORDS: usize = 64;
/// For a call, and for a connection.
const SECONDS: RangeInclusive<u64> = 1..=300;
/// Variables with this prefix are settings of the service itself.
const OURS: &str = "REVEILLE_";

/// Reads all of them; pointers of faults begin with `/mcp_servers`.
///
/// # Errors
/// What is wrong with any of them.
pub fn read(servers: &[McpServerDefinition], egress: &Egress) -> Result<Vec<Arc<PreparedServer>>, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    if servers.len() > SERVERS {
        faults.add("/mcp_servers", format!("must be at most {SERVERS} servers"));
    }
    let mut prepared = Vec::with_capacity(servers.len());
    for (index, server) in servers.iter().enumerate() {
        let place = format!("/mcp_servers/{index}");
        if servers[..index].iter().any(|other| other.name == server.name) {
            faults.add(format!("{place}/name"), format!("two MCP servers are named `{}`", server.name));
        }
        let mut reader = ServerReader { server, egress, place, faults: &mut faults };
        reader.name();
        reader.limits();
        reader.tools();
        prepared.extend(reader.prepared().map(Arc::new));
    }
    faults.into_result(prepared)
}

struct ServerReader<'a> {
    server: &'a McpServerDefinition,
    egress: &'a Egress,
    place: String,
    faults: &'a mut ValidationErrors,
}

impl ServerReader<'_> {
    fn fault(&mut self, below: &str, message: impl Into<String>) {
        let place = format!("{}{below}", self.place);
        self.faults.add(place, message);
    }

    fn name(&mut self) {
        let name = &self.server.name;
        let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > NAME_BYTES || name.starts_with('-') || !name.chars().all(is_of_name) {
            let message = format!("must be 1 to {NAME_BYTES} lower-case letters, digits or hyphens, no hyphen first");
            self.fault("/name", message);
        }
    }

    fn limits(&mut self) {
        let McpServerDefinition { timeout_seconds, connect_seconds, .. } = self.server;
        self.seconds("/timeout_seconds", *timeout_seconds);
        self.seconds("/connect_seconds", Some(*connect_seconds));
    }

    fn seconds(&mut self, below: &str, seconds: Option<u64>) {
        if seconds.is_some_and(|seconds| !SECONDS.contains(&seconds)) {
            self.fault(below, format!("must be from {} to {}", SECONDS.start(), SECONDS.end()));
        }
    }

    fn tools(&mut self) {
        let McpServerDefinition { allow, tools, .. } = self.server;
        for (index, name) in allow.iter().flatten().enumerate() {
            if !is_tool_name(name) {
                self.fault(&format!("/allow/{index}"), no_tool_name());
            }
        }
        for (name, settings) in tools {
            self.tool(name, settings);
        }
    }

    fn tool(&mut self, name: &str, settings: &McpToolSettings) {
        let below = format!("/tools/{}", escape(name));
        if !is_tool_name(name) {
            self.fault(&below, no_tool_name());
        } else if self.server.allow.as_ref().is_some_and(|allow| !allow.iter().any(|allowed| allowed == name)) {
            self.fault(&below, "`allow` leaves this tool out");
        }
        self.seconds(&format!("{below}/timeout_seconds"), settings.timeout_seconds);
        let place = format!("{}{below}", self.place);
        settings.clone().policy().check(&self.trial_definition(name, settings), &place, self.faults);
    }

    /// The definition of a tool about which its server says nothing: with it, the settings of the tool are judged.
    fn trial_definition(&self, tool: &str, settings: &McpToolSettings) -> Definition {
        let McpToolSettings { category, consequence, requires_confirmation, .. } = *settings;
        let name = format!("{}.{tool}", self.server.name);
        let definition = Definition::new(&name, "", json!({ "type": "object" }), category, consequence);
        Definition { requires_confirmation, idempotent: only_looks(category), ..definition }
    }

    /// `None` only where a fault was added.
    fn prepared(&mut self) -> Option<PreparedServer> {
        let (target, credential) = (self.target(), self.credential());
        let McpServerDefinition { name, allow, timeout_seconds, connect_seconds, trusted, tools, .. } = self.server;
        Some(PreparedServer {
            name: name.clone(),
            target: target?,
            credential,
            allow: allow.clone(),
            call_limit: timeout_seconds.map(Duration::from_secs),
            connect_limit: Duration::from_secs(*connect_seconds),
            is_trusted: *trusted,
            tools: tools.clone(),
        })
    }

    /// `None` only where a fault was added.
    fn target(&mut self) -> Option<ServerTarget> {
        let McpServerDefinition { url, command, env, .. } = self.server;
        if url.is_some() && !env.is_empty() {
            self.fault("/env", "goes with `command` alone: only a program has variables");
        }
        match (url, command.is_empty()) {
            (Some(url), true) => self.url(url),
            (None, false) => self.command(),
            (Some(_), false) => {
                self.fault("/url", "goes not together with `command`: a server is a program or has an address");
                None
            }
            (None, true) => {
                self.fault("/command", "is missing, and so is `url`: one of them says where the server is");
                None
            }
        }
    }

    fn url(&mut self, url: &str) -> Option<ServerTarget> {
        if url.contains('#') {
            self.fault("/url", "must have no fragment (`#`)");
        }
        match self.egress.check(url) {
            Ok(url) => Some(ServerTarget::Url(url)),
            Err(error) => {
                self.fault("/url", error.to_string());
                None
            }
        }
    }

    fn command(&mut self) -> Option<ServerTarget> {
        let McpServerDefinition { command, env, .. } = self.server;
        if command[0].is_empty() {
            self.fault("/command/0", "must name a program");
        }
        if command.len() > WORDS {
            self.fault("/command", format!("must have at most {WORDS} words"));
        }
        for (index, _) in command.iter().enumerate().filter(|(_, word)| word.contains('\0')) {
            self.fault(&format!("/command/{index}"), "must not contain a NUL");
        }
        for (name, value) in env {
            if let Some(why) = unfit_variable(name, value.expose()) {
                self.fault(&format!("/env/{}", escape(name)), why);
            }
        }
        let env = env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Some(ServerTarget::Command { command: command.clone(), env })
    }

    /// `None` where there is none, or a fault was added.
    fn credential(&mut self) -> Option<McpCredential> {
        let McpServerDefinition { url, credential, credential_of, listed_as, .. } = self.server;
        let tenants = [("/credential_of", credential_of), ("/listed_as", listed_as)];
        if url.is_none() {
            for (below, _) in [("/credential", credential)].iter().chain(&tenants).filter(|(_, named)| named.is_some())
            {
                self.fault(below, "goes with `url` alone; a program is given its secrets by `env`");
            }
            return None;
        }
        let Some(credential) = credential else {
            for (below, _) in tenants.iter().filter(|(_, named)| named.is_some()) {
                self.fault(below, "needs `credential`, which says whose name is meant");
            }
            return None;
        };
        if credential_of.is_some() && listed_as.is_some() {
            self.fault("/listed_as", "goes not together with `credential_of`, as whom the tools are listed, too");
        }
        let owner = self.tenant("/credential_of", credential_of.as_deref());
        let lister = self.tenant("/listed_as", listed_as.as_deref());
        match Reference::parse(credential) {
            Ok(reference) => Some(McpCredential { reference, owner, lister }),
            Err(why) => {
                self.fault("/credential", why);
                None
            }
        }
    }

    fn tenant(&mut self, below: &str, named: Option<&str>) -> Option<Tenant> {
        match named.map(Tenant::new).transpose() {
            Ok(tenant) => tenant,
            Err(why) => {
                self.fault(below, why);
                None
            }
        }
    }
}

fn no_tool_name() -> String {
    format!("must be 1 to {TOOL_NAME_BYTES} letters, digits, `_`, `-` or `.`, as the server names its tool")
}

/// Why a program can't be given this variable; `None`: it can.
fn unfit_variable(name: &str, value: &str) -> Option<&'static str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(is_of_name) {
        return Some("a variable is named by letters, digits and `_`, no digit first");
    }
    if name.starts_with(OURS) {
        return Some("is a setting of the service itself, which no program is given");
    }
    value.contains('\0').then_some("must not contain a NUL")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ports::egress::Settings;

    fn faults_of(servers: Value) -> Vec<String> {
        let servers: Vec<McpServerDefinition> = serde_json::from_value(servers).unwrap();
        let read = read(&servers, &Egress::new(&Settings::default()).unwrap());
        let faults = read.err().map_or(vec![], |faults| faults.0);
        faults.into_iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect()
    }

    /// The faults of a server that would be sound but for this.
    fn faults(mut server: Value, change: Value) -> Vec<String> {
        server.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        faults_of(json!([server]))
    }

    fn of_url(change: Value) -> Vec<String> {
        faults(json!({ "name": "github", "url": "https://mcp.example.org/mcp" }), change)
    }

    fn of_command(change: Value) -> Vec<String> {
        faults(json!({ "name": "local", "command": ["server", "--stdio"] }), change)
    }

    fn named(pointer: &str, part: &str, found: Vec<String>) {
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("/mcp_servers/0{pointer}: ")),
            "{pointer}: {found:?}"
        );
        assert!(found[0].contains(part), "{found:?}");
    }

    #[test]
    fn sound_servers_have_no_fault() {
        let sound = json!({ "timeout_seconds": 300, "connect_seconds": 1, "allow": ["a.b", "search"], "trusted": true,
            "tools": { "search": { "category": "read", "consequence": "low", "cache": true, "output_level": "auto" } } });
        assert_eq!(of_url(sound.clone()), Vec::<String>::new());
        assert_eq!(of_url(json!({ "credential": "github/work", "listed_as": "ops" })), Vec::<String>::new());
        assert_eq!(of_command(sound), Vec::<String>::new());
        assert_eq!(of_command(json!({ "env": { "_A1": "x", "PATH": "/bin" } })), Vec::<String>::new());
    }

    #[test]
    fn fault_of_a_server_names_its_place_and_what_would_be_right() {
        for name in ["", "GitHub", "git hub", "-a", "a_b", &"a".repeat(NAME_BYTES + 1)] {
            named("/name", "hyphens", of_url(json!({ "name": name })));
        }
        assert_eq!(of_url(json!({ "name": "a".repeat(NAME_BYTES) })), Vec::<String>::new());
        named("/url", "not together", of_url(json!({ "command": ["server"] })));
        named("/command", "url", of_command(json!({ "command": [] })));
        named("/command/0", "program", of_command(json!({ "command": [""] })));
        named("/command", "64", of_command(json!({ "command": vec!["x"; WORDS + 1] })));
        named("/command/1", "NUL", of_command(json!({ "command": ["x", "a\0b"] })));
        named("/env", "command", of_url(json!({ "env": { "A": "x" } })));
        for name in ["", "1A", "A-B", "REVEILLE_TOKEN"] {
            named(&format!("/env/{name}"), "", of_command(json!({ "env": { name: "x" } })));
        }
        named("/url", "fragment", of_url(json!({ "url": "https://mcp.example.org/mcp#x" })));
        named("/url", "not allowed", of_url(json!({ "url": "http://10.0.0.1/mcp" })));
        for (key, seconds) in [("timeout_seconds", 0), ("timeout_seconds", 301), ("connect_seconds", 0)] {
            named(&format!("/{key}"), "1 to 300", of_url(json!({ key: seconds })));
        }
        named("/allow/1", "letters", of_url(json!({ "allow": ["a", "a b"] })));
    }

    #[test]
    fn credential_goes_with_an_address_and_names_of_tenants_with_a_credential() {
        for key in ["credential", "credential_of", "listed_as"] {
            named(&format!("/{key}"), "`env`", of_command(json!({ key: "x" })));
        }
        named("/credential", "service", of_url(json!({ "credential": "a b" })));
        for key in ["credential_of", "listed_as"] {
            named(&format!("/{key}"), "needs", of_url(json!({ key: "ops" })));
            named(&format!("/{key}"), "every tenant", of_url(json!({ "credential": "x", key: "*" })));
        }
        let both = of_url(json!({ "credential": "x", "credential_of": "ops", "listed_as": "ann" }));
        named("/listed_as", "not together", both);
    }

    #[test]
    fn settings_of_a_tool_are_judged_by_its_category() {
        let of_tool = |settings: Value| of_url(json!({ "tools": { "send": settings } }));
        let place = "/tools/send";
        named(&format!("{place}/cache"), "more than read", of_tool(json!({ "cache": true })));
        named(&format!("{place}/output_level"), "more than read", of_tool(json!({ "output_level": "auto" })));
        named(&format!("{place}/retry/max_retries"), "10", of_tool(json!({ "retry": { "max_retries": 11 } })));
        named(&format!("{place}/timeout_seconds"), "1 to 300", of_tool(json!({ "timeout_seconds": 301 })));
        let asked = json!({ "category": "read", "cache": true, "requires_confirmation": true });
        named(&format!("{place}/cache"), "more than read", of_tool(asked));
        named(place, "leaves", of_url(json!({ "allow": ["other"], "tools": { "send": {} } })));
        named("/tools/a~1b", "letters", of_url(json!({ "tools": { "a/b": {} } })));
    }

    #[test]
    fn servers_are_taken_up_to_their_most_and_each_name_once() {
        let servers = |count: usize| -> Value {
            (0..count).map(|n| json!({ "name": format!("s{n}"), "command": ["server"] })).collect()
        };
        assert_eq!(faults_of(servers(SERVERS)), Vec::<String>::new());
        assert_eq!(faults_of(servers(SERVERS + 1)), ["/mcp_servers: must be at most 32 servers"]);
        let twice = json!([{ "name": "a", "command": ["x"] }, { "name": "a", "command": ["y"] }]);
        assert_eq!(faults_of(twice), ["/mcp_servers/1/name: two MCP servers are named `a`"]);
    }
}
