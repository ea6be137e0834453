//! The HTTP face over a store of its own, with a clock that stands still and an executor that runs nothing.
//!
//! Every answer is held against the reference, and every request that is taken: what `/openapi.json` does not have
//! fails its test.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, Request, StatusCode};
use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use reveille::agent::configured::agent_tool::AgentTool;
use reveille::agent::configured::agent_tool::StepAgents;
use reveille::agent::{self, Agent, AgentDefinition};
use reveille::base::clock::Clock;
use reveille::base::id::{Scope, Tenant, new_id};
use reveille::base::invalid::ValidationErrors;
use reveille::base::metrics::Metrics;
use reveille::base::secret::{Secret, SecretUrl};
use reveille::base::token::{TokenKind, TokenText};
use reveille::domain::approval;
use reveille::domain::approval::policy::Policy;
use reveille::domain::event::Event;
use reveille::domain::quota::Quotas;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::domain::task::{Action, TaskValidator};
use reveille::executor::host::StoreHost;
use reveille::executor::hub::Hub;
use reveille::executor::pipeline::{self, Pipeline};
use reveille::executor::tool_trial::ToolTrials;
use reveille::executor::{Executor, ExecutorRegistry, Job};
use reveille::http::server::ServerLimits;
use reveille::http::{self, HttpParts, HttpState};
use reveille::ports::bus;
use reveille::ports::channel::ChannelRegistry;
use reveille::ports::channel::sms::{self, SmsChannel};
use reveille::ports::egress::{self, Egress};
use reveille::ports::llm;
use reveille::ports::poll::{self, Poller, Sources};
use reveille::ports::tool;
use reveille::ports::tool::policy::ToolPolicy;
use reveille::ports::tool::registry::RegisteredTool;
use reveille::ports::vault;
use reveille::ports::vault::credentials::Credentials;
use reveille::ports::vault::{Vault, WithoutKeys, oauth};
use reveille::store::{self, NewDeadLetter, Store, StoredDeadLetterFilter, StoredToken};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::binary::TempDir;
use crate::support::gate::Gate;
use crate::support::postgres::Database;
use crate::support::reference::{Exchange, Reference, is_held, reference};
use crate::support::sqlite;
use crate::support::sse::{EVENT_STREAM, events_of};

/// The configured admin token.
pub const ADMIN: &str = "an admin token of the tests";
/// Signs the reports on text messages.
pub const SMS_TOKEN: &str = "an auth token of the tests";
/// Where the clock stands at first: a Saturday.
pub const START: &str = "2026-11-21T00:00:00Z";

/// The service of one test.
pub struct Api {
    pub store: Store,
    pub clock: Clock,
    pub vault: Vault,
    pub hub: Hub,
    pub metrics: Metrics,
    pub stopping: CancellationToken,
    pub stop: CancellationToken,
    pub app: Router,
    pub dir: TempDir,
    pub reference: &'static Reference,
    /// `None`: SQLite in the directory.
    database: Option<Arc<Database>>,
}

/// Runs each of these cases on SQLite and on Postgres.
macro_rules! on_both {
    ($($case:ident)*) => { $(
        mod $case {
            #[tokio::test]
            async fn sqlite() {
                super::$case($crate::api::service::Api::new().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$case($crate::api::service::Api::on_postgres().await).await;
            }
        }
    )* };
}
pub(crate) use on_both;

/// An answer of the service.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Null where there is no JSON.
    pub body: Value,
}

impl Reply {
    /// The body of an answer that must have this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Asks for an instruction, and runs nothing.
struct IdleExecutor;

impl Executor for IdleExecutor {
    fn name(&self) -> &'static str {
        "orchestrator"
    }

    fn validate(&self, action: &Action, faults: &mut ValidationErrors) {
        if action.instruction.trim().is_empty() {
            faults.add("/action/instruction", "must say what is to be done");
        }
    }

    fn execute(&self, _: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        Box::pin(async { unreachable!("no engine runs in the tests of the API") })
    }
}

/// `github.merge`, whose definition nobody has accepted.
struct WaitingTool(tool::Definition);

impl tool::Tool for WaitingTool {
    fn definition(&self) -> &tool::Definition {
        &self.0
    }

    fn source(&self) -> tool::ToolSource {
        tool::ToolSource::Mcp
    }

    fn call<'a>(
        &'a self,
        _: &'a tool::ToolContext,
        _: Value,
    ) -> BoxFuture<'a, Result<tool::ToolOutput, tool::ToolError>> {
        unreachable!("nobody has accepted it")
    }
}

fn waiting_tool() -> Arc<RegisteredTool> {
    let parameters = json!({ "type": "object" });
    let (category, consequence) = (approval::Category::SideEffect, approval::Consequence::Medium);
    let definition = tool::Definition::new("github.merge", "Merges.", parameters, category, consequence);
    let registered = RegisteredTool::new(Arc::new(WaitingTool(definition)), ToolPolicy::default());
    Arc::new(registered.expect("a sound tool"))
}

/// Text messages alone: the only channel that is reported on. Nothing is sent.
fn channels(vault: &Vault) -> ChannelRegistry {
    let settings = sms::Settings {
        account: Some("AC1".into()),
        token: Some(Secret::new(SMS_TOKEN)),
        from: Some("Reveille".into()),
        ..sms::Settings::default()
    };
    let sms = SmsChannel::new(&settings, vault.clone(), None).expect("good settings").expect("an account");
    ChannelRegistry::of(vec![Box::new(sms)])
}

impl Api {
    pub async fn new() -> Api {
        Api::with(ServerLimits::default()).await
    }

    /// With services that people can connect to; they are sent back to `public_url`.
    pub async fn connecting_to(providers: oauth::Settings, public_url: &str) -> Api {
        Api::over(None, ServerLimits::default(), None, providers, public_url).await
    }

    pub async fn with(limits: ServerLimits) -> Api {
        Api::over(None, limits, None, google(), &http::Settings::default().public_url()).await
    }

    pub async fn on_postgres() -> Api {
        Api::on(Arc::new(migrated_database().await)).await
    }

    /// On Postgres behind a gate, which counts round trips.
    pub async fn behind_gate() -> (Api, Gate, Arc<Database>) {
        let mut database = migrated_database().await;
        let gate = Gate::before(&database.url).await;
        gate.open().await;
        database.url = gate.url(&database.url);
        let database = Arc::new(database);
        (Api::on(Arc::clone(&database)).await, gate, database)
    }

    async fn on(database: Arc<Database>) -> Api {
        let public_url = http::Settings::default().public_url();
        Api::over(Some(database), ServerLimits::default(), None, google(), &public_url).await
    }

    /// Another instance on the same Postgres, with the same keys.
    pub async fn beside(&self) -> Api {
        let database = self.database.clone().expect("on Postgres");
        let public_url = http::Settings::default().public_url();
        Api::over(Some(database), ServerLimits::default(), Some(self.vault.clone()), google(), &public_url).await
    }

    async fn over(
        database: Option<Arc<Database>>,
        limits: ServerLimits,
        vault: Option<Vault>,
        providers: oauth::Settings,
        public_url: &str,
    ) -> Api {
        let dir = TempDir::new();
        if database.is_none() {
            sqlite::migrated_copy(dir.path());
        }
        let clock = Clock::manual(at(START));
        let store = open(database.as_ref().map(|database| database.url.clone()), dir.path(), clock.clone()).await;
        let own = || Vault::open(&vault::Settings::default(), WithoutKeys::KeyFile(dir.path())).expect("a vault").0;
        let vault = vault.unwrap_or_else(own);
        let (hub, metrics) = (Hub::new(), Metrics::new());
        let (stopping, stop) = (CancellationToken::new(), CancellationToken::new());
        let executors = ExecutorRegistry::new(vec![Arc::new(IdleExecutor)]);
        let checked = executors.clone();
        let check = Arc::new(move |name: &str, action: &Action, faults: &mut ValidationErrors| {
            checked.validate(name, action, faults);
        });
        let egress = Egress::new(&egress::Settings { allow: vec!["127.0.0.1:*".into()], ..Default::default() });
        let egress = egress.expect("an egress");
        let credentials = Credentials::none(egress.clone());
        let agents = AgentTool::all(&[table_booker()]).into_iter().map(|agent| Arc::new(agent) as Arc<dyn tool::Tool>);
        let tools = tool::builtin::all(&credentials).into_iter().chain(agents).collect();
        // its server is away, but for a tool that waits to be accepted
        let tools = tool::ToolRegistry::new(tools).expect("tools").with_servers(["github"]);
        let tools = Arc::new(tools.with_waiting([waiting_tool()]));
        let sources = Sources::new(&poll::Settings::default(), &credentials, Arc::clone(&tools), dir.path());
        let sources = Arc::new(sources.expect("sources"));
        let pollable = Arc::clone(&sources);
        let validator = TaskValidator {
            channels: vec!["email".into(), "webhook".into()],
            check,
            poll: Arc::new(move |tenant, poll, at, faults| pollable.check(tenant, poll, at, faults)),
            seal: Arc::new(|_, _, _, _| Ok(())),
        };
        let bus = bus::open(&bus::Settings::default(), &store).expect("a bus");
        let host = Arc::new(StoreHost::new(store.clone(), validator.clone(), Arc::clone(&bus)));
        let retry = llm::fallback::RetryWait { max_retries: 0, base_delay: Duration::ZERO };
        let models = llm::Models::new(vec![], "main", vec![], retry, &clock);
        let policy = Policy::new(&approval::Settings::default()).expect("the default");
        let compute = store.computing().clone();
        let agent =
            Agent::new(models, Arc::clone(&tools), agent::Settings::default(), policy, compute, Default::default());
        let trials = ToolTrials::new(agent.clone(), host.clone(), store.clone(), 1);
        let pipeline = Pipeline::new(pipeline::StepParts {
            credentials,
            agent,
            agents: StepAgents::new(vec![booker()]),
            channels: vec!["email".into(), "webhook".into()],
            compute: store.computing().clone(),
            expressions: Default::default(),
            templates: Default::default(),
        });
        let state = HttpState::new(HttpParts {
            poller: Poller::new(sources, host, clock.clone(), store.computing().clone()),
            store: store.clone(),
            clock: clock.clone(),
            compute: store.computing().clone(),
            executors,
            pipeline,
            tools: tools.into(),
            mcp: tool::mcp::McpServers::none(),
            trials,
            // none, but for tests that write some there
            skills: reveille::ports::skill::SkillLibrary::open(vec![dir.path().join("skills")], clock.clone()),
            bus,
            validator,
            connector: oauth::open(&store, &vault, &egress, &providers, public_url).1,
            vault: vault.clone(),
            push_key: Some("BP4z".into()),
            channels: channels(&vault),
            hub: hub.clone(),
            metrics: metrics.clone(),
            settings: http::Settings {
                admin_token: Some(Secret::new(ADMIN)),
                public_url: Some(public_url.into()),
                ..http::Settings::default()
            },
            hooks: hooks(),
            // no engine answers a message here
            limits: ServerLimits { answer_time: Duration::from_millis(1), ..limits },
            runs_at_once: reveille::store::RunLimits::default(),
            runs_kept: TimeDelta::days(90),
            stopping: stopping.clone(),
            stop: stop.clone(),
        });
        let (app, reference) = (http::router(state), reference());
        Api { store, clock, vault, hub, metrics, stopping, stop, app, dir, reference, database }
    }

    /// From now on each tenant may have so many streams.
    pub async fn streams_per_tenant(&self, streams: u64) {
        self.store.set_default_quotas(&Quotas { streams, ..Quotas::default() }).await.expect("quotas");
    }

    /// A token of a tenant with these permissions.
    pub async fn token(&self, tenant: &str, scopes: &[&str]) -> String {
        self.token_until(tenant, scopes, None).await.1
    }

    /// A token with an end; answers its id, too.
    pub async fn token_until(
        &self,
        tenant: &str,
        scopes: &[&str],
        expires_at: Option<DateTime<Utc>>,
    ) -> (uuid::Uuid, String) {
        let text = TokenText::new(TokenKind::Tenant);
        let token = StoredToken {
            id: new_id(self.clock.now()),
            tenant_id: Some(tenant.into()),
            name: "a test".into(),
            hash: text.hash().as_bytes().to_vec(),
            scopes: scopes.iter().map(|scope| scope.to_string()).collect(),
            created_at: self.clock.now(),
            expires_at,
            revoked_at: None,
            root: None,
        };
        self.store.create_token(&token, None).await.expect("store a token");
        (token.id, text.expose().to_owned())
    }

    /// A dead letter of a tenant; answers its id.
    pub async fn dead_letter(&self, tenant: &str, error: &str) -> String {
        let fields = json!({
            "specversion": "1.0", "tenantid": tenant, "id": format!("{:x}", fastrand::u64(..)), "source": "mail",
            "type": "mail.new", "data": { "n": 1 },
        });
        let event = Event::try_from(fields).expect("an event");
        self.store.publish_events(std::slice::from_ref(&event)).await.expect("published");
        let until = self.clock.now() + TimeDelta::seconds(60);
        let leased =
            self.store.lease_events(uuid::Uuid::nil(), until, 1, "", &[]).await.expect("leased").events.remove(0);
        let letter = NewDeadLetter { seq: leased.seq, event: Some(&event), body: &leased.body, error, deliveries: 5 };
        self.store.dead_letter_event(letter).await.expect("a dead letter");
        let filter = StoredDeadLetterFilter { limit: 1, ..StoredDeadLetterFilter::default() };
        self.store.list_dead_letters(&only(tenant), &filter).await.expect("letters").rows.remove(0).id.to_string()
    }

    /// Asks as the admin.
    pub async fn admin(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.ask(method, path, Some(ADMIN), body).await
    }

    /// Asks, with or without a token and a JSON body.
    pub async fn ask(&self, method: &str, path: &str, token: Option<&str>, body: Option<Value>) -> Reply {
        self.ask_with(method, path, token, body, &[]).await
    }

    /// Asks with more headers.
    pub async fn ask_with(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
        self.send(request.body(body).expect("a request")).await
    }

    /// Sends a request as it is, and holds what comes of it against the reference.
    pub async fn send(&self, request: Request<Body>) -> Reply {
        let (head, body) = request.into_parts();
        let (sent, body) = read(body).await;
        let is_event_in_headers = head.headers.keys().any(|name| name.as_str().starts_with("ce-"));
        let sent = sent.filter(|_| !is_event_in_headers);
        let (method, path) = (head.method.to_string(), head.uri.to_string());
        let sent_kind = media_type(&head.headers);
        let response = self.app.clone().oneshot(Request::from_parts(head, body)).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a whole answer");
        let kind = media_type(&parts.headers);
        let body = if kind.contains("json") { serde_json::from_slice(&bytes).expect("JSON") } else { Value::Null };
        self.reference.hold(&Exchange {
            method: &method,
            path: &path,
            sent: sent.as_ref().map(|sent| (sent_kind.as_str(), sent)),
            status: parts.status.as_u16(),
            answered: is_held(&kind).then_some((kind.as_str(), &body)),
        });
        if kind == EVENT_STREAM {
            events_of(&method, &path, &bytes);
        }
        Reply { status: parts.status, headers: parts.headers, body }
    }

    /// Every operation of the reference: id, method, path.
    pub fn operations(&self) -> Vec<(String, String, String)> {
        let mut operations = Vec::new();
        for (path, item) in self.reference.document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().expect("an operation id");
                operations.push((id.to_owned(), method.to_uppercase(), path.clone()));
            }
        }
        operations
    }

    /// Runs a statement on the database, which is SQLite.
    pub async fn plant(&self, statement: &str) {
        let options = SqliteConnectOptions::new().filename(self.dir.path().join("reveille.db"));
        let mut connection = options.busy_timeout(Duration::from_secs(10)).connect().await.expect("a connection");
        sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.expect("planted");
    }

    /// For each table, something that changes with any of its rows.
    pub async fn written(&self) -> Vec<(String, String)> {
        match &self.database {
            Some(database) => sums_on_postgres(&mut database.connect().await).await,
            None => sums_on_sqlite(&self.dir.path().join("reveille.db")).await,
        }
    }

    pub fn advance(&self, seconds: i64) {
        self.clock.advance(TimeDelta::seconds(seconds));
    }
}

/// The body of a request as JSON, where it is some and is there at once.
async fn read(body: Body) -> (Option<Value>, Body) {
    if body.size_hint().exact().is_none() {
        return (None, body);
    }
    let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a whole request");
    (serde_json::from_slice(&bytes).ok(), Body::from(bytes))
}

fn media_type(headers: &HeaderMap) -> String {
    let kind = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.to_ascii_lowercase()
}

/// A hook of each kind, all of the tenant ann.
fn hooks() -> http::hooks::Settings {
    toml::from_str(
        r#"
        [standard]
        secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
        tenant_id = "ann"
        [github]
        preset = "github"
        secrets = ["an-older-secret", "It's a Secret to Everybody"]
        tenant_id = "ann"
        [stripe]
        preset = "stripe"
        secrets = ["whsec_test_secret_1"]
        tenant_id = "ann"
        [slack]
        preset = "slack"
        secrets = ["8f742231b10e8888abcd99yyyzzz85a5"]
        tenant_id = "ann"
        [door]
        preset = "token"
        secrets = ["a-shared-token"]
        header = "X-Door"
        type = "body:/what/happened"
        tenant_id = "ann"
        [bare]
        type = "rang"
        "#,
    )
    .expect("hooks")
}

/// A service that people can connect to.
fn google() -> oauth::Settings {
    toml::from_str(
        r#"
        [google]
        authorize_url = "https://id.example.org/authorize"
        token_url = "https://id.example.org/token"
        client_id = "reveille"
        hosts = ["api.example.org"]
        "#,
    )
    .expect("a provider")
}

/// An instant.
pub fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("an RFC 3339 time")
}

/// A task that fires every day at eight, as it is posted.
pub fn daily() -> Value {
    json!({
        "name": "Morning mail",
        "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai" },
        "action": { "instruction": "Summarize my unread emails" },
    })
}

/// The daily task, of a tenant.
pub fn daily_of(tenant: &str) -> Value {
    let mut task = daily();
    task["tenant_id"] = json!(tenant);
    task
}

/// A tenant's view.
pub fn only(tenant: &str) -> Scope {
    Scope::Only(Tenant::new(tenant).unwrap())
}

async fn migrated_database() -> Database {
    let migrate = |url: String| async move {
        open(Some(url), Path::new("."), Clock::system()).await.close().await;
    };
    Database::copy_of("api_template", migrate).await
}

async fn open(url: Option<String>, dir: &Path, clock: Clock) -> Store {
    let mut settings = store::Settings { max_connections: 4, ..store::Settings::default() };
    if let Some(url) = url {
        settings.url = SecretUrl::new(url);
    }
    Store::open(&settings, dir, clock, |_| {}).await.expect("open a store")
}

async fn sums_on_postgres(connection: &mut PgConnection) -> Vec<(String, String)> {
    sqlx::query("select set_config('reveille.tenant', '*', false)").execute(&mut *connection).await.unwrap();
    let tables: Vec<String> =
        sqlx::query_scalar("select tablename::text from pg_tables where schemaname = 'public' order by 1")
            .fetch_all(&mut *connection)
            .await
            .unwrap();
    let mut sums = Vec::new();
    for table in tables {
        let sum = format!("select coalesce(md5(string_agg(t::text, ',' order by t::text)), '') from \"{table}\" t");
        let sum = sqlx::query_scalar(AssertSqlSafe(sum)).fetch_one(&mut *connection).await.unwrap();
        sums.push((table, sum));
    }
    sums
}

async fn sums_on_sqlite(file: &Path) -> Vec<(String, String)> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = options.connect().await.expect("a second look into the database");
    let tables: Vec<String> = sqlx::query_scalar("select name from sqlite_master where type = 'table' order by name")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let mut sums = Vec::new();
    for table in tables {
        let columns: Vec<String> = sqlx::query_scalar("select name from pragma_table_info($1) order by cid")
            .bind(&table)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let line = columns.iter().map(|name| format!("quote(\"{name}\")")).collect::<Vec<_>>().join(" || ',' || ");
        let all = format!("select {line} from \"{table}\" order by 1");
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(all)).fetch_all(&mut connection).await.unwrap();
        sums.push((table, rows.join("\n")));
    }
    sums
}

/// An agent that is a tool.
pub fn table_booker() -> AgentDefinition {
    let written = json!({
        "name": "BookTable", "description": "Book a table.", "instruction": "You book tables.", "tools": ["current_time"],
        "fields": [
            { "name": "party", "type": "integer", "required": true, "max": 12 },
            {
                "name": "email", "type": "string", "required": true, "validator": "value.contains('@')",
                "validator_description": "an address with an @",
            },
        ],
    });
    serde_json::from_value(written).expect("an agent")
}

/// The one agent that steps name.
fn booker() -> AgentDefinition {
    AgentDefinition {
        name: "booker".into(),
        description: String::new(),
        instruction: "You book tables.".into(),
        tools: Some(vec!["current_time".into()]),
        deny_tools: Vec::new(),
        model: None,
        fields: Vec::new(),
        skills: None,
        expose_as_tool: true,
        approval: false,
        timeout_seconds: None,
        max_turns: None,
        approvals: Default::default(),
    }
}
