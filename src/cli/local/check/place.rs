//! Looks at where things are kept: the data directory, the database.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::Finding;
use crate::base::clock::Clock;
use crate::config::Config;
use crate::store::{DatabaseFacts, OpenError, SqliteFile, Store, StoreError, examine};

/// How long a look into the tables of the database may take: all that is sealed is counted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether files can be made in the data directory, or in the place where the first start makes it.
pub fn data_dir(dir: &Path) -> Finding {
    let name = "data directory";
    let shown = dir.display();
    let existing = dir.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("."));
    let probe = existing.join(format!(".reveille-check-{:016x}", fastrand::u64(..)));
    let written = std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe));
    match written {
        Ok(()) if existing == dir => Finding::ok(name, format!("{shown} can be written")),
        Ok(()) => Finding::ok(name, format!("{shown} will be made at the first start")),
        Err(error) => Finding::error(name, format!("{} can't be written: {error}", existing.display()))
            .hint("give server.data_dir to the user that runs the service"),
    }
}

pub async fn database(config: &Config, data_dir: &Path) -> Vec<Finding> {
    let name = "database";
    match examine(&config.database, data_dir).await {
        Ok(DatabaseFacts::Sqlite { version, file, state }) => {
            let state = match state {
                SqliteFile::Absent => "will be made at the first start",
                SqliteFile::Free => "is there, and nobody uses it",
                SqliteFile::InUse => "is in use by a running service",
            };
            let mut findings = vec![Finding::ok(name, format!("SQLite {version}, {} {state}", file.display()))];
            findings.extend(file_permissions(&file));
            findings
        }
        Ok(DatabaseFacts::Postgres { version, role, above_row_security, pending }) => {
            let mut findings = vec![Finding::ok(
                name,
                format!("PostgreSQL {version} answers; fsync and synchronous_commit are on; {}", migrations(pending)),
            )];
            findings.push(match above_row_security {
                false => Finding::ok("database role", format!("`{role}` is held to row-level security")),
                true => Finding::error(
                    "database role",
                    format!("`{role}` is a superuser or has BYPASSRLS, so the database does not keep tenants apart"),
                )
                .hint("create role reveille login nosuperuser nobypassrls, and let it own the database"),
            });
            findings
        }
        Err(error @ OpenError::Refused(_)) => vec![
            Finding::failed(name, &error)
                .hint(format!("does {} name a database that is up and lets us in?", config.database.url.shown())),
        ],
        Err(error) => vec![Finding::failed(name, &error)],
    }
}

/// Answers a question from the database without making or migrating anything. `None`: it can't be asked, which is a
/// finding of its own, or its tables are yet to be made.
///
/// # Errors
/// Why there is no answer.
pub async fn query_store<T>(
    config: &Config,
    data_dir: &Path,
    question: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
) -> Result<Option<T>, String> {
    match examine(&config.database, data_dir).await {
        Err(_) | Ok(DatabaseFacts::Sqlite { state: SqliteFile::Absent, .. }) => return Ok(None),
        Ok(DatabaseFacts::Postgres { pending, .. }) if pending > 0 => return Ok(None),
        Ok(DatabaseFacts::Sqlite { .. } | DatabaseFacts::Postgres { .. }) => {}
    }
    let asked = async {
        let opened = Store::open_read_only(&config.database, data_dir, Clock::system(), |_| {}).await;
        let store = opened.map_err(|error| error.to_string())?;
        let answer = question(&store).await;
        store.close().await;
        answer.map(Some).map_err(|error| error.to_string())
    };
    let too_long = |_| Err(format!("it takes longer than {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(too_long)
}

/// A database file that other users of this machine may read or write.
fn file_permissions(file: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let shown = file.display();
    (mode & 0o077 != 0).then(|| {
        Finding::warning("database file", format!("other users of this machine may open {shown} (mode {mode:o})"))
            .hint(format!("stop the service, then chmod 600 {shown}*"))
    })
}

fn migrations(pending: usize) -> String {
    match pending {
        0 => "its tables are up to date".into(),
        1 => "1 migration is run by `reveille migrate` or the next start".into(),
        pending => format!("{pending} migrations are run by `reveille migrate` or the next start"),
    }
}
