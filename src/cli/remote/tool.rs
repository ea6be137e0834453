//! `reveille tool`: tools that there are, whether a model is offered them, and calls to try them.

mod accept;
mod call;
mod shown;

use serde_json::{Value, json};

use crate::base::unicode_safety::{escape_hidden, on_one_line};
use crate::cli::client::given_filters;
use crate::cli::remote::tool::shown::{show_difference, told_of};
use crate::cli::screen::text_of;
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille tool list                      all tools, and which of them any model is offered
  reveille tool list --agent booker       what `booker` is offered, and why not the others
  reveille tool list --task 0193f7a2-…    what the model of a task is offered
  reveille tool show github.create_issue  its description and parameters, as models see them
  reveille tool accept --server github    the new and changed definitions of that MCP server
  reveille tool call current_time --args '{\"timezone\": \"Europe/Berlin\"}' --tenant ann")]
pub enum Command {
    /// List tools, each with whether a model is offered it, and why not
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a tool with its description and its parameters, and whether a model is offered it
    Show(ShowArgs),
    /// Accept the new or changed definitions of tools of MCP servers, which nobody is offered until then
    Accept(accept::AcceptArgs),
    /// Call a tool, to see what it does
    Call(call::CallArgs),
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

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The tool; that of an MCP server is named `server.tool`
    #[arg(value_name = "NAME")]
    name: String,
    /// As it holds for this tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Accept(args) => accept::run(args, environment, screen).await,
        Command::Call(args) => call::run(args, environment, screen).await,
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
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

async fn show(args: ShowArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TOOL_SHOW);
    let tool = client.get(&["v1", "tools", &args.name], &given_filters([("tenant_id", args.tenant)])).await?;
    if args.service.json {
        return Ok(screen.json(&tool)?);
    }
    let word = |field: &str| on_one_line(&text_of(&tool[field]));
    let yes_or_no = |field: &str| if tool[field] == true { "yes" } else { "no" }.to_owned();
    let pin = &tool["pin"];
    screen.facts(&[
        ("name", word("name")),
        ("source", word("source")),
        ("status", word("status")),
        ("version", word("version")),
        ("offered", yes_or_no("offered")),
        ("why not", word("message")),
        ("category", word("category")),
        ("consequence", word("consequence")),
        ("always asks", yes_or_no("requires_confirmation")),
        ("repeatable", yes_or_no("idempotent")),
        ("definition", text_of(&pin["state"])),
        ("accepted", told_of(pin, "accepted", "accepted_at")),
        ("waiting", told_of(pin, "waiting", "waiting_since")),
        ("description", escape_hidden(text_of(&tool["description"]).trim())),
        ("parameters", escape_hidden(&format!("{:#}", tool["parameters"]))),
    ])?;
    show_difference(pin, screen)
}
