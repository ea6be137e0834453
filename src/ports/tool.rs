//! Tools: functions that a model may call, and the host through which they touch the tenant's own things.
//!
//! Owns the port and the list of tools. Decides nothing about consent or repetition (that is the agent's), keeps
//! nothing: what a call did is in the transcript and, where it matters, behind its idempotency key.

pub mod absence;
pub mod access;
pub mod builtin;
mod call_error;
pub mod catalog;
mod definition;
mod exchange;
mod failure;
mod host;
pub mod http;
pub mod mcp;
pub mod offer;
pub mod output;
pub mod pins;
pub mod policy;
pub mod progress;
mod redaction;
pub mod registry;

use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::clock::Clock;
use crate::base::compute::{Compute, ComputePanic};
use crate::base::id::Tenant;
use crate::domain::approval::{CallContinuation, Category, Consequence, FieldFault, InputForm};
use crate::domain::credential::Reference;
use crate::domain::memory::PersonWords;
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::output::DefaultLevel;

pub use crate::ports::tool::absence::{ToolAbsence, tool_changed};
pub use crate::ports::tool::call_error::{NeededInput, ToolError};
pub use crate::ports::tool::catalog::ToolCatalog;
pub use crate::ports::tool::definition::ToolSource;
pub use crate::ports::tool::failure::ToolFailure;
pub use crate::ports::tool::host::{FactQuery, HostError, MissedByStep, TaskQuery, ToolHost, ToolNotice};
pub use crate::ports::tool::output::ToolOutput;
pub use crate::ports::tool::progress::{ProgressNote, ToolProgress};
pub use crate::ports::tool::registry::ToolRegistry;
pub use crate::ports::vault::credentials::{TenantCredentials, UsedSecrets};

/// Where a tool is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// It is offered to models.
    #[default]
    Active,
    /// Works where it is called by name, with a warning; is offered to models only where a task names it.
    Deprecated,
    /// Is offered to no model, and refused when called by name.
    Removed,
}

/// The definition of a tool, known before it is called.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Tool)]
pub struct Definition {
    /// Name for models and rules.
    pub name: String,
    /// Its effect and when to use it, for the model.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// Kind of effect on the world.
    pub category: Category,
    /// Weight of a mistake.
    pub consequence: Consequence,
    /// It always needs a person's consent.
    pub requires_confirmation: bool,
    /// Time limit of one call; `None`: the loop's.
    #[serde(skip)]
    pub timeout: Option<Duration>,
    /// Version of the definition.
    pub version: String,
    /// Whether it is offered to models.
    pub status: ToolStatus,
    /// Whether a call may be repeated with the same idempotency key, and has its effect once.
    pub idempotent: bool,
    /// Sentence about a call for the person who decides; `{name}` stands for the argument of that name. `None`: the
    /// name of the tool and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// For how long a call is held before it runs and may still be stopped, in seconds from 1 to a day: after it was
    /// approved, or where nobody has to agree, after the model asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo_seconds: Option<u64>,
    /// The level at which the model is shown results of a call that names none; `None`: they are shown whole, and a
    /// call can't name one. For tools that only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_level: Option<DefaultLevel>,
    /// Of a declared tool: its request as it is configured, the credential's name included. Part of the definition, so
    /// that what was agreed to is no other request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
}

/// Longest value of an argument in a summary, in characters; the question itself shows all.
const SUMMARY_VALUE: usize = 80;

impl Definition {
    /// Whether a call leaves nothing behind, so that it may be forgotten with the process that made it.
    pub fn only_reads(&self) -> bool {
        let no_effect = matches!(self.category, Category::Read | Category::Analysis);
        no_effect && self.idempotent && !self.requires_confirmation && self.undo_seconds.is_none()
    }

    /// The effect of a call with these arguments, in one line.
    pub fn summary_of(&self, arguments: &Value) -> String {
        let nothing = serde_json::Map::new();
        let arguments = arguments.as_object().unwrap_or(&nothing);
        if let Some(template) = &self.summary {
            return arguments
                .iter()
                .fold(template.clone(), |text, (name, value)| text.replace(&format!("{{{name}}}"), &short(value)));
        }
        let named: Vec<String> = arguments.iter().map(|(name, value)| format!("{name} = {}", short(value))).collect();
        if named.is_empty() { self.name.clone() } else { format!("{}: {}", self.name, named.join(", ")) }
    }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.replace(['\n', '\r'], " "),
        other => other.to_string(),
    };
    match text.char_indices().nth(SUMMARY_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The context of a call, besides its arguments. Comes from the engine, never from the model.
#[derive(Clone)]
pub struct ToolContext {
    /// The tenant that owns the run.
    pub tenant: Tenant,
    /// The run that makes the call.
    pub run_id: Uuid,
    /// The task whose run or poll it is, if there is one.
    pub task_id: Option<Uuid>,
    /// The caller of the tool.
    pub called_by: ToolCaller,
    /// The model's turn within the run.
    pub turn: i64,
    /// The model's id of the call.
    pub call_id: String,
    /// Hex SHA-256 of run, turn and call: the same when the call is repeated, never another call's.
    pub idempotency_key: String,
    /// The agents through which the call came, outermost first.
    pub delegation_chain: Vec<String>,
    /// The words of a person that the caller has read: a fact that it notes is the person's word, or not.
    pub words: PersonWords,
    /// The tools of the caller: a task that it makes has no more.
    pub limits: Arc<ToolLimits>,
    /// The recipient's time zone.
    pub timezone: Tz,
    /// How long this call may take.
    pub time_limit: Duration,
    /// The host of tools.
    pub host: Arc<dyn ToolHost>,
    /// Time of the engine.
    pub clock: Clock,
    /// Threads for what takes long: a call must not compute for longer than a millisecond where it is called.
    pub compute: Compute,
    /// The tenant's credentials. Their values are taken out of the result of the call.
    pub credentials: TenantCredentials,
    /// The secrets that the run has used so far.
    pub used_secrets: UsedSecrets,
    /// The answer of a person with which the call goes on; `None`: it begins.
    pub continuation: Option<Arc<CallContinuation>>,
    /// Where the call tells how far it is.
    pub progress: ToolProgress,
}

/// The caller of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCaller {
    /// A model.
    Model,
    /// A step of a pipeline.
    Step,
    /// A condition, or somebody who tries one out.
    Poll,
    /// Somebody who tries the tool itself out.
    Trial,
}

/// One tool. The context says how long a call may take; it is dropped when it takes longer.
pub trait Tool: Send + Sync {
    /// The definition of the tool.
    fn definition(&self) -> &Definition;

    /// Where the tool comes from; a tool of an embedder leaves this as it is.
    fn source(&self) -> ToolSource {
        ToolSource::Added
    }

    /// Executes a call whose arguments have passed the schema.
    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;

    /// Refuses faults of arguments that have passed the schema: asked before a person is.
    fn check(&self, _arguments: &Value) -> Result<(), ToolError> {
        Ok(())
    }

    /// Whether arguments are held against the schema before [`Tool::check`]; one that is asked for what is missing does
    /// that itself.
    fn checks_schema(&self) -> bool {
        true
    }

    /// Whether a call may need something that only a person can supply.
    fn may_need_input(&self) -> bool {
        false
    }

    /// The steps that [`Tool::input`] takes at most.
    fn input_steps(&self, _arguments: &Value) -> u64 {
        0
    }

    /// Input that a person has to supply before a call with these arguments; `None`: nothing. The call is made with the
    /// arguments that the answer gives.
    fn input(&self, _arguments: &Value) -> Option<InputForm> {
        None
    }

    /// The invalid fields among those that a person has supplied, each with what is wrong beyond the schema of its
    /// form.
    fn invalid_input(&self, _arguments: &Value) -> Vec<FieldFault> {
        Vec::new()
    }

    /// The credential that a call with these arguments would use because whoever wrote them chose it. A person is asked
    /// about it, unless the task names it. `None`: none, or the operator has chosen it.
    fn credential_chosen(&self, _arguments: &Value) -> Option<Reference> {
        None
    }

    /// The state of the credential that a call with these arguments would use: a text that is another one when the
    /// credential is, empty where it would use none. `None`: it can't be used, or nobody knows now. A result that was
    /// kept is given again only while this is the same.
    fn credential_state<'a>(
        &'a self,
        _context: &'a ToolContext,
        _arguments: &'a Value,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(Some(String::new())))
    }

    /// The request that a call with these arguments sends, for the person who tries the tool: without values of headers
    /// and without the credential's secret. `None`: the arguments say all.
    fn shown_request<'a>(&'a self, _context: &'a ToolContext, _arguments: &'a Value) -> BoxFuture<'a, Option<Value>> {
        Box::pin(std::future::ready(None))
    }

    /// Whether results are parts of a data file, and so are never put into one.
    fn reads_data_files(&self) -> bool {
        false
    }

    /// Looks at what a call would meet, changing nothing: asked when a person is, and once more before an approved call
    /// runs; a difference is shown to the person instead. `None`: the tool has no such look.
    fn precheck<'a>(
        &'a self,
        _context: &'a ToolContext,
        _arguments: &'a Value,
    ) -> Option<BoxFuture<'a, Result<Value, ToolError>>> {
        None
    }
}

impl ToolContext {
    /// The credentials of a tenant, for a call of the tool of this name by a run and of a task, where there are such.
    pub fn credentials_of(
        host: &Arc<dyn ToolHost>,
        tenant: &Tenant,
        ids: (Option<Uuid>, Option<Uuid>),
        tool: &str,
        used_secrets: &UsedSecrets,
    ) -> TenantCredentials {
        TenantCredentials::new(host.credentials(), tenant.clone(), ids, format!("tool:{tool}"), used_secrets.clone())
    }

    /// The answer of this call as a value, as [`ToolOutput::into_value`] has it, and how many characters all of it has
    /// as text. A long one is read on a computing thread.
    pub async fn value_of(&self, output: ToolOutput) -> Result<(Value, usize), ComputePanic> {
        let (tenant, steps) = (self.tenant.as_str(), output.steps());
        let read = move || {
            let length = output.whole().chars().count();
            (output.into_value(), length)
        };
        self.compute.run_if_costly(tenant, steps, read).await
    }

    /// The idempotency key of a call, which a repetition carries too: `docs/keys.md`, "Effects".
    pub fn key_of(run_id: Uuid, turn: i64, call_id: &str) -> String {
        let identity = format!("{run_id}|{turn}|{call_id}");
        hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, identity.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_call_is_its_own() {
        let run = Uuid::from_u128(7);
        let key = ToolContext::key_of(run, 1, "call_1");
        assert_eq!(key.len(), 64);
        assert_eq!(key, ToolContext::key_of(run, 1, "call_1"));
        let others = [(Uuid::from_u128(8), 1, "call_1"), (run, 2, "call_1"), (run, 1, "call_2")];
        assert!(others.iter().all(|(run, turn, call)| ToolContext::key_of(*run, *turn, call) != key));
    }
}
