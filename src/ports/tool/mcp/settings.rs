//! `[[mcp_servers]]`: the servers whose tools may be called, and how each tool is treated.

mod check;
mod variables;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::base::id::Tenant;
use crate::base::redact::SHORTEST_LEAF;
use crate::base::secret::Secret;
use crate::domain::approval::{Category, Consequence};
use crate::domain::credential::Reference;
use crate::ports::tool::mcp::settings::variables::INHERITED;
use crate::ports::tool::output::DefaultLevel;
use crate::ports::tool::policy::{ToolPolicy, ToolRetry};

pub use crate::ports::tool::mcp::settings::check::read;
pub use crate::ports::tool::mcp::settings::variables::fill_variables;

/// One entry of `[[mcp_servers]]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct McpServerDefinition {
    /// Name of the server, which stands before the names of its tools: lower-case letters, digits and hyphens.
    pub name: String,
    /// A program that speaks MCP over its standard input and output, and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Variables of the program: those that are written here, and a few that the service hands on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Secret>,
    /// Address of the server, in place of `command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The credential that goes with each request, the tenant's own: `service`, or `service/account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The tenant whose credential goes with the calls of all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_of: Option<String>,
    /// The tenant whose credential goes with the requests that list the tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed_as: Option<String>,
    /// The only tools that are taken, by their names at the server; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// For one call, 1 to 300; absent: as `[react]` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// For a connection, 1 to 300.
    #[serde(default = "connect_seconds")]
    pub connect_seconds: u64,
    /// Whether its hint is taken that a call may be repeated.
    #[serde(default)]
    pub trusted: bool,
    /// How single tools are treated, by their names at the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, McpToolSettings>,
}

fn connect_seconds() -> u64 {
    30
}

/// `[mcp_servers.tools.NAME]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpToolSettings {
    /// Kind of effect on the world.
    pub category: Category,
    /// Weight of a mistake.
    pub consequence: Consequence,
    /// A person is asked in any case.
    pub requires_confirmation: bool,
    /// For one call, 1 to 300; absent: as its server has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// How calls that failed are repeated.
    pub retry: ToolRetry,
    /// Whether results are kept for an hour; for tools that only read.
    pub cache: bool,
    /// How much of a result the model is shown where its call does not say; for tools that only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_level: Option<DefaultLevel>,
    /// Whether a call in whose middle its server asks a person is made again once the person has answered, though it
    /// may do something twice. For servers of before 2026-07-28; a tool that may be repeated needs it not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeats_for_input: bool,
}

impl Default for McpToolSettings {
    /// Of a tool that nothing is said of: it acts outside of the service, and a mistake costs effort.
    fn default() -> McpToolSettings {
        McpToolSettings {
            category: Category::SideEffect,
            consequence: Consequence::Medium,
            requires_confirmation: false,
            timeout_seconds: None,
            retry: ToolRetry::default(),
            cache: false,
            output_level: None,
            repeats_for_input: false,
        }
    }
}

impl McpToolSettings {
    /// How its calls are repeated, and what becomes of their results.
    fn policy(self) -> ToolPolicy {
        ToolPolicy { retry: self.retry, cache: self.cache, output_level: self.output_level }
    }
}

/// Whether a call of this category leaves nothing behind.
pub fn only_looks(category: Category) -> bool {
    matches!(category, Category::Read | Category::Analysis)
}

/// A server that was read and checked. Shared as `Arc<PreparedServer>`.
#[derive(Debug)]
pub struct PreparedServer {
    /// Name of the server.
    pub name: String,
    /// Where the server is.
    pub target: ServerTarget,
    /// The credential that goes with each request; `None`: none does.
    pub credential: Option<McpCredential>,
    /// The only tools that are taken; `None`: all.
    pub allow: Option<Vec<String>>,
    /// For one call; `None`: the loop's.
    pub call_limit: Option<Duration>,
    /// For a connection.
    pub connect_limit: Duration,
    /// Whether its hint is taken that a call may be repeated.
    pub is_trusted: bool,
    /// How single tools are treated.
    pub tools: BTreeMap<String, McpToolSettings>,
}

/// Where a server is.
#[derive(Debug)]
pub enum ServerTarget {
    /// A program that this instance starts.
    Command {
        /// The program and its arguments, at least one word.
        command: Vec<String>,
        /// All variables of the program.
        env: Vec<(String, Secret)>,
    },
    /// A server over HTTP.
    Url(Url),
}

/// The credential that goes with the requests to a server.
#[derive(Debug, Clone)]
pub struct McpCredential {
    /// Name of the credential.
    pub reference: Reference,
    /// The tenant whose credential goes with the calls of all (`credential_of`); `None`: each tenant's own does.
    pub owner: Option<Tenant>,
    /// The tenant whose credential goes with the requests that list the tools (`listed_as`).
    pub lister: Option<Tenant>,
}

impl PreparedServer {
    /// The full name of one of its tools.
    pub fn full_name(&self, tool: &str) -> String {
        format!("{}.{tool}", self.name)
    }

    /// How calls of a tool are treated; those that nothing is said of by the defaults.
    pub fn settings(&self, tool: &str) -> McpToolSettings {
        self.tools.get(tool).cloned().unwrap_or_default()
    }

    /// How calls of a tool are repeated, and what becomes of their results.
    pub fn policy(&self, tool: &str) -> ToolPolicy {
        self.settings(tool).policy()
    }

    /// Whether a tool of this name is taken.
    pub fn allows(&self, tool: &str) -> bool {
        self.allow.as_ref().is_none_or(|allowed| allowed.iter().any(|name| name == tool))
    }

    /// The tenant as whom tools are listed, and everybody's calls are made where there is such a one.
    pub fn lister(&self) -> Option<&Tenant> {
        let credential = self.credential.as_ref()?;
        credential.owner.as_ref().or(credential.lister.as_ref())
    }

    /// Whether each tenant has a connection of its own.
    pub fn is_per_tenant(&self) -> bool {
        self.credential.as_ref().is_some_and(|credential| credential.owner.is_none())
    }

    /// Values of `env` that a person wrote and that have at least [`SHORTEST_LEAF`] characters: they are taken out of
    /// results.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let env: &[(String, Secret)] = match &self.target {
            ServerTarget::Command { env, .. } => env.as_slice(),
            ServerTarget::Url(_) => Default::default(),
        };
        let written = env.iter().filter(|(name, _)| !INHERITED.contains(&name.as_str()));
        written.map(|(_, value)| value.expose()).filter(|value| value.chars().count() >= SHORTEST_LEAF)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ports::egress::{Egress, Settings};

    fn prepared(written: Value) -> PreparedServer {
        let server: McpServerDefinition = serde_json::from_value(written).unwrap();
        let mut read = read(&[server], &Egress::new(&Settings::default()).unwrap()).unwrap();
        std::sync::Arc::into_inner(read.remove(0)).unwrap()
    }

    fn by_url(more: Value) -> PreparedServer {
        let mut written = json!({ "name": "github", "url": "https://mcp.example.org/mcp" });
        written.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        prepared(written)
    }

    #[test]
    fn tool_that_nothing_is_said_of_is_a_side_effect_of_medium_consequence() {
        let server =
            by_url(json!({ "tools": { "search": { "category": "read", "consequence": "low", "cache": true } } }));
        assert_eq!(server.full_name("search"), "github.search");
        let (search, other) = (server.settings("search"), server.settings("other"));
        assert_eq!((search.category, search.consequence), (Category::Read, Consequence::Low));
        assert_eq!((other.category, other.consequence), (Category::SideEffect, Consequence::Medium));
        assert!(!other.requires_confirmation);
        assert!(server.policy("search").cache && !server.policy("other").cache);
        assert_eq!(server.policy("other"), ToolPolicy::default());
    }

    #[test]
    fn call_is_made_again_for_an_answer_where_the_operator_says_so_and_settings_without_it_read_as_before() {
        let server = by_url(json!({ "tools": { "book": { "repeats_for_input": true } } }));
        let (book, other) = (server.settings("book"), server.settings("other"));
        assert_eq!((book.repeats_for_input, other.repeats_for_input), (true, false));
        let written = |settings: McpToolSettings| serde_json::to_value(settings).unwrap();
        assert_eq!(written(book)["repeats_for_input"], true);
        assert!(written(other).get("repeats_for_input").is_none());
    }

    #[test]
    fn tools_are_taken_by_the_list_where_there_is_one() {
        let (all, some, none) =
            (by_url(json!({})), by_url(json!({ "allow": ["search"] })), by_url(json!({ "allow": [] })));
        assert_eq!([&all, &some, &none].map(|server| server.allows("search")), [true, true, false]);
        assert_eq!([&all, &some, &none].map(|server| server.allows("delete")), [true, false, false]);
    }

    #[test]
    fn connection_is_each_tenants_own_where_its_own_credential_goes_along() {
        let plain = by_url(json!({}));
        let own = by_url(json!({ "credential": "github" }));
        let listed = by_url(json!({ "credential": "github", "listed_as": "ops" }));
        let shared = by_url(json!({ "credential": "github", "credential_of": "ops" }));
        let servers = [&plain, &own, &listed, &shared];
        assert_eq!(servers.map(PreparedServer::is_per_tenant), [false, true, true, false]);
        let ops = Tenant::new("ops").unwrap();
        assert_eq!(servers.map(|server| server.lister()), [None, None, Some(&ops), Some(&ops)]);
    }

    #[test]
    fn values_of_the_environment_are_secrets_if_a_person_wrote_them_and_they_are_long() {
        let server = prepared(json!({
            "name": "local", "command": ["server"],
            "env": { "TOKEN": "canary-8", "LEVEL": "canary7", "PATH": "/usr/local/bin:/usr/bin" },
        }));
        assert_eq!(server.secrets().collect::<Vec<_>>(), ["canary-8"]);
        assert!(!format!("{server:?}").contains("canary"), "a secret is not printed");
        assert_eq!(by_url(json!({})).secrets().count(), 0);
    }
}
