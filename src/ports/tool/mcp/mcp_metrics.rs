//! How the MCP servers of an instance do: for Prometheus.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::base::clock::Clock;
use crate::base::metrics::Metrics;

/// Seconds: a call takes 300 at most.
const CALL_BUCKETS: [f64; 11] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct McpServerLabel {
    server: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct McpOutcomeLabels {
    server: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct McpToolLabels {
    server: String,
    state: &'static str,
}

/// How many tools a server lists, by what becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolCounts {
    /// They are taken.
    pub listed: usize,
    /// They wait until the operator accepts their definitions.
    pub waiting: usize,
    /// They are there for nobody.
    pub set_aside: usize,
}

/// Handles of one instance. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct McpMetrics {
    up: Family<McpServerLabel, Gauge>,
    connections: Family<McpOutcomeLabels, Counter>,
    tools: Family<McpToolLabels, Gauge>,
    calls: Family<McpOutcomeLabels, Counter>,
    call_seconds: Family<McpServerLabel, Histogram, fn() -> Histogram>,
    questions: Family<McpOutcomeLabels, Counter>,
}

impl McpMetrics {
    /// The metrics of MCP servers, registered.
    pub fn new(metrics: &Metrics) -> McpMetrics {
        McpMetrics {
            up: metrics.registered(
                "mcp_server_up",
                "Whether this instance is connected with an MCP server (1), or it is away (0)",
                Family::default(),
            ),
            connections: metrics.registered(
                "mcp_connections",
                "Connections with MCP servers that were opened, and those that failed",
                Family::default(),
            ),
            tools: metrics.registered(
                "mcp_tools",
                "Tools that an MCP server lists: those that are taken, that wait, and that are set aside",
                Family::default(),
            ),
            calls: metrics.registered(
                "mcp_calls",
                "Calls of tools of MCP servers, by how they ended",
                Family::default(),
            ),
            call_seconds: metrics.registered(
                "mcp_call_seconds",
                "How long calls of tools of MCP servers took, the wait for their turn aside",
                Family::new_with_constructor(|| Histogram::new(CALL_BUCKETS)),
            ),
            questions: metrics.registered(
                "mcp_questions",
                "Questions of MCP servers to a person in the middle of a call, by what became of them",
                Family::default(),
            ),
        }
    }

    /// Says whether a server is connected.
    pub fn set_up(&self, server: &str, is_up: bool) {
        self.up.get_or_create(&McpServerLabel { server: server.to_owned() }).set(i64::from(is_up));
    }

    /// A connection was tried.
    pub fn record_connection(&self, server: &str, is_open: bool) {
        let outcome = if is_open { "opened" } else { "failed" };
        self.connections.get_or_create(&McpOutcomeLabels { server: server.to_owned(), outcome }).inc();
    }

    /// A server lists so many tools.
    pub fn set_tools(&self, server: &str, counts: ToolCounts) {
        let ToolCounts { listed, waiting, set_aside } = counts;
        for (state, count) in [("listed", listed), ("waiting", waiting), ("set_aside", set_aside)] {
            let labels = McpToolLabels { server: server.to_owned(), state };
            self.tools.get_or_create(&labels).set(count as i64);
        }
    }

    /// A server has asked a person: `asked`, `refused` (nobody is asked), or `unplaced` (nobody knows for which call).
    pub fn record_question(&self, server: &str, outcome: &'static str) {
        self.questions.get_or_create(&McpOutcomeLabels { server: server.to_owned(), outcome }).inc();
    }

    /// A call has ended: `ok`, `asked`, `tool_error`, or the word of a fault.
    pub fn record_call(&self, server: &str, outcome: &'static str, took: Duration) {
        self.calls.get_or_create(&McpOutcomeLabels { server: server.to_owned(), outcome }).inc();
        let label = McpServerLabel { server: server.to_owned() };
        self.call_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }
}

/// The outcome of a call that had no answer in its time.
pub const SLOW: &str = "slow";

/// Records a call once it ends. One that is dropped, as the agent drops it when its time is over, is slow.
pub struct McpCallMeter<'a> {
    metrics: &'a McpMetrics,
    server: &'a str,
    clock: &'a Clock,
    begun: Duration,
    /// How it ended.
    pub outcome: &'static str,
}

impl<'a> McpCallMeter<'a> {
    /// A call of a tool of this server begins now.
    pub fn start(metrics: &'a McpMetrics, server: &'a str, clock: &'a Clock) -> McpCallMeter<'a> {
        McpCallMeter { metrics, server, clock, begun: clock.elapsed(), outcome: SLOW }
    }
}

impl Drop for McpCallMeter<'_> {
    fn drop(&mut self) {
        let took = self.clock.elapsed().saturating_sub(self.begun);
        self.metrics.record_call(self.server, self.outcome, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_servers_are_printed_with_their_labels() {
        let metrics = Metrics::new();
        let mcp = McpMetrics::new(&metrics);
        mcp.set_up("github", true);
        mcp.record_connection("github", true);
        mcp.record_connection("github", false);
        mcp.set_tools("github", ToolCounts { listed: 12, waiting: 2, set_aside: 1 });
        mcp.record_call("github", "ok", Duration::from_millis(20));
        mcp.record_question("github", "asked");
        let text = metrics.text();
        for line in [
            r#"reveille_mcp_server_up{server="github"} 1"#,
            r#"reveille_mcp_connections_total{server="github",outcome="opened"} 1"#,
            r#"reveille_mcp_connections_total{server="github",outcome="failed"} 1"#,
            r#"reveille_mcp_tools{server="github",state="listed"} 12"#,
            r#"reveille_mcp_tools{server="github",state="waiting"} 2"#,
            r#"reveille_mcp_tools{server="github",state="set_aside"} 1"#,
            r#"reveille_mcp_calls_total{server="github",outcome="ok"} 1"#,
            r#"reveille_mcp_call_seconds_count{server="github"} 1"#,
            r#"reveille_mcp_questions_total{server="github",outcome="asked"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no `{line}` in:\n{text}");
        }
        mcp.set_up("github", false);
        assert!(metrics.text().contains(r#"reveille_mcp_server_up{server="github"} 0"#));
    }
}
