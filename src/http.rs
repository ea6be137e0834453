//! The HTTP face: routes, who may take them, and what they answer.
//!
//! Handlers read, ask the store, and tell; they decide nothing that the CLI or a tool would have to decide again. What
//! a handler has answered is stored; what it has not may be, and an `Idempotency-Key` makes asking again safe.
//!
//! Reading order: [`server`] accepts connections, [`request::guard`] wraps each request, [`request::auth`] says who
//! calls, [`request::body`], [`request::query`] and [`request::page`] read what is asked, [`error`] says what is wrong;
//! then a file per resource, [`mcp`] for MCP clients, and `ui` for people who look.

mod address;
pub mod api;
pub mod error;
pub mod hooks;
pub mod in_process;
pub mod mcp;
pub mod openapi;
mod operations;
pub mod pages;
mod reference;
pub mod request;
pub mod schema;
pub mod server;
pub mod streaming;
mod ui;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::base::invalid::ValidationErrors;
use crate::base::metrics::Metrics;
use crate::base::secret::Secret;
use crate::base::token::TokenHash;
use crate::domain::task::TaskValidator;
use crate::executor::ExecutorRegistry;
use crate::executor::hub::Hub;
use crate::executor::pipeline::Pipeline;
use crate::executor::tool_trial::ToolTrials;
use crate::http::api::events::log_ends::LogEnds;
use crate::http::error::ApiError;
use crate::http::request::WrongTokens;
use crate::http::request::token_checks::TokenChecks;
use crate::http::server::ServerLimits;
use crate::http::server::proxies::{ForwardedHeader, TrustedProxies};
use crate::http::streaming::limiter::StreamLimiter;
use crate::http::streaming::run::record_watch::RecordWatch;
use crate::ports::bus::Bus;
use crate::ports::channel::ChannelRegistry;
use crate::ports::poll::Poller;
use crate::ports::skill::SkillLibrary;
use crate::ports::tool::ToolCatalog;
use crate::ports::tool::mcp::McpServers;
use crate::ports::vault::Vault;
use crate::ports::vault::oauth::OAuthConnector;
use crate::store::{self, Store};

/// The least that an admin token of the operator's own making must have, in characters.
const ADMIN_TOKEN_LENGTH: usize = 20;
/// Where MCP clients call.
pub(in crate::http) const MCP_PATH: &str = "/mcp";

/// `[server]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Address and port; port 0 takes a free one.
    pub listen: String,
    /// Where people reach the service, for links in messages; absent: the address it listens on.
    pub public_url: Option<String>,
    /// Addresses and networks of proxies that say for whom they ask.
    pub trusted_proxies: Vec<String>,
    /// Where they say it.
    pub forwarded_header: ForwardedHeader,
    /// Where files are kept that no database holds.
    pub data_dir: String,
    /// A token that may do everything; absent: one is made at the first start, and shown once.
    pub admin_token: Option<Secret>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: "127.0.0.1:7700".into(),
            public_url: None,
            trusted_proxies: Vec::new(),
            forwarded_header: ForwardedHeader::default(),
            data_dir: "./data".into(),
            admin_token: None,
        }
    }
}

impl Settings {
    /// Where others reach the service, for links in what is sent to them.
    pub fn public_url(&self) -> String {
        self.public_url.clone().unwrap_or_else(|| format!("http://{}", self.listen))
    }

    /// The proxies that are believed.
    pub fn proxies(&self) -> Result<TrustedProxies, ValidationErrors> {
        TrustedProxies::read(&self.trusted_proxies, self.forwarded_header)
    }

    /// Adds what is wrong; pointers begin with `/server`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if self.listen.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            faults.add("/server/listen", "must be an address and a port, such as `127.0.0.1:7700` or `[::]:7700`");
        }
        let is_web = |url: &url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if self.public_url.as_deref().is_some_and(|url| url::Url::parse(url).ok().filter(is_web).is_none()) {
            faults.add("/server/public_url", "must be an address such as `https://reveille.example.org`");
        }
        if let Err(more) = self.proxies() {
            faults.0.extend(more.0);
        }
        if let Some(why) = self.admin_token_fault() {
            faults.add("/server/admin_token", why);
        }
    }

    /// The fault of the admin token, if there is one: a blank or short token would let anybody in.
    fn admin_token_fault(&self) -> Option<String> {
        let length = self.admin_token.as_ref()?.expose().trim().chars().count();
        (length < ADMIN_TOKEN_LENGTH)
            .then(|| format!("must have at least {ADMIN_TOKEN_LENGTH} characters, has {length}"))
    }
}

/// The parts from which the HTTP service is built.
pub struct HttpParts {
    /// The store of everything.
    pub store: Store,
    /// Time of the service.
    pub clock: Clock,
    /// Computes what tenants write.
    pub compute: Compute,
    /// Executors by name.
    pub executors: ExecutorRegistry,
    /// For dry runs.
    pub pipeline: Pipeline,
    /// The tools, and who may use them.
    pub tools: ToolCatalog,
    /// The MCP servers of this instance.
    pub mcp: McpServers,
    /// Tries tools.
    pub trials: ToolTrials,
    /// Skills that agents may use.
    pub skills: SkillLibrary,
    /// Checks drafts of tasks: the names that they may use, and their actions.
    pub validator: TaskValidator,
    /// The event bus.
    pub bus: Arc<dyn Bus>,
    /// Tries conditions.
    pub poller: Poller,
    /// Seals what is secret in recipients.
    pub vault: Vault,
    /// Connects accounts of people.
    pub connector: OAuthConnector,
    /// The public key of VAPID; `None` where there is no Web Push.
    pub push_key: Option<String>,
    /// Read the reports of their providers.
    pub channels: ChannelRegistry,
    /// Watchers of runs.
    pub hub: Hub,
    /// The registry of metrics.
    pub metrics: Metrics,
    /// Settings of `[server]`.
    pub settings: Settings,
    /// Senders of webhooks, by hook.
    pub hooks: hooks::Settings,
    /// Limits on requests and connections.
    pub limits: ServerLimits,
    /// How many runs may be under way at once.
    pub runs_at_once: store::RunLimits,
    /// How long runs are kept after their ends.
    pub runs_kept: chrono::TimeDelta,
    /// Cancelled when the service is asked to stop: `/readyz` says so, all else goes on while runs are finished.
    pub stopping: CancellationToken,
    /// Cancelled when runs are done: streams end.
    pub stop: CancellationToken,
}

/// State that handlers share. Cheap to clone.
#[derive(Clone)]
pub struct HttpState(Arc<HttpShared>);

/// The parts, and what is derived from them once.
pub struct HttpShared {
    parts: HttpParts,
    /// The hash of the configured admin token.
    pub admin_token: Option<TokenHash>,
    /// The limit on wrong tokens per address.
    pub wrong_tokens: WrongTokens,
    /// The configured webhooks, their keys made ready.
    pub hooks: hooks::Hooks,
    /// Counts open streams.
    pub streams: StreamLimiter,
    /// How far the runs have come that streams follow.
    records: RecordWatch,
    /// How far the bus has come that streams follow.
    log_ends: LogEnds,
    /// Tokens of streams that were looked up a moment ago.
    token_checks: TokenChecks,
    /// Gauges that are looked up when metrics are read.
    pub gauges: server::gauges::Gauges,
    /// Figures that were counted a moment ago.
    pub stats: server::stats::StatsCache,
    /// Messages of MCP clients, counted and limited.
    pub served: mcp::served::McpServed,
}

impl HttpState {
    /// State of the HTTP service. An unusable admin token is left out.
    pub fn new(parts: HttpParts) -> HttpState {
        // a blank token must never let anybody in, whatever the caller has checked
        let usable = parts.settings.admin_token_fault().is_none();
        let admin_token = parts.settings.admin_token.as_ref().filter(|_| usable);
        let admin_token = admin_token.map(|token| TokenHash::of(token.expose().trim()));
        let wrong_tokens = WrongTokens::new(parts.limits.wrong_tokens);
        let hooks = hooks::Hooks::new(&parts.hooks);
        let streams = StreamLimiter::new(parts.limits);
        let gauges = server::gauges::Gauges::new(&parts.metrics);
        let stats = server::stats::StatsCache::new();
        let served = mcp::served::McpServed::new(&parts.metrics);
        HttpState(Arc::new(HttpShared {
            parts,
            admin_token,
            wrong_tokens,
            hooks,
            streams,
            records: RecordWatch::default(),
            log_ends: LogEnds::new(),
            token_checks: TokenChecks::default(),
            gauges,
            stats,
            served,
        }))
    }
}

impl HttpState {
    /// Computes work of a request, when it is the turn of `name` (see
    /// [`request::auth::AuthenticatedCaller::computes_for`]), away from the threads that serve others.
    async fn compute_for<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let computed = self.compute.run(name, work).await;
        computed.map_err(|panicked| ApiError::Internal { log: panicked.to_string() })
    }
}

impl Deref for HttpState {
    type Target = HttpShared;

    fn deref(&self) -> &HttpShared {
        &self.0
    }
}

impl Deref for HttpShared {
    type Target = HttpParts;

    fn deref(&self) -> &HttpParts {
        &self.parts
    }
}

/// Every route under the guard.
pub fn router(state: HttpState) -> Router {
    let api = in_process::InProcessApi::new(&state);
    assembled(state, mcp::routes(api.clone()).merge(ui::routes(api)))
}

/// The routes of the API and the pages, without those that call the API themselves.
pub(in crate::http) fn api_router(state: HttpState) -> Router {
    assembled(state, Router::new())
}

fn assembled(state: HttpState, more: Router<HttpState>) -> Router {
    let (routes, document) = operations::all().split_for_parts();
    let (pages, _) = pages().split_for_parts();
    routes
        .merge(pages)
        .merge(reference::routes(&openapi::complete(document)))
        .merge(more)
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(from_fn_with_state(state.clone(), request::guard::watch))
        .layer(from_fn(error::for_vendors))
        .with_state(state)
}

/// The OpenAPI document that `/openapi.json` answers.
pub fn document() -> Value {
    openapi::complete(operations::all().split_for_parts().1)
}

/// The operations that answer pages for people. They are no part of the API, and [`document`] does not have them.
pub fn document_of_pages() -> utoipa::openapi::OpenApi {
    pages().split_for_parts().1
}

/// Every page for people.
fn pages() -> OpenApiRouter<HttpState> {
    OpenApiRouter::new()
        .routes(routes!(pages::approve::show_approvals, pages::approve::answer_approvals))
        .routes(routes!(pages::approve::show_outcome))
        .routes(routes!(pages::oauth::show_connection, pages::oauth::make_connection))
        .routes(routes!(pages::messages::show_message))
}
