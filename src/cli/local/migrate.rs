//! `reveille migrate`: brings the tables up to date without starting the service.

use std::path::Path;

use super::setup::ConfigArgs;
use crate::base::clock::Clock;
use crate::cli::Screen;
use crate::config::Environment;
use crate::store::Store;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let config = args.config.load(environment)?.config;
    let data_dir = Path::new(&config.server.data_dir);
    let waiting = |why: &str| eprintln!("{why}");
    let store = Store::open(&config.database, data_dir, Clock::system(), waiting).await?;
    let facts = store.facts().await?;
    store.close().await;
    Ok(screen.line(format!("the tables are up to date ({} {})", facts.kind, facts.version))?)
}
