//! `reveille condition`: a condition tried over HTTP, and how one is shown.

use serde_json::{Map, Value, json};

use crate::base::expr::MissingField;
use crate::cli::draft::{self};
use crate::cli::screen::{text_of, time_of};
use crate::cli::typed::{self};
use crate::cli::{Client, ConditionArgs, FieldFlags, Screen, ServiceArgs, TaskFile};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Poll once and print what was seen, and what each part of the expression says; saves nothing
    Test(TestArgs),
}

#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("source").required(true).args(["file", "poll_url", "poll"])),
    after_help = "\
Examples:
  reveille condition test --poll-url https://api.example.org/price --expression 'value.price < 500'
  reveille condition test --file task.json --previous '{\"price\": 510}'"
)]
pub struct TestArgs {
    /// A task, or a trigger alone, in JSON or YAML; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<TaskFile>,
    /// Tenant of the condition; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// How often it would be polled
    #[arg(long, value_name = "LENGTH", default_value = "1m")]
    interval: String,
    /// Value that the poll before is to have seen, as JSON
    #[arg(long, value_name = "JSON", value_parser = json_value)]
    previous: Option<Value>,
    #[command(flatten)]
    condition: ConditionArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Command::Test(args) = command;
    let mut trigger = match &args.file {
        Some(file) => trigger_in(draft::read_file(file)?),
        None => Map::from_iter([("interval".to_owned(), json!(args.interval))]),
    };
    args.condition.write_into(&mut trigger);
    let mut asked = json!({ "trigger": trigger });
    if let Some(tenant) = &args.tenant {
        asked["tenant_id"] = json!(tenant);
    }
    if let Some(previous) = args.previous {
        asked["previous"] = previous;
    }
    let typed: FieldFlags = if args.file.is_some() { typed::CONDITION_IN_FILE } else { &typed::TASK };
    let client = Client::new(&args.service, environment)?.with_flag_names(typed);
    let trial = client.post(&["v1", "conditions", "test"], &asked).await?;
    if args.service.json {
        return Ok(screen.json(&trial)?);
    }
    show(&trial, screen)
}

/// The trigger of a task, or a trigger that stands by itself.
fn trigger_in(mut read: Map<String, Value>) -> Map<String, Value> {
    match read.remove("trigger") {
        Some(Value::Object(trigger)) => trigger,
        _ => read,
    }
}

fn show(trial: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let facts = [
        ("value", written(&trial["value"])),
        ("verdict", text_of(&trial["verdict"])),
        ("changed", text_of(&trial["changed"])),
        ("reset", text_of(&trial["reset"])),
        ("missing", missing_of(&trial["missing"])),
        ("error", text_of(&trial["error"]["message"])),
    ];
    screen.facts(&facts)?;
    let parts = trial["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    if parts.is_empty() {
        return Ok(());
    }
    let row = |part: &Value| {
        let said = match part["error"].as_str() {
            Some(error) => format!("error: {error}"),
            None => written(&part["value"]),
        };
        vec![text_of(&part["expression"]), said]
    };
    Ok(screen.table(&["part", "value"], parts.iter().map(row).collect())?)
}

/// A field that is not there, in words.
pub fn missing_of(missing: &Value) -> String {
    let read: Option<MissingField> = serde_json::from_value(missing.clone()).ok();
    read.map(|missing| missing.to_string()).unwrap_or_default()
}

/// Where a condition stands, as facts of its task.
pub fn state_of(condition: &Value) -> Vec<(&'static str, String)> {
    let verdict = match condition["verdict"].as_bool() {
        None => "not polled yet".to_owned(),
        Some(verdict) => format!("{verdict} since {}", time_of(&condition["since"])),
    };
    let mut facts = vec![
        ("condition", verdict),
        ("value", written(&condition["value"])),
        ("last poll", time_of(&condition["last_poll_at"])),
        ("next poll", time_of(&condition["next_poll_at"])),
        ("fires", text_of(&condition["edges"])),
    ];
    if !condition["cooldown_until"].is_null() {
        facts.push(("cooldown", format!("until {}", time_of(&condition["cooldown_until"]))));
    }
    if let Some(failing) = condition["failing"].as_object() {
        let (count, since) = (text_of(&failing["count"]), time_of(&failing["since"]));
        facts.push(("failing", format!("{count} polls since {since}: {}", text_of(&failing["error"]["message"]))));
    }
    facts
}

fn written(value: &Value) -> String {
    if value.is_null() { String::new() } else { value.to_string() }
}

fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}
