//! The store, as tools see it: the tenant's own things through `ToolHost`.

mod task_orders;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::domain::event::Event;
use crate::domain::notification::new_delivery::channels as order_of;
use crate::domain::notification::{MessageKind, NewDelivery, Recipient, SubjectRef, notices};
use crate::domain::task::change::TaskChange;
use crate::domain::task::{DEFAULT_EXECUTOR, Draft, Output, Route, Spec, Task, TaskStatus, TaskValidator, Urgency};
use crate::ports::bus::{Bus, BusError};
use crate::ports::tool::{self, HostError, MissedByStep, ToolHost, ToolNotice};
use crate::store::{Idempotency, Store, StoreError, StoredAnswer, TaskFilter, with_timeout};

/// The reason in the record of a task that a tool has paused.
const REASON_PAUSED: &str = "paused_by_agent";

/// The host of tools, backed by the store.
pub struct StoreHost {
    store: Store,
    known: TaskValidator,
    bus: Arc<dyn Bus>,
}

impl StoreHost {
    /// A host over this store; drafts are checked against `known`.
    pub fn new(store: Store, known: TaskValidator, bus: Arc<dyn Bus>) -> StoreHost {
        StoreHost { store, known, bus }
    }

    async fn create(&self, tenant: &Tenant, draft: Value, key: &str) -> Result<Value, HostError> {
        let now = self.store.clock().now();
        let draft_digest = digest(&SHA256, draft.to_string().as_bytes());
        let (known, of) = (self.known.clone(), tenant.clone());
        let read = move || {
            let draft = Draft::parse(Ok(of), &draft, &known, now)?;
            is_from_agent(&draft.spec)?;
            Task::new(new_id(now), draft, now).map_err(|fault| ValidationErrors(vec![fault]))
        };
        let read = self.store.compute(tenant.as_str(), read).await.map_err(host_error)?;
        let (task, next) = read.map_err(HostError::Invalid)?;
        let once = Idempotency {
            tenant: tenant.as_str().to_owned(),
            key: format!("tool:{key}"),
            digest: draft_digest.as_ref().to_vec(),
            status: 201,
            body: brief(&task),
        };
        match with_timeout(self.store.create_task(&task, next.map(|n| n.nominal), Some(&once)))
            .await
            .map_err(host_error)?
        {
            StoredAnswer::Done(()) => Ok(once.body),
            StoredAnswer::Replayed { body, .. } => Ok(body),
            StoredAnswer::Mismatch => Err(HostError::Conflict("this call has created another task already".into())),
        }
    }

    async fn list(&self, tenant: &Tenant, filter: tool::TaskQuery) -> Result<Value, HostError> {
        let status = match &filter.status {
            None => None,
            Some(word) => Some(TaskStatus::parse(word).ok_or_else(|| {
                HostError::Invalid(ValidationErrors::one("/status", "must be active, paused, disabled or completed"))
            })?),
        };
        let filter = TaskFilter { status, q: filter.q, limit: filter.limit.into(), ..TaskFilter::default() };
        let tasks =
            with_timeout(self.store.tasks_page(&Scope::Only(tenant.clone()), &filter)).await.map_err(host_error)?;
        Ok(json!({ "items": tasks.rows.iter().map(brief).collect::<Vec<_>>() }))
    }

    async fn pause(&self, tenant: &Tenant, id: Uuid) -> Result<Value, HostError> {
        let task = self.own_task(tenant, id).await?;
        // the reason of who paused it first stays, and with it who may resume it
        if task.status == TaskStatus::Paused {
            return Ok(brief(&task));
        }
        let change = TaskChange::Pause { reason: Some(REASON_PAUSED.into()) };
        let task = with_timeout(self.store.change_task(&Scope::Only(tenant.clone()), id, &change))
            .await
            .map_err(host_error)?;
        Ok(brief(&task))
    }

    async fn delete(&self, tenant: &Tenant, id: Uuid) -> Result<Value, HostError> {
        with_timeout(self.store.delete_task(&Scope::Only(tenant.clone()), id)).await.map_err(host_error)?;
        Ok(json!({ "deleted": id }))
    }

    async fn post(&self, tenant: &Tenant, notice: ToolNotice) -> Result<Value, HostError> {
        let scope = Scope::Only(tenant.clone());
        let recipient = with_timeout(self.store.find_recipient(&scope, tenant.as_str()))
            .await
            .map_err(host_error)?
            .map(|stored| stored.recipient);
        let output = notice.channel.map_or_else(Output::default, |name| Output::channels(vec![name]));
        let mut order = order_of(&output, recipient.as_ref());
        if output.route == Route::RecipientOrder {
            // the recipient may have addresses of channels that are not configured here
            order.retain(|name| self.known.channels.contains(name));
        }
        let Some(new) = NewDelivery::new(tenant.as_str(), &order, MessageKind::Message, notice.dedupe_key.clone())
        else {
            return Err(HostError::Conflict("nobody can be told: the tenant has no recipient with an address".into()));
        };
        if let Some(unknown) = order.iter().find(|name| !self.known.channels.contains(name)) {
            let known = self.known.channels.join(", ");
            return Err(HostError::Conflict(format!("there is no channel `{unknown}` here; there are: {known}")));
        }
        let delivery = NewDelivery {
            run_id: Some(notice.run_id),
            subject_ref: notice.subject_ref,
            subject: Some(notice.subject),
            text: Some(notice.text),
            ..new.with_urgency(notice.urgency)
        };
        with_timeout(self.store.post_delivery(&delivery)).await.map_err(host_error)?;
        let stored = with_timeout(self.store.find_delivery(&scope, tenant.as_str(), &notice.dedupe_key))
            .await
            .map_err(host_error)?;
        Ok(json!({ "delivery_id": stored.id }))
    }

    async fn notify_owner_once(&self, tenant: &Tenant, missed: MissedByStep) -> Result<(), HostError> {
        let MissedByStep { task_id, steps, step, field } = missed;
        if with_timeout(self.store.is_missing_reported(task_id, &steps)).await.map_err(host_error)? {
            return Ok(());
        }
        let scope = Scope::Only(tenant.clone());
        let Some(task) = with_timeout(self.store.find_task(&scope, task_id)).await.map_err(host_error)? else {
            return Ok(());
        };
        let recipient = with_timeout(self.store.find_recipient(&scope, tenant.as_str()))
            .await
            .map_err(host_error)?
            .map(|stored| stored.recipient);
        let about = SubjectRef::missing_field(task_id, &steps);
        let language = Recipient::language_of(recipient.as_ref());
        let words = notices::missing_field_of_step(language, &task.name, &step, &field);
        let Some(notice) = NewDelivery::notice(&task, recipient.as_ref(), about, words) else { return Ok(()) };
        if with_timeout(self.store.report_missing(task_id, &steps, &notice)).await.map_err(host_error)? {
            tracing::info!(%task_id, step, field = field.field, "a step of a pipeline looks for a field that is not there");
        }
        Ok(())
    }

    async fn publish(&self, tenant: &Tenant, event: Event) -> Result<Value, HostError> {
        if event.tenant != *tenant {
            return Err(HostError::Invalid(ValidationErrors::one("/tenantid", "must be the tenant of the run")));
        }
        with_timeout(self.store.admit_bytes(tenant.as_str(), event.bytes())).await.map_err(host_error)?;
        with_timeout(self.store.take_events(tenant.as_str(), 1)).await.map_err(host_error)?;
        match self.bus.publish(std::slice::from_ref(&event)).await {
            Ok(()) => Ok(json!({ "event_id": event.id })),
            Err(error @ BusError::Invalid { .. }) => Err(HostError::Conflict(error.to_string())),
            Err(error) => {
                tracing::warn!(%error, "an event of a tool could not be published");
                Err(HostError::Unavailable)
            }
        }
    }
}

/// Refuses effects that nobody approved in a task that an agent makes or changes. Such a task wakes an agent, which is
/// asked for its approvals, and polls with GET alone.
fn is_from_agent(spec: &Spec) -> Result<(), ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let Spec { executor, trigger, output, action, .. } = spec;
    if executor != DEFAULT_EXECUTOR {
        let message = format!("an agent may make tasks for `{DEFAULT_EXECUTOR}` only, not for `{executor}`");
        faults.add("/executor", message);
    }
    if output.urgency == Some(Urgency::Urgent) {
        faults.add("/output/urgency", "an agent may ask for `high` at most; `urgent` is for the owner of a task");
    }
    if action.config.get("approvals").is_some() {
        faults.add("/action/config/approvals", "an agent may not decide about its own approvals");
    }
    if action.config.get("credentials").is_some() {
        let message =
            "an agent may not say which credentials nobody is asked about; the owner may, by changing the task";
        faults.add("/action/config/credentials", message);
    }
    if trigger.kind() == "condition" {
        let trigger = serde_json::to_value(trigger).unwrap_or_default();
        let http = trigger["poll"].get("http");
        let method = http.and_then(|http| http["method"].as_str()).unwrap_or("GET");
        if http.is_none() || !matches!(method, "GET" | "HEAD") {
            faults.add("/trigger/poll", "an agent may make conditions that poll `http` with GET only");
        }
        // its calls are looked at one by one; what a task polls for ever after is not
        if http.is_some_and(|http| http.get("credential").is_some()) {
            let message = "an agent may not give a credential to a task; its owner may, by changing the task";
            faults.add("/trigger/poll/http/credential", message);
        }
    }
    faults.into_result(())
}

/// A task in the few words that a model needs of it.
fn brief(task: &Task) -> Value {
    json!({
        "id": task.id, "name": task.name, "status": task.status, "trigger": task.spec.trigger,
        "instruction": task.spec.action.instruction, "next_fire_at": task.fires_at(),
    })
}

fn host_error(error: StoreError) -> HostError {
    match error {
        StoreError::NotFound => HostError::NotFound,
        StoreError::Conflict(why) => HostError::Conflict(why),
        newer @ StoreError::UnknownFormat { .. } => HostError::Conflict(newer.to_string()),
        StoreError::Quota(exceeded) => HostError::Conflict(exceeded.to_string()),
        StoreError::LeaseLost | StoreError::Unavailable(_) | StoreError::TimedOut(_) | StoreError::Corrupt(_) => {
            tracing::warn!(%error, "a tool's call to the store failed");
            HostError::Unavailable
        }
    }
}

impl ToolHost for StoreHost {
    fn create_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        draft: Value,
        idempotency_key: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.create(tenant, draft, idempotency_key))
    }

    fn list_tasks<'a>(
        &'a self,
        tenant: &'a Tenant,
        filter: tool::TaskQuery,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.list(tenant, filter))
    }

    fn pause_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.pause(tenant, id))
    }

    fn resume_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.resume(tenant, id))
    }

    fn update_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        changes: Value,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.update(tenant, id, changes))
    }

    fn run_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        input: Option<Value>,
        idempotency_key: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.run(tenant, id, input, idempotency_key))
    }

    fn delete_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.delete(tenant, id))
    }

    fn notify<'a>(&'a self, tenant: &'a Tenant, notice: ToolNotice) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.post(tenant, notice))
    }

    fn publish_event<'a>(&'a self, tenant: &'a Tenant, event: Event) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.publish(tenant, event))
    }
    fn task_state<'a>(&'a self, tenant: &'a Tenant, task_id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(async move {
            with_timeout(self.store.task_state(tenant, task_id)).await.map(Value::Object).map_err(host_error)
        })
    }

    fn put_task_state<'a>(
        &'a self,
        tenant: &'a Tenant,
        task_id: Uuid,
        name: &'a str,
        value: Option<Value>,
    ) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(async move {
            let now = self.store.clock().now();
            let done = match value {
                Some(value) => with_timeout(self.store.put_task_state(tenant, task_id, name, &value, now)).await,
                None => with_timeout(self.store.delete_task_state(tenant, task_id, name)).await,
            };
            done.map_err(host_error)
        })
    }

    fn tell_missing<'a>(&'a self, tenant: &'a Tenant, missed: MissedByStep) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(self.notify_owner_once(tenant, missed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(fields: Value) -> Draft {
        let mut task = json!({ "name": "a task", "trigger": { "type": "schedule", "interval": "1h" } });
        task.as_object_mut().expect("an object").extend(fields.as_object().cloned().expect("an object"));
        let known = TaskValidator {
            channels: vec![],
            check: Arc::new(|_, _, _| {}),
            seal: Arc::new(|_, _, _, _| Ok(())),
            poll: Arc::new(|_, _, _, _| {}),
        };
        let now = "2027-03-01T08:00:00Z".parse().expect("an instant");
        Draft::parse(Tenant::new("ann").map_err(|why| panic!("{why}")), &task, &known, now)
            .unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn places(fields: Value) -> Vec<String> {
        is_from_agent(&draft(fields).spec)
            .err()
            .map_or(vec![], |faults| faults.0.into_iter().map(|f| f.pointer).collect())
    }

    #[test]
    fn agent_gives_itself_no_effects_by_making_tasks() {
        assert_eq!(places(json!({ "action": { "instruction": "look" } })), Vec::<String>::new());
        for executor in ["pipeline", "webhook", "anything"] {
            assert_eq!(places(json!({ "executor": executor })), ["/executor"]);
        }
        let own = json!({ "action": { "instruction": "x", "config": { "approvals": {} } } });
        assert_eq!(places(own), ["/action/config/approvals"]);
        let own = json!({ "action": { "instruction": "x", "config": { "credentials": ["google/work"] } } });
        assert_eq!(places(own), ["/action/config/credentials"]);
        let with_credential = json!({ "trigger": {
            "type": "condition", "poll": { "http": { "url": "https://a.example", "credential": "flights" } },
            "interval": "30m", "expression": "value.x < 5",
        } });
        assert_eq!(places(with_credential), ["/trigger/poll/http/credential"]);
        let poll = |poll: Value| json!({ "trigger": { "type": "condition", "poll": poll, "interval": "30m", "expression": "value.x < 5" } });
        assert_eq!(places(poll(json!({ "http": { "url": "https://example.org" } }))), Vec::<String>::new());
        assert_eq!(places(poll(json!({ "redis": { "source": "cache", "key": "k" } }))), ["/trigger/poll"]);
    }
}
