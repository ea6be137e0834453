//! `reveille tool`: tools that there are, and whether a model is offered them.

use serde_json::{Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::text_of;
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille tool list                      all tools, and which of them any model is offered
  reveille tool list --agent booker       what `booker` is offered, and why not the others
  reveille tool list --task 0193f7a2-…    what the model of a task is offered")]
pub enum Command {
    /// List tools, each with whether a model is offered it, and why not
    #[command(alias = "ls")]
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// As this configured agent is offered them
    #[arg(long, value_name = "NAME", conflicts_with = "task")]
    agent: Option<String>,
    /// As the model of this task is offered them: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// As it holds for this tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Command::List(args) = command;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TOOL_LIST);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let filters = given_filters([("agent", args.agent), ("task_id", task), ("tenant_id", args.tenant)]);
    let answer = client.get(&["v1", "tools"], &filters).await?;
    if args.service.json {
        return Ok(screen.json(&json!({ "items": answer["items"] }))?);
    }
    let row = |tool: &Value| {
        let texts = [&tool["name"], &tool["status"], &tool["source"]].map(|text| on_one_line(&text_of(text)));
        let offered = if tool["offered"] == true { "yes" } else { "no" };
        let why = [&tool["reason"], &tool["message"]].map(text_of);
        texts.into_iter().chain([offered.to_owned()]).chain(why).collect()
    };
    let rows = answer["items"].as_array().into_iter().flatten().map(row).collect();
    Ok(screen.table(&["name", "status", "source", "offered", "reason", "why not"], rows)?)
}
