//! Differences between the arguments that were proposed and those that were decided, value by value.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::pages::approve::form::flatten_arguments;
use crate::http::pages::approve::kind::shown;

/// One value that differs.
#[derive(Debug, Serialize)]
pub struct ArgumentChange {
    name: String,
    /// `None`: it was not given.
    before: Option<String>,
    /// `None`: it was left out.
    after: Option<String>,
}

/// The values that differ, in the order of the arguments.
pub fn changes(proposed: &Value, decided: &Value) -> Vec<ArgumentChange> {
    let empty = Map::new();
    let (before, after) = (proposed.as_object().unwrap_or(&empty), decided.as_object().unwrap_or(&empty));
    let (old, new) = (by_name(proposed), by_name(decided));
    let names = flatten_arguments(before).into_iter().chain(flatten_arguments(after)).map(|(name, _)| name);
    let mut told: BTreeSet<String> = BTreeSet::new();
    let mut changes = Vec::new();
    for name in names {
        let (old, new) = (old.get(&name), new.get(&name));
        if old == new || !told.insert(name.clone()) {
            continue;
        }
        let text = |value: Option<&&Value>| value.map(|value| shown(value));
        changes.push(ArgumentChange { name, before: text(old), after: text(new) });
    }
    changes
}

/// The values of arguments by the names that lead to them.
pub fn by_name(arguments: &Value) -> BTreeMap<String, &Value> {
    arguments.as_object().map(flatten_arguments).into_iter().flatten().collect()
}
