//! Expressions in CEL (<https://cel.dev>): read once with all guards, evaluated many times over JSON.
//!
//! CEL always ends, but has no limit of its own on time, memory or stack. So what can't be bounded is refused when it
//! is read (see `guard`), and what would take too much over the values at hand before it is evaluated (see `cost`).
//! Whole JSON numbers are `int`, others `double`. A key that is missing is told apart from every other error, because
//! who filters takes it for "no". Nothing is kept between evaluations but compiled expressions, of tenants that have
//! many (see `kept`).

mod convert;
mod cost;
mod extent;
mod fields;
mod guard;
mod kept;
mod missing;
mod parts;
mod pattern;
mod weight;
mod zoned;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cel::common::ast::IdedExpr;
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, Program};
use serde_json::Value;

use crate::base::expr::cost::Cost;
use crate::base::expr::extent::{Extent, VALUE_NODES};
use crate::base::expr::kept::KeptExpressions;
use crate::base::expr::pattern::PatternCache;
use crate::base::invalid::did_you_mean;

pub use cost::MOST_STEPS;
pub use fields::NamedMember;
pub use missing::{Evaluation, MissingField};
pub use parts::ExpressionPart;
pub use pattern::{pattern_of_data, pattern_set};

/// A compiled expression. Cheap to clone; equal when the texts are.
#[derive(Clone)]
pub struct Expression(Arc<CompiledProgram>);

struct CompiledProgram {
    text: Arc<str>,
    program: Program,
    env: Arc<Env>,
    patterns: PatternCache,
}

/// Why a text is no expression that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at character {position})")]
pub struct ExpressionFault {
    /// Of the first character at fault, counted from 1.
    pub position: usize,
    /// The fault and its place, in a sentence.
    pub message: String,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Something that the expression names is not there.
    #[error("there is no `{0}`")]
    Missing(String),
    /// Types that do not go together, a division by zero, too much work.
    #[error("{0}")]
    Failed(String),
}

/// Reads expressions: holds what they share. Cheap to clone.
#[derive(Clone)]
pub struct Language {
    env: Arc<Env>,
    kept: KeptExpressions,
    /// The tenant as whose the expressions are kept.
    tenant: Arc<str>,
}

impl Default for Language {
    fn default() -> Language {
        Language::with_kept(KeptExpressions::default())
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Language({:?})", self.tenant)
    }
}

impl Language {
    fn with_kept(kept: KeptExpressions) -> Language {
        Language { env: Arc::new(zoned::language()), kept, tenant: "".into() }
    }

    /// A language that keeps so many bytes of compiled expressions at most, of all tenants and of one.
    #[cfg(test)]
    pub fn keeping(most: usize, most_of_one: usize) -> Language {
        Language::with_kept(KeptExpressions::bounded(most, most_of_one))
    }

    /// Bytes of the compiled expressions that are kept, of all tenants.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// The language of a tenant: what is kept of it counts as that tenant's. All languages that come of one share what
    /// is kept.
    pub fn of_tenant(&self, tenant: &str) -> Language {
        Language { tenant: tenant.into(), ..self.clone() }
    }

    /// Reads an expression that may name these variables.
    pub fn read(&self, text: &str, variables: &[&str]) -> Result<Expression, ExpressionFault> {
        self.compile(text, || text.into(), variables)
    }

    /// As [`Language::read`], where the expression is needed again and again: it is compiled now if it is not kept, and
    /// those that were used last are kept.
    pub fn read_kept(
        &self,
        text: &Arc<str>,
        variables: &'static [&'static str],
    ) -> Result<Expression, ExpressionFault> {
        if let Some(kept) = self.kept.get(&self.tenant, text, variables) {
            return Ok(kept);
        }
        let read = self.compile(text, || Arc::clone(text), variables)?;
        self.kept.put(&self.tenant, variables, &read);
        Ok(read)
    }

    fn compile(
        &self,
        text: &str,
        shared: impl FnOnce() -> Arc<str>,
        variables: &[&str],
    ) -> Result<Expression, ExpressionFault> {
        guard::before_parsing(text)?;
        // the parser is young: what it does not survive is no expression
        let compiled = catch_unwind(AssertUnwindSafe(|| self.env.compile(text)))
            .map_err(|_| ExpressionFault { position: 1, message: "can't be read as a CEL expression".into() })?;
        let program = compiled.map_err(|errors| guard::syntax_fault(text, &errors))?;
        guard::judge(&program, variables)?;
        let patterns = PatternCache::new(&program)?;
        let env = Arc::clone(&self.env);
        Ok(Expression(Arc::new(CompiledProgram { text: shared(), program, env, patterns })))
    }
}

/// Values by name, converted once for any number of expressions.
#[derive(Debug, Clone, Default)]
pub struct Variables {
    values: BTreeMap<&'static str, Arc<dyn Val>>,
    extents: BTreeMap<&'static str, Arc<Extent>>,
    /// Why one of them can't be evaluated over.
    excess: Option<String>,
}

impl Variables {
    /// No variables.
    pub fn new() -> Variables {
        Variables::default()
    }

    /// With one more; a name that is there is replaced.
    pub fn with(mut self, name: &'static str, value: &Value) -> Variables {
        self.set(name, value);
        self
    }

    /// Sets a variable. A value that is too large makes every evaluation fail that names it.
    pub fn set(&mut self, name: &'static str, value: &Value) {
        let measured = Extent::of(value).and_then(|extent| match extent.nodes {
            ..=VALUE_NODES => Ok(extent),
            nodes => Err(format!("there are {nodes} values, at most {VALUE_NODES} can be evaluated over")),
        });
        match measured {
            Ok(extent) => self.insert(name, convert::to_cel(value), extent),
            Err(why) => {
                self.excess = Some(format!("`{name}`: {why}"));
                self.insert(name, cel::Value::Null, Extent::plain());
            }
        }
    }

    /// An instant, which CEL calls a timestamp.
    pub fn set_instant(&mut self, name: &'static str, instant: chrono::DateTime<chrono::Utc>) {
        self.insert(name, cel::Value::Timestamp(instant.fixed_offset()), Extent::plain());
    }

    /// These, and those of `more`.
    pub fn and(&self, more: &Variables) -> Variables {
        let mut both = self.clone();
        both.values.extend(more.values.iter().map(|(name, value)| (*name, Arc::clone(value))));
        both.extents.extend(more.extents.iter().map(|(name, extent)| (*name, Arc::clone(extent))));
        both.excess = both.excess.or_else(|| more.excess.clone());
        both
    }

    fn extent(&self, name: &str) -> Option<Arc<Extent>> {
        self.extents.get(name).cloned()
    }

    /// Refuses an expression that breaks the rules for all, whatever it names.
    fn check_limits(&self) -> Result<(), ExpressionError> {
        if let Some(why) = &self.excess {
            return Err(ExpressionError::Failed(why.clone()));
        }
        match self.extents.values().map(|extent| extent.nodes).sum() {
            ..=VALUE_NODES => Ok(()),
            nodes => Err(ExpressionError::Failed(format!(
                "there are {nodes} values, at most {VALUE_NODES} can be evaluated over"
            ))),
        }
    }

    fn insert(&mut self, name: &'static str, value: cel::Value, extent: Extent) {
        self.extents.insert(name, Arc::new(extent));
        let value: Box<dyn Val> = value.try_into().expect("data converts; only functions do not");
        self.values.insert(name, value.into());
    }
}

impl VariableResolver for Variables {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        self.values.get(name).map(|value| CowVal::Borrowed(&**value))
    }
}

impl Expression {
    /// The text as it was written.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The text, shared with all clones of the expression.
    pub fn shared_text(&self) -> Arc<str> {
        Arc::clone(&self.0.text)
    }

    /// The steps that an evaluation takes at most; [`MOST_STEPS`] is refused beyond. A step is about a nanosecond.
    pub fn cost(&self, variables: &Variables) -> u64 {
        self.cost_of(self.0.program.expression(), variables).steps
    }

    /// The value, as JSON: instants and durations as text.
    pub fn value(&self, variables: &Variables) -> Result<Value, ExpressionError> {
        convert::to_json(&self.evaluate(variables)?)
    }

    /// Whether it is true. A missing value makes it false; a value that is neither true nor false is an error.
    pub fn is_true(&self, variables: &Variables) -> Result<bool, ExpressionError> {
        Ok(self.judge(variables)? == Evaluation::Holds(true))
    }

    /// The value as a key, to tell things apart: texts as they are, all else as JSON.
    pub fn key(&self, variables: &Variables) -> Result<String, ExpressionError> {
        Ok(match self.value(variables)? {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }

    /// The members of a variable that it names.
    pub fn members_of(&self, variable: &str) -> Vec<NamedMember> {
        fields::of(&self.0.program, variable)
    }

    /// The fault that it names a member that a variable never has, as a sentence.
    pub fn unknown_member(&self, variable: &str, members: &[&str]) -> Option<String> {
        let unknown = |member: &NamedMember| !members.contains(&member.name.as_str());
        self.members_of(variable).into_iter().find(unknown).map(|NamedMember { name, position, .. }| {
            let has = match members {
                [] => "has no fields".to_owned(),
                members => format!("has `{}`", members.join("`, `")),
            };
            let hint = did_you_mean(&name, members.iter().copied());
            format!("there is no `{variable}.{name}`{hint}; `{variable}` {has} (at character {position})")
        })
    }

    /// The value of every part that the expression is made of, in the order of the text; the whole is the first. Parts
    /// that would take more than one evaluation may have an error in the place of their value.
    pub fn parts(&self, variables: &Variables) -> Vec<ExpressionPart> {
        let whole = |error: ExpressionError| {
            vec![ExpressionPart { text: self.text().to_owned(), value: Err(error.to_string()) }]
        };
        if let Err(error) = variables.check_limits() {
            return whole(error);
        }
        let mut left = MOST_STEPS;
        let mut afford = |node: &IdedExpr| {
            let cost = self.cost_of(node, variables);
            cost.check_budget()?;
            left = left.checked_sub(cost.steps).ok_or_else(parts::too_much)?;
            Ok(())
        };
        self.in_context(variables, |context| parts::of(&self.0.text, &self.0.program, context, &mut afford))
            .unwrap_or_else(whole)
    }

    fn evaluate(&self, variables: &Variables) -> Result<cel::Value, ExpressionError> {
        variables.check_limits()?;
        self.cost_of(self.0.program.expression(), variables).check_budget()?;
        self.in_context(variables, |context| self.0.program.execute(context).map_err(failure))?
    }

    fn cost_of(&self, node: &IdedExpr, variables: &Variables) -> Cost {
        Cost::of(node, variables, &self.0.patterns)
    }

    fn in_context<T>(
        &self,
        variables: &Variables,
        act: impl FnOnce(&Context<'_, '_>) -> T,
    ) -> Result<T, ExpressionError> {
        let mut context = Context::with_env(Arc::clone(&self.0.env));
        context.set_variable_resolver(variables);
        self.0.patterns.add_to(&mut context);
        catch_unwind(AssertUnwindSafe(|| act(&context)))
            .map_err(|_| ExpressionError::Failed("the expression can't be evaluated".into()))
    }
}

fn failure(error: ExecutionError) -> ExpressionError {
    match error {
        ExecutionError::NoSuchKey(key) => ExpressionError::Missing(key.to_string()),
        ExecutionError::UndeclaredReference(name) => ExpressionError::Missing(name.to_string()),
        // null has nothing in it
        ExecutionError::NoSuchOverload(error)
            if error.function() == "_._" && error.argument_types().first().is_some_and(|of| of == "null_type") =>
        {
            ExpressionError::Missing(missing::IN_NULL.into())
        }
        // values are never quoted: they may be long, and not for everyone's eyes
        ExecutionError::NoSuchOverload(error) => {
            ExpressionError::Failed(error.to_string().replace(&format!("'{}", zoned::OURS), "'"))
        }
        ExecutionError::UnexpectedType { got, want } => {
            ExpressionError::Failed(format!("expected {want}, found {got}"))
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            ExpressionError::Failed("division by zero".into())
        }
        ExecutionError::Overflow(..) => ExpressionError::Failed("the number is too large".into()),
        ExecutionError::IndexOutOfBounds(_) => ExpressionError::Missing(missing::ELEMENT.into()),
        ExecutionError::FunctionError { function, message } => {
            ExpressionError::Failed(format!("`{function}`: {message}"))
        }
        ExecutionError::ValuesNotComparable(a, b) => {
            ExpressionError::Failed(format!("{} can't be compared with {}", a.type_of(), b.type_of()))
        }
        ExecutionError::UnsupportedBinaryOperator(operator, a, b) => {
            ExpressionError::Failed(format!("`{operator}` does not take {} and {}", a.type_of(), b.type_of()))
        }
        ExecutionError::UnsupportedIndex(index, of) => {
            ExpressionError::Failed(format!("{} has no element by {}", of.type_of(), index.type_of()))
        }
        _ => ExpressionError::Failed("the types do not go together".into()),
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.0.text == other.0.text
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.0.text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Expression, ExpressionFault> {
        Language::default().read(text, &["event", "value", "now"])
    }

    fn variables() -> Variables {
        let mut variables = Variables::new()
            .with("event", &json!({"data": {"amount": 120, "price": 99.5, "from": "Amazon", "tags": ["a", "b"]}}))
            .with("value", &json!(null));
        variables.set_instant("now", "2027-03-01T08:00:00Z".parse().unwrap());
        variables
    }

    fn value(text: &str) -> Result<Value, ExpressionError> {
        read(text).unwrap().value(&variables())
    }

    #[test]
    fn numbers_are_what_a_writer_expects() {
        for (text, expected) in [
            ("event.data.amount > 100", json!(true)),
            ("event.data.amount > 100.5", json!(true)),
            ("event.data.price < 100", json!(true)),
            ("event.data.amount + 1", json!(121)),
            ("event.data.price * 2.0", json!(199.0)),
            ("event.data.amount == 120.0", json!(true)),
            ("size(event.data.tags)", json!(2)),
            ("event.data.tags.exists(t, t == 'b') && event.data.from.startsWith('Ama')", json!(true)),
            ("event.data.tags.map(t, t + '!')", json!("refused")),
            ("event.data.from.matches('^am') || event.data.from.matches('on$')", json!(true)),
            ("'Order ' + string(event.data.amount)", json!("Order 120")),
            ("now > timestamp('2027-01-01T00:00:00Z')", json!(true)),
            ("has(event.data.nothing)", json!(false)),
            ("{'a': event.data.amount}", json!({"a": 120})),
        ] {
            match read(text) {
                Ok(read) => assert_eq!(read.value(&variables()), Ok(expected), "{text}"),
                Err(_) => assert_eq!(expected, "refused", "{text}"),
            }
        }
    }

    #[test]
    fn missing_value_is_false_and_a_wrong_type_is_an_error() {
        let holds = |text: &str| read(text).unwrap().is_true(&variables());
        assert_eq!(holds("event.data.nothing > 3"), Ok(false));
        assert_eq!(holds("event.nothing.at.all == 'x'"), Ok(false));
        assert_eq!(holds("value.price < 500"), Ok(false), "null has nothing in it");
        assert_eq!(holds("event.data.tags[7] == 'x'"), Ok(false));
        let failed = |text: &str| matches!(holds(text), Err(ExpressionError::Failed(_)));
        assert!(failed("event.data.from > 3"), "{:?}", holds("event.data.from > 3"));
        assert!(failed("event.data.amount"), "a number is not true");
        assert!(failed("1 / 0 == 1"));
        assert_eq!(value("event.data.nothing"), Err(ExpressionError::Missing("nothing".into())));
    }

    #[test]
    fn text_that_is_no_expression_is_refused_with_its_position() {
        let fault = |text: &str| read(text).unwrap_err();
        assert_eq!(fault("event.data.amount >").position, 20);
        assert_eq!(fault("  evnt.data.amount > 3").position, 3);
        assert!(fault("evnt.data.amount > 3").message.contains("did you mean `event`?"));
        assert_eq!(fault("event.data.from.matches('(')").position, 25);
        assert_eq!(fault("").message, "an expression must not be empty");
        assert!(read("event.data.tags.all(t, t != 'x')").is_ok());
    }

    #[test]
    fn expression_of_unbounded_cost_is_refused() {
        let refused = |text: &str, why: &str| {
            let fault = read(text).unwrap_err();
            assert!(fault.message.contains(why), "{fault}");
        };
        refused(&format!("'{}' == 'x'", "a".repeat(2000)), "at most 1024 bytes");
        refused(&format!("{}1{}", "(".repeat(40), ")".repeat(40)), "deep");
        refused("[1].all(a, [1].all(b, [1].all(c, true)))", "inside each other");
        refused("[1].all(a, true) && [1].all(a, true) && [1].all(a, true) && [1].all(a, true)", "comprehensions");
        refused("[1].map(a, [a] + [a])", "no limit");
        refused(&vec!["true"; 170].join("&&"), "too complex");
    }

    #[test]
    fn expression_is_taken_at_each_bound_and_refused_one_beyond_it() {
        let bytes = |count: usize| format!("'{}' == 'x'", "a".repeat(count - "'' == 'x'".len()));
        let brackets = |deep: usize| format!("{}true{}", "(".repeat(deep), ")".repeat(deep));
        let nested = |deep: usize| format!("{}true{}", "[1].all(a, ".repeat(deep), ")".repeat(deep));
        let beside = |count: usize| vec!["[1].all(a, true)"; count].join(" && ");
        // a sum of two parts has three
        let parts = |terms: usize| vec!["true"; terms].join("&&");
        for (largest, beyond, why) in [
            (bytes(guard::EXPRESSION_BYTES), bytes(guard::EXPRESSION_BYTES + 1), "at most 1024 bytes"),
            (brackets(guard::DEPTH), brackets(guard::DEPTH + 1), "brackets may be 32 deep at most"),
            (nested(guard::NESTED), nested(guard::NESTED + 1), "inside each other"),
            (beside(guard::COMPREHENSIONS), beside(guard::COMPREHENSIONS + 1), "comprehensions"),
            (format!("!{}", parts(guard::NODES / 2)), parts(guard::NODES / 2 + 1), "too complex"),
        ] {
            assert_eq!(read(&largest).map(drop), Ok(()), "{largest}");
            let fault = read(&beyond).unwrap_err();
            assert!(fault.message.contains(why), "{fault}");
        }
    }

    fn over(value: Value) -> Variables {
        Variables::new().with("value", &value)
    }

    fn refusal(text: &str, variables: &Variables) -> String {
        match read(text).unwrap().value(variables) {
            Err(ExpressionError::Failed(why)) => why,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn work_is_bounded_by_steps_and_lengths_before_it_is_done() {
        let text = "abc d".repeat(50_000);
        let long = over(json!({ "t": text, "l": vec![0; 200], "tags": vec!["a tag"; 1_000] }));
        let attack = "value.l.all(a, value.l.all(b, !value.t.matches('.*a.*b.*c.*d')))";
        let why = refusal(attack, &long);
        assert!(why.contains("a text of 250000 bytes is too long for `matches`, 40000 times"), "{why}");
        for (text, beyond) in [
            ("value.tags.exists(t, value.t.contains(t))", "`contains`, 1000 times"),
            ("value.tags.filter(t, value == value).size() > 0", "too large to be compared or copied, 1000 times"),
            ("value.tags.map(t, value)", "a value that it makes"),
            (["value.t"; 40].join(" + ").as_str(), "a value that it makes"),
        ] {
            assert!(refusal(text, &long).contains(beyond), "{}", refusal(text, &long));
        }
        for honest in [
            "value.t.matches('timeout after [0-9]+ms')",
            "value.t.contains('timeout')",
            "value.tags.exists(t, t == 'x' || t.startsWith('y') || t.matches('^z[0-9]*$'))",
            "value.tags.filter(t, t.size() > 100).size() > 0",
        ] {
            let read = read(honest).unwrap();
            assert_eq!(read.is_true(&long), Ok(false), "{honest}");
            assert!(read.cost(&long) <= MOST_STEPS);
        }
    }

    #[test]
    fn steps_are_affordable_up_to_their_bound() {
        let nested = read("value.all(a, value.all(b, a == b))").unwrap();
        let cost = |length: usize| nested.cost(&over(json!(vec![0; length])));
        let most = (1..).find(|length| cost(length + 1) > MOST_STEPS).unwrap();
        assert!((100..1_000).contains(&most), "{most}");
        assert_eq!(nested.is_true(&over(json!(vec![0; most]))), Ok(true));
        let why = refusal(nested.text(), &over(json!(vec![0; most + 1])));
        assert!(why.contains(&format!("a list of {} elements is too long", most + 1)), "{why}");
        // steps grow with both lengths, and with nothing that is not looked at
        assert!(cost(200) > 3 * cost(100));
        let beside = over(json!({ "l": vec![0; 100], "t": "x".repeat(100_000) }));
        let looks = read("value.l.all(a, value.l.all(b, a == b))").unwrap().cost(&beside);
        assert!(looks < 2 * cost(100), "{looks}");
    }

    #[test]
    fn made_values_and_given_ones_are_bounded() {
        let copies = |count: usize| vec!["value"; count].join(", ");
        let large = over(json!("x".repeat(1024 * 1024)));
        assert!(read(&format!("[{}].size()", copies(7))).unwrap().value(&large).is_ok());
        assert!(refusal(&format!("[{}].size()", copies(8)), &large).contains("at most 8388608"));
        let nodes = |count: u64| over(json!(vec![0; count as usize - 1]));
        assert_eq!(read("value.size() > 3").unwrap().is_true(&nodes(VALUE_NODES)), Ok(true));
        assert!(refusal("value.size() > 3", &nodes(VALUE_NODES + 1)).contains("200001 values, at most 200000"));
        let both = nodes(VALUE_NODES).with("event", &json!(1));
        assert!(refusal("value.size() > 3", &both).contains("200001 values"), "all variables together");
        let deep = |depth| over((0..depth).fold(json!(1), |inside, _| json!([inside])));
        assert_eq!(read("value.size() == 1").unwrap().is_true(&deep(extent::VALUE_DEPTH)), Ok(true));
        assert!(refusal("value.size() == 1", &deep(extent::VALUE_DEPTH + 1)).contains("deep"));
    }

    #[test]
    fn made_value_is_as_large_as_it_may_be_and_no_larger() {
        let twice = read("(value + value).size() > 0").unwrap();
        let made = |bytes: u64| twice.value(&over(json!("x".repeat(bytes as usize))));
        // what is made has some bytes beside its text
        let (mut most, mut beyond) = (cost::MADE_BYTES / 2 - 1_000, cost::MADE_BYTES / 2 + 1);
        while beyond - most > 1 {
            let middle = (most + beyond) / 2;
            *if made(middle).is_ok() { &mut most } else { &mut beyond } = middle;
        }
        assert!(2 * most <= cost::MADE_BYTES, "{most}");
        assert_eq!(made(most), Ok(json!(true)));
        assert!(made(beyond).unwrap_err().to_string().contains("at most 8388608"));
    }

    #[test]
    fn patterns_are_bounded_where_they_are_written_and_where_they_are_made() {
        let matches = |pattern: &str| read(&format!("value.matches('{pattern}')")).map(drop);
        let most = pattern::PATTERN_POSITIONS;
        assert_eq!(matches(&format!("[ab]{{{most}}}")), Ok(()));
        let beyond = matches(&format!("[ab]{{{}}}", most + 1)).unwrap_err();
        assert!(beyond.message.contains("1001 characters and classes"), "{beyond}");
        assert!(matches("(\\\\w{50}){50}").is_err(), "too large when it is compiled");
        let made = |pattern: String| {
            let variables = Variables::new().with("value", &json!("b")).with("event", &json!(pattern));
            read("value.matches(event)").unwrap().value(&variables)
        };
        let most = pattern::MADE_PATTERN_POSITIONS;
        assert_eq!(made(format!("a?[ab]{{0,{}}}", most - 1)), Ok(json!(true)));
        assert!(made(format!("a?[ab]{{0,{most}}}")).unwrap_err().to_string().contains("at most 64"));
        assert_eq!(made(format!("^b{}$", "|abcdefghi".repeat(25) + "|ab")), Ok(json!(true)));
        let bytes = |count: usize| format!("b{}", "|abcdefgh".repeat(count))[..count].to_owned();
        assert_eq!(made(bytes(pattern::MADE_PATTERN_BYTES)), Ok(json!(true)));
        let long = made(bytes(pattern::MADE_PATTERN_BYTES + 1)).unwrap_err().to_string();
        assert!(long.contains("at most 256 bytes"), "{long}");
    }

    #[test]
    fn parts_together_take_no_more_than_one_evaluation() {
        let once = "value.all(a, value.all(b, a == b))";
        let parts = read(once).unwrap().parts(&over(json!(vec![0; 10_000])));
        assert!(parts[0].value.clone().unwrap_err().contains("too much work"), "{parts:?}");
        // as long as one evaluation is just admitted, its parts together are not
        let nested = read(&format!("({once}) == true")).unwrap();
        let longest = (1..10_000).rev().map(|length| over(json!(vec![0; length])));
        let longest = longest.step_by(50).find(|values| nested.value(values).is_ok()).expect("a list that is admitted");
        let parts = nested.parts(&longest);
        assert!(parts.iter().any(|part| part.value == Ok(json!(true))), "{parts:?}");
        assert!(
            parts.iter().any(|part| part.value.clone().is_err_and(|why| why.contains("is not shown"))),
            "{parts:?}"
        );
    }

    #[test]
    fn arbitrary_expression_text_never_panics() {
        for text in
            ["!", "(", "a.b.c(", "'", "\"\\", "[", "{", "1 +", "?:", "a ? b", "..", "\u{0}", "🙂", "x\n\ny", "-", "in"]
        {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert!(read(&"-".repeat(1024)).is_err());
        assert!(read(&format!("true{}", "?true:true".repeat(100))).is_err());
        // what the parser folds may be taken, as long as it ends
        let folded = read(&format!("{}true", "!".repeat(1000))).map(|read| read.is_true(&variables()));
        assert!(matches!(folded, Err(_) | Ok(Ok(true))), "{folded:?}");
    }

    #[test]
    fn every_part_shows_its_value() {
        let parts = read("event.data.amount > 100 && size(event.data.tags) == 3").unwrap().parts(&variables());
        let shown: Vec<(&str, Value)> =
            parts.iter().map(|part| (part.text.as_str(), part.value.clone().unwrap_or_else(|e| json!(e)))).collect();
        assert_eq!(
            shown.iter().filter(|(text, _)| *text != "event" && *text != "event.data").cloned().collect::<Vec<_>>(),
            [
                ("event.data.amount > 100 && size(event.data.tags) == 3", json!(false)),
                ("event.data.amount > 100", json!(true)),
                ("event.data.amount", json!(120)),
                ("size(event.data.tags) == 3", json!(false)),
                ("size(event.data.tags)", json!(2)),
                ("event.data.tags", json!(["a", "b"])),
            ]
        );
    }
}
