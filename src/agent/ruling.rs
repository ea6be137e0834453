//! Asking the rules about a call. Rules have expressions, which tenants write, too, over arguments of any kind: where there
//! are any for a tool that take long, they are computed on a thread of their own.

use std::sync::Arc;

use serde_json::Value;

use crate::base::compute::Compute;
use crate::domain::approval::{
    ApprovalLevel, ApprovalOverride, Policy, PolicyAct, PolicyRules, ReasonCode, RuleBy, Ruling,
};
use crate::domain::credential::Reference;
use crate::ports::tool::Definition;
use crate::ports::tool::registry::Registered;

/// A call, and all that is asked about it.
pub struct RulingRequest {
    /// Rules of the operator.
    pub policy: Policy,
    /// The tool that is called.
    pub tool: Arc<Registered>,
    /// Arguments of the call.
    pub arguments: Value,
    /// The tenant that owns the run.
    pub tenant: String,
    /// A credential that the call chooses by itself.
    pub credential: Option<Reference>,
    /// The rules of others that have a say, the weightiest last.
    pub more: Vec<(RuleBy, Arc<PolicyRules>)>,
}

impl RulingRequest {
    /// Judges the call on a computing thread.
    pub async fn judge(self, compute: &Compute) -> Ruling {
        let (tenant, steps) = (self.tenant.clone(), self.policy.steps(&self.act(), &self.extra_rules()));
        // a rule that can't be judged never lets anything through
        let unjudged = |panicked| Ruling {
            gate: ApprovalLevel::Confirm,
            reasons: vec![format!("the rules can't be judged, so a person is asked: {panicked}")],
            reason_codes: vec![ReasonCode::Unjudged],
        };
        let decide = move || self.policy.decide(&self.act(), &self.extra_rules());
        compute.run_if_costly(&tenant, steps, decide).await.unwrap_or_else(unjudged)
    }

    fn extra_rules(&self) -> Vec<(RuleBy, &PolicyRules)> {
        self.more.iter().map(|(by, rules)| (*by, &**rules)).collect()
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

/// All who have a say besides the operator, the weightiest last. Of a tenant, an agent and a task each, the override that was
/// set outweighs the configured rules.
pub fn rules_in_order(
    overrides: &[ApprovalOverride],
    agent: Option<&Arc<PolicyRules>>,
    task: Option<&Arc<PolicyRules>>,
) -> Vec<(RuleBy, Arc<PolicyRules>)> {
    let mut rules = Vec::new();
    for (by, configured) in [(RuleBy::Tenant, None), (RuleBy::Agent, agent), (RuleBy::Task, task)] {
        rules.extend(configured.map(|configured| (by, Arc::clone(configured))));
        let set = overrides.iter().filter(|stored| stored.by() == by);
        rules.extend(set.map(|stored| (by, Arc::new(stored.rules()))));
    }
    rules
}
