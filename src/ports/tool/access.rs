//! `[tool_access]`: the tools that agents, pipelines and conditions may use, for everybody and for single tenants. Each
//! layer only narrows the one before it: operator, tenant, agent, task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::id::Tenant;
use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean, escape, is_known_name};

/// `[tool_access]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolAccess {
    /// The only tools that anybody may use; absent: all.
    pub allow: Option<Vec<String>>,
    /// Tools that nobody may use.
    pub deny: Vec<String>,
    /// Narrower limits of single tenants.
    pub tenants: BTreeMap<String, ToolLimits>,
}

/// The tools that one tenant, agent or task may use; `[tool_access.tenants.<tenant>]` has this form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolLimits {
    /// The only tools that may be used; absent: all.
    pub allow: Option<Vec<String>>,
    /// Tools that may not be used.
    pub deny: Vec<String>,
}

impl ToolLimits {
    /// Whether every tool may be used.
    pub fn is_empty(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty()
    }

    /// Whether the tool may be used.
    pub fn allows(&self, tool: &str) -> bool {
        passes(self.allow.as_deref(), &self.deny, tool)
    }

    /// These limits and those of another layer, together.
    pub fn and(mut self, other: &ToolLimits) -> ToolLimits {
        self.allow = match (self.allow, &other.allow) {
            (Some(own), Some(only)) => Some(own.into_iter().filter(|tool| only.contains(tool)).collect()),
            (own, only) => own.or_else(|| only.clone()),
        };
        self.deny.extend(other.deny.iter().filter(|tool| !self.deny.contains(tool)).cloned().collect::<Vec<_>>());
        self
    }
}

/// Whether a layer lets a tool through.
fn passes(allow: Option<&[String]>, deny: &[String], tool: &str) -> bool {
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
        self.allows_any(tool) && own.is_none_or(|own| own.allows(tool))
    }

    /// Adds names that no tool has, and those that no tenant can have; pointers begin with `/tool_access`.
    pub fn check(&self, tools: &[&str], faults: &mut ValidationErrors) {
        check_names("/tool_access/allow", self.allow.as_deref().unwrap_or_default(), tools, faults);
        check_names("/tool_access/deny", &self.deny, tools, faults);
        for (tenant, own) in &self.tenants {
            let place = format!("/tool_access/tenants/{}", escape(tenant));
            if let Err(why) = Tenant::new(tenant.as_str()) {
                faults.add(place.clone(), why);
            }
            check_names(&format!("{place}/allow"), own.allow.as_deref().unwrap_or_default(), tools, faults);
            check_names(&format!("{place}/deny"), &own.deny, tools, faults);
        }
    }
}

/// Names in a list of a task or a step, at most: it is gone through for each tool at each run.
const MOST_NAMES: usize = 256;

/// Adds those of the names that no tool has, below `place`, and a list that is too long.
pub fn check_written<'a>(
    place: &str,
    names: &[String],
    tools: impl Iterator<Item = &'a str>,
    faults: &mut ValidationErrors,
) {
    if names.len() > MOST_NAMES {
        faults.add(place, format!("must have at most {MOST_NAMES} names"));
        return;
    }
    check_names(place, names, &tools.collect::<Vec<_>>(), faults);
}

/// Adds those of the names that no tool has, below `place`. `server.*` among the tools stands for every name below it.
pub fn check_names(place: &str, names: &[String], tools: &[&str], faults: &mut ValidationErrors) {
    let is_unknown = |(_, name): &(usize, &String)| !is_known_name(name, tools);
    for (index, name) in names.iter().enumerate().filter(is_unknown).take(NAMED) {
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
        let ann = ToolLimits { allow: Some(names(&["send", "look"])), deny: names(&["look"]) };
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
    fn limits_of_two_layers_are_what_both_allow() {
        let limits = |allow: Option<&[&str]>, deny: &[&str]| ToolLimits { allow: allow.map(names), deny: names(deny) };
        let both = limits(Some(&["a", "b"]), &["x"]).and(&limits(Some(&["b", "c"]), &["x", "y"]));
        assert_eq!(both, limits(Some(&["b"]), &["x", "y"]));
        assert_eq!(limits(None, &[]).and(&limits(Some(&["a"]), &[])), limits(Some(&["a"]), &[]));
        assert_eq!(limits(Some(&["a"]), &[]).and(&limits(None, &["a"])), limits(Some(&["a"]), &["a"]));
        assert!(limits(None, &[]).is_empty() && !limits(Some(&[]), &[]).is_empty() && !limits(None, &["a"]).is_empty());
    }

    #[test]
    fn list_of_a_task_is_taken_at_its_longest_and_refused_one_name_beyond_it() {
        let faults = |length: usize| {
            let mut faults = ValidationErrors::new();
            check_written("/tools", &vec!["look".to_owned(); length], ["look"].into_iter(), &mut faults);
            faults.0.into_iter().map(|fault| fault.message).collect::<Vec<_>>()
        };
        assert_eq!(faults(MOST_NAMES), [""; 0]);
        assert_eq!(faults(MOST_NAMES + 1), ["must have at most 256 names"]);
    }

    #[test]
    fn name_below_a_server_is_known_while_the_server_is_away() {
        let mut faults = ValidationErrors::new();
        let written = names(&["look", "github.search", "gitlab.search", "github.*"]);
        check_written("/tools", &written, ["look", "github.*"].into_iter(), &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/tools/2", "/tools/3"], "a list has no patterns");
    }

    #[test]
    fn name_of_no_tool_or_tenant_is_refused_with_its_place_and_what_was_meant() {
        let ann = ToolLimits { allow: Some(names(&["look"])), deny: names(&["lok"]) };
        let access = ToolAccess {
            allow: Some(names(&["look", "lookk"])),
            deny: names(&["x"]),
            tenants: BTreeMap::from([("a/n".to_owned(), ann), ("ann ".to_owned(), ToolLimits::default())]),
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
                "/tool_access/tenants/ann : must not begin or end with a space",
            ]
        );
    }
}
