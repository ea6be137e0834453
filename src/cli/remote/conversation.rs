//! `reveille conversation`: what was said, and answered.

pub mod chat;
mod keyboard;

use serde_json::{Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::{Client, ListOptions, Screen, ServiceArgs, Tone, YesArgs};
use crate::config::Environment;

/// Characters of a title in a list.
const TITLE: usize = 60;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List conversations, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a conversation: its messages and their answers
    #[command(alias = "get")]
    Show(OneArgs),
    /// Delete a conversation with all that belongs to it
    #[command(alias = "rm")]
    Delete(DeleteArgs),
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
pub struct OneArgs {
    /// The conversation: its id, or the beginning of it
    #[arg(value_name = "CONVERSATION")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    one: OneArgs,
    #[command(flatten)]
    yes: YesArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Delete(args) => delete(args, environment, screen).await,
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?;
    let filters = given_filters([("tenant_id", args.tenant)]);
    let row = |conversation: &Value| {
        [
            text_of(&conversation["id"]),
            text_of(&conversation["tenant_id"]),
            time_of(&conversation["last_message_at"]),
            cut(&on_one_line(&text_of(&conversation["title"])), TITLE),
        ]
    };
    let heading = ["id", "tenant", "last message", "title"];
    args.page.print(&client, &["v1", "conversations"], &filters, (heading, row), screen).await
}

async fn show(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("conversations", &args.id).await?;
    let conversation = client.get(&["v1", "conversations", &id], &[]).await?;
    let messages = messages_of(&client, &id, usize::MAX).await?;
    if args.service.json {
        return Ok(screen.json(&json!({ "conversation": conversation, "messages": messages }))?);
    }
    screen.facts(&[
        ("id", text_of(&conversation["id"])),
        ("tenant", text_of(&conversation["tenant_id"])),
        ("created", time_of(&conversation["created_at"])),
        ("last message", time_of(&conversation["last_message_at"])),
    ])?;
    print_messages(&messages, screen)
}

async fn delete(args: DeleteArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.one.service, environment)?;
    let id = client.id("conversations", &args.one.id).await?;
    let conversation = client.get(&["v1", "conversations", &id], &[]).await?;
    let title = on_one_line(&text_of(&conversation["title"]));
    args.yes.confirm(&format!("delete the conversation `{title}`?"), screen)?;
    client.delete(&["v1", "conversations", &id]).await?;
    match args.one.service.json {
        true => Ok(screen.json(&conversation)?),
        false => Ok(screen.line(format!("deleted {id}"))?),
    }
}

/// The newest messages of a conversation, oldest first.
async fn messages_of(client: &Client, id: &str, limit: usize) -> anyhow::Result<Vec<Value>> {
    let mut messages = client.list(&["v1", "conversations", id, "messages"], &[], limit).await?;
    messages.reverse();
    Ok(messages)
}

fn print_messages(messages: &[Value], screen: &mut Screen) -> anyhow::Result<()> {
    for message in messages {
        let said = text_of(&message["message"]);
        screen.line(format!("\n{} {}", screen.tone(Tone::Strong, ">"), on_one_line(&said)))?;
        let answer = match (&message["response"], &message["error"]) {
            (Value::String(answer), _) => answer.clone(),
            (_, Value::Object(error)) => screen.tone(Tone::Bad, format!("✗ {}", text_of(&error["message"]))),
            _ => screen.tone(Tone::Faint, format!("· {}", text_of(&message["state"]))),
        };
        answer.lines().try_for_each(|line| screen.line(on_one_line(line)))?;
    }
    Ok(())
}
