//! Overrides of the matrix that are set while the service runs: for the calls of a tenant, of one of its agents or of
//! one of its tasks, and for a while.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;
use crate::domain::approval::settings::Override;
use crate::domain::approval::{ApprovalLevel, PolicyRules, RuleBy};

/// How long one holds for which nothing else is said.
pub const OVERRIDE_TTL: TimeDelta = TimeDelta::days(30);
/// The longest that one may hold.
pub const LONGEST_OVERRIDE: TimeDelta = TimeDelta::days(365);
/// Overrides of one tenant at once.
pub const MOST_OVERRIDES: i64 = 1_000;

/// The degree of approval of a tool, said for a tenant, one of its agents or one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ApprovalOverride {
    /// Id of the override.
    pub id: Uuid,
    /// The tenant for whose runs it holds.
    pub tenant_id: String,
    /// The task for which it holds; `null`: it is not for one task.
    #[schema(required)]
    pub task_id: Option<Uuid>,
    /// The configured agent for which it holds; `null`: it is not for one agent.
    #[schema(required)]
    pub agent: Option<String>,
    /// Name of the tool.
    #[schema(example = "send_note")]
    pub tool: String,
    /// The degree of approval in place of the matrix's.
    pub gate: ApprovalLevel,
    /// CEL over `args`, `tool`, `tenant`: it holds only where this does; `null`: always.
    #[schema(required)]
    pub when: Option<String>,
    /// The instant at which it was set.
    pub created_at: DateTime<Utc>,
    /// The token that set it.
    #[schema(example = "token:admin")]
    pub created_by: String,
    /// The instant from which it does not hold.
    pub expires_at: DateTime<Utc>,
}

impl ApprovalOverride {
    /// The one whose rule it is.
    pub fn by(&self) -> RuleBy {
        match (&self.task_id, &self.agent) {
            (Some(_), _) => RuleBy::Task,
            (None, Some(_)) => RuleBy::Agent,
            (None, None) => RuleBy::Tenant,
        }
    }

    /// It as rules, which compiles its condition. One that this release can't read asks a person.
    pub fn rules(&self) -> PolicyRules {
        let written = BTreeMap::from([(self.tool.clone(), Override { gate: self.gate, when: self.when.clone() })]);
        PolicyRules::compile(&written, "", &mut ValidationErrors::new())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::approval::{Category, Consequence, Policy, PolicyAct, Settings};

    fn stored(gate: ApprovalLevel, when: Option<&str>) -> ApprovalOverride {
        ApprovalOverride {
            id: Uuid::nil(),
            tenant_id: "ann".into(),
            task_id: None,
            agent: None,
            tool: "pay".into(),
            gate,
            when: when.map(str::to_owned),
            created_at: DateTime::UNIX_EPOCH,
            created_by: "token:t".into(),
            expires_at: DateTime::UNIX_EPOCH + OVERRIDE_TTL,
        }
    }

    fn decided(stored: &ApprovalOverride, amount: i64) -> ApprovalLevel {
        let arguments = json!({ "amount": amount });
        let act = PolicyAct {
            tool: "pay",
            category: Category::SideEffect,
            consequence: Consequence::Low,
            requires_confirmation: false,
            arguments: &arguments,
            tenant: "ann",
            credential: None,
        };
        Policy::new(&Settings::default()).unwrap().decide(&act, &[(stored.by(), &stored.rules())]).gate
    }

    #[test]
    fn override_decides_where_its_condition_holds() {
        let small = stored(ApprovalLevel::Auto, Some("args.amount < 100"));
        assert_eq!(decided(&small, 99), ApprovalLevel::Auto);
        assert_eq!(decided(&small, 100), ApprovalLevel::Confirm);
        assert_eq!(decided(&stored(ApprovalLevel::Auto, None), 100), ApprovalLevel::Auto);
    }

    #[test]
    fn override_that_can_not_be_read_asks() {
        assert_eq!(decided(&stored(ApprovalLevel::Auto, Some("args.amount <")), 1), ApprovalLevel::Confirm);
    }

    #[test]
    fn override_speaks_for_the_narrowest_that_it_names() {
        let tenant = stored(ApprovalLevel::Auto, None);
        let agent = ApprovalOverride { agent: Some("booker".into()), ..tenant.clone() };
        let task = ApprovalOverride { task_id: Some(Uuid::nil()), ..tenant.clone() };
        assert_eq!([tenant.by(), agent.by(), task.by()], [RuleBy::Tenant, RuleBy::Agent, RuleBy::Task]);
    }
}
