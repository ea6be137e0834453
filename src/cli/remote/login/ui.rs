//! `reveille ui`: a link that signs a browser in to the dashboard.

use serde_json::json;

use crate::cli::screen::text_of;
use crate::cli::{Client, Screen, ServiceArgs, Tone};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The link stands for the token of the profile, or for REVEILLE_TOKEN: the browser sees and does what
that token permits. It shows a button, and signs one browser in.

Examples:
  reveille ui
  reveille ui --profile work")]
pub struct Args {
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let link = client.post_once(&["v1", "login-links"], &json!({})).await?;
    if args.service.json {
        return Ok(screen.json(&link)?);
    }
    screen.line(screen.tone(Tone::Strong, text_of(&link["url"])))?;
    Ok(screen.line("it signs a browser in once, within 10 minutes")?)
}
