//! The composition root: a configuration becomes everything built once, started together, and stopped in order.
//!
//! Nothing else builds a store, a model or a channel. Embedders start here, with executors and tools of their own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::channel::Channels;
use crate::clock::Clock;
use crate::config::Config;
use crate::egress::Egress;
use crate::engine::{self, Engine};
use crate::executor::host::StoreHost;
use crate::executor::hub::Hub;
use crate::executor::orchestrator::Orchestrator;
use crate::executor::{Executor, Registry};
use crate::http::server::Limits;
use crate::http::{self, server};
use crate::id::new_id;
use crate::invalid::Faults;
use crate::llm::Models;
use crate::metrics::Metrics;
use crate::store::{Store, StoredToken};
use crate::task::Known;
use crate::token::{Permission, TokenKind, TokenText};
use crate::tool::{self, Tool};
use crate::vault::{Vault, WithoutKeys};

/// What an embedder adds to what is built in.
#[derive(Default)]
pub struct Extras {
    pub executors: Vec<Arc<dyn Executor>>,
    pub tools: Vec<Arc<dyn Tool>>,
}

/// What was made at the first start, to be said once.
#[derive(Debug, Default)]
pub struct Made {
    /// An admin token; it is stored as its hash only.
    pub admin_token: Option<TokenText>,
    /// A key file for the vault; whoever has it and the database can read what is sealed.
    pub key_file: Option<PathBuf>,
}

/// Everything built, nothing running: `start` runs it, tests tick it by hand.
pub struct Built {
    pub store: Store,
    pub engine: Engine,
    pub http: http::State,
    pub made: Made,
}

/// A running service.
pub struct App {
    address: SocketAddr,
    made: Made,
    store: Store,
    engine: engine::Running,
    http: JoinHandle<()>,
    stop: CancellationToken,
}

/// Builds a service from its configuration. `waiting` is told each time a database that is down is looked at again.
///
/// # Errors
/// What is wrong with the configuration, the data directory or the database, with a hint where there is one.
pub async fn build(
    config: &Config,
    clock: Clock,
    extras: Extras,
    stop: CancellationToken,
    waiting: impl Fn(&str),
) -> anyhow::Result<Built> {
    let data_dir = Path::new(&config.server.data_dir);
    std::fs::create_dir_all(data_dir)
        .with_context(|| format!("the data directory {} can't be made", data_dir.display()))?;
    let (vault, key_file) = Vault::open(&config.vault, keys_without_setting(config, data_dir))?;
    let metrics = Metrics::new();
    let egress = Egress::new(&config.egress).map_err(under("/egress"))?;
    let channels = Channels::new(&config.channels, &egress, &vault).map_err(under("/channels"))?;
    let models = Models::build(&config.llm, config.react.retry(), &clock)?;
    let mut tools = tool::builtin::all(&egress);
    tools.extend(extras.tools);
    let tools = Arc::new(tool::Registry::new(tools).map_err(anyhow::Error::msg)?);
    let agent = Agent { models, tools: Arc::clone(&tools), settings: config.react.clone() };
    let mut executors: Vec<Arc<dyn Executor>> = vec![Arc::new(Orchestrator::new(agent))];
    executors.extend(extras.executors);
    let executors = Registry::new(executors);
    let store = Store::open(&config.database, data_dir, clock.clone(), waiting).await?;
    let known = known(&executors, &channels);
    let hub = Hub::new();
    let engine = Engine::new(engine::Parts {
        store: store.clone(),
        executors: executors.clone(),
        channels: channels.clone(),
        host: Arc::new(StoreHost::new(store.clone(), known.clone())),
        hub: hub.clone(),
        metrics: metrics.clone(),
        settings: config.engine.clone(),
    });
    let admin_token = first_admin_token(config, &store).await?;
    let http = http::State::new(http::Parts {
        store: store.clone(),
        vault,
        clock,
        executors,
        tools: tools.definitions().cloned().collect(),
        known,
        hub,
        metrics,
        settings: config.server.clone(),
        limits: Limits::default(),
        stop,
    });
    Ok(Built { store, engine, http, made: Made { admin_token, key_file } })
}

impl App {
    /// Builds a service and starts it; once it has returned, the service answers at [`App::address`].
    ///
    /// # Errors
    /// As [`build`]; or the address to listen on can't be had.
    pub async fn start(config: &Config, extras: Extras, waiting: impl Fn(&str)) -> anyhow::Result<App> {
        let stop = CancellationToken::new();
        let Built { store, engine, http, made } = build(config, Clock::system(), extras, stop.clone(), waiting).await?;
        let listen = &config.server.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("the service can't listen on {listen}\nhint: is another one running there?"))?;
        let address = listener.local_addr()?;
        let (limits, metrics) = (http.limits, http.metrics.clone());
        let http = tokio::spawn(server::serve(listener, http::router(http), limits, metrics, stop.clone()));
        let engine = engine.start().await?;
        Ok(App { address, made, store, engine, http, stop })
    }

    /// Where the service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was made at the first start.
    pub fn made(&self) -> &Made {
        &self.made
    }

    /// Stops in order: no new requests, no new claims, runs get their grace, the rest is handed back, all is flushed.
    pub async fn stop(self) {
        self.stop.cancel();
        self.engine.stop().await;
        if let Err(error) = self.http.await {
            tracing::error!(%error, "the HTTP server ended badly");
        }
        self.store.close().await;
    }
}

/// What drafts of tasks may name.
fn known(executors: &Registry, channels: &Channels) -> Known {
    let executors = executors.clone();
    Known {
        channels: channels.names().into_iter().map(str::to_owned).collect(),
        check: Arc::new(move |name, action, faults: &mut Faults| executors.validate(name, action, faults)),
    }
}

/// One process alone may make its own key file; several have to share their keys.
fn keys_without_setting<'a>(config: &Config, data_dir: &'a Path) -> WithoutKeys<'a> {
    match config.database.url.expose().starts_with("sqlite:") {
        true => WithoutKeys::KeyFile(data_dir),
        false => WithoutKeys::Refuse,
    }
}

/// Makes an admin token where there is no other way in.
async fn first_admin_token(config: &Config, store: &Store) -> anyhow::Result<Option<TokenText>> {
    if config.server.admin_token.is_some() || store.has_admin_token().await? {
        return Ok(None);
    }
    let text = TokenText::new(TokenKind::Admin);
    let now = store.clock().now();
    let token = StoredToken {
        id: new_id(now),
        tenant_id: None,
        name: "first admin token".into(),
        hash: text.hash().as_bytes().to_vec(),
        scopes: vec![Permission::All.as_str().into()],
        created_at: now,
        expires_at: None,
        revoked_at: None,
    };
    store.create_token(&token, None).await?;
    Ok(Some(text))
}

/// Puts the faults of a part below its place in the configuration.
fn under(place: &'static str) -> impl Fn(Faults) -> Faults {
    move |mut faults| {
        for fault in &mut faults.0 {
            if !fault.pointer.starts_with(place) {
                fault.pointer.insert_str(0, place);
            }
        }
        faults
    }
}
