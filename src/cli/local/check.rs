//! `reveille check`: looks at the configuration and at everything it names, changes nothing, and says what is wrong.

mod ask;
mod channels;
mod keys;
mod mcp;
mod model;
mod oauth;
mod place;
mod public_url;
mod push;
mod skills;
mod zones;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::setup::ConfigArgs;
use crate::app::{self, WAY_BACK, stranded_events_warning};
use crate::base::clock::{Clock, machine_now};
use crate::base::invalid::ValidationErrors;
use crate::cli::{CliFailure, Screen, Tone, failure};
use crate::config::{Config, Environment, LoadedConfig};
use crate::ports::bus::Bus;
use crate::ports::bus::redis::Redis;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Put one question with a tool to each model, which costs a few tokens, and name what is refused
    #[arg(long)]
    ask: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A finding of one check.
#[derive(Debug, PartialEq, Serialize)]
struct Finding {
    /// The thing that was checked.
    name: String,
    verdict: CheckVerdict,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckVerdict {
    Fine,
    /// Works, and is not as it should be.
    Odd,
    /// Does not work.
    Wrong,
}

impl Finding {
    fn new(name: &str, verdict: CheckVerdict, message: impl Into<String>) -> Finding {
        Finding { name: name.into(), verdict, message: message.into(), hint: None }
    }

    fn ok(name: &str, message: impl Into<String>) -> Finding {
        Finding::new(name, CheckVerdict::Fine, message)
    }

    fn warning(name: &str, message: impl Into<String>) -> Finding {
        Finding::new(name, CheckVerdict::Odd, message)
    }

    fn error(name: &str, message: impl Into<String>) -> Finding {
        Finding::new(name, CheckVerdict::Wrong, message)
    }

    /// An error with the hint that it may bring along.
    fn failed(name: &str, error: &(dyn std::error::Error + 'static)) -> Finding {
        let (message, hint) = failure::apart(error);
        Finding { hint: hint.map(str::to_owned), ..Finding::error(name, message) }
    }

    fn hint(mut self, hint: impl Into<String>) -> Finding {
        self.hint = Some(hint.into());
        self
    }
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let findings = match args.config.load(environment) {
        Ok(loaded) => run_checks(&loaded, args.ask).await,
        Err(error) => vec![Finding::failed("configuration", &*error)],
    };
    if args.json {
        screen.json(&json!({ "checks": findings }))?;
    } else {
        print(&findings, screen)?;
    }
    match findings.iter().filter(|finding| finding.verdict == CheckVerdict::Wrong).count() {
        0 => Ok(()),
        1 => Err(CliFailure::new("1 thing is wrong").into()),
        wrong => Err(CliFailure::new(format!("{wrong} things are wrong")).into()),
    }
}

/// Looks at one thing after another, in the order in which a start needs them.
async fn run_checks(loaded: &LoadedConfig, ask: bool) -> Vec<Finding> {
    let config = &loaded.config;
    let data_dir = Path::new(&config.server.data_dir);
    let mut findings = vec![Finding::ok("configuration", loaded.origin())];
    let valid = app::validate(config, data_dir, &Clock::system(), app::AppAdditions::default());
    let names = valid.as_ref().ok().map(|valid| valid.names(config, app::AppAdditions::default()));
    let faults = valid.err().unwrap_or_default();
    findings.extend(sections(loaded, &faults));
    findings.extend(zones::all(&config.time, machine_now()));
    findings.push(place::data_dir(data_dir));
    findings.extend(place::database(config, data_dir).await);
    findings.extend(zones::stored(config, data_dir).await);
    findings.extend(keys::all(config, data_dir).await);
    let fine = |section: &str| !faults.0.iter().any(|fault| section_of(&fault.pointer) == section);
    if fine("egress") {
        findings.push(Finding::ok("egress", egress_of(config)));
    }
    if fine("llm") {
        findings.extend(model::all(loaded).await);
        if ask {
            findings.extend(ask::all(loaded).await);
        }
    }
    if fine("skills") {
        findings.extend(skills::all(config, names.as_ref()).await);
    }
    if fine("mcp_servers") && fine("egress") {
        findings.extend(mcp::all(config).await);
    }
    if fine("bus") {
        findings.extend(bus(config).await);
        findings.extend(stranded_events(config, data_dir).await);
    }
    findings.extend(channels::all(loaded).await);
    findings.extend(oauth::all(config).await);
    if fine("channels") {
        findings.push(push::check(loaded, data_dir));
    }
    findings.push(public_url::check(config).await);
    findings
}

/// Faults that refuse a start whatever the state of database, keys and network: one finding for each section at fault.
fn sections(loaded: &LoadedConfig, faults: &ValidationErrors) -> Vec<Finding> {
    let mut sections: BTreeMap<&str, ValidationErrors> = BTreeMap::new();
    for fault in &faults.0 {
        sections.entry(section_of(&fault.pointer)).or_default().0.push(fault.clone());
    }
    sections.into_iter().map(|(section, faults)| misconfigured(section, loaded, faults)).collect()
}

/// `channels` of `/channels/email/url`.
fn section_of(pointer: &str) -> &str {
    pointer.trim_start_matches('/').split('/').next().unwrap_or_default()
}

async fn bus(config: &Config) -> Vec<Finding> {
    let name = "event bus";
    if config.bus.is_embedded() {
        return vec![Finding::ok(name, "in the database")];
    }
    let shown = config.bus.url.shown();
    let redis = match Redis::new(&config.bus, &Clock::system()) {
        Ok(redis) => redis,
        Err(why) => return vec![Finding::error(name, format!("bus.url: {why}"))],
    };
    match redis.concerns().await {
        Ok(concerns) if concerns.is_empty() => {
            vec![Finding::ok(name, format!("{shown} answers, keeps what it accepts, and evicts nothing"))]
        }
        Ok(concerns) => concerns.into_iter().map(|concern| Finding::warning(name, concern)).collect(),
        Err(error) => {
            vec![
                Finding::error(name, error.to_string()).hint(format!("is Redis up at {shown}, and does it let us in?")),
            ]
        }
    }
}

/// Where the database can't say, the look at it or at the keys does.
async fn stranded_events(config: &Config, data_dir: &Path) -> Option<Finding> {
    let looked =
        place::query_store(config, data_dir, async |store| stranded_events_warning(&config.bus, store).await).await;
    let events = looked.ok().flatten().flatten()?;
    Some(Finding::warning("events", events).hint(WAY_BACK))
}

fn misconfigured(name: &str, loaded: &LoadedConfig, faults: ValidationErrors) -> Finding {
    Finding::error(name, loaded.explain(&faults).to_string())
}

fn egress_of(config: &Config) -> String {
    match config.egress.allow.as_slice() {
        [] => "tools and webhooks reach public addresses only".into(),
        opened => format!("tools and webhooks reach public addresses, and {}", opened.join(", ")),
    }
}

fn print(findings: &[Finding], screen: &mut Screen) -> std::io::Result<()> {
    let width = findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or_default();
    let indent = " ".repeat(width + 4);
    for finding in findings {
        let mark = match finding.verdict {
            CheckVerdict::Fine => screen.tone(Tone::Good, "✓"),
            CheckVerdict::Odd => screen.tone(Tone::Notable, "!"),
            CheckVerdict::Wrong => screen.tone(Tone::Bad, "✗"),
        };
        let message = finding.message.replace('\n', &format!("\n{indent}"));
        screen.line(format!("{mark} {:width$}  {message}", finding.name))?;
        if let Some(hint) = &finding.hint {
            screen.line(format!("{indent}{}", screen.tone(Tone::Faint, format!("hint: {hint}"))))?;
        }
    }
    Ok(())
}
