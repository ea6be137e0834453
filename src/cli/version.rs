//! `reveille version`: this build, and what is compiled into it.

use serde_json::json;

use super::screen::Screen;
use crate::store;
use crate::trigger::zone::zone_database_version;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, screen: &mut Screen) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let (zones, sqlite) = (zone_database_version(), store::sqlite_version().await?);
    if args.json {
        return Ok(screen.json(&json!({ "reveille": version, "zone_database": zones, "sqlite": sqlite }))?);
    }
    screen.facts(&[("reveille", version.to_owned()), ("zone database", zones.to_owned()), ("sqlite", sqlite)])?;
    Ok(())
}
