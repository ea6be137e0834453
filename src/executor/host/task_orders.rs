//! Orders of an agent to tasks that exist: to go on, to be another, to run now. An agent gets by them nothing that it does
//! not get by making a task: see `is_from_agent`.

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::domain::task::change::TaskChange;
use crate::domain::task::{Draft, Task, TaskStatus};
use crate::executor::host::{REASON_PAUSED, StoreHost, brief, host_error, is_from_agent};
use crate::ports::tool::HostError;
use crate::store::{Idempotency, RunRequest, StoreError, StoredAnswer, with_timeout};

/// How often an edit is made anew where somebody else edits the task at the same time.
const EDITS: usize = 3;
/// The fields of a schedule that say when: another instant takes the place of all of them.
const INSTANTS: [&str; 3] = ["cron", "interval", "at"];

impl StoreHost {
    pub(super) async fn own_task(&self, tenant: &Tenant, id: Uuid) -> Result<Task, HostError> {
        let found = with_timeout(self.store.find_task(&Scope::Only(tenant.clone()), id)).await.map_err(host_error)?;
        found.ok_or(HostError::NotFound)
    }

    /// Resumes a task that an agent has paused; what a person has paused waits for a person.
    pub(super) async fn resume(&self, tenant: &Tenant, id: Uuid) -> Result<Value, HostError> {
        let task = self.own_task(tenant, id).await?;
        if task.status == TaskStatus::Active {
            return Ok(brief(&task));
        }
        if task.status != TaskStatus::Paused || task.status_reason.as_deref() != Some(REASON_PAUSED) {
            let message =
                format!("the task is {}, and not by an agent: only a person may resume it", task.status.as_str());
            return Err(HostError::Conflict(message));
        }
        let scope = Scope::Only(tenant.clone());
        let changed = with_timeout(self.store.change_task(&scope, id, &TaskChange::Resume)).await;
        changed.map(|task| brief(&task)).map_err(host_error)
    }

    /// Changes the fields that are given of a task that an agent might have made.
    pub(super) async fn update(&self, tenant: &Tenant, id: Uuid, changes: Value) -> Result<Value, HostError> {
        for _ in 0..EDITS {
            let task = self.own_task(tenant, id).await?;
            let patch = whole_fields(&task, &changes);
            let (known, before, now) = (self.known.clone(), task.clone(), self.store.clock().now());
            let read = move || {
                is_from_agent(&before.spec)?;
                let draft = Draft::patch(&before, &patch, &known, now)?;
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
            body: json!({ "run_id": run_id, "task_id": id }),
        };
        let request = RunRequest { input, requested_by: None };
        let scope = Scope::Only(tenant.clone());
        match with_timeout(self.store.run_now(&scope, id, run_id, request, now, Some(&once)))
            .await
            .map_err(host_error)?
        {
            StoredAnswer::Done(()) => Ok(once.body),
            StoredAnswer::Replayed { body, .. } => Ok(body),
            StoredAnswer::Mismatch => Err(HostError::Conflict("this call has run another task already".into())),
        }
    }
}

/// The changes with each field whole, as an edit replaces it: an instruction with the settings that it has, a schedule's
/// instant with the rest of the schedule.
fn whole_fields(task: &Task, changes: &Value) -> Value {
    let mut patch: Map<String, Value> = changes.as_object().cloned().unwrap_or_default();
    if let Some(instruction) = patch.remove("instruction") {
        let mut action = serde_json::to_value(&task.spec.action).unwrap_or_default();
        action["instruction"] = instruction;
        patch.insert("action".into(), action);
    }
    if let Some(Value::Object(new)) = patch.get_mut("trigger")
        && let Ok(Value::Object(mut whole)) = serde_json::to_value(&task.spec.trigger)
        && new.get("type") == Some(&json!("schedule"))
        && whole.get("type") == Some(&json!("schedule"))
    {
        if INSTANTS.iter().any(|field| new.contains_key(*field)) {
            INSTANTS.iter().for_each(|field| drop(whole.remove(*field)));
        }
        whole.append(new);
        *new = whole;
    }
    Value::Object(patch)
}
