//! The store, as tools see it: the tenant's own things through `ToolHost`.

mod data_files;
mod known_vectors;
mod memory;
pub mod nearest;
mod tasks;
mod text_cache;
pub mod tool_pins;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::base::limiter::ConcurrencyLimiter;
use crate::domain::data_file::{DataFilePart, NewDataFile};
use crate::domain::event::Event;
use crate::domain::memory::{Fact, NewFact};
use crate::domain::notification::new_delivery::channels as order_of;
use crate::domain::notification::{MessageKind, NewDelivery, Recipient, SubjectRef, notices};
use crate::domain::task::change::TaskChange;
use crate::domain::task::{Output, Route, TaskValidator};
use crate::executor::host::memory::KnownRecall;
use crate::executor::host::nearest::NearestFacts;
use crate::executor::host::text_cache::TextCache;
use crate::ports::bus::{Bus, BusError};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{self, FactQuery, HostError, MissedByStep, ToolHost, ToolNotice};
use crate::ports::vault::credentials::Credentials;
use crate::store::{Lease, Store, StoreError, with_timeout};

/// Data files that are held whole at once, of all tenants; of one tenant it is one.
pub const WHOLE_FILES: usize = 8;

/// The host of tools, backed by the store.
pub struct StoreHost {
    store: Store,
    validator: Arc<TaskValidator>,
    bus: Arc<dyn Bus>,
    /// The run whose tools it serves; `None`: of no run.
    lease: Option<Lease>,
    /// Data files that are held whole.
    whole_files: ConcurrencyLimiter<Tenant>,
    credentials: Option<Credentials>,
    /// `None`: facts are found by their words alone.
    nearest: Option<NearestFacts>,
    /// Facts for messages that came before.
    recalls: TextCache<KnownRecall>,
}

impl StoreHost {
    /// A host over this store; drafts are checked against `validator`.
    pub fn new(store: Store, validator: TaskValidator, bus: Arc<dyn Bus>) -> StoreHost {
        let whole_files = ConcurrencyLimiter::new(WHOLE_FILES);
        StoreHost {
            store,
            validator: Arc::new(validator),
            bus,
            lease: None,
            whole_files,
            credentials: None,
            nearest: None,
            recalls: TextCache::default(),
        }
    }

    /// As it is, with a way to credentials.
    pub fn with_credentials(self, credentials: Credentials) -> StoreHost {
        StoreHost { credentials: Some(credentials), ..self }
    }

    /// As it is, with a search of facts by their meaning.
    pub fn with_nearest(self, nearest: Option<NearestFacts>) -> StoreHost {
        StoreHost { nearest, ..self }
    }

    /// The host of the tools of one run. An instance that has lost its lease writes no data file of it any more.
    pub fn of_run(&self, lease: Lease) -> StoreHost {
        StoreHost {
            store: self.store.clone(),
            validator: Arc::clone(&self.validator),
            bus: Arc::clone(&self.bus),
            lease: Some(lease),
            whole_files: self.whole_files.clone(),
            credentials: self.credentials.clone(),
            nearest: self.nearest.clone(),
            recalls: self.recalls.clone(),
        }
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
            order.retain(|name| self.validator.channels.contains(name));
        }
        let Some(new) = NewDelivery::new(tenant.as_str(), &order, MessageKind::Message, notice.dedupe_key.clone())
        else {
            return Err(HostError::Conflict("nobody can be told: the tenant has no recipient with an address".into()));
        };
        if let Some(unknown) = order.iter().find(|name| !self.validator.channels.contains(name)) {
            let known = self.validator.channels.join(", ");
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
    fn credentials(&self) -> Option<Credentials> {
        self.credentials.clone()
    }

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
        Box::pin(self.change(tenant, id, TaskChange::PauseByAgent))
    }

    fn resume_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.change(tenant, id, TaskChange::ResumeByAgent))
    }

    fn update_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        changes: Value,
        limits: &'a ToolLimits,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.update(tenant, id, changes, limits))
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

    fn keep_data_file<'a>(&'a self, tenant: &'a Tenant, file: NewDataFile) -> BoxFuture<'a, Result<Uuid, HostError>> {
        Box::pin(async move { self.keep_file(tenant, &file).await })
    }

    fn read_data_file<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        part: DataFilePart,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.read_file(tenant, id, part))
    }

    fn facts_for<'a>(
        &'a self,
        tenant: &'a Tenant,
        message: &'a str,
        chars: usize,
    ) -> BoxFuture<'a, Result<Vec<Fact>, HostError>> {
        Box::pin(self.facts_of_run(tenant, message, chars))
    }

    fn note_fact<'a>(
        &'a self,
        tenant: &'a Tenant,
        fact: NewFact,
        replaces: Option<String>,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.note(tenant, fact, replaces))
    }

    fn search_facts<'a>(&'a self, tenant: &'a Tenant, query: FactQuery) -> BoxFuture<'a, Result<Vec<Fact>, HostError>> {
        Box::pin(self.search(tenant, query))
    }

    fn find_fact<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Fact, HostError>> {
        Box::pin(self.fact(tenant, id))
    }

    fn delete_fact<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        run_id: Uuid,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(self.forget(tenant, id, run_id))
    }

    fn tell_missing<'a>(&'a self, tenant: &'a Tenant, missed: MissedByStep) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(self.notify_owner_once(tenant, missed))
    }
}
