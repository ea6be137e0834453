//! A condition compiled: its expressions read, its lengths known, and the values that they are asked of.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::expr::{Evaluation, Expression, ExpressionError, ExpressionPart, Language, MissingField, Variables};
use crate::base::invalid::FieldError;
use crate::domain::trigger::condition::{Condition, FireOn, length};
use crate::domain::trigger::interval::Interval;
use crate::domain::trigger::jitter::spread;

/// Variables of expressions.
pub const VARIABLES: [&str; 4] = ["value", "previous", "now", "task"];
/// Bytes and values that are converted wherever one is.
const SMALL: usize = 1024;
/// Watched expression where none is given.
const WHOLE: &str = "value";

/// The task, as expressions see it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionSubject {
    /// Id of the task.
    pub id: Uuid,
    /// Name of the task.
    pub name: String,
    /// Metadata of the task.
    pub metadata: Map<String, Value>,
}

/// A condition that can be asked.
#[derive(Debug, Clone)]
pub struct CompiledCondition {
    /// Which results fire.
    pub fire: FireOn,
    /// The expression; `None`: with `on_change` alone.
    pub expression: Option<Expression>,
    /// The expression that is compared from poll to poll.
    pub watch: Expression,
    /// The expression that arms the condition again.
    pub reset: Option<Expression>,
    /// Time between polls.
    pub every: TimeDelta,
    /// Time for which the expression has to be true before it fires.
    pub hold_for: TimeDelta,
    /// Least time between two fires.
    pub cooldown: TimeDelta,
    /// Time limit of one poll.
    pub time_limit: TimeDelta,
    /// Failing polls in a row after which the owner is told.
    pub notice_after: u32,
}

/// Results of the expressions for one value.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionAnswers {
    /// The expression is true.
    pub holds: bool,
    /// With `on_change`; else null.
    pub watched: Value,
    /// With `reset`.
    pub reset: Option<bool>,
    /// The first field that one of them looked for in vain.
    pub missed: Option<MissedField>,
}

/// A field that an expression looked for in vain.
#[derive(Debug, Clone, PartialEq)]
pub struct MissedField {
    expression: Expression,
    name: String,
}

impl Condition {
    /// The compiled form; a fault where a later release can't read it any more.
    pub fn compile(&self, language: &Language) -> Result<CompiledCondition, FieldError> {
        let read = |field: &str, text: &str| {
            language
                .read(text, &VARIABLES)
                .map_err(|fault| FieldError { pointer: format!("/trigger/{field}"), message: fault.to_string() })
        };
        let optional = |field: &str, text: &Option<String>| text.as_deref().map(|text| read(field, text)).transpose();
        let span = |field: &str, text: &Option<String>| match text {
            Some(text) => length(field, text),
            None => Ok(TimeDelta::zero()),
        };
        Ok(CompiledCondition {
            fire: self.fire,
            expression: optional("expression", &self.expression)?,
            watch: read("watch", self.watch.as_deref().unwrap_or(WHOLE))?,
            reset: optional("reset", &self.reset)?,
            every: self.poll_interval()?,
            hold_for: span("hold_for", &self.hold_for)?,
            cooldown: span("cooldown", &self.cooldown)?,
            time_limit: self.time_limit(),
            notice_after: self.failure_notice_after,
        })
    }
}

impl CompiledCondition {
    /// The poll after one at `now`: the task's place on the grid of its interval, at least half an interval away, so
    /// that polls do not drift and many tasks do not poll at once.
    pub fn after(&self, task_id: Uuid, now: DateTime<Utc>) -> DateTime<Utc> {
        let place = DateTime::UNIX_EPOCH + spread(task_id, DateTime::UNIX_EPOCH, self.every);
        Interval::new(place, self.every).next_after(now + self.every / 2).unwrap_or(now + self.every)
    }

    /// The steps that [`CompiledCondition::ask`] takes at most. Of large values it is not looked at: their conversion
    /// takes long enough.
    pub fn steps(&self, value: &Value, previous: &Value, subject: &ConditionSubject, now: DateTime<Utc>) -> u64 {
        if !is_small(value, &mut { SMALL }) || !is_small(previous, &mut { SMALL }) {
            return u64::MAX;
        }
        let variables = variables(value, previous, subject, now);
        let all = self.expression.iter().chain(&self.reset).chain([&self.watch]);
        all.map(|expression| expression.cost(&variables)).fold(0, u64::saturating_add)
    }

    /// Evaluates the expressions for `value`.
    pub fn ask(
        &self,
        value: &Value,
        previous: &Value,
        subject: &ConditionSubject,
        now: DateTime<Utc>,
    ) -> Result<ConditionAnswers, ExpressionError> {
        let variables = variables(value, previous, subject, now);
        let mut missed = None;
        let mut note = |expression: &Expression, name: &str| {
            missed.get_or_insert_with(|| MissedField { expression: expression.clone(), name: name.to_owned() });
        };
        let mut holds = |expression: &Expression| -> Result<bool, ExpressionError> {
            match expression.judge(&variables)? {
                Evaluation::Holds(holds) => Ok(holds),
                Evaluation::Misses(name) => {
                    note(expression, &name);
                    Ok(false)
                }
            }
        };
        let (verdict, reset) =
            (self.expression.as_ref().map_or(Ok(true), &mut holds)?, self.reset.as_ref().map(&mut holds).transpose()?);
        let watched = match self.fire {
            FireOn::OnChange => match self.watch.value(&variables) {
                Err(error @ ExpressionError::Missing(_)) => {
                    error.missing_field().into_iter().for_each(|name| note(&self.watch, name));
                    Value::Null
                }
                read => read?,
            },
            _ => Value::Null,
        };
        Ok(ConditionAnswers { holds: verdict, watched, reset, missed })
    }

    /// The missing field with its place.
    pub fn missing_field(
        &self,
        missed: &MissedField,
        value: &Value,
        previous: &Value,
        subject: &ConditionSubject,
        now: DateTime<Utc>,
    ) -> MissingField {
        missed.expression.missing(&missed.name, &variables(value, previous, subject, now))
    }

    /// Every part of the expression (of `watch`, where there is none) with its value.
    pub fn parts(
        &self,
        value: &Value,
        previous: &Value,
        subject: &ConditionSubject,
        now: DateTime<Utc>,
    ) -> Vec<ExpressionPart> {
        self.shown().parts(&variables(value, previous, subject, now))
    }

    /// The expression that a run names as its cause: the condition, or the watched one.
    pub fn shown(&self) -> &Expression {
        match (&self.expression, self.fire) {
            (Some(expression), FireOn::OnTrue | FireOn::EveryTime) => expression,
            _ => &self.watch,
        }
    }
}

/// Whether it has less than so many bytes and values together; the walk ends where it has more.
fn is_small(value: &Value, left: &mut usize) -> bool {
    let takes = if let Value::String(text) = value { text.len() + 1 } else { 1 };
    if *left < takes {
        return false;
    }
    *left -= takes;
    match value {
        Value::Array(items) => items.iter().all(|item| is_small(item, left)),
        Value::Object(fields) => fields.values().all(|field| is_small(field, left)),
        _ => true,
    }
}

fn variables(value: &Value, previous: &Value, subject: &ConditionSubject, now: DateTime<Utc>) -> Variables {
    let task = json!({ "id": subject.id, "name": subject.name, "metadata": subject.metadata });
    let mut variables = Variables::new().with("value", value).with("previous", previous).with("task", &task);
    variables.set_instant("now", now);
    variables
}
