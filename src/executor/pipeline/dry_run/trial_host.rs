//! The host and the transcript of a trial, which changes nothing.

use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use crate::agent::{AgentStore, AppendError};
use crate::base::id::Tenant;
use crate::domain::data_file::{DataFilePart, NewDataFile};
use crate::domain::event::Event;
use crate::domain::memory::{Fact, NewFact};
use crate::domain::run::TranscriptEntry;
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{FactQuery, HostError, MissedByStep, TaskQuery, ToolHost, ToolNotice};

/// The host and the transcript of a trial: nothing is there, and nothing can be done.
pub struct TrialHost;

impl TrialHost {
    fn refused<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, HostError>> {
        Box::pin(async { Err(HostError::Conflict("a dry run changes nothing".into())) })
    }
}

impl ToolHost for TrialHost {
    fn create_task<'a>(&'a self, _: &'a Tenant, _: Value, _: &'a str) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn list_tasks<'a>(&'a self, _: &'a Tenant, _: TaskQuery) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn pause_task<'a>(&'a self, _: &'a Tenant, _: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn resume_task<'a>(&'a self, _: &'a Tenant, _: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn update_task<'a>(
        &'a self,
        _: &'a Tenant,
        _: Uuid,
        _: Value,
        _: &'a ToolLimits,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn run_task<'a>(
        &'a self,
        _: &'a Tenant,
        _: Uuid,
        _: Option<Value>,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn delete_task<'a>(&'a self, _: &'a Tenant, _: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn notify<'a>(&'a self, _: &'a Tenant, _: ToolNotice) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn publish_event<'a>(&'a self, _: &'a Tenant, _: Event) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn task_state<'a>(&'a self, _: &'a Tenant, _: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn put_task_state<'a>(
        &'a self,
        _: &'a Tenant,
        _: Uuid,
        _: &'a str,
        _: Option<Value>,
    ) -> BoxFuture<'a, Result<(), HostError>> {
        TrialHost::refused()
    }

    fn keep_data_file<'a>(&'a self, _: &'a Tenant, _: NewDataFile) -> BoxFuture<'a, Result<Uuid, HostError>> {
        TrialHost::refused()
    }

    fn read_data_file<'a>(
        &'a self,
        _: &'a Tenant,
        _: Uuid,
        _: DataFilePart,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn facts_for<'a>(&'a self, _: &'a Tenant, _: &'a str, _: usize) -> BoxFuture<'a, Result<Vec<Fact>, HostError>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn note_fact<'a>(
        &'a self,
        _: &'a Tenant,
        _: NewFact,
        _: Option<String>,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn search_facts<'a>(&'a self, _: &'a Tenant, _: FactQuery) -> BoxFuture<'a, Result<Vec<Fact>, HostError>> {
        TrialHost::refused()
    }

    fn find_fact<'a>(&'a self, _: &'a Tenant, _: Uuid) -> BoxFuture<'a, Result<Fact, HostError>> {
        TrialHost::refused()
    }

    fn delete_fact<'a>(&'a self, _: &'a Tenant, _: Uuid, _: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        TrialHost::refused()
    }

    fn tell_missing<'a>(&'a self, _: &'a Tenant, _: MissedByStep) -> BoxFuture<'a, Result<(), HostError>> {
        TrialHost::refused()
    }
}

impl AgentStore for TrialHost {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn append(&self, _: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async { Err(AppendError::Unavailable) })
    }

    fn defer(&self, _: Vec<TranscriptEntry>) {}
}
