//! `reveille notify`: a message to a recipient, to see that the channels work.

use std::time::Duration;

use serde_json::{Value, json};

use super::delivery::print_delivery;
use crate::base::clock;
use crate::cli::screen::text_of;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, typed};
use crate::config::Environment;

/// How often is looked whether it has arrived, and how often at most.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS: usize = 60;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Send a test message, whatever the hour, and wait until it has arrived
    Test(TestArgs),
}

#[derive(Debug, clap::Args)]
pub struct TestArgs {
    /// The tenant whose recipient gets it
    #[arg(long, value_name = "TENANT")]
    tenant: String,
    /// Through this channel [default: the recipient's order]
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Command::Test(args) = command;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::NOTIFY);
    let body = args.channel.map(|channel| json!({ "channel": channel })).unwrap_or_else(|| json!({}));
    let made = client.post(&["v1", "recipients", &args.tenant, "test"], &body).await?;
    let delivery = wait_until_settled(&client, made).await?;
    print_delivery(&delivery, args.service.json, screen)?;
    match delivery["state"].as_str() {
        Some("delivered" | "sent") => Ok(()),
        state => Err(CliFailure::new(format!("the message is {}", state.unwrap_or("lost")))
            .hint("`reveille check` tests the channels of the configuration")
            .into()),
    }
}

/// The delivery once it is no longer pending, or as it stands after half a minute.
async fn wait_until_settled(client: &Client, mut delivery: Value) -> anyhow::Result<Value> {
    let id = text_of(&delivery["id"]);
    for _ in 0..LOOKS {
        if delivery["state"] != "pending" || delivery["last_error"].is_string() {
            break;
        }
        clock::pause(LOOK_EVERY).await;
        delivery = client.get(&["v1", "deliveries", &id], &[]).await?;
    }
    Ok(delivery)
}
