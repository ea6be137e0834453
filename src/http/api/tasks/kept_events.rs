//! Kept events that the trigger of a task is held against when it is made or changed: a field that none of them has is
//! told.
//!
//! A later event may have the field, so nothing is refused. Where no event of the trigger is kept, or the bus does not
//! answer soon, nothing is told.

use std::time::Duration;

use tokio::time::timeout;

use crate::base::expr::{Language, MissingField};
use crate::base::id::Tenant;
use crate::base::token::Permission;
use crate::domain::event::Event;
use crate::domain::task::Task;
use crate::domain::trigger::Trigger;
use crate::domain::trigger::event::{Arrival, CompiledEventTrigger, EventTrigger};
use crate::http::HttpState;
use crate::http::request::AuthenticatedCaller;
use crate::ports::bus::NewestFilter;

/// Events that a trigger is held against: the newest of its source and type, among so many of the newest.
const SAMPLES: usize = 5;
const AMONG: usize = 200;
/// How long a new task waits for them.
const WAIT: Duration = Duration::from_millis(500);

/// The field that an expression of an event task looks for and that none of the newest kept events has, for a caller
/// who may read events.
pub async fn missing_field(state: &HttpState, caller: &AuthenticatedCaller, task: &Task) -> Option<MissingField> {
    let Trigger::Event(trigger) = &task.spec.trigger else { return None };
    if !trigger.has_expressions() || !caller.holds(Permission::EventsRead) {
        return None;
    }
    let samples = newest_events(state, &task.tenant_id, trigger).await;
    if samples.is_empty() {
        return None;
    }
    let (trigger, id, name) = (trigger.clone(), task.id, task.name.clone());
    let metadata = task.spec.metadata.clone();
    let look = move || {
        let subject = (id, name.as_str(), &metadata);
        let compiled = CompiledEventTrigger::compile(&trigger, subject, &Language::default()).ok()?;
        let arrivals: Vec<Arrival> = samples.into_iter().map(Arrival::new).collect();
        compiled.missing_in_all(&arrivals)
    };
    let looked = state.compute.run(&task.tenant_id, look).await;
    looked.unwrap_or_else(|panicked| {
        tracing::error!(task_id = %id, %panicked, "a trigger can't be held against kept events");
        None
    })
}

/// The newest kept events of a tenant that a trigger's source and type fit.
async fn newest_events(state: &HttpState, tenant: &str, trigger: &EventTrigger) -> Vec<Event> {
    let (source, kind) = (trigger.source.clone(), trigger.event_type.clone());
    let filter = NewestFilter { source, kind, among: AMONG, limit: SAMPLES };
    let Ok(tenant) = Tenant::stored(tenant) else { return Vec::new() };
    match timeout(WAIT, state.bus.newest(&tenant, &filter)).await {
        Ok(Ok(events)) => events,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a trigger is held against no events: the bus does not have them");
            Vec::new()
        }
        Err(_) => {
            tracing::debug!("a trigger is held against no events: the bus takes too long");
            Vec::new()
        }
    }
}
