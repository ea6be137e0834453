//! The configuration: one TOML file and the environment over it, read once at the start.
//!
//! It composes the `Settings` of their owners and never interprets one. This is the only place that reads the
//! environment (clap reads the two variables of the client commands). Nothing here survives a restart: what has to is
//! in the data directory or the database.

mod environment;
mod fault;
pub mod keys;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Table;

use crate::telemetry;

pub use environment::Environment;
pub use fault::ConfigError;

/// The file that is read when none is named and it is there.
pub const USUAL_FILE: &str = "reveille.toml";
/// Every key with its default and a line of why.
pub const REFERENCE: &str = include_str!("../config/reveille.toml");

/// Everything that can be set, each part owned by the module that acts on it.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub telemetry: telemetry::Settings,
}

impl Config {
    /// Reads `file`, else the file that `REVEILLE_CONFIG` names, else `./reveille.toml` if it is there; then the
    /// variables of `environment` over it.
    ///
    /// # Errors
    /// The first fault, with its line and column or its variable, and what would be right.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Config, ConfigError> {
        match chosen_file(file, environment) {
            Some(path) => {
                let text = std::fs::read_to_string(&path).map_err(|error| ConfigError::unreadable(&path, &error))?;
                Config::read(&path.display().to_string(), &text, environment)
            }
            None => Config::read(USUAL_FILE, "", environment),
        }
    }

    /// The configuration that `text`, called `name` in messages, and the variables of `environment` make together.
    pub fn read(name: &str, text: &str, environment: &Environment) -> Result<Config, ConfigError> {
        let file: Table = text.parse().map_err(|error| ConfigError::syntax(name, text, &error))?;
        environment.overlay(file).map_err(|fault| fault.placed(name, text))
    }
}

fn chosen_file(named: Option<&Path>, environment: &Environment) -> Option<PathBuf> {
    named
        .map(Path::to_owned)
        .or_else(|| environment.get("REVEILLE_CONFIG").map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(USUAL_FILE)).filter(|usual| usual.exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(USUAL_FILE, text, &Environment::of(variables)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_wins_over_the_file_and_the_file_over_the_default() {
        let file = "[telemetry]\nlog_level = \"debug\"\nlog_format = \"json\"\n";
        let config = read(file, &[("REVEILLE_TELEMETRY__LOG_LEVEL", "warn")]).unwrap();
        assert_eq!(config.telemetry.log_level, "warn");
        assert_eq!(config.telemetry.log_format, telemetry::Format::Json);
        assert_eq!(read("", &[]).unwrap().telemetry, telemetry::Settings::default());
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_column_and_what_was_meant() {
        assert_eq!(
            read("# mine\n[telemetry]\n  log_levle = \"debug\"\n", &[]).unwrap_err(),
            "reveille.toml:3:3: unknown key `telemetry.log_levle`; did you mean `telemetry.log_level`?"
        );
        assert_eq!(
            read("[telemetri]\n", &[]).unwrap_err(),
            "reveille.toml:1:2: unknown key `telemetri`; did you mean `telemetry`?"
        );
        assert_eq!(
            read("", &[("REVEILLE_TELEMETRY__LOG_LEVLE", "debug")]).unwrap_err(),
            "REVEILLE_TELEMETRY__LOG_LEVLE: unknown key `telemetry.log_levle`; did you mean `telemetry.log_level`?"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_its_place() {
        assert_eq!(
            read("[telemetry]\nlog_level = 3\n", &[]).unwrap_err(),
            "reveille.toml:2:13: `telemetry.log_level`: invalid type: integer `3`, expected a string"
        );
        assert_eq!(
            read("", &[("REVEILLE_TELEMETRY__LOG_FORMAT", "xml")]).unwrap_err(),
            "REVEILLE_TELEMETRY__LOG_FORMAT: `telemetry.log_format`: unknown variant `xml`, expected one of `auto`, `text`, `json`"
        );
    }

    #[test]
    fn broken_toml_is_named_with_its_place() {
        assert_eq!(read("[telemetry\n", &[]).unwrap_err(), "reveille.toml:1:11: unclosed table, expected `]`");
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        let error = Config::load(Some(Path::new("/nowhere/x.toml")), &Environment::of(&[])).unwrap_err();
        assert_eq!(error.to_string(), "/nowhere/x.toml: No such file or directory (os error 2)");
    }

    #[test]
    fn the_reference_is_the_default_and_shows_every_key() {
        let written =
            serde_json::to_value(read(REFERENCE, &[]).expect("config/reveille.toml is a configuration")).unwrap();
        assert_eq!(written, serde_json::to_value(Config::default()).unwrap());

        let shown = keys::shown_in(REFERENCE);
        assert_eq!(
            shown,
            keys::all(),
            "config/reveille.toml (left) must show every key there is (right), and no other"
        );
    }
}
