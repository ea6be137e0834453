//! Registered tools that a model may call, agents that steps may name, and executors that a task may name.

pub mod pins;
pub mod skills;
pub mod tool_policy;
pub mod trials;

use serde::Serialize;
use serde_json::Value;

use crate::base::invalid::did_you_mean;
use crate::base::token::Permission;
use crate::domain::task::{DEFAULT_EXECUTOR, Task};
use crate::executor::pipeline::ConfiguredAgent;
use crate::http::HttpState;
use crate::http::api::registry::pins::PinView;
use crate::http::api::registry::tool_policy::ToolPolicyView;
use crate::http::error::ApiError;
use crate::http::request::{Call, Id, Items, Json, Query};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::offer::NotOffered;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, ToolRegistry, ToolSource};

/// An executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ExecutorView {
    /// Name of the executor, for tasks.
    #[schema(example = "orchestrator")]
    pub name: &'static str,
    /// Whether a task that names none gets this one.
    pub default: bool,
    /// JSON Schema of `action.config`.
    #[schema(value_type = Object)]
    pub config_schema: Value,
}

/// A tool, and whether a model is offered it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ToolView {
    /// The tool.
    #[serde(flatten)]
    pub definition: Definition,
    /// Where it comes from.
    pub source: ToolSource,
    /// How its calls are treated.
    pub policy: ToolPolicyView,
    /// Whether a model is offered it, and why not.
    #[serde(flatten)]
    pub offer: OfferView,
    /// Of a tool of an MCP server that is read by its name: which definition of it is accepted, and which waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<PinView>,
}

/// Whether a model is offered a tool, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct OfferView {
    /// Whether a model is offered it.
    pub offered: bool,
    /// Why not: `removed`, `not_accepted`, `denied_by_operator`, `denied_for_tenant`, `denied_by_limits`, `deprecated`
    /// or `no_agent`.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The reason in words.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'static str>,
}

/// A configured agent, and what it can do.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct AgentView {
    /// The name by which agents and steps of pipelines call it.
    pub name: String,
    /// Its purpose, for people.
    pub description: String,
    /// Whether other agents may call it as a tool.
    pub exposed: bool,
    /// Whether a person has to agree each time before it works, for another agent or in a step of a pipeline.
    pub approval: bool,
    /// JSON Schema of what it needs to be told.
    #[schema(value_type = Object)]
    pub fields: Value,
    /// One of `[llm.models]`; absent: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether it can be asked.
    pub usable: bool,
    /// Why it can't be asked.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'static str>,
    /// All tools, and for each whether its model is offered it.
    pub tools: Vec<AgentToolView>,
}

/// A tool of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AgentToolView {
    /// Name of the tool.
    pub name: String,
    /// Whether the agent's model is offered it, and why not.
    #[serde(flatten)]
    pub offer: OfferView,
}

impl ToolView {
    /// `limits`: those of an agent or a task; `None`: its executor offers a model no tools.
    fn of(
        state: &HttpState,
        registered: &RegisteredTool,
        tools: &ToolRegistry,
        tenant: Option<&str>,
        limits: Option<&ToolLimits>,
    ) -> ToolView {
        let offer = |limits| OfferView::of(tools.offer(tenant, limits, registered.definition()));
        ToolView {
            definition: registered.definition().clone(),
            source: registered.tool.source(),
            policy: ToolPolicyView::of(state, registered),
            offer: limits.map_or_else(OfferView::without_agent, offer),
            pin: None,
        }
    }
}

impl OfferView {
    fn of(offer: Result<(), NotOffered>) -> OfferView {
        let why = offer.err();
        OfferView { offered: why.is_none(), reason: why.map(NotOffered::as_str), message: why.map(NotOffered::message) }
    }

    /// The executor asks no model.
    fn without_agent() -> OfferView {
        let message = "the task's executor offers no model any tools; agents in its steps have their own";
        OfferView { offered: false, reason: Some("no_agent"), message: Some(message) }
    }
}

impl AgentView {
    fn of(agent: &ConfiguredAgent<'_>, tools: &ToolRegistry, tenant: Option<&str>) -> AgentView {
        let offer = |tool: &Definition| AgentToolView {
            name: tool.name.clone(),
            offer: OfferView::of(tools.offer(tenant, &agent.limits, tool)),
        };
        AgentView {
            name: agent.name.to_owned(),
            description: agent.description.to_owned(),
            exposed: agent.is_exposed,
            approval: agent.needs_approval,
            fields: agent.fields.clone(),
            model: agent.model.map(str::to_owned),
            usable: agent.has_model,
            message: (!agent.has_model).then_some("no model is configured; set [llm.models.main]"),
            tools: tools.definitions().chain(tools.waiting().map(RegisteredTool::definition)).map(offer).collect(),
        }
    }
}

/// List tools
///
/// Each with whether a model is offered it, by the layers that `[tool_access]`, agents and tasks put before one
/// another, and why not. Tools of MCP servers whose definitions the operator has yet to accept stand at the end. A
/// token of a tenant sees what holds for it; an admin token that names none what holds for every tenant.
#[utoipa::path(get, path = "/v1/tools", tag = "operations", security(("bearer" = ["tasks:read"])),
    params(("agent" = Option<String>, Query, description = "What this configured agent is offered"),
        ("task_id" = Option<uuid::Uuid>, Query, description = "What the model of this task is offered"),
        ("tenant_id" = Option<String>, Query, description = "What holds for this tenant")),
    responses((status = 200, body = Items<ToolView>)))]
pub async fn list_tools(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<ToolView>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let (agent, task, tenant) = (query.text("agent"), query.id("task_id"), query.text("tenant_id"));
    if agent.is_some() && task.is_some() {
        query.fault("task_id", "a task and a configured agent can't both be asked for");
    }
    let of_agent = agent.and_then(|name| limits_of_agent(&state, &name, &mut query));
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let task = match task {
        Some(id) => Some(state.store.get_task(&scope, id).await.map_err(|error| ApiError::of_store(error, "task"))?),
        None => None,
    };
    let limits = match &task {
        Some(task) => limits_of_task(&state, task),
        None => Some(of_agent.unwrap_or_default()),
    };
    let tenant = task.as_ref().map_or(scope.tenant(), |task| Some(task.tenant_id.as_str()));
    let tools = state.tools.current();
    let view = |registered: &RegisteredTool| ToolView::of(&state, registered, &tools, tenant, limits.as_ref());
    Ok(Json(Items::whole(tools.iter().chain(tools.waiting()).map(view).collect())))
}

/// Read a tool
///
/// As `GET /v1/tools` lists it: by its name, that of an MCP server's tool `server.tool`. Such a tool has a `pin`, with
/// the lines in which a definition that waits differs from the accepted one.
#[utoipa::path(get, path = "/v1/tools/{name}", tag = "operations", security(("bearer" = ["tasks:read"])),
    params(("name" = String, Path, description = "Name of the tool"),
        ("tenant_id" = Option<String>, Query, description = "What holds for this tenant")),
    responses((status = 200, body = ToolView)))]
pub async fn get_tool(Call(state, caller): Call, name: Id, mut query: Query) -> Result<Json<ToolView>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let tenant = query.text("tenant_id");
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let tools = state.tools.current();
    let registered = tools.find(&name.0).or_else(|| tools.find_waiting(&name.0)).ok_or(ApiError::NotFound("tool"))?;
    let view = ToolView::of(&state, registered, &tools, scope.tenant(), Some(&ToolLimits::default()));
    let pin = match tools.is_of_server(&name.0) {
        true => pins::pin_of(&state, &caller, &name.0).await?,
        false => None,
    };
    Ok(Json(ToolView { pin, ..view }))
}

fn limits_of_agent(state: &HttpState, name: &str, query: &mut Query) -> Option<ToolLimits> {
    let found = state.pipeline.configured_agents().find(|agent| agent.name == name);
    if found.is_none() {
        let near = did_you_mean(name, state.pipeline.agents());
        query.fault("agent", format!("there is no agent `{name}` in [[agents]]{near}"));
    }
    found.map(|agent| agent.limits)
}

/// `None`: its executor offers a model no tools.
fn limits_of_task(state: &HttpState, task: &Task) -> Option<ToolLimits> {
    state.executors.find(&task.spec.executor)?.tool_limits(&task.spec.action)
}

/// List configured agents
///
/// Those of `[[agents]]`, which other agents call as tools, and steps of pipelines name. Each with whether it can be
/// asked, and which tools its model is offered.
#[utoipa::path(get, path = "/v1/agents", tag = "operations", security(("bearer" = ["tasks:read"])),
    params(("tenant_id" = Option<String>, Query, description = "What holds for this tenant")),
    responses((status = 200, body = Items<AgentView>)))]
pub async fn list_agents(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<AgentView>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let tenant = query.text("tenant_id");
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let tools = state.tools.current();
    let view = |agent: ConfiguredAgent<'_>| AgentView::of(&agent, &tools, scope.tenant());
    Ok(Json(Items::whole(state.pipeline.configured_agents().map(view).collect())))
}

/// List executors
///
/// Each with the JSON Schema of its settings, `action.config` of a task.
#[utoipa::path(get, path = "/v1/executors", tag = "operations", security(("bearer" = ["tasks:read"])),
    responses((status = 200, body = Items<ExecutorView>)))]
pub async fn list_executors(Call(state, caller): Call, query: Query) -> Result<Json<Items<ExecutorView>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    let view = |(name, config_schema)| ExecutorView { name, default: name == DEFAULT_EXECUTOR, config_schema };
    Ok(Json(Items::whole(state.executors.config_schemas().into_iter().map(view).collect())))
}
