//! `reveille agent`: configured agents with what each of them is offered, and those that wait for people.

mod suspended;

use serde_json::{Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::remote::agent::suspended::{OneSuspendedArgs, SuspendedArgs};
use crate::cli::screen::{cut, text_of};
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille agent list                  the agents of [[agents]], and what each is offered
  reveille agent list --tenant ann     the same as it holds for ann
  reveille agent suspended             runs whose agents wait for people
  reveille agent pause 0199a3          nobody is reminded, and nothing expires, until it is resumed
  reveille tool list --agent booker    why `booker` is not offered the other tools")]
pub enum Command {
    /// List configured agents, each with whether it can be asked, and the tools that it is offered
    #[command(alias = "ls")]
    List(ListArgs),
    /// List runs whose agents wait for people, newest first
    Suspended(SuspendedArgs),
    /// Pause a run that waits: until it is resumed nobody is reminded, nothing expires, and no answer is taken
    Pause(OneSuspendedArgs),
    /// Resume a paused run, with as much time left as it had
    Resume(OneSuspendedArgs),
    /// Cancel a run that waits, with all agents in it
    Cancel(OneSuspendedArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// As it holds for this tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Characters of a description or of the names of tools in a row.
const CELL: usize = 60;

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Suspended(args) => suspended::list(args, environment, screen).await,
        Command::Pause(args) => suspended::act(args, "pause", environment, screen).await,
        Command::Resume(args) => suspended::act(args, "resume", environment, screen).await,
        Command::Cancel(args) => suspended::act(args, "cancel", environment, screen).await,
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::AGENT_LIST);
    let answer = client.get(&["v1", "agents"], &given_filters([("tenant_id", args.tenant)])).await?;
    if args.service.json {
        return Ok(screen.json(&json!({ "items": answer["items"] }))?);
    }
    let row = |agent: &Value| {
        vec![
            on_one_line(&text_of(&agent["name"])),
            text_of(&agent["model"]),
            if agent["usable"] == true { "yes" } else { "no" }.to_owned(),
            text_of(&agent["message"]),
            cut(&offered_names(agent), CELL),
            cut(&on_one_line(&text_of(&agent["description"])), CELL),
        ]
    };
    let rows = answer["items"].as_array().into_iter().flatten().map(row).collect();
    Ok(screen.table(&["name", "model", "usable", "why not", "offered tools", "description"], rows)?)
}

/// The names of the tools that the agent's model is offered.
fn offered_names(agent: &Value) -> String {
    let tools = agent["tools"].as_array().into_iter().flatten().filter(|tool| tool["offered"] == true);
    let names: Vec<&str> = tools.filter_map(|tool| tool["name"].as_str()).collect();
    names.join(", ")
}
