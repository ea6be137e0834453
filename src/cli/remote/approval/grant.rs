//! `reveille grant`: what people have allowed for good, and an end to it.

use serde_json::{Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::{Client, ListOptions, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille grant list --tenant ann       what runs without asking, for which arguments, until when
  reveille grant revoke 0193f7a2-…       from the next call on it is asked about again")]
pub enum Command {
    /// List standing grants, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// End one: its tool is asked about again
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only this task's: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The grant: its id, or the beginning of it
    #[arg(value_name = "GRANT")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Revoke(args) => {
            let client = Client::new(&args.service, environment)?;
            revoke(&client, "grants", &args.id, args.service.json, screen).await
        }
    }
}

/// Revokes one of a kind, by its id or the beginning of it.
pub async fn revoke(
    client: &Client,
    kind: &str,
    typed: &str,
    as_json: bool,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let id = client.id(kind, typed).await?;
    client.delete(&["v1", kind, &id]).await?;
    match as_json {
        true => Ok(screen.json(&json!({ "id": id, "revoked": true }))?),
        false => Ok(screen.line(format!("revoked {id}"))?),
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::GRANT_LIST);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let filters = given_filters([("tenant_id", args.tenant), ("task_id", task)]);
    let row = |grant: &Value| {
        [
            text_of(&grant["id"]),
            text_of(&grant["tenant_id"]),
            text_of(&grant["task_id"]),
            on_one_line(&text_of(&grant["tool"])),
            cut(&on_one_line(&grant["args"].to_string()), 60),
            match &grant["uses_left"] {
                Value::Null => "any".into(),
                left => text_of(left),
            },
            time_of(&grant["expires_at"]),
            time_of(&grant["revoked_at"]),
        ]
    };
    let heading = ["id", "tenant", "task", "tool", "args", "uses left", "expires", "revoked"];
    args.page.print(&client, &["v1", "grants"], &filters, (heading, row), screen).await
}
