//! The document in the plain forms of JSON Schema that generators of clients read.
//!
//! Descriptions stay as they are in the code. Forms that generators stumble over are rewritten here, for all schemas
//! alike: lists have names, fields of bodies that have a default may be left out, and nothing stands there that nothing
//! uses.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::domain::trigger::ChatTrigger;
use crate::http::openapi::{SCHEMAS, unions};

/// How the derived name of a page of a list begins.
const ITEMS: &str = "Items_";
/// The end of the published name of such a page.
const LIST: &str = "List";
/// Settings of executors, which stand in `action.config`; it may have others as well.
const CONFIGS: [&str; 3] = ["OrchestratorConfig", "PipelineConfig", "WebhookConfig"];

/// The union of triggers, of which one is nobody's to write, and no task has it.
const TRIGGER: &str = "Trigger";

/// Rewrites the document.
pub fn make(document: &mut Value) {
    rename_lists(document);
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        name_items(schemas);
        unions::merge(schemas);
        unions::remove_variant(schemas, TRIGGER, ChatTrigger::KIND);
        unions::name_variants(schemas);
        schemas.values_mut().for_each(unions::say_single_words);
        schemas.values_mut().for_each(default_in_words);
    }
    drop_unused(document);
}

/// `Items_Task` becomes `TaskList`.
fn rename_lists(value: &mut Value) {
    let renamed = |name: &str| name.strip_prefix(ITEMS).map(|item| format!("{item}{LIST}"));
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix(SCHEMAS).and_then(renamed) {
                *text = format!("{SCHEMAS}{name}");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rename_lists),
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().filter(|name| name.starts_with(ITEMS)).cloned().collect();
            for name in names {
                if let (Some(new), Some(list)) = (renamed(&name), fields.remove(&name)) {
                    fields.insert(new, list);
                }
            }
            fields.values_mut().for_each(rename_lists);
        }
        _ => {}
    }
}

/// Refers to the items of a list by their name; the derived schema of a list holds that of its items.
fn name_items(schemas: &mut Map<String, Value>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names.iter().filter_map(|name| name.strip_suffix(LIST)) {
        if schemas.contains_key(name)
            && let Some(items) = schemas[&format!("{name}{LIST}")].pointer_mut("/properties/items/items")
        {
            *items = json!({ "$ref": format!("{SCHEMAS}{name}") });
        }
    }
}

/// Says the default of a field in its description. As a keyword it would tell some generators that the field is always
/// there, and bodies may leave it out.
fn default_in_words(schema: &mut Value) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        let Some(default) = field.remove("default") else { continue };
        let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        let said = field.get("description").and_then(Value::as_str).map(|said| format!("{said} ")).unwrap_or_default();
        field.insert("description".into(), format!("{said}Absent: `{default}`.").into());
    }
}

/// Leaves out the schemas that no operation leads to, but for the settings of executors.
fn drop_unused(document: &mut Value) {
    let mut used = BTreeSet::new();
    let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
    collect(&document["paths"], &schemas, &mut used);
    for name in CONFIGS {
        collect(&format!("{SCHEMAS}{name}").into(), &schemas, &mut used);
    }
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.retain(|name, _| used.contains(name));
    }
}

fn collect(value: &Value, schemas: &Map<String, Value>, used: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix(SCHEMAS)
                && used.insert(name.to_owned())
                && let Some(schema) = schemas.get(name)
            {
                collect(schema, schemas, used);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, schemas, used)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, schemas, used)),
        _ => {}
    }
}
