//! Whether a call runs by itself or a person is asked first, and why: each rule that had a part in it is named.
//!
//! In order: the matrix, the operator's cell of it, whether the call uses a credential that the task does not name, the
//! operator's rule for the tool, the tenant's, the agent's, the task's. A later one that holds decides otherwise, and
//! one that can't be judged asks a person. One that can't be read asks a person whatever the others say: nobody knows
//! what it was to keep from running. What the tool itself demands can't be lowered by any of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use crate::base::expr::{Expression, Language, Variables};
use crate::base::invalid::{ValidationErrors, escape};
use crate::domain::approval::matrix::approval_level;
use crate::domain::approval::settings::Override;
use crate::domain::approval::{ApprovalLevel, Category, Consequence, ReasonCode, RuleBy, Settings};
use crate::domain::credential::Reference;

/// How long a task's own rules hold after it was last changed.
pub const TASK_RULES: TimeDelta = TimeDelta::days(30);
/// Arguments that are converted where they are asked for: their values, and sixteenths of their texts, together.
const SMALL: usize = 1_000;
/// The variables of `when`.
pub const VARIABLES: [&str; 3] = ["args", "tool", "tenant"];

/// The call that rules decide about.
pub struct PolicyAct<'a> {
    /// Name of the tool.
    pub tool: &'a str,
    /// Category in the tool's definition.
    pub category: Category,
    /// Consequence in the tool's definition.
    pub consequence: Consequence,
    /// The tool's definition demands a person's consent.
    pub requires_confirmation: bool,
    /// Arguments of the call.
    pub arguments: &'a Value,
    /// The tenant that owns the run.
    pub tenant: &'a str,
    /// A credential that the call chooses by itself: the task does not name it.
    pub credential: Option<&'a Reference>,
}

/// The decision of the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ruling {
    /// The degree of approval that the call needs.
    pub gate: ApprovalLevel,
    /// A sentence for each rule that had a part in it, the last one that decided last.
    pub reasons: Vec<String>,
    /// Reasons that the page shows; the reason of the matrix is told there by the category.
    pub reason_codes: Vec<ReasonCode>,
}

/// The rules that hold for all runs. Cheap to clone.
#[derive(Clone)]
pub struct Policy(Arc<CompiledRule>);

struct CompiledRule {
    settings: Settings,
    tools: PolicyRules,
    tenants: BTreeMap<String, PolicyRules>,
}

/// The rules of one who may have a say.
#[derive(Debug, Default)]
pub struct PolicyRules {
    by_tool: BTreeMap<String, Rule>,
    /// Why it is not known which tools they name: a person is asked about every call.
    unreadable: Option<String>,
}

#[derive(Debug)]
enum Rule {
    /// The degree of approval, and where it holds; `None`: always.
    Says(ApprovalLevel, Option<(String, Expression)>),
    /// Why it can't be read: a person is asked.
    Unreadable(String),
}

impl PolicyRules {
    /// Reads and compiles rules by tool, as they are written as JSON under `pointer`. One that can't be read asks a
    /// person.
    pub fn read(written: &Value, pointer: &str, faults: &mut ValidationErrors) -> PolicyRules {
        let Some(by_tool) = faults.read::<BTreeMap<String, Value>>(written, pointer) else {
            return PolicyRules::unreadable(last_fault(faults));
        };
        let (mut sound, mut unreadable) = (BTreeMap::new(), Vec::new());
        for (tool, value) in by_tool {
            match faults.read::<Override>(&value, &format!("{pointer}/{}", escape(&tool))) {
                Some(rule) => drop(sound.insert(tool, rule)),
                None => unreadable.push((tool, Rule::Unreadable(last_fault(faults)))),
            }
        }
        let mut rules = PolicyRules::compile(&sound, pointer, faults);
        rules.by_tool.extend(unreadable);
        rules
    }

    /// Compiles what was written under `pointer`. A rule that is at fault asks a person.
    pub fn compile(written: &BTreeMap<String, Override>, pointer: &str, faults: &mut ValidationErrors) -> PolicyRules {
        let mut language: Option<Language> = None;
        let mut by_tool = BTreeMap::new();
        for (tool, Override { gate, when }) in written {
            let rule = match when {
                None => Rule::Says(*gate, None),
                Some(text) => match language.get_or_insert_default().read(text, &VARIABLES) {
                    Ok(when) => Rule::Says(*gate, Some((text.clone(), when))),
                    Err(error) => {
                        faults.add(format!("{pointer}/{}/when", escape(tool)), error.to_string());
                        Rule::Unreadable(last_fault(faults))
                    }
                },
            };
            by_tool.insert(tool.clone(), rule);
        }
        PolicyRules { by_tool, unreadable: None }
    }

    /// Rules of which nothing can be read, and why: a person is asked about every call.
    pub fn unreadable(why: impl Into<String>) -> PolicyRules {
        PolicyRules { by_tool: BTreeMap::new(), unreadable: Some(why.into()) }
    }
}

/// The sentence of the fault that was found last.
fn last_fault(faults: &ValidationErrors) -> String {
    faults.0.last().map(|fault| fault.message.clone()).unwrap_or_default()
}

impl Policy {
    /// # Errors
    /// What is wrong with the settings.
    pub fn new(settings: &Settings) -> Result<Policy, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        settings.check(&mut faults);
        let tools = PolicyRules::compile(&settings.tools, "/approvals/tools", &mut faults);
        let tenants = settings.tenants.iter().map(|(tenant, rules)| {
            let pointer = format!("/approvals/tenants/{}", escape(tenant));
            (tenant.clone(), PolicyRules::compile(rules, &pointer, &mut faults))
        });
        let tenants = tenants.collect();
        faults.into_result(Policy(Arc::new(CompiledRule { settings: settings.clone(), tools, tenants })))
    }

    /// The settings from which the policy was made.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Whether there may be a call of this tool that runs by itself: with arguments that are not known yet, for a
    /// tenant that is not known yet. Whether a call does, [`Policy::decide`] says.
    pub fn may_let_through(&self, tool: &str, category: Category, consequence: Consequence) -> bool {
        let CompiledRule { settings, tools, tenants } = &*self.0;
        let cell = settings.cell(category, consequence).unwrap_or_else(|| approval_level(category, consequence, false));
        let rule_of = |rules: &PolicyRules, before: bool| match rules.by_tool.get(tool) {
            Some(Rule::Says(ApprovalLevel::Auto, _)) => true,
            Some(Rule::Says(ApprovalLevel::Confirm, None) | Rule::Unreadable(_)) => false,
            Some(Rule::Says(ApprovalLevel::Confirm, Some(_))) | None => before,
        };
        let for_all = rule_of(tools, cell == ApprovalLevel::Auto);
        for_all || tenants.values().any(|rules| rule_of(rules, for_all))
    }

    /// The steps that [`Policy::decide`] takes at most: those of the `when` of each rule for the tool.
    pub fn steps(&self, act: &PolicyAct, more: &[(RuleBy, &PolicyRules)]) -> u64 {
        let own = [Some(&self.0.tools), self.0.tenants.get(act.tenant)].into_iter().flatten();
        let all = own.chain(more.iter().map(|(_, rules)| *rules));
        let conditions: Vec<&Expression> = all.filter_map(|rules| rules.by_tool.get(act.tool)?.condition()).collect();
        if conditions.is_empty() {
            return 0;
        }
        if !is_small(act.arguments) {
            return u64::MAX;
        }
        let variables = act.variables();
        conditions.into_iter().map(|when| when.cost(&variables)).fold(0, u64::saturating_add)
    }

    /// Decides about an act. `more`: who else has a say, the weightiest last.
    pub fn decide(&self, act: &PolicyAct, more: &[(RuleBy, &PolicyRules)]) -> Ruling {
        let (category, consequence) = (act.category.as_str(), act.consequence.as_str());
        let mut gate = approval_level(act.category, act.consequence, false);
        let mut reasons =
            vec![format!("the matrix says {} for {category} of {consequence} consequence", gate.as_str())];
        let mut reason_codes = Vec::new();
        if let Some(cell) = self.0.settings.cell(act.category, act.consequence) {
            gate = cell;
            reason_codes.push(ReasonCode::Rule { by: RuleBy::Operator, gate });
            reasons.push(format!("the operator says {} for {category} of {consequence} consequence", gate.as_str()));
        }
        if let Some(reference) = act.credential {
            gate = ApprovalLevel::Confirm;
            reason_codes.push(ReasonCode::Credential { reference: reference.to_string() });
            reasons.push(format!("it uses the credential `{reference}`, which the task does not name"));
        }
        let operator = (RuleBy::Operator, &self.0.tools);
        let tenant = self.0.tenants.get(act.tenant).map(|rules| (RuleBy::Tenant, rules));
        let said = std::iter::once(operator).chain(tenant).chain(more.iter().copied());
        let mut unreadable = Vec::new();
        for (by, rules) in said {
            let (who, tool) = (by.name(), act.tool);
            match (&rules.unreadable, rules.by_tool.get(tool)) {
                (Some(fault), _) => {
                    unreadable.push(format!("the rules of {who} can't be read, so a person is asked: {fault}"));
                }
                (None, None) => {}
                (None, Some(Rule::Unreadable(fault))) => {
                    unreadable
                        .push(format!("the rule of {who} for `{tool}` can't be read, so a person is asked: {fault}"));
                }
                (None, Some(Rule::Says(level, when))) => match holds(when.as_ref(), act) {
                    Ok(true) => {
                        gate = *level;
                        reason_codes.push(ReasonCode::Rule { by, gate });
                        let word = gate.as_str();
                        reasons.push(match when {
                            Some((text, _)) => format!("{who} says {word} for `{tool}` where {text}"),
                            None => format!("{who} says {word} for `{tool}`"),
                        });
                    }
                    Ok(false) => {}
                    // it does not let the call through
                    Err(fault) => {
                        gate = ApprovalLevel::Confirm;
                        reason_codes.push(ReasonCode::Unjudged);
                        reasons.push(format!(
                            "the rule of {who} for `{tool}` can't be judged, so a person is asked: {fault}"
                        ));
                    }
                },
            }
        }
        // after all that is said: no rule outweighs one of which nobody knows what it says
        for sentence in unreadable {
            gate = ApprovalLevel::Confirm;
            reason_codes.push(ReasonCode::Unjudged);
            reasons.push(sentence);
        }
        if act.requires_confirmation {
            gate = ApprovalLevel::Confirm;
            reason_codes.push(ReasonCode::Always);
            reasons.push(format!("`{}` always asks for confirmation", act.tool));
        }
        Ruling { gate, reasons, reason_codes }
    }
}

impl Rule {
    fn condition(&self) -> Option<&Expression> {
        match self {
            Rule::Says(_, when) => when.as_ref().map(|(_, when)| when),
            Rule::Unreadable(_) => None,
        }
    }
}

/// Whether a rule with this condition holds for an act.
fn holds(when: Option<&(String, Expression)>, act: &PolicyAct) -> Result<bool, String> {
    let Some((_, when)) = when else { return Ok(true) };
    when.is_true(&act.variables()).map_err(|error| error.to_string())
}

impl PolicyAct<'_> {
    /// Variables that rules may name.
    fn variables(&self) -> Variables {
        Variables::new()
            .with("args", self.arguments)
            .with("tool", &json!({ "name": self.tool }))
            .with("tenant", &json!(self.tenant))
    }
}

/// Whether a value is converted in a moment; of one that is not no more is looked at than it takes to know.
fn is_small(value: &Value) -> bool {
    let (mut waiting, mut weight) = (vec![value], 0);
    while let Some(value) = waiting.pop() {
        weight += match value {
            Value::String(text) => 1 + text.len() / 16,
            Value::Array(items) => 1 + items.len(),
            Value::Object(fields) => 1 + fields.keys().map(|name| 1 + name.len() / 16).sum::<usize>(),
            _ => 1,
        };
        if weight > SMALL {
            return false;
        }
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(fields) => waiting.extend(fields.values()),
            _ => {}
        }
    }
    true
}

/// Whether the rules of a task that was last changed then still hold.
pub fn task_rules_hold(changed_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    now < changed_at + TASK_RULES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(written: Value) -> PolicyRules {
        let written: BTreeMap<String, Override> = serde_json::from_value(written).unwrap();
        let mut faults = ValidationErrors::new();
        let rules = PolicyRules::compile(&written, "/approvals/tools", &mut faults);
        assert_eq!(faults.0, []);
        rules
    }

    fn policy(settings: Value) -> Policy {
        Policy::new(&serde_json::from_value(settings).unwrap()).unwrap()
    }

    fn pay(arguments: &Value) -> PolicyAct<'_> {
        PolicyAct {
            tool: "pay",
            category: Category::Write,
            consequence: Consequence::Low,
            requires_confirmation: false,
            arguments,
            tenant: "ann",
            credential: None,
        }
    }

    #[test]
    fn matrix_decides_without_rules() {
        let ruling = policy(json!({})).decide(&pay(&json!({})), &[]);
        assert_eq!((ruling.gate, ruling.reasons.len()), (ApprovalLevel::Confirm, 1));
        assert_eq!(ruling.reasons[0], "the matrix says confirm for write of low consequence");
    }

    #[test]
    fn later_say_outweighs_an_earlier_one_and_each_is_named() {
        let policy = policy(json!({
            "matrix": { "write.low": "auto" },
            "tools": { "pay": { "gate": "confirm", "when": "args.amount > 100" } },
            "tenants": { "ann": { "pay": { "gate": "auto" } }, "bob": { "pay": { "gate": "confirm" } } },
        }));
        let large = json!({ "amount": 500 });
        let task = rules(json!({ "pay": { "gate": "confirm", "when": "args.amount > 400" } }));
        let ruling = policy.decide(&pay(&large), &[(RuleBy::Task, &task)]);
        assert_eq!(ruling.gate, ApprovalLevel::Confirm);
        assert_eq!(
            ruling.reasons,
            [
                "the matrix says confirm for write of low consequence",
                "the operator says auto for write of low consequence",
                "the operator says confirm for `pay` where args.amount > 100",
                "the tenant says auto for `pay`",
                "the task says confirm for `pay` where args.amount > 400",
            ]
        );
        let by = [RuleBy::Operator, RuleBy::Operator, RuleBy::Tenant, RuleBy::Task];
        let gates = [ApprovalLevel::Auto, ApprovalLevel::Confirm, ApprovalLevel::Auto, ApprovalLevel::Confirm];
        let expected: Vec<ReasonCode> =
            by.into_iter().zip(gates).map(|(by, gate)| ReasonCode::Rule { by, gate }).collect();
        assert_eq!(ruling.reason_codes, expected);
        assert_eq!(policy.decide(&pay(&json!({ "amount": 300 })), &[(RuleBy::Task, &task)]).gate, ApprovalLevel::Auto);
    }

    #[test]
    fn rules_never_lower_the_level_of_a_tool() {
        let policy = policy(json!({ "tools": { "pay": { "gate": "auto" } } }));
        let arguments = json!({});
        assert_eq!(policy.decide(&pay(&arguments), &[]).gate, ApprovalLevel::Auto);
        let always = PolicyAct { requires_confirmation: true, ..pay(&arguments) };
        assert_eq!(policy.decide(&always, &[]).gate, ApprovalLevel::Confirm);
    }

    #[test]
    fn credential_that_the_task_does_not_name_is_asked_about_unless_a_rule_lets_it_through() {
        let arguments = json!({ "credential": "google/work" });
        let reference = Reference::parse("google/work").unwrap();
        let act = PolicyAct { category: Category::Read, credential: Some(&reference), ..pay(&arguments) };
        let ruling = policy(json!({ "matrix": { "read.low": "auto" } })).decide(&act, &[]);
        assert_eq!(ruling.gate, ApprovalLevel::Confirm);
        assert_eq!(ruling.reasons[2], "it uses the credential `google/work`, which the task does not name");
        let rule = json!({ "pay": { "gate": "auto", "when": "args.credential == 'google/work'" } });
        assert_eq!(policy(json!({ "tools": rule })).decide(&act, &[]).gate, ApprovalLevel::Auto);
        assert_eq!(policy(json!({})).decide(&act, &[(RuleBy::Task, &rules(rule))]).gate, ApprovalLevel::Auto);
        assert_eq!(policy(json!({})).decide(&PolicyAct { credential: None, ..act }, &[]).gate, ApprovalLevel::Auto);
    }

    #[test]
    fn whether_any_call_may_run_by_itself_goes_by_all_rules_together() {
        let may = |settings| policy(settings).may_let_through("pay", Category::Write, Consequence::Low);
        assert!(!may(json!({})));
        assert!(may(json!({ "matrix": { "write.low": "auto" } })));
        assert!(may(json!({ "tools": { "pay": { "gate": "auto", "when": "args.amount < 9" } } })));
        assert!(may(json!({ "tenants": { "ann": { "pay": { "gate": "auto" } } } })));
        assert!(!may(json!({ "tenants": { "ann": { "pray": { "gate": "auto" } } } })));
        let strict = json!({ "gate": "confirm" });
        assert!(!may(json!({ "matrix": { "write.low": "auto" }, "tools": { "pay": strict } })));
        let at_times = json!({ "gate": "confirm", "when": "args.amount > 9" });
        assert!(may(json!({ "matrix": { "write.low": "auto" }, "tools": { "pay": at_times } })));
    }

    #[test]
    fn rule_that_can_not_be_judged_asks() {
        let policy = policy(json!({ "tools": { "pay": { "gate": "auto", "when": "args.amount < 100" } } }));
        let ruling = policy.decide(&pay(&json!({ "amount": "many" })), &[]);
        assert_eq!(ruling.gate, ApprovalLevel::Confirm);
        assert!(ruling.reasons[1].starts_with("the rule of the operator for `pay` can't be judged"), "{ruling:?}");
    }

    #[test]
    fn rule_that_can_not_be_read_asks_about_its_tool_and_no_other() {
        let policy = policy(json!({ "matrix": { "write.low": "auto" } }));
        let arguments = json!({});
        for (rule, place, why) in [
            (json!({ "gate": "auto", "when": "args.amount <" }), "/pay/when", "at character"),
            (json!({ "gate": "deny" }), "/pay/gate", "unknown variant `deny`"),
            (json!("confirm"), "/pay", "invalid type"),
        ] {
            let mut faults = ValidationErrors::new();
            let written = json!({ "pay": rule, "mail": { "gate": "auto" } });
            let rules = PolicyRules::read(&written, "/approvals", &mut faults);
            assert_eq!(faults.0.len(), 1, "{faults:?}");
            assert_eq!(faults.0[0].pointer, format!("/approvals{place}"));
            let ruling = policy.decide(&pay(&arguments), &[(RuleBy::Task, &rules)]);
            assert_eq!(ruling.gate, ApprovalLevel::Confirm);
            assert_eq!(ruling.reason_codes.last(), Some(&ReasonCode::Unjudged));
            let told = ruling.reasons.last().unwrap();
            let begin = "the rule of the task for `pay` can't be read, so a person is asked: ";
            assert!(told.starts_with(begin) && told.contains(why), "{told}");
            for tool in ["mail", "post"] {
                let other = PolicyAct { tool, ..pay(&arguments) };
                assert_eq!(policy.decide(&other, &[(RuleBy::Task, &rules)]).gate, ApprovalLevel::Auto, "{tool}");
            }
        }
    }

    #[test]
    fn rule_that_can_not_be_read_asks_whatever_weightier_rules_say() {
        let arguments = json!({});
        let auto = || rules(json!({ "pay": { "gate": "auto" } }));
        let broken = json!({ "pay": { "gate": "auto", "when": "args.amount <" } });
        let unread = PolicyRules::read(&broken, "", &mut ValidationErrors::new());
        let none = PolicyRules::unreadable("it is a list");
        let policy = policy(json!({ "tenants": { "ann": { "pay": { "gate": "auto" } } } }));
        for (rules, begin) in [(&unread, "the rule of the agent for `pay`"), (&none, "the rules of the agent")] {
            let (stored, task) = (auto(), auto());
            let said = [(RuleBy::Agent, rules), (RuleBy::Agent, &stored), (RuleBy::Task, &task)];
            let ruling = policy.decide(&pay(&arguments), &said);
            assert_eq!(ruling.gate, ApprovalLevel::Confirm);
            assert_eq!(ruling.reason_codes.last(), Some(&ReasonCode::Unjudged));
            assert_eq!(ruling.reasons.len(), 5, "the others are told as well: {ruling:?}");
            assert!(ruling.reasons[4].starts_with(&format!("{begin} can't be read")), "{ruling:?}");
        }
    }

    #[test]
    fn rules_that_name_no_tool_because_they_can_not_be_read_ask_about_every_call() {
        let policy = policy(json!({ "matrix": { "write.low": "auto" } }));
        let arguments = json!({});
        let mut faults = ValidationErrors::new();
        let rules = PolicyRules::read(&json!(["pay"]), "/approvals", &mut faults);
        assert_eq!((faults.0.len(), faults.0[0].pointer.as_str()), (1, "/approvals"));
        for tool in ["pay", "mail"] {
            let ruling = policy.decide(&PolicyAct { tool, ..pay(&arguments) }, &[(RuleBy::Task, &rules)]);
            assert_eq!(ruling.gate, ApprovalLevel::Confirm, "{tool}");
            let told = ruling.reasons.last().unwrap();
            assert!(told.starts_with("the rules of the task can't be read, so a person is asked: "), "{told}");
        }
    }

    #[test]
    fn rule_that_is_no_expression_is_told_with_its_place() {
        let settings = json!({ "tools": { "pay": { "gate": "auto", "when": "args.amount <" } } });
        let faults = Policy::new(&serde_json::from_value(settings).unwrap()).err().unwrap();
        assert_eq!(faults.0[0].pointer, "/approvals/tools/pay/when");
    }

    #[test]
    fn rules_of_a_task_hold_for_thirty_days() {
        let now: DateTime<Utc> = "2027-03-31T08:00:00Z".parse().unwrap();
        assert!(task_rules_hold(now - TimeDelta::days(29), now));
        assert!(!task_rules_hold(now - TimeDelta::days(30), now));
    }
}
