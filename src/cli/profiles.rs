//! Services that `reveille login` has kept: one file that only its owner may read.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::base::secret::Secret;
use crate::cli::CliFailure;
use crate::config::Environment;

/// The profile that is used where none is named.
pub const USUAL_PROFILE: &str = "default";

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

/// The profile of this name; `None` where there is none.
///
/// # Errors
/// The file of the profiles can't be read.
pub fn profile(name: &str, environment: &Environment) -> anyhow::Result<Option<Profile>> {
    let Ok(file) = file(environment) else { return Ok(None) };
    let kept = read(&file)?.remove(name);
    Ok(kept.map(|StoredProfile { url, token }| Profile { url, token: Secret::new(token) }))
}

/// The file of the profiles: `$XDG_CONFIG_HOME/reveille/profiles.toml`, else below `~/.config`.
pub fn file(environment: &Environment) -> anyhow::Result<PathBuf> {
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

/// Keeps a service under a name, in the place of what is kept there.
pub fn save(file: &Path, name: &str, url: &str, token: String) -> anyhow::Result<()> {
    let mut profiles = read(file)?;
    profiles.insert(name.to_owned(), StoredProfile { url: url.to_owned(), token });
    write(file, &profiles)
}
