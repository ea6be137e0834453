//! Compiled expressions of tenants that were used last: a tree takes some fifty times the room of its text, so the many
//! expressions of a tenant's tasks are held as texts, and compiled again when they are needed.
//!
//! Equal texts of a tenant have one tree.

use std::sync::{Arc, Mutex};

use crate::base::collections::tenant_cache::TenantCache;
use crate::base::expr::{Expression, weight};

/// Bytes of compiled expressions that are kept at most, of all tenants.
const KEPT_BYTES: usize = 256 * 1024 * 1024;
/// Bytes of compiled expressions that are kept at most, of one tenant.
const KEPT_BYTES_OF_ONE: usize = 64 * 1024 * 1024;

/// The names that an expression may use, and its text.
type ExpressionKey = (&'static [&'static str], Arc<str>);

/// Compiled expressions by tenant and text. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct KeptExpressions(Arc<Mutex<TenantCache<ExpressionKey, Expression>>>);

impl Default for KeptExpressions {
    fn default() -> KeptExpressions {
        KeptExpressions::bounded(KEPT_BYTES, KEPT_BYTES_OF_ONE)
    }
}

impl KeptExpressions {
    /// Keeps so many bytes at most, of all tenants and of one.
    pub fn bounded(most: usize, most_of_one: usize) -> KeptExpressions {
        KeptExpressions(Arc::new(Mutex::new(TenantCache::new(most, most_of_one))))
    }

    /// The compiled expression, if it is kept.
    pub fn get(&self, tenant: &Arc<str>, text: &Arc<str>, variables: &'static [&'static str]) -> Option<Expression> {
        let key = (variables, Arc::clone(text));
        self.0.lock().expect("expressions lock").get(tenant, &key).cloned()
    }

    /// Keeps a compiled expression.
    pub fn put(&self, tenant: &Arc<str>, variables: &'static [&'static str], expression: &Expression) {
        let bytes = weight::of(expression.text(), &expression.0.program);
        let key = (variables, expression.shared_text());
        self.0.lock().expect("expressions lock").put(tenant, key, expression.clone(), bytes);
    }

    /// Bytes of all that is kept.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.0.lock().expect("expressions lock").bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::expr::Language;

    const NAMES: &[&str] = &["event"];

    fn read(language: &Language, number: usize) -> Expression {
        let text: Arc<str> = format!("event.data.amount > {number}").into();
        language.read_kept(&text, NAMES).unwrap()
    }

    fn is_same(a: &Expression, b: &Expression) -> bool {
        Arc::ptr_eq(&a.0, &b.0)
    }

    #[test]
    fn equal_texts_of_a_tenant_have_one_tree_and_one_text() {
        let language = Language::default().of_tenant("a");
        let first = read(&language, 1);
        let bytes = language.kept_bytes();
        let second = read(&language, 1);
        assert!(is_same(&first, &second) && Arc::ptr_eq(&first.shared_text(), &second.shared_text()));
        assert_eq!(language.kept_bytes(), bytes);
        assert!(!is_same(&first, &read(&language.of_tenant("b"), 1)), "it counts as another tenant's own");
        let more_names = language.read_kept(&first.shared_text(), &["event", "task"]).unwrap();
        assert!(!is_same(&first, &more_names), "it may name other things");
        assert!(language.read_kept(&first.shared_text(), &["task"]).is_err(), "it may not name `event`");
    }

    #[test]
    fn expressions_are_kept_up_to_their_bytes_and_of_a_tenant_with_many_no_more_than_its_part() {
        const { assert!(KEPT_BYTES_OF_ONE * 4 == KEPT_BYTES, "one has a quarter") };
        let one = {
            let language = Language::default().of_tenant("a");
            read(&language, 100);
            language.kept_bytes()
        };
        let language = Language::keeping(8 * one, 2 * one);
        let [a, b] = ["a", "b"].map(|tenant| language.of_tenant(tenant));
        let kept: Vec<Expression> = (100..102).map(|number| read(&b, number)).collect();
        for number in 100..200 {
            read(&a, number);
            assert!(language.kept_bytes() <= 4 * one, "{number}");
        }
        assert_eq!(language.kept_bytes(), 4 * one);
        assert!(kept.iter().zip(100..).all(|(before, number)| is_same(before, &read(&b, number))));
        for tenant in 0..20 {
            (100..110).for_each(|number| drop(read(&language.of_tenant(&tenant.to_string()), number)));
            assert!(language.kept_bytes() <= 8 * one, "{tenant}");
        }
        assert!(!is_same(&kept[0], &read(&b, 100)), "others came later");
    }
}
