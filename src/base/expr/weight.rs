//! The memory of a compiled expression: its tree as it lies in memory, its texts, and the places of its nodes.

use cel::Program;
use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue};

/// The place of one node in the text: its part of the map of places, whose pages are half full.
const PLACE: usize = 48;
/// Copies of the text: the expression's, the program's, and those of its patterns.
const TEXTS: usize = 3;
/// The expression, its program and what keeps it, without all that they point to.
const BESIDE: usize = 512;
/// The least that an allocation takes, and its steps.
const SMALLEST: usize = 32;
const STEP: usize = 16;

/// Bytes of memory that an expression with this text and program takes.
pub fn of(text: &str, program: &Program) -> usize {
    let mut walk = WeightWalk { bytes: 0, last: 0 };
    walk.visit(program.expression());
    let places = usize::try_from(walk.last).unwrap_or(usize::MAX).saturating_mul(PLACE);
    (BESIDE + TEXTS * allocated(text.len()) + walk.bytes).saturating_add(places)
}

struct WeightWalk {
    /// Of what the nodes point to.
    bytes: usize,
    /// The largest number of a node: they are numbered one after the other.
    last: u64,
}

impl WeightWalk {
    /// A node, whose own bytes are counted where it lies.
    fn visit(&mut self, node: &IdedExpr) {
        self.last = self.last.max(node.id);
        match &node.expr {
            Expr::Unspecified | Expr::Struct(_) => {}
            Expr::Ident(name) => self.allocate(name.capacity()),
            Expr::Literal(LiteralValue::String(text)) => self.allocate(text.inner().len()),
            Expr::Literal(_) => {}
            Expr::Select(select) => {
                self.allocate(select.field.capacity());
                self.visit_boxed(&select.operand);
            }
            Expr::Call(call) => {
                self.allocate(call.func_name.capacity());
                call.target.iter().for_each(|target| self.visit_boxed(target));
                self.visit_all(&call.args, call.args.capacity());
            }
            Expr::List(list) => self.visit_all(&list.elements, list.elements.capacity()),
            Expr::Map(map) => {
                self.allocate(map.entries.capacity() * size_of::<IdedEntryExpr>());
                map.entries.iter().for_each(|entry| self.visit_entry(entry));
            }
            Expr::Comprehension(comprehension) => self.visit_comprehension(comprehension),
        }
    }

    fn visit_boxed(&mut self, node: &IdedExpr) {
        self.allocate(size_of::<IdedExpr>());
        self.visit(node);
    }

    fn visit_all(&mut self, nodes: &[IdedExpr], capacity: usize) {
        self.allocate(capacity * size_of::<IdedExpr>());
        nodes.iter().for_each(|node| self.visit(node));
    }

    fn visit_entry(&mut self, entry: &IdedEntryExpr) {
        self.last = self.last.max(entry.id);
        match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                self.visit(&entry.key);
                self.visit(&entry.value);
            }
            EntryExpr::StructField(field) => {
                self.allocate(field.field.capacity());
                self.visit(&field.value);
            }
        }
    }

    fn visit_comprehension(&mut self, comprehension: &ComprehensionExpr) {
        self.allocate(size_of::<ComprehensionExpr>());
        let names = [&comprehension.iter_var, &comprehension.accu_var];
        names.into_iter().chain(&comprehension.iter_var2).for_each(|name| self.allocate(name.capacity()));
        let ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, .. } = comprehension;
        [iter_range, accu_init, loop_cond, loop_step, result].into_iter().for_each(|node| self.visit(node));
    }

    fn allocate(&mut self, bytes: usize) {
        self.bytes += allocated(bytes);
    }
}

/// The memory of one allocation.
fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        bytes => (bytes + STEP / 2).next_multiple_of(STEP).max(SMALLEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::expr::guard::{EXPRESSION_BYTES, NODES};
    use crate::base::expr::{Expression, Language};

    fn weight(text: &str) -> usize {
        let Expression(compiled) = Language::default().read(text, &["event"]).expect(text);
        of(text, &compiled.program)
    }

    #[test]
    fn weight_of_an_expression_has_each_of_its_nodes_in_it() {
        // each has five nodes, and the last `||` is not there
        let text = |parts: usize| vec!["event.a==1"; parts].join("||");
        let (few, many) = (weight(&text(10)), weight(&text(NODES / 5)));
        assert!(text(NODES / 5).len() <= EXPRESSION_BYTES);
        let (least, most) = (size_of::<IdedExpr>() + PLACE, 4 * size_of::<IdedExpr>() + PLACE);
        let (nodes, each) = (NODES - 50, NODES / 5 * 5 - 1);
        assert!(many - few >= nodes * least, "{few} {many}");
        assert!(many <= BESIDE + TEXTS * 2 * EXPRESSION_BYTES + each * most, "{many}: some tens of KiB");
    }

    #[test]
    fn texts_lists_maps_and_comprehensions_weigh_something() {
        let plain = weight("event.a");
        for more in ["event.a.all(each, each)", "[event.a]", "{'a': event.a}", "event.a + 'text'", "size(event.a)"] {
            assert!(weight(more) > plain + size_of::<IdedExpr>(), "{more}");
        }
    }
}
