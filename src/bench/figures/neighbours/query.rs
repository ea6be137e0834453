//! A query that takes as long as a poll may, and the source that it asks: the database of the run where that is
//! PostgreSQL, as a server elsewhere would be, and else a file, which the service reads itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::bench::{BenchEnv, BenchSite};

const SOURCE: &str = "source";
/// The file in the data directory of the service. SQLite takes an empty file for an empty database.
const FILE: &str = "source.db";
/// Sleeps at the server, whose processors are no part of the service, until the poll's time is over.
const ON_POSTGRES: &str = "select pg_sleep(3600)";
/// Counts without an end, by a processor of the service.
const ON_SQLITE: &str =
    "with recursive counted(n) as (select 1 union all select n + 1 from counted) select max(n) as most from counted";
/// The time limits that polls may have, in seconds.
const TIME_LIMITS: std::ops::RangeInclusive<u64> = 1..=30;

/// A poll that ends with its time limit.
pub struct SlowQuery {
    url: String,
    query: &'static str,
    /// In seconds.
    time_limit: u64,
}

impl SlowQuery {
    /// A query whose polls end at least twice while it is watched for so long, where that is possible.
    pub fn prepare(at: &BenchSite, place: &BenchEnv, watched: Duration) -> anyhow::Result<SlowQuery> {
        let time_limit = (watched.as_secs() / 3).clamp(*TIME_LIMITS.start(), *TIME_LIMITS.end());
        let (url, query) = match &at.database_url {
            Some(url) => (url.expose().to_owned(), ON_POSTGRES),
            None => (make_file(&place.dir)?, ON_SQLITE),
        };
        Ok(SlowQuery { url, query, time_limit })
    }

    /// The configuration of a service whose operator has opened the source to these tenants: the default one but for
    /// that. Nothing is logged, because the measurement has the terminal.
    pub fn configuration(&self, tenants: &[&str]) -> String {
        // texts and lists of texts are written alike in JSON and TOML
        let (url, tenants) = (json!(self.url), json!(tenants));
        format!("[poll.sql.{SOURCE}]\nurl = {url}\ntenants = {tenants}\n[telemetry]\nlog_level = \"off\"\n")
    }

    /// The trigger of a condition that polls it and never fires.
    pub fn trigger(&self) -> Value {
        let poll = json!({ "sql": { "source": SOURCE, "query": self.query } });
        let time_limit = format!("{}s", self.time_limit);
        json!({ "type": "condition", "poll": poll, "interval": "1s", "timeout": time_limit,
                "expression": "value.count < 0" })
    }
}

/// Makes the file, and answers its address.
fn make_file(dir: &Path) -> anyhow::Result<String> {
    std::fs::File::create(dir.join(FILE)).with_context(|| format!("{FILE} can't be made"))?;
    Ok(format!("sqlite://{{data_dir}}/{FILE}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Environment};

    #[test]
    fn configuration_opens_the_source_to_the_hostile_tenants_and_changes_nothing_that_is_measured() {
        let query = SlowQuery { url: "postgres://u:p%22@h/d?a=\"b".into(), query: ON_POSTGRES, time_limit: 7 };
        let text = query.configuration(&["a", "z"]);
        let mut read = Config::read("the measurement", &text, &Environment::of(&[])).unwrap().config;
        let source = read.poll.sql.remove(SOURCE).unwrap();
        assert_eq!(source.url.expose(), query.url);
        assert_eq!(source.tenants, ["a", "z"]);
        read.telemetry.log_level = Config::default().telemetry.log_level;
        let written = |config: &Config| serde_json::to_value(config).unwrap();
        assert_eq!(written(&read), written(&Config::default()));
        assert_eq!(query.trigger()["timeout"], "7s");
    }
}
