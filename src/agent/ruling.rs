//! Asking the rules about a call. Rules have expressions, which tenants write, too, over arguments of any kind: where
//! there are any for a tool that take long, or that have to be compiled first, they are computed on a thread of their
//! own.

use std::sync::Arc;

use serde_json::Value;

use crate::base::compute::Compute;
use crate::domain::approval::{
    ApprovalLevel, ApprovalOverride, Policy, PolicyAct, PolicyRules, ReasonCode, RuleBy, Ruling,
};
use crate::domain::credential::Reference;
use crate::ports::tool::Definition;
use crate::ports::tool::registry::RegisteredTool;

/// A call, and all that is asked about it.
pub struct RulingRequest {
    /// Rules of the operator.
    pub policy: Policy,
    /// The tool that is called.
    pub tool: Arc<RegisteredTool>,
    /// Arguments of the call.
    pub arguments: Value,
    /// The tenant that owns the run.
    pub tenant: String,
    /// A credential that the call chooses by itself.
    pub credential: Option<Reference>,
    /// The rules of the configured agent that calls.
    pub agent: Option<Arc<PolicyRules>>,
    /// The rules of the task.
    pub task: Option<Arc<PolicyRules>>,
    /// The overrides that hold for the call: of a tenant, an agent and a task each, the one that was set outweighs the
    /// configured rules.
    pub overrides: Vec<ApprovalOverride>,
}

impl RulingRequest {
    /// Judges the call on a computing thread.
    pub async fn judge(self, compute: &Compute) -> Ruling {
        let (tenant, steps) = (self.tenant.clone(), self.steps());
        // a rule that can't be judged never lets anything through
        let unjudged = |panicked| Ruling {
            gate: ApprovalLevel::Confirm,
            reasons: vec![format!("the rules can't be judged, so a person is asked: {panicked}")],
            reason_codes: vec![ReasonCode::Unjudged],
        };
        compute.run_if_costly(&tenant, steps, move || self.decide()).await.unwrap_or_else(unjudged)
    }

    /// The steps of [`RulingRequest::decide`]. The condition of an override is compiled there, and until then nobody
    /// knows what it costs.
    fn steps(&self) -> u64 {
        match self.overrides.iter().any(|stored| stored.when.is_some()) {
            true => u64::MAX,
            false => self.policy.steps(&self.act(), &self.rules_in_order(&[])),
        }
    }

    fn decide(&self) -> Ruling {
        let overrides: Vec<_> = self.overrides.iter().map(|stored| (stored.by(), stored.rules())).collect();
        self.policy.decide(&self.act(), &self.rules_in_order(&overrides))
    }

    /// All who have a say besides the operator, the weightiest last.
    fn rules_in_order<'a>(&'a self, overrides: &'a [(RuleBy, PolicyRules)]) -> Vec<(RuleBy, &'a PolicyRules)> {
        let (agent, task) = (self.agent.as_deref(), self.task.as_deref());
        let mut rules = Vec::new();
        for (by, configured) in [(RuleBy::Tenant, None), (RuleBy::Agent, agent), (RuleBy::Task, task)] {
            rules.extend(configured.map(|configured| (by, configured)));
            rules.extend(overrides.iter().filter(|(of, _)| *of == by).map(|(of, stored)| (*of, stored)));
        }
        rules
    }

    fn act(&self) -> PolicyAct<'_> {
        let Definition { name, category, consequence, requires_confirmation, .. } = self.tool.definition();
        PolicyAct {
            tool: name,
            category: *category,
            consequence: *consequence,
            requires_confirmation: *requires_confirmation,
            arguments: &self.arguments,
            tenant: &self.tenant,
            credential: self.credential.as_ref(),
        }
    }
}
