//! Additions of an embedder to what is built in, and where they stand.

use std::path::PathBuf;
use std::sync::Arc;

use crate::agent::gate::{Gate, GateCheck};
use crate::agent::verify::Verifier;
use crate::agent::{ContextSource, PendingAgents};
use crate::base::invalid::ValidationErrors;
use crate::base::metrics::Metrics;
use crate::config::Config;
use crate::executor::Executor;
use crate::executor::halt_check::HaltCheck;
use crate::executor::post_process::PostProcess;
use crate::executor::quota_check::QuotaCheck;
use crate::executor::rate_check::RateCheck;
use crate::ports::channel::Channel;
use crate::ports::llm::{OwnEncoder, OwnModel};
use crate::ports::tool::Tool;
use crate::store::Store;

/// Additions of an embedder to the built-in executors, tools and checks.
#[derive(Default)]
pub struct Extras {
    /// Executors besides the built-in ones.
    pub executors: Vec<Arc<dyn Executor>>,
    /// Tools besides the built-in and declared ones.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Checks behind the built-in ones of the gate, in this order.
    pub gate_checks: Vec<Arc<dyn GateCheck>>,
    /// Agents that may wait for a message, in the order in which they are asked.
    pub pending_agents: Vec<Arc<dyn PendingAgents>>,
    /// Sources of text behind the instructions of agents, in this order.
    pub context_sources: Vec<Arc<dyn ContextSource>>,
    /// Verifiers of answers besides the built-in ones and the rules of the operator.
    pub verifiers: Vec<Arc<dyn Verifier>>,
    /// Models besides those of `[llm.models]`.
    pub models: Vec<OwnModel>,
    /// Encoders that count tokens for models.
    pub encoders: Vec<OwnEncoder>,
    /// Channels besides the built-in ones.
    pub channels: Vec<Arc<dyn Channel>>,
    /// Steps behind an answer, in this order.
    pub post_process: Vec<Arc<dyn PostProcess>>,
    /// The metrics that `/metrics` shows; an embedder may have registered its own.
    pub metrics: Metrics,
    /// The reveille binary that supervises MCP servers with a `command`; `None`: there can be none.
    pub mcp_supervisor: Option<PathBuf>,
}

/// The gate: halts, rates, the operator's words and patterns, quotas, and what an embedder adds. A message that is
/// refused for its words uses up no fire.
pub(super) fn gate(config: &Config, store: &Store, added: Vec<Arc<dyn GateCheck>>) -> Result<Gate, ValidationErrors> {
    let mut checks: Vec<Arc<dyn GateCheck>> = vec![Arc::new(HaltCheck(store.clone()))];
    if config.gate_rates.is_limited() {
        checks.push(Arc::new(RateCheck { store: store.clone(), rates: config.gate_rates.clone() }));
    }
    if let Some(safety) = config.gate.check(store.computing())? {
        checks.push(Arc::new(safety));
    }
    checks.push(Arc::new(QuotaCheck(store.clone())));
    checks.extend(added);
    Ok(Gate::new(checks))
}
