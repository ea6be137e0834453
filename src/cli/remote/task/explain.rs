//! `reveille task explain`: why a task fires, or does not, in words; with `--at`, what became of one instant.

use serde_json::Value;

use crate::cli::client::given_filters;
use crate::cli::remote::run::sentences;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille task explain ID
  reveille task explain ID --at 2027-03-01T08:00:00       local time in the task's zone
  reveille task explain ID --at 2027-03-01T07:00:00Z")]
pub struct Args {
    /// The task: its id, the beginning of it, or its key
    #[arg(value_name = "TASK")]
    id: String,
    /// Say what became of this instant: RFC 3339, or local time in the task's zone
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let asked = given_filters([("at", args.at)]);
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TASK_EXPLAIN);
    let id = client.id("tasks", &args.id).await?;
    let explained = client.get(&["v1", "tasks", &id, "explain"], &asked).await?;
    if args.service.json {
        return Ok(screen.json(&explained)?);
    }
    let instant = &explained["instant"];
    if instant.is_object() {
        return of_instant(instant, screen);
    }
    sentences(&explained, screen)?;
    for (name, heading) in [("next", "next"), ("if_resumed", "if resumed now")] {
        let instants = explained[name].as_array().map(Vec::as_slice).unwrap_or_default();
        if !instants.is_empty() {
            screen.line("")?;
            screen.table(&[heading, "local", "zone"], instants.iter().map(row).collect())?;
        }
    }
    Ok(())
}

/// The instant with its outcome, and the instants beside it.
fn of_instant(instant: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    screen.line(format!("{}: {}", text_of(&instant["local"]), text_of(&instant["outcome"])))?;
    sentences(instant, screen)?;
    let beside = ["before", "after"].map(|name| &instant[name]).into_iter().filter(|beside| beside.is_object());
    let rows: Vec<Vec<String>> = beside.map(row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    screen.line("")?;
    Ok(screen.table(&["beside", "local", "zone"], rows)?)
}

fn row(instant: &Value) -> Vec<String> {
    vec![time_of(&instant["at"]), text_of(&instant["local"]), text_of(&instant["timezone"])]
}
