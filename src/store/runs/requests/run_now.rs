//! Run now: runs that somebody asks for are recorded together, and start with their record where this instance has a
//! slot for them. Each other is ready for any instance.
//!
//! A run whose request has returned is recorded and in the queue, with the answer of its idempotency key. Asking again
//! for the same run makes no second one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::{BoxFuture, join_all};
use tokio::time::timeout;
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::id::Scope;
use crate::base::json::length::bytes_of;
use crate::domain::conversation::RequestEcho;
use crate::store::batches::{RecordedRequest, RequestedRun, record_committed, record_request, record_requests};
use crate::store::conversations::request_echo::note_echo;
use crate::store::db::flow::QueueFlow;
use crate::store::db::write_batcher::{BatchLimit, WriteBatcher};
use crate::store::db::writer::{SqliteWriter, StatementTurn};
use crate::store::db::{Db, connection, fault, with_timeout};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::runs::lease::StartedRows;
use crate::store::runs::requests::RunRequest;
use crate::store::runs::starting::local_starter::LocalStart;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic};

/// Requests that are recorded in one statement on Postgres.
pub(in crate::store) const RECORDED_TOGETHER: BatchLimit = BatchLimit { items: 100, bytes: 1 << 20 };
/// Requests that are recorded in one transaction on SQLite: everybody waits for its one writer.
pub(in crate::store) const RECORDED_IN_TURN: BatchLimit = BatchLimit { items: 25, ..RECORDED_TOGETHER };

/// How long a request waits for a lock of its task before it is tried again with others, and behind the last by itself.
const LOCKED_WAITS: [Duration; 3] = [Duration::from_millis(2), Duration::from_millis(5), Duration::from_millis(10)];

/// How long a batch waits for what it can do without: to know the slots there are, and to see its runs executed.
const SHORT_WAIT: Duration = Duration::from_millis(100);

/// Requests for runs that wait to be recorded, each with the tenant of its task; each is answered whether there is such
/// a task.
pub(in crate::store) type RequestBatcher = WriteBatcher<(String, RequestedRun), Result<RequestAnswer, StoreError>>;

/// The outcome of a request that was recorded together with others.
pub(in crate::store) enum RequestAnswer {
    /// There is no such task in the scope.
    NoTask,
    /// Its task is locked by somebody else, and nothing was written.
    Locked(RequestedRun),
    /// The run is recorded.
    Recorded,
}

/// Records runs on SQLite: a single one with one way to the writer's thread where nobody else writes, and else in one
/// transaction, which may share its commit with others.
async fn record_in_turn(
    writer: &SqliteWriter,
    flow: QueueFlow,
    requests: &[RequestedRun],
) -> Result<Vec<RecordedRequest>, StoreError> {
    let mut writing = match requests {
        [request] => match writer.begin_shared_or_acquire(flow).await? {
            StatementTurn::Shared(writing) => writing,
            StatementTurn::Alone(mut statement) => {
                fault()?;
                let recorded = record_committed(&mut statement, request).await;
                statement.end(recorded.is_ok());
                fault()?;
                return Ok(vec![recorded?]);
            }
        },
        _ => writer.begin_shared(flow).await?,
    };
    fault()?;
    let mut recorded = Vec::with_capacity(requests.len());
    for request in requests {
        recorded.push(record_request(&mut Tx::Sqlite(&mut writing), request, None).await?);
    }
    writing.commit().await?;
    fault()?;
    Ok(recorded)
}

impl Store {
    /// Records a run of the task, whatever its status and limits. It starts with its record where this instance has a
    /// slot for it and no other run of its task stands in the way, and else is ready now; overlap is resolved when it
    /// starts. `run_id` and `now` come from the caller, who answers with them.
    pub async fn run_now(
        &self,
        scope: &Scope,
        task_id: Uuid,
        run_id: Uuid,
        request: impl Into<RunRequest>,
        now: DateTime<Utc>,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let (store, scope, once) = (self.clone(), scope.clone(), idempotency.cloned());
        let request = request.into();
        // on SQLite the transaction is part of the text: a caller who goes away must not leave it open
        let asked = async move { store.record_now(&scope, task_id, run_id, request, now, once.as_ref()).await };
        self.run_detached(asked).await
    }

    async fn record_now(
        &self,
        scope: &Scope,
        task_id: Uuid,
        run_id: Uuid,
        request: RunRequest,
        now: DateTime<Utc>,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let tenant = match (self.tenant_of_task(scope, task_id).await, idempotency) {
            // the answer to this key may be remembered, though the task is gone by now
            (Err(StoreError::NotFound), Some(once)) => once.tenant.clone(),
            (tenant, _) => tenant?,
        };
        self.admit_once(&tenant, request.input.as_ref().map_or(0, bytes_of), idempotency, now).await?;
        if idempotency.is_some() || request.echo != RequestEcho::default() {
            return self.record_ready(scope, task_id, run_id, request, now, idempotency).await;
        }
        let RunRequest { input, requested_by, .. } = request;
        let confined = scope.tenant().map(str::to_owned);
        let request = RequestedRun { scope: confined, task_id, run_id, input, requested_by, now, start: None };
        self.record_batched(scope, tenant, request).await
    }

    /// Records a run of the task that is ready now, for a tenant that may store it; to be awaited to its end.
    pub(in crate::store) async fn record_ready(
        &self,
        scope: &Scope,
        task_id: Uuid,
        run_id: Uuid,
        RunRequest { input, requested_by, echo }: RunRequest,
        now: DateTime<Utc>,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let tenant = scope.tenant().map(str::to_owned);
        let request = RequestedRun { scope: tenant, task_id, run_id, input, requested_by, now, start: None };
        // nothing besides the run itself is recorded
        let is_plain = idempotency.is_none() && echo == RequestEcho::default();
        let with_commit = match &self.db {
            Db::Postgres { .. } if is_plain => self.notification_for_commit(Topic::Queue),
            _ => None,
        };
        let recorded = match &self.db {
            // one statement, which confines itself
            Db::Postgres { quick, waits, .. } if is_plain => {
                let notification = with_commit.as_ref().map(|with_commit| with_commit.payload.as_str());
                let mut quick = connection("quick", quick, waits).await?;
                // a wire that has gone silent must not keep the connection
                let mut tx = Tx::Postgres(&mut quick);
                let recorded = with_timeout(record_request(&mut tx, &request, notification)).await?;
                fault()?;
                recorded
            }
            Db::Sqlite { writer, waits, .. } if is_plain => {
                waits.record_acquire("writer", writer);
                let flow = QueueFlow::of(scope.tenant());
                let recorded = record_in_turn(writer, flow, std::slice::from_ref(&request)).await?;
                recorded.into_iter().next().unwrap_or(RecordedRequest::NoTask)
            }
            _ => {
                let mut write = self.db.write(scope).await?;
                let tx = &mut write.tx();
                if let Some(answer) = once(tx, idempotency, now).await? {
                    return Ok(answer);
                }
                let recorded = record_request(tx, &request, None).await?;
                if let RecordedRequest::NoTask = recorded {
                    return Err(StoreError::NotFound);
                }
                note_echo(tx, run_id, echo).await?;
                write.commit().await?;
                recorded
            }
        };
        if let RecordedRequest::NoTask = recorded {
            return Err(StoreError::NotFound);
        }
        match with_commit {
            Some(with_commit) => with_commit.committed(),
            None => self.notify(Topic::Queue),
        }
        Ok(StoredAnswer::Done(()))
    }

    /// Records a run together with those that others ask for meanwhile; by itself where its task is locked.
    async fn record_batched(
        &self,
        scope: &Scope,
        tenant: String,
        mut request: RequestedRun,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let bytes = request.input.as_ref().map_or(0, bytes_of);
        for wait in LOCKED_WAITS {
            let store = self.clone();
            let work = |requests| store.into_recorded(requests);
            let answer = self.requests.submit_for(tenant.clone(), bytes, (tenant.clone(), request), work).await;
            match answer.unwrap_or_else(|| Err(StoreError::Unavailable("the request was broken off".into())))? {
                RequestAnswer::NoTask => return Err(StoreError::NotFound),
                RequestAnswer::Recorded => return Ok(StoredAnswer::Done(())),
                RequestAnswer::Locked(locked) => request = locked,
            }
            pause(wait).await;
        }
        let RequestedRun { task_id, run_id, input, requested_by, now, .. } = request;
        let request = RunRequest { input, requested_by, echo: RequestEcho::default() };
        self.record_ready(scope, task_id, run_id, request, now, None).await
    }

    /// As [`Store::record_batch`]. Boxed: a caller's future has room for one request, and knows nothing of the work.
    fn into_recorded(
        self,
        requests: Vec<(String, RequestedRun)>,
    ) -> BoxFuture<'static, Vec<Result<RequestAnswer, StoreError>>> {
        Box::pin(async move { self.record_batch(requests).await })
    }

    /// Records requests together, on Postgres those of each scope by themselves, all scopes side by side; and executes
    /// the runs that have started.
    async fn record_batch(&self, mut requests: Vec<(String, RequestedRun)>) -> Vec<Result<RequestAnswer, StoreError>> {
        let start = self.let_start(&mut requests).await.map(Arc::new);
        let are_confined = matches!(self.db, Db::Postgres { .. });
        let groups = by_scope(requests, are_confined).into_iter().map(|(places, mut group)| {
            let start = start.clone();
            async move {
                let recorded = self.record_group(&mut group).await;
                let (answers, started) = answers_of(group, recorded);
                if let Some(start) = start.filter(|_| !started.rows.is_empty()) {
                    self.execute_started(start, started).await;
                }
                places.into_iter().zip(answers).collect::<Vec<_>>()
            }
        });
        let mut answers: Vec<_> = join_all(groups).await.into_iter().flatten().collect();
        answers.sort_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Executes runs that have started, in a task of its own: it may have to read their tasks first. Those who asked for
    /// them wait for it a moment, and find them under way then.
    async fn execute_started(&self, start: Arc<LocalStart>, started: StartedRows) {
        let store = self.clone();
        let executed = self.runtime.spawn(async move { start.execute(&store, started).await });
        let _ = timeout(SHORT_WAIT, executed).await;
    }

    /// Lets those requests start for which this instance has slots: one of each tenant first. Where that can't be known
    /// in a moment, all of them are ready.
    async fn let_start(&self, requests: &mut [(String, RequestedRun)]) -> Option<LocalStart> {
        let tenants: Vec<&str> = requests.iter().map(|(tenant, _)| tenant.as_str()).collect();
        let mut start = timeout(SHORT_WAIT, self.reserve_starts(&tenants)).await.ok()?.ok().flatten()?;
        let mut seen = HashSet::new();
        let (firsts, others): (Vec<_>, Vec<_>) =
            requests.iter_mut().partition(|(tenant, _)| seen.insert(tenant.clone()));
        for (tenant, request) in firsts.into_iter().chain(others) {
            request.start = start.take(tenant).then_some(start.terms);
        }
        Some(start)
    }

    /// Records requests of one scope together, as long as the database has nothing against any of them; else each by
    /// itself and ready, so that one that is refused takes no other along.
    async fn record_group(&self, group: &mut [RequestedRun]) -> Vec<Result<RecordedRequest, StoreError>> {
        let mut error = match with_timeout(self.record_together(group)).await {
            Ok(recorded) => return recorded.into_iter().map(Ok).collect(),
            Err(error) => error,
        };
        group.iter_mut().for_each(|request| request.start = None);
        let mut recorded = Vec::with_capacity(group.len());
        for request in group.iter() {
            // where the database is away, or slow, it may have taken effect, and the others are not tried
            if let StoreError::Unavailable(why) = &error {
                recorded.push(Err(StoreError::Unavailable(why.clone())));
                continue;
            }
            let alone = with_timeout(self.record_together(std::slice::from_ref(request))).await;
            if let Err(StoreError::Unavailable(why) | StoreError::TimedOut(why)) = &alone {
                error = StoreError::Unavailable(why.clone());
            }
            recorded.push(alone.and_then(|only| only.into_iter().next().ok_or(StoreError::NotFound)));
        }
        recorded
    }

    /// Records requests in one transaction, on Postgres those of one scope, and tells those who wait for ready runs.
    async fn record_together(&self, requests: &[RequestedRun]) -> Result<Vec<RecordedRequest>, StoreError> {
        let (recorded, with_commit) = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let with_commit = self.notification_for_commit(Topic::Queue);
                let notification = with_commit.as_ref().map(|with_commit| with_commit.payload.as_str());
                let mut quick = connection("quick", quick, waits).await?;
                let recorded = record_requests(&mut quick, requests, notification).await?;
                fault()?;
                (recorded, with_commit)
            }
            Db::Sqlite { writer, waits, .. } => {
                waits.record_acquire("writer", writer);
                (record_in_turn(writer, QueueFlow::of(None), requests).await?, None)
            }
        };
        match with_commit {
            Some(with_commit) => with_commit.committed(),
            None if recorded.iter().any(|recorded| matches!(recorded, RecordedRequest::Recorded)) => {
                self.notify(Topic::Queue)
            }
            None => {}
        }
        Ok(recorded)
    }
}

/// The answers to requests of one scope, in their order, and the runs that have started.
fn answers_of(
    group: Vec<RequestedRun>,
    recorded: Vec<Result<RecordedRequest, StoreError>>,
) -> (Vec<Result<RequestAnswer, StoreError>>, StartedRows) {
    let (mut rows, mut recipients) = (Vec::new(), HashMap::new());
    let answers = group.into_iter().zip(recorded).map(|(request, recorded)| {
        recorded.map(|recorded| match recorded {
            RecordedRequest::NoTask => RequestAnswer::NoTask,
            RecordedRequest::Locked => RequestAnswer::Locked(request),
            RecordedRequest::Recorded => RequestAnswer::Recorded,
            RecordedRequest::Started(run) => {
                recipients.extend(run.recipient.map(|recipient| (run.row.tenant_id.clone(), recipient)));
                rows.push(run.row);
                RequestAnswer::Recorded
            }
        })
    });
    let answers = answers.collect();
    (answers, StartedRows { rows, recipients: Some(recipients.into_iter().collect()), ..StartedRows::default() })
}

/// The requests with their places: those of each scope, where what is written together is confined to one.
fn by_scope(requests: Vec<(String, RequestedRun)>, are_confined: bool) -> Vec<(Vec<usize>, Vec<RequestedRun>)> {
    let mut groups: BTreeMap<Option<String>, (Vec<usize>, Vec<RequestedRun>)> = BTreeMap::new();
    for (place, (_, request)) in requests.into_iter().enumerate() {
        let (places, group) = groups.entry(request.scope.clone().filter(|_| are_confined)).or_default();
        places.push(place);
        group.push(request);
    }
    groups.into_values().collect()
}
