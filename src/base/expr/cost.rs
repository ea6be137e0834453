//! The most steps that an evaluation takes, known before it begins.
//!
//! Each node of the expression is walked once with the extents of the values that it may see. A step is about a
//! nanosecond of the slowest way through the evaluator. The bound holds for every order of evaluation: nothing is
//! assumed to be cut short.

use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, MapExpr, operators};

use crate::base::expr::extent::Extent;
use crate::base::expr::pattern::{MADE_PATTERN_POSITIONS, PatternCache};
use crate::base::expr::zoned::{LOOKUP, OURS};
use crate::base::expr::{ExpressionError, Variables};

/// Most steps of one evaluation.
pub const MOST_STEPS: u64 = 50_000_000;
/// Most bytes of memory of one value that an expression makes.
pub const MADE_BYTES: u64 = 8 * 1024 * 1024;

/// Evaluating one node, one round of a comprehension beside its nodes, and copying one value.
const NODE: u64 = 80;
const ROUND: u64 = 150;
const COPY: u64 = 30;
/// Bytes that are copied or compared in one step.
const BYTES: u64 = 2;
/// One byte of a text at one position of a pattern.
const SEARCH: u64 = 10;
/// Compiling a pattern that is not written out.
const COMPILE: u64 = 1_000_000;
/// Longest text that a function makes of something that is none.
const SHOWN: u64 = 512;
/// Memory of a value without its texts.
const NODE_BYTES: u64 = 64;

/// The kind of work that takes the most steps, for the author who has to make it smaller.
#[derive(Debug, Clone, Copy)]
enum CostWork {
    Nodes,
    Rounds(u64),
    Text { function: &'static str, bytes: u64 },
    Value { bytes: u64 },
}

/// The steps of the expression, and what takes the most of them.
pub struct Cost {
    /// Steps that the evaluation takes at most.
    pub steps: u64,
    largest: (u64, CostWork, u64),
    made: u64,
}

impl Cost {
    /// The cost of a tree over these variables.
    pub fn of(node: &IdedExpr, variables: &Variables, patterns: &PatternCache) -> Cost {
        let cost = Cost { steps: 0, largest: (0, CostWork::Nodes, 1), made: 0 };
        let mut walk = CostWalk { variables, patterns, bound: Vec::new(), times: 1, cost };
        let value = walk.visit(node);
        // the value is taken out of the evaluator, and made JSON
        walk.copy(&value);
        walk.copy(&value);
        walk.cost
    }

    /// Refuses what takes too much, and says what is too large.
    pub fn check_budget(&self) -> Result<(), ExpressionError> {
        if self.made > MADE_BYTES {
            return Err(ExpressionError::Failed(format!(
                "a value that it makes may have {} bytes, at most {MADE_BYTES}",
                self.made
            )));
        }
        if self.steps <= MOST_STEPS {
            return Ok(());
        }
        let (_, work, times) = self.largest;
        let what = match work {
            CostWork::Nodes => "there are too many parts".to_owned(),
            CostWork::Rounds(rounds) => format!("a list of {rounds} elements is too long"),
            CostWork::Text { function, bytes } => format!("a text of {bytes} bytes is too long for `{function}`"),
            CostWork::Value { bytes } => format!("a value of {bytes} bytes is too large to be compared or copied"),
        };
        let times = if times > 1 { format!(", {times} times") } else { String::new() };
        Err(ExpressionError::Failed(format!(
            "takes too much work over these values: {what}{times} ({} steps, at most {MOST_STEPS})",
            self.steps
        )))
    }
}

struct CostWalk<'a> {
    variables: &'a Variables,
    patterns: &'a PatternCache,
    /// Variables of the comprehensions around this place.
    bound: Vec<(&'a str, Arc<Extent>)>,
    /// How often this place is reached.
    times: u64,
    cost: Cost,
}

impl<'a> CostWalk<'a> {
    fn spend(&mut self, steps: u64, work: CostWork) {
        let all = steps.saturating_mul(self.times);
        self.cost.steps = self.cost.steps.saturating_add(all);
        if all > self.cost.largest.0 {
            self.cost.largest = (all, work, self.times);
        }
    }

    fn copy(&mut self, value: &Extent) {
        let steps = value.nodes.saturating_mul(COPY).saturating_add(value.bytes / BYTES);
        self.spend(steps, CostWork::Value { bytes: memory(value) });
    }

    fn compare(&mut self, a: &Extent, b: &Extent) {
        let steps = a.nodes.min(b.nodes).saturating_mul(COPY).saturating_add(a.bytes.min(b.bytes) / BYTES);
        self.spend(steps, CostWork::Value { bytes: memory(a).min(memory(b)) });
    }

    /// A new value: it takes memory, and is copied into its place.
    fn allocate(&mut self, value: Extent) -> Arc<Extent> {
        self.cost.made = self.cost.made.max(memory(&value));
        self.copy(&value);
        Arc::new(value)
    }

    fn visit(&mut self, node: &'a IdedExpr) -> Arc<Extent> {
        self.spend(NODE, CostWork::Nodes);
        match &node.expr {
            Expr::Unspecified | Expr::Struct(_) => Arc::new(Extent::plain()),
            Expr::Literal(literal) => Arc::new(match literal {
                LiteralValue::String(text) => Extent::text(text.inner().len() as u64),
                LiteralValue::Bytes(bytes) => Extent::text(bytes.inner().len() as u64),
                _ => Extent::plain(),
            }),
            Expr::Ident(name) => self.named(name),
            Expr::Select(select) => {
                let operand = self.visit(&select.operand);
                if select.test { Arc::new(Extent::plain()) } else { operand.member(&select.field) }
            }
            Expr::List(list) => {
                let elements: Vec<Arc<Extent>> = list.elements.iter().map(|element| self.visit(element)).collect();
                self.allocate(Extent::list(&elements))
            }
            Expr::Map(map) => self.map(map),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn named(&self, name: &str) -> Arc<Extent> {
        let bound = self.bound.iter().rev().find(|(bound, _)| *bound == name).map(|(_, extent)| Arc::clone(extent));
        bound.or_else(|| self.variables.extent(name)).unwrap_or_else(|| Arc::new(Extent::plain()))
    }

    fn map(&mut self, map: &'a MapExpr) -> Arc<Extent> {
        let (mut members, mut keys) = (Vec::new(), Vec::new());
        for entry in &map.entries {
            match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    keys.push(self.visit(&entry.key));
                    members.push((literal_text(&entry.key), self.visit(&entry.value)));
                }
                EntryExpr::StructField(field) => members.push((None, self.visit(&field.value))),
            }
        }
        self.allocate(Extent::object(&members, &keys))
    }

    fn call(&mut self, call: &'a CallExpr) -> Arc<Extent> {
        let parts: Vec<Arc<Extent>> =
            call.target.as_deref().into_iter().chain(&call.args).map(|part| self.visit(part)).collect();
        let plain = || Arc::new(Extent::plain());
        match (call.func_name.as_str(), parts.as_slice()) {
            (operators::CONDITIONAL, [_, a, b]) => Extent::union(a, b),
            (operators::LOGICAL_AND | operators::LOGICAL_OR, _) => plain(),
            (operators::LOGICAL_NOT | operators::NOT_STRICTLY_FALSE | operators::NEGATE, _) => plain(),
            (operators::INDEX, [of, index]) => {
                self.compare(of, index);
                match call.args.last().and_then(literal_text) {
                    Some(name) => of.member(name),
                    None => of.any(),
                }
            }
            (operators::ADD, _) => self.allocate(Extent::concat(&parts)),
            (operators::IN, [wanted, of]) => {
                let outside = self.times;
                self.times = outside.saturating_mul(of.items.max(1));
                self.compare(wanted, &of.any());
                self.spend(COPY, CostWork::Rounds(of.items));
                self.times = outside;
                plain()
            }
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS,
                [a, b],
            ) => {
                self.compare(a, b);
                plain()
            }
            ("matches", [text, pattern]) => {
                self.matches(call, text, pattern);
                plain()
            }
            ("contains", [text, part]) => self.scan("contains", text, part),
            ("startsWith", [text, part]) => self.scan("startsWith", text, part),
            ("endsWith", [text, part]) => self.scan("endsWith", text, part),
            ("size", [of]) => self.scan("size", of, &Extent::plain()),
            (name, [of, zone]) if name.starts_with(OURS) => {
                self.copy(of);
                self.copy(zone);
                self.spend(LOOKUP, CostWork::Nodes);
                plain()
            }
            (name, _) if is_plain(name) => {
                parts.iter().for_each(|part| self.copy(part));
                plain()
            }
            _ => self.function(&parts),
        }
    }

    /// A search in a text without a pattern: linear in both.
    fn scan(&mut self, function: &'static str, text: &Extent, part: &Extent) -> Arc<Extent> {
        let bytes = text.text.saturating_add(part.text);
        self.spend(bytes.saturating_mul(2), CostWork::Text { function, bytes: text.text });
        self.copy(&Extent::text(bytes));
        Arc::new(Extent::plain())
    }

    fn matches(&mut self, call: &CallExpr, text: &Extent, pattern: &Extent) {
        let written = call.args.last().and_then(literal_text);
        let positions = written.map_or(MADE_PATTERN_POSITIONS, |written| self.patterns.positions(written));
        if written.is_none() {
            self.spend(COMPILE, CostWork::Text { function: "matches", bytes: pattern.text });
        }
        self.copy(&Extent::text(text.text.saturating_add(pattern.text)));
        let steps = text.text.saturating_mul(positions).saturating_mul(SEARCH);
        self.spend(steps, CostWork::Text { function: "matches", bytes: text.text });
    }

    /// Any other function: it goes through all that it is given, and gives no more than that.
    fn function(&mut self, parts: &[Arc<Extent>]) -> Arc<Extent> {
        for part in parts {
            self.copy(part);
        }
        let shown = Arc::new(Extent::text(SHOWN));
        let all: Vec<Arc<Extent>> = parts.iter().cloned().chain([shown]).collect();
        self.allocate(Extent::concat(&all))
    }

    fn comprehension(&mut self, comprehension: &'a ComprehensionExpr) -> Arc<Extent> {
        let range = self.visit(&comprehension.iter_range);
        let begun = self.visit(&comprehension.accu_init);
        let (element, rounds, outside) = (range.any(), range.items, self.times);
        let bound = self.bound.len();
        self.bound.push((&comprehension.iter_var, Arc::clone(&element)));
        self.bound.extend(comprehension.iter_var2.as_deref().map(|name| (name, Arc::clone(&element))));
        self.bound.push((&comprehension.accu_var, Arc::clone(&begun)));
        self.times = outside.saturating_mul(rounds);
        self.spend(ROUND, CostWork::Rounds(rounds));
        self.copy(&element);
        self.visit(&comprehension.loop_cond);
        let stepped = self.visit(&comprehension.loop_step);
        self.times = outside;
        self.bound.pop();
        let grown = begun.after_steps(&stepped, rounds);
        let grown = self.allocate(grown);
        self.bound.push((&comprehension.accu_var, grown));
        let result = self.visit(&comprehension.result);
        self.bound.truncate(bound);
        self.copy(&result);
        result
    }
}

/// Whether a function gives a number, an instant or a length of time.
fn is_plain(name: &str) -> bool {
    const NAMES: [&str; 10] = [
        operators::SUBSTRACT,
        operators::MULTIPLY,
        operators::DIVIDE,
        operators::MODULO,
        "int",
        "uint",
        "double",
        "bool",
        "timestamp",
        "duration",
    ];
    NAMES.contains(&name) || name.starts_with("get")
}

fn literal_text(node: &IdedExpr) -> Option<&str> {
    match &node.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

fn memory(value: &Extent) -> u64 {
    value.nodes.saturating_mul(NODE_BYTES).saturating_add(value.bytes)
}
