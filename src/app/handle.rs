//! The service as the program that embeds it calls it: every operation of the API, in this process, and events as they
//! come.
//!
//! A call goes the same way as a request, so it is checked, bounded and recorded in the same way; it needs no token and
//! no socket.

use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::app::subscription::EventSubscription;
use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::http::HttpState;
use crate::http::in_process::{CallError, InProcessApi};
use crate::ports::bus::BusError;

/// Calls of a running service. Cheap to clone; once the service has stopped, calls fail.
#[derive(Clone)]
pub struct AppHandle {
    state: HttpState,
    api: InProcessApi,
    scope: Scope,
}

impl AppHandle {
    /// Calls of a service with this state, for all tenants.
    pub(super) fn new(state: &HttpState) -> AppHandle {
        AppHandle { state: state.clone(), api: InProcessApi::new(state), scope: Scope::Every }
    }

    /// Calls for one tenant alone: what others have is not found.
    ///
    /// # Errors
    /// It is no name of a tenant.
    pub fn of_tenant(&self, tenant: &str) -> Result<AppHandle, ValidationErrors> {
        let tenant = Tenant::new(tenant).map_err(|why| ValidationErrors::one("/tenant_id", why))?;
        Ok(AppHandle { scope: Scope::Only(tenant), ..self.clone() })
    }

    /// Any operation of the API, by its method and its path with query, such as `/v1/runs?state=failed`. Answers its
    /// body; `null` where it has none, and a text where it is no JSON. For streams there is [`AppHandle::subscribe`].
    ///
    /// # Errors
    /// The problem with which the API answers.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, CallError> {
        self.api.call(&self.scope, (method, path), body, None).await
    }

    /// As [`AppHandle::call`], once: a repetition with the same key, after a crash as well, changes nothing and has the
    /// same answer.
    ///
    /// # Errors
    /// As [`AppHandle::call`].
    pub async fn call_once(
        &self,
        key: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, CallError> {
        self.api.call(&self.scope, (method, path), body, Some(key)).await
    }

    /// Creates a task from the JSON form of the API. Answers the task.
    ///
    /// # Errors
    /// As [`AppHandle::call`]; the problem names each fault with its place.
    pub async fn create_task(&self, task: Value) -> Result<Value, CallError> {
        self.call(Method::POST, "/v1/tasks", Some(task)).await
    }

    /// Runs a task now. Answers the run, which is queued.
    ///
    /// # Errors
    /// As [`AppHandle::call`].
    pub async fn run_task(&self, id: Uuid, input: Option<Value>) -> Result<Value, CallError> {
        let body = input.map(|input| json!({ "input": input }));
        self.call(Method::POST, &format!("/v1/tasks/{id}/run"), body).await
    }

    /// A message of a person of the tenant to the agent, in a conversation or in a new one. Answers what `POST
    /// /v1/chat` does: the answer, or after 25 seconds the run that goes on.
    ///
    /// # Errors
    /// As [`AppHandle::call`].
    pub async fn say(&self, tenant: &str, conversation: Option<Uuid>, message: &str) -> Result<Value, CallError> {
        let mut body = json!({ "tenant_id": tenant, "message": message });
        if let Some(conversation) = conversation {
            body["conversation_id"] = json!(conversation);
        }
        self.call(Method::POST, "/v1/chat", Some(body)).await
    }

    /// Publishes an event, or several, in any form that `POST /v1/events` takes. Answers their ids; they are durable
    /// then.
    ///
    /// # Errors
    /// As [`AppHandle::call`].
    pub async fn publish(&self, events: Value) -> Result<Vec<String>, CallError> {
        let answer = self.call(Method::POST, "/v1/events", Some(events)).await?;
        let ids = answer["ids"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(ids.map(str::to_owned).collect())
    }

    /// Follows the bus: events of this type that come from now on. A pattern is a type, or the beginning of one with
    /// `*` behind it. Events that nobody subscribes to are lost to nobody else: tasks fire as they do without it.
    ///
    /// # Errors
    /// The bus is away, or it is no such pattern.
    pub async fn subscribe(&self, pattern: &str) -> Result<EventSubscription, BusError> {
        EventSubscription::begin(&self.state, self.scope.clone(), pattern).await
    }
}
