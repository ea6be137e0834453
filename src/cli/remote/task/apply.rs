//! `reveille task apply`: a folder of task files is what a tenant's tasks are to be. Reads the folder, lets the service
//! try every file, shows the plan, asks, and does it.
//!
//! A file's path without its ending is the stable key of its task. Tasks that were not made from a folder with the same
//! label are never touched. Each step stands for itself: what was done before a fault stays, and applying again goes
//! on.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::Context;
use reqwest::Method;
use serde_json::{Map, Value};

use super::plan::{self, ApplyPlan, LABEL, PlanStep};
use crate::cli::client::given_filters;
use crate::cli::confirm::ask_yes_no;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, draft};
use crate::config::Environment;
use crate::domain::task::exported_id;

/// Extensions of task files.
const ENDINGS: [&str; 4] = ["toml", "yaml", "yml", "json"];

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each file that ends in .toml, .yaml, .yml or .json holds one task; its path below DIR, without \
    the ending, is the task's stable key. A field that a file leaves out has its default. A secret that alone was changed in \
    a file is not noticed."
)]
pub struct Args {
    /// A folder of task files
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Show what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    plan: bool,
    /// Delete the tasks whose file is gone
    #[arg(long)]
    prune: bool,
    /// Tenant of the tasks; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Marks the tasks of this folder; folders that share a tenant have one each
    #[arg(long, value_name = "TEXT", default_value = "default")]
    label: String,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let files = read_folder(&args.folder)?;
    if files.is_empty() {
        let message = format!("there are no task files in {}", args.folder.display());
        return Err(CliFailure::new(message).hint("one task to a file that ends in .toml, .yaml or .json").into());
    }
    let plan = make_plan(&client, files, &args).await?;
    if args.service.json {
        screen.json(&plan.json())?;
    } else {
        plan.print(screen)?;
    }
    if args.plan || plan.steps.is_empty() {
        return Ok(());
    }
    if !args.yes && !ask_yes_no("apply this?", screen)? {
        return Err(CliFailure::new("nothing was applied").hint("answer `y`, or pass --yes").into());
    }
    for step in &plan.steps {
        let key = apply(&client, step).await?;
        if !args.service.json {
            screen.line(format!("done {key}"))?;
        }
    }
    Ok(())
}

/// Every task file below a folder, by the key of its task. A hidden file, or one whose name is none of a task file, is
/// passed over.
fn read_folder(folder: &Path) -> anyhow::Result<BTreeMap<String, Map<String, Value>>> {
    let mut tasks = BTreeMap::new();
    let mut faults = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(below) = folders.pop() {
        let entries = std::fs::read_dir(&below).with_context(|| format!("read {}", below.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("read {}", below.display()))?;
            let (path, hidden) = (entry.path(), entry.file_name().as_encoded_bytes().starts_with(b"."));
            if hidden {
                continue;
            }
            // a link to a folder could lead round in a circle
            if entry.file_type().with_context(|| format!("read {}", path.display()))?.is_dir() {
                folders.push(path);
                continue;
            }
            let Some(key) = key_of(folder, &path) else { continue };
            if exported_id(&key).is_some() {
                faults.push(format!(
                    "{}: `{key}` is the key of an exported task; name the file otherwise",
                    path.display()
                ));
                continue;
            }
            match draft::read_file(&path) {
                Err(error) => faults.push(format!("{error:#}")),
                Ok(task) if task.get("key").is_some_and(|named| named.as_str() != Some(&key)) => {
                    faults.push(format!("{}: its key is `{key}`, by its place; leave `key` out", path.display()));
                }
                Ok(task) if task.contains_key("tenant_id") => {
                    faults
                        .push(format!("{}: --tenant says whose tasks they are; leave `tenant_id` out", path.display()));
                }
                Ok(task) if task.get("metadata").is_some_and(|metadata| metadata.get(LABEL).is_some()) => {
                    faults.push(format!("{}: `metadata.{LABEL}` is written by apply; leave it out", path.display()));
                }
                Ok(task) => {
                    if tasks.insert(key.clone(), task).is_some() {
                        faults.push(format!("{}: another file has the key `{key}`, too", path.display()));
                    }
                }
            }
        }
    }
    refuse(faults)?;
    Ok(tasks)
}

/// `reports/daily` for `reports/daily.toml`; none for what is no task file.
fn key_of(folder: &Path, path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?;
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)).then_some(())?;
    let below = path.strip_prefix(folder).ok()?.with_extension("");
    let parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    Some(parts.join("/"))
}

fn refuse(faults: Vec<String>) -> anyhow::Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let failure = CliFailure::new("the folder can't be applied; nothing was changed");
    Err(faults.into_iter().fold(failure, CliFailure::detail).into())
}

/// Compares the folder with what is stored. The service tries each file and says what it would make of it.
async fn make_plan(
    client: &Client,
    files: BTreeMap<String, Map<String, Value>>,
    args: &Args,
) -> anyhow::Result<ApplyPlan> {
    let filters = given_filters([("tenant_id", args.tenant.clone())]);
    let stored = client.list(&["v1", "tasks"], &filters, usize::MAX).await?;
    // a task that was exported without a key is of no file, whatever its metadata say
    let is_of_a_file = |task: &&Value| task["key"].as_str().is_some_and(|key| exported_id(key).is_none());
    let stored: Vec<&Value> = stored.iter().filter(is_of_a_file).collect();
    let mut owners: Vec<&str> = stored.iter().filter_map(|task| task["tenant_id"].as_str()).collect();
    owners.sort_unstable();
    owners.dedup();
    if args.tenant.is_none() && owners.len() > 1 {
        let failure = CliFailure::new("the token sees the tasks of several tenants");
        return Err(failure.hint("say whose tasks they are with --tenant").into());
    }
    let by_key: HashMap<&str, &Value> = stored.iter().filter_map(|task| Some((task["key"].as_str()?, *task))).collect();
    let (mut plan, mut faults) = (ApplyPlan::default(), Vec::new());
    for (key, task) in &files {
        let body = plan::body(task.clone(), key, &args.label, args.tenant.as_deref());
        let tried = match by_key.get(key.as_str()) {
            None => client.dry_run(Method::POST, &["v1", "tasks"], &body).await.map(|made| {
                plan.note(key, &made);
                plan.steps.push(PlanStep::Create { key: key.clone(), body });
            }),
            Some(task) if plan::label_of(task) != Some(&args.label) => {
                let whose = match plan::label_of(task) {
                    Some(label) => format!("belongs to the folder with the label `{label}`"),
                    None => "was not made by apply".to_owned(),
                };
                faults.push(format!("{key}: the task that has this key {whose}"));
                continue;
            }
            Some(task) => {
                let id = task["id"].as_str().unwrap_or_default();
                let patch = plan::patch(&body, &task["version"]);
                client.dry_run(Method::PATCH, &["v1", "tasks", id], &patch).await.map(|changed| {
                    plan.note(key, &changed);
                    let differences = plan::differences(task, &changed);
                    match differences.is_empty() {
                        true => plan.unchanged += 1,
                        false => {
                            plan.steps.push(PlanStep::Update {
                                key: key.clone(),
                                id: id.to_owned(),
                                patch,
                                differences,
                            });
                        }
                    }
                })
            }
        };
        if let Err(error) = tried {
            faults.push(format!("{key}: {}", format!("{error:#}").replace("\n  ", "; ").replace('\n', "; ")));
        }
    }
    refuse(faults)?;
    let gone = stored.iter().filter(|task| plan::label_of(task) == Some(&args.label));
    let mut gone: Vec<(String, String)> = gone
        .filter_map(|task| Some((task["key"].as_str()?.to_owned(), task["id"].as_str()?.to_owned())))
        .filter(|(key, _)| !files.contains_key(key))
        .collect();
    gone.sort();
    for (key, id) in gone {
        match args.prune {
            true => plan.steps.push(PlanStep::Delete { key, id }),
            false => plan.left.push(key),
        }
    }
    Ok(plan)
}

async fn apply<'a>(client: &Client, step: &'a PlanStep) -> anyhow::Result<&'a str> {
    let (key, done) = match step {
        PlanStep::Create { key, body } => (key, client.post(&["v1", "tasks"], body).await),
        PlanStep::Update { key, id, patch, .. } => (key, client.patch(&["v1", "tasks", id], patch).await),
        PlanStep::Delete { key, id } => (key, client.delete(&["v1", "tasks", id]).await),
    };
    done.with_context(|| format!("{key}: not applied; what stands above is"))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_the_place_of_its_file() {
        let key = |path: &str| key_of(Path::new("/tasks"), Path::new(path));
        assert_eq!(key("/tasks/reports/daily.toml").as_deref(), Some("reports/daily"));
        assert_eq!(key("/tasks/a.b.YAML").as_deref(), Some("a.b"));
        for other in ["/tasks/README.md", "/tasks/Makefile", "/elsewhere/a.toml"] {
            assert_eq!(key(other), None, "{other}");
        }
    }
}
