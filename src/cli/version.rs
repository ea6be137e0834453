//! `reveille version`: this build, and what is compiled into it.

use serde_json::json;

use super::screen::Screen;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, screen: &mut Screen) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let zones = chrono_tz::IANA_TZDB_VERSION;
    if args.json {
        return Ok(screen.json(&json!({ "reveille": version, "zone_database": zones }))?);
    }
    screen.facts(&[("reveille", version.to_owned()), ("zone database", zones.to_owned())])?;
    Ok(())
}
