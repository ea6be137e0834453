//! `reveille delivery`: what was sent to whom, through which channel, and what came of it.

pub mod dead_letter;

use serde_json::{Value, json};

use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of, tone_of};
use crate::cli::{Client, ListOptions, Screen, ServiceArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List deliveries, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Send one again
    Retry(OneArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only this run's: its id, or the beginning of it
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only those in this state: pending, sent, delivered, failed, unknown
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// The delivery: its id, or the beginning of it
    #[arg(value_name = "DELIVERY")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Retry(args) => {
            let client = Client::new(&args.service, environment)?;
            let id = client.id("deliveries", &args.id).await?;
            let delivery = client.post(&["v1", "deliveries", &id, "retry"], &json!({})).await?;
            print_delivery(&delivery, args.service.json, screen)
        }
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::DELIVERY_LIST);
    let run = client.optional_id("runs", args.run.as_deref()).await?;
    let filters = given_filters([("tenant_id", args.tenant), ("run_id", run), ("state", args.state)]);
    let row = |delivery: &Value| {
        [
            text_of(&delivery["id"]),
            text_of(&delivery["tenant_id"]),
            text_of(&delivery["channel"]),
            text_of(&delivery["kind"]),
            text_of(&delivery["state"]),
            text_of(&delivery["attempts"]),
            time_of(&delivery["created_at"]),
            cut(&text_of(&delivery["last_error"]), 60),
        ]
    };
    let heading = ["id", "tenant", "channel", "kind", "state", "attempts", "created", "last error"];
    args.page.print(&client, &["v1", "deliveries"], &filters, (heading, row), screen).await
}

pub fn print_delivery(delivery: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(delivery)?);
    }
    let state = text_of(&delivery["state"]);
    screen.facts(&[
        ("id", text_of(&delivery["id"])),
        ("tenant", text_of(&delivery["tenant_id"])),
        ("channel", text_of(&delivery["channel"])),
        ("state", screen.tone(tone_of(&state), &state)),
        ("attempts", text_of(&delivery["attempts"])),
        ("hold reason", text_of(&delivery["hold_reason"])),
        ("digest", text_of(&delivery["digest_id"])),
        ("delivered", time_of(&delivery["delivered_at"])),
        ("last error", text_of(&delivery["last_error"])),
    ])?;
    Ok(())
}
