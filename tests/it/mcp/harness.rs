//! MCP servers of one test in this process: connected as a service connects them, their tools in a catalog, and calls
//! as an agent makes them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reveille::base::clock::{Clock, pause};
use reveille::base::compute::Compute;
use reveille::base::id::Tenant;
use reveille::base::metrics::Metrics;
use reveille::ports::egress::{Egress, Settings};
use reveille::ports::tool::mcp::{self, McpHealth, McpServerDefinition, McpServers};
use reveille::ports::tool::pins::ToolPins;
use reveille::ports::tool::registry::RegisteredTool;
use reveille::ports::tool::{
    self, ToolCaller, ToolCatalog, ToolContext, ToolError, ToolOutput, ToolRegistry, UsedSecrets,
};
use reveille::ports::vault::credentials::Credentials;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::agent::harness::{Ledger, RUN, no_credentials};
use crate::support::api::Api;

/// How long anything may take on a loaded machine with two cores.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often something that comes by itself is looked for.
pub const LOOK: Duration = Duration::from_millis(20);

/// The MCP servers of one test.
pub struct McpHarness {
    pub servers: McpServers,
    pub catalog: ToolCatalog,
    pub metrics: Metrics,
    /// The host of all calls.
    pub host: Arc<Ledger>,
}

/// An egress that reaches the servers of tests.
pub fn egress() -> Egress {
    let settings = Settings { allow: vec!["127.0.0.1:*".into()], ..Settings::default() };
    Egress::new(&settings).expect("an egress")
}

/// An entry of `[[mcp_servers]]` with a program.
pub fn by_command(name: &str, command: &[String]) -> Value {
    json!({ "name": name, "command": command })
}

/// An entry of `[[mcp_servers]]` with an address.
pub fn by_url(name: &str, url: &str) -> Value {
    json!({ "name": name, "url": url })
}

/// An entry of `[[mcp_servers]]` with more keys.
pub fn with(mut server: Value, more: Value) -> Value {
    let more = more.as_object().expect("keys").clone();
    server.as_object_mut().expect("a server").extend(more);
    server
}

impl McpHarness {
    /// These entries of `[[mcp_servers]]`, each tried once.
    pub async fn start(servers: &[Value]) -> McpHarness {
        McpHarness::start_with(servers, Credentials::none(egress())).await
    }

    /// As [`McpHarness::start`], with credentials.
    pub async fn start_with(servers: &[Value], credentials: Credentials) -> McpHarness {
        McpHarness::start_pinned(servers, credentials, None).await
    }

    /// As [`McpHarness::start_with`], with the place where accepted definitions are kept; `None`: all are accepted.
    pub async fn start_pinned(
        servers: &[Value],
        credentials: Credentials,
        pins: Option<Arc<dyn ToolPins>>,
    ) -> McpHarness {
        let mut definitions: Vec<McpServerDefinition> = serde_json::from_value(json!(servers)).expect("servers");
        let variable = |name: &str| std::env::var_os(name)?.into_string().ok();
        mcp::fill_variables(&mut definitions, variable).expect("their variables");
        let prepared = mcp::read(&definitions, credentials.egress()).expect("sound servers");
        let names = definitions.iter().map(|server| server.name.as_str());
        let tools = ToolRegistry::new(tool::builtin::all(&credentials)).expect("tools").with_servers(names);
        let (catalog, metrics) = (ToolCatalog::new(tools), Metrics::new());
        let supervisor = Some(PathBuf::from(env!("CARGO_BIN_EXE_reveille")));
        let servers = McpServers::new(prepared, &credentials, &catalog, supervisor, Clock::system(), &metrics, pins);
        servers.start(&Handle::current());
        let tried = timeout(PATIENCE, servers.first_tried()).await;
        tried.unwrap_or_else(|_| panic!("not tried in time: {:?}", servers.health()));
        McpHarness { servers, catalog, metrics, host: Arc::default() }
    }

    /// The first answer of a look at the tools that there are, looked for again and again.
    pub async fn until<T>(&self, look: impl Fn(&ToolRegistry) -> Option<T>) -> T {
        let found = async {
            loop {
                match look(&self.catalog.current()) {
                    Some(found) => return found,
                    None => pause(LOOK).await,
                }
            }
        };
        let waited = timeout(PATIENCE, found).await;
        waited.unwrap_or_else(|_| panic!("not in time; {:?}: {:?}", self.servers.health(), self.names()))
    }

    /// A tool by its full name, once it is there.
    pub async fn tool(&self, name: &str) -> Arc<RegisteredTool> {
        self.until(|tools| tools.find(name).cloned()).await
    }

    /// The names of the tools of servers.
    pub fn names(&self) -> Vec<String> {
        let tools = self.catalog.current();
        tools.names().filter(|name| tools.is_of_server(name)).map(str::to_owned).collect()
    }

    /// How the server stands.
    pub fn health(&self, name: &str) -> McpHealth {
        let found = self.servers.health().into_iter().find(|health| health.name == name);
        found.unwrap_or_else(|| panic!("there is no server {name}"))
    }

    /// The context of a call of this tenant, with a minute of time.
    pub fn context(&self, tenant: &str) -> ToolContext {
        ToolContext {
            tenant: Tenant::new(tenant).expect("a tenant"),
            run_id: RUN,
            task_id: None,
            called_by: ToolCaller::Model,
            turn: 1,
            call_id: "c".into(),
            idempotency_key: "k".into(),
            delegation_chain: vec![],
            words: Default::default(),
            limits: Default::default(),
            timezone: chrono_tz::Tz::UTC,
            time_limit: PATIENCE,
            host: self.host.clone(),
            clock: Clock::system(),
            compute: Compute::new(1),
            credentials: no_credentials(),
            used_secrets: UsedSecrets::default(),
            continuation: None,
            progress: Default::default(),
        }
    }

    /// Calls a tool as a run of ann does, once it is there.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        self.call_in(&self.context("ann"), tool, arguments).await
    }

    /// Calls a tool in this context, once it is there: the model is told the answer without secrets that are known.
    pub async fn call_in(&self, context: &ToolContext, tool: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        let registered = self.tool(tool).await;
        registered.check(&arguments)?;
        let called = registered.tool.call(context, arguments).await;
        context.used_secrets.clean(called).await
    }

    /// Calls a tool as a run of ann does, again for as long as its server can't be reached.
    pub async fn call_patiently(&self, tool: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        let called = async {
            loop {
                match self.call(tool, arguments.clone()).await {
                    Err(error) if error.is_unsent() => pause(LOOK).await,
                    called => return called,
                }
            }
        };
        timeout(PATIENCE, called).await.unwrap_or_else(|_| panic!("not in time; {:?}", self.servers.health()))
    }

    /// Lets all servers go.
    pub async fn stop(self) {
        self.servers.stop().await;
    }
}

/// Returns once the service has these tools.
pub async fn until_listed(api: &Api, tools: &[&str]) {
    let listed = async {
        loop {
            let there = api.get("/v1/tools").await.to_string();
            if tools.iter().all(|tool| there.contains(&format!("\"{tool}\""))) {
                return;
            }
            pause(LOOK).await;
        }
    };
    timeout(PATIENCE, listed).await.unwrap_or_else(|_| panic!("not listed in time: {tools:?}"));
}

/// The text of an answer in words.
pub fn text(called: Result<ToolOutput, ToolError>) -> String {
    let output = called.unwrap_or_else(|error| panic!("{error:?}"));
    output.data.as_str().unwrap_or_else(|| panic!("no text: {output:?}")).to_owned()
}

/// The code of a failure.
pub fn code(called: Result<ToolOutput, ToolError>) -> String {
    called.map_or_else(|error| error.code().to_owned(), |output| panic!("{output:?}"))
}
