//! `reveille task explain`: why a task fires, or does not, in words.

use serde_json::Value;

use super::OneArgs;
use crate::cli::Client;
use crate::cli::run::needs;
use crate::cli::screen::{Screen, text_of, time_of};
use crate::config::Environment;
use crate::visible::on_one_line;

pub async fn run(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let explained = Client::new(&args.service, environment)?.get(&["v1", "tasks", &args.id, "explain"], &[]).await?;
    if args.service.json {
        return Ok(screen.json(&explained)?);
    }
    for sentence in explained["sentences"].as_array().into_iter().flatten() {
        screen.line(on_one_line(&text_of(sentence)))?;
    }
    needs(&explained, screen)?;
    let next = explained["next"].as_array().map(Vec::as_slice).unwrap_or_default();
    if next.is_empty() {
        return Ok(());
    }
    screen.line("")?;
    let row = |next: &Value| vec![time_of(&next["at"]), text_of(&next["local"]), text_of(&next["timezone"])];
    Ok(screen.table(&["next", "local", "zone"], next.iter().map(row).collect())?)
}
