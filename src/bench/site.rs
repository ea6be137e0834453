//! The place that a run of the measurements is given: a database, a Redis and this executable.

use std::future::Future;
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use crate::base::secret::SecretUrl;

/// The site of a run of the measurements.
#[derive(Debug, Clone)]
pub struct BenchSite {
    /// `None`: SQLite in a temporary directory.
    pub database_url: Option<SecretUrl>,
    /// `None`: the embedded bus, on the database.
    pub redis_url: Option<SecretUrl>,
    /// This executable, for what takes more than one process.
    pub program: PathBuf,
    /// Ends it early; what was made is removed.
    pub stop: CancellationToken,
}

impl BenchSite {
    /// On SQLite, whatever database was given.
    pub fn on_sqlite(&self) -> BenchSite {
        BenchSite { database_url: None, redis_url: None, ..self.clone() }
    }

    /// Does something unless it is asked to stop meanwhile.
    pub async fn run_until_stopped<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::select! {
            done = work => done,
            () = self.stop.cancelled() => anyhow::bail!("stopped; everything that was made is removed"),
        }
    }
}
