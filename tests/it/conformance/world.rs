//! A store of one case: fresh, with a clock that stands still, on either database; and what must hold when the case
//! leaves it.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::clock::Clock;
use reveille::base::id::{Scope, Tenant, new_id};
use reveille::base::secret::SecretUrl;
use reveille::domain::run::{Run, RunState};
use reveille::domain::task::{Draft, Spec, Task};
use reveille::store::{
    Finish, FireDue, FireResult, Lease, OverlapOutcome, PendingWork, RequeuedRun, RunClaim, Settings, StartedRun,
    Starts, Store, StoredAnswer,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use tokio::sync::Mutex;
use tracing::Level;
use uuid::Uuid;

use crate::support::binary::TempDir;
use crate::support::log::logged;
use crate::support::postgres::Database;
use crate::support::sqlite;
use crate::support::world::claim_ready;

/// The first instant of every case.
pub const START: DateTime<Utc> = DateTime::from_timestamp_millis(1_772_352_000_000).unwrap(); // 2026-03-01T08:00:00Z
pub const WORKER: Uuid = Uuid::from_u128(0xA);
pub const OTHER_WORKER: Uuid = Uuid::from_u128(0xB);
pub const LEASE: TimeDelta = TimeDelta::seconds(45);

#[derive(Clone)]
pub struct StoreHarness {
    pub store: Store,
    pub clock: Clock,
    place: Arc<Place>,
    /// A connection of the case's own, made when it first looks behind the store.
    look: Arc<Mutex<Option<DatabaseInspector>>>,
}

enum Place {
    Sqlite(TempDir),
    Postgres(Database),
}

impl StoreHarness {
    pub async fn sqlite() -> StoreHarness {
        let dir = TempDir::new();
        sqlite::migrated_copy(dir.path());
        let clock = Clock::manual(START);
        let store =
            Store::open(&Settings::default(), dir.path(), clock.clone(), never_waits).await.expect("open SQLite");
        StoreHarness { store, clock, place: Arc::new(Place::Sqlite(dir)), look: Arc::default() }
    }

    pub async fn postgres() -> StoreHarness {
        let database = Database::copy_of("spine", |url| async move {
            open_postgres(&url, &Clock::manual(START)).await.close().await;
        })
        .await;
        let clock = Clock::manual(START);
        let store = open_postgres(&database.url, &clock).await;
        StoreHarness { store, clock, place: Arc::new(Place::Postgres(database)), look: Arc::default() }
    }

    /// Another instance on the same data with the same clock. SQLite allows one process: there it is the same store.
    pub async fn other_instance(&self) -> Store {
        match &*self.place {
            Place::Sqlite(_) => self.store.clone(),
            Place::Postgres(database) => open_postgres(&database.url, &self.clock).await,
        }
    }

    pub fn is_postgres(&self) -> bool {
        matches!(*self.place, Place::Postgres(_))
    }

    /// Where the database is, for connections of a case's own.
    pub fn url(&self) -> String {
        match &*self.place {
            Place::Sqlite(dir) => format!("sqlite://{}/reveille.db", dir.path().display()),
            Place::Postgres(database) => database.url.clone(),
        }
    }

    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    pub fn pass(&self, seconds: i64) {
        self.clock.advance(TimeDelta::seconds(seconds));
    }

    // ------------------------------------------------------------ tasks

    /// A task of tenant `a` on this schedule, stored.
    pub async fn task(&self, trigger: Value) -> Task {
        self.task_with("a", trigger, json!({})).await
    }

    /// A task whose spec has these fields, too.
    pub async fn task_with(&self, tenant: &str, trigger: Value, more: Value) -> Task {
        let (task, nominal) = new_task(tenant, trigger, more, self.now());
        let answer = self.store.create_task(&task, nominal, None).await.expect("create the task");
        assert_eq!(answer, StoredAnswer::Done(()));
        task
    }

    pub async fn get_task(&self, id: Uuid) -> Task {
        self.store.get_task(&Scope::Every, id).await.expect("the task")
    }

    // ------------------------------------------------------------ runs

    /// Fires what is due now, leased to [`WORKER`].
    pub async fn fire(&self) -> FireResult {
        self.store.fire_due(&self.ask(0, 100)).await.expect("fire")
    }

    pub fn ask(&self, horizon_seconds: u64, room: usize) -> FireDue {
        let horizon = Duration::from_secs(horizon_seconds);
        FireDue { now: self.now(), horizon, limit: 1000, worker: WORKER, room, start: None }
    }

    /// A run of the task, recorded now and ready.
    pub async fn run_now(&self, task: &Task) -> Uuid {
        let id = new_id(self.now());
        self.store.run_now(&Scope::Every, task.id, id, None, self.now(), None).await.expect("run now");
        id
    }

    pub async fn claim(&self) -> Vec<RunClaim> {
        claim_ready(&self.store, WORKER, self.now(), 100).await
    }

    /// Claims everything and starts it.
    pub async fn start_all(&self) -> Starts {
        let leases = leases(&self.claim().await);
        self.store.start_runs(&leases, self.now() + LEASE).await.expect("start")
    }

    /// Runs the task now and starts it.
    pub async fn started(&self, task: &Task) -> StartedRun {
        self.run_now(task).await;
        let [started] = <[StartedRun; 1]>::try_from(self.start_all().await.started).expect("one run that starts");
        started
    }

    /// Runs the task now; it must be blocked.
    pub async fn blocked(&self, task: &Task) -> (Run, OverlapOutcome) {
        let id = self.run_now(task).await;
        let starts = self.start_all().await;
        assert_eq!((starts.started, starts.blocked.len(), starts.blocked[0].0), (vec![], 1, id));
        (self.get_run(id).await, starts.blocked[0].1)
    }

    pub async fn get_run(&self, id: Uuid) -> Run {
        self.store.get_run(&Scope::Every, id).await.expect("the run")
    }

    /// Every run of the task, oldest first.
    pub async fn runs_of(&self, task: &Task) -> Vec<Run> {
        let filter = reveille::store::RunFilter { task_id: Some(task.id), limit: 1000, ..Default::default() };
        let mut runs = self.store.list_runs(&Scope::Every, &filter).await.expect("list runs");
        runs.reverse();
        runs
    }

    /// Ends it well; it must have the lease still.
    pub async fn succeed(&self, started: &StartedRun) {
        let lost = self.store.finish_runs(&[end_of(started, RunState::Succeeded)]).await.expect("finish");
        assert_eq!(lost, Vec::<Uuid>::new());
    }

    /// The pending work, once everything that is stored is counted.
    pub async fn pending_work(&self) -> PendingWork {
        while self.store.count_stored_bytes(1_000).await.expect("counted") > 0 {}
        self.store.pending_work().await.expect("pending work")
    }

    // ------------------------------------------------------------ looking behind the store

    /// One number out of the database.
    pub async fn count(&self, sql: &str) -> i64 {
        let mut look = self.look.lock().await;
        if look.is_none() {
            *look = Some(self.connect().await);
        }
        look.as_mut().expect("connected").number(sql).await
    }

    /// Changes the database behind the store's back.
    pub async fn plant(&self, sql: &str) {
        let mut look = self.look.lock().await;
        if look.is_none() {
            *look = Some(self.connect().await);
        }
        look.as_mut().expect("connected").run(sql).await;
    }

    /// An id as a literal of this database.
    pub fn id(&self, id: Uuid) -> String {
        match self.is_postgres() {
            true => format!("'{id}'"),
            false => format!("x'{}'", id.simple()),
        }
    }

    async fn connect(&self) -> DatabaseInspector {
        match &*self.place {
            Place::Sqlite(_) => {
                DatabaseInspector::Sqlite(SqliteConnection::connect(&self.url()).await.expect("look at SQLite"))
            }
            Place::Postgres(database) => {
                let mut connection = database.connect().await;
                sqlx::query("set reveille.tenant = '*'").execute(&mut connection).await.expect("see every tenant");
                DatabaseInspector::Postgres(connection)
            }
        }
    }

    /// Checks the invariants, whatever a case did: every run is in the one place of its state.
    pub async fn check(&self) {
        let sums = INVARIANTS.map(|(_, sql)| format!("({sql})")).join(" + ");
        if self.count(&format!("select {sums}")).await > 0 {
            for (what, sql) in INVARIANTS {
                assert_eq!(self.count(sql).await, 0, "what must hold and does not: {what}");
            }
        }
    }

    pub async fn leave(self) {
        self.check().await;
        self.store.close().await;
        self.look.lock().await.take();
    }
}

enum DatabaseInspector {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl DatabaseInspector {
    async fn number(&mut self, sql: &str) -> i64 {
        let query = AssertSqlSafe(sql.to_owned());
        match self {
            DatabaseInspector::Sqlite(connection) => sqlx::query_scalar(query).fetch_one(connection).await,
            DatabaseInspector::Postgres(connection) => sqlx::query_scalar(query).fetch_one(connection).await,
        }
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn run(&mut self, sql: &str) {
        let query = AssertSqlSafe(sql.to_owned());
        match self {
            DatabaseInspector::Sqlite(connection) => sqlx::query(query).execute(connection).await.map(drop),
            DatabaseInspector::Postgres(connection) => sqlx::query(query).execute(connection).await.map(drop),
        }
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

/// Tenants whose stored bytes are not counted as they are stored.
pub const STORED_BYTES: &str = "with parts (tenant_id, bytes) as (
         select tenant_id, stored_bytes from tasks
         union all select tenant_id, stored_bytes from runs
         union all select r.tenant_id, t.stored_bytes from turns t join runs r on r.id = t.run_id
         union all select tenant_id, stored_bytes from events
         union all select t.tenant_id, e.stored_bytes from window_events e join tasks t on t.id = e.task_id
         union all select tenant_id, stored_bytes from dead_letters where tenant_id is not null
         union all select tenant_id, stored_bytes from deliveries
         union all select tenant_id, stored_bytes from credentials
         union all select tenant_id, stored_bytes from task_state
         union all select tenant_id, stored_bytes from approvals
         union all select tenant_id, stored_bytes from facts
         union all select tenant_id, stored_bytes from fact_versions
         union all select tenant_id, stored_bytes from fact_vectors
         union all select tenant_id, stored_bytes from idempotency
         union all select tenant_id, stored_bytes from bus_outbox
         union all select tenant_id, stored_bytes from credential_uses
         union all select t.tenant_id, k.stored_bytes from dedups k join tasks t on t.id = k.task_id
         union all select t.tenant_id, k.stored_bytes from throttles k join tasks t on t.id = k.task_id
         union all select tenant_id, stored_bytes from audit
         union all select tenant_id, -stored_bytes from tenant_usage
         union all select tenant_id, -bytes from stored_byte_changes)
     select count(*) from (select tenant_id from parts group by tenant_id having sum(bytes) <> 0) wrong";

/// Invariants, each with the count of rows that break it.
const INVARIANTS: [(&str, &str); 16] = [
    (
        "stored bytes are counted for their tenants, as they are stored",
        STORED_BYTES,
    ),
    (
        "tasks, conditions and the event tasks of each source are counted",
        "select (select count(*)
                   from (select tenant_id, count(*) as tasks, count(*) filter (where trigger_type = 'condition') as polls
                           from tasks group by tenant_id) t
                   left join tenant_usage u on u.tenant_id = t.tenant_id
                  where u.tasks is null or u.tasks <> t.tasks or u.polls <> t.polls)
              + (select count(*) from tenant_usage u
                  where u.tasks <> 0 and not exists (select 1 from tasks t where t.tenant_id = u.tenant_id))
              + (select count(*)
                   from (select tenant_id, coalesce(spec -> 'trigger' ->> 'source', '') as source, count(*) as tasks
                           from tasks where trigger_type = 'event' group by 1, 2) t
                   full join event_task_counts c on c.tenant_id = t.tenant_id and c.source = t.source
                  where c.tasks is null or t.tasks is null or c.tasks <> t.tasks)",
    ),
    (
        "a queued run is in the queue or parked, once",
        "select count(*) from runs r where r.state = 'queued'
            and (select count(*) from queue q where q.run_id = r.id and q.state in ('ready', 'claimed'))
              + (select count(*) from parked p where p.run_id = r.id) <> 1",
    ),
    (
        "a running run is started in the queue",
        "select count(*) from runs r where r.state = 'running'
            and not exists (select 1 from queue q where q.run_id = r.id and q.state = 'started')",
    ),
    (
        "a run that waits is parked",
        "select count(*) from runs r where r.state in ('waiting_for_input', 'pending_approval', 'waiting_for_completion')
            and not exists (select 1 from parked p where p.run_id = r.id)",
    ),
    (
        "a run that has ended is in neither",
        "select count(*) from runs r where r.state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped')
            and (exists (select 1 from queue q where q.run_id = r.id) or exists (select 1 from parked p where p.run_id = r.id))",
    ),
    (
        "what is queued or parked has its record",
        "select count(*) from (select run_id from queue union all select run_id from parked) w
          where not exists (select 1 from runs r where r.id = w.run_id)",
    ),
    (
        "a started row belongs to a running run",
        "select count(*) from queue q join runs r on r.id = q.run_id where q.state = 'started' and r.state <> 'running'",
    ),
    (
        "who has a slot is in the queue, or waits for a person or a completion",
        "select count(*) from slots s where not exists (select 1 from queue q where q.run_id = s.run_id)
            and not exists (select 1 from parked p where p.run_id = s.run_id and p.reason <> 'overlap')",
    ),
    (
        "nobody waits for a slot that is free",
        "select count(*) from parked p where p.reason = 'overlap'
            and not exists (select 1 from slots s where s.task_id = p.task_id)",
    ),
    (
        "claimed and started rows have a lease, ready ones have none",
        "select count(*) from queue where (state = 'ready') = (lease_token <> 0 or lease_until is not null)
            or (state = 'started') <> (deadline_at is not null)",
    ),
    (
        "every task has its due row of the same epoch",
        "select (select count(*) from tasks t where not exists (select 1 from due d where d.task_id = t.id and d.epoch = t.epoch))
              + (select count(*) from due d where not exists (select 1 from tasks t where t.id = d.task_id))",
    ),
    (
        "an active task that goes by the clock has a next instant, others have none",
        "select count(*) from tasks t join due d on d.task_id = t.id where (t.status = 'active' and d.kind not in ('event', 'chat')) <> (d.next_at is not null)",
    ),
    (
        "nobody is asked about a run that has ended",
        "select count(*) from approvals a join runs r on r.id = a.run_id
          where a.status = 'pending' and r.finished_at is not null",
    ),
    (
        "a call has one question that counts, and what is settled says when and by whom",
        "select (select count(*) from approvals where (status = 'pending') <> (decided_at is null)
                                                   or (decided_at is null) <> (decided_by is null))
              + (select count(*) from approvals a join approvals b on a.run_id = b.run_id and a.turn = b.turn
                  where a.call_id = b.call_id and a.kind = b.kind and a.id < b.id and a.replaced_by is null and b.replaced_by is null)",
    ),
    (
        "a run has ended exactly when its state is final",
        "select count(*) from runs where (finished_at is not null) <> (state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped'))",
    ),
];

// ---------------------------------------------------------------- values

/// A task that is not stored yet, and the nominal instant of its first fire.
pub fn new_task(tenant: &str, trigger: Value, more: Value, now: DateTime<Utc>) -> (Task, Option<DateTime<Utc>>) {
    let draft = Draft { tenant: tenant_of(tenant), key: None, name: "Morning mail".into(), spec: spec(trigger, more) };
    let (task, next) = Task::new(new_id(now), draft, now).expect("a valid schedule");
    (task, next.map(|next| next.nominal))
}

/// A spec with this schedule, and these fields instead of the usual ones.
pub fn spec(trigger: Value, more: Value) -> Spec {
    let mut spec = json!({
        "trigger": {"type": "schedule"}, "executor": "orchestrator", "action": {"instruction": "say hello"},
        "max_runs": null, "timeout_seconds": 600, "retry": {}, "pause_after_failures": null, "metadata": {},
    });
    for (place, fields) in [("/trigger", trigger), ("", more)] {
        let fields = fields.as_object().expect("an object").clone();
        spec.pointer_mut(place).and_then(Value::as_object_mut).expect("an object").extend(fields);
    }
    serde_json::from_value(spec).expect("a spec")
}

pub fn tenant_of(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant")
}

pub fn only(name: &str) -> Scope {
    Scope::Only(tenant_of(name))
}

pub fn leases(claims: &[RunClaim]) -> Vec<Lease> {
    claims.iter().map(|claim| claim.lease).collect()
}

/// An end without anything that is told.
pub fn end_of(started: &StartedRun, state: RunState) -> Finish {
    Finish::of(started.lease, started.run.task_id, state)
}

/// Back to the queue, to be tried at `run_at`.
pub fn again(started: &StartedRun, run_at: DateTime<Utc>, uses_attempt: bool) -> Finish {
    Finish { again: Some(RequeuedRun { run_at, uses_attempt }), ..end_of(started, RunState::Queued) }
}

/// Does something; the one line that the log has of a run, or of several, that ends outside of an execution meanwhile.
pub async fn end_in_log<T>(work: impl Future<Output = T>) -> (T, String) {
    let (done, text) = logged(Level::INFO, work).await;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("ended outside of an execution")).collect();
    let [line] = lines[..] else { panic!("one line in:\n{text}") };
    (done, line.to_owned())
}

/// A database that is there is not waited for.
pub fn never_waits(told: &str) {
    panic!("it waits: {told}");
}

pub async fn open_postgres(url: &str, clock: &Clock) -> Store {
    let settings = Settings { url: SecretUrl::new(url), max_connections: 4 };
    Store::open(&settings, std::path::Path::new("/nowhere"), clock.clone(), never_waits).await.expect("open Postgres")
}
