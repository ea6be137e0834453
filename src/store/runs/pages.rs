//! Pages of runs, newest first: in time that does not grow with what is stored.
//!
//! There is no index of runs by state, which each run would pay for at each step. Runs that are not over are looked up
//! where they wait, in the queue or beside it. Of all others a page reads the newest [`SCANNED`] at most; it may end
//! with fewer than were asked for, or none, and its cursor goes on behind them. What runs begin with is in `prefix`.

mod prefix;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::{Run, RunState};
use crate::store::db::listing::{PAGE_BYTES, RowPage, UNBOUNDED, fitting, push_page};
use crate::store::db::text::text;
use crate::store::ops::retention::oldest_id;
use crate::store::runs::pages::prefix::{FewRuns, RunPrefix};
use crate::store::runs::{SELECT_BRIEF, SELECT_RUN};
use crate::store::tx::{SqlRecord, StatementBuilder, Tx};
use crate::store::{Split, Store, StoreError};

/// Runs that a page by state, or by a beginning that many have, reads at most.
pub const SCANNED: i64 = 3_000;
/// Most runs that are looked up where they wait; of more, the page reads the newest runs like any other.
const WAITING: i64 = 2_000;

/// Which runs to list. Newest first, after the run `before`.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this task.
    pub task_id: Option<Uuid>,
    /// Only in this state.
    pub state: Option<RunState>,
    /// Created at or after.
    pub since: Option<DateTime<Utc>>,
    /// Created before.
    pub until: Option<DateTime<Utc>>,
    /// The beginning of the id, of the fire key with its letter, or of the name of the task, in any case. Of an id with
    /// eight digits or more it is that alone.
    pub q: Option<String>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// Beginning of the statement for a page of runs: the rows that match are measured by what lists have of them.
const MEASURED: &str = "with page as materialized (
    select r.id, coalesce(octet_length(cast(r.event_ids as text)), 0) + coalesce(octet_length(cast(r.error as text)), 0)
                 + coalesce(octet_length(r.reason), 0) as bytes
      from ";
/// All runs.
const EVERY: &str = "runs r where true";
const WHOLE: Split = fitting!(SELECT_RUN, "r.id");
const BRIEF: Split = fitting!(SELECT_BRIEF, "r.id");
/// Runs whose ids a select answers, up to [`END_OF_IDS`]. The list of the ids is made before, and looked up before
/// anything else is asked of a row: so Postgres finds it by its id, whatever it believes of the tables.
const BY_IDS: Split =
    Split { postgres: "(select * from runs where id = any (array(", sqlite: "runs r where r.id in (" };
const END_OF_IDS: Split = Split { postgres: ")) offset 0) r where true", sqlite: ")" };

/// A run as a list shows it: without its input and cause, and with the beginning of its output.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub struct RunOverview {
    /// The run, its long values left out.
    #[sqlx(flatten)]
    pub run: Run,
    /// Length of the input, in bytes.
    pub input_bytes: Option<i64>,
    /// Length of the output, in bytes.
    pub output_bytes: Option<i64>,
}

/// Where the runs of a page are looked for.
enum RunSearch {
    /// All that the filter's keys leave.
    Everywhere,
    /// Those that wait or are executed, in these places.
    Waiting(&'static [WaitingPlace]),
    /// Those that begin as the filter says.
    Few(FewRuns),
    /// Those from this id on; `None` where all that are left are few enough.
    From(Option<Uuid>),
}

/// A part of the tables that have a row for each run that is not over.
struct WaitingPlace {
    table: &'static str,
    condition: &'static str,
}

const READY: WaitingPlace = WaitingPlace { table: "queue", condition: "state = 'ready'" };
const CLAIMED: WaitingPlace = WaitingPlace { table: "queue", condition: "state <> 'ready'" };
const BLOCKED: WaitingPlace = WaitingPlace { table: "parked", condition: "reason = 'overlap'" };
const PARKED: WaitingPlace = WaitingPlace { table: "parked", condition: "reason <> 'overlap'" };

/// The places of runs in a state; none for runs that are over.
fn places_of(state: RunState) -> &'static [WaitingPlace] {
    match state {
        RunState::Queued => &[READY, CLAIMED, BLOCKED],
        RunState::Running => &[CLAIMED],
        RunState::WaitingForInput | RunState::PendingApproval | RunState::WaitingForCompletion => &[PARKED],
        RunState::Succeeded | RunState::Failed | RunState::Cancelled | RunState::Expired | RunState::Skipped => &[],
    }
}

impl Store {
    /// Runs that match, newest first.
    pub async fn list_runs(&self, scope: &Scope, filter: &RunFilter) -> Result<Vec<Run>, StoreError> {
        Ok(self.page_of_runs(scope, filter, WHOLE, UNBOUNDED).await?.rows)
    }

    /// A page of runs that match, newest first, as lists show them.
    pub async fn run_summaries(&self, scope: &Scope, filter: &RunFilter) -> Result<RowPage<RunOverview>, StoreError> {
        self.page_of_runs(scope, filter, BRIEF, PAGE_BYTES).await
    }

    async fn page_of_runs<T: SqlRecord>(
        &self,
        scope: &Scope,
        filter: &RunFilter,
        select: Split,
        bound: i64,
    ) -> Result<RowPage<T>, StoreError> {
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        let prefix = filter.q.as_deref().map(RunPrefix::of);
        let search = search(&mut read.tx(), scope, filter, prefix.as_ref()).await?;
        let mut query = read.build(MEASURED);
        let mut order = "";
        match &search {
            RunSearch::Waiting(places) => push_waiting(&mut query, places, scope, filter),
            RunSearch::Few(few) => few.push(&mut query, scope, filter),
            RunSearch::From(Some(oldest)) => {
                order = push_keys(query.push(EVERY), scope, filter);
                query.push(" and r.id >= ").push_bind(*oldest);
            }
            RunSearch::Everywhere | RunSearch::From(None) => order = push_keys(query.push(EVERY), scope, filter),
        }
        if let Some(prefix) = prefix.filter(|_| !matches!(search, RunSearch::Few(_))) {
            prefix.push_condition(&mut query);
        }
        if let Some(state) = filter.state {
            query.push(" and r.state = ").push_bind(state.as_str());
        }
        push_times(&mut query, scope, filter);
        push_page(&mut query, (order, "r.id"), filter.limit, (select, bound));
        let rows = query.finish().rows().await?;
        let mut found = RowPage::from_rows(&self.unreadable, "runs", &rows, filter.limit, Ok);
        let oldest = search.oldest();
        if oldest.is_some() && (rows.len() as i64) < filter.limit && !found.is_cut {
            found.behind = oldest;
        }
        read.end().await?;
        Ok(found)
    }
}

impl RunSearch {
    /// The id down to which the page has read all that there is; `None`: to the end.
    fn oldest(&self) -> Option<Uuid> {
        match self {
            RunSearch::From(oldest) => *oldest,
            RunSearch::Few(few) => few.oldest,
            RunSearch::Everywhere | RunSearch::Waiting(_) => None,
        }
    }
}

/// Where the runs of this filter are looked for.
async fn search(
    tx: &mut Tx<'_>,
    scope: &Scope,
    filter: &RunFilter,
    prefix: Option<&RunPrefix>,
) -> Result<RunSearch, StoreError> {
    let places = filter.state.map(places_of).unwrap_or_default();
    if !places.is_empty() && count_waiting(tx, places, scope, filter).await? <= WAITING {
        return Ok(RunSearch::Waiting(places));
    }
    if filter.state.is_none() && prefix.is_none() {
        return Ok(RunSearch::Everywhere);
    }
    if let Some(prefix) = prefix
        && let Some(few) = prefix.few(tx, scope, filter).await?
    {
        return Ok(RunSearch::Few(few));
    }
    let mut query = tx.build("select r.id from runs r where true");
    let order = push_keys(&mut query, scope, filter);
    push_times(&mut query, scope, filter);
    query.push(" order by ").push(order).push("r.id desc limit 1 offset ").push_bind(SCANNED - 1);
    Ok(RunSearch::From(query.finish().optional_scalar().await?))
}

/// The tenants whose runs alone are answered: of the caller, and as asked for.
fn tenants<'f>(scope: &'f Scope, filter: &'f RunFilter) -> impl Iterator<Item = &'f str> {
    [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten()
}

/// Adds the keys that an index begins with; answers what the order begins with.
fn push_keys(query: &mut StatementBuilder<'_>, scope: &Scope, filter: &RunFilter) -> &'static str {
    let mut order = "";
    for tenant in tenants(scope, filter) {
        query.push_key("r.tenant_id", text(tenant).into_owned());
        order = "r.tenant_id desc, ";
    }
    if let Some(task_id) = filter.task_id {
        query.push_key("r.task_id", task_id);
        order = "r.task_id desc, ";
    }
    order
}

/// Adds the bounds of ids and times.
fn push_times(query: &mut StatementBuilder<'_>, scope: &Scope, filter: &RunFilter) {
    if let Some(since) = filter.since {
        // ids carry their time: the index ends the search, the row has the part below a millisecond
        query.push(" and r.id >= ").push_bind(oldest_id(since.timestamp_millis()));
        query.push(" and r.created_at >= ").push_bind(since);
    }
    if let Some(until) = filter.until {
        push_before(query, scope, filter, oldest_id(until.timestamp_millis() + 1));
        query.push(" and r.created_at < ").push_bind(until);
    }
    if let Some(before) = filter.before {
        push_before(query, scope, filter, before);
    }
}

/// Adds that ids come before one, by the column that the order begins with (see [`push_keys`]).
fn push_before(query: &mut StatementBuilder<'_>, scope: &Scope, filter: &RunFilter, before: Uuid) {
    match (filter.task_id, tenants(scope, filter).last()) {
        (Some(task_id), _) => query.push_before(Some(("r.task_id", task_id)), "r.id", before),
        (None, tenant) => {
            let key = tenant.map(|tenant| ("r.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "r.id", before)
        }
    };
}

/// How many runs wait in these places, counted up to one more than [`WAITING`] in each.
async fn count_waiting(
    tx: &mut Tx<'_>,
    places: &[WaitingPlace],
    scope: &Scope,
    filter: &RunFilter,
) -> Result<i64, StoreError> {
    let mut query = tx.build("select count(*) from (");
    push_waiting_ids(&mut query, places, scope, filter);
    query.push(") waiting");
    Ok(query.finish().scalar().await?)
}

/// Adds the runs that wait in these places.
fn push_waiting(query: &mut StatementBuilder<'_>, places: &[WaitingPlace], scope: &Scope, filter: &RunFilter) {
    query.push_split(BY_IDS);
    push_waiting_ids(query, places, scope, filter);
    query.push_split(END_OF_IDS);
}

fn push_waiting_ids(query: &mut StatementBuilder<'_>, places: &[WaitingPlace], scope: &Scope, filter: &RunFilter) {
    for (index, place) in places.iter().enumerate() {
        query.push(if index == 0 { "" } else { " union all " });
        query.push("select run_id from (select run_id from ").push(place.table).push(" where ").push(place.condition);
        for tenant in tenants(scope, filter) {
            query.push_key("tenant_id", text(tenant).into_owned());
        }
        if let Some(task_id) = filter.task_id {
            query.push_key("task_id", task_id);
        }
        query.push(" limit ").push_bind(WAITING + 1).push(") w");
    }
}
