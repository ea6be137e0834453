//! `matches`: the regular expressions of an expression, compiled once and not at each evaluation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::extractors::This;
use cel::{Context, ExecutionError, Program};
use regex::{Regex, RegexBuilder};

use crate::expr::ExpressionFault;
use crate::expr::guard::position;

/// The largest compiled pattern, in bytes.
const PATTERN_BYTES: usize = 256 * 1024;
/// Patterns that are made by the expression itself, kept at most.
const KEPT: usize = 16;

/// The patterns of one expression; empty where it has none.
#[derive(Clone)]
pub struct Patterns(Option<Arc<Mutex<HashMap<String, Regex>>>>);

impl Patterns {
    /// Compiles those that are written out; one that is none is a fault.
    pub fn new(program: &Program) -> Result<Patterns, ExpressionFault> {
        if !program.references().has_function("matches") {
            return Ok(Patterns(None));
        }
        let mut compiled = HashMap::new();
        collect(program, program.expression(), &mut compiled)?;
        Ok(Patterns(Some(Arc::new(Mutex::new(compiled)))))
    }

    /// Makes `matches` known.
    pub fn add_to(&self, context: &mut Context<'_, '_>) {
        let Some(patterns) = self.0.clone() else { return };
        let matches = move |This(text): This<Arc<String>>, pattern: Arc<String>| {
            let mut kept = patterns.lock().expect("pattern lock");
            if let Some(regex) = kept.get(pattern.as_str()) {
                return Ok(regex.is_match(&text));
            }
            let regex = compile(&pattern).map_err(|why| ExecutionError::function_error("matches", why))?;
            let matched = regex.is_match(&text);
            if kept.len() < KEPT {
                kept.insert(pattern.to_string(), regex);
            }
            Ok(matched)
        };
        context.add_function("matches", matches).expect("the language has no `matches` of its own");
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "the pattern is too large".to_owned(),
        other => other.to_string().lines().last().unwrap_or("no regular expression").trim().to_owned(),
    })
}

fn collect(program: &Program, node: &IdedExpr, into: &mut HashMap<String, Regex>) -> Result<(), ExpressionFault> {
    match &node.expr {
        Expr::Call(call) => {
            call.target.as_deref().into_iter().chain(&call.args).try_for_each(|each| collect(program, each, into))?;
            if let ("matches", Some(last)) = (call.func_name.as_str(), call.args.last())
                && let Expr::Literal(LiteralValue::String(pattern)) = &last.expr
            {
                let pattern = pattern.inner();
                let regex = compile(pattern).map_err(|why| ExpressionFault {
                    position: position(program, last),
                    message: format!("invalid pattern: {why}"),
                })?;
                into.insert(pattern.to_owned(), regex);
            }
            Ok(())
        }
        Expr::Select(select) => collect(program, &select.operand, into),
        Expr::List(list) => list.elements.iter().try_for_each(|each| collect(program, each, into)),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                collect(program, &entry.key, into)?;
                collect(program, &entry.value, into)
            }
            EntryExpr::StructField(field) => collect(program, &field.value, into),
        }),
        Expr::Comprehension(c) => {
            let all = [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result];
            all.into_iter().try_for_each(|each| collect(program, each, into))
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => Ok(()),
    }
}
