//! Limits that keep an expression small: on its text before it is parsed, and on its tree before it is kept.

use cel::Program;
use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::parser::ParseErrors;

use crate::base::expr::ExpressionFault;
use crate::base::invalid::did_you_mean;

/// Longest text, in bytes.
pub const EXPRESSION_BYTES: usize = 1024;
/// Deepest brackets, and deepest tree.
pub const DEPTH: usize = 32;
/// Most nodes of the tree.
pub const NODES: usize = 300;
/// Comprehensions (`all`, `exists`, `map`, `filter`, …) inside each other, and in all.
pub const NESTED: usize = 2;
/// Most comprehensions of one expression.
pub const COMPREHENSIONS: usize = 3;

/// Refuses texts that are too long or too deep for the parser.
pub fn before_parsing(text: &str) -> Result<(), ExpressionFault> {
    let fault = |position, message: String| Err(ExpressionFault { position, message });
    if text.trim().is_empty() {
        return fault(1, "an expression must not be empty".into());
    }
    if text.len() > EXPRESSION_BYTES {
        return fault(1, format!("an expression has at most {EXPRESSION_BYTES} bytes, this one {}", text.len()));
    }
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (index, c) in text.chars().enumerate() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            return fault(index + 1, format!("brackets may be {DEPTH} deep at most"));
        }
    }
    Ok(())
}

/// The first thing that the parser did not understand.
pub fn syntax_fault(text: &str, errors: &ParseErrors) -> ExpressionFault {
    let Some(first) = errors.errors.first() else {
        return ExpressionFault { position: 1, message: "can't be read as a CEL expression".into() };
    };
    let (line, column) = (first.pos.0.max(1) as usize, first.pos.1.max(1) as usize);
    let before: usize = text.split_inclusive('\n').take(line - 1).map(|line| line.chars().count()).sum();
    let message = first.msg.lines().next().unwrap_or("can't be read").trim();
    ExpressionFault { position: (before + column).min(text.chars().count() + 1), message: message.to_owned() }
}

/// Judges a parsed expression: its size, its comprehensions, and the variables that it names.
pub fn judge(program: &Program, variables: &[&str]) -> Result<(), ExpressionFault> {
    let mut judge = Judge { program, variables, bound: Vec::new(), nodes: 0, comprehensions: 0 };
    judge.walk(program.expression(), 0, 0)
}

struct Judge<'a> {
    program: &'a Program,
    variables: &'a [&'a str],
    /// Names that comprehensions around here have bound.
    bound: Vec<&'a str>,
    nodes: usize,
    comprehensions: usize,
}

impl<'a> Judge<'a> {
    fn fault(&self, node: &IdedExpr, message: impl Into<String>) -> ExpressionFault {
        ExpressionFault { position: position(self.program, node), message: message.into() }
    }

    /// `nested`: how many comprehensions are around this node.
    fn walk(&mut self, node: &'a IdedExpr, depth: usize, nested: usize) -> Result<(), ExpressionFault> {
        self.nodes += 1;
        if self.nodes > NODES || depth > 2 * DEPTH {
            return Err(self.fault(node, "the expression is too complex; split it up"));
        }
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.named(node, name),
            Expr::Select(select) => self.walk(&select.operand, depth + 1, nested),
            Expr::List(list) => list.elements.iter().try_for_each(|each| self.walk(each, depth + 1, nested)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.walk(&entry.key, depth + 1, nested)?;
                    self.walk(&entry.value, depth + 1, nested)
                }
                EntryExpr::StructField(field) => self.walk(&field.value, depth + 1, nested),
            }),
            Expr::Struct(_) => Err(self.fault(node, "messages can't be made here; write a map, {\"key\": value}")),
            Expr::Call(call) => {
                if nested > 0
                    && call.func_name == cel::common::ast::operators::ADD
                    && !is_macro_step(self.program, node)
                {
                    return Err(
                        self.fault(node, "`+` can't be used inside a comprehension: what grows there has no limit")
                    );
                }
                if let Some(target) = &call.target {
                    self.walk(target, depth + 1, nested)?;
                }
                call.args.iter().try_for_each(|argument| self.walk(argument, depth + 1, nested))
            }
            Expr::Comprehension(comprehension) => {
                self.comprehensions += 1;
                if nested + 1 > NESTED || self.comprehensions > COMPREHENSIONS {
                    let message =
                        format!("at most {COMPREHENSIONS} comprehensions, and {NESTED} of them inside each other");
                    return Err(self.fault(node, message));
                }
                self.walk(&comprehension.iter_range, depth + 1, nested)?;
                self.walk(&comprehension.accu_init, depth + 1, nested)?;
                let outside = self.bound.len();
                self.bound.push(&comprehension.iter_var);
                self.bound.extend(comprehension.iter_var2.as_deref());
                self.bound.push(&comprehension.accu_var);
                self.walk(&comprehension.loop_cond, depth + 1, nested + 1)?;
                self.walk(&comprehension.loop_step, depth + 1, nested + 1)?;
                self.walk(&comprehension.result, depth + 1, nested + 1)?;
                self.bound.truncate(outside);
                Ok(())
            }
        }
    }

    fn named(&self, node: &IdedExpr, name: &str) -> Result<(), ExpressionFault> {
        // names of types, as in `type(x) == int`
        const TYPES: [&str; 9] = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type"];
        if self.bound.contains(&name) || self.variables.contains(&name) || TYPES.contains(&name) {
            return Ok(());
        }
        let hint = did_you_mean(name, self.variables.iter().copied());
        let known = self.variables.join("`, `");
        Err(self.fault(node, format!("unknown name `{name}`{hint}; there are `{known}`")))
    }
}

/// Whether a node was put there by a macro, not by the writer: `map` and `filter` collect with `+`.
fn is_macro_step(program: &Program, node: &IdedExpr) -> bool {
    let written = program.source_info().offset_for(node.id).and_then(|(start, _)| {
        let source = &program.source_info().source;
        source.get(start as usize..).and_then(|rest| rest.chars().next())
    });
    written != Some('+')
}

/// Where a node begins, in characters from 1.
pub fn position(program: &Program, node: &IdedExpr) -> usize {
    let source = &program.source_info().source;
    let start = program.source_info().offset_for(node.id).map_or(0, |(start, _)| start as usize);
    source.get(..start).map_or(start, |before| before.chars().count()) + 1
}
