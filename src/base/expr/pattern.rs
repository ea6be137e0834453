//! `matches`: the regular expressions of an expression, compiled once and not at each evaluation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::extractors::This;
use cel::{Context, ExecutionError, Program};
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use regex_syntax::hir::{Hir, HirKind};

use crate::base::expr::ExpressionFault;
use crate::base::expr::guard::position;
use crate::base::invalid::ValidationErrors;

/// The largest compiled pattern, in bytes.
const PATTERN_BYTES: usize = 256 * 1024;
/// The largest compiled set of patterns, in bytes.
const SET_BYTES: usize = 4 * 1024 * 1024;
/// Most positions of a pattern at which a search may be at once: its classes, each counted as often as it may be
/// repeated, and of a written text as many as its beginnings that end alike. A search looks at each of them for each byte.
pub const PATTERN_POSITIONS: u64 = 1_000;
/// Longest pattern that comes from data, in bytes, and its most positions.
pub const MADE_PATTERN_BYTES: usize = 256;
/// Most characters and classes of a pattern that comes from data, repetitions counted.
pub const MADE_PATTERN_POSITIONS: u64 = 64;
/// The largest compiled pattern of those, in bytes.
const MADE_PATTERN_SIZE: usize = 64 * 1024;
/// The memory of one search. Where it is too little for a pattern, each position costs alike: a larger one would be
/// filled over and over before that is seen.
const CACHE_BYTES: usize = 256 * 1024;
/// Patterns that are made by the expression itself, kept at most.
const KEPT: usize = 16;

/// The patterns of one expression; empty where it has none.
#[derive(Clone)]
pub struct PatternCache(Option<Arc<CachedPatterns>>);

struct CachedPatterns {
    compiled: Mutex<HashMap<String, Regex>>,
    /// Of the patterns that are written out.
    positions: HashMap<String, u64>,
}

impl PatternCache {
    /// Compiles those that are written out; one that is none is a fault.
    pub fn new(program: &Program) -> Result<PatternCache, ExpressionFault> {
        if !program.references().has_function("matches") {
            return Ok(PatternCache(None));
        }
        let (mut compiled, mut positions) = (HashMap::new(), HashMap::new());
        for literal in literals(program.expression()) {
            let LiteralValue::String(pattern) = literal.1 else { continue };
            let pattern = pattern.inner();
            let fault = |why| ExpressionFault {
                position: position(program, literal.0),
                message: format!("invalid pattern: {why}"),
            };
            positions.insert(pattern.to_owned(), checked(pattern, PATTERN_POSITIONS).map_err(fault)?);
            compiled.insert(pattern.to_owned(), compile(pattern, PATTERN_BYTES).map_err(fault)?);
        }
        Ok(PatternCache(Some(Arc::new(CachedPatterns { compiled: Mutex::new(compiled), positions }))))
    }

    /// The positions of a pattern that is written out.
    pub fn positions(&self, pattern: &str) -> u64 {
        self.0.as_ref().and_then(|kept| kept.positions.get(pattern).copied()).unwrap_or(PATTERN_POSITIONS)
    }

    /// Makes `matches` known.
    pub fn add_to(&self, context: &mut Context<'_, '_>) {
        let Some(patterns) = self.0.clone() else { return };
        let matches = move |This(text): This<Arc<String>>, pattern: Arc<String>| {
            let kept = patterns.compiled.lock().expect("pattern lock").get(pattern.as_str()).cloned();
            if let Some(regex) = kept {
                return Ok(regex.is_match(&text));
            }
            let regex = pattern_of_data(&pattern).map_err(|why| ExecutionError::function_error("matches", why))?;
            let matched = regex.is_match(&text);
            let mut compiled = patterns.compiled.lock().expect("pattern lock");
            if compiled.len() < patterns.positions.len() + KEPT {
                compiled.insert(pattern.to_string(), regex);
            }
            Ok(matched)
        };
        context.add_function("matches", matches).expect("the language has no `matches` of its own");
    }
}

/// A pattern that comes from data: its length and its size are bounded.
///
/// # Errors
/// It is none, or too large; a sentence says why.
pub fn pattern_of_data(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MADE_PATTERN_BYTES {
        return Err(format!("a pattern that is not written out has at most {MADE_PATTERN_BYTES} bytes"));
    }
    checked(pattern, MADE_PATTERN_POSITIONS)?;
    compile(pattern, MADE_PATTERN_SIZE)
}

/// A set of patterns that are written out, each with its place; a text is searched for all of them at once. What is none
/// is a fault at its place, and left out.
pub fn pattern_set(written: &[(String, String)], faults: &mut ValidationErrors) -> RegexSet {
    let mut sound = Vec::with_capacity(written.len());
    for (place, pattern) in written {
        match checked(pattern, PATTERN_POSITIONS).and_then(|_| compile(pattern, PATTERN_BYTES)) {
            Ok(_) => sound.push(pattern),
            Err(why) => faults.add(place.clone(), format!("invalid pattern: {why}")),
        }
    }
    let set = RegexSetBuilder::new(sound).size_limit(SET_BYTES).dfa_size_limit(CACHE_BYTES).build();
    set.unwrap_or_else(|_| {
        faults.add("/gate", "the patterns together are too large");
        RegexSet::empty()
    })
}

/// The positions of a pattern that has at most so many.
fn checked(pattern: &str, most: u64) -> Result<u64, String> {
    let read = regex_syntax::parse(pattern).map_err(|error| last_line(&error.to_string()))?;
    match positions(&read) {
        few if few <= most => Ok(few.max(1)),
        many => Err(format!("it has {many} characters and classes, repetitions counted; at most {most}")),
    }
}

fn positions(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty => 0,
        HirKind::Literal(literal) => overlaps(&literal.0),
        HirKind::Class(_) | HirKind::Look(_) => 1,
        HirKind::Capture(capture) => positions(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(0, |sum: u64, part| sum.saturating_add(positions(part)))
        }
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.saturating_add(1));
            // what is empty is repeated, too
            positions(&repetition.sub).max(1).saturating_mul(u64::from(times.max(1)))
        }
    }
}

/// How many beginnings of a text can end at the same place: the longest chain of its borders (Knuth, Morris, Pratt 1977).
fn overlaps(text: &[u8]) -> u64 {
    let mut borders = vec![0; text.len()];
    let mut depths = vec![1_u64; text.len() + 1];
    depths[0] = 0;
    let mut border = 0;
    for at in 1..text.len() {
        while border > 0 && text[at] != text[border] {
            border = borders[border - 1];
        }
        border += usize::from(text[at] == text[border]);
        borders[at] = border;
        depths[at + 1] = depths[border] + 1;
    }
    depths.into_iter().max().unwrap_or(0)
}

fn compile(pattern: &str, bytes: usize) -> Result<Regex, String> {
    RegexBuilder::new(pattern).size_limit(bytes).dfa_size_limit(CACHE_BYTES).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "the pattern is too large".to_owned(),
        other => last_line(&other.to_string()),
    })
}

fn last_line(message: &str) -> String {
    message.lines().last().unwrap_or("no regular expression").trim().to_owned()
}

/// The literals that stand as the pattern of a `matches`, each with its node.
fn literals(node: &IdedExpr) -> Vec<(&IdedExpr, &LiteralValue)> {
    let mut found = Vec::new();
    collect(node, &mut found);
    found
}

fn collect<'a>(node: &'a IdedExpr, into: &mut Vec<(&'a IdedExpr, &'a LiteralValue)>) {
    match &node.expr {
        Expr::Call(call) => {
            call.target.as_deref().into_iter().chain(&call.args).for_each(|each| collect(each, into));
            if let ("matches", Some(last)) = (call.func_name.as_str(), call.args.last())
                && let Expr::Literal(pattern) = &last.expr
            {
                into.push((last, pattern));
            }
        }
        Expr::Select(select) => collect(&select.operand, into),
        Expr::List(list) => list.elements.iter().for_each(|each| collect(each, into)),
        Expr::Map(map) => map.entries.iter().for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                collect(&entry.key, into);
                collect(&entry.value, into);
            }
            EntryExpr::StructField(field) => collect(&field.value, into),
        }),
        Expr::Comprehension(c) => {
            let all = [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result];
            all.into_iter().for_each(|each| collect(each, into));
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {}
    }
}
