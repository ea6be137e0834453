//! `[approvals]`: the operator's say in what is asked, of whom, and for how long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape, is_known_name};
use crate::domain::approval::{ApprovalLevel, Category, Consequence, OnExpiry};

/// Longest time that a question may stay open, in minutes.
const LONGEST_TIMEOUT: u64 = 7 * 24 * 60;

/// `[approvals]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How long a question stays open, in minutes.
    pub timeout_minutes: u64,
    /// When who was asked is reminded, as shares of that time.
    pub reminders: Vec<f64>,
    /// The fate of a run when nobody answers: `expire` it, or `cancel` the call and go on.
    pub on_expiry: OnExpiry,
    /// Other recipients who are asked as well from the start, each by a link of their own.
    pub additional_approvers: Vec<String>,
    /// Another recipient who is asked as well after a while; absent: nobody.
    pub escalate_to: Option<String>,
    /// When that is, as a share of the time.
    pub escalate_after: f64,
    /// How many people have to agree. All links and tokens of one person count once.
    pub required_approvers: u32,
    /// Whether the recipient for whom the run works may not answer, by a link or by any token of theirs, and neither
    /// may the person who asked for the run by hand, by any token that descends from the same one.
    pub exclude_requester: bool,
    /// Whether the page asks for a code, shown on it, to be typed where an act is of high consequence.
    pub require_typed_confirmation: bool,
    /// Cells of the matrix that are to be otherwise: `"read.high" = "auto"`.
    pub matrix: BTreeMap<String, ApprovalLevel>,
    /// Overrides for named tools.
    pub tools: BTreeMap<String, Override>,
    /// Overrides for named tools, by tenant.
    pub tenants: BTreeMap<String, BTreeMap<String, Override>>,
}

/// Settings of a tool that override the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// The degree of approval in place of the matrix's.
    pub gate: ApprovalLevel,
    /// CEL over `args`, `tool`, `tenant`: the override holds only where this does. Absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            timeout_minutes: 30,
            reminders: vec![0.5, 0.9],
            on_expiry: OnExpiry::Expire,
            additional_approvers: Vec::new(),
            escalate_to: None,
            escalate_after: 0.5,
            required_approvers: 1,
            exclude_requester: false,
            require_typed_confirmation: false,
            matrix: BTreeMap::new(),
            tools: BTreeMap::new(),
            tenants: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Adds each fault, under `/approvals`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if !(1..=LONGEST_TIMEOUT).contains(&self.timeout_minutes) {
            faults.add("/approvals/timeout_minutes", format!("must lie between 1 and {LONGEST_TIMEOUT}"));
        }
        let share = |share: f64| share > 0.0 && share < 1.0;
        for (index, reminder) in self.reminders.iter().enumerate().filter(|(_, at)| !share(**at)) {
            faults.add(format!("/approvals/reminders/{index}"), format!("must lie between 0 and 1, not {reminder}"));
        }
        if !share(self.escalate_after) {
            faults.add("/approvals/escalate_after", "must lie between 0 and 1");
        }
        if !(1..=20).contains(&self.required_approvers) {
            faults.add("/approvals/required_approvers", "must lie between 1 and 20");
        }
        for cell in self.matrix.keys().filter(|cell| read_cell(cell).is_none()) {
            faults.add(
                format!("/approvals/matrix/{cell}"),
                "is no cell of the matrix; one is a category and a consequence, such as `read.high`",
            );
        }
        // rules for a name that no tenant can have would silently decide nothing
        for tenant in self.tenants.keys() {
            if let Err(why) = Tenant::new(tenant.as_str()) {
                faults.add(format!("/approvals/tenants/{}", escape(tenant)), why);
            }
        }
    }

    /// Adds each rule that is for a tool which is not there: it would silently decide nothing. `server.*` among the
    /// known names stands for every name below it.
    pub fn check_tools(&self, known: &[&str], faults: &mut ValidationErrors) {
        let mut named = |pointer: String, rules: &BTreeMap<String, Override>| {
            for tool in rules.keys().filter(|tool| !is_known_name(tool, known)) {
                let near = did_you_mean(tool, known.iter().copied());
                faults.add(format!("{pointer}/{}", escape(tool)), format!("unknown tool `{tool}`{near}"));
            }
        };
        named("/approvals/tools".into(), &self.tools);
        for (tenant, rules) in &self.tenants {
            named(format!("/approvals/tenants/{}", escape(tenant)), rules);
        }
    }

    /// The gate that the operator has set for a cell of the matrix.
    pub fn cell(&self, category: Category, consequence: Consequence) -> Option<ApprovalLevel> {
        let cell = self.matrix.iter().find(|(cell, _)| read_cell(cell) == Some((category, consequence)));
        cell.map(|(_, gate)| *gate)
    }
}

fn read_cell(cell: &str) -> Option<(Category, Consequence)> {
    let (category, consequence) = cell.split_once('.')?;
    let category = Category::parse(category)?;
    let consequence = Consequence::parse(consequence)?;
    Some((category, consequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_the_settings_is_told_with_its_place() {
        let settings = Settings {
            timeout_minutes: 0,
            reminders: vec![0.5, 1.0],
            escalate_after: 2.0,
            required_approvers: 0,
            matrix: BTreeMap::from([
                ("read.huge".into(), ApprovalLevel::Auto),
                ("delete.low".into(), ApprovalLevel::Auto),
            ]),
            tenants: ["ann", "ann ", "*", "a/\u{212b}"].map(|tenant| (tenant.to_owned(), BTreeMap::new())).into(),
            ..Settings::default()
        };
        let mut faults = ValidationErrors::new();
        settings.check(&mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(
            places,
            [
                "/approvals/timeout_minutes",
                "/approvals/reminders/1",
                "/approvals/escalate_after",
                "/approvals/required_approvers",
                "/approvals/matrix/read.huge",
                "/approvals/tenants/*",
                "/approvals/tenants/a~1\u{212b}",
                "/approvals/tenants/ann ",
            ]
        );
        assert_eq!(faults.0[7].message, "must not begin or end with a space");
        assert_eq!(settings.cell(Category::Delete, Consequence::Low), Some(ApprovalLevel::Auto));
        assert_eq!(settings.cell(Category::Delete, Consequence::High), None);
    }

    #[test]
    fn name_below_a_server_is_known_while_the_server_is_away() {
        let auto = Override { gate: ApprovalLevel::Auto, when: None };
        let rules = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), auto.clone())).collect();
        let settings = Settings {
            tools: rules(&["github.search", "look", "gitlab.search"]),
            tenants: BTreeMap::from([("ann".to_owned(), rules(&["github.search", "github"]))]),
            ..Settings::default()
        };
        let mut faults = ValidationErrors::new();
        settings.check_tools(&["look", "github.*"], &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/approvals/tools/gitlab.search", "/approvals/tenants/ann/github"]);
    }
}
