//! A PostgreSQL database for each test, empty or copied from a template that is filled once per build of the schema.

use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::servers;

/// A database of one test; dropped with it.
pub struct Database {
    pub name: String,
    /// `postgres://…/name`, as `[database] url` takes it.
    pub url: String,
    /// How long its end may take. A connection that its test was just making can't be ended before the server gives it
    /// up, in a minute: then the database stays, and goes with its server.
    ends_within: Duration,
}

impl Database {
    /// A database with nothing in it.
    pub async fn empty() -> Database {
        let mut server = connect(&servers::postgres_url()).await;
        create(&mut server, None).await
    }

    /// A copy of the template `name`, which `fill` is given the URL of the first time anyone asks for it.
    ///
    /// Tests run in processes of their own, so an advisory lock of the server decides who fills it. The template gets
    /// its name only once it is whole: a test that dies while filling it leaves nothing that looks finished.
    pub async fn copy_of<F: Future<Output = ()>>(name: &str, fill: impl FnOnce(String) -> F) -> Database {
        let name = &format!("{name}_{:016x}", schema_hash());
        let mut server = connect(&servers::postgres_url()).await;
        let lock = "select pg_advisory_lock(hashtextextended('reveille-tests', 0))";
        server.execute(lock).await.expect("lock the templates");
        let known: bool = sqlx::query_scalar("select exists(select 1 from pg_database where datname = $1)")
            .bind(name)
            .fetch_one(&mut server)
            .await
            .expect("look for the template");
        if !known {
            let draft = create(&mut server, None).await;
            fill(draft.url.clone()).await;
            run(&mut server, format!("alter database {} rename to {name}", draft.name)).await;
        }
        server.execute("select pg_advisory_unlock_all()").await.expect("unlock the templates");
        create(&mut server, Some(name)).await
    }

    /// A connection to it, for looking at what the service has written.
    pub async fn connect(&self) -> PgConnection {
        connect(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (name, limit) = (self.name.clone(), self.ends_within);
        // a destructor can't wait in the test's own runtime
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                match drop_within(&name, limit).await {
                    Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("57014") => {}
                    dropped => dropped.expect("dropped"),
                }
            });
        });
        if dropped.join().is_err() && !std::thread::panicking() {
            panic!("the database {} could not be dropped", self.name);
        }
    }
}

/// A template is good for one schema.
fn schema_hash() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    for migration in sqlx_macros::migrate!("migrations/postgres").iter() {
        migration.checksum.hash(&mut hasher);
    }
    hasher.finish()
}

/// As the owner of the server: the database's own role may not end an autovacuum that is at work in there.
async fn drop_within(name: &str, limit: Duration) -> Result<(), sqlx::Error> {
    let mut server = connect(&servers::postgres_owner_url()).await;
    run(&mut server, format!("set statement_timeout = {}", limit.as_millis())).await;
    server.execute(AssertSqlSafe(format!("drop database if exists {name} with (force)"))).await.map(drop)
}

async fn create(server: &mut PgConnection, template: Option<&str>) -> Database {
    let name = format!("t_{:016x}", fastrand::u64(..));
    let of = template.map(|template| format!(" template {template}")).unwrap_or_default();
    run(server, format!("create database {name}{of}")).await;
    let url = servers::postgres_url();
    let (base, _) = url.rsplit_once('/').expect("a URL with a database name");
    Database { url: format!("{base}/{name}"), name, ends_within: Duration::from_secs(1) }
}

async fn connect(url: &str) -> PgConnection {
    let options = PgConnectOptions::from_str(url).expect("a PostgreSQL URL");
    PgConnection::connect_with(&options).await.expect("connect to the throw-away PostgreSQL of scripts/test.sh")
}

/// Statements on databases take no parameters; the names in them are made here.
async fn run(server: &mut PgConnection, statement: String) {
    let shown = statement.clone();
    server.execute(AssertSqlSafe(statement)).await.unwrap_or_else(|error| panic!("{shown}: {error}"));
}

#[tokio::test]
async fn test_gets_a_database_of_its_own_as_a_role_without_privileges() {
    let mut database = Database::copy_of("support_template", |url| async move {
        connect(&url).await.execute("create table planted (n int)").await.expect("fill the template");
    })
    .await;
    let mut connection = database.connect().await;
    let (superuser, bypass): (bool, bool) =
        sqlx::query_as("select rolsuper, rolbypassrls from pg_roles where rolname = current_user")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((superuser, bypass), (false, false));
    let rows: i64 = sqlx::query_scalar("select count(*) from planted").fetch_one(&mut connection).await.unwrap();
    assert_eq!(rows, 0);

    let name = database.name.clone();
    database.ends_within = Duration::from_secs(60);
    drop((connection, database));
    let left: bool = sqlx::query_scalar("select exists(select 1 from pg_database where datname = $1)")
        .bind(name)
        .fetch_one(&mut connect(&servers::postgres_url()).await)
        .await
        .unwrap();
    assert!(!left, "a dropped test database must be gone");
}
