//! `reveille dead-letter`: events that could not be handled, to be tried again or given up.

use serde_json::{Map, Value, json};

use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::{Client, ListOptions, Screen, ServiceArgs, YesArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List dead letters, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show one with its event and its error
    #[command(alias = "get")]
    Show(ShowArgs),
    /// Publish their events once more
    Replay(ManyArgs),
    /// Remove them for good
    Drop(DropArgs),
}

/// Which letters are meant.
#[derive(Debug, Clone, clap::Args)]
pub struct DeadLetterSelection {
    /// Only events of this source
    #[arg(long)]
    source: Option<String>,
    /// Only events of this type, or with a trailing `*` those that begin with it
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only those whose error has this in it
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
}

impl DeadLetterSelection {
    fn fields(self) -> Vec<(&'static str, String)> {
        let fields = [("source", self.source), ("type", self.kind), ("error", self.error), ("tenant_id", self.tenant)];
        given_filters(fields)
    }
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    which: DeadLetterSelection,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The dead letter: its id, or the beginning of it
    #[arg(value_name = "LETTER")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("meant").required(true).multiple(true).args(["ids", "source", "kind", "error", "all"])))]
pub struct ManyArgs {
    /// Dead letters: their ids, or the beginnings of them
    #[arg(value_name = "LETTER", conflicts_with_all = ["source", "kind", "error", "tenant", "all"])]
    ids: Vec<String>,
    #[command(flatten)]
    which: DeadLetterSelection,
    /// All there are (with --tenant: all of this tenant)
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct DropArgs {
    #[command(flatten)]
    many: ManyArgs,
    #[command(flatten)]
    yes: YesArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => {
            let client = Client::new(&args.service, environment)?;
            let id = client.dead_letter(&args.id).await?;
            let letter = client.get(&["v1", "dead-letters", &id], &[]).await?;
            show(&letter, args.service.json, screen)
        }
        Command::Replay(args) => many(args, "replay", "replayed", environment, screen).await,
        Command::Drop(args) => {
            if args.many.ids.is_empty() {
                let whose = match &args.many.which.tenant {
                    Some(tenant) => format!(" of {tenant}"),
                    None => String::new(),
                };
                args.yes.confirm(&format!("drop every dead letter{whose} that is meant, for good?"), screen)?;
            }
            many(args.many, "drop", "dropped", environment, screen).await
        }
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let filters = args.which.fields();
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::DEAD_LETTERS);
    let row = |letter: &Value| {
        [
            text_of(&letter["id"]),
            text_of(&letter["tenant_id"]),
            text_of(&letter["event"]["source"]),
            text_of(&letter["event"]["type"]),
            text_of(&letter["deliveries"]),
            time_of(&letter["dead_lettered_at"]),
            cut(&text_of(&letter["error"]), 60),
        ]
    };
    let heading = ["id", "tenant", "source", "type", "deliveries", "dead since", "error"];
    args.page.print(&client, &["v1", "dead-letters"], &filters, (heading, row), screen).await
}

fn show(letter: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(letter)?);
    }
    let found = match &letter["event"] {
        Value::Null => text_of(&letter["text"]),
        event => format!("{event:#}"),
    };
    screen.facts(&[
        ("id", text_of(&letter["id"])),
        ("tenant", text_of(&letter["tenant_id"])),
        ("error", text_of(&letter["error"])),
        ("deliveries", text_of(&letter["deliveries"])),
        ("dead since", time_of(&letter["dead_lettered_at"])),
    ])?;
    Ok(screen.line(found)?)
}

async fn many(
    args: ManyArgs,
    deed: &str,
    done: &str,
    environment: &Environment,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::DEAD_LETTERS);
    let mut count = 0;
    if args.ids.is_empty() {
        let mut choice: Map<String, Value> =
            args.which.fields().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        // a request looks at a bounded number of them, and what can't be replayed stays: the next one goes on behind
        // both
        loop {
            let some = client.post(&["v1", "dead-letters", deed], &Value::Object(choice.clone())).await?;
            count += some["count"].as_u64().unwrap_or(0);
            match some["next_cursor"].as_str() {
                Some(next) => choice.insert("cursor".into(), json!(next)),
                None => break,
            };
        }
    }
    for typed in &args.ids {
        let id = client.dead_letter(typed).await?;
        match deed {
            "drop" => client.delete(&["v1", "dead-letters", &id]).await?,
            _ => client.post(&["v1", "dead-letters", &id, "replay"], &json!({})).await?,
        };
        count += 1;
    }
    match args.service.json {
        true => Ok(screen.json(&json!({ "count": count }))?),
        false => Ok(screen.line(format!("{count} {done}"))?),
    }
}
