//! `reveille task`: create, read, change, run and delete tasks over HTTP, one by one, by the line, or by the folder.

mod apply;
mod explain;
mod export;
mod import;
mod plan;
mod shown;

use serde_json::{Map, Value, json};

use super::run::{follow, print_run};
use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::draft::{self};
use crate::cli::screen::{text_of, time_of};
use crate::cli::typed::{self};
use crate::cli::{
    Client, ConditionArgs, FieldFlags, ListOptions, Screen, ServiceArgs, SpecArgs, TaskFile, Tone, TriggerArgs, YesArgs,
};
use crate::config::Environment;
use shown::{print_task, print_whole, trigger_of};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a task from flags or a file
    Create(CreateArgs),
    /// List tasks
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a task whole: what became of it, and all that its owner decided
    #[command(alias = "get")]
    Show(OneArgs),
    /// Change what is typed, keep the rest
    Update(UpdateArgs),
    /// Stop firing until resumed
    Pause(OneArgs),
    /// Fire again, from now on
    Resume(ResumeArgs),
    /// Stop firing until an operator enables it; needs an admin token
    Disable(DisableTaskArgs),
    /// Let a disabled task fire again, from now on; needs an admin token
    Enable(OneArgs),
    /// Run a task now, whatever its schedule says
    Run(RunArgs),
    /// Run a task for each instant of a past range
    Backfill(BackfillArgs),
    /// Say why a task fires, or does not, and what would have to hold
    Explain(explain::Args),
    /// Delete a task
    Delete(DeleteArgs),
    /// Create many tasks, one JSON object to a line
    Import(import::Args),
    /// Write tasks as lines that `import` takes back
    Export(export::Args),
    /// Make the tasks of a tenant those of a folder of files
    Apply(apply::Args),
}

#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("when").required(true).multiple(true)
        .args(["file", "cron", "interval", "at", "rrule", "source", "event_type"])),
    group(clap::ArgGroup::new("schedule").args(["file", "cron", "interval", "at", "rrule"])),
    group(clap::ArgGroup::new("event").multiple(true).args(["source", "event_type"]).conflicts_with("schedule")),
)]
pub struct CreateArgs {
    /// The task in JSON, YAML or TOML; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<TaskFile>,
    /// Tenant of the task; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Stable key, which commands take as they take the id; it can't be changed
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    trigger: TriggerArgs,
    #[command(flatten)]
    event: EventArgs,
    #[command(flatten)]
    condition: ConditionArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// For tasks that events fire.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "When an event comes")]
pub struct EventArgs {
    /// Fire on events of this source; `*` at the end stands for anything
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// Fire on events of this type; `*` at the end stands for anything
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
    /// Only where this CEL expression over `event` and `task` is true
    #[arg(long, value_name = "CEL", requires = "event")]
    filter: Option<String>,
}

impl EventArgs {
    /// The beginning of a trigger: of events where one was typed, else of a schedule.
    fn trigger(&self) -> Value {
        let kind = if self.source.is_some() || self.event_type.is_some() { "event" } else { "schedule" };
        let typed = [("source", &self.source), ("event_type", &self.event_type), ("filter", &self.filter)];
        let typed = typed.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text.as_ref()?))));
        Value::Object(typed.chain([("type".to_owned(), json!(kind))]).collect())
    }
}

#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    /// The task: its id, the beginning of it, or its key
    #[arg(value_name = "TASK")]
    id: String,
    /// Do not run the events that it has buffered while it was paused
    #[arg(long)]
    drop_buffered: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only these: active, paused, disabled, completed
    #[arg(long)]
    status: Option<String>,
    /// Only those of this kind of trigger: schedule, event, condition
    #[arg(long, value_name = "KIND")]
    trigger_type: Option<String>,
    /// Only the one with this stable key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only those whose name holds this
    #[arg(short, long, value_name = "TEXT")]
    query: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// The task: its id, the beginning of it, or its key
    #[arg(value_name = "TASK")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct DisableTaskArgs {
    /// Reason, for the record and for the owner
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    one: OneArgs,
}

#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    one: OneArgs,
    #[command(flatten)]
    yes: YesArgs,
}

#[derive(Debug, clap::Args)]
pub struct UpdateArgs {
    /// The task: its id, the beginning of it, or its key
    #[arg(value_name = "TASK")]
    id: String,
    #[command(flatten)]
    trigger: TriggerArgs,
    #[command(flatten)]
    condition: ConditionArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The task: its id, the beginning of it, or its key
    #[arg(value_name = "TASK")]
    id: String,
    /// Something for this run alone, as JSON
    #[arg(long, value_name = "JSON", value_parser = json_value)]
    input: Option<Value>,
    /// Follow the run until it ends
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct BackfillArgs {
    /// The task: its id, the beginning of it, or its key
    #[arg(value_name = "TASK")]
    id: String,
    /// First instant, RFC 3339, inclusive
    #[arg(long, value_name = "TIME")]
    from: String,
    /// Last instant, RFC 3339, exclusive
    #[arg(long, value_name = "TIME")]
    to: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args, environment, screen).await,
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Update(args) => update(args, environment, screen).await,
        Command::Pause(args) => pause(args, environment, screen).await,
        Command::Resume(args) => resume(args, environment, screen).await,
        Command::Disable(args) => disable(args, environment, screen).await,
        Command::Enable(args) => enable(args, environment, screen).await,
        Command::Run(args) => run_now(args, environment, screen).await,
        Command::Backfill(args) => backfill(args, environment, screen).await,
        Command::Explain(args) => explain::run(args, environment, screen).await,
        Command::Delete(args) => delete(args, environment, screen).await,
        Command::Import(args) => import::run(args, environment, screen).await,
        Command::Export(args) => export::run(args, environment, screen).await,
        Command::Apply(args) => apply::run(args, environment, screen).await,
    }
}

async fn create(args: CreateArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let mut task = match &args.file {
        Some(file) => draft::read_file(file)?,
        None => Map::from_iter([("trigger".to_owned(), args.event.trigger())]),
    };
    if let Some(tenant) = &args.tenant {
        task.insert("tenant_id".into(), json!(tenant));
    }
    if let Some(key) = &args.key {
        task.insert("key".into(), json!(key));
    }
    if let Some(trigger) = task.get_mut("trigger").and_then(Value::as_object_mut) {
        args.trigger.write_into(trigger);
        args.condition.write_into(trigger);
    }
    args.spec.write_into(&mut task)?;
    let typed: FieldFlags = if args.file.is_some() { typed::TASK_IN_FILE } else { &typed::TASK };
    let client = Client::new(&args.service, environment)?.with_flag_names(typed);
    let created = client.post(&["v1", "tasks"], &Value::Object(task)).await?;
    print_task(&created, args.service.json, screen)
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let filters: Vec<_> = given_filters([
        ("tenant_id", args.tenant),
        ("status", args.status),
        ("trigger_type", args.trigger_type),
        ("key", args.key),
        ("q", args.query),
    ]);
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::TASK_LIST);
    let row = |task: &Value| {
        [
            text_of(&task["id"]),
            text_of(&task["tenant_id"]),
            text_of(&task["name"]),
            trigger_of(&task["trigger"]),
            text_of(&task["status"]),
            time_of(&task["next_fire_at"]),
            text_of(&task["last_run"]["state"]),
        ]
    };
    let heading = ["id", "tenant", "name", "trigger", "status", "next fire", "last run"];
    args.page.print(&client, &["v1", "tasks"], &filters, (heading, row), screen).await
}

async fn show(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("tasks", &args.id).await?;
    let task = client.get(&["v1", "tasks", &id], &[]).await?;
    print_whole(&task, args.service.json, screen)
}

/// Sends only what was typed, on top of what is stored: a nested object is replaced whole by the service. The version
/// that was read goes with it, so that a change in between is refused and not undone.
async fn update(args: UpdateArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(&typed::TASK);
    let id = client.id("tasks", &args.id).await?;
    let stored = client.get(&["v1", "tasks", &id], &[]).await?;
    let mut task = stored.as_object().cloned().unwrap_or_default();
    if let Some(trigger) = task.get_mut("trigger").and_then(Value::as_object_mut) {
        args.trigger.write_into(trigger);
        args.condition.write_into(trigger);
    }
    args.spec.write_into(&mut task)?;
    let mut changes: Map<String, Value> =
        task.into_iter().filter(|(key, value)| stored.get(key) != Some(value)).collect();
    if !changes.is_empty() {
        changes.insert("version".into(), stored["version"].clone());
    }
    if changes.is_empty() {
        if !args.service.json {
            screen.line(screen.tone(Tone::Notable, "nothing was changed: what was typed is what is stored"))?;
        }
        return print_task(&stored, args.service.json, screen);
    }
    let updated = client.patch(&["v1", "tasks", &id], &Value::Object(changes)).await?;
    print_task(&updated, args.service.json, screen)
}

async fn pause(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("tasks", &args.id).await?;
    let task = client.post(&["v1", "tasks", &id, "pause"], &json!({})).await?;
    print_task(&task, args.service.json, screen)
}

async fn resume(args: ResumeArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("tasks", &args.id).await?;
    let body = if args.drop_buffered { json!({ "buffered_events": "drop" }) } else { json!({}) };
    let task = client.post(&["v1", "tasks", &id, "resume"], &body).await?;
    print_task(&task, args.service.json, screen)
}

async fn disable(args: DisableTaskArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let OneArgs { id, service } = args.one;
    let client = Client::new(&service, environment)?;
    let id = client.id("tasks", &id).await?;
    let task = client.post(&["v1", "tasks", &id, "disable"], &json!({ "reason": args.reason })).await?;
    print_task(&task, service.json, screen)
}

async fn enable(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("tasks", &args.id).await?;
    let task = client.post(&["v1", "tasks", &id, "enable"], &json!({})).await?;
    print_task(&task, args.service.json, screen)
}

async fn run_now(args: RunArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TASK_RUN);
    let id = client.id("tasks", &args.id).await?;
    let body = args.input.map(|input| json!({ "input": input })).unwrap_or_else(|| json!({}));
    let made = client.post(&["v1", "tasks", &id, "run"], &body).await?;
    match made["id"].as_str() {
        Some(id) if args.watch => follow(&client, id, args.service.json, screen).await,
        _ => print_run(&made, args.service.json, screen),
    }
}

async fn backfill(args: BackfillArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TASK_BACKFILL);
    let id = client.id("tasks", &args.id).await?;
    let range = json!({ "from": args.from, "to": args.to });
    let made = client.post(&["v1", "tasks", &id, "backfill"], &range).await?;
    if args.service.json {
        return Ok(screen.json(&made)?);
    }
    let fires = made["fires"].as_array().map(Vec::as_slice).unwrap_or_default();
    screen.facts(&[
        ("backfill", text_of(&made["id"])),
        ("runs", fires.len().to_string()),
        ("first", fires.first().map(time_of).unwrap_or_default()),
        ("last", fires.last().map(time_of).unwrap_or_default()),
    ])?;
    Ok(())
}

async fn delete(args: DeleteArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let OneArgs { id, service } = args.one;
    let client = Client::new(&service, environment)?;
    let id = client.id("tasks", &id).await?;
    let task = client.get(&["v1", "tasks", &id], &[]).await?;
    let name = on_one_line(&text_of(&task["name"]));
    args.yes.confirm(&format!("delete the task `{name}` of {}?", text_of(&task["tenant_id"])), screen)?;
    client.delete(&["v1", "tasks", &id]).await?;
    if service.json {
        return Ok(screen.json(&json!({ "id": id, "deleted": true }))?);
    }
    Ok(screen.line(format!("deleted {id}"))?)
}

fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}
