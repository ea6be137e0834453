//! `reveille event`: publishing events, and watching them come.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use futures::StreamExt;
use serde_json::{Map, Value, json};

use super::run::sentences;
use crate::base::clock::machine_now;
use crate::cli::client::given_filters;
use crate::cli::moment::parse_moment;
use crate::cli::screen::{cut, text_of, time_of};
use crate::cli::{CliFailure, Client, ListOptions, Screen, ServiceArgs, Tone, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Publish an event
    Publish(PublishArgs),
    /// Show events as they come, until Ctrl-C
    Tail(TailArgs),
    /// List what the bus has kept
    #[command(alias = "ls")]
    List(ListArgs),
    /// Say which tasks an event fired, and why it matched no others
    Explain(ExplainArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille event publish --source email --type new_email --data '{\"from\":\"ann@example.org\"}'
  reveille event publish --file events.json       a CloudEvent or the short form, or a list of them
  kubectl get events -o json | reveille event publish --source k8s --type events --data -")]
pub struct PublishArgs {
    /// A CloudEvent or an event in the short form, or a list of them, as JSON; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "kind", "data", "id", "subject"])]
    file: Option<PathBuf>,
    /// Source of the event
    #[arg(long, required_unless_present = "file")]
    source: Option<String>,
    /// Type of the event
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file")]
    kind: Option<String>,
    /// Data of the event, as JSON; `-` is standard input
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Unique within tenant and source: the same again does nothing [default: one is made]
    #[arg(long)]
    id: Option<String>,
    /// Subject of the event
    #[arg(long)]
    subject: Option<String>,
    /// Tenant of the event; named by an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct TailArgs {
    #[command(flatten)]
    which: EventChoice,
    /// Go on after this event of the stream
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    which: EventChoice,
    /// Only those that the bus has taken from this time on: RFC 3339, or how long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those that it has taken before this time: RFC 3339, or how long ago
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// The newest first [default: the oldest]
    #[arg(long)]
    newest: bool,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The event: its id, or as much of its beginning as no other has
    #[arg(value_name = "EVENT")]
    id: String,
    /// Its source; else it may be of any
    #[arg(long)]
    source: Option<String>,
    /// Tenant of the events; named by an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Which events are meant.
#[derive(Debug, clap::Args)]
pub struct EventChoice {
    /// Only this source's
    #[arg(long)]
    source: Option<String>,
    /// Only of this type, or with a trailing `*` those that begin with it
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
}

impl EventChoice {
    fn query(self) -> Vec<(&'static str, String)> {
        let filters = [("source", self.source), ("type", self.kind), ("tenant_id", self.tenant)];
        given_filters(filters)
    }
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Publish(args) => publish(args, environment, screen).await,
        Command::Tail(args) => tail(args, environment, screen).await,
        Command::Explain(args) => explain(args, environment, screen).await,
        Command::List(args) => {
            let at = |typed: Option<String>| typed.map(|typed| parse_moment(&typed, machine_now())).transpose();
            let order = args.newest.then(|| ("order", "newest".to_owned()));
            let times = given_filters([("since", at(args.since)?), ("until", at(args.until)?)]);
            let query: Vec<_> = args.which.query().into_iter().chain(times).chain(order).collect();
            let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::EVENT);
            let heading = ["time", "tenant", "source", "type", "id", "data"];
            args.page.print(&client, &["v1", "events"], &query, (heading, row), screen).await
        }
    }
}

async fn publish(args: PublishArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let mut body = match &args.file {
        Some(file) => parse(&text_from(file)?, &file.display().to_string())?,
        None => event_from_args(&args)?,
    };
    if let (Some(tenant), Some(_)) = (&args.tenant, &args.file) {
        name_tenant(&mut body, tenant);
    }
    let typed = if args.file.is_some() { typed::EVENT_IN_FILE } else { typed::EVENT };
    let answer = Client::new(&args.service, environment)?.with_flag_names(typed).post(&["v1", "events"], &body).await?;
    if args.service.json {
        return Ok(screen.json(&answer)?);
    }
    for id in answer["ids"].as_array().into_iter().flatten() {
        screen.line(format!("published {}", screen.tone(Tone::Strong, text_of(id))))?;
    }
    Ok(())
}

fn event_from_args(args: &PublishArgs) -> anyhow::Result<Value> {
    let data = match args.data.as_deref() {
        Some("-") => Some(parse(&text_from(Path::new("-"))?, "standard input")?),
        Some(text) => Some(parse(text, "--data")?),
        None => None,
    };
    let texts = [
        ("tenant_id", &args.tenant),
        ("source", &args.source),
        ("type", &args.kind),
        ("id", &args.id),
        ("subject", &args.subject),
    ];
    let mut fields: Map<String, Value> =
        texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text.as_deref()?)))).collect();
    fields.extend(data.map(|data| ("data".to_owned(), data)));
    Ok(Value::Object(fields))
}

/// Puts the tenant into each event that names none, as its form calls it.
fn name_tenant(body: &mut Value, tenant: &str) {
    let events = match body {
        Value::Array(events) => events.as_mut_slice(),
        one => std::slice::from_mut(one),
    };
    for fields in events.iter_mut().filter_map(Value::as_object_mut) {
        let name = if fields.contains_key("specversion") { "tenantid" } else { "tenant_id" };
        fields.entry(name).or_insert_with(|| json!(tenant));
    }
}

fn text_from(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).map_err(|error| CliFailure::new(format!("{}: {error}", file.display())).into())
}

fn parse(text: &str, what: &str) -> anyhow::Result<Value> {
    let fault =
        |error| CliFailure::new(format!("{what} is not JSON: {error}")).hint("a text is JSON in quotes: '\"text\"'");
    serde_json::from_str(text).map_err(|error| fault(error).into())
}

async fn explain(args: ExplainArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let asked = given_filters([("source", args.source), ("tenant_id", args.tenant)]);
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::EVENT);
    let explained = client.get(&["v1", "events", &args.id, "explain"], &asked).await?;
    if args.service.json {
        return Ok(screen.json(&explained)?);
    }
    sentences(&explained, screen)?;
    for trigger in explained["triggers"].as_array().into_iter().flatten() {
        screen.line("")?;
        screen.line(format!("{}  {}", text_of(&trigger["task_id"]), text_of(&trigger["name"])))?;
        screen.line(format!("  {}", text_of(&trigger["sentence"])))?;
        let parts = trigger["parts"].as_array().into_iter().flatten();
        for part in parts.filter(|part| part["matched"] != true) {
            screen.line(format!("  {}: {}", text_of(&part["part"]), text_of(&part["detail"])))?;
        }
    }
    Ok(())
}

async fn tail(args: TailArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::EVENT);
    let mut events =
        client.stream_after(&["v1", "events", "stream"], &args.which.query(), args.after.as_deref()).await?;
    while let Some(event) = events.next().await {
        let Some(data) = event?.data else { continue };
        let event: Value = serde_json::from_str(&data).context("read an event of the stream")?;
        if args.service.json {
            screen.json_line(&event)?;
        } else {
            screen.line(row(&event).join("  "))?;
        }
        screen.flush()?;
    }
    Ok(())
}

fn row(event: &Value) -> [String; 6] {
    [
        time_of(&event["time"]),
        text_of(&event["tenantid"]),
        text_of(&event["source"]),
        text_of(&event["type"]),
        text_of(&event["id"]),
        match &event["data"] {
            Value::Null => String::new(),
            data => cut(&data.to_string(), 80),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_is_put_where_the_form_of_an_event_has_it() {
        let mut body = json!([{ "specversion": "1.0" }, { "source": "a" }, { "tenant_id": "bob" }, 7]);
        name_tenant(&mut body, "ann");
        let expected = json!([{ "specversion": "1.0", "tenantid": "ann" }, { "source": "a", "tenant_id": "ann" }, { "tenant_id": "bob" }, 7]);
        assert_eq!(body, expected);
    }
}
