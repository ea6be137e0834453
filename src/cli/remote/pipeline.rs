//! `reveille pipeline`: steps tried out before a task is made of them.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::condition::missing_of;
use crate::cli::draft::read_file;
use crate::cli::screen::{cut, text_of};
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, Tone, typed};
use crate::config::Environment;

/// Longest value of a step that is shown, in characters; `--json` has it whole.
const LONGEST: usize = 500;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Go through the steps with a sample, side effects off
    DryRun(DryRunArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille pipeline dry-run --file order.json --event event.json --live")]
pub struct DryRunArgs {
    /// The steps in JSON or YAML: `{\"steps\": […]}`, or a whole task; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// The event that would make it fire, in JSON or YAML
    #[arg(long, value_name = "FILE")]
    event: Option<PathBuf>,
    /// More of the sample: `value`, `previous`, `input`, `state`, `mocks`
    #[arg(long, value_name = "FILE")]
    sample: Option<PathBuf>,
    /// Execute what only reads
    #[arg(long)]
    live: bool,
    /// For whom; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Command::DryRun(args) = command;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::PIPELINE_DRY_RUN);
    let answer = client.post(&["v1", "pipelines", "dry-run"], &question(&args)?).await?;
    if args.service.json {
        return Ok(screen.json(&answer)?);
    }
    for step in answer["steps"].as_array().into_iter().flatten() {
        screen.line(step_text(step, screen))?;
    }
    let output = &answer["output"];
    let output = if output.is_null() { String::new() } else { format!(": {}", cut(&text_of(output), LONGEST)) };
    screen.line(format!("{}{output}", text_of(&answer["outcome"])))?;
    match answer["outcome"].as_str() {
        Some("failed") => Err(CliFailure::new("the pipeline would fail").into()),
        _ => Ok(()),
    }
}

fn question(args: &DryRunArgs) -> anyhow::Result<Value> {
    let mut file = read_file(&args.file)?;
    // of a whole task the steps
    let config = match file.remove("action") {
        Some(Value::Object(mut action)) => action.remove("config").unwrap_or_default(),
        Some(_) | None => Value::Object(file),
    };
    let mut question: Map<String, Value> = match &args.sample {
        Some(sample) => read_file(sample)?,
        None => Map::new(),
    };
    question.insert("config".into(), config);
    question.insert("live".into(), json!(args.live));
    if let Some(event) = &args.event {
        question.insert("event".into(), Value::Object(read_file(event)?));
    }
    if let Some(tenant) = &args.tenant {
        question.insert("tenant_id".into(), json!(tenant));
    }
    Ok(Value::Object(question))
}

fn step_text(step: &Value, screen: &Screen) -> String {
    let place = format!("{} ({})", text_of(&step["name"]), text_of(&step["kind"]));
    let error = &step["error"];
    if error.is_object() {
        let hint = step["hint"].as_str().map_or(String::new(), |hint| format!("\n    hint: {hint}"));
        let hint = format!("{}{hint}", missing(step));
        let line = format!("✗ {place}: {} ({}){hint}", text_of(&error["message"]), text_of(&error["code"]));
        return screen.tone(Tone::Bad, line);
    }
    if step["skipped"] == json!(true) {
        return format!("- {place} skipped, it would do {}", cut(&step["request"].to_string(), LONGEST));
    }
    let mocked = if step["mocked"] == json!(true) { " mocked" } else { "" };
    format!("✓ {place}{mocked}: {}{}", cut(&step["value"].to_string(), LONGEST), missing(step))
}

/// A line about the field that the sample does not have, where there is one.
fn missing(step: &Value) -> String {
    match missing_of(&step["missing"]) {
        missing if missing.is_empty() => missing,
        missing => format!("\n    {missing}"),
    }
}
