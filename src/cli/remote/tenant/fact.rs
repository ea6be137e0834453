//! `reveille fact`: what agents know of tenants.

use serde_json::{Map, Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::{CliFailure, Client, ListOptions, Screen, ServiceArgs, YesArgs, typed};
use crate::config::Environment;

/// Characters of a fact in a row.
const CELL: usize = 80;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille fact add 'Prefers window seats.' --tenant ann --collection preferences/travel
  reveille fact list --tenant ann --collection preferences    and those of preferences/travel
  reveille fact correct 0193f7a2 --text 'Prefers aisle seats.'
  reveille fact export --tenant ann > ann.jsonl               a line for each, with what it said before
  reveille fact delete --all --tenant ann                     forgets all of ann")]
pub enum Command {
    /// Note a fact that agents are to know of a tenant
    Add(AddArgs),
    /// List facts, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a fact, and what it said before
    #[command(alias = "get")]
    Show(OneArgs),
    /// Correct a fact; its former text stays as an earlier version
    Correct(CorrectArgs),
    /// Delete a fact with all that it has said, or all facts of a tenant
    #[command(alias = "rm")]
    Delete(DeleteArgs),
    /// Print facts as JSON, one on a line, each with its earlier versions
    Export(ExportArgs),
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// The fact: one sentence that makes sense by itself
    #[arg(value_name = "TEXT")]
    text: String,
    /// Its collection, such as preferences/travel; those of `profile` and `preferences` are told in every run
    #[arg(long, value_name = "PATH")]
    collection: Option<String>,
    /// The tenant that it is about; a tenant's own token speaks for its tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    page: ListOptions,
}

/// Which facts are meant.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only of this collection and those below it
    #[arg(long, value_name = "PATH")]
    collection: Option<String>,
    /// Only those with this in their text
    #[arg(short, long, value_name = "TEXT")]
    query: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// The fact: its id, or the beginning of it
    #[arg(value_name = "FACT")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct CorrectArgs {
    /// Its text
    #[arg(long, value_name = "TEXT", required_unless_present = "collection")]
    text: Option<String>,
    /// Its collection; empty: none
    #[arg(long, value_name = "PATH")]
    collection: Option<String>,
    #[command(flatten)]
    one: OneArgs,
}

#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    /// The fact: its id, or the beginning of it
    #[arg(value_name = "FACT", required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// All that is known of the tenant
    #[arg(long, requires = "tenant")]
    all: bool,
    /// The tenant, with --all
    #[arg(long, value_name = "ID", requires = "all")]
    tenant: Option<String>,
    #[command(flatten)]
    yes: YesArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Add(args) => add(args, environment, screen).await,
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Correct(args) => correct(args, environment, screen).await,
        Command::Delete(args) => delete(args, environment, screen).await,
        Command::Export(args) => export(args, environment, screen).await,
    }
}

async fn add(args: AddArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::FACT);
    let mut body = Map::from_iter([("text".to_owned(), json!(args.text))]);
    let more = [("tenant_id", args.tenant), ("collection", args.collection)];
    body.extend(more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
    let fact = client.post(&["v1", "facts"], &Value::Object(body)).await?;
    print(&fact, args.service.json, screen)
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::FACT_LIST);
    let row = |fact: &Value| {
        [
            text_of(&fact["id"]),
            text_of(&fact["tenant_id"]),
            on_one_line(&text_of(&fact["collection"])),
            text_of(&fact["origin"]),
            text_of(&fact["mentions"]),
            cut(&on_one_line(&text_of(&fact["text"])), CELL),
        ]
    };
    let heading = ["id", "tenant", "collection", "origin", "times", "fact"];
    args.page.print(&client, &["v1", "facts"], &args.filter.given(), (heading, row), screen).await
}

async fn show(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("facts", &args.id).await?;
    let fact = client.get(&["v1", "facts", &id], &[]).await?;
    print(&fact, args.service.json, screen)?;
    if args.service.json {
        return Ok(());
    }
    for earlier in fact["versions"].as_array().into_iter().flatten() {
        let (until, text) = (time_of(&earlier["replaced_at"]), on_one_line(&text_of(&earlier["text"])));
        screen.line(format!("until {until}: {text}"))?;
    }
    Ok(())
}

async fn correct(args: CorrectArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.one.service, environment)?.with_flag_names(typed::FACT_CORRECTION);
    let id = client.id("facts", &args.one.id).await?;
    let given = [("text", args.text), ("collection", args.collection)];
    let body = given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect();
    let fact = client.patch(&["v1", "facts", &id], &Value::Object(body)).await?;
    print(&fact, args.one.service.json, screen)
}

async fn delete(args: DeleteArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    if let Some(tenant) = args.tenant {
        args.yes.confirm(&format!("delete all that is known of `{}`?", on_one_line(&tenant)), screen)?;
        let answer = client.delete(&["v1", "tenants", &tenant, "facts"]).await?;
        return match args.service.json {
            true => Ok(screen.json(&answer)?),
            false => match answer["deleted"].as_u64() {
                Some(1) => Ok(screen.line("deleted 1 fact")?),
                _ => Ok(screen.line(format!("deleted {} facts", answer["deleted"]))?),
            },
        };
    }
    let Some(named) = args.id else { return Err(CliFailure::new("name a fact, or --all with --tenant").into()) };
    let id = client.id("facts", &named).await?;
    let fact = client.get(&["v1", "facts", &id], &[]).await?;
    args.yes.confirm(&format!("delete `{}`?", cut(&on_one_line(&text_of(&fact["text"])), CELL)), screen)?;
    client.delete(&["v1", "facts", &id]).await?;
    match args.service.json {
        true => Ok(screen.json(&fact)?),
        false => Ok(screen.line(format!("deleted {id}"))?),
    }
}

async fn export(args: ExportArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::FACT_LIST);
    let facts = client.list(&["v1", "facts"], &args.filter.given(), usize::MAX).await?;
    for mut fact in facts {
        let has_earlier = fact["version"].as_i64().is_some_and(|version| version > 1);
        match has_earlier {
            true => fact = client.get(&["v1", "facts", &text_of(&fact["id"])], &[]).await?,
            false => fact["versions"] = json!([]),
        }
        screen.line(fact.to_string())?;
    }
    Ok(())
}

impl FilterArgs {
    fn given(self) -> Vec<(&'static str, String)> {
        given_filters([("tenant_id", self.tenant), ("collection", self.collection), ("q", self.query)])
    }
}

fn print(fact: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(fact)?);
    }
    screen.facts(&[
        ("id", text_of(&fact["id"])),
        ("tenant", text_of(&fact["tenant_id"])),
        ("fact", on_one_line(&text_of(&fact["text"]))),
        ("collection", on_one_line(&text_of(&fact["collection"]))),
        ("origin", text_of(&fact["origin"])),
        ("run", text_of(&fact["run_id"])),
        ("noted", time_of(&fact["noted_at"])),
        ("noted by", on_one_line(&text_of(&fact["noted_by"]))),
        ("times", text_of(&fact["mentions"])),
        ("version", text_of(&fact["version"])),
    ])?;
    Ok(())
}
