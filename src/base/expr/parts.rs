//! The value of every part of an expression, for people who want to see why it says what it says.

use cel::common::ast::{Expr, IdedExpr};
use cel::{Context, Program};
use serde::Serialize;
use serde_json::Value;

use crate::base::expr::{ExpressionError, convert, failure};

/// A part of an expression, and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpressionPart {
    /// As it stands in the expression.
    pub text: String,
    /// Or why it has none.
    pub value: Result<Value, String>,
}

/// A part of an expression, and its value; or why it has none.
#[derive(Serialize, utoipa::ToSchema)]
struct ShownPart<'a> {
    #[schema(example = "value.price")]
    expression: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl utoipa::PartialSchema for ExpressionPart {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        ShownPart::schema()
    }
}

impl utoipa::ToSchema for ExpressionPart {
    fn name() -> std::borrow::Cow<'static, str> {
        "ExpressionPart".into()
    }
}

impl Serialize for ExpressionPart {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (value, error) = match &self.value {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error.as_str())),
        };
        ShownPart { expression: &self.text, value, error }.serialize(to)
    }
}

/// The whole and its parts, as far as they can be afforded; literals and what is inside of comprehensions are left out:
/// they have no value of their own.
pub fn of(
    text: &str,
    program: &Program,
    context: &Context<'_, '_>,
    afford: &mut dyn FnMut(&IdedExpr) -> Result<(), ExpressionError>,
) -> Vec<ExpressionPart> {
    let mut parts: Vec<ExpressionPart> = vec![];
    for (index, node) in nodes(program).into_iter().enumerate() {
        let text = if index == 0 { text.trim().to_owned() } else { written(text, program, node) };
        if parts.iter().any(|part| part.text == text) {
            continue;
        }
        let value = afford(node).and_then(|()| cel::Value::resolve(node, context).map_err(failure));
        let value = value.and_then(|value| convert::to_json(&value)).map_err(|error| error.to_string());
        parts.push(ExpressionPart { text, value });
    }
    parts
}

/// The nodes that have a value to show, the whole first.
pub fn nodes(program: &Program) -> Vec<&IdedExpr> {
    let mut nodes = vec![];
    collect(program.expression(), &mut nodes);
    nodes
}

/// The node of the part with this text, as [`of`] names it.
pub fn node<'a>(text: &str, program: &'a Program, part: &str) -> Option<&'a IdedExpr> {
    nodes(program).into_iter().find(|node| written(text, program, node) == part)
}

/// In the place of a value.
pub fn too_much() -> ExpressionError {
    ExpressionError::Failed("is not shown: all parts together take too much work over these values".into())
}

fn collect<'a>(node: &'a IdedExpr, into: &mut Vec<&'a IdedExpr>) {
    if !matches!(node.expr, Expr::Literal(_) | Expr::Unspecified) {
        into.push(node);
    }
    match &node.expr {
        Expr::Select(select) => collect(&select.operand, into),
        Expr::Call(call) => call.target.iter().map(|t| &**t).chain(&call.args).for_each(|each| collect(each, into)),
        Expr::List(list) => list.elements.iter().for_each(|each| collect(each, into)),
        Expr::Comprehension(comprehension) => collect(&comprehension.iter_range, into),
        _ => {}
    }
}

/// The text of a node: from its leftmost to its rightmost token, with the brackets that it opens.
fn written(text: &str, program: &Program, node: &IdedExpr) -> String {
    let (start, end) = span(program, node);
    let bytes = text.as_bytes();
    let mut end = (end + 1).min(text.len());
    // a token that is a word goes on to its end
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    while end < bytes.len() && end > 0 && word(bytes[end - 1]) && word(bytes[end]) {
        end += 1;
    }
    let mut open = 0_i64;
    let mut quote = None;
    let mut at = start;
    while at < bytes.len() && (at < end || open > 0) {
        match (quote, bytes[at]) {
            (Some(q), b) if b == q => quote = None,
            (Some(_), _) => {}
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, b'(' | b'[' | b'{') => open += 1,
            (None, b')' | b']' | b'}') if open > 0 => open -= 1,
            (None, b')' | b']' | b'}') => break,
            _ => {}
        }
        at += 1;
    }
    text.get(start..at.max(end.min(at))).unwrap_or(text).trim().to_owned()
}

fn span(program: &Program, node: &IdedExpr) -> (usize, usize) {
    let own = program.source_info().offset_for(node.id).map(|(a, b)| (a as usize, b as usize));
    let mut parts: Vec<(usize, usize)> = own.into_iter().collect();
    match &node.expr {
        Expr::Select(select) => {
            parts.push(span(program, &select.operand));
            if let Some((dot, _)) = own {
                parts.push((dot, dot + select.field.len()));
            }
        }
        Expr::Call(call) => {
            // a function's own place is its bracket
            let source = program.source_info().source.as_bytes();
            if let Some((bracket, _)) = own.filter(|(at, _)| call.target.is_none() && source.get(*at) == Some(&b'(')) {
                parts.push((bracket.saturating_sub(call.func_name.len()), bracket));
            }
            parts.extend(call.target.iter().map(|t| &**t).chain(&call.args).map(|each| span(program, each)));
        }
        Expr::List(list) => parts.extend(list.elements.iter().map(|each| span(program, each))),
        Expr::Comprehension(comprehension) => parts.push(span(program, &comprehension.iter_range)),
        _ => {}
    }
    let start = parts.iter().map(|(start, _)| *start).min().unwrap_or(0);
    let end = parts.iter().map(|(_, end)| *end).max().unwrap_or(0);
    (start, end)
}
