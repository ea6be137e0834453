//! The settings of a pipeline as they are published: in the reference, at `/v1/executors`, and in `docs/pipelines.md`.
//!
//! Nothing is read into these: `PipelineSpec` reads value by value, with every fault at its place. It takes the fields
//! that stand here, and no others.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::approval::settings::Override;
use crate::domain::budget::TaskBudget;
use crate::domain::task::Urgency;

/// `action.config` of a pipeline: steps in order, and what the run answers.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "steps": [
        {"name": "large", "filter": "event.data.total > 100"},
        {"name": "customer", "http": {"url": "https://shop.example.org/customers/{{ event.data.customer }}"}},
        {"name": "told", "notify": {"message": "{{ steps.customer.body.name }} has ordered for {{ event.data.total }}."}}
    ],
    "output": "told {{ steps.customer.body.name }}"
}))]
pub struct PipelineConfig {
    /// The steps, in the order in which they are executed.
    #[schema(min_items = 1, max_items = 50)]
    pub steps: Vec<PipelineStep>,
    /// A template of any form: what the run answers. Absent: the value of the last step.
    #[schema(required = false)]
    pub output: Value,
    /// By tool: the task's own say in what people are asked about, for `agent` steps and the agents that these call.
    pub approvals: Option<BTreeMap<String, Override>>,
    /// The task's own budget, below that of the operator.
    pub budget: Option<TaskBudget>,
}

/// A step: its name, exactly one kind, and what holds for all kinds.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PipelineStep {
    /// By which later steps name its value, as `steps.NAME`. Letters, digits and `_`; not twice in a pipeline.
    #[schema(min_length = 1, max_length = 64, example = "customer")]
    pub name: String,
    /// How long one execution may take. Absent: `30`; of `llm` it is 300, and of `agent` what its `[[agents]]` entry
    /// says, or `[react]`.
    #[schema(minimum = 1, maximum = 3600)]
    pub timeout_seconds: Option<u64>,
    /// How often a failure that time may heal is tried again within the run. Absent: `0`.
    pub retry: Option<StepRetries>,
    /// The effect of a failure on the run: `fail` ends it, or tries it again where time may heal it; with `continue` it
    /// goes on, and the value is `{"error": {"code", "message"}}`; `stop` ends it as succeeded, and nobody is told.
    /// Absent: `fail`.
    pub on_error: Option<OnError>,
    /// Sends an HTTP request.
    pub http: Option<HttpStep>,
    /// Calls a tool without a model.
    pub tool: Option<ToolStep>,
    /// Ends the run, quietly, unless this CEL expression is true. What is missing makes it false.
    #[schema(example = "event.data.total > 100")]
    pub filter: Option<String>,
    /// Gives the value of this CEL expression.
    #[schema(example = "event.data.items.map(i, i.price)")]
    pub map: Option<String>,
    /// Publishes an event.
    pub publish: Option<PublishStep>,
    /// Sends a message to the tenant.
    pub notify: Option<NotifyStep>,
    /// Keeps a value for later runs of the task.
    pub store: Option<StoreStep>,
    /// Lets an agent work on an instruction.
    pub agent: Option<AgentStep>,
    /// Asks a model one question.
    pub llm: Option<LlmStep>,
    /// Executes a step for each item of a list.
    pub for_each: Option<ForEachStep>,
}

/// The effect of a step's failure on the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It fails, or is tried again where time may heal it.
    Fail,
    /// It goes on; the step's value is `{"error": {"code", "message"}}`.
    Continue,
    /// It ends here, succeeded, and nobody is told.
    Stop,
}

/// So many repetitions, 0 to 10, or with the first wait.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum StepRetries {
    /// The number of repetitions, with a first wait of one second.
    Count(u64),
    /// The number of repetitions and the first wait.
    Paced(PacedRetries),
}

/// Repetitions, and how long is waited before the first; doubled each time up to a minute, with full jitter.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PacedRetries {
    /// The number of repetitions. Absent: `0`.
    #[schema(minimum = 0, maximum = 10)]
    pub count: Option<u64>,
    /// The first wait, in seconds. Absent: `1`.
    #[schema(minimum = 0, maximum = 60)]
    pub backoff_seconds: Option<u64>,
}

/// Sends one request to an address outside. The value is `{"status", "headers", "body"}`, the body as JSON where it is
/// JSON.
///
/// Each request carries an `Idempotency-Key`. POST and PATCH are repeated only where nothing was sent, or where the
/// other side says that it did nothing.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "method": "POST", "url": "https://shop.example.org/orders/{{ event.data.id }}/note", "credential": "shop",
    "body": {"text": "seen by {{ task.name }}"}
}))]
pub struct HttpStep {
    /// The method of the request. Absent: `GET`.
    pub method: Option<StepMethod>,
    /// A template; what it inserts is encoded, and can't choose the host.
    pub url: String,
    /// Templates by name, 30 at most; none that holds a secret, and none that is ours.
    pub headers: Option<BTreeMap<String, String>>,
    /// Templates by name.
    pub query: Option<BTreeMap<String, String>>,
    /// A template of any form: a text is sent as it is, all else as JSON. Not with GET and HEAD.
    #[schema(required = false)]
    pub body: Value,
    /// A credential of the tenant's that it is sent with: `service`, or `service/account`.
    #[schema(example = "shop")]
    pub credential: Option<String>,
    /// Answers from 400 on that are no failure.
    #[schema(example = json!([404]))]
    pub accept_status: Option<Vec<u16>>,
}

/// The method of a request.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum StepMethod {
    /// Only reads, and follows redirects.
    Get,
    /// As `GET`, without a body in the answer.
    Head,
    /// Repeated only where it had no effect.
    Post,
    /// Repeated where its outcome is unknown.
    Put,
    /// Repeated only where it had no effect.
    Patch,
    /// Repeated where its outcome is unknown.
    Delete,
    /// Only reads, and follows redirects.
    Options,
}

/// Calls a tool. The value is what it answers, as JSON where it is JSON. A tool that needs a person's approval is
/// refused: this step asks nobody. An `agent` step does.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "current_time", "args": {"timezone": "{{ event.data.timezone }}"}}))]
pub struct ToolStep {
    /// As `/v1/tools` lists it.
    pub name: String,
    /// Its arguments, templates in any place.
    pub args: Option<Map<String, Value>>,
}

/// Publishes an event of the tenant's. The value is its `id`, `source` and `type`. An event that came through 16
/// pipelines makes none.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"type": "order.large", "subject": "{{ event.data.id }}", "data": "{{ event.data }}"}))]
pub struct PublishStep {
    /// The event's type: a template.
    pub r#type: String,
    /// The event's source: a template. Absent: `reveille/pipeline`.
    pub source: Option<String>,
    /// The event's subject: a template. Absent: none.
    pub subject: Option<String>,
    /// The event's data: a template of any form. Absent: none.
    #[schema(required = false)]
    pub data: Value,
}

/// Tells the tenant something. Where it is the last step, the end of the run is not told as well.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"message": "A large order: {{ event.data.total }}", "urgency": "high"}))]
pub struct NotifyStep {
    /// The text of the message: a template.
    pub message: String,
    /// The subject: a template. Absent: the first 80 characters of the first line of the message.
    pub subject: Option<String>,
    /// The channel that it goes by. Absent: the recipient's own order.
    #[schema(example = "email")]
    pub channel: Option<String>,
    /// Against the recipient's quiet hours and budget. Absent: `normal`.
    pub urgency: Option<Urgency>,
}

/// Keeps a value for later runs of the task, which find it as `state.NAME`: exactly one of `value`, `expression` and
/// `"delete": true`. At most 64 KiB.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "last_order", "value": "{{ event.data.id }}"}))]
pub struct StoreStep {
    /// The name that it is kept under: letters, digits and `_`.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// A template of any form; `null` is a value.
    #[schema(required = false)]
    pub value: Value,
    /// A CEL expression.
    pub expression: Option<String>,
    /// Forgets what is kept.
    pub delete: Option<bool>,
}

/// Lets an agent work on an instruction. The value is its answer. Where it has to ask people, the run waits for them
/// and goes on at this step, with its whole time limit and its retries anew; the run's `timeout_seconds` counts all of
/// it but the waiting. The agent is told of a call that a person refuses, and answers: a `filter` behind it decides
/// whether the steps after it are executed. A question that nobody answers in time ends the run as `expired`, whatever
/// `on_error` says.
///
/// An agent of `[[agents]]` works as if another agent called it: where its entry has `approval = true`, or a rule for
/// its name says so, a person has to agree first, and fields that are missing or invalid when the step runs are asked
/// for. Where the person refuses, the step fails.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"instruction": "Find out why {{ event.data.service }} is down.", "tools": ["http_request"]}))]
pub struct AgentStep {
    /// A template. What it inserts is labelled as data, in which a model follows no instructions; values of `task` and
    /// `run` are not.
    pub instruction: String,
    /// One of `[[agents]]`: what is not said here, it says.
    pub name: Option<String>,
    /// The fields of the `[[agents]]` entry by their names, templates in any place. Its required fields have to be
    /// among them; others have their defaults. The agent reads them behind the instruction.
    pub args: Option<Map<String, Value>>,
    /// The agent's persona. Absent: that of its `[[agents]]` entry, else the operator's.
    pub system_prompt: Option<String>,
    /// One of `[llm.models]`. Absent: the default.
    pub model: Option<String>,
    /// Turns at most. Absent: what its `[[agents]]` entry says, else `[react]`. Where they are used up, the run has
    /// `max_turns` as its `finish`.
    #[schema(minimum = 1, maximum = 100)]
    pub max_turns: Option<u32>,
    /// The tools that it may call. Absent: all that it is offered.
    pub tools: Option<Vec<String>>,
    /// Tools that it may not call, beside those that its `[[agents]]` entry denies.
    pub deny_tools: Option<Vec<String>>,
    /// The tenant's credentials that it may use.
    pub credentials: Option<Vec<String>>,
}

/// Asks a model one question, without tools. The value is its answer. There is one such step in a pipeline at most.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"prompt": "Summarize in one sentence: {{ event.data.text }}", "max_tokens": 200}))]
pub struct LlmStep {
    /// A template. What it inserts is labelled as data, in which a model follows no instructions; values of `task` and
    /// `run` are not.
    pub prompt: String,
    /// A template, as `prompt`.
    pub system: Option<String>,
    /// One of `[llm.models]`. Absent: the default.
    pub model: Option<String>,
    /// The longest answer, in tokens. Absent: what the model's entry in `[llm.models]` says.
    #[schema(minimum = 1, maximum = 100_000)]
    pub max_tokens: Option<u32>,
}

/// Executes a step for each item of a list of at most 1,000. The value is the list of their values. In it `item` and
/// `index` are known.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "items": "event.data.rooms", "do": {"http": {"url": "https://house.example.org/rooms/{{ item }}"}}, "concurrency": 4
}))]
pub struct ForEachStep {
    /// A CEL expression that gives a list.
    pub items: String,
    /// The work for each item.
    pub r#do: ItemStep,
    /// Items at once. Absent: `1`.
    #[schema(minimum = 1, maximum = 10)]
    pub concurrency: Option<u64>,
}

/// The work for each item: exactly one kind, and the fields that all kinds have.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemStep {
    /// As in a step.
    #[schema(minimum = 1, maximum = 3600)]
    pub timeout_seconds: Option<u64>,
    /// As in a step.
    pub retry: Option<StepRetries>,
    /// As in a step, without `stop`.
    pub on_error: Option<ItemFailure>,
    /// Sends an HTTP request.
    pub http: Option<HttpStep>,
    /// Calls a tool without a model.
    pub tool: Option<ToolStep>,
    /// As in a step.
    pub map: Option<String>,
    /// Publishes an event.
    pub publish: Option<PublishStep>,
    /// Sends a message to the tenant.
    pub notify: Option<NotifyStep>,
}

/// The effect of an item's failure.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemFailure {
    /// The step fails.
    Fail,
    /// The others go on; the item's value is `{"error": {"code", "message"}}`.
    Continue,
}
