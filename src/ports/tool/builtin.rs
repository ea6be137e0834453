//! The tools that are always there.

mod http;
mod http_request;
mod http_send;
mod notify;
mod publish_event;
mod tasks;
mod time;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::domain::approval::{Category, Consequence};
use crate::ports::tool::{Definition, Tool, ToolError};
use crate::ports::vault::credentials::Credentials;

/// All of them.
pub fn all(credentials: &Credentials) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(time::CurrentTime::new()),
        Arc::new(http_request::tool(credentials.clone())),
        Arc::new(http_send::tool(credentials.clone())),
        Arc::new(notify::SendNotification::new()),
        Arc::new(publish_event::PublishEvent::new()),
        Arc::new(tasks::CreateTask::new()),
        Arc::new(tasks::ListTasks::new()),
        Arc::new(tasks::PauseTask::new()),
        Arc::new(tasks::DeleteTask::new()),
    ]
}

/// The definition of a built-in tool: active, of this release, and safe to repeat (it reads, or the host knows the
/// idempotency key, or doing it twice is doing it once).
fn definition(
    name: &str,
    description: &str,
    parameters: Value,
    category: Category,
    consequence: Consequence,
) -> Definition {
    Definition::new(name, description, parameters, category, consequence)
}

/// Arguments that have passed the schema, as the tool's own type.
fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments).map_err(|error| ToolError::arguments(error.to_string()))
}
