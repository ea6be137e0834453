//! `reveille tool accept`: definitions of tools of MCP servers that a person has looked at.
//!
//! The hash that was printed with the difference is the one that is accepted: where another definition waits by then,
//! the service refuses.

use anyhow::Context;
use serde_json::{Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::remote::tool::shown::{show_difference, told_of};
use crate::cli::screen::text_of;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, YesArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille tool accept github.create_issue           shows how it has changed, and asks
  reveille tool accept --server github               all that wait of one server
  reveille tool accept github.create_issue --definition 5f2c… --yes
                                                     only the definition that was looked at before")]
pub struct AcceptArgs {
    /// The tools; each is named `server.tool`
    #[arg(value_name = "NAME", required_unless_present = "server")]
    names: Vec<String>,
    /// All tools of this MCP server that wait
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,
    /// Hash of the definition that was looked at before: refused if another one waits by now [default: that of the
    /// definition that is printed now]
    #[arg(long, value_name = "HASH", conflicts_with = "server")]
    definition: Option<String>,
    #[command(flatten)]
    yes: YesArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// A definition to be accepted.
struct SeenTool {
    name: String,
    definition: String,
}

pub async fn run(args: AcceptArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TOOL_ACCEPT);
    if args.definition.is_some() && args.names.len() > 1 {
        return Err(CliFailure::new("--definition is of one tool").hint("name that tool alone").into());
    }
    let mut names = args.names.clone();
    if let Some(server) = &args.server {
        names.extend(waiting_of(&client, server).await?);
    }
    let mut seen = Vec::new();
    for name in names {
        let pin = pin_of(&client, &name).await?;
        if !args.service.json {
            show_pin(&name, &pin, screen)?;
        }
        if let Some(definition) = args.definition.as_deref().or(pin["waiting"].as_str()) {
            seen.push(SeenTool { definition: definition.to_owned(), name });
        }
    }
    if let Some(question) = question_about(&seen) {
        match args.service.json {
            true => args.yes.must_be_given("--json does not show what is accepted")?,
            false => args.yes.must_confirm(&question, screen)?,
        }
    }
    let accepted = accept(&client, &seen).await?;
    if args.service.json {
        return Ok(screen.json(&json!({ "items": accepted }))?);
    }
    for tool in &seen {
        screen.line(format!("accepted {}", on_one_line(&tool.name)))?;
    }
    match seen.is_empty() {
        true => Ok(screen.line("no definition waits to be accepted")?),
        false => Ok(()),
    }
}

/// The names of the tools of a server that wait.
async fn waiting_of(client: &Client, server: &str) -> anyhow::Result<Vec<String>> {
    let answer = client.get(&["v1", "tools"], &[]).await?;
    let below = format!("{server}.");
    let tools = answer["items"].as_array().into_iter().flatten();
    let waiting = tools.filter(|tool| tool["reason"] == "not_accepted").filter_map(|tool| tool["name"].as_str());
    Ok(waiting.filter(|name| name.starts_with(&below)).map(str::to_owned).collect())
}

/// The pin of a tool.
async fn pin_of(client: &Client, name: &str) -> anyhow::Result<Value> {
    let mut tool = client.get(&["v1", "tools", name], &[]).await.with_context(|| about(name))?;
    match tool.get_mut("pin").map(Value::take).unwrap_or_default() {
        Value::Null => Err(CliFailure::new("only tools of MCP servers have definitions to be accepted"))
            .with_context(|| about(name)),
        pin => Ok(pin),
    }
}

/// The part of a failure that names its tool.
fn about(name: &str) -> String {
    format!("accept `{}`", on_one_line(name))
}

fn show_pin(name: &str, pin: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    screen.facts(&[
        ("name", on_one_line(name)),
        ("definition", text_of(&pin["state"])),
        ("accepted", told_of(pin, "accepted", "accepted_at")),
        ("waiting", told_of(pin, "waiting", "waiting_since")),
    ])?;
    show_difference(pin, screen)?;
    Ok(screen.line("")?)
}

/// `None`: there is nothing to ask about.
fn question_about(seen: &[SeenTool]) -> Option<String> {
    match seen {
        [] => None,
        [one] => Some(format!("accept this definition of `{}`?", on_one_line(&one.name))),
        more => Some(format!("accept these definitions of {} tools?", more.len())),
    }
}

/// Accepts each, as it was seen; their pins then.
async fn accept(client: &Client, seen: &[SeenTool]) -> anyhow::Result<Vec<Value>> {
    let mut accepted = Vec::new();
    for SeenTool { name, definition } in seen {
        let body = json!({ "definition": definition });
        let mut pin = client.post(&["v1", "tools", name, "accept"], &body).await.with_context(|| about(name))?;
        if let Some(pin) = pin.as_object_mut() {
            pin.insert("name".into(), json!(name));
        }
        accepted.push(pin);
    }
    Ok(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_names_the_one_tool_or_counts_them_and_is_not_asked_about_none() {
        let seen = |names: &[&str]| {
            let tool = |name: &&str| SeenTool { name: (*name).to_owned(), definition: "1".into() };
            question_about(&names.iter().map(tool).collect::<Vec<_>>())
        };
        assert_eq!(seen(&[]), None);
        assert_eq!(seen(&["a.b\u{202e}"]).unwrap(), "accept this definition of `a.b⟦U+202E⟧`?");
        assert_eq!(seen(&["a.b", "a.c"]).unwrap(), "accept these definitions of 2 tools?");
    }
}
