//! Messages of MCP clients to this instance, counted and limited.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::base::metrics::Metrics;
use crate::http::mcp::rate::McpRate;

/// Methods that have a label of their own.
const METHODS: [&str; 14] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "skills/list",
    "skills/get",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "notification",
];

/// A method of a closed set, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct McpRequestLabels {
    method: &'static str,
    outcome: &'static str,
}

/// The messages of MCP clients.
#[derive(Debug)]
pub struct McpServed {
    /// How many each token has sent of late.
    pub rate: McpRate,
    requests: Family<McpRequestLabels, Counter>,
}

impl McpServed {
    /// None yet; the counter is registered.
    pub fn new(metrics: &Metrics) -> McpServed {
        let help = "Messages of MCP clients at /mcp, by method and by how they ended";
        McpServed { rate: McpRate::default(), requests: metrics.registered("mcp_requests", help, Family::default()) }
    }

    /// A message was answered: `ok`, `tool_error`, `input_required`, `task` or `error`.
    pub fn count(&self, method: &str, outcome: &'static str) {
        let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
        self.requests.get_or_create(&McpRequestLabels { method, outcome }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_method_makes_no_label_of_its_own() {
        let metrics = Metrics::new();
        let served = McpServed::new(&metrics);
        served.count("tools/call", "tool_error");
        served.count("made/up", "error");
        served.count("made/up too", "error");
        let text = metrics.text();
        assert!(text.contains(r#"reveille_mcp_requests_total{method="tools/call",outcome="tool_error"} 1"#), "{text}");
        assert!(text.contains(r#"reveille_mcp_requests_total{method="other",outcome="error"} 2"#), "{text}");
    }
}
