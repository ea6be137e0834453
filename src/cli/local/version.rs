//! `reveille version`: this build, and what is compiled into it.

use serde_json::json;

use crate::cli::Screen;
use crate::domain::trigger::zone;
use crate::store;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, screen: &mut Screen) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let (zones, sqlite) = (zone::current(), store::sqlite_version().await?);
    let (release, source) = (zones.release().to_string(), zones.source());
    if args.json {
        return Ok(screen.json(&json!({
            "reveille": version, "zone_database": release, "zone_source": source.as_str(), "sqlite": sqlite,
        }))?);
    }
    let zones = format!("{release}, {source}");
    screen.facts(&[("reveille", version.to_owned()), ("zone database", zones), ("sqlite", sqlite)])?;
    Ok(())
}
