//! Which members of a variable an expression names, so that a name that can't be there is found before it is used.

use cel::Program;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};

use crate::base::expr::guard::position;

/// A member of a variable that an expression names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMember {
    /// Name of the member.
    pub name: String,
    /// In characters from 1.
    pub position: usize,
    /// A member of it is named, too.
    pub has_members: bool,
}

/// The members of `variable`: `variable.member` and `variable['member']`.
pub fn of(program: &Program, variable: &str) -> Vec<NamedMember> {
    let mut found = Vec::new();
    walk(program, program.expression(), variable, &mut found);
    found
}

fn walk(program: &Program, node: &IdedExpr, variable: &str, found: &mut Vec<NamedMember>) {
    let is_variable = |node: &IdedExpr| matches!(&node.expr, Expr::Ident(name) if name == variable);
    match &node.expr {
        Expr::Select(select) if is_variable(&select.operand) => {
            let position = position(program, &select.operand);
            found.push(NamedMember { name: select.field.clone(), position, has_members: false });
        }
        Expr::Select(select) => {
            let known = found.len();
            walk(program, &select.operand, variable, found);
            // the operand is a member itself
            if let (Some(member), Expr::Select(inner)) = (found.get_mut(known), &select.operand.expr) {
                member.has_members |= matches!(&inner.operand.expr, Expr::Ident(name) if name == variable);
            }
        }
        Expr::Call(call) => {
            if let [of, index] = call.args.as_slice()
                && call.func_name == cel::common::ast::operators::INDEX
                && is_variable(of)
                && let Expr::Literal(LiteralValue::String(member)) = &index.expr
            {
                let position = position(program, of);
                found.push(NamedMember { name: member.inner().to_owned(), position, has_members: false });
                return;
            }
            call.target
                .iter()
                .map(|target| &**target)
                .chain(&call.args)
                .for_each(|each| walk(program, each, variable, found));
        }
        Expr::List(list) => list.elements.iter().for_each(|each| walk(program, each, variable, found)),
        Expr::Map(map) => map.entries.iter().for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                walk(program, &entry.key, variable, found);
                walk(program, &entry.value, variable, found);
            }
            EntryExpr::StructField(field) => walk(program, &field.value, variable, found),
        }),
        Expr::Comprehension(comprehension) => {
            let parts = [
                &comprehension.iter_range,
                &comprehension.accu_init,
                &comprehension.loop_cond,
                &comprehension.loop_step,
                &comprehension.result,
            ];
            parts.into_iter().for_each(|each| walk(program, each, variable, found));
        }
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::expr::Language;

    #[test]
    fn members_are_found_wherever_they_stand() {
        let read = |text: &str| Language::default().read(text, &["steps", "event"]).unwrap().members_of("steps");
        let names = |text: &str| read(text).into_iter().map(|member| member.name).collect::<Vec<_>>();
        assert_eq!(
            read("event.x == 1 && steps.order.body.id > 3"),
            [NamedMember { name: "order".into(), position: 17, has_members: true }]
        );
        assert!(!read("steps.order == 1")[0].has_members);
        assert_eq!(
            names("[1].all(n, n == steps.a) && {'k': steps['b']}.size() == 1 && has(steps.c.d)"),
            ["a", "b", "c"]
        );
        assert_eq!(names("event.steps.a == 1 && size(steps) > 0"), Vec::<String>::new());
    }
}
