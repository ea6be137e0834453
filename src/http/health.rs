//! Probes: whether the process lives, whether it can do its work, and what it has counted.

use std::time::Duration;

use axum::Json;
use axum::extract::State as Held;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::time::timeout;

use crate::http::State;

/// The OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a probe waits for the event bus.
const BUS_PATIENCE: Duration = Duration::from_secs(1);

/// The process answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Health {
    #[schema(example = "ok")]
    pub status: &'static str,
}

/// Whether the work can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    pub ready: bool,
    /// Whether the database answers.
    pub database: bool,
    /// Whether the event bus answers. The service is ready without it: schedules go on, publishing answers 503.
    pub bus: bool,
    /// What is wrong with the way the server behind the event bus is set up.
    pub concerns: Vec<String>,
    /// Services that have not done their work lately.
    pub late: Vec<LateService>,
    /// Set while the service is being stopped.
    pub stopping: bool,
}

/// A service that is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LateService {
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
/// Ready: the database answers, every service has ticked lately, and nobody has asked it to stop.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub async fn get_readiness(Held(state): Held<State>) -> Response {
    let database = state.store.ping().await.is_ok();
    let late = state.metrics.late_services(state.clock.now());
    let late: Vec<_> =
        late.into_iter().map(|late| LateService { service: late.service, last_success: late.last_success }).collect();
    let concerns = timeout(BUS_PATIENCE, state.bus.concerns()).await.ok().and_then(Result::ok);
    let (bus, concerns) = (concerns.is_some(), concerns.unwrap_or_default());
    let stopping = state.stopping.is_cancelled();
    let ready = database && late.is_empty() && !stopping;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, database, bus, concerns, late, stopping })).into_response()
}

/// Metrics, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn get_metrics(Held(state): Held<State>) -> Response {
    // sets the gauges; while the bus is away they stay as they were
    let _ = timeout(BUS_PATIENCE, state.bus.backlog()).await;
    ([(header::CONTENT_TYPE, OPEN_METRICS)], state.metrics.text()).into_response()
}
