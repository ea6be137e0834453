//! The environment as configuration: `REVEILLE_` and the path of a key in capitals, joined by `__`.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::fault::{ConfigError, ConfigFault};
use super::{Config, keys};

const PREFIX: &str = "REVEILLE_";
/// Ours as well, and no keys of the configuration.
const OTHERS: [&str; 4] = ["REVEILLE_CONFIG", "REVEILLE_URL", "REVEILLE_TOKEN", "REVEILLE_PROFILE"];

/// The variables of a process, as text.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process. Variables that are not UTF-8 are left out.
    #[allow(clippy::disallowed_methods)] // the owner
    pub fn of_process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment(std::env::vars_os().filter_map(text).collect())
    }

    /// An environment of these variables alone.
    pub fn of(variables: &[(&str, &str)]) -> Environment {
        Environment(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    /// A variable's value; an empty one is as good as none, because that is how compose files unset things.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Puts the variables over what the file says and reads the whole.
    ///
    /// A variable has no type of its own: what reads as a TOML number, boolean, list or inline table is taken as
    /// that, and as plain text after all where the key wants text (a password of digits).
    pub(super) fn overlay(&self, file: Table) -> Result<Config, EnvironmentFault> {
        self.find_misspelt()?;
        let mut as_text = BTreeSet::new();
        let mut first_fault: Option<(String, ConfigFault)> = None;
        loop {
            let fault = match self.attempt(file.clone(), &as_text)? {
                Ok(config) => return Ok(config),
                Err(fault) => fault,
            };
            let retyped = fault.variable.clone().filter(|name| self.is_typed(name) && as_text.insert(name.clone()));
            match (retyped, first_fault) {
                (Some(name), _) => first_fault = Some((name, fault)),
                (None, Some((name, first))) if fault.variable.as_ref() == Some(&name) => return Err(first.into()),
                (None, _) => return Err(fault.into()),
            }
        }
    }

    fn attempt(
        &self,
        mut table: Table,
        as_text: &BTreeSet<String>,
    ) -> Result<Result<Config, ConfigFault>, EnvironmentFault> {
        for (name, path) in self.keys() {
            let text = &self.0[name];
            let value = parse_toml_value(text)
                .filter(|_| !as_text.contains(name))
                .unwrap_or_else(|| Value::String(text.clone()));
            if !set_at_path(&mut table, &path, value) {
                return Err(EnvironmentFault::Variable(ConfigError::at(name, "goes below a key that is not a table")));
            }
        }
        Ok(serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
            let path: Vec<String> = keys::path_of(error.path());
            ConfigFault { message: error.into_inner().message().to_owned(), variable: self.variable_of(&path), path }
        }))
    }

    /// A fault that is known by its RFC 6901 pointer.
    pub(super) fn fault_at(&self, pointer: &str, message: &str) -> ConfigFault {
        let unescaped = |key: &str| key.replace("~1", "/").replace("~0", "~");
        let path: Vec<String> = pointer.split('/').skip(1).map(unescaped).collect();
        ConfigFault { message: message.to_owned(), variable: self.variable_of(&path), path }
    }

    fn variable_of(&self, path: &[String]) -> Option<String> {
        self.keys().find(|(_, key)| is_prefix_either_way(key, path)).map(|(name, _)| name.to_owned())
    }

    /// The variables that name keys, with the keys' paths.
    fn keys(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        self.0.keys().filter_map(|name| {
            let path = name.strip_prefix(PREFIX).filter(|path| path.contains("__"))?;
            self.get(name)?;
            Some((name.as_str(), path.split("__").map(str::to_lowercase).collect()))
        })
    }

    /// The names of the variables that set something.
    pub(super) fn names_of_keys(&self) -> Vec<&str> {
        self.keys().map(|(name, _)| name).collect()
    }

    fn is_typed(&self, name: &str) -> bool {
        self.get(name).is_some_and(|text| parse_toml_value(text).is_some())
    }

    /// `REVEILLE_DATABASE_URL` for `REVEILLE_DATABASE__URL` must not be ignored. Other variables with our prefix are:
    /// Kubernetes sets `REVEILLE_SERVICE_HOST` and its kin wherever a service is called `reveille`.
    fn find_misspelt(&self) -> Result<(), EnvironmentFault> {
        let ours = |name: &&String| name.starts_with(PREFIX) && !OTHERS.contains(&name.as_str());
        for name in self.0.keys().filter(ours).filter(|name| !name[PREFIX.len()..].contains("__")) {
            let written = &name[PREFIX.len()..];
            if let Some(key) = keys::all().iter().find(|key| key.replace('.', "_").eq_ignore_ascii_case(written)) {
                let right = format!("{PREFIX}{}", key.replace('.', "__").to_uppercase());
                let message = format!("not a key; did you mean `{right}`, with two underscores between the parts?");
                return Err(EnvironmentFault::Variable(ConfigError::at(name, &message)));
            }
        }
        Ok(())
    }
}

/// The names alone: values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// A fault that still needs its place in the file, or one that has its variable already.
pub(super) enum EnvironmentFault {
    Fault(ConfigFault),
    Variable(ConfigError),
}

impl From<ConfigFault> for EnvironmentFault {
    fn from(fault: ConfigFault) -> EnvironmentFault {
        EnvironmentFault::Fault(fault)
    }
}

impl EnvironmentFault {
    /// The error, with the place in the file `name` of this text where it is a fault of the file.
    pub fn at_place(self, name: &str, text: &str) -> ConfigError {
        match self {
            EnvironmentFault::Fault(fault) => fault.at_place(name, text),
            EnvironmentFault::Variable(error) => error,
        }
    }
}

/// A number, boolean, list or inline table, if the text is one in TOML.
fn parse_toml_value(text: &str) -> Option<Value> {
    let table: Table = format!("value = {}", text.trim()).parse().ok()?;
    let value = table.get("value").filter(|_| table.len() == 1)?.clone();
    matches!(value, Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Array(_) | Value::Table(_))
        .then_some(value)
}

/// Sets the value at `path`, making the tables on the way; false where something else is in the way.
fn set_at_path(table: &mut Table, path: &[String], value: Value) -> bool {
    match path {
        [] => false,
        [key] => {
            table.insert(key.clone(), value);
            true
        }
        [key, rest @ ..] => match table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(below) => set_at_path(below, rest, value),
            _ => false,
        },
    }
}

/// Whether a fault at `path` may come from the variable of `key`: one leads to the other.
fn is_prefix_either_way(key: &[String], path: &[String]) -> bool {
    !path.is_empty() && key.iter().zip(path).all(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_is_taken_as_what_it_reads_as_in_toml() {
        let shown = |text| parse_toml_value(text).map(|value| value.to_string());
        assert_eq!(shown("12"), Some("12".into()));
        assert_eq!(shown("0.8"), Some("0.8".into()));
        assert_eq!(shown("true"), Some("true".into()));
        assert_eq!(shown("[\"10.0.0.0/8\", \"x\"]"), Some("[\"10.0.0.0/8\", \"x\"]".into()));
        for text in ["plain", "sqlite:///x.db", "007", "2026-12-24", "\"quoted\"", "1\nother = 2", ""] {
            assert_eq!(shown(text), None, "{text:?}");
        }
    }

    #[test]
    fn digits_are_text_where_text_is_wanted() {
        let environment = Environment::of(&[("REVEILLE_TELEMETRY__LOG_LEVEL", "123")]);
        let config = Config::read("x.toml", "", &environment).unwrap().config;
        assert_eq!(config.telemetry.log_level, "123");
    }

    #[test]
    fn name_with_single_underscores_is_refused_and_foreign_names_are_not() {
        let read = |name| Config::read("x.toml", "", &Environment::of(&[(name, "warn")])).map_err(|e| e.to_string());
        assert_eq!(
            read("REVEILLE_TELEMETRY_LOG_LEVEL").unwrap_err(),
            "REVEILLE_TELEMETRY_LOG_LEVEL: not a key; did you mean `REVEILLE_TELEMETRY__LOG_LEVEL`, with two underscores between the parts?"
        );
        for foreign in ["REVEILLE_SERVICE_HOST", "REVEILLE_PORT_7700_TCP", "REVEILLE_URL", "PATH"] {
            assert!(read(foreign).is_ok(), "{foreign}");
        }
    }

    #[test]
    fn empty_variable_is_as_good_as_none() {
        let environment = Environment::of(&[("REVEILLE_TELEMETRY__LOG_LEVEL", "")]);
        let config = Config::read("x.toml", "[telemetry]\nlog_level = \"debug\"", &environment).unwrap().config;
        assert_eq!(config.telemetry.log_level, "debug");
    }

    #[test]
    fn values_are_not_printed() {
        let environment = Environment::of(&[("REVEILLE_SERVER__ADMIN_TOKEN", "rv_secret")]);
        assert_eq!(format!("{environment:?}"), "[\"REVEILLE_SERVER__ADMIN_TOKEN\"]");
    }
}
