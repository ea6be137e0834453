//! Setup of the commands that work on this machine: the configuration, and failures in its terms.

use std::path::PathBuf;

use crate::base::invalid::ValidationErrors;
use crate::cli::CliFailure;
use crate::config::{Config, ConfigError, Environment, LoadedConfig};

/// Where the configuration comes from.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConfigArgs {
    /// Configuration file [default: REVEILLE_CONFIG, else ./reveille.toml if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Reads the configuration.
    pub fn load(&self, environment: &Environment) -> anyhow::Result<LoadedConfig> {
        Config::load(self.config.as_deref(), environment).map_err(|error| refused(&error).into())
    }
}

/// A failure to build something; faults in the configuration are told with the place where they were written.
pub fn with_config_place(error: anyhow::Error, loaded: &LoadedConfig) -> anyhow::Error {
    match error.downcast_ref::<ValidationErrors>() {
        Some(faults) => refused(&loaded.explain(faults)).into(),
        None => error,
    }
}

fn refused(error: &ConfigError) -> CliFailure {
    let text = error.to_string();
    let failure = text.lines().fold(CliFailure::new("the configuration is not valid"), CliFailure::detail);
    failure.hint("config/reveille.toml shows every key with its default")
}
