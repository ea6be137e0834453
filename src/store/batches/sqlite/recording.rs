//! Events on SQLite: their records of runs, and the places of these in the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::domain::run::RunState;
use crate::store::batches::sqlite::firing;
use crate::store::batches::sqlite::starting::{TASK_OVERLAP, TASK_TIMEOUT, limit_seconds};
use crate::store::db::sqlite_batch::{chunks, is_reusable, list, readable};
use crate::store::db::text::{StoredJson, optional_document};
use crate::store::events::matches::{EventBatch, LOCK_TASKS, LockedTask};
use crate::store::runs::lease::CLAIM_MARGIN;
use crate::store::runs::starting::immediate_start::{LeaseTerms, PlannedRun, WrittenRows};
use crate::store::runs::{INTO_RUNS, NewRun, event_ids};
use crate::store::sql::sql;
use crate::store::{Match, StoreError};

/// Records runs as they are; answers those that had no record yet.
pub(super) async fn insert_runs(conn: &mut SqliteConnection, runs: &[&NewRun]) -> Result<HashSet<Uuid>, StoreError> {
    let mut made = HashSet::with_capacity(runs.len());
    for runs in chunks(runs) {
        let inserted = insert_statement(runs)?.build().persistent(is_reusable(runs.len())).execute(&mut *conn).await?;
        if inserted.rows_affected() == runs.len() as u64 {
            made.extend(runs.iter().map(|run| run.id));
            continue;
        }
        let mut select = QueryBuilder::new("select id from runs where id in ");
        list(&mut select, runs.iter().map(|run| run.id));
        let ids: Vec<Uuid> = select.build_query_scalar().fetch_all(&mut *conn).await?;
        made.extend(ids);
    }
    Ok(made)
}

fn insert_statement(runs: &[&NewRun]) -> Result<QueryBuilder<Sqlite>, StoreError> {
    let mut documents = Vec::with_capacity(runs.len());
    for run in runs {
        let (missed, input) = (optional_document(run.missed.as_ref())?, optional_document(run.input.as_ref())?);
        documents.push((missed, input, optional_document(event_ids(run))?));
    }
    let mut insert = QueryBuilder::new(INTO_RUNS);
    insert.push_values(runs.iter().zip(documents), |mut row, (run, (missed, input, event_ids))| {
        row.push_bind(run.id).push_bind(run.task_id).push_bind(run.tenant_id.clone()).push_bind(run.fire_key.clone());
        row.push_bind(run.trigger_type.clone()).push_bind(run.scheduled_for).push_bind(run.state.as_str());
        row.push_bind(run.reason.clone()).push_bind(missed).push_bind(run.retry_of).push_bind(input);
        row.push_bind(run.created_at).push_bind(run.finished_at()).push_bind(event_ids);
        row.push_bind(run.cause.as_ref().map(StoredJson::json)).push_bind(run.origin.as_str());
        row.push_bind(i32::from(run.started_at().is_some())).push_bind(run.started_at());
    });
    insert.push(" on conflict (task_id, fire_key) do nothing");
    Ok(insert)
}

pub(in crate::store::batches) async fn record_events(
    conn: &mut SqliteConnection,
    batch: &EventBatch,
    terms: &LeaseTerms,
) -> Result<WrittenRows, StoreError> {
    let skipped = insert_runs(conn, &batch.skipped.iter().collect::<Vec<_>>()).await?.len();
    let mut written = WrittenRows { skipped, ..WrittenRows::default() };
    let mut runs = plan(conn, batch, terms.now).await?;
    let going = firing::going_now(conn, &runs).await?;
    for ready in runs.iter_mut().filter(|ready| going.contains(&ready.run.id)) {
        ready.run.state = RunState::Running;
    }
    let made = insert_runs(conn, &runs.iter().map(|ready| &ready.run).collect::<Vec<_>>()).await?;
    firing::enter_queue(conn, &runs, (&made, &going), terms, &mut written).await?;
    count_fires(conn, runs.iter().filter(|ready| made.contains(&ready.run.id))).await?;
    Ok(written)
}

/// Facts of a task whose run is to start with its record.
#[derive(sqlx_macros::FromRow)]
struct StartingTask {
    id: Uuid,
    version: i64,
    overlap: String,
    timeout_seconds: i64,
    /// An older run of it is yet to start, and must not be overtaken.
    has_older: bool,
}

/// The runs of a batch as they are recorded. Those may start whose tasks can be read.
async fn plan(
    conn: &mut SqliteConnection,
    batch: &EventBatch,
    now: DateTime<Utc>,
) -> Result<Vec<PlannedRun>, StoreError> {
    let starting = batch.runs.iter().filter(|ready| ready.may_start).map(|ready| ready.run.task_id);
    let starting: Vec<Uuid> = starting.collect::<BTreeSet<_>>().into_iter().collect();
    let mut tasks: HashMap<Uuid, StartingTask> = HashMap::with_capacity(starting.len());
    for starting in chunks(&starting) {
        let rows =
            starting_tasks(starting).build().persistent(is_reusable(starting.len())).fetch_all(&mut *conn).await?;
        tasks.extend(readable::<StartingTask>(&rows).into_iter().map(|task| (task.id, task)));
    }
    let planned = batch.runs.iter().map(|ready| {
        let task = tasks.get(&ready.run.task_id).filter(|task| ready.may_start && !task.has_older);
        PlannedRun {
            run: ready.run.clone(),
            epoch: ready.epoch,
            run_at: now,
            lease_until: ready.claimed.then_some(now + CLAIM_MARGIN),
            overlap: None,
            starts: task.is_some(),
            needs_slot: !failpoint!("no_slot") && task.is_some_and(|task| task.overlap != "allow"),
            timeout_seconds: task.map_or(0, |task| limit_seconds(task.timeout_seconds)),
            task_version: task.map(|task| task.version),
            task: None,
        }
    });
    Ok(planned.collect())
}

fn starting_tasks(tasks: &[Uuid]) -> QueryBuilder<Sqlite> {
    let mut select = QueryBuilder::new(sql!(
        "select s.id, s.version, s.overlap, s.timeout_seconds,
                s.overlap <> 'allow' and exists (select 1 from queue q where q.task_id = s.id and q.state <> 'started')
                    as has_older
           from (select t.id, t.version, coalesce(",
        TASK_OVERLAP,
        ", 'skip') as overlap, ",
        TASK_TIMEOUT,
        " as timeout_seconds from tasks t where t.id in "
    ));
    list(&mut select, tasks.iter().copied());
    select.push(") s");
    select
}

/// Counts the runs of each task.
async fn count_fires<'r>(
    conn: &mut SqliteConnection,
    runs: impl Iterator<Item = &'r PlannedRun>,
) -> Result<(), StoreError> {
    let mut fires: BTreeMap<Uuid, i64> = BTreeMap::new();
    for ready in runs {
        *fires.entry(ready.run.task_id).or_default() += 1;
    }
    let fires: Vec<(Uuid, i64)> = fires.into_iter().collect();
    for fires in chunks(&fires) {
        count_statement(fires).build().persistent(is_reusable(fires.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

fn count_statement(fires: &[(Uuid, i64)]) -> QueryBuilder<Sqlite> {
    let mut update = QueryBuilder::new("with fires (task_id, fires) as (");
    update.push_values(fires, |mut row, (task_id, fired)| {
        row.push_bind(*task_id).push_bind(*fired);
    });
    update.push(
        ") update due set fire_count = due.fire_count + f.fires, run_count = due.run_count + f.fires
             from fires f where due.task_id = f.task_id",
    );
    update
}

pub(in crate::store::batches) async fn versions(
    conn: &mut SqliteConnection,
    shards: &[(i32, i64)],
) -> Result<Vec<(i32, i64)>, StoreError> {
    let mut found = Vec::with_capacity(shards.len());
    for (shard, _) in shards {
        let version: Option<i64> = sqlx::query_scalar("select version from event_index where shard = $1")
            .bind(shard)
            .fetch_optional(&mut *conn)
            .await?;
        found.push((*shard, version.unwrap_or(0)));
    }
    Ok(found)
}

pub(in crate::store::batches) async fn lock_tasks(
    conn: &mut SqliteConnection,
    tasks: &[Uuid],
) -> Result<Vec<LockedTask>, StoreError> {
    let mut locked = Vec::with_capacity(tasks.len());
    for tasks in chunks(tasks) {
        let rows: Vec<LockedTask> =
            lock_statement(tasks).build_query_as().persistent(is_reusable(tasks.len())).fetch_all(&mut *conn).await?;
        locked.extend(rows);
    }
    Ok(locked)
}

fn lock_statement(tasks: &[Uuid]) -> QueryBuilder<Sqlite> {
    let mut select = QueryBuilder::new(LOCK_TASKS);
    list(&mut select, tasks.iter().copied());
    select
}

pub(in crate::store::batches) async fn in_windows(
    conn: &mut SqliteConnection,
    matches: &[&Match],
) -> Result<Vec<(Uuid, String)>, StoreError> {
    let matches: Vec<(Uuid, &str)> = matches.iter().map(|matched| (matched.task_id, matched.arrival.key())).collect();
    let mut known = Vec::new();
    for matches in chunks(&matches) {
        let rows: Vec<(Uuid, String)> =
            windowed(matches).build_query_as().persistent(is_reusable(matches.len())).fetch_all(&mut *conn).await?;
        known.extend(rows);
    }
    Ok(known)
}

fn windowed(matches: &[(Uuid, &str)]) -> QueryBuilder<Sqlite> {
    let mut select = QueryBuilder::new("with matches (task_id, event_key) as (");
    select.push_values(matches, |mut row, (task_id, key)| {
        row.push_bind(*task_id).push_bind((*key).to_owned());
    });
    select.push(
        ") select w.task_id, w.event_key
             from matches m cross join window_events w on w.task_id = m.task_id and w.event_key = m.event_key",
    );
    select
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn rows_that_a_batch_of_events_concerns_are_found_by_an_index() {
        let id = Uuid::nil();
        let statements = [
            count_statement(&[(id, 1); 100]),
            lock_statement(&[id; 100]),
            windowed(&[(id, "k"); 100]),
            starting_tasks(&[id; 100]),
        ];
        for statement in statements {
            let plan = sqlite_plan(statement.sql().as_str()).await;
            assert!(plan.iter().any(|step| step.starts_with("SEARCH")), "{plan:?}");
            let tables = ["due", "w", "window_events", "t", "tasks", "q", "queue"];
            let scanned = |step: &String| step.strip_prefix("SCAN ").is_some_and(|of| tables.contains(&of));
            assert!(!plan.iter().any(scanned), "{plan:?}");
        }
    }
}
