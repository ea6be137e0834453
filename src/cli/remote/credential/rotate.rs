//! `reveille credential rotate-key`: has the service put everything under its first master key, piece by piece, until
//! it is done. Broken off, it is simply called again.

use serde_json::{Value, json};

use crate::cli::screen::text_of;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs};
use crate::config::Environment;

const KINDS: [(&str, &str); 4] =
    [("credentials", "credential"), ("recipients", "recipient"), ("tasks", "task"), ("messages", "message")];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
To change the master key:
  1. put the new key behind the old one in vault.master_keys of every instance, and start them again
  2. put it in front, and start them again: it seals what is new
  3. reveille credential rotate-key       puts what is there under it; everything stays readable
  4. take the old key out where `reveille check` says that it can go

One instance alone can begin with 2. Broken off, rotate-key is simply called again. It needs an admin token.")]
pub struct RotateArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: RotateArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let mut total = json!({ "credentials": 0, "recipients": 0, "tasks": 0, "messages": 0 });
    let mut failed = total.clone();
    let mut failures = vec![];
    let mut body = json!({});
    let last = loop {
        let answer = client.post(&["v1", "credentials", "rotate-key"], &body).await?;
        add(&mut total, &answer["rewrapped"]);
        add(&mut failed, &answer["failed"]);
        failures.extend(answer["failures"].as_array().cloned().unwrap_or_default());
        match &answer["next_cursor"] {
            Value::Null => break answer,
            cursor => body = json!({ "cursor": cursor }),
        }
    };
    let whole = json!({
        "key": last["key"], "rewrapped": total, "failed": failed, "failures": failures, "keys": last["keys"],
    });
    match args.service.json {
        true => screen.json(&whole)?,
        false => print(&whole, screen)?,
    }
    match count(&failed) {
        0 => Ok(()),
        failed => Err(CliFailure::new(format!("{failed} could not be put under the new key"))
            .hint("is every key that is still needed in vault.master_keys?")
            .into()),
    }
}

fn print(whole: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let key = text_of(&whole["key"]);
    match counts_text(&whole["rewrapped"]) {
        nothing if nothing.is_empty() => screen.line(format!("everything is under `{key}` already"))?,
        what => screen.line(format!("put under `{key}`: {what}"))?,
    }
    for failure in whole["failures"].as_array().into_iter().flatten() {
        let part = |name: &str| crate::base::unicode_safety::on_one_line(&text_of(&failure[name]));
        screen.line(format!("left as it is: {} of {}: {}", part("subject"), part("tenant_id"), part("reason")))?;
    }
    for known in whole["keys"].as_array().into_iter().flatten() {
        let id = text_of(&known["id"]);
        let needed = counts_text(&known["sealed"]);
        let line = match (needed.is_empty(), known["configured"].as_bool()) {
            (false, Some(false)) => format!("key `{id}` is not configured, and needed by {needed}"),
            (false, _) => format!("key `{id}` is needed by {needed}"),
            (true, _) if id == key => format!("key `{id}` seals what is new"),
            (true, _) => format!("key `{id}` opens nothing any more; `reveille check` says whether it can go"),
        };
        screen.line(line)?;
    }
    Ok(())
}

/// `2 credentials, 1 task`; empty where there is none.
fn counts_text(counts: &Value) -> String {
    let some = KINDS.iter().filter_map(|(many, one)| match counts[*many].as_u64() {
        None | Some(0) => None,
        Some(1) => Some(format!("1 {one}")),
        Some(count) => Some(format!("{count} {many}")),
    });
    some.collect::<Vec<_>>().join(", ")
}

fn add(total: &mut Value, more: &Value) {
    for (kind, _) in KINDS {
        total[kind] = json!(total[kind].as_u64().unwrap_or(0) + more[kind].as_u64().unwrap_or(0));
    }
}

fn count(counts: &Value) -> u64 {
    KINDS.iter().filter_map(|(kind, _)| counts[*kind].as_u64()).sum()
}
