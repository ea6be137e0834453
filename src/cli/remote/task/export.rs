//! `reveille task export`: what the owners of tasks decided, as lines that `import` takes back. No secret is in them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::cli::client::given_filters;
use crate::cli::{Client, Screen, ServiceArgs};
use crate::config::Environment;
use crate::domain::task::{DECIDED, exported_key};

#[derive(Debug, clap::Args)]
#[command(after_help = "A secret is never exported: where a task has one, its line says `secret_set: true`, and is \
    refused on import until a `secret` stands there. A task without a key gets one in its line, `export:` and its id: an \
    import knows the task by it, here and elsewhere, and makes it once. Tasks that are paused, disabled or completed are left out, because \
    what is imported is active; with --all they are written, too.")]
pub struct Args {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Write to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Those that do not fire now, too
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let status = (!args.all).then(|| "active".to_owned());
    let filters = given_filters([("tenant_id", args.tenant), ("status", status)]);
    let mut file = match &args.output {
        Some(path) => Some(BufWriter::new(File::create(path).with_context(|| format!("write {}", path.display()))?)),
        None => None,
    };
    let (mut written, mut cursor) = (0, None);
    loop {
        let page = client.page(&["v1", "tasks"], &filters, usize::MAX, cursor).await?;
        for task in &page.items {
            let line = format!("{}\n", Value::Object(line(task)));
            match &mut file {
                Some(file) => file.write_all(line.as_bytes()).context("write the tasks")?,
                None => screen.bytes(line.as_bytes())?,
            }
            written += 1;
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if let (Some(mut file), Some(path)) = (file, &args.output) {
        file.flush().context("write the tasks")?;
        screen.line(format!("{written} tasks are in {}", path.display()))?;
    }
    Ok(())
}

/// A task as an import takes it, with a key by which it is known again.
fn line(task: &Value) -> Map<String, Value> {
    let mut line = owner_fields(task);
    if let (false, Some(id)) = (line.contains_key("key"), task["id"].as_str().and_then(|id| id.parse::<Uuid>().ok())) {
        line.insert("key".into(), json!(exported_key(id)));
    }
    line
}

/// A task as its owner wrote it: fields that are null by default are left out.
pub fn owner_fields(task: &Value) -> Map<String, Value> {
    let field = |name: &&str| Some(((*name).to_owned(), task.get(*name)?.clone()));
    let fields = DECIDED.iter().filter_map(field);
    // null means something of an output alone
    fields.filter(|(name, value)| name == "output" || !value.is_null()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn export_leaves_out_the_state_of_a_task_and_keeps_its_settings() {
        let task = json!({
            "id": "x", "tenant_id": "ann", "key": null, "name": "Mail", "output": null, "max_runs": null,
            "trigger": { "type": "schedule", "cron": "@daily" }, "status": "active", "run_count": 3, "version": 2,
            "action": { "config": { "secret_set": true } },
        });
        assert_eq!(
            Value::Object(owner_fields(&task)),
            json!({
                "tenant_id": "ann", "name": "Mail", "output": null, "trigger": { "type": "schedule", "cron": "@daily" },
                "action": { "config": { "secret_set": true } },
            })
        );
    }
}
