//! `reveille skill`: skills that agents may use, and whether a folder is one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::app::{self, AppAdditions, ConfiguredNames};
use crate::base::clock::Clock;
use crate::base::unicode_safety::{escape_hidden, on_one_line};
use crate::cli::local::setup::ConfigArgs;
use crate::cli::screen::{cut, text_of};
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, Tone};
use crate::config::Environment;
use crate::ports::skill::{SkillSet, scan};

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille skill list               the skills, and the folders of [skills] dir that hold none
  reveille skill show flight-check  one of them: its tools, its files, its instructions
  reveille skill check ./skills     the same of a folder on this machine, by the tools and models of its configuration; needs no service")]
pub enum Command {
    /// List the skills that agents may use
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a skill with its files and its instructions
    Show(ShowArgs),
    /// Look at the skills in folders on this machine, and say what is wrong with them
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The skill
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// A folder whose folders are skills
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Characters of a description in a row.
const CELL: usize = 60;

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Check(CheckArgs { dirs, config }) => {
            let set = tokio::task::spawn_blocking(move || scan(&dirs)).await?;
            check(&set, configured_names(&config, environment).as_ref(), screen)
        }
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let answer = client.get(&["v1", "skills"], &[]).await?;
    if args.service.json {
        return Ok(screen.json(&json!({ "items": answer["items"] }))?);
    }
    let row = |skill: &Value| {
        vec![
            on_one_line(&text_of(&skill["name"])),
            if skill["usable"] == true { "yes" } else { "no" }.to_owned(),
            cut(&on_one_line(&text_of(&skill["description"])), CELL),
            on_one_line(&joined(&skill["findings"], "; ")),
        ]
    };
    let rows = answer["items"].as_array().into_iter().flatten().map(row).collect();
    Ok(screen.table(&["name", "usable", "description", "findings"], rows)?)
}

/// A skill: how it stands, and its instructions as a model is told them.
async fn show(args: ShowArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let skill = client.get(&["v1", "skills", &args.name], &[]).await?;
    if args.service.json {
        return Ok(screen.json(&skill)?);
    }
    let tools = match &skill["allowed_tools"] {
        Value::Array(_) => joined(&skill["allowed_tools"], ", "),
        _ => "all that the agent has".to_owned(),
    };
    let rows = [
        ("name", text_of(&skill["name"])),
        ("description", text_of(&skill["description"])),
        ("findings", joined(&skill["findings"], "; ")),
        ("tools", tools),
        ("model", text_of(&skill["model"])),
        ("license", text_of(&skill["license"])),
        ("needs", text_of(&skill["compatibility"])),
        ("folder", text_of(&skill["folder"])),
        ("files", joined(&skill["files"], ", ")),
    ];
    screen.facts(&rows.map(|(name, value)| (name, on_one_line(&value))))?;
    screen.line("")?;
    Ok(screen.line(escape_hidden(&text_of(&skill["instructions"])))?)
}

fn joined(list: &Value, between: &str) -> String {
    list.as_array().into_iter().flatten().map(text_of).collect::<Vec<_>>().join(between)
}

/// The names of the tools and models that the configuration has; `None`: it is not valid.
fn configured_names(config: &ConfigArgs, environment: &Environment) -> Option<ConfiguredNames> {
    let config = config.load(environment).ok()?.config;
    let (data_dir, added) = (Path::new(&config.server.data_dir), AppAdditions::default());
    let valid = app::validate(&config, data_dir, &Clock::system(), added).ok()?;
    Some(valid.names(&config, added))
}

fn check(set: &SkillSet, names: Option<&ConfiguredNames>, screen: &mut Screen) -> anyhow::Result<()> {
    for skill in &set.skills {
        screen.line(format!("{} {}", screen.tone(Tone::Good, "✓"), skill.document.name))?;
        for finding in names.map_or_else(|| skill.warnings.clone(), |names| names.findings(skill)) {
            screen.line(format!("  {} {}", screen.tone(Tone::Notable, "!"), on_one_line(&finding)))?;
        }
    }
    if names.is_none() {
        let unjudged = "the configuration is not valid, so names of tools and models in skills are not judged";
        screen.line(format!("{} {unjudged}", screen.tone(Tone::Notable, "!")))?;
    }
    for unusable in &set.unusable {
        let dir = on_one_line(&unusable.dir.display().to_string());
        screen.line(format!("{} {dir}", screen.tone(Tone::Bad, "✗")))?;
        for fault in &unusable.faults {
            screen.line(format!("  {}", on_one_line(fault)))?;
        }
    }
    match (set.skills.len(), set.unusable.len()) {
        (0, 0) => Err(CliFailure::new("there is no folder with a SKILL.md").into()),
        (_, 0) => Ok(()),
        (_, 1) => Err(CliFailure::new("1 skill folder is invalid").into()),
        (_, many) => Err(CliFailure::new(format!("{many} skill folders are invalid")).into()),
    }
}
