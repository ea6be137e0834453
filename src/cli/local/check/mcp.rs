//! MCP servers: does each start or answer, and can all its tools be used? They are connected as a start connects them,
//! asked for their tools, and closed. No tool is called, and no credential is used.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use super::Finding;
use crate::cli::local::mcp_supervise;
use crate::config::Config;
use crate::ports::egress::Egress;
use crate::ports::tool::mcp::{self, McpFault, PreparedServer, ProbedServer, SetAsideTool, probe};
use crate::ports::vault::credentials::Credentials;

/// Tools that can't be used of which one server tells.
const TOLD: usize = 5;
/// Advice for a server that asks for authorisation, and has no credential.
const WITHOUT_CREDENTIAL: &str =
    "with credential = \"NAME\" here, and resource, its address, in [oauth.NAME], people can connect their accounts";

/// Faults of the settings are told with those of their sections.
pub async fn all(config: &Config) -> Vec<Finding> {
    let Ok(egress) = Egress::new(&config.egress) else { return Vec::new() };
    let Ok(servers) = mcp::read(&config.mcp_servers, &egress) else { return Vec::new() };
    let (credentials, supervisor) = (Credentials::none(egress), mcp_supervise::program());
    let looks = servers.iter().map(|server| look(server, &credentials, &supervisor));
    join_all(looks).await.into_iter().flatten().collect()
}

async fn look(server: &Arc<PreparedServer>, credentials: &Credentials, supervisor: &Path) -> Vec<Finding> {
    let name = format!("mcp {}", server.name);
    match probe(server, credentials, supervisor).await {
        Ok(probed) => usable(&name, &probed),
        Err(fault @ McpFault::Unauthorized { .. }) if server.credential.is_none() => {
            vec![unusable(&name, &fault).hint(WITHOUT_CREDENTIAL)]
        }
        Err(fault) => vec![unusable(&name, &fault)],
    }
}

fn usable(name: &str, probed: &ProbedServer) -> Vec<Finding> {
    let ProbedServer { revision, tools, set_aside, took } = probed;
    let tools = if *tools == 1 { "1 tool".to_owned() } else { format!("{tools} tools") };
    let found = Finding::ok(name, format!("{revision}, {tools} in {}", in_seconds(*took)));
    let mut findings = vec![found];
    findings.extend(set_aside.iter().take(TOLD).map(|tool| cannot_be_used(name, tool)));
    if set_aside.len() > TOLD {
        let more = format!("{} more tools can't be used", set_aside.len() - TOLD);
        findings.push(Finding::warning(name, more));
    }
    findings
}

fn cannot_be_used(name: &str, tool: &SetAsideTool) -> Finding {
    Finding::warning(name, format!("the tool `{}` can't be used: {}", tool.name, tool.why))
}

fn unusable(name: &str, fault: &McpFault) -> Finding {
    match fault {
        McpFault::Unauthorized { .. } | McpFault::Scope { .. } | McpFault::Credential(_) => {
            Finding::warning(name, "it asks for authorisation, which is not tried here")
        }
        fault => Finding::error(name, fault.detail()).hint(hint(fault)),
    }
}

fn hint(fault: &McpFault) -> &'static str {
    match fault {
        McpFault::Egress(_) => "may this machine reach it, and does [egress] allow it?",
        McpFault::Slow { .. } => "does it need longer for its start? connect_seconds is 1 to 300",
        McpFault::Status { .. } | McpFault::Protocol { .. } | McpFault::Refused { .. } => {
            "is it an MCP server, and is url the whole address, its path included?"
        }
        _ => "does command start a server that speaks MCP over standard input and output, and has env what it needs?",
    }
}

/// To a tenth of a second.
fn in_seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Verdict, message and hint of each finding.
    fn told(findings: &[Finding]) -> Value {
        findings.iter().map(|finding| json!([finding.verdict, finding.message, finding.hint])).collect()
    }

    fn probed(tools: usize, set_aside: usize) -> ProbedServer {
        let set_aside = (0..set_aside).map(|number| SetAsideTool::new(&format!("t{number}"), "no"));
        let (revision, took) = ("2026-07-28".to_owned(), Duration::from_millis(349));
        ProbedServer { revision, tools, set_aside: set_aside.collect(), took }
    }

    #[test]
    fn server_that_answers_is_fine_and_each_tool_that_cannot_be_used_is_odd() {
        assert_eq!(told(&usable("mcp a", &probed(1, 0))), json!([["fine", "2026-07-28, 1 tool in 0.3 s", null]]));
        let one = "the tool `t0` can't be used: no";
        let found = told(&usable("mcp a", &probed(12, 1)));
        assert_eq!(found, json!([["fine", "2026-07-28, 12 tools in 0.3 s", null], ["odd", one, null]]));
        let found = told(&usable("mcp a", &probed(0, TOLD + 2)));
        assert_eq!((found.as_array().unwrap().len(), &found[TOLD + 1][1]), (7, &json!("2 more tools can't be used")));
    }

    #[test]
    fn server_that_wants_authorisation_is_odd_and_one_that_is_away_is_wrong() {
        let unauthorized = unusable("mcp a", &McpFault::Unauthorized { server: "a".into() });
        let odd = "it asks for authorisation, which is not tried here";
        assert_eq!(told(&[unauthorized]), json!([["odd", odd, null]]));
        let slow = unusable("mcp a", &McpFault::Slow { server: "a".into(), after: Duration::from_secs(30) });
        assert_eq!(told(&[slow])[0][0], "wrong");
    }
}
