//! `docs/pipelines.md` is made from the schema that is published, and what it shows is taken by the reader.

use std::path::Path;

use reveille::executor::pipeline::schema::PipelineConfig;
use reveille::executor::schema::{self, OrchestratorConfig, WebhookConfig};
use serde_json::{Value, json};

use crate::api::service::Api;

const PAGE: &str = "docs/pipelines.md";
/// Fields of a step besides its kind.
const SHARED: [&str; 4] = ["name", "timeout_seconds", "retry", "on_error"];

const BEGINNING: &str = "\
# Pipelines

A task with `\"executor\": \"pipeline\"` runs steps in order, without a model's decisions. Its `action.config` has `steps`, 1 to 50
of them, and may have `output`, a template of what the run answers; without it, the answer is the value of the last step. `approvals` says
by tool what people are asked about, and `budget` what a run may spend on models.

A step has a name, exactly one kind, and what holds for all kinds. Expressions are CEL, templates are Jinja. Both know `event`,
`events`, `value` and `previous` (what made the task fire), `input`, `run`, `task`, `state` (what earlier runs have stored) and
`steps`, the values of the steps before by their names. `reveille pipeline dry-run` tries a pipeline out, and changes nothing.
`GET /v1/executors` has the JSON Schema of it all.
";

#[test]
fn page_of_pipelines_is_the_one_that_the_code_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let made = page(&schema::of::<PipelineConfig>());
    if std::fs::read_to_string(&path).unwrap_or_default() != made {
        std::fs::write(path.with_extension("md.new"), made).expect("the new page");
        panic!("{PAGE} is not as the code has it: look at {PAGE}.new, and put it in its place");
    }
}

#[tokio::test]
async fn each_example_of_a_step_is_taken_by_the_reader() {
    let api = Api::new().await;
    let config = schema::of::<PipelineConfig>();
    let one = |(kind, example): (&String, Value)| json!({ "steps": [{ "name": "one", kind: example }] });
    let kinds = kinds(&config);
    assert_eq!(kinds.len(), 10);
    let configs = kinds.iter().map(|kind| one((kind, example_of(&config, kind)))).chain([config["example"].clone()]);
    for config in configs {
        // the only address that may be asked here
        let text = config.to_string().replace("https://shop.example.org", "http://127.0.0.1:9");
        let text = text.replace("https://house.example.org", "http://127.0.0.1:9");
        let body = json!({ "tenant_id": "ann", "config": serde_json::from_str::<Value>(&text).unwrap() });
        api.admin("POST", "/v1/pipelines/dry-run", Some(body)).await.expect(200);
    }
}

#[test]
fn settings_of_each_executor_have_a_schema_that_holds_their_example() {
    for schema in [schema::of::<PipelineConfig>(), schema::of::<OrchestratorConfig>(), schema::of::<WebhookConfig>()] {
        let validator = jsonschema::draft202012::new(&schema).expect("a schema that stands by itself");
        assert!(validator.is_valid(&schema["example"]), "{}", schema["example"]);
        assert!(!validator.is_valid(&json!({ "nobody_knows_this": 1 })));
        assert!(!schema.to_string().contains("#/components/"));
    }
}

/// The kinds of steps.
fn kinds(config: &Value) -> Vec<String> {
    let fields = config["$defs"]["PipelineStep"]["properties"].as_object().expect("fields");
    fields.keys().filter(|field| !SHARED.contains(&field.as_str())).cloned().collect()
}

/// An example of a kind, where the page shows it.
fn example_of(config: &Value, kind: &str) -> Value {
    let field = &config["$defs"]["PipelineStep"]["properties"][kind];
    match field.get("example") {
        Some(example) => example.clone(),
        None => resolved(config, field)["example"].clone(),
    }
}

fn page(config: &Value) -> String {
    let step = &config["$defs"]["PipelineStep"];
    let mut page = format!("{BEGINNING}\n{}", table(config, step, |field| SHARED.contains(&field)));
    for kind in kinds(config) {
        let field = &step["properties"][&kind];
        let written = resolved(config, field);
        page.push_str(&format!("\n## `{kind}`\n\n{}\n", description(written)));
        if written["properties"].is_object() {
            page.push_str(&format!("\n{}", table(config, written, |_| true)));
        }
        let shown = json!({ "name": "one", kind.as_str(): example_of(config, &kind) });
        page.push_str(&format!("\n```json\n{}\n```\n", serde_json::to_string_pretty(&shown).expect("JSON")));
    }
    page
}

/// The fields of an object, those that are needed first.
fn table(config: &Value, object: &Value, shows: impl Fn(&str) -> bool) -> String {
    let needed =
        |field: &str| object["required"].as_array().is_some_and(|fields| fields.iter().any(|one| one == field));
    let mut fields: Vec<(&String, &Value)> = object["properties"].as_object().expect("fields").iter().collect();
    fields.retain(|(field, _)| shows(field));
    fields.sort_by_key(|(field, _)| !needed(field));
    let row = |(field, schema): (&String, &Value)| {
        let needed = if needed(field) { ", needed" } else { "" };
        format!("| `{field}` | {}{needed} | {} |\n", form(config, schema), description(schema).replace('|', "\\|"))
    };
    format!("| Field | Form | Meaning |\n|---|---|---|\n{}", fields.into_iter().map(row).collect::<String>())
}

/// The description, on one line.
fn description(schema: &Value) -> String {
    let part = schema["oneOf"].as_array().into_iter().flatten().find(|part| part["description"].is_string());
    let text = schema["description"].as_str().or(part.and_then(|part| part["description"].as_str()));
    text.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The schema behind a reference, whether or not it may be null.
fn resolved<'a>(config: &'a Value, schema: &'a Value) -> &'a Value {
    let parts = || schema["oneOf"].as_array().into_iter().flatten().filter(|part| part["type"] != "null");
    match schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        Some(name) => resolved(config, &config["$defs"][name]),
        None if parts().count() == 1 => resolved(config, parts().next().expect("a part")),
        None => schema,
    }
}

/// The form of a field's value, in words.
fn form(config: &Value, schema: &Value) -> String {
    let schema = resolved(config, schema);
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
        return words.join(", ");
    }
    if let Some(parts) = schema["oneOf"].as_array() {
        return parts.iter().map(|part| form(config, part)).collect::<Vec<_>>().join(", or ");
    }
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    let kind = kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or_default();
    match kind {
        "string" => "text".into(),
        "boolean" => "`true` or `false`".into(),
        "integer" => match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
            (Some(least), Some(most)) => format!("whole number from {least} to {most}"),
            _ => "whole number".into(),
        },
        "array" => format!("list of {}s", form(config, &schema["items"])),
        "object" => match schema["properties"].as_object() {
            Some(fields) => {
                let fields: Vec<String> = fields.keys().map(|field| format!("`{field}`")).collect();
                format!("object of {}", fields.join(", "))
            }
            None if schema["additionalProperties"]["type"] == "string" => "object of texts".into(),
            None => "object".into(),
        },
        _ => "any value".into(),
    }
}
