//! Where it was measured: processors, memory, the database and whether it writes to disk.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};

use crate::base::invalid::hinted::HintedError;
use crate::bench::BenchSite;
use crate::store;

/// Facts about the machine that a reader of the figures needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Number of processors.
    pub cores: usize,
    /// Model of the processor.
    pub processor: String,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Of the last minute, before anything was measured: what else went on here.
    pub load: f64,
    /// `postgres` and its version, or `sqlite` and its.
    pub database: String,
    /// Version of PostgreSQL.
    pub version: String,
    /// `on`; where it is off nothing is measured.
    pub fsync: String,
    /// Setting `synchronous_commit` of PostgreSQL.
    pub synchronous_commit: String,
    /// A Redis was measured, too.
    pub redis: bool,
    /// `release`, or `debug`, which says little.
    pub build: String,
}

impl Machine {
    /// Looks around.
    ///
    /// # Errors
    /// The database can't be reached, or does not write to disk what it says is written.
    pub async fn inspect(at: &BenchSite) -> anyhow::Result<Machine> {
        let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
        let (database, version, fsync, synchronous_commit) = match &at.database_url {
            None => ("sqlite".to_owned(), store::sqlite_version().await?, "on".to_owned(), "full".to_owned()),
            Some(url) => {
                let mut connection =
                    PgConnection::connect(url.expose()).await.context("the database can't be reached")?;
                let (version, fsync, commit): (String, String, String) = sqlx::query_as(
                    "select current_setting('server_version'), current_setting('fsync'),
                            current_setting('synchronous_commit')",
                )
                .fetch_one(&mut connection)
                .await?;
                connection.close().await?;
                ("postgres".to_owned(), version, fsync, commit)
            }
        };
        if fsync == "off" || synchronous_commit == "off" {
            let message = format!(
                "the database has fsync = {fsync} and synchronous_commit = {synchronous_commit}: it does not wait for \
                 its disk, so what is measured here would say nothing"
            );
            return Err(HintedError::new(message, "measure with both on, as the service needs them").into());
        }
        Ok(Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal").and_then(kilobytes).unwrap_or(0) / 1024,
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            database,
            version,
            fsync,
            synchronous_commit,
            redis: at.redis_url.is_some(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
        })
    }
}

/// The value of `name : value` in a file of `/proc`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map(|(_, v)| v.trim())
}

/// `1234 kB`.
pub fn kilobytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_read_by_name() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nMemTotal:       16384 kB\nVmRSS:\t  12 kB\n";
        assert_eq!(field(text, "model name"), Some("A CPU @ 2 GHz"));
        assert_eq!(field(text, "MemTotal").and_then(kilobytes), Some(16384));
        assert_eq!(field(text, "VmRSS").and_then(kilobytes), Some(12));
        assert_eq!((field(text, "nothing"), kilobytes("12 MB")), (None, None));
    }
}
