//! `matches`: the regular expressions of an expression. The process keeps those compiled that were used last, whatever
//! expressions they are of: one expression may have hundreds of KiB of them, and an instance thousands of expressions.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::extractors::This;
use cel::{Context, ExecutionError, Program};
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use regex_syntax::hir::{Hir, HirKind};

use crate::base::collections::bounded_cache::{BoundedCache, CacheLimit};
use crate::base::expr::ExpressionFault;
use crate::base::expr::guard::position;
use crate::base::invalid::ValidationErrors;

/// The largest compiled pattern, in bytes.
const PATTERN_BYTES: usize = 256 * 1024;
/// The largest compiled patterns of one expression together, in bytes.
const TOGETHER_BYTES: usize = 1024 * 1024;
/// The largest compiled set of patterns, in bytes.
const SET_BYTES: usize = 4 * 1024 * 1024;
/// Most positions of a pattern at which a search may be at once: its classes, each counted as often as it may be
/// repeated, and of a written text as many as its beginnings that end alike. A search looks at each of them for each
/// byte.
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
/// Compiled patterns that the process keeps of those that are written out, and of those that come from data.
const KEPT_PATTERNS: usize = 256;

/// Patterns that are written out. The process has one of these: compiling is pure, and expressions of all tenants that
/// search for one pattern share it.
static WRITTEN: LazyLock<CompiledPatterns> = LazyLock::new(CompiledPatterns::default);
/// Patterns that come from data; they push out none that is written out.
static MADE: LazyLock<CompiledPatterns> = LazyLock::new(CompiledPatterns::default);

/// Compiled patterns that were used last.
struct CompiledPatterns(Mutex<BoundedCache<String, Regex>>);

impl Default for CompiledPatterns {
    fn default() -> CompiledPatterns {
        let limit = CacheLimit { entries: KEPT_PATTERNS, bytes: usize::MAX };
        CompiledPatterns(Mutex::new(BoundedCache::new(limit)))
    }
}

impl CompiledPatterns {
    /// The pattern, compiled now where it is not kept.
    fn get(&self, pattern: &str, compile: impl FnOnce() -> Result<Regex, String>) -> Result<Regex, String> {
        let pattern = pattern.to_owned();
        let kept = self.0.lock().expect("pattern lock").get(&pattern).cloned();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let compiled = compile()?;
        self.0.lock().expect("pattern lock").put(pattern, compiled.clone(), 0);
        Ok(compiled)
    }
}

/// The patterns that are written out in one expression, with their positions; empty where it searches for none.
#[derive(Clone)]
pub struct PatternCache(Option<Arc<HashMap<String, u64>>>);

impl PatternCache {
    /// Compiles those that are written out; one that is none is a fault.
    pub fn new(program: &Program) -> Result<PatternCache, ExpressionFault> {
        if !program.references().has_function("matches") {
            return Ok(PatternCache(None));
        }
        let mut positions = HashMap::new();
        for literal in literals(program.expression()) {
            let LiteralValue::String(pattern) = literal.1 else { continue };
            let pattern = pattern.inner();
            let fault = |why| ExpressionFault {
                position: position(program, literal.0),
                message: format!("invalid pattern: {why}"),
            };
            positions.insert(pattern.to_owned(), checked(pattern, PATTERN_POSITIONS).map_err(fault)?);
            WRITTEN.get(pattern, || compile(pattern, PATTERN_BYTES)).map_err(fault)?;
        }
        if positions.len() > 1 && RegexSetBuilder::new(positions.keys()).size_limit(TOGETHER_BYTES).build().is_err() {
            return Err(ExpressionFault {
                position: 1,
                message: format!("the patterns together take more than {TOGETHER_BYTES} bytes"),
            });
        }
        Ok(PatternCache(Some(Arc::new(positions))))
    }

    /// The positions of a pattern that is written out.
    pub fn positions(&self, pattern: &str) -> u64 {
        self.0.as_ref().and_then(|written| written.get(pattern).copied()).unwrap_or(PATTERN_POSITIONS)
    }

    /// Makes `matches` known.
    pub fn add_to(&self, context: &mut Context<'_, '_>) {
        let Some(written) = self.0.clone() else { return };
        let matches = move |This(text): This<Arc<String>>, pattern: Arc<String>| {
            let found = match written.contains_key(pattern.as_str()) {
                true => WRITTEN.get(&pattern, || compile(&pattern, PATTERN_BYTES)),
                false => MADE.get(&pattern, || pattern_of_data(&pattern)),
            };
            let regex = found.map_err(|why| ExecutionError::function_error("matches", why))?;
            Ok(regex.is_match(&text))
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

/// A set of patterns that are written out, each with its place; a text is searched for all of them at once. A text that
/// is none is a fault at its place, and left out.
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
            // an empty part is repeated, too
            positions(&repetition.sub).max(1).saturating_mul(u64::from(times.max(1)))
        }
    }
}

/// How many beginnings of a text can end at the same place: the longest chain of its borders (Knuth, Morris, Pratt
/// 1977).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::expr::Language;

    #[test]
    fn patterns_of_an_expression_are_bounded_together() {
        let searched = |patterns: usize| {
            let each = (0..patterns).map(|n| format!(r"value.matches('\\w{{5}}{n}')"));
            Language::default().read(&each.collect::<Vec<_>>().join("||"), &["value"]).map(drop)
        };
        assert!(compile(r"\w{5}0", PATTERN_BYTES).is_ok(), "each alone is small");
        assert_eq!(searched(2), Ok(()));
        let why = searched(30).unwrap_err().message;
        assert_eq!(why, format!("the patterns together take more than {TOGETHER_BYTES} bytes"));
    }

    #[test]
    fn compiled_patterns_are_kept_up_to_their_number_and_the_oldest_is_compiled_again() {
        let kept = CompiledPatterns::default();
        for n in 0..=KEPT_PATTERNS {
            assert!(kept.get(&format!("a{n}"), || compile("a", PATTERN_BYTES)).is_ok());
        }
        assert_eq!(kept.0.lock().unwrap().len(), KEPT_PATTERNS);
        let again = |pattern: &str| kept.get(pattern, || Err("compiled again".into())).map(drop);
        assert_eq!((again("a1"), again("a0")), (Ok(()), Err("compiled again".to_owned())));
    }
}
