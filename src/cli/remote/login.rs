//! `reveille login`: keeps address and token of a service, so that they need not stand in the environment.

pub mod ui;

use std::io::{BufRead, IsTerminal};

use anyhow::Context;

use crate::base::secret::Secret;
use crate::cli::client::USUAL_URL;
use crate::cli::profiles::{self, USUAL_PROFILE};
use crate::cli::{CliFailure, Client, Screen};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The token is read from standard input, never from a flag: others on this machine can see what is typed there.

Examples:
  reveille login                                    asks for the token of http://127.0.0.1:7700
  reveille login --profile work --url https://reveille.example.org < token
  reveille --profile work task list")]
pub struct Args {
    /// Address of the service [default: REVEILLE_URL, else http://127.0.0.1:7700]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Name to keep it under
    #[arg(long, value_name = "NAME", default_value = USUAL_PROFILE)]
    profile: String,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let file = profiles::file(environment)?;
    let url = args.url.as_deref().or(environment.get("REVEILLE_URL")).unwrap_or(USUAL_URL);
    let token = read_token(screen)?;
    // a token that is refused is not kept
    let client = Client::to(url, Some(Secret::new(token.clone())))?;
    client.get(&["v1", "tasks"], &[("limit", "1".to_owned())]).await?;
    profiles::save(&file, &args.profile, url, token)?;
    Ok(screen.line(format!("profile `{}` for {url} is in {}", args.profile, file.display()))?)
}

/// The first line of standard input. On a terminal it is not shown while it is typed.
fn read_token(screen: &mut Screen) -> anyhow::Result<String> {
    let stdin = std::io::stdin();
    let mut line = String::new();
    if stdin.is_terminal() {
        screen.piece("token: ")?;
        let shown = hide(&stdin);
        let typed = stdin.lock().read_line(&mut line);
        if let Some(shown) = shown {
            let _ = rustix::termios::tcsetattr(&stdin, rustix::termios::OptionalActions::Now, &shown);
            screen.line("")?;
        }
        typed.context("read the token")?;
    } else {
        stdin.lock().read_line(&mut line).context("read the token from standard input")?;
    }
    match line.trim() {
        "" => Err(CliFailure::new("there is no token").hint("`reveille serve` says where the first one is").into()),
        token => Ok(token.to_owned()),
    }
}

/// Turns the echo off; the settings as they were, where that worked.
fn hide(stdin: &std::io::Stdin) -> Option<rustix::termios::Termios> {
    let shown = rustix::termios::tcgetattr(stdin).ok()?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(rustix::termios::LocalModes::ECHO);
    rustix::termios::tcsetattr(stdin, rustix::termios::OptionalActions::Now, &hidden).ok()?;
    Some(shown)
}
