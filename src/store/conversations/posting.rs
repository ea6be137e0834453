//! Messages of a conversation as they are recorded. One starts with its record where this instance has a slot for it
//! and nothing else of the conversation is under way or waits for its turn: so its pieces are told where it was posted,
//! and none overtakes an older one. Each other is ready for any instance.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::id::Scope;
use crate::base::json::length::bytes_of;
use crate::domain::run::{RunOrigin, RunState};
use crate::domain::task::Task;
use crate::store::conversations::request_echo::note_echo;
use crate::store::db::with_timeout;
use crate::store::runs::lease::{Lease, StartedRow, StartedRows, time_limit};
use crate::store::runs::requests::{LOCK_DUE, note_requester};
use crate::store::runs::starting::immediate_start::started_with_record;
use crate::store::runs::starting::local_starter::LocalStart;
use crate::store::runs::{NewRun, insert_run};
use crate::store::{NEXT_TOKEN, RunRequest, Store, StoreError};

/// Notes that a conversation is used. One that is being deleted takes no message.
const USE: &str = "
    update tasks set active_since = $2
     where id = $1 and trigger_type = 'chat' and status = 'active' and ($3 is null or tenant_id = $3)
    returning tenant_id";

/// Takes the one slot of a conversation of which nothing else is under way, is about to be, or waits for its turn.
const TAKE_IDLE_SLOT: &str = "
    insert into slots (task_id, run_id)
    select t.id, $2 from tasks t
     where t.id = $1 and t.status = 'active'
       and (select q.run_id from queue q where q.task_id = $1 limit 1) is null
       and (select p.run_id from parked p where p.task_id = $1 and p.reason = 'overlap' limit 1) is null
    on conflict (task_id) do nothing";

/// The place in the queue of a run that has started with its record.
const ENTER_STARTED: &str = "
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                       deadline_at)
    values ($1, $2, $3, $4, $5, 1, 'started', $6, $7, $8, $9)";

const COUNT_RUN: &str = "update due set run_count = run_count + 1 where task_id = $1";

impl Store {
    /// Records a message as a run of this id: started, where this instance has a slot for it and nothing else of the
    /// conversation is under way, and else ready. Recorded once more, it changes nothing.
    ///
    /// # Errors
    /// `NotFound`: there is no such conversation in the scope, or it is being deleted.
    pub async fn post_message(
        &self,
        scope: &Scope,
        conversation: Uuid,
        run_id: Uuid,
        message: RunRequest,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (store, scope) = (self.clone(), scope.clone());
        // what has started is executed here, though the caller goes away
        let posted = async move { store.record_message(&scope, conversation, run_id, message, now).await };
        self.run_detached(posted).await
    }

    async fn record_message(
        &self,
        scope: &Scope,
        conversation: Uuid,
        run_id: Uuid,
        message: RunRequest,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let tenant = self.use_conversation(scope, conversation, now).await?;
        self.admit_bytes(&tenant, message.input.as_ref().map_or(0, bytes_of)).await?;
        if self.start_message(scope, (&tenant, conversation), run_id, &message, now).await? {
            return Ok(());
        }
        self.record_ready(scope, conversation, run_id, message, now, None).await.map(drop)
    }

    /// Answers the tenant of the conversation.
    async fn use_conversation(
        &self,
        scope: &Scope,
        conversation: Uuid,
        now: DateTime<Utc>,
    ) -> Result<String, StoreError> {
        let mut write = self.db.write(scope).await?;
        let used: Option<String> =
            write.query(USE).bind(conversation).bind(now).bind(scope.tenant()).optional_scalar().await?;
        write.commit().await?;
        used.ok_or(StoreError::NotFound)
    }

    /// Records a message as a run that has started, and has it executed here; whether it did. Else nothing was written.
    async fn start_message(
        &self,
        scope: &Scope,
        (tenant, conversation): (&str, Uuid),
        run_id: Uuid,
        message: &RunRequest,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let Some(mut start) = self.reserve_starts(&[tenant]).await? else { return Ok(false) };
        if !start.take(tenant) {
            return Ok(false);
        }
        // the end of starts waits for this, and a wire that has gone silent must not keep it waiting
        let task = with_timeout(self.find_task(scope, conversation)).await?;
        let Some(task) = task else { return Ok(false) };
        let run = NewRun {
            id: run_id,
            origin: RunOrigin::Request,
            state: RunState::Running,
            input: message.input.clone(),
            ..NewRun::queued(&task, format!("m:{run_id}"), now, now)
        };
        let started = with_timeout(self.record_started(scope, task, &run, message, &start)).await?;
        let Some(started) = started else { return Ok(false) };
        start.execute(self, StartedRows { rows: vec![started], ..StartedRows::default() }).await;
        Ok(true)
    }

    /// Records a run as started in this slot of the instance. `None`, and nothing written: something else of its
    /// conversation is under way or waits for its turn, the run has its record already, or the conversation is being
    /// deleted.
    async fn record_started(
        &self,
        scope: &Scope,
        task: Task,
        run: &NewRun,
        message: &RunRequest,
        start: &LocalStart,
    ) -> Result<Option<StartedRow>, StoreError> {
        let (started_at, deadline_at) = (run.created_at, run.created_at + to_delta(time_limit(Some(&task))));
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let epoch: Option<i64> = tx.query(LOCK_DUE).bind(run.task_id).optional_scalar().await?;
        let Some(epoch) = epoch else { return Ok(None) };
        // the lock keeps other messages out; a run that goes back to the queue takes the slot first, or is looked at
        // when it starts
        let taken = tx.query(TAKE_IDLE_SLOT).bind(run.task_id).bind(run.id).execute().await?;
        if taken == 0 || insert_run(tx, run).await? == 0 {
            return Ok(None);
        }
        let token: i64 = tx.query(NEXT_TOKEN).scalar().await?;
        tx.query(ENTER_STARTED)
            .bind(run.id)
            .bind(run.task_id)
            .bind(&run.tenant_id)
            .bind(epoch)
            .bind(started_at)
            .bind(token)
            .bind(start.lease_until)
            .bind(start.terms.worker)
            .bind(deadline_at)
            .execute()
            .await?;
        tx.query(COUNT_RUN).bind(run.task_id).execute().await?;
        note_requester(tx, run.id, message.requested_by.as_deref()).await?;
        note_echo(tx, run.id, message.echo).await?;
        write.commit().await?;
        let lease = Lease { run_id: run.id, token };
        let task_version = Some(task.version);
        let row = started_with_record(run, lease, started_at, deadline_at);
        Ok(Some(StartedRow { task_version, task: Some(Arc::new(task.into_definition())), ..row }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn conversation_of_a_message_and_its_other_runs_are_found_by_an_index() {
        for statement in [USE, TAKE_IDLE_SLOT, COUNT_RUN] {
            let plan = sqlite_plan(statement).await;
            assert!(plan.iter().any(|step| step.starts_with("SEARCH")), "{plan:?}");
            assert!(!plan.iter().any(|step| step.starts_with("SCAN")), "{plan:?}");
        }
    }
}
