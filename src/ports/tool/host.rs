//! The host of tools: the effects that they have inside the service, for the tenant of the call alone.

use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use crate::base::expr::MissingField;
use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::domain::data_file::{DataFilePart, NewDataFile};
use crate::domain::event::Event;
use crate::domain::memory::{Fact, NewFact};
use crate::domain::notification::SubjectRef;
use crate::domain::task::Urgency;
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{ToolError, ToolFailure};
use crate::ports::vault::credentials::Credentials;

/// Which tasks `list_tasks` is to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// A word of `TaskStatus`.
    pub status: Option<String>,
    /// Part of the name.
    pub q: Option<String>,
    /// Most tasks.
    pub limit: u32,
}

/// A message to the tenant's own recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolNotice {
    /// The run that sends it.
    pub run_id: Uuid,
    /// `None`: the recipient's own order.
    pub channel: Option<String>,
    /// `None`: as urgent as messages are.
    pub urgency: Option<Urgency>,
    /// Subject of the message.
    pub subject: String,
    /// Text of the message.
    pub text: String,
    /// The subject beside its run, where the host is to know it as data.
    pub subject_ref: Option<SubjectRef>,
    /// `call:<run>:<turn>:<call>`; a second notice with the same key is the first.
    pub dedupe_key: String,
}

/// Which facts `recall` is to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactQuery {
    /// Words of the facts.
    pub text: String,
    /// Only of this collection and those below it.
    pub collection: Option<String>,
    /// Most facts.
    pub limit: usize,
}

/// Why the host did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Not there, or another tenant's.
    #[error("not found")]
    NotFound,
    /// The draft has faults.
    #[error("{0}")]
    Invalid(ValidationErrors),
    /// It can't be done as things stand; the sentence says why.
    #[error("{0}")]
    Conflict(String),
    /// The store or the bus is away; later may do.
    #[error("the store is unavailable")]
    Unavailable,
}

/// Effects of tools inside Reveille. The tenant comes from the context of the call, never from the model.
pub trait ToolHost: Send + Sync {
    /// The way to credentials; `None`: there are none here.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Creates a task from the JSON form of the API; the same key answers the same task. Answers the task.
    fn create_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        draft: Value,
        idempotency_key: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Answers `{"items": [...]}`, newest first.
    fn list_tasks<'a>(&'a self, tenant: &'a Tenant, filter: TaskQuery) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Pauses a task; one that is paused already stays so. Answers the task.
    fn pause_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Resumes a task that an agent has paused; one that is active stays so. Answers the task.
    fn resume_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Changes a task: `name`, `instruction`, `trigger`, `max_runs`, `output`, each if it is given. Where another name
    /// or instruction is given, its agent keeps no tool that `limits` do not allow. Answers the task.
    fn update_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        changes: Value,
        limits: &'a ToolLimits,
    ) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Runs a task now; the same key answers the same run. Answers `{"run_id": id, "task_id": id}`.
    fn run_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        input: Option<Value>,
        idempotency_key: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Deletes a task. Answers `{"deleted": id}`.
    fn delete_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Puts a message into the outbox. Answers `{"delivery_id": id}`.
    fn notify<'a>(&'a self, tenant: &'a Tenant, notice: ToolNotice) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Publishes an event of the tenant's own; one of another tenant is refused. Answers `{"event_id": id}`. The same
    /// event again does nothing.
    fn publish_event<'a>(&'a self, tenant: &'a Tenant, event: Event) -> BoxFuture<'a, Result<Value, HostError>>;

    /// All that pipelines of a task have stored, by name.
    fn task_state<'a>(&'a self, tenant: &'a Tenant, task_id: Uuid) -> BoxFuture<'a, Result<Value, HostError>>;

    /// Stores a value under a name, or removes it where there is none.
    fn put_task_state<'a>(
        &'a self,
        tenant: &'a Tenant,
        task_id: Uuid,
        name: &'a str,
        value: Option<Value>,
    ) -> BoxFuture<'a, Result<(), HostError>>;

    /// Keeps a data file, in place of an earlier one of the same call; answers the id by which it is read.
    fn keep_data_file<'a>(&'a self, tenant: &'a Tenant, file: NewDataFile) -> BoxFuture<'a, Result<Uuid, HostError>>;

    /// Reads a part of a data file, and notes its use. Answers `{"file", "bytes", "media_type", …}` with the part.
    /// [`HostError::NotFound`]: it is not kept any more, or never was.
    fn read_data_file<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        part: DataFilePart,
    ) -> BoxFuture<'a, Result<Value, HostError>>;

    /// The facts that a run with this message is told, within so many characters; notes that it was. Without a message
    /// they are those of the profile alone.
    fn facts_for<'a>(
        &'a self,
        tenant: &'a Tenant,
        message: &'a str,
        chars: usize,
    ) -> BoxFuture<'a, Result<Vec<Fact>, HostError>>;

    /// Notes a fact, in the place of the one that `replaces` names by its id or its words. Answers
    /// `{"fact", "noted_as", "similar": [...]}`.
    fn note_fact<'a>(
        &'a self,
        tenant: &'a Tenant,
        fact: NewFact,
        replaces: Option<String>,
    ) -> BoxFuture<'a, Result<Value, HostError>>;

    /// The facts that fit, the best first.
    fn search_facts<'a>(&'a self, tenant: &'a Tenant, query: FactQuery) -> BoxFuture<'a, Result<Vec<Fact>, HostError>>;

    /// One fact.
    fn find_fact<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Fact, HostError>>;

    /// Deletes a fact with all that it has said, as this run asks. Answers `{"deleted": id}`.
    fn delete_fact<'a>(&'a self, tenant: &'a Tenant, id: Uuid, run_id: Uuid)
    -> BoxFuture<'a, Result<Value, HostError>>;

    /// Tells the owner of a task of a field that one of its steps misses; once for each version of the steps.
    fn tell_missing<'a>(&'a self, tenant: &'a Tenant, missed: MissedByStep) -> BoxFuture<'a, Result<(), HostError>>;
}

/// A field that a step of a pipeline looked for and that is not there.
#[derive(Debug, Clone, PartialEq)]
pub struct MissedByStep {
    /// The task of the pipeline.
    pub task_id: Uuid,
    /// The digest of all steps of the pipeline.
    pub steps: String,
    /// The step's name.
    pub step: String,
    /// The field that was looked for in vain.
    pub field: MissingField,
}

impl From<HostError> for ToolError {
    fn from(error: HostError) -> ToolError {
        let message = error.to_string();
        match error {
            HostError::NotFound => ToolError::for_model(ToolFailure::NotFound, "not_found", message),
            HostError::Invalid(_) => ToolError::for_model(ToolFailure::ValidationError, "invalid", message),
            HostError::Conflict(_) => ToolError::for_model(ToolFailure::ExecutionError, "conflict", message),
            HostError::Unavailable => ToolError::for_model(ToolFailure::ResourceError, "store_unavailable", message),
        }
    }
}
