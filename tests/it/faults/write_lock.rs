//! Holds up some writes of a turn while a service runs, so that a test knows on which side of a write the service dies.

use std::str::FromStr;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};

use super::harness::PATIENCE;
use crate::support::checker::Source;

/// The writes that are held up. On Postgres they wait. SQLite has one lock for all tables: there they wait as long as
/// all are held up. Some alone are refused, and with them the end of an execution that fails for it.
#[derive(Debug, Clone, Copy)]
pub enum HeldWrites {
    /// Every write of a run.
    All,
    /// Reservations of calls of models.
    Reservations,
    /// Results of calls; data files and outcomes of approved calls are written.
    Results,
    /// Ends of executions, those of runs that wait for people among them.
    Ends,
    /// Uses of standing grants.
    GrantUses,
}

impl HeldWrites {
    fn on_postgres(self) -> &'static str {
        match self {
            HeldWrites::All => "begin; lock table turns, runs, queue in exclusive mode",
            HeldWrites::Reservations => "begin; lock table budget_reservations, budget_days in exclusive mode",
            HeldWrites::Results => "begin; lock table turns in exclusive mode",
            HeldWrites::Ends => "begin; lock table runs in share row exclusive mode",
            HeldWrites::GrantUses => "begin; lock table grant_uses in exclusive mode",
        }
    }

    fn on_sqlite(self) -> &'static [&'static str] {
        match self {
            HeldWrites::All => &["begin immediate"],
            HeldWrites::Reservations => &[REFUSE_ENDS, REFUSE_RESERVATIONS],
            HeldWrites::Results => &[REFUSE_ENDS, REFUSE_RESULTS],
            HeldWrites::Ends => &[REFUSE_ENDS],
            HeldWrites::GrantUses => &[REFUSE_ENDS, REFUSE_GRANT_USES],
        }
    }

    fn undone_on_sqlite(self) -> &'static [&'static str] {
        match self {
            HeldWrites::All => &["rollback"],
            HeldWrites::Reservations | HeldWrites::Results | HeldWrites::Ends | HeldWrites::GrantUses => &ALLOW,
        }
    }
}

const REFUSE_ENDS: &str = "
    create trigger refused_ends before update on runs when old.state = 'running' and new.state <> 'running'
    begin select raise(abort, 'the test refuses this end'); end";
const REFUSE_RESERVATIONS: &str = "
    create trigger refused_reservations before insert on budget_reservations
    begin select raise(abort, 'the test refuses this reservation'); end";
const REFUSE_RESULTS: &str = "
    create trigger refused_results before insert on turns when new.tool_record is not null
    begin select raise(abort, 'the test refuses this result'); end";
const REFUSE_GRANT_USES: &str = "
    create trigger refused_grant_uses before insert on grant_uses
    begin select raise(abort, 'the test refuses this use of a grant'); end";
const ALLOW: [&str; 4] = [
    "drop trigger if exists refused_grant_uses",
    "drop trigger if exists refused_results",
    "drop trigger if exists refused_reservations",
    "drop trigger if exists refused_ends",
];

/// Keeps the database from these writes until it is released.
pub enum WriteLock {
    Sqlite(SqliteConnection, HeldWrites),
    Postgres(PgConnection),
}

impl WriteLock {
    pub async fn take(source: &Source, held: HeldWrites) -> WriteLock {
        match source {
            Source::Sqlite(file) => {
                let url = format!("sqlite://{}", file.display());
                let options = SqliteConnectOptions::from_str(&url).expect("an address").busy_timeout(PATIENCE);
                let mut connection = SqliteConnection::connect_with(&options).await.expect("the file");
                for statement in held.on_sqlite() {
                    connection.execute(*statement).await.expect("a lock");
                }
                WriteLock::Sqlite(connection, held)
            }
            Source::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.expect("the database");
                connection.execute(held.on_postgres()).await.expect("a lock");
                WriteLock::Postgres(connection)
            }
        }
    }

    /// Lets the database write again; nothing that a dead process has asked for is written.
    pub async fn release(self) {
        match self {
            WriteLock::Sqlite(mut connection, held) => {
                for statement in held.undone_on_sqlite() {
                    connection.execute(*statement).await.expect("taken back");
                }
                connection.close().await.expect("closed");
            }
            WriteLock::Postgres(mut connection) => {
                let waiting = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                                where datname = current_database() and usename = current_user
                                  and pid <> pg_backend_pid()";
                connection.execute(waiting).await.expect("ended");
                connection.close().await.expect("closed");
            }
        }
    }
}
