//! Probes: whether the process lives, whether it can do its work, and what it has counted.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::time::timeout;

use crate::http::HttpState;
use crate::http::request::Json;
use crate::ports::tool::mcp::McpHealth;

/// The OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a probe waits for the event bus, and for the database.
const BUS_PATIENCE: Duration = Duration::from_secs(1);
const DATABASE_PATIENCE: Duration = Duration::from_secs(2);
/// When to ask again a service that is not ready, in seconds.
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("5");

/// The process answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Health {
    /// `ok`, as long as the process answers.
    #[schema(example = "ok")]
    pub status: &'static str,
}

/// Whether the work can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// The service can take requests.
    pub ready: bool,
    /// Whether the database answers.
    pub database: bool,
    /// Whether the event bus answers. Without it schedules go on, and what comes in by events waits.
    pub bus: bool,
    /// Whether the database's clock is known well enough: measured lately, and without a long wait for the answer.
    /// Without it nothing is claimed or fired.
    pub clock: bool,
    /// Faults in the setup of the server behind the event bus.
    pub warnings: Vec<String>,
    /// Services that have not done their work lately.
    pub late_services: Vec<LateService>,
    /// Set while the service is being stopped.
    pub stopping: bool,
    /// Set while the operator has stopped the work of all tenants: requests are answered, and nothing begins.
    pub work_stopped: bool,
    /// MCP servers of this instance; one that is away makes it no less ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpHealth>,
}

/// A service that is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LateService {
    /// Name of the service.
    #[schema(example = "scheduler")]
    pub service: &'static str,
    /// `null`: not since the start.
    #[schema(required)]
    pub last_success: Option<DateTime<Utc>>,
}

/// Whether the process lives
#[utoipa::path(get, path = "/healthz", tag = "operations", responses((status = 200, body = Health)))]
pub async fn get_health() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Whether the service can do its work
///
/// Ready: the database and the event bus answer, the database's clock is known, every service has ticked lately, and
/// nobody has asked it to stop. The answer names each exception; `/healthz` goes on answering, because a restart would
/// mend none of it. `Retry-After` says when to ask again.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses((status = 200, body = Readiness),
        (status = 503, body = Readiness, description = "Not ready; see Retry-After")))]
pub async fn get_readiness(State(state): State<HttpState>) -> Response {
    let (pinged, warnings) =
        tokio::join!(timeout(DATABASE_PATIENCE, state.store.ping()), timeout(BUS_PATIENCE, state.bus.concerns()));
    let database = matches!(pinged, Ok(Ok(())));
    let late_services = state.metrics.late_services(state.clock.now());
    let late_services: Vec<_> = late_services
        .into_iter()
        .map(|late| LateService { service: late.service, last_success: late.last_success })
        .collect();
    let warnings = warnings.ok().and_then(Result::ok);
    let (bus, warnings) = (warnings.is_some(), warnings.unwrap_or_default());
    let stopping = state.stopping.is_cancelled();
    let clock = state.clock.is_trusted();
    let ready = database && bus && clock && late_services.is_empty() && !stopping;
    let halts = timeout(DATABASE_PATIENCE, state.store.halts()).await;
    let work_stopped = matches!(halts, Ok(Ok(halts)) if halts.all());
    let mcp_servers = state.mcp.health();
    let readiness =
        Readiness { ready, database, bus, clock, warnings, late_services, stopping, work_stopped, mcp_servers };
    match ready {
        true => Json(readiness).into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, ASK_AGAIN)], Json(readiness)).into_response(),
    }
}

/// Metrics, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn get_metrics(State(state): State<HttpState>) -> Response {
    // sets the gauges; while the bus is away they stay as they were
    let _ = tokio::join!(timeout(BUS_PATIENCE, state.bus.backlog()), state.gauges.refresh(&state.store));
    ([(header::CONTENT_TYPE, OPEN_METRICS)], state.metrics.text()).into_response()
}
