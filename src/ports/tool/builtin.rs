//! The tools that are always there.

pub mod ask_user;
mod http;
mod http_request;
mod http_send;
pub mod memory;
mod notify;
mod publish_event;
pub mod read_data_file;
pub mod skills;
pub mod tasks;
pub mod time;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput, ToolSource};
use crate::ports::vault::credentials::Credentials;

/// Those that are of use in a run alone: they ask its recipient, tell of it, or are kept with it.
pub const OF_A_RUN: [&str; 7] = [
    ask_user::ASK_USER,
    notify::SEND_NOTIFICATION,
    memory::REMEMBER,
    memory::FORGET,
    skills::USE_SKILL,
    skills::LEAVE_SKILL,
    skills::READ_SKILL_FILE,
];

/// All of them.
pub fn all(credentials: &Credentials) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(time::current_time()),
        Arc::new(http_request::tool(credentials.clone())),
        Arc::new(http_send::tool(credentials.clone())),
        Arc::new(ask_user::ask_user()),
        Arc::new(notify::send_notification()),
        Arc::new(publish_event::publish_event()),
        Arc::new(read_data_file::read_data_file()),
        Arc::new(memory::remember()),
        Arc::new(memory::recall()),
        Arc::new(memory::forget()),
        Arc::new(tasks::create_task()),
        Arc::new(tasks::list_tasks()),
        Arc::new(tasks::update_task()),
        Arc::new(tasks::run_task()),
        Arc::new(tasks::pause_task()),
        Arc::new(tasks::resume_task()),
        Arc::new(tasks::delete_task()),
    ]
}

/// A tool that is a function over its arguments.
struct BuiltinTool<A> {
    definition: Definition,
    act: for<'a> fn(&'a ToolContext, A) -> BoxFuture<'a, Result<Value, ToolError>>,
}

impl<A: DeserializeOwned + 'static> Tool for BuiltinTool<A> {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn source(&self) -> ToolSource {
        ToolSource::Builtin
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        let act = read(arguments).map(|arguments| (self.act)(context, arguments));
        Box::pin(async move { Ok(ToolOutput::json(act?.await?)) })
    }
}

/// Arguments that have passed the schema, as the tool's own type.
fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments).map_err(|error| ToolError::arguments(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::skill::SkillLibrary;

    #[test]
    fn tools_of_a_run_are_all_built_in() {
        let credentials = Credentials::none(Egress::new(&Settings::default()).unwrap());
        let tools = all(&credentials).into_iter().chain(skills::all(&SkillLibrary::empty()));
        let names: Vec<String> = tools.map(|tool| tool.definition().name.clone()).collect();
        for name in OF_A_RUN {
            assert!(names.iter().any(|there| there == name), "{name}");
        }
    }
}
