//! The configuration: one TOML file and the environment over it, read once at the start.
//!
//! It composes the `Settings` of their owners and never interprets one. This is the only place that reads the
//! environment (clap reads the two variables of the client commands). Nothing here survives a restart: what has to is
//! in the data directory or the database.

mod environment;
mod fault;
pub mod keys;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Table;

use crate::base::invalid::ValidationErrors;
use crate::domain::approval;
use crate::domain::budget;
use crate::domain::data_file::DataFileSettings;
use crate::domain::quota::Quotas;
use crate::domain::trigger::zone;
use crate::ports::{bus, channel, egress, llm, poll, skill, tool, vault};
use crate::{agent, engine, http, store, telemetry};

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
    /// Settings of `[server]`.
    pub server: http::Settings,
    /// Settings of `[hooks]`.
    pub hooks: http::hooks::Settings,
    /// Settings of `[database]`.
    pub database: store::Settings,
    /// Settings of `[engine]`.
    pub engine: engine::Settings,
    /// Settings of `[bus]`.
    pub bus: bus::Settings,
    /// Settings of `[llm]`.
    pub llm: llm::Settings,
    /// Settings of `[encoders]`.
    pub encoders: llm::tokens::encoders::Encoders,
    /// Settings of `[react]`.
    pub react: agent::Settings,
    /// Settings of `[context]`.
    pub context: agent::context::settings::ContextSettings,
    /// Settings of `[gate]`.
    pub gate: agent::gate::safety::Settings,
    /// Settings of `[gate_rates]`.
    pub gate_rates: agent::gate::rates::RateSettings,
    /// Settings of `[verifiers]`.
    pub verifiers: agent::verify::settings::VerifierSettings,
    /// Declared tools, `[[tools]]`.
    pub tools: Vec<tool::http::HttpToolDefinition>,
    /// MCP servers, `[[mcp_servers]]`.
    pub mcp_servers: Vec<tool::mcp::McpServerDefinition>,
    /// How calls of other tools are treated, `[tool_policies]`.
    pub tool_policies: BTreeMap<String, tool::policy::ToolPolicy>,
    /// Settings of `[tool_access]`.
    pub tool_access: tool::access::ToolAccess,
    /// Configured agents, `[[agents]]`.
    pub agents: Vec<agent::AgentDefinition>,
    /// Settings of `[skills]`.
    pub skills: skill::Settings,
    /// Settings of `[memory]`.
    pub memory: agent::MemorySettings,
    /// Settings of `[approvals]`.
    pub approvals: approval::Settings,
    /// Settings of `[vault]`.
    pub vault: vault::Settings,
    /// Settings of `[oauth]`.
    pub oauth: vault::oauth::Settings,
    /// Settings of `[channels]`.
    pub channels: channel::Settings,
    /// Settings of `[egress]`.
    pub egress: egress::Settings,
    /// Settings of `[poll]`.
    pub poll: poll::Settings,
    /// Settings of `[data_files]`.
    pub data_files: DataFileSettings,
    /// Settings of `[quotas]`.
    pub quotas: Quotas,
    /// Settings of `[budgets]`.
    pub budgets: budget::Settings,
    /// Settings of `[time]`.
    pub time: zone::Settings,
    /// Settings of `[telemetry]`.
    pub telemetry: telemetry::Settings,
}

/// A configuration, and where each of its values was written.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Name of the file in messages.
    name: String,
    text: String,
    environment: Environment,
}

impl Config {
    /// Reads `file`, else the file that `REVEILLE_CONFIG` names, else `./reveille.toml` if it is there; then the
    /// variables of `environment` over it.
    ///
    /// # Errors
    /// What is wrong, with its line and column or its variable, and what would be right.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<LoadedConfig, ConfigError> {
        match chosen_file(file, environment) {
            Some(path) => {
                let text = std::fs::read_to_string(&path).map_err(|error| ConfigError::unreadable(&path, &error))?;
                Config::read(&path.display().to_string(), &text, environment)
            }
            None => Config::read(USUAL_FILE, "", environment),
        }
    }

    /// The configuration that `text`, called `name` in messages, and the variables of `environment` make together.
    pub fn read(name: &str, text: &str, environment: &Environment) -> Result<LoadedConfig, ConfigError> {
        let file: Table = text.parse().map_err(|error| ConfigError::syntax(name, text, &error))?;
        let config = environment.overlay(file).map_err(|fault| fault.at_place(name, text))?;
        let mut loaded =
            LoadedConfig { config, name: name.to_owned(), text: text.to_owned(), environment: environment.clone() };
        let resolved = loaded.config.llm.resolve_keys(|variable| environment.get(variable).map(str::to_owned));
        let variable = |name: &str| environment.get(name).map(str::to_owned);
        let filled = tool::http::fill_variables(&mut loaded.config.tools, variable);
        let servers = tool::mcp::fill_variables(&mut loaded.config.mcp_servers, variable);
        resolved
            .and(filled)
            .and(servers)
            .and_then(|()| loaded.config.check())
            .map_err(|faults| loaded.explain(&faults))?;
        Ok(loaded)
    }

    /// Checks the settings that can be judged without building anything; their builders judge the rest.
    fn check(&self) -> Result<(), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        self.server.check(&mut faults);
        http::hooks::check(&self.hooks, &mut faults);
        self.engine.check(&mut faults);
        self.database.check(&mut faults);
        self.poll.check(&mut faults);
        self.bus.check(&mut faults);
        // a run is how an event that comes again is known: were it forgotten first, the event would run twice
        let runs_kept = std::time::Duration::from_secs(u64::from(self.engine.retention_days) * 24 * 3600);
        if self.bus.retention() >= runs_kept {
            faults.add("/bus/retention", "must be shorter than `engine.retention_days`: an event is known by its run");
        }
        self.llm.check(&[], &mut faults);
        self.encoders.check(&mut faults);
        self.react.check(&mut faults);
        let models: Vec<&str> = self.llm.models.keys().map(String::as_str).collect();
        self.context.check(&models, &mut faults);
        let embedders = self.llm.models.iter().filter(|(_, model)| model.makes_embeddings());
        let embedders: Vec<&str> = embedders.map(|(name, _)| name.as_str()).collect();
        self.memory.check(&models, &embedders, &mut faults);
        self.gate.compile(&mut faults);
        self.verifiers.check(&mut faults);
        self.gate_rates.check(&mut faults);
        vault::oauth::check(&self.oauth, &mut faults);
        self.data_files.check(&mut faults);
        self.quotas.check(&mut faults);
        self.budgets.check(&mut faults);
        self.telemetry.check(&mut faults);
        faults.into_result(())
    }

    /// How calls of each tool are treated for which anything is said.
    pub fn all_tool_policies(&self) -> BTreeMap<String, tool::policy::ToolPolicy> {
        let declared = self.tools.iter().map(|tool| (tool.name.clone(), tool.policy()));
        self.tool_policies.clone().into_iter().chain(declared).collect()
    }

    /// The quotas of every tenant that has none of its own. Runs at once are a setting of the engine.
    pub fn default_quotas(&self) -> Quotas {
        let most = self.engine.max_runs_per_tenant;
        Quotas { concurrent_runs: (most > 0).then_some(most.into()), ..self.quotas }
    }
}

impl LoadedConfig {
    /// Where it was read from, in words.
    pub fn origin(&self) -> String {
        let variables = self.environment.names_of_keys().join(", ");
        match (self.text.is_empty(), variables.as_str()) {
            (true, "") => "none, so the defaults".into(),
            (false, "") => self.name.clone(),
            (true, variables) => variables.to_owned(),
            (false, variables) => format!("{}, {variables}", self.name),
        }
    }

    /// Faults that an owner found in its settings (`/channels/email/url`), each with the place where it was written.
    pub fn explain(&self, faults: &ValidationErrors) -> ConfigError {
        let explained = faults.0.iter().map(|fault| self.environment.fault_at(&fault.pointer, &fault.message));
        ConfigError::all(explained.map(|fault| fault.at_place(&self.name, &self.text)))
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
        let read = Config::read(USUAL_FILE, text, &Environment::of(variables));
        read.map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    #[test]
    fn environment_wins_over_the_file_and_the_file_over_the_default() {
        let file = "[telemetry]\nlog_level = \"debug\"\nlog_format = \"json\"\n";
        let config = read(file, &[("REVEILLE_TELEMETRY__LOG_LEVEL", "warn")]).unwrap();
        assert_eq!(config.telemetry.log_level, "warn");
        assert_eq!(config.telemetry.log_format, telemetry::LogFormat::Json);
        assert_eq!(read("", &[]).unwrap().telemetry, telemetry::Settings::default());
    }

    #[test]
    fn unknown_key_is_named_with_its_line_and_column_and_what_was_meant() {
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
    fn value_of_the_wrong_type_is_named_with_its_place() {
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
    fn file_that_is_named_must_be_there() {
        let error = Config::load(Some(Path::new("/nowhere/x.toml")), &Environment::of(&[])).unwrap_err();
        assert_eq!(error.to_string(), "/nowhere/x.toml: No such file or directory (os error 2)");
    }

    #[test]
    fn every_fault_that_an_owner_finds_is_named_with_its_place() {
        let file = "[llm]\ndefault = \"mian\"\n[llm.models.main]\nmodel = \"m\"\ntimeout_seconds = 0\n";
        assert_eq!(
            read(file, &[("REVEILLE_TELEMETRY__LOG_LEVEL", "reveille=loud")]).unwrap_err(),
            "reveille.toml:2:11: `llm.default`: no model `mian` in [llm.models]; did you mean `main`?\n\
             reveille.toml:5:19: `llm.models.main.timeout_seconds`: must be from 1 to 3600\n\
             REVEILLE_TELEMETRY__LOG_LEVEL: `telemetry.log_level`: error parsing level filter: expected \
             one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5"
        );
    }

    #[test]
    fn runs_outlive_the_bus_and_a_hook_without_a_good_secret_is_refused() {
        let file = "[engine]\nretention_days = 7\n[hooks.shop]\nsecrets = [\"\"]\ntenant_id = \"ann\"\n";
        assert_eq!(
            read(file, &[("REVEILLE_BUS__RETENTION", "8d")]).unwrap_err(),
            "reveille.toml:4:1: `hooks.shop.secrets.0`: must have at least 8 characters\n\
             REVEILLE_BUS__RETENTION: `bus.retention`: must be shorter than `engine.retention_days`: an event is known by its run"
        );
    }

    #[test]
    fn key_comes_from_the_variable_that_is_named_for_it() {
        let file = "[llm.models.main]\nmodel = \"m\"\napi_key_env = \"MY_KEY\"\n";
        let config = read(file, &[("MY_KEY", "canary-7")]).unwrap();
        assert_eq!(config.llm.models["main"].api_key.as_ref().unwrap().expose(), "canary-7");
        assert!(!format!("{config:?}").contains("canary"), "a secret is not printed");
        assert_eq!(
            read(file, &[]).unwrap_err(),
            "reveille.toml:3:15: `llm.models.main.api_key_env`: the environment variable `MY_KEY` is not set"
        );
    }

    #[test]
    fn mcp_server_is_given_its_variables_and_none_of_them_is_printed() {
        let file = "[[mcp_servers]]\nname = \"notes\"\ncommand = [\"${RUNNER}\", \"notes.js\"]\nenv = { TOKEN = \"${KEY}\" }\n";
        let config =
            read(file, &[("RUNNER", "node"), ("KEY", "canary-9"), ("PATH", "/usr/bin"), ("SPACE", "x")]).unwrap();
        let server = &config.mcp_servers[0];
        assert_eq!(server.command, ["node", "notes.js"]);
        let env: Vec<(&str, &str)> = server.env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(env, [("PATH", "/usr/bin"), ("TOKEN", "canary-9")]);
        let printed = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(!printed.contains("canary"), "{printed}");
        let unset = read(file, &[("RUNNER", "node")]).unwrap_err();
        let expected = "`mcp_servers.0.env.TOKEN`: the environment variable `KEY` is not set";
        assert!(unset.starts_with("reveille.toml:") && unset.ends_with(expected), "{unset}");
    }

    #[test]
    fn no_secret_of_the_configuration_is_printed() {
        let file = "[bus]\nurl = \"redis://u:canary-5@h\"\n[hooks.x]\nsecrets = [\"d2hzZWNfY2FuYXJ5LTY=canary\"]\npreset = \"github\"\n\
            tenant_id = \"a\"\n[vault]\nmaster_keys = [\"canary-1\"]\n[channels.email]\nurl = \"smtp://u:canary-2@h\"\n\
            [egress]\nproxy = \"http://u:canary-3@p\"\n[database]\nurl = \"postgres://u:canary-4@h/d\"\n\
            [oauth.c]\nauthorize_url = \"https://i/a\"\ntoken_url = \"https://i/t\"\nclient_id = \"c\"\nhosts = [\"i\"]\n\
            client_secret = \"canary-8\"\n";
        let config = read(file, &[]).unwrap();
        let printed = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(!printed.contains("canary"), "{printed}");
        assert_eq!(
            read("[vault]\nmaster_keys = \"k1:canary\"\n", &[]).unwrap_err(),
            "reveille.toml:2:15: `vault.master_keys`: invalid type: string, expected a sequence"
        );
    }

    #[test]
    fn reference_is_the_default_and_shows_every_key() {
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
