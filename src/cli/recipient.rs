//! `reveille recipient`: where a tenant is reached.

use std::io::Read;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::client::ServiceArgs;
use super::failure::Failure;
use super::screen::{Screen, text_of, time_of};
use crate::cli::Client;
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Set where a tenant is reached; replaces what was set before
    Set(SetArgs),
    /// Show where a tenant is reached
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("addresses").required(true).multiple(true).args(["file", "email", "webhook"])))]
pub struct SetArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// The whole recipient as JSON, `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["email", "webhook", "timezone", "locale", "fallback"])]
    file: Option<std::path::PathBuf>,
    /// Address for the channel `email`
    #[arg(long, value_name = "ADDRESS")]
    email: Option<String>,
    /// Address for the channel `webhook`; its secret is read from standard input with --webhook-secret-stdin
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Read the webhook's secret (`whsec_…`) from standard input: flags can be seen by others on this machine
    #[arg(long, requires = "webhook")]
    webhook_secret_stdin: bool,
    /// IANA time zone
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Language, such as `en`
    #[arg(long, value_name = "TAG")]
    locale: Option<String>,
    /// Channel to use first; again for the next one if that fails
    #[arg(long, value_name = "CHANNEL")]
    fallback: Vec<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Set(args) => {
            let recipient = typed(&args)?;
            let client = Client::new(&args.service, environment)?;
            let set = client.put(&["v1", "recipients", &args.tenant], &recipient).await?;
            print(&set, args.service.json, screen)
        }
        Command::Show(args) => {
            let client = Client::new(&args.service, environment)?;
            let recipient = client.get(&["v1", "recipients", &args.tenant], &[]).await?;
            print(&recipient, args.service.json, screen)
        }
    }
}

fn typed(args: &SetArgs) -> anyhow::Result<Value> {
    if let Some(file) = &args.file {
        return from_file(file);
    }
    let mut addresses = Map::new();
    if let Some(email) = &args.email {
        addresses.insert("email".into(), json!(email));
    }
    if let Some(url) = &args.webhook {
        let mut webhook = Map::from_iter([("url".to_owned(), json!(url))]);
        if args.webhook_secret_stdin {
            webhook.insert("secret".into(), json!(standard_input()?.trim()));
        }
        addresses.insert("webhook".into(), Value::Object(webhook));
    }
    let mut recipient = Map::from_iter([("addresses".to_owned(), Value::Object(addresses))]);
    if let Some(timezone) = &args.timezone {
        recipient.insert("timezone".into(), json!(timezone));
    }
    if let Some(locale) = &args.locale {
        recipient.insert("locale".into(), json!(locale));
    }
    if !args.fallback.is_empty() {
        recipient.insert("fallback".into(), json!(args.fallback));
    }
    Ok(Value::Object(recipient))
}

fn from_file(file: &std::path::Path) -> anyhow::Result<Value> {
    let text = match file.to_str() {
        Some("-") => standard_input()?,
        _ => std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?,
    };
    let read = serde_json::from_str(&text);
    read.map_err(|error| Failure::new(format!("{} is not JSON: {error}", file.display())).into())
}

fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("read standard input")?;
    Ok(text)
}

fn print(recipient: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(recipient)?);
    }
    let mut facts = vec![
        ("tenant", text_of(&recipient["tenant_id"])),
        ("time zone", text_of(&recipient["timezone"])),
        ("locale", text_of(&recipient["locale"])),
    ];
    for (channel, address) in recipient["addresses"].as_object().into_iter().flatten() {
        facts.push((channel, shown(address)));
    }
    let order = recipient["fallback"].as_array().into_iter().flatten().map(text_of).collect::<Vec<_>>();
    facts.push(("order", order.join(", then ")));
    facts.push(("updated", time_of(&recipient["updated_at"])));
    Ok(screen.facts(&facts)?)
}

/// An address with parts shows its URL; whether its secret is set is told, the secret is not.
fn shown(address: &Value) -> String {
    match (&address["url"], address["secret_set"].as_bool()) {
        (Value::String(url), Some(true)) => format!("{url} (signed)"),
        (Value::String(url), _) => url.clone(),
        _ => text_of(address),
    }
}
