//! `reveille agent suspended` and what can be done with one: runs that wait for people, with the agents in them that
//! do.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{Client, ListOptions, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
pub struct SuspendedArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct OneSuspendedArgs {
    /// The run that waits: its id, or the beginning of it
    #[arg(value_name = "RUN")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn list(args: SuspendedArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::SUSPENDED_LIST);
    let heading = ["run", "tenant", "state", "agents that wait", "questions", "expires", "paused"];
    let filters = given_filters([("tenant_id", args.tenant)]);
    args.page.print(&client, &["v1", "agents", "suspended"], &filters, (heading, row), screen).await
}

/// Pauses, resumes or cancels one.
pub async fn act(
    args: OneSuspendedArgs,
    verb: &str,
    environment: &Environment,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("runs", &args.id).await?;
    let answer = client.post(&["v1", "agents", "suspended", &id, verb], &json!({})).await?;
    if args.service.json {
        return Ok(screen.json(&answer)?);
    }
    let told = match answer["paused_at"].as_str() {
        Some(_) => format!("paused until it is resumed, or {}", time_of(&answer["resumes_at"])),
        None => text_of(&answer["state"]),
    };
    Ok(screen.line(format!("{id}  {told}"))?)
}

fn row(run: &Value) -> [String; 7] {
    let agents: Vec<&Value> = run["agents"].as_array().into_iter().flatten().collect();
    let names: Vec<String> = agents.iter().map(|agent| chain_of(agent)).collect();
    let questions: i64 = agents.iter().filter_map(|agent| agent["questions"].as_i64()).sum();
    let instants = agents.iter().filter_map(|agent| agent["expires_at"].as_str()?.parse::<DateTime<Utc>>().ok());
    [
        text_of(&run["id"]),
        text_of(&run["tenant_id"]),
        text_of(&run["state"]),
        names.join(", "),
        questions.to_string(),
        instants.min().map_or_else(String::new, |at| time_of(&json!(at))),
        time_of(&run["paused_at"]),
    ]
}

/// The agents through which one was called, and itself; nothing for the run's own.
fn chain_of(agent: &Value) -> String {
    let names = agent["delegation_chain"].as_array().into_iter().flatten().map(text_of).collect::<Vec<_>>();
    if names.is_empty() { "the run's own".to_owned() } else { on_one_line(&names.join(" > ")) }
}
