//! The tasks of a tenant, as its agents make and change them. An agent gives itself no more rights by them than it has:
//! see `is_from_agent`, and the limits of its own tools, which a task that it writes for inherits.

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::domain::task::change::TaskChange;
use crate::domain::task::{DEFAULT_EXECUTOR, Draft, Spec, Task, TaskStatus, Urgency};
use crate::executor::host::{StoreHost, host_error};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::builtin::tasks::whole_trigger;
use crate::ports::tool::{self, HostError};
use crate::store::{Idempotency, RunRequest, StoreError, StoredAnswer, TaskFilter, with_timeout};

/// Pages of tasks that a list is made of at most: a page may have few of those that are looked for, and go on.
const PAGES: usize = 20;
/// How often an edit is made anew where somebody else edits the task at the same time.
const EDITS: usize = 3;

impl StoreHost {
    pub(super) async fn create(&self, tenant: &Tenant, draft: Value, key: &str) -> Result<Value, HostError> {
        let now = self.store.clock().now();
        let draft_digest = digest(&SHA256, draft.to_string().as_bytes());
        let (validator, of) = (self.validator.clone(), tenant.clone());
        let read = move || {
            let draft = Draft::parse(Ok(of), &draft, &validator, now)?;
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
            body: brief(&task).into(),
        };
        match with_timeout(self.store.create_task(&task, next.map(|n| n.nominal), Some(&once)))
            .await
            .map_err(host_error)?
        {
            StoredAnswer::Done(()) => Ok(once.body.value()),
            StoredAnswer::Replayed { body, .. } => Ok(body),
            StoredAnswer::Mismatch => Err(HostError::Conflict("this call has created another task already".into())),
        }
    }

    pub(super) async fn list(&self, tenant: &Tenant, filter: tool::TaskQuery) -> Result<Value, HostError> {
        let status = match &filter.status {
            None => None,
            Some(word) => Some(TaskStatus::parse(word).ok_or_else(|| {
                HostError::Invalid(ValidationErrors::one("/status", "must be active, paused, disabled or completed"))
            })?),
        };
        let (scope, limit) = (Scope::Only(tenant.clone()), i64::from(filter.limit));
        let mut next = TaskFilter { status, q: filter.q, limit, ..TaskFilter::default() };
        let mut items: Vec<Value> = Vec::new();
        for _ in 0..PAGES {
            let page = with_timeout(self.store.tasks_page(&scope, &next)).await.map_err(host_error)?;
            items.extend(page.rows.iter().map(brief));
            next.limit = limit - items.len() as i64;
            // one that is cut is as long as a list may be
            next.before = page.behind.filter(|_| !page.is_cut && next.limit > 0);
            if next.before.is_none() {
                break;
            }
        }
        Ok(json!({ "items": items }))
    }

    /// Pauses or resumes a task.
    pub(super) async fn change(&self, tenant: &Tenant, id: Uuid, change: TaskChange) -> Result<Value, HostError> {
        let changed = with_timeout(self.store.change_task(&Scope::Only(tenant.clone()), id, &change)).await;
        changed.map(|task| brief(&task)).map_err(host_error)
    }

    /// Changes the fields that are given of a task that an agent might have made.
    pub(super) async fn update(
        &self,
        tenant: &Tenant,
        id: Uuid,
        changes: Value,
        limits: &ToolLimits,
    ) -> Result<Value, HostError> {
        for _ in 0..EDITS {
            let found =
                with_timeout(self.store.find_task(&Scope::Only(tenant.clone()), id)).await.map_err(host_error)?;
            let task = found.filter(|task| !task.is_chat()).ok_or(HostError::NotFound)?;
            let patch = whole_fields(&task, &changes, limits);
            let (validator, before, now) = (self.validator.clone(), task.clone(), self.store.clock().now());
            let read = move || {
                is_from_agent(&before.spec)?;
                let draft = Draft::patch(&before, &patch, &validator, now)?;
                is_from_agent(&draft.spec)?;
                Ok::<_, ValidationErrors>(draft)
            };
            let read = self.store.compute(tenant.as_str(), read).await.map_err(host_error)?;
            let Draft { name, spec, .. } = read.map_err(HostError::Invalid)?;
            let edit = TaskChange::Edit { version: task.version, name, spec: Box::new(spec) };
            match with_timeout(self.store.change_task(&Scope::Only(tenant.clone()), id, &edit)).await {
                Err(StoreError::Conflict(_)) => continue,
                changed => return changed.map(|task| brief(&task)).map_err(host_error),
            }
        }
        Err(HostError::Conflict("the task is being changed by others all the time".into()))
    }

    /// Runs a task now. The same key answers the same run.
    pub(super) async fn run(
        &self,
        tenant: &Tenant,
        id: Uuid,
        input: Option<Value>,
        key: &str,
    ) -> Result<Value, HostError> {
        let now = self.store.clock().now();
        let run_id = new_id(now);
        let once = Idempotency {
            tenant: tenant.as_str().to_owned(),
            key: format!("tool:{key}"),
            digest: digest(&SHA256, json!([id, input]).to_string().as_bytes()).as_ref().to_vec(),
            status: 201,
            body: json!({ "run_id": run_id, "task_id": id }).into(),
        };
        let request = RunRequest { input, ..RunRequest::default() };
        let scope = Scope::Only(tenant.clone());
        let found = with_timeout(self.store.find_task(&scope, id)).await.map_err(host_error)?;
        // a message is a person's to send
        if found.is_some_and(|task| task.is_chat()) {
            return Err(HostError::NotFound);
        }
        match with_timeout(self.store.run_now(&scope, id, run_id, request, now, Some(&once)))
            .await
            .map_err(host_error)?
        {
            StoredAnswer::Done(()) => Ok(once.body.value()),
            StoredAnswer::Replayed { body, .. } => Ok(body),
            StoredAnswer::Mismatch => Err(HostError::Conflict("this call has run another task already".into())),
        }
    }

    pub(super) async fn delete(&self, tenant: &Tenant, id: Uuid) -> Result<Value, HostError> {
        with_timeout(self.store.delete_task(&Scope::Only(tenant.clone()), id)).await.map_err(host_error)?;
        Ok(json!({ "deleted": id }))
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

/// The changes with each field whole, as an edit replaces it: an instruction with the settings that it has, a
/// schedule's instant with the rest of the schedule.
fn whole_fields(task: &Task, changes: &Value, limits: &ToolLimits) -> Value {
    let mut patch: Map<String, Value> = changes.as_object().cloned().unwrap_or_default();
    let instruction = patch.remove("instruction");
    // the name is part of what its agent is told, too
    let tells_agent = instruction.is_some() || patch.contains_key("name");
    if instruction.is_some() || tells_agent && !limits.is_empty() {
        let mut action = task.spec.action.clone();
        if !limits.is_empty() {
            narrow(&mut action.config, limits);
        }
        let mut action = serde_json::to_value(&action).unwrap_or_default();
        if let Some(instruction) = instruction {
            action["instruction"] = instruction;
        }
        patch.insert("action".into(), action);
    }
    if let Some(changed) = patch.remove("trigger") {
        let before = serde_json::to_value(&task.spec.trigger).unwrap_or_default();
        patch.insert("trigger".into(), whole_trigger(before, changed));
    }
    Value::Object(patch)
}

/// Leaves an agent no tool that the limits do not allow.
fn narrow(config: &mut Map<String, Value>, limits: &ToolLimits) {
    let list = |key: &str| config.get(key).and_then(|names| serde_json::from_value(names.clone()).ok());
    let own = ToolLimits { allow: list("tools"), deny: list("deny_tools").unwrap_or_default() };
    let ToolLimits { allow, deny } = own.and(limits);
    config.insert("tools".into(), json!(allow));
    config.insert("deny_tools".into(), json!(deny));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::task::TaskValidator;

    fn draft(fields: Value) -> Draft {
        let mut task = json!({ "name": "a task", "trigger": { "type": "schedule", "interval": "1h" } });
        task.as_object_mut().expect("an object").extend(fields.as_object().cloned().expect("an object"));
        let validator = TaskValidator {
            channels: vec![],
            check: Arc::new(|_, _, _| {}),
            seal: Arc::new(|_, _, _, _| Ok(())),
            poll: Arc::new(|_, _, _, _| {}),
        };
        let now = "2027-03-01T08:00:00Z".parse().expect("an instant");
        Draft::parse(Tenant::new("ann").map_err(|why| panic!("{why}")), &task, &validator, now)
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
