//! A look at an MCP server, for `reveille check`: it is connected with, its tools are listed, and it is let go.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::base::json::schema::JsonSchema;
use crate::ports::tool::mcp::connection::{ConnectionParts, McpConnection, ServerEra};
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::listing::{LISTED_WITHIN, SetAsideTool, ToolListing, list_within};
use crate::ports::tool::mcp::settings::PreparedServer;
use crate::ports::vault::credentials::Credentials;

/// A server that answered.
pub struct ProbedServer {
    /// The revision of the protocol that was agreed on.
    pub revision: String,
    /// How many of its tools can be used.
    pub tools: usize,
    /// Those that can't.
    pub set_aside: Vec<SetAsideTool>,
    /// How long it took to connect and to list.
    pub took: Duration,
}

/// Connects with a server as its lister, lists its tools, and ends the connection. Takes as long as a connection may,
/// and a minute more at most.
///
/// # Errors
/// Why it can't be reached, or does not list its tools.
pub async fn probe(
    server: &Arc<PreparedServer>,
    credentials: &Credentials,
    supervisor: &Path,
) -> Result<ProbedServer, McpFault> {
    let begun = Instant::now();
    let parts = ConnectionParts {
        server: Arc::clone(server),
        credentials: credentials.clone(),
        supervisor: Some(Arc::from(supervisor)),
        runtime: Handle::current(),
    };
    let connection = McpConnection::open(&parts, server.lister().cloned(), ServerEra::Unknown).await?;
    let listed = list_within(&connection, server, LISTED_WITHIN).await;
    let (revision, took) = (connection.revision(), begun.elapsed());
    connection.close().await;
    let ToolListing { tools, mut set_aside, .. } = listed?;
    let count = tools.len();
    let unfit = tools.iter().filter_map(|tool| {
        let why = JsonSchema::read(&tool.parameters).err()?;
        Some(SetAsideTool::new(&tool.name, &format!("its arguments have no JSON Schema that can be used: {why}")))
    });
    let unfit: Vec<SetAsideTool> = unfit.collect();
    let tools = count - unfit.len();
    set_aside.extend(unfit);
    Ok(ProbedServer { revision, tools, set_aside, took })
}
