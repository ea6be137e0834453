//! `reveille token`: who may call the API, and for what. A token's text is shown once, when it is made.

use serde_json::{Map, Value, json};

use super::approval::grant::revoke;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{CliFailure, Client, ListOptions, Screen, ServiceArgs, Tone, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a token; its text is shown this once
    Create(CreateArgs),
    /// List tokens
    #[command(alias = "ls")]
    List(ListArgs),
    /// Revoke a token, everywhere within a second
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("whose").required(true).args(["tenant", "admin"])))]
pub struct CreateArgs {
    /// The tenant that it belongs to
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// It sees every tenant
    #[arg(long)]
    admin: bool,
    /// Purpose of the token
    #[arg(long)]
    name: String,
    /// Permission such as `tasks:read`; may be given again
    #[arg(long, value_name = "SCOPE", default_value = "*")]
    scope: Vec<String>,
    /// When it ends, RFC 3339 [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The token: its id, as `reveille token list` shows it, or the beginning of it
    #[arg(value_name = "TOKEN")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args, environment, screen).await,
        Command::List(args) => list(args, environment, screen).await,
        Command::Revoke(args) => {
            let client = Client::new(&args.service, environment)?;
            revoke(&client, "tokens", &args.id, args.service.json, screen).await
        }
    }
}

async fn create(args: CreateArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    // who names nobody makes an admin token
    let mut body = Map::from_iter([("name".to_owned(), json!(args.name)), ("scopes".to_owned(), json!(args.scope))]);
    let texts = [("tenant_id", args.tenant), ("expires_at", args.expires_at)];
    body.extend(texts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TOKEN);
    let made = client.post(&["v1", "tokens"], &Value::Object(body)).await?;
    if made["token"].is_null() {
        // the text is answered once, and that answer was lost
        let id = text_of(&made["id"]);
        let failure = CliFailure::new(format!("the token {id} was made, but its text was lost on the way"));
        return Err(failure.hint(format!("`reveille token revoke {id}`, and make another")).into());
    }
    if args.service.json {
        return Ok(screen.json(&made)?);
    }
    screen.facts(&[
        ("id", text_of(&made["id"])),
        ("tenant", text_of(&made["tenant_id"])),
        ("scopes", scopes_of(&made)),
        ("expires", time_of(&made["expires_at"])),
        ("token", screen.tone(Tone::Strong, text_of(&made["token"]))),
    ])?;
    screen.line("keep it now: it is not shown again")?;
    Ok(())
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let filters: Vec<_> = args.tenant.map(|tenant| ("tenant_id", tenant)).into_iter().collect();
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::TOKEN);
    let row = |token: &Value| {
        [
            text_of(&token["id"]),
            text_of(&token["kind"]),
            text_of(&token["tenant_id"]),
            text_of(&token["name"]),
            scopes_of(token),
            time_of(&token["expires_at"]),
            time_of(&token["revoked_at"]),
        ]
    };
    let heading = ["id", "kind", "tenant", "name", "scopes", "expires", "revoked"];
    args.page.print(&client, &["v1", "tokens"], &filters, (heading, row), screen).await
}

fn scopes_of(token: &Value) -> String {
    token["scopes"].as_array().into_iter().flatten().map(text_of).collect::<Vec<_>>().join(" ")
}
