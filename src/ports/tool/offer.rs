//! Whether a model is offered a tool, and why not: what a run goes by is also what people are told.

use crate::base::words::words;
use crate::ports::tool::absence::ToolAbsence;
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{Definition, ToolRegistry, ToolStatus};

words! {
    /// Why a model is not offered a tool.
    pub enum NotOffered {
        /// Its status is `removed`.
        Removed = "removed",
        /// Its MCP server lists it with a definition that the operator has yet to accept.
        NotAccepted = "not_accepted",
        /// `[tool_access]` leaves it out for everybody.
        DeniedByOperator = "denied_by_operator",
        /// `[tool_access.tenants]` leaves it out for this tenant.
        DeniedForTenant = "denied_for_tenant",
        /// The agent, or the task, leaves it out.
        DeniedByLimits = "denied_by_limits",
        /// Its status is `deprecated`, and nobody names it: a call of it is carried out all the same.
        Deprecated = "deprecated",
    }
}

impl NotOffered {
    /// The reason as a sentence.
    pub fn message(self) -> &'static str {
        match self {
            NotOffered::Removed => "the tool has been removed",
            NotOffered::NotAccepted => {
                "its definition is new or changed, and the operator has yet to accept it (`reveille tool accept`)"
            }
            NotOffered::DeniedByOperator => "the operator lets nobody use it ([tool_access])",
            NotOffered::DeniedForTenant => "the operator does not let this tenant use it ([tool_access.tenants])",
            NotOffered::DeniedByLimits => "the tools of the agent or task leave it out (`tools`, `deny_tools`)",
            NotOffered::Deprecated => "the tool is deprecated: it is offered only where `tools` names it",
        }
    }

    /// Whether a call of the tool is carried out all the same.
    pub fn may_be_called(self) -> bool {
        self == NotOffered::Deprecated
    }
}

impl ToolRegistry {
    /// Whether a model is offered this tool in a run of the tenant under these limits. `tenant`: `None` for whatever
    /// holds for every tenant.
    ///
    /// # Errors
    /// The first reason for which it is not.
    pub fn offer(&self, tenant: Option<&str>, limits: &ToolLimits, tool: &Definition) -> Result<(), NotOffered> {
        let name = tool.name.as_str();
        if tool.status == ToolStatus::Removed {
            return Err(NotOffered::Removed);
        }
        if self.find_waiting(name).is_some() {
            return Err(NotOffered::NotAccepted);
        }
        if !self.allows_any(name) {
            return Err(NotOffered::DeniedByOperator);
        }
        if tenant.is_some_and(|tenant| !self.allows(tenant, name)) {
            return Err(NotOffered::DeniedForTenant);
        }
        if !limits.allows(name) {
            return Err(NotOffered::DeniedByLimits);
        }
        // who names a deprecated tool has written so when it was none
        if tool.status == ToolStatus::Deprecated && limits.allow.is_none() {
            return Err(NotOffered::Deprecated);
        }
        Ok(())
    }

    /// A tool of an MCP server that these limits name, and that the tenant may use, but that is not there; and why.
    pub fn named_but_absent<'a>(&self, tenant: &str, limits: &'a ToolLimits) -> Option<(&'a str, ToolAbsence)> {
        let named = limits.allow.iter().flatten().map(String::as_str);
        let mut absent = named.filter_map(|name| Some((name, self.absence(name)?)));
        absent.find(|(name, _)| limits.allows(name) && self.allows(tenant, name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::BoxFuture;
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::approval::{Category, Consequence};
    use crate::ports::tool::access::ToolAccess;
    use crate::ports::tool::registry::fixture::listed_tool;
    use crate::ports::tool::{Tool, ToolContext, ToolError, ToolOutput};

    struct DefinedTool(Definition);

    impl Tool for DefinedTool {
        fn definition(&self) -> &Definition {
            &self.0
        }

        fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
            unreachable!("it is only listed")
        }
    }

    fn tool(name: &str, status: ToolStatus) -> Arc<dyn Tool> {
        let made = Definition::new(name, "", json!({ "type": "object" }), Category::Read, Consequence::Low);
        Arc::new(DefinedTool(Definition { status, ..made }))
    }

    #[test]
    fn each_layer_withholds_for_a_reason_of_its_own_and_the_first_is_told() {
        let tools = vec![
            tool("plain", ToolStatus::Active),
            tool("old", ToolStatus::Deprecated),
            tool("gone", ToolStatus::Removed),
            tool("nobodys", ToolStatus::Active),
            tool("not_anns", ToolStatus::Active),
        ];
        let access: ToolAccess =
            serde_json::from_value(json!({ "deny": ["nobodys"], "tenants": { "ann": { "deny": ["not_anns"] } } }))
                .unwrap();
        let tools = ToolRegistry::new(tools).unwrap().governed(&Default::default(), &access);
        let told = |tenant: Option<&str>, limits: Value| {
            let limits: ToolLimits = serde_json::from_value(limits).unwrap();
            let offers = tools.definitions().map(|tool| tools.offer(tenant, &limits, tool));
            offers.map(|offer| offer.map_or_else(NotOffered::as_str, |()| "offered")).collect::<Vec<_>>()
        };
        let usual = ["offered", "deprecated", "removed", "denied_by_operator", "denied_for_tenant"];
        assert_eq!(told(Some("ann"), json!({})), usual);
        assert_eq!(told(Some("bob"), json!({}))[4], "offered");
        assert_eq!(told(None, json!({}))[4], "offered");
        let named = ["denied_by_limits", "offered", "removed", "denied_by_operator", "denied_for_tenant"];
        assert_eq!(told(Some("ann"), json!({ "allow": ["old", "gone", "nobodys", "not_anns"] })), named);
        assert_eq!(told(Some("ann"), json!({ "deny": ["plain"] }))[0], "denied_by_limits");
    }

    #[test]
    fn tool_that_is_named_is_missed_while_its_server_has_not_listed_it_and_the_tenant_may_use_it() {
        let access: ToolAccess = serde_json::from_value(json!({
            "deny": ["github.nobodys"], "tenants": { "ann": { "deny": ["github.not_anns"] } },
        }))
        .unwrap();
        let tools = vec![tool("look", ToolStatus::Active), tool("github.listed", ToolStatus::Active)];
        let tools = ToolRegistry::new(tools).unwrap().with_servers(["github"]).governed(&Default::default(), &access);
        let missed = |limits: Value| {
            let limits: ToolLimits = serde_json::from_value(limits).unwrap();
            tools.named_but_absent("ann", &limits).map(|(name, absence)| {
                assert_eq!(absence, ToolAbsence::Unlisted);
                name.to_owned()
            })
        };
        let all = ["look", "gitlab.search", "github.listed", "github.nobodys", "github.not_anns", "github.search"];
        assert_eq!(missed(json!({ "allow": all })).as_deref(), Some("github.search"));
        assert_eq!(missed(json!({ "allow": all[..5] })), None);
        assert_eq!(missed(json!({ "allow": all, "deny": ["github.search"] })), None);
        assert_eq!(missed(json!({ "deny": ["github.other"] })), None, "a run that names no tools has those there are");
    }

    #[test]
    fn tool_that_waits_is_withheld_from_everybody_and_missed_where_it_is_named() {
        let waiting = [listed_tool("github.search")];
        let tools = ToolRegistry::new(vec![]).unwrap().with_servers(["github"]).with_waiting(waiting);
        let limits: ToolLimits = serde_json::from_value(json!({ "allow": ["github.search"] })).unwrap();
        for limits in [&limits, &ToolLimits::default()] {
            let offer = tools.waiting().map(|tool| tools.offer(Some("ann"), limits, tool.definition())).next();
            assert_eq!(offer, Some(Err(NotOffered::NotAccepted)));
        }
        assert!(!NotOffered::NotAccepted.may_be_called());
        assert_eq!(tools.named_but_absent("ann", &limits), Some(("github.search", ToolAbsence::NotAccepted)));
        assert_eq!(tools.named_but_absent("ann", &ToolLimits::default()), None);
    }
}
