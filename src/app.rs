//! The composition root: a configuration becomes everything built once, started together, and stopped in order.
//!
//! Nothing else builds a store, a model or a channel. Embedders start here, with executors and tools of their own.
//! The first admin token, which is told only once, is made last, so that a start that fails or is broken off loses
//! none.

mod embedded;
mod extras;
mod first_token;
mod foreign_keys;
mod handle;
mod parts;
mod stranded;
mod subscription;
mod validated;
pub(crate) mod warnings;

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::configured::agent_tool::{AgentTool, StepAgents};
use crate::agent::verify::Verifiers;
use crate::agent::{Agent, ContextSources, PendingChecks};
use crate::base::clock::Clock;
use crate::base::invalid::ValidationErrors;
use crate::base::invalid::hinted::HintedError;
use crate::base::secret::Secret;
use crate::base::threads::LowRuntime;
use crate::base::token::TokenText;
use crate::config::Config;
use crate::domain::task::TaskValidator;
use crate::engine::{self, Engine};
use crate::executor::host::StoreHost;
use crate::executor::host::nearest::NearestFacts;
use crate::executor::host::tool_pins::StorePins;
use crate::executor::hub::Hub;
use crate::executor::orchestrator::Orchestrator;
use crate::executor::pipeline::{self, Pipeline};
use crate::executor::post_process::PostProcessing;
use crate::executor::tool_trial::ToolTrials;
use crate::executor::webhook::WebhookExecutor;
use crate::executor::{Executor, ExecutorRegistry};
use crate::http::server::ServerLimits;
use crate::http::{self, server};
use crate::ports::bus::counted::CountedBus;
use crate::ports::bus::{self, Bus};
use crate::ports::channel::ChannelRegistry;
use crate::ports::channel::live::LiveChannel;
use crate::ports::poll::{Poller, Sources};
use crate::ports::tool::ToolCatalog;
use crate::ports::tool::mcp::McpServers;
use crate::ports::vault::credentials::Credentials;
use crate::ports::vault::{WithoutKeys, oauth};
use crate::store::Store;

pub use crate::http::in_process::CallError;
pub use embedded::AppBuilder;
pub use extras::Extras;
use first_token::make_first_token;
pub(crate) use foreign_keys::foreign_keys;
pub use handle::AppHandle;
use parts::{open_skills, open_store, open_tools, open_vapid, open_vault, renew_zones};
use stranded::warn_of_stranded_events;
pub(crate) use stranded::{WAY_BACK, stranded_events_warning};
pub use subscription::EventSubscription;
pub use validated::{AppAdditions, ConfiguredNames, ValidatedParts, validate};
use warnings::{warn_of_bus, warn_of_role};

/// Secrets and files that were generated at the first start, to be shown once.
#[derive(Debug, Default)]
pub struct GeneratedSecrets {
    /// An admin token; it is stored as its hash only.
    pub admin_token: Option<TokenText>,
    /// Address of a page that signs a browser in as that token: once, within ten minutes.
    pub login_link: Option<Secret>,
    /// A key file for the vault; whoever has it and the database can read what is sealed.
    pub key_file: Option<PathBuf>,
}

/// Everything built, nothing running: `start` runs it, tests tick it by hand.
pub struct BuiltApp {
    /// The opened store.
    pub store: Store,
    /// The engine, not started yet.
    pub engine: Engine,
    /// State of the HTTP service.
    pub http: http::HttpState,
    /// The event bus.
    pub bus: Arc<dyn Bus>,
    /// The MCP servers, not connected yet.
    pub mcp: McpServers,
    /// The key file of the vault, if it was made now.
    pub key_file: Option<PathBuf>,
}

/// How HTTP learns of an end: first it says so, and later it stops.
#[derive(Debug, Clone, Default)]
pub struct AppEnd {
    /// `/readyz` answers 503, so that no balancer sends more; everything else goes on.
    pub announced: CancellationToken,
    /// Streams end and no connection is accepted any more.
    pub http: CancellationToken,
}

/// A running service.
pub struct App {
    address: SocketAddr,
    made: GeneratedSecrets,
    store: Store,
    engine: engine::RunningEngine,
    mcp: McpServers,
    http: JoinHandle<()>,
    ending: AppEnd,
    /// The names that tasks made in this process may use.
    validator: TaskValidator,
    handle: AppHandle,
    /// A folder that goes with the service.
    scratch: Option<PathBuf>,
    /// Serves requests until the service is dropped.
    _requests: LowRuntime,
}

/// Builds a service from its configuration. `waiting` is told each time a database that is down is looked at again.
///
/// # Errors
/// The fault of the configuration, the data directory or the database, with a hint where there is one.
pub async fn build(
    config: &Config,
    clock: Clock,
    extras: Extras,
    ending: AppEnd,
    waiting: impl Fn(&str),
) -> anyhow::Result<BuiltApp> {
    let data_dir = Path::new(&config.server.data_dir);
    let added = AppAdditions { tools: &extras.tools, models: &extras.models, encoders: &extras.encoders };
    let ValidatedParts { egress, models, policy, declared, servers } = validate(config, data_dir, &clock, added)?;
    private_dir(data_dir).with_context(|| format!("the data directory {} can't be made", data_dir.display()))?;
    let (vault, key_file) = open_vault(config, data_dir)?;
    let metrics = extras.metrics;
    renew_zones(config, &metrics).await?;
    let vapid = open_vapid(config, data_dir)?;
    let push_key = vapid.as_ref().map(|vapid| vapid.public_key().to_owned());
    let public_url = config.server.public_url.as_deref();
    let channels = ChannelRegistry::new(&config.channels, vapid, &egress, &vault, public_url)
        .map_err(faults_below("/channels"))?;
    let store = open_store(config, data_dir, clock.clone(), waiting, &vault, &metrics).await?;
    let compute = store.computing().clone();
    let models = models.computing_on(&compute);
    let (refresher, connector) = oauth::open(&store, &vault, &egress, &config.oauth, &config.server.public_url());
    let credentials = Credentials::new(store.clone(), vault.clone(), egress.clone(), Some(Arc::new(refresher)));
    let skills = open_skills(config, clock.clone()).await?;
    let agents: Vec<Arc<AgentTool>> = AgentTool::all(&config.agents).into_iter().map(Arc::new).collect();
    let catalog = ToolCatalog::new(open_tools(config, &credentials, &skills, &agents, declared, extras.tools)?);
    let supervisor = extras.mcp_supervisor;
    let has_mcp_servers = !servers.is_empty();
    let pins = Arc::new(StorePins(store.clone()));
    let mcp = McpServers::new(servers, &credentials, &catalog, supervisor, clock.clone(), &metrics, Some(pins));
    let sources = Sources::new(&config.poll, &credentials, catalog.clone(), data_dir);
    let sources = Arc::new(sources.map_err(faults_below("/poll"))?);
    let gate = extras::gate(config, &store, extras.gate_checks)?;
    let verifiers = Verifiers::new(&config.verifiers, extras.verifiers);
    let extraction_models = models.clone();
    let agent = Agent::new(models, catalog.current(), config.react.clone(), policy, compute.clone(), gate);
    let pending = PendingChecks::new(extras.pending_agents);
    let sources_of_context = ContextSources::new(extras.context_sources);
    let context = config.context.clone();
    let library = skills.clone();
    let agent = Agent {
        catalog: Some(catalog.clone()),
        agents: Arc::new(agents),
        skills: library,
        verifiers,
        pending,
        sources: sources_of_context,
        context,
        extracts: config.memory.model.is_some(),
        ..agent
    };
    let channels = channels.and(LiveChannel::new(&config.channels.live, store.clone(), vault.clone()));
    let channels = channels.with(extras.channels).map_err(faults_below("/channels"))?;
    let pipeline = Pipeline::new(pipeline::StepParts {
        credentials: credentials.clone(),
        agent: agent.clone(),
        agents: StepAgents::new(config.agents.clone()),
        channels: channels.names().into_iter().map(str::to_owned).collect(),
        compute: compute.clone(),
        expressions: Default::default(),
        templates: Default::default(),
    });
    let public_url = config.server.public_url();
    let webhook = WebhookExecutor::new(credentials.clone(), vault.clone(), &public_url, compute.clone());
    let mut executors: Vec<Arc<dyn Executor>> =
        vec![Arc::new(Orchestrator::new(agent.clone())), Arc::new(pipeline.clone()), Arc::new(webhook)];
    executors.extend(extras.executors);
    let executors = ExecutorRegistry::new(executors);
    let bus = bus::open(&config.bus, &store).map_err(|why| faults_below("/bus")(ValidationErrors::one("/url", why)))?;
    let bus: Arc<dyn Bus> = Arc::new(CountedBus::new(bus, &metrics));
    let validator = task_validator(&executors, &channels, &sources);
    let host = StoreHost::new(store.clone(), validator.clone(), Arc::clone(&bus)).with_credentials(credentials);
    let nearest = NearestFacts::configured(&config.memory, &config.llm, clock.clone(), compute.clone());
    let host = host.with_nearest(nearest.clone());
    let host = Arc::new(host);
    let poller = Poller::new(sources, host.clone(), clock.clone(), store.computing().clone());
    let trials = ToolTrials::new(agent, host.clone(), store.clone(), config.approvals.required_approvers);
    let hub = Hub::new();
    let engine = Engine::new(engine::EngineParts {
        store: store.clone(),
        executors: executors.clone(),
        channels: channels.clone(),
        require_verified: config.channels.require_verified,
        bus: Arc::clone(&bus),
        compute: compute.clone(),
        max_deliveries: config.bus.max_deliveries,
        host,
        poller: poller.clone(),
        polls_at_once: config.poll.max_concurrent,
        hub: hub.clone(),
        post_processing: PostProcessing::new(extras.post_process),
        vault: vault.clone(),
        public_url: config.server.public_url(),
        approvals: config.approvals.clone(),
        metrics: metrics.clone(),
        has_mcp_servers,
        agents: config.agents.clone(),
        settings: config.engine.clone(),
        models: extraction_models,
        memory: config.memory.clone(),
        nearest,
        data_files: config.data_files.clone(),
        time: config.time.clone(),
    });
    let http = http::HttpState::new(http::HttpParts {
        store: store.clone(),
        vault,
        connector,
        push_key,
        channels,
        clock,
        compute,
        executors,
        pipeline,
        tools: catalog,
        mcp: mcp.clone(),
        trials,
        skills,
        validator,
        bus: Arc::clone(&bus),
        poller,
        hub,
        metrics,
        settings: config.server.clone(),
        hooks: config.hooks.clone(),
        limits: ServerLimits::default(),
        runs_at_once: config.engine.limits(),
        runs_kept: config.engine.retention(),
        stopping: ending.announced,
        stop: ending.http,
    });
    Ok(BuiltApp { store, engine, http, bus, mcp, key_file })
}

impl App {
    /// Builds a service and starts it; once it has returned, the service answers at [`App::address`].
    ///
    /// # Errors
    /// As [`build`]; or the address to listen on can't be had.
    pub async fn start(config: &Config, extras: Extras, waiting: impl Fn(&str)) -> anyhow::Result<App> {
        // before anything is stored: the address is what most often can't be had
        let listen = &config.server.listen;
        let listener = TcpListener::bind(listen).await.map_err(|error| cannot_listen(listen, error))?;
        let address = listener.local_addr()?;
        let ending = AppEnd::default();
        let BuiltApp { store, engine, http, bus, mcp, key_file } =
            build(config, Clock::system(), extras, ending.clone(), waiting).await?;
        warn_of_role(&store).await?;
        warn_of_bus(&*bus).await;
        warn_of_stranded_events(&config.bus, &store).await?;
        let instance = engine.instance();
        // the engine's threads are not theirs: requests may be many
        let requests = LowRuntime::start()?;
        let (limits, metrics, proxies) = (http.limits, http.metrics.clone(), config.server.proxies()?);
        let (validator, handle) = (http.validator.clone(), AppHandle::new(&http));
        // a run that is due at once and names their tools waits in the queue until these are listed
        mcp.start(requests.handle());
        let engine = engine.start().await?;
        let serving = server::serve(listener, http::router(http), limits, proxies, metrics, ending.http.clone());
        let http = requests.handle().spawn(serving);
        let mut app = App {
            address,
            made: GeneratedSecrets { key_file, ..GeneratedSecrets::default() },
            store,
            engine,
            mcp,
            http,
            _requests: requests,
            ending,
            validator,
            handle,
            scratch: None,
        };
        match make_first_token(config, &app.store, address, &mut app.made).await {
            Ok(()) => {
                tracing::info!(
                    version = env!("CARGO_PKG_VERSION"),
                    database = %config.database.shown(&config.server.data_dir),
                    bus = if config.bus.is_embedded() { "embedded".to_owned() } else { config.bus.url.shown() },
                    listen = %address,
                    %instance,
                    "started"
                );
            }
            Err(error) => {
                app.stop().await;
                return Err(error);
            }
        }
        Ok(app)
    }

    /// Where the service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Secrets and files that were made at the first start.
    pub fn generated(&self) -> &GeneratedSecrets {
        &self.made
    }

    /// Stops in order: `/readyz` says so, no new claims, runs get their grace, the rest is handed back, MCP servers and
    /// HTTP end. Runs can be watched and cancelled for as long as any goes on.
    pub async fn stop(self) {
        self.ending.announced.cancel();
        self.engine.stop().await;
        self.mcp.stop().await;
        self.ending.http.cancel();
        if let Err(error) = self.http.await {
            tracing::error!(%error, "the HTTP server ended badly");
        }
        self.store.close().await;
        if let Some(Err(error)) = self.scratch.map(std::fs::remove_dir_all) {
            tracing::warn!(%error, "the folder of the service could not be removed");
        }
    }
}

/// Makes a directory that only we may read; one that is there stays as its owner made it.
fn private_dir(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The failure of a service that does not get its address.
fn cannot_listen(listen: &str, cause: std::io::Error) -> HintedError {
    let message = format!("the service can't listen on {listen}");
    HintedError::new(message, "is another one running there?").caused_by(cause)
}

/// The names that drafts of tasks may use.
fn task_validator(executors: &ExecutorRegistry, channels: &ChannelRegistry, sources: &Arc<Sources>) -> TaskValidator {
    let (executors, sealing, sources) = (executors.clone(), executors.clone(), Arc::clone(sources));
    TaskValidator {
        channels: channels.names().into_iter().map(str::to_owned).collect(),
        check: Arc::new(move |name, action, faults: &mut ValidationErrors| executors.validate(name, action, faults)),
        poll: Arc::new(move |tenant, poll, at, faults: &mut ValidationErrors| sources.check(tenant, poll, at, faults)),
        seal: Arc::new(move |name, tenant, action, before| sealing.seal(name, tenant, action, before)),
    }
}

/// One process alone may make its own key file; several have to share their keys.
pub(crate) fn keys_without_setting<'a>(config: &Config, data_dir: &'a Path) -> WithoutKeys<'a> {
    match config.database.url.expose().starts_with("sqlite:") {
        true => WithoutKeys::KeyFile(data_dir),
        false => WithoutKeys::Refuse,
    }
}

/// Puts the faults of a part below its place in the configuration.
fn faults_below(place: &'static str) -> impl Fn(ValidationErrors) -> ValidationErrors {
    move |mut faults| {
        for fault in &mut faults.0 {
            if !fault.pointer.starts_with(place) {
                fault.pointer.insert_str(0, place);
            }
        }
        faults
    }
}
