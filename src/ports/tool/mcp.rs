//! MCP servers: their tools are called as any other tool is, under the policy that the operator writes for them.
//!
//! Owns the connections, the processes of servers that run here, and the lists of their tools. Decides nothing about
//! consent or repetition. It keeps nothing: after a restart it connects and lists anew.

mod call_result;
mod connection;
mod fault;
mod handler;
mod http;
mod input;
mod keeper;
mod listed_tool;
mod listing;
mod mcp_metrics;
mod mcp_tool;
mod output_budget;
mod pinning;
mod probe;
mod relisting;
mod server;
mod servers;
mod settings;
mod stdio;
mod tenant_connections;

pub use fault::McpFault;
pub use listing::SetAsideTool;
pub use probe::{ProbedServer, probe};
pub use server::{McpHealth, McpState};
pub use servers::McpServers;
pub use settings::{
    McpCredential, McpServerDefinition, McpToolSettings, PreparedServer, ServerTarget, fill_variables, read,
};
pub use stdio::supervisor;
