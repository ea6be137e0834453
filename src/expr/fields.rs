//! Which members of a variable an expression names, so that a name that can't be there is found before it is used.

use cel::Program;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};

use crate::expr::guard::position;

/// The members of `variable`, each with its place in characters from 1: `variable.member` and `variable['member']`.
pub fn of(program: &Program, variable: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    walk(program, program.expression(), variable, &mut found);
    found
}

fn walk(program: &Program, node: &IdedExpr, variable: &str, found: &mut Vec<(String, usize)>) {
    let is_variable = |node: &IdedExpr| matches!(&node.expr, Expr::Ident(name) if name == variable);
    let mut into = |node: &IdedExpr| walk(program, node, variable, found);
    match &node.expr {
        Expr::Select(select) if is_variable(&select.operand) => {
            found.push((select.field.clone(), position(program, &select.operand)));
        }
        Expr::Select(select) => into(&select.operand),
        Expr::Call(call) => {
            if let [of, index] = call.args.as_slice()
                && call.func_name == cel::common::ast::operators::INDEX
                && is_variable(of)
                && let Expr::Literal(LiteralValue::String(member)) = &index.expr
            {
                found.push((member.to_string(), position(program, of)));
                return;
            }
            call.target.iter().map(|target| &**target).chain(&call.args).for_each(into);
        }
        Expr::List(list) => list.elements.iter().for_each(into),
        Expr::Map(map) => map.entries.iter().for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                into(&entry.key);
                into(&entry.value);
            }
            EntryExpr::StructField(field) => into(&field.value),
        }),
        Expr::Comprehension(comprehension) => {
            let parts = [
                &comprehension.iter_range,
                &comprehension.accu_init,
                &comprehension.loop_cond,
                &comprehension.loop_step,
                &comprehension.result,
            ];
            parts.into_iter().for_each(into);
        }
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::expr::Language;

    #[test]
    fn members_are_found_wherever_they_stand() {
        let read = |text: &str| Language::default().read(text, &["steps", "event"]).unwrap().members_of("steps");
        let names = |text: &str| read(text).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(read("event.x == 1 && steps.order.body.id > 3"), [("order".to_owned(), 17)]);
        assert_eq!(
            names("[1].all(n, n == steps.a) && {'k': steps['b']}.size() == 1 && has(steps.c.d)"),
            ["a", "b", "c"]
        );
        assert_eq!(names("event.steps.a == 1 && size(steps) > 0"), Vec::<String>::new());
    }
}
