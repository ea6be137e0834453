//! `reveille task explain`: why a task fires, or does not, in words.

use serde_json::Value;

use super::OneArgs;
use crate::cli::Client;
use crate::cli::run::sentences;
use crate::cli::screen::{Screen, text_of, time_of};
use crate::config::Environment;

pub async fn run(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let explained = Client::new(&args.service, environment)?.get(&["v1", "tasks", &args.id, "explain"], &[]).await?;
    if args.service.json {
        return Ok(screen.json(&explained)?);
    }
    sentences(&explained, screen)?;
    let next = explained["next"].as_array().map(Vec::as_slice).unwrap_or_default();
    if next.is_empty() {
        return Ok(());
    }
    screen.line("")?;
    let row = |next: &Value| vec![time_of(&next["at"]), text_of(&next["local"]), text_of(&next["timezone"])];
    Ok(screen.table(&["next", "local", "zone"], next.iter().map(row).collect())?)
}
