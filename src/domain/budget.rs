//! Budgets: how much a run, a task and a tenant may spend on models. Numbers and rules, no more: the store keeps the
//! ledgers of the days, and the executor reserves against them before each call of a model.
//!
//! [`Budgets`] are the limits that hold for a run: those of `[budgets]`, with what an admin says for the tenant and for
//! the task in their place, and what the task says below them. A limit that is absent is none. A day is a day in UTC.

pub mod notice;
mod refusal;

use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base::invalid::{FieldError, ValidationErrors};
use crate::domain::run::Usage;

pub use refusal::{BudgetQuantity, BudgetRefusal, BudgetScope};

/// The key of a task's own budget in `action.config`.
pub const TASK_KEY: &str = "budget";
/// Largest number of a budget; every JSON reader holds it exactly.
const MOST: u64 = 1_000_000_000_000_000;
/// Most dollars of a budget.
const MOST_DOLLARS: f64 = 1e9;
/// Least dollars of a budget: one micro-dollar.
const LEAST_DOLLARS: f64 = 0.000_001;
/// Of its budget in hundredths, from which on an owner is warned.
pub const WARNED_AT_PERCENT: i64 = 80;

/// `[budgets.run]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunBudget {
    /// Turns of models.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub turns: Option<u64>,
    /// Seconds of execution, all attempts together; waits for people do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub wall_time: Option<u64>,
    /// Tokens that models read and write.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub tokens: Option<u64>,
    /// Dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.000_001, maximum = 1_000_000_000)]
    pub cost_usd: Option<f64>,
}

/// `[budgets.task]` and `[budgets.tenant]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DayBudget {
    /// Tokens that models read and write in a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub tokens_per_day: Option<u64>,
    /// Dollars in a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.000_001, maximum = 1_000_000_000)]
    pub cost_usd_per_day: Option<f64>,
}

/// Limits of a run, of its task's day and of its tenant's day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Budgets {
    /// Of each run.
    pub run: RunBudget,
    /// Of each task and day.
    pub task: DayBudget,
    /// Of the tenant and day.
    pub tenant: DayBudget,
}

/// `[budgets]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Models without a price may be used under a budget of money, where they count as costing nothing.
    pub allow_unpriced_models: bool,
    /// Of each run.
    pub run: RunBudget,
    /// Of each task and day.
    pub task: DayBudget,
    /// Of each tenant and day.
    pub tenant: DayBudget,
}

/// A budget of one task: its own, `action.config.budget`, or what an admin says for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskBudget {
    /// Turns of models in a run.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub turns: Option<u64>,
    /// Seconds of execution of a run.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub wall_time: Option<u64>,
    /// Tokens of a run.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub tokens: Option<u64>,
    /// Dollars of a run.
    #[schema(minimum = 0.000_001, maximum = 1_000_000_000)]
    pub cost_usd: Option<f64>,
    /// Tokens of all runs of a day.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    pub tokens_per_day: Option<u64>,
    /// Dollars of all runs of a day.
    #[schema(minimum = 0.000_001, maximum = 1_000_000_000)]
    pub cost_usd_per_day: Option<f64>,
}

/// Tokens and money, spent or reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spend {
    /// Tokens that models read and write.
    pub tokens: i64,
    /// In micro-dollars.
    pub cost_micros: i64,
}

/// The worst that one call of a chain of models may come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallBound {
    /// Its tokens and its cost.
    pub most: Spend,
    /// A model that may answer and has no price.
    pub unpriced: Option<String>,
}

/// The limits of one ledger, in the store's units; `None`: there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DayLimits {
    /// In tokens.
    pub tokens: Option<i64>,
    /// In micro-dollars.
    pub cost_micros: Option<i64>,
}

impl Settings {
    /// The limits alone.
    pub fn budgets(&self) -> Budgets {
        Budgets { run: self.run, task: self.task, tenant: self.tenant }
    }

    /// Adds the numbers that make no sense; pointers begin with `/budgets`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        self.budgets().check("/budgets", faults);
    }
}

impl Budgets {
    /// Adds the numbers that make no sense, with pointers below `place`.
    pub fn check(&self, place: &str, faults: &mut ValidationErrors) {
        let RunBudget { turns, wall_time, tokens, cost_usd } = self.run;
        for (key, number) in [("turns", turns), ("wall_time", wall_time), ("tokens", tokens)] {
            check_number(number, format!("{place}/run/{key}"), faults);
        }
        check_dollars(cost_usd, format!("{place}/run/cost_usd"), faults);
        for (scope, day) in [("task", self.task), ("tenant", self.tenant)] {
            check_number(day.tokens_per_day, format!("{place}/{scope}/tokens_per_day"), faults);
            check_dollars(day.cost_usd_per_day, format!("{place}/{scope}/cost_usd_per_day"), faults);
        }
    }

    /// These, with what is said for one tenant in their place.
    pub fn with(self, said: &Budgets) -> Budgets {
        Budgets {
            run: RunBudget {
                turns: said.run.turns.or(self.run.turns),
                wall_time: said.run.wall_time.or(self.run.wall_time),
                tokens: said.run.tokens.or(self.run.tokens),
                cost_usd: said.run.cost_usd.or(self.run.cost_usd),
            },
            task: self.task.with(said.task),
            tenant: self.tenant.with(said.tenant),
        }
    }

    /// These, with what an admin says for one task in their place.
    pub fn with_task(self, said: &TaskBudget) -> Budgets {
        let TaskBudget { turns, wall_time, tokens, cost_usd, tokens_per_day, cost_usd_per_day } = *said;
        let task = DayBudget { tokens_per_day, cost_usd_per_day };
        self.with(&Budgets { run: RunBudget { turns, wall_time, tokens, cost_usd }, task, ..Budgets::default() })
    }

    /// These, as far as the task does not say less. A task is its tenant's, so it may not say more.
    pub fn narrowed(self, task: &TaskBudget) -> Budgets {
        Budgets {
            run: RunBudget {
                turns: least(self.run.turns, task.turns),
                wall_time: least(self.run.wall_time, task.wall_time),
                tokens: least(self.run.tokens, task.tokens),
                cost_usd: least(self.run.cost_usd, task.cost_usd),
            },
            task: DayBudget {
                tokens_per_day: least(self.task.tokens_per_day, task.tokens_per_day),
                cost_usd_per_day: least(self.task.cost_usd_per_day, task.cost_usd_per_day),
            },
            tenant: self.tenant,
        }
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Budgets::default()
    }

    /// Whether a day is limited, so that its ledgers are kept.
    pub fn has_days(&self) -> bool {
        self.task != DayBudget::default() || self.tenant != DayBudget::default()
    }

    /// Whether money is limited.
    pub fn has_money(&self) -> bool {
        self.run.cost_usd.is_some() || self.task.cost_usd_per_day.is_some() || self.tenant.cost_usd_per_day.is_some()
    }
}

impl DayBudget {
    fn with(self, said: DayBudget) -> DayBudget {
        DayBudget {
            tokens_per_day: said.tokens_per_day.or(self.tokens_per_day),
            cost_usd_per_day: said.cost_usd_per_day.or(self.cost_usd_per_day),
        }
    }

    /// The limits in the store's units.
    pub fn limits(self) -> DayLimits {
        DayLimits { tokens: self.tokens_per_day.map(whole), cost_micros: self.cost_usd_per_day.map(micros) }
    }
}

impl RunBudget {
    /// The time that a run may be executed.
    pub fn wall_time(self) -> Option<Duration> {
        self.wall_time.map(Duration::from_secs)
    }

    /// Whether a run that has used so much, and has reserved so much for calls under way, may make another call that
    /// may come to `most`.
    pub fn admit(self, used: Usage, reserved: &[Spend], most: Spend) -> Result<(), BudgetRefusal> {
        let open: Spend = reserved.iter().copied().sum();
        let turns = used.turns + reserved.len() as i64 + 1;
        let tokens = used.input_tokens + used.output_tokens + open.tokens + most.tokens;
        let cost = used.cost_micros + open.cost_micros + most.cost_micros;
        let asked = [
            (BudgetQuantity::Turns, turns, self.turns.map(whole)),
            (BudgetQuantity::Tokens, tokens, self.tokens.map(whole)),
            (BudgetQuantity::Cost, cost, self.cost_usd.map(micros)),
        ];
        match asked.into_iter().find(|(_, sum, limit)| limit.is_some_and(|limit| *sum > limit)) {
            Some((quantity, ..)) => Err(BudgetRefusal { scope: BudgetScope::Run, quantity }),
            None => Ok(()),
        }
    }

    /// The quantity of which a run has used so much that the owner is to know, once it has taken so long.
    pub fn nearly_used(self, used: Usage, took: Duration) -> Option<BudgetQuantity> {
        let (tokens, seconds) = (used.input_tokens + used.output_tokens, took.as_secs() as i64);
        let asked = [
            (BudgetQuantity::Turns, used.turns, self.turns.map(whole)),
            (BudgetQuantity::WallTime, seconds, self.wall_time.map(whole)),
            (BudgetQuantity::Tokens, tokens, self.tokens.map(whole)),
            (BudgetQuantity::Cost, used.cost_micros, self.cost_usd.map(micros)),
        ];
        let is_near =
            |used: i64, limit: i64| i128::from(used) * 100 >= i128::from(limit) * i128::from(WARNED_AT_PERCENT);
        asked.into_iter().find_map(|(quantity, used, limit)| is_near(used, limit?).then_some(quantity))
    }
}

impl DayLimits {
    /// The quantity of which so much is more than the limit.
    pub fn exceeded(self, sum: Spend) -> Option<BudgetQuantity> {
        let over = |limit: Option<i64>, sum: i64| limit.is_some_and(|limit| sum > limit);
        match (over(self.tokens, sum.tokens), over(self.cost_micros, sum.cost_micros)) {
            (true, _) => Some(BudgetQuantity::Tokens),
            (false, true) => Some(BudgetQuantity::Cost),
            (false, false) => None,
        }
    }

    /// The lower ones of both.
    pub fn lower(self, other: DayLimits) -> DayLimits {
        DayLimits { tokens: least(self.tokens, other.tokens), cost_micros: least(self.cost_micros, other.cost_micros) }
    }

    /// A part of them.
    pub fn part(self, parts: i64) -> DayLimits {
        let part = |limit: i64| limit / parts;
        DayLimits { tokens: self.tokens.map(part), cost_micros: self.cost_micros.map(part) }
    }

    /// The quantity of which so much of the limit is used that the owner is to know.
    pub fn nearly_used(self, used: Spend) -> Option<BudgetQuantity> {
        let near = |limit: i64| (i128::from(limit) * i128::from(WARNED_AT_PERCENT) / 100) as i64 - 1;
        DayLimits { tokens: self.tokens.map(near), cost_micros: self.cost_micros.map(near) }.exceeded(used)
    }
}

impl TaskBudget {
    /// The budget in the `action.config` of a task, where it has one; with a fault for what is wrong, below `pointer`.
    pub fn read(config: &Map<String, Value>, pointer: &str, faults: &mut ValidationErrors) -> Option<TaskBudget> {
        let place = format!("{pointer}/{TASK_KEY}");
        let value = config.get(TASK_KEY).filter(|value| !value.is_null())?;
        // a list would be read as its fields in their order
        if !value.is_object() {
            faults.add(place, "must be an object");
            return None;
        }
        let budget: TaskBudget = faults.read(value, &place)?;
        budget.check(&place, faults);
        Some(budget)
    }

    /// Adds the numbers that make no sense, with pointers below `place`.
    pub fn check(&self, place: &str, faults: &mut ValidationErrors) {
        for (key, number) in [
            ("turns", self.turns),
            ("wall_time", self.wall_time),
            ("tokens", self.tokens),
            ("tokens_per_day", self.tokens_per_day),
        ] {
            check_number(number, format!("{place}/{key}"), faults);
        }
        check_dollars(self.cost_usd, format!("{place}/cost_usd"), faults);
        check_dollars(self.cost_usd_per_day, format!("{place}/cost_usd_per_day"), faults);
    }
}

impl Spend {
    /// Tokens and money of some usage.
    pub fn of(usage: Usage) -> Spend {
        Spend { tokens: usage.input_tokens + usage.output_tokens, cost_micros: usage.cost_micros }
    }

    /// The charge for a call that came to this by its provider's count: where that counts no tokens, the worst.
    pub fn or_worst(self, most: Spend) -> Spend {
        if self.tokens > 0 { self } else { most }
    }
}

impl std::ops::Add for Spend {
    type Output = Spend;

    fn add(self, more: Spend) -> Spend {
        Spend {
            tokens: self.tokens.saturating_add(more.tokens),
            cost_micros: self.cost_micros.saturating_add(more.cost_micros),
        }
    }
}

impl std::iter::Sum for Spend {
    fn sum<I: Iterator<Item = Spend>>(spends: I) -> Spend {
        spends.fold(Spend::default(), std::ops::Add::add)
    }
}

/// The day of an instant, in UTC.
pub fn day_of(at: DateTime<Utc>) -> NaiveDate {
    at.date_naive()
}

/// Dollars in micro-dollars.
pub fn micros(dollars: f64) -> i64 {
    (dollars * 1e6).round() as i64
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn least<N: PartialOrd>(set: Option<N>, own: Option<N>) -> Option<N> {
    match (set, own) {
        (Some(set), Some(own)) => Some(if own < set { own } else { set }),
        (set, own) => set.or(own),
    }
}

fn check_number(number: Option<u64>, pointer: String, faults: &mut ValidationErrors) {
    if number.is_some_and(|number| !(1..=MOST).contains(&number)) {
        faults.0.push(FieldError { pointer, message: format!("must be a whole number from 1 to {MOST}") });
    }
}

fn check_dollars(dollars: Option<f64>, pointer: String, faults: &mut ValidationErrors) {
    if dollars.is_some_and(|dollars| !(LEAST_DOLLARS..=MOST_DOLLARS).contains(&dollars)) {
        faults.0.push(FieldError { pointer, message: "must be dollars, from 0.000001 to a billion".into() });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::run::outcome::REASON_BUDGET;

    fn run(turns: Option<u64>, tokens: Option<u64>, cost_usd: Option<f64>) -> RunBudget {
        RunBudget { turns, wall_time: None, tokens, cost_usd }
    }

    #[test]
    fn tenant_s_budget_takes_the_place_of_the_usual_one_and_a_task_says_less_alone() {
        let usual = Budgets { run: run(Some(10), Some(1000), None), ..Budgets::default() };
        let said = Budgets { run: run(None, Some(5000), Some(2.0)), ..Budgets::default() };
        let own = usual.with(&said);
        assert_eq!(own.run, run(Some(10), Some(5000), Some(2.0)));
        let task = TaskBudget {
            turns: Some(20),
            tokens: Some(50),
            cost_usd: Some(0.5),
            tokens_per_day: Some(70),
            ..TaskBudget::default()
        };
        let narrowed = own.narrowed(&task);
        assert_eq!(narrowed.run, run(Some(10), Some(50), Some(0.5)));
        assert_eq!(narrowed.task.limits(), DayLimits { tokens: Some(70), cost_micros: None });
        assert!(narrowed.has_days() && narrowed.has_money() && !own.has_days());
        assert!(Budgets::default().is_empty() && !narrowed.is_empty());
        let raised = own.with_task(&task);
        assert_eq!(raised.run, run(Some(20), Some(50), Some(0.5)), "an admin may say more");
        assert_eq!((raised.task.limits(), raised.tenant), (narrowed.task.limits(), own.tenant));
    }

    #[test]
    fn run_makes_no_call_that_may_come_to_more_than_is_left() {
        let used = Usage { turns: 2, input_tokens: 60, output_tokens: 20, cost_micros: 500, ..Usage::default() };
        let most = Spend { tokens: 20, cost_micros: 500_000 };
        let refused =
            |budget: RunBudget, reserved: &[Spend]| budget.admit(used, reserved, most).err().map(|r| r.quantity);
        assert_eq!(refused(run(Some(3), Some(100), Some(0.5005)), &[]), None);
        assert_eq!(refused(run(Some(2), None, None), &[]), Some(BudgetQuantity::Turns));
        assert_eq!(refused(run(Some(3), None, None), &[Spend::default()]), Some(BudgetQuantity::Turns));
        assert_eq!(refused(run(None, Some(99), None), &[]), Some(BudgetQuantity::Tokens));
        let open = [Spend { tokens: 1, cost_micros: 1 }];
        assert_eq!(refused(run(None, Some(100), None), &open), Some(BudgetQuantity::Tokens));
        assert_eq!(refused(run(None, None, Some(0.5005)), &open), Some(BudgetQuantity::Cost));
    }

    #[test]
    fn run_has_nearly_used_its_budget_from_four_fifths_on() {
        let used = |turns, tokens, cost_micros| Usage { turns, input_tokens: tokens, cost_micros, ..Usage::default() };
        let budget = RunBudget { wall_time: Some(100), ..run(Some(4), Some(1_000), Some(1.0)) };
        let near = |used, seconds| budget.nearly_used(used, Duration::from_secs(seconds));
        assert_eq!(near(used(3, 799, 799_999), 79), None);
        assert_eq!(near(used(4, 800, 800_000), 80), Some(BudgetQuantity::Turns));
        assert_eq!(near(used(3, 799, 799_999), 80), Some(BudgetQuantity::WallTime));
        assert_eq!(near(used(3, 800, 0), 0), Some(BudgetQuantity::Tokens));
        assert_eq!(near(used(3, 0, 800_000), 0), Some(BudgetQuantity::Cost));
        assert_eq!(RunBudget::default().nearly_used(used(9, 9, 9), Duration::MAX), None);
    }

    #[test]
    fn day_is_nearly_used_from_four_fifths_on() {
        let limits = DayLimits { tokens: Some(100), cost_micros: Some(1000) };
        let at = |tokens, cost_micros| limits.nearly_used(Spend { tokens, cost_micros });
        assert_eq!((at(79, 799), at(80, 0)), (None, Some(BudgetQuantity::Tokens)));
        assert_eq!(at(0, 800), Some(BudgetQuantity::Cost));
        let over = |tokens, cost_micros| limits.exceeded(Spend { tokens, cost_micros });
        assert_eq!(
            (over(100, 1000), over(101, 0), over(0, 1001)),
            (None, Some(BudgetQuantity::Tokens), Some(BudgetQuantity::Cost))
        );
        assert_eq!(DayLimits::default().nearly_used(Spend { tokens: i64::MAX, cost_micros: i64::MAX }), None);
    }

    #[test]
    fn code_of_the_end_names_whose_budget_it_is_and_of_what() {
        let fault = BudgetRefusal { scope: BudgetScope::Tenant, quantity: BudgetQuantity::Cost }.fault();
        assert_eq!(fault.code, "budget_tenant_cost_usd");
        assert_eq!(fault.end_reason(), Some(REASON_BUDGET));
    }

    #[test]
    fn budget_of_a_task_is_checked_where_it_is_written() {
        let read = |value: Value| {
            let mut faults = ValidationErrors::new();
            let config = json!({ "budget": value });
            let budget = TaskBudget::read(config.as_object().unwrap(), "/action/config", &mut faults);
            (budget, faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>())
        };
        let own = TaskBudget { tokens: Some(5), cost_usd: Some(0.01), ..TaskBudget::default() };
        assert_eq!(read(json!({ "tokens": 5, "cost_usd": 0.01 })), (Some(own), vec![]));
        assert_eq!(read(Value::Null), (None, vec![]));
        assert_eq!(read(json!({ "turns": 0 })).1, ["/action/config/budget/turns"]);
        assert_eq!(read(json!({ "cost_usd": -1.0 })).1, ["/action/config/budget/cost_usd"]);
        assert_eq!(read(json!({ "money": 1 })).1.len(), 1);
        assert_eq!(read(json!([5])), (None, vec!["/action/config/budget".to_owned()]));
    }
}
