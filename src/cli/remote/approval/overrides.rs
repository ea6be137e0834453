//! `reveille override`: whether a tool asks a person first, said for a tenant, an agent or a task, and for a while.

use std::time::Duration;

use chrono::SecondsFormat;
use serde_json::{Map, Value, json};

use super::grant::revoke;
use crate::base::clock::{machine_now, to_delta};
use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::{CliFailure, Client, ListOptions, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille override set send_note confirm --tenant ann        all of ann's runs ask before they send a note
  reveille override set book auto --task daily --for 7d --when 'args.price < 50'
  reveille override list --tenant ann
  reveille override remove 0193f7a2-…                         from the next call on it is judged without it")]
pub enum Command {
    /// Say whether a tool asks a person first
    Set(SetArgs),
    /// List what holds, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Take one back
    #[command(alias = "delete")]
    Remove(RemoveArgs),
}

#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// The tool
    #[arg(value_name = "TOOL")]
    tool: String,
    /// `auto`: it runs by itself; `confirm`: a person is asked first
    #[arg(value_name = "GATE", value_parser = ["auto", "confirm"])]
    gate: String,
    /// For the runs of this tenant; a tenant's own token speaks for its tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// For this task alone: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK", conflicts_with = "agent")]
    task: Option<String>,
    /// For this configured agent alone
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// It holds only where this is true: CEL over `args`, `tool`, `tenant`
    #[arg(long, value_name = "CEL")]
    when: Option<String>,
    /// How long it holds [default: 30 days]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only this task's: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Only this configured agent's
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct RemoveArgs {
    /// The override: its id, or the beginning of it
    #[arg(value_name = "OVERRIDE")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Set(args) => set(args, environment, screen).await,
        Command::List(args) => list(args, environment, screen).await,
        Command::Remove(args) => {
            let client = Client::new(&args.service, environment)?;
            revoke(&client, "approval-overrides", &args.id, args.service.json, screen).await
        }
    }
}

async fn set(args: SetArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::OVERRIDE);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let expires_at = args.time.map(expiry).transpose()?;
    let mut body = Map::from_iter([("tool".to_owned(), json!(args.tool)), ("gate".to_owned(), json!(args.gate))]);
    let texts = [
        ("tenant_id", args.tenant),
        ("task_id", task),
        ("agent", args.agent),
        ("when", args.when),
        ("expires_at", expires_at),
    ];
    body.extend(texts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
    let set = client.post(&["v1", "approval-overrides"], &Value::Object(body)).await?;
    if args.service.json {
        return Ok(screen.json(&set)?);
    }
    screen.facts(&[
        ("id", text_of(&set["id"])),
        ("tenant", text_of(&set["tenant_id"])),
        ("for", subject(&set)),
        ("tool", on_one_line(&text_of(&set["tool"]))),
        ("gate", text_of(&set["gate"])),
        ("when", on_one_line(&text_of(&set["when"]))),
        ("expires", time_of(&set["expires_at"])),
    ])?;
    Ok(())
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::GRANT_LIST);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let filters = given_filters([("tenant_id", args.tenant), ("task_id", task), ("agent", args.agent)]);
    let row = |stored: &Value| {
        [
            text_of(&stored["id"]),
            text_of(&stored["tenant_id"]),
            subject(stored),
            on_one_line(&text_of(&stored["tool"])),
            text_of(&stored["gate"]),
            cut(&on_one_line(&text_of(&stored["when"])), 60),
            time_of(&stored["expires_at"]),
        ]
    };
    let heading = ["id", "tenant", "for", "tool", "gate", "when", "expires"];
    args.page.print(&client, &["v1", "approval-overrides"], &filters, (heading, row), screen).await
}

/// The instant so long from now.
fn expiry(time: Duration) -> anyhow::Result<String> {
    let Some(at) = machine_now().checked_add_signed(to_delta(time)) else {
        return Err(CliFailure::new("`--for` reaches too far ahead").hint("such as 7d or 30d").into());
    };
    Ok(at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// Those for whom it holds.
fn subject(stored: &Value) -> String {
    match (&stored["task_id"], &stored["agent"]) {
        (Value::String(task), _) => format!("task {task}"),
        (_, Value::String(agent)) => format!("agent {}", on_one_line(agent)),
        _ => "all runs".into(),
    }
}
