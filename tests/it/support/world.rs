//! The world that outlives the instances of a test: a database, a clock that stands still, the journal of executions.
//!
//! It can be damaged and taken away behind the service's back. It goes with the test.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::agent::context::settings::ContextSettings;
use reveille::agent::{self, AgentDefinition, gate};
use reveille::app::Extras;
use reveille::base::clock::Clock;
use reveille::base::secret::{Secret, SecretUrl};
use reveille::config::Config;
use reveille::domain::approval;
use reveille::domain::budget;
use reveille::engine;
use reveille::executor::post_process::PostProcess;
use reveille::ports::tool::Tool;
use reveille::ports::tool::http::HttpToolDefinition;
use reveille::ports::vault::{self, KeySource, Vault, WithoutKeys, oauth};
use reveille::ports::{bus, channel, egress, llm, poll};
use reveille::store::{self, RunClaim, RunLimits, Store, TakeRequest};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};
use uuid::Uuid;

use super::app::Instance;
use super::binary::TempDir;
use super::journal::Journal;
use super::postgres::Database;
use super::smtp::MailServer;
use super::{redis, servers, sqlite};

/// How long SQLite's one writer is waited for.
const BUSY: Duration = Duration::from_secs(30);
/// Instances on Postgres share their keys.
pub const MASTER_KEY: &str = "test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Leases ready runs that are due until `until`, without starting them.
pub async fn claim_ready(store: &Store, worker: Uuid, until: DateTime<Utc>, limit: i64) -> Vec<RunClaim> {
    let nothing_is_due = DateTime::UNIX_EPOCH;
    let (now, lease_until, limits) = (nothing_is_due, nothing_is_due, RunLimits::default());
    let take = TakeRequest { worker, now, ahead: until, lease_until, limit, fair: None, limits, shares: None };
    store.take_runs(&take).await.expect("claims").claims
}

/// The configured admin token.
pub const ADMIN: &str = "an admin token of the tests";

/// Runs each of these cases on SQLite and on Postgres.
macro_rules! on_both {
    ($($case:ident)*) => { $(
        mod $case {
            #[tokio::test]
            async fn sqlite() {
                super::$case($crate::support::world::World::sqlite()).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$case($crate::support::world::World::postgres().await).await;
            }
        }
    )* };
}
pub(crate) use on_both;

/// An instant of the day on which all tests take place: `08:00`, `08:00:30`, or `02 08:00` of another day of the month.
pub fn at(text: &str) -> DateTime<Utc> {
    let (day, time) = text.split_once(' ').unwrap_or(("01", text));
    let seconds = if time.len() > 5 { "" } else { ":00" };
    format!("2027-03-{day}T{time}{seconds}Z").parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// State that outlives an instance. It begins at 08:00.
pub struct World {
    pub clock: Clock,
    pub journal: Journal,
    pub settings: engine::Settings,
    /// Sources that can be polled, and networks that are open.
    pub poll: poll::Settings,
    pub egress: egress::Settings,
    pub bus: bus::Settings,
    /// How people are told, and asked; and where links lead.
    pub channels: channel::Settings,
    pub approvals: approval::Settings,
    pub public_url: Option<String>,
    /// The models and the configured agents, and tools besides our own.
    pub llm: llm::settings::Settings,
    pub agents: Vec<AgentDefinition>,
    pub context: ContextSettings,
    pub react: agent::Settings,
    pub tools: Vec<Arc<dyn Tool>>,
    /// Steps behind an answer.
    pub post_process: Vec<Arc<dyn PostProcess>>,
    pub gate: gate::safety::Settings,
    pub budgets: budget::Settings,
    pub gate_rates: gate::rates::RateSettings,
    pub declared: Vec<HttpToolDefinition>,
    /// Services that people can connect.
    pub oauth: oauth::Settings,
    database: WorldDatabase,
    dir: TempDir,
    instances: AtomicUsize,
}

enum WorldDatabase {
    Sqlite,
    Postgres(Database),
}

/// Where people reach the service, in worlds that send mail.
pub const PUBLIC: &str = "https://wake.example.org";

impl World {
    /// Has messages go to this server, with links to where people reach the service.
    pub fn mail_by(&mut self, server: &MailServer) {
        self.public_url = Some(PUBLIC.into());
        self.channels.email = channel::email::Settings {
            url: Some(Secret::new(format!("smtp://{}", server.address()))),
            from: Some("Reveille <reveille@wake.example.org>".into()),
            ..channel::email::Settings::default()
        };
    }

    pub fn sqlite() -> World {
        let world = World::on_empty_sqlite();
        sqlite::migrated_copy(world.dir());
        world
    }

    /// On SQLite, in a directory with nothing in it.
    pub fn on_empty_sqlite() -> World {
        World::new(WorldDatabase::Sqlite)
    }

    pub async fn postgres() -> World {
        let migrate = |url: String| async move {
            let settings = store::Settings { url: SecretUrl::new(url), max_connections: 2 };
            let store = Store::open(&settings, Path::new("."), Clock::system(), |_| {}).await.expect("migrate");
            store.close().await;
        };
        World::new(WorldDatabase::Postgres(Database::copy_of("engine_template", migrate).await))
    }

    /// On a Postgres database with nothing in it, not even tables.
    pub async fn on_empty_postgres() -> World {
        World::new(WorldDatabase::Postgres(Database::empty().await))
    }

    /// Where the database is, for connections of a test's own.
    pub fn url(&self) -> String {
        match &self.database {
            WorldDatabase::Sqlite => format!("sqlite://{}", self.dir.path().join("reveille.db").display()),
            WorldDatabase::Postgres(database) => database.url.clone(),
        }
    }

    /// Events go through streams of the world's own in the Redis of the tests; the rest is on Postgres.
    pub async fn redis() -> World {
        let bus = bus::Settings {
            url: SecretUrl::new(servers::redis_url()),
            stream_prefix: format!("w{:016x}", fastrand::u64(..)),
            stalled_after_seconds: redis::STALLED.as_secs_f64(),
            ..bus::Settings::default()
        };
        World { bus, ..World::postgres().await }
    }

    /// Lets so much time pass that what a dead consumer holds is handed to another: a minute by our clock; what Redis
    /// keeps is aged.
    pub async fn stall(&self) {
        self.advance(61.0);
        if !self.bus.is_embedded() {
            redis::stall(&self.bus).await;
        }
    }

    fn new(database: WorldDatabase) -> World {
        World {
            clock: Clock::manual(at("08:00")),
            journal: Journal::new(),
            // tests that are not about leases need not renew them
            settings: engine::Settings { lease_seconds: 3600.0, ..engine::Settings::default() },
            poll: poll::Settings::default(),
            egress: egress::Settings::default(),
            bus: bus::Settings::default(),
            channels: channel::Settings::default(),
            approvals: approval::Settings::default(),
            public_url: None,
            llm: llm::settings::Settings::default(),
            context: ContextSettings::default(),
            react: agent::Settings::default(),
            agents: Vec::new(),
            tools: Vec::new(),
            post_process: Vec::new(),
            gate: gate::safety::Settings::default(),
            budgets: budget::Settings::default(),
            gate_rates: gate::rates::RateSettings::default(),
            declared: Vec::new(),
            oauth: oauth::Settings::default(),
            database,
            dir: TempDir::new(),
            instances: AtomicUsize::new(0),
        }
    }

    /// Has the default model follow a scenario.
    pub fn follows(&mut self, scenario: &Value) {
        let file = self.dir().join("scenario.json");
        std::fs::write(&file, scenario.to_string()).expect("write the scenario");
        let (provider, scenario) = ("scripted".to_owned(), Some(file));
        let model = llm::settings::ModelSettings { provider, scenario, ..llm::settings::ModelSettings::default() };
        self.llm.models.insert("main".to_owned(), model);
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.database, WorldDatabase::Postgres(_))
    }

    /// A directory that goes with the test.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The vault of this world's instances, once there was one.
    pub fn vault(&self) -> Vault {
        let keys = match self.is_postgres() {
            true => vec![KeySource::value(MASTER_KEY)],
            false => Vec::new(),
        };
        let settings = vault::Settings { master_keys: keys, accept_lost_keys: false };
        Vault::open(&settings, WithoutKeys::KeyFile(self.dir())).expect("a vault").0
    }

    /// Everything that is stored, as text: each table on Postgres, the files themselves on SQLite.
    pub async fn dump(&self) -> Vec<u8> {
        let WorldDatabase::Postgres(database) = &self.database else {
            let files = std::fs::read_dir(self.dir()).expect("a directory").map(|file| file.expect("a file").path());
            let mut stored: Vec<_> = files.filter(|path| path.to_string_lossy().contains("reveille.db")).collect();
            // the log before the database: it may be gone by then, and what was in it is in the database
            stored.sort_by_key(|path| path.extension().is_some_and(|ending| ending == "db"));
            let read = |path: &std::path::PathBuf| match path.extension().is_some_and(|ending| ending == "db") {
                true => std::fs::read(path).expect("the database"),
                false => std::fs::read(path).unwrap_or_default(),
            };
            return stored.iter().flat_map(read).collect();
        };
        let mut connection = all_tenants(database).await;
        let tables = "select table_name::text from information_schema.tables where table_schema = 'public'";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await.expect("tables");
        assert!(tables.len() > 20, "{tables:?}");
        let mut dump = Vec::new();
        for table in tables {
            let rows = format!("select coalesce(string_agg(t::text, '\n'), '') from \"{table}\" t");
            let rows: String =
                sqlx::query_scalar(AssertSqlSafe(rows)).fetch_one(&mut connection).await.expect("the rows of a table");
            dump.extend(rows.into_bytes());
        }
        dump
    }

    /// Moves the clock to an instant of [`at`].
    pub fn advance_to(&self, text: &str) {
        self.clock.advance(at(text) - self.clock.now());
    }

    /// Moves the clock by seconds.
    pub fn advance(&self, seconds: f64) {
        self.clock.advance(TimeDelta::milliseconds((seconds * 1000.0) as i64));
    }

    /// A service on this world's database and clock, built and not running.
    pub fn instance(&self) -> Instance {
        let number = self.instances.fetch_add(1, Ordering::Relaxed);
        let extras = Extras {
            executors: vec![self.journal.executor(number)],
            tools: self.tools.clone(),
            post_process: self.post_process.clone(),
            ..Extras::default()
        };
        Instance::build(number, self.config(), self.clock.clone(), extras)
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.server.data_dir = self.dir.path().to_string_lossy().into_owned();
        config.server.admin_token = Some(Secret::new(ADMIN));
        config.engine = self.settings.clone();
        config.poll = self.poll.clone();
        config.egress = self.egress.clone();
        config.bus = self.bus.clone();
        config.channels = self.channels.clone();
        config.approvals = self.approvals.clone();
        config.server.public_url = self.public_url.clone();
        config.llm = self.llm.clone();
        config.context = self.context.clone();
        config.react = self.react.clone();
        config.gate = self.gate.clone();
        config.budgets = self.budgets;
        config.gate_rates = self.gate_rates.clone();
        config.agents = self.agents.clone();
        config.tools = self.declared.clone();
        config.oauth = self.oauth.clone();
        if let WorldDatabase::Postgres(database) = &self.database {
            config.database.url = SecretUrl::new(database.url.clone());
            config.vault.master_keys = vec![KeySource::value(MASTER_KEY)];
        }
        config
    }

    /// Changes or damages what is stored, behind the service's back. The text may differ: `(sqlite, postgres)`.
    pub async fn execute(&self, sqlite: &str, postgres: &str) {
        let done = match &self.database {
            WorldDatabase::Sqlite => {
                self.file().await.execute(AssertSqlSafe(sqlite)).await.map(|done| done.rows_affected())
            }
            WorldDatabase::Postgres(database) => {
                let mut connection = all_tenants(database).await;
                connection.execute(AssertSqlSafe(postgres)).await.map(|done| done.rows_affected())
            }
        };
        assert!(done.expect("a statement") > 0, "nothing was changed by {sqlite}");
    }

    /// Adds to the schema, behind the service's back: `(sqlite, postgres)`.
    pub async fn define(&self, sqlite: &str, postgres: &str) {
        let text = |text: &str| AssertSqlSafe(text.to_owned());
        let defined = match &self.database {
            WorldDatabase::Sqlite => self.file().await.execute(text(sqlite)).await.map(drop),
            WorldDatabase::Postgres(database) => database.connect().await.execute(text(postgres)).await.map(drop),
        };
        defined.expect("a definition");
    }

    /// One number, asked behind the service's back.
    pub async fn number(&self, query: &'static str) -> i64 {
        let number = match &self.database {
            WorldDatabase::Sqlite => sqlx::query_scalar(query).fetch_one(&mut self.file().await).await,
            WorldDatabase::Postgres(database) => {
                sqlx::query_scalar(query).fetch_one(&mut all_tenants(database).await).await
            }
        };
        number.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// Ends every session of the database and refuses new ones, as an outage does. Postgres alone can go away.
    pub async fn take_away(&self) {
        let name = self.lock_out(false).await;
        let end = "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity where datname = $1";
        let mut owner = owner().await;
        let ended: i64 = sqlx::query_scalar(end).bind(name).fetch_one(&mut owner).await.expect("sessions");
        assert!(ended > 0, "nobody was connected");
    }

    pub async fn give_back(&self) {
        self.lock_out(true).await;
    }

    /// Begins a transaction of nobody's with a statement, and leaves it open.
    pub async fn begin(&self, statement: &'static str) -> PgConnection {
        let WorldDatabase::Postgres(database) = &self.database else { panic!("SQLite has one writer") };
        let mut connection = all_tenants(database).await;
        connection.execute("begin").await.expect("begin");
        connection.execute(statement).await.expect("a statement");
        connection
    }

    async fn lock_out(&self, let_in: bool) -> &str {
        let WorldDatabase::Postgres(database) = &self.database else { panic!("SQLite does not go away") };
        let statement = format!("alter database {} with allow_connections {let_in}", database.name);
        owner().await.execute(AssertSqlSafe(statement)).await.expect("alter database");
        &database.name
    }

    async fn file(&self) -> SqliteConnection {
        let url = format!("sqlite://{}", self.dir.path().join("reveille.db").display());
        let options = sqlx::sqlite::SqliteConnectOptions::from_str(&url).expect("a path").busy_timeout(BUSY);
        SqliteConnection::connect_with(&options).await.expect("the database file")
    }
}

async fn owner() -> PgConnection {
    PgConnection::connect(&servers::postgres_owner_url()).await.expect("connect as the server's owner")
}

async fn all_tenants(database: &Database) -> PgConnection {
    let mut connection = database.connect().await;
    connection.execute("set reveille.tenant = '*'").await.expect("a setting");
    connection
}
