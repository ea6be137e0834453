//! `[tool_access]`: the tools that agents, pipelines and conditions may use, for everybody and for single tenants. Each
//! layer only narrows the one before it: operator, tenant, agent, task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::invalid::{ValidationErrors, did_you_mean, escape};

/// `[tool_access]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolAccess {
    /// The only tools that anybody may use; absent: all.
    pub allow: Option<Vec<String>>,
    /// Tools that nobody may use.
    pub deny: Vec<String>,
    /// Narrower limits of single tenants.
    pub tenants: BTreeMap<String, TenantToolAccess>,
}

/// `[tool_access.tenants.<tenant>]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantToolAccess {
    /// The only tools that the tenant may use; absent: all.
    pub allow: Option<Vec<String>>,
    /// Tools that the tenant may not use.
    pub deny: Vec<String>,
}

/// Whether a layer lets a tool through.
pub fn passes(allow: Option<&[String]>, deny: &[String], tool: &str) -> bool {
    allow.is_none_or(|only| only.iter().any(|name| name == tool)) && !deny.iter().any(|name| name == tool)
}

impl ToolAccess {
    /// Whether anybody may use the tool.
    pub fn allows_any(&self, tool: &str) -> bool {
        passes(self.allow.as_deref(), &self.deny, tool)
    }

    /// Whether the tenant may use the tool.
    pub fn allows(&self, tenant: &str, tool: &str) -> bool {
        let own = self.tenants.get(tenant);
        self.allows_any(tool) && own.is_none_or(|own| passes(own.allow.as_deref(), &own.deny, tool))
    }

    /// Adds names that no tool has; pointers begin with `/tool_access`.
    pub fn check(&self, tools: &[&str], faults: &mut ValidationErrors) {
        check_names("/tool_access/allow", self.allow.as_deref().unwrap_or_default(), tools, faults);
        check_names("/tool_access/deny", &self.deny, tools, faults);
        for (tenant, own) in &self.tenants {
            let place = format!("/tool_access/tenants/{}", escape(tenant));
            check_names(&format!("{place}/allow"), own.allow.as_deref().unwrap_or_default(), tools, faults);
            check_names(&format!("{place}/deny"), &own.deny, tools, faults);
        }
    }
}

/// Adds those of the names that no tool has, below `place`.
pub fn check_names(place: &str, names: &[String], tools: &[&str], faults: &mut ValidationErrors) {
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !tools.contains(&name.as_str())) {
        let near = did_you_mean(name, tools.iter().copied());
        faults.add(format!("{place}/{index}"), format!("unknown tool `{name}`{near}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn each_layer_narrows_the_one_before_and_none_widens_it() {
        let ann = TenantToolAccess { allow: Some(names(&["send", "look"])), deny: names(&["look"]) };
        let access = ToolAccess {
            allow: Some(names(&["look", "list", "drop"])),
            deny: names(&["drop"]),
            tenants: BTreeMap::from([("ann".to_owned(), ann)]),
        };
        let of = |tenant: &str| {
            ["send", "look", "list", "drop"].into_iter().filter(|tool| access.allows(tenant, tool)).collect::<Vec<_>>()
        };
        assert_eq!(of("bob"), ["look", "list"]);
        assert!(of("ann").is_empty(), "`send` is not the operator's, `look` is denied to ann");
        assert!(ToolAccess::default().allows("ann", "anything"));
    }

    #[test]
    fn name_of_no_tool_is_refused_with_its_place_and_what_was_meant() {
        let ann = TenantToolAccess { allow: Some(names(&["look"])), deny: names(&["lok"]) };
        let access = ToolAccess {
            allow: Some(names(&["look", "lookk"])),
            deny: names(&["x"]),
            tenants: BTreeMap::from([("a/n".to_owned(), ann)]),
        };
        let mut faults = ValidationErrors::new();
        access.check(&["look"], &mut faults);
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        assert_eq!(
            told,
            [
                "/tool_access/allow/1: unknown tool `lookk`; did you mean `look`?",
                "/tool_access/deny/0: unknown tool `x`",
                "/tool_access/tenants/a~1n/deny/0: unknown tool `lok`; did you mean `look`?",
            ]
        );
    }
}
