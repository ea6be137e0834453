//! `reveille approval`: the questions that wait for people, and their answers.
//!
//! An answer names the digest of what was read and printed just before, so that what was shown is what is decided.

pub mod grant;
pub mod overrides;
mod shown;

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::typed::{self};
use crate::cli::{CliFailure, Client, FieldFlags, ListOptions, Screen, ServiceArgs};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List approvals, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show one whole: what would run, why it is asked about, and what came of it
    #[command(alias = "get")]
    Show(ShowArgs),
    /// Let the call run as it was proposed
    Approve(ApproveArgs),
    /// Let the call run with other arguments
    Edit(EditArgs),
    /// Refuse the call, or stop one that is still held
    #[command(alias = "reject")]
    Cancel(AnswerArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille approval list --status pending       what waits for somebody
  reveille approval list --run 0193f7a2-…       all that one run asked")]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only those that are pending, approved, edited, cancelled or expired
    #[arg(long)]
    status: Option<String>,
    /// Only those about calls (approval), or for what calls lack (input)
    #[arg(long)]
    kind: Option<String>,
    /// Only this task's: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Only this run's: its id, or the beginning of it
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only those that were asked together: the id of their batch, or the beginning of it
    #[arg(long, value_name = "BATCH")]
    batch: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The approval: its id, or the beginning of it
    #[arg(value_name = "APPROVAL")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct AnswerArgs {
    /// The approval: its id, or the beginning of it
    #[arg(value_name = "APPROVAL")]
    id: String,
    /// Why; the model is told, and the record keeps it
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    /// Digest that was looked at before: the answer is refused if something else is asked by now [default: that of the
    /// approval that is read and printed now]
    #[arg(long, value_name = "HEX")]
    digest: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille approval approve 0193f7a2-…
  reveille approval approve 0193f7a2-… --always --days 7 --arg room
                            the same tool of this task is not asked about for 7 days, where `room` is the same")]
pub struct ApproveArgs {
    #[command(flatten)]
    answer: AnswerArgs,
    /// Allow it for good: this tool of this task with these arguments
    #[arg(long)]
    always: bool,
    /// For how many days [default: 30]
    #[arg(long, value_name = "N", requires = "always")]
    days: Option<i64>,
    /// How often [default: as often as it likes]
    #[arg(long, value_name = "N", requires = "always")]
    uses: Option<i64>,
    /// An argument that has to be as it is now; may be given again [default: all of them]
    #[arg(long, value_name = "NAME", requires = "always")]
    arg: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("change").required(true).args(["set", "file"])),
    after_help = "\
Examples:
  reveille approval edit 0193f7a2-… --set amount=80 --set 'to=[\"ann@example.org\"]'
  reveille approval edit 0193f7a2-… --file args.json --comment 'not so much'

An argument that is not named stays as it was proposed; null takes one away."
)]
pub struct EditArgs {
    #[command(flatten)]
    answer: AnswerArgs,
    /// An argument that is to be otherwise, its value as JSON (any other value is a text); may be given again
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A JSON object of them; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => {
            let client = Client::new(&args.service, environment)?;
            let id = client.id("approvals", &args.id).await?;
            let approval = client.get(&["v1", "approvals", &id], &[]).await?;
            shown::print(&approval, args.service.json, screen)
        }
        Command::Approve(args) => {
            let grant = args.always.then(|| grant(&args));
            let more = grant.map(|grant| ("grant", grant));
            decide("approve", args.answer, more, typed::DECISION, environment, screen).await
        }
        Command::Edit(args) => {
            let changes = changes(&args)?;
            let typed = if args.file.is_some() { typed::DECISION_IN_FILE } else { typed::DECISION };
            decide("edit", args.answer, Some(("modifications", changes)), typed, environment, screen).await
        }
        Command::Cancel(args) => decide("cancel", args, None, typed::DECISION, environment, screen).await,
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::APPROVAL_LIST);
    let filters = given_filters([
        ("tenant_id", args.tenant),
        ("status", args.status),
        ("kind", args.kind),
        ("task_id", client.optional_id("tasks", args.task.as_deref()).await?),
        ("run_id", client.optional_id("runs", args.run.as_deref()).await?),
        ("batch_id", client.batch_if(args.batch.as_deref()).await?),
    ]);
    let row = |approval: &Value| {
        [
            text_of(&approval["id"]),
            text_of(&approval["tenant_id"]),
            text_of(&approval["status"]),
            time_of(&approval["expires_at"]),
            on_one_line(&text_of(&approval["agent_name"])),
            cut(&on_one_line(&text_of(&approval["action_summary"])), 80),
        ]
    };
    args.page
        .print(
            &client,
            &["v1", "approvals"],
            &filters,
            (["id", "tenant", "status", "expires", "tool", "what"], row),
            screen,
        )
        .await
}

/// Shows the whole call, then answers about exactly this one.
async fn decide(
    decision: &str,
    args: AnswerArgs,
    more: Option<(&str, Value)>,
    typed: FieldFlags,
    environment: &Environment,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed);
    let id = client.id("approvals", &args.id).await?;
    let approval = client.get(&["v1", "approvals", &id], &[]).await?;
    if !args.service.json {
        shown::print_call(&approval, screen)?;
        screen.flush()?;
    }
    let mut answer = Map::from_iter([
        ("decision".to_owned(), json!(decision)),
        ("digest".to_owned(), args.digest.map_or_else(|| approval["digest"].clone(), Value::String)),
    ]);
    answer.extend(args.comment.map(|comment| ("comment".to_owned(), json!(comment))));
    answer.extend(more.map(|(name, value)| (name.to_owned(), value)));
    let decided = client.post(&["v1", "approvals", &id, "decision"], &Value::Object(answer)).await?;
    match args.service.json {
        true => Ok(screen.json(&decided)?),
        false => shown::print_decision(&decided, screen),
    }
}

fn grant(args: &ApproveArgs) -> Value {
    let mut grant = Map::new();
    grant.extend(args.days.map(|days| ("days".to_owned(), json!(days))));
    grant.extend(args.uses.map(|uses| ("uses".to_owned(), json!(uses))));
    if !args.arg.is_empty() {
        grant.insert("args".into(), json!(args.arg));
    }
    Value::Object(grant)
}

fn changes(args: &EditArgs) -> anyhow::Result<Value> {
    if let Some(path) = &args.file {
        let text = read(path)?;
        return match serde_json::from_str(&text) {
            Ok(changes @ Value::Object(_)) => Ok(changes),
            _ => Err(CliFailure::new(format!("{} is no JSON object", path.display()))
                .hint("such as {\"amount\": 80}")
                .into()),
        };
    }
    args.set.iter().map(|pair| change(pair)).collect()
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// `amount=80` is a number, `text=Hello` a text, `text="80"` too.
pub fn change(pair: &str) -> anyhow::Result<(String, Value)> {
    match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            Ok((name.to_owned(), value))
        }
        _ => Err(CliFailure::new(format!("`{pair}` names no argument")).hint("such as --set amount=80").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_json_where_it_can_be_and_else_a_text() {
        let read = |pair: &str| change(pair).unwrap();
        assert_eq!(read("amount=80"), ("amount".into(), json!(80)));
        assert_eq!(read("text=Hello = you"), ("text".into(), json!("Hello = you")));
        assert_eq!(read("text=\"80\""), ("text".into(), json!("80")));
        assert_eq!(read("to=[\"a@b.org\"]"), ("to".into(), json!(["a@b.org"])));
        assert_eq!((read("note=null"), read("note=")), (("note".into(), json!(null)), ("note".into(), json!(""))));
        assert!(change("amount").is_err() && change("=1").is_err());
    }
}
