//! The reference: an OpenAPI document that is made from the handlers, so that it can't say what they don't do.
//!
//! What every operation under `/v1` shares is added here, once: the bearer token, and the problems that any of them
//! may answer. What generators of clients need is done to the whole document at its end.

mod absent;
mod answers;
mod plain;
pub mod streams;
mod unions;

use serde_json::Value;

use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use crate::executor::pipeline::schema::PipelineConfig;
use crate::executor::schema::{OrchestratorConfig, WebhookConfig};
use crate::http::error::{PROBLEM_JSON, ProblemDetails};
use crate::ports::bus::LogOrder;
use crate::store::{UsageGroup, UsageOrder};

/// Where the document has its schemas.
const SCHEMAS: &str = "#/components/schemas/";

/// The name of the security scheme.
pub const BEARER: &str = "bearer";

/// The header of requests that take effect once. Their bodies are read, also where nothing is to be said in them.
const ONCE: &str = "Idempotency-Key";

/// Problems that any operation behind a token may answer, and how they are described.
const COMMON: [(&str, &str); 5] = [
    ("400", "The request, its query or its body can't be read"),
    ("401", "A valid token is needed"),
    ("403", "The token does not permit this"),
    ("429", "Too many requests; see Retry-After"),
    ("503", "Not now; see Retry-After"),
];

/// The document without its paths.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Reveille",
        description = "Wakes AI agents: tasks fire on time and once, runs are durable, and a person hears what came of \
                       them.\n\nErrors are RFC 9457 problems. Lists are newest first and paged by an opaque cursor. \
                       Times are RFC 3339 in UTC. A POST with an `Idempotency-Key` takes effect once in 24 hours. In a body, \
                       `null` in a field that may be left out is as good as leaving it out, where the field says nothing else.",
        license(name = "Apache-2.0 OR MIT")
    ),
    tags(
        (name = "tasks", description = "Stored intents: when, what, and whom to tell"),
        (name = "conversations", description = "Messages of people to the agent, and its answers"),
        (name = "memory", description = "Facts that agents know of tenants"),
        (name = "runs", description = "The outcome of each fire"),
        (name = "approvals", description = "Calls that people are asked about before they are made, and standing grants"),
        (name = "events", description = "Facts on the bus, and those that could not be handled"),
        (name = "credentials", description = "Secrets of tenants, where they may go, and who used them"),
        (name = "notifications", description = "Where tenants are reached, and what was sent"),
        (name = "operations", description = "Tokens, figures, probes, registered executors and tools"),
    ),
    components(schemas(
        LogOrder, ProblemDetails, OrchestratorConfig, PipelineConfig, UsageGroup, UsageOrder, WebhookConfig
    ))
)]
pub struct ApiDocument;

/// The document as it is published: adds what all operations share, and makes the whole plain to read.
pub fn complete(mut document: utoipa::openapi::OpenApi) -> Value {
    let components = document.components.get_or_insert_with(Components::new);
    let scheme = SecurityScheme::Http(Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("rv_…").build());
    components.security_schemes.insert(BEARER.into(), scheme.into());
    for (path, item) in &mut document.paths.paths {
        let reads = item.get.iter_mut().map(|operation| (true, operation));
        let others = [&mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for (is_read, operation) in reads.chain(others.into_iter().flatten().map(|operation| (false, operation))) {
            if path.starts_with("/v1/") {
                share(path, operation);
            }
            answers::describe(operation, is_read);
        }
    }
    absent::allow_null(&mut document);
    // a document that is made of texts, numbers and lists can always be written
    let mut document = serde_json::to_value(&document).unwrap_or_default();
    plain::make(&mut document);
    document
}

fn share(path: &str, operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    for (status, description) in COMMON {
        responses.entry(status.into()).or_insert_with(|| problem(description));
    }
    let parameters: Vec<&Parameter> = operation
        .parameters
        .iter()
        .flatten()
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        })
        .collect();
    let has = |name: &str| parameters.iter().any(|parameter| parameter.name == name);
    if path.contains('{') || has("tenant_id") {
        responses.entry("404".into()).or_insert_with(|| problem("There is none, or not for this token"));
    }
    if operation.request_body.is_some() || has(ONCE) {
        responses.entry("408".into()).or_insert_with(|| problem("The body came too slowly"));
        responses.entry("413".into()).or_insert_with(|| problem("The body is larger than 1 MiB"));
        responses.entry("415".into()).or_insert_with(|| problem("The body is not JSON"));
        responses.entry("422".into()).or_insert_with(|| problem("The body is not valid; each fault has its place"));
    }
    if has(ONCE) {
        let reused = "The body is not valid, or the Idempotency-Key was used for another request";
        responses.insert("422".into(), problem(reused));
    } else if parameters.iter().any(|parameter| parameter.parameter_in == ParameterIn::Query) {
        responses.entry("422".into()).or_insert_with(|| problem("A parameter of the query is empty"));
    }
}

fn problem(description: &str) -> RefOr<Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build().into()
}
