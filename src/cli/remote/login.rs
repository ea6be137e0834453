//! `reveille login`: keeps address and token of a service, so that they need not stand in the environment.
//!
//! Profiles are in one file that only its owner may read; nothing else of this machine is changed.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::base::secret::Secret;
use crate::cli::client::{Client, USUAL_URL};
use crate::cli::failure::CliFailure;
use crate::cli::screen::Screen;
use crate::config::Environment;

/// The profile that is used where none is named.
pub const USUAL_PROFILE: &str = "default";

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

/// A service and the token for it.
#[derive(Debug)]
pub struct Profile {
    pub url: String,
    pub token: Secret,
}

/// As it lies on the disk: the one place where the token is written out.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredProfile {
    url: String,
    token: String,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let file = file(environment)?;
    let url = args.url.as_deref().or(environment.get("REVEILLE_URL")).unwrap_or(USUAL_URL);
    let token = read_token(screen)?;
    // a token that is refused is not kept
    let client = Client::to(url, Some(Secret::new(token.clone())))?;
    client.get(&["v1", "tasks"], &[("limit", "1".to_owned())]).await?;
    let mut profiles = read(&file)?;
    profiles.insert(args.profile.clone(), StoredProfile { url: url.to_owned(), token });
    write(&file, &profiles)?;
    Ok(screen.line(format!("profile `{}` for {url} is in {}", args.profile, file.display()))?)
}

/// The profile of this name; `None` where there is none.
///
/// # Errors
/// The file of the profiles can't be read.
pub fn profile(name: &str, environment: &Environment) -> anyhow::Result<Option<Profile>> {
    let Ok(file) = file(environment) else { return Ok(None) };
    let kept = read(&file)?.remove(name);
    Ok(kept.map(|StoredProfile { url, token }| Profile { url, token: Secret::new(token) }))
}

/// `$XDG_CONFIG_HOME/reveille/profiles.toml`, else below `~/.config`.
fn file(environment: &Environment) -> anyhow::Result<PathBuf> {
    let configuration = match (environment.get("XDG_CONFIG_HOME"), environment.get("HOME")) {
        (Some(dir), _) => PathBuf::from(dir),
        (None, Some(home)) => Path::new(home).join(".config"),
        (None, None) => return Err(CliFailure::new("there is no place for profiles").hint("set HOME").into()),
    };
    Ok(configuration.join("reveille/profiles.toml"))
}

fn read(file: &Path) -> anyhow::Result<BTreeMap<String, StoredProfile>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
    };
    // the fault of the parser would quote the line, and with it a token
    toml::from_str(&text).map_err(|_| {
        CliFailure::new(format!("{} can't be read", file.display())).hint("delete it, and log in again").into()
    })
}

/// Whole or not at all, and nobody else's to read.
fn write(file: &Path, profiles: &BTreeMap<String, StoredProfile>) -> anyhow::Result<()> {
    let text = toml::to_string(profiles).context("write the profiles")?;
    let write = || -> std::io::Result<()> {
        let dir = file.parent().unwrap_or(Path::new("."));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let draft = file.with_extension(format!("{}.tmp", std::process::id()));
        let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&draft, file)
    };
    write().with_context(|| format!("write {}", file.display()))
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
