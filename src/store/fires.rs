//! Firing: due tasks become runs, and their next instants move on, in one transaction.
//!
//! Once `fire_due` has returned, every instant that it considered has its record. If it has not returned, asking
//! again is safe: fire keys are unique, and the `due` row moves only from the epoch that was read.

mod batch;

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::clock::signed;
use crate::run::Run;
use crate::store::hot::{Going, Hot};
use crate::store::lease::Claim;
use crate::store::starting::StartedRun;
use crate::store::{Split, Store, StoreError, Topic, split};
pub(super) use batch::{Batch, Move, Ready, all_moved};
use batch::{DueRow, decide};

/// What to fire.
#[derive(Debug, Clone, Copy, Default)]
pub struct FireDue {
    pub now: DateTime<Utc>,
    /// How far ahead of their instant fires are recorded.
    pub horizon: Duration,
    /// Tasks at most; a tenth as many more where more are due.
    pub limit: i64,
    /// The new runs are leased to this worker as far as it has room, so that recording a fire costs one commit.
    pub worker: Uuid,
    pub room: usize,
    /// What there is to know of runs that are due later is read now, for those who start before they are marked.
    pub prepare: bool,
    /// Of those, as many as there are places start at once if they are due, with leases until then.
    pub start: Option<StartNow>,
}

/// How due runs start with the commit that records them.
#[derive(Debug, Clone, Copy)]
pub struct StartNow {
    pub places: usize,
    pub lease_until: DateTime<Utc>,
}

/// What was fired.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fired {
    /// Tasks that were due.
    pub tasks: usize,
    /// Runs that were recorded to be executed, and instants that were recorded as skipped.
    pub recorded: usize,
    pub skipped: usize,
    /// Runs leased to the worker that asked, that are due later or found their task's slot taken.
    pub claims: Vec<Claim>,
    /// Runs that were started.
    pub started: Vec<StartedRun>,
    /// What there is to know of the claims, if that was asked for.
    pub prepared: Vec<StartedRun>,
    /// Fires that had their record already; stays 0 unless an answer of the database was lost.
    pub conflicts: usize,
    /// Tasks whose trigger can't be read any more; they are disabled.
    pub disabled: Vec<(Uuid, String)>,
}

/// Beside the earliest that are due, one for so many of them is of those that are due last.
const LATEST: i64 = 10;

const DUE: Split = split!("due");
const DUE_TASK: Split = split!("due_task");

impl Store {
    /// Records every fire that falls due until `now + horizon`, of at most `limit` tasks, earliest first; and of some that
    /// are due after those, latest first, so that they need not wait until what is late is done.
    pub async fn fire_due(&self, ask: &FireDue) -> Result<Fired, StoreError> {
        let until = ask.now + signed(ask.horizon);
        let (mut fired, going, ahead, missed, mut tasks) = on_hot_write!(self.db, |conn| {
            let due = planted_text!("no_compare_and_set", self.db.text(DUE), "for update skip locked" => "");
            let latest = ask.limit / LATEST;
            let due: Vec<DueRow> =
                sqlx::query_as(due).bind(until).bind(ask.limit).bind(latest).fetch_all(&mut *conn).await?;
            let count = due.len();
            let mut batch = decide(due, ask);
            let mut written = conn.fire(&batch, ask).await?;
            let tasks = std::mem::take(&mut batch.tasks);
            let going = std::mem::take(&mut written.going);
            let ahead = if ask.prepare { ahead(&batch, &written.claims) } else { Vec::new() };
            let missed: Vec<String> = batch.skipped.iter().filter_map(|run| run.reason.clone()).collect();
            (summary(count, batch, written), going, ahead, missed, tasks)
        });
        self.counts.each_skipped(&missed);
        if fired.recorded > fired.claims.len() + going.len() {
            self.hint_everybody(Topic::Queue);
        }
        if let Some(start) = ask.start {
            fired.started = self.with_their_tasks(going, &mut tasks, start.lease_until).await?;
        }
        if !ahead.is_empty() {
            fired.prepared = self.with_their_tasks(ahead, &mut tasks, until).await?;
        }
        Ok(fired)
    }

    /// Records what is due of one task, for a change that must not lose it.
    pub(super) async fn fire_task(&self, task_id: Uuid, now: DateTime<Utc>) -> Result<(), StoreError> {
        let ask = FireDue { now, limit: 1, ..FireDue::default() };
        let missed: Vec<String> = on_write!(self.db, |conn| {
            let due: Vec<DueRow> =
                sqlx::query_as(self.db.text(DUE_TASK)).bind(now).bind(task_id).fetch_all(&mut *conn).await?;
            let batch = decide(due, &ask);
            conn.fire(&batch, &ask).await?;
            batch.skipped.into_iter().filter_map(|run| run.reason).collect()
        });
        self.counts.each_skipped(&missed);
        self.hint(Topic::Queue);
        Ok(())
    }

    /// The earliest instant that any task waits for; `None` where none does.
    pub async fn next_due(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(on_read!(quick self.db, |conn| {
            sqlx::query_scalar(
                "select next_at from due where kind = 'schedule' and next_at is not null order by next_at limit 1",
            )
            .fetch_optional(conn)
            .await?
        }))
    }
}

/// What will be the case once these claims have started at their instants.
fn ahead(batch: &Batch, claims: &[Claim]) -> Vec<(Going, Run)> {
    let ready: HashMap<Uuid, &Ready> = batch.runs.iter().map(|ready| (ready.run.id, ready)).collect();
    let known = claims.iter().filter_map(|claim| Some((claim, ready.get(&claim.lease.run_id)?)));
    known.map(|(claim, ready)| ready.going(claim.lease, claim.run_at)).collect()
}

/// What the database took: claims with their tokens, and how many runs were new.
#[derive(Default)]
pub(super) struct Written {
    pub claims: Vec<Claim>,
    pub going: Vec<(Going, Run)>,
    pub recorded: usize,
    pub skipped: usize,
}

fn summary(tasks: usize, batch: Batch, written: Written) -> Fired {
    Fired {
        tasks,
        conflicts: (batch.runs.len() + batch.skipped.len()) - (written.recorded + written.skipped),
        recorded: written.recorded,
        skipped: written.skipped,
        claims: written.claims,
        started: Vec::new(),
        prepared: Vec::new(),
        disabled: batch.disabled,
    }
}
