//! Ends on Postgres: one statement for all of a batch, with the entries that waited for them. Ends from which nothing
//! else follows are that statement alone, which counts their usage and settles their budgets as well; others have it in
//! a transaction.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::Arguments;
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::types::Json;
use uuid::Uuid;

use crate::domain::budget::WARNED_AT_PERCENT;
use crate::domain::run::Usage;
use crate::store::StoreError;
use crate::store::batches::postgres::appending::{add, add_entries, entries_of};
use crate::store::db::text::{optional, optional_document};
use crate::store::ops::budgets::ledger_batch::{self, LEDGERS_OF_ENDS, LedgerOutcome, LedgerOutcomeRow};
use crate::store::ops::budgets::ledgers::UpdatedLedger;
use crate::store::ops::usage::counting::COUNT_ENDS;
use crate::store::runs::lease::{Finish, FinishedRow, Lease, Park};
use crate::store::runs::new_entry::{TranscriptAppend, deferred_appends, ended_ledgers};
use crate::store::sql::sql;

const FINISH: &str = include_str!("../../sql/finish.postgres.sql");
const ENTRIES: &str = include_str!("../../sql/finish_entries.postgres.sql");

const ANSWER: &str = "select run_id, lease_token, cancel_reason, has_questions, is_waited_for from written";
const IN_TRANSACTION: &str = sql!(sql!(FINISH, ANSWER); "{is_open}" = "true");
const IN_TRANSACTION_WITH_ENTRIES: &str = sql!(sql!(FINISH, ", ", ENTRIES, ANSWER); "{is_open}" = "true");

/// Whether nothing is left to be done about any of these ends.
const NOTHING_FOLLOWS: &str =
    "not exists (select from held where has_questions or is_waited_for) and not exists (select from overtaken)";
/// A row without a run: nothing was written.
const ANSWER_ALONE: &str = "
    select run_id, lease_token from written
    union all
    select null, null from gate where not is_open";
const ALONE: &str = sql!(sql!(FINISH, ANSWER_ALONE); "{is_open}" = NOTHING_FOLLOWS);
const ALONE_WITH_USAGE: &str =
    sql!(sql!(FINISH, ", ", ENTRIES, COUNT_ENDS, ANSWER_ALONE); "{is_open}" = NOTHING_FOLLOWS);

/// Ledgers are changed behind all that is written with the ends, and before usage is counted, as everywhere: the answer
/// reads the ends, then the ledgers, and what it does not read is written behind it.
const ALONE_WITH_LEDGERS: &str = sql!(
    sql!(FINISH, ", ", ENTRIES, ", ", LEDGERS_OF_ENDS, COUNT_ENDS, ENDS_ANSWERED, ledger_batch::ANSWER, ") ledgers");
    "{is_open}" = sql!(NOTHING_FOLLOWS, " and ", NOBODY_IS_WARNED);
    "{held}" = "(select is_open from gate) and ((r.run_id, r.lease_token) in (select run_id, lease_token from held)) is true";
    "{ended}" = "(select is_open from gate) and (e.run_id in (select run_id from held)) is true";
    "{batch}" = "$36"
);
/// Whether no owner is to be told that most of a ledger is used ([`WARNED_AT_PERCENT`] and more), whatever the ends leave
/// of what is reserved: that is told with them.
const NOBODY_IS_WARNED: &str = "
    not exists (
        select from budget_reservations r
         cross join lateral (values (cast('00000000-0000-0000-0000-000000000000' as uuid)), (r.task_id)) l (task_id)
         cross join lateral (
               select d.* from budget_days d
                where d.day = r.day and d.tenant_id = r.tenant_id and d.task_id = l.task_id offset 0) d
         where r.run_id = any (array(select e.run_id from jsonb_to_recordset({batch} -> 'ended') as e (run_id uuid)))
           and d.warned_at is null
           and (d.tokens + d.reserved_tokens >= d.tokens_limit / 5 * 4
                or d.cost_micros + d.reserved_cost_micros >= d.cost_micros_limit / 5 * 4))";
const _: () = assert!(WARNED_AT_PERCENT == 80, "four fifths, as the statement has it");
/// Rows of ends, and those of ledgers without a run. A row that is not open: nothing was written.
const ENDS_ANSWERED: &str = "
    select run_id, lease_token, true as is_open, false as is_reserved, cast(null as text) as tenant_id,
           cast(null as uuid) as task_id, cast(null as date) as day, cast(null as bigint) as spent_tokens,
           cast(null as bigint) as spent_cost, cast(null as bigint) as tokens, cast(null as bigint) as cost_micros,
           cast(null as bigint) as tokens_limit, cast(null as bigint) as cost_micros_limit, cast(null as boolean) as is_warned
      from written
    union all
    select null, null, false, false, null, null, null, null, null, null, null, null, null, null from gate where not is_open
    union all
    select null, null, true, ledgers.* from (";

/// A row of [`ENDS_ANSWERED`].
#[derive(sqlx_macros::FromRow)]
struct AloneRow {
    run_id: Option<Uuid>,
    lease_token: Option<i64>,
    is_open: bool,
    #[sqlx(flatten)]
    ledger: LedgerOutcomeRow,
}

/// Leases that were held, and ledgers that were changed.
type EndedAlone = (HashSet<Lease>, Vec<UpdatedLedger>);

/// In a transaction: writes ends, with the entries that waited for them.
pub(in crate::store::batches) async fn finish(
    conn: &mut PgConnection,
    ends: &[Finish],
    now: DateTime<Utc>,
) -> Result<Vec<FinishedRow>, StoreError> {
    let appends = deferred_appends(ends.iter())?;
    let mut arguments = end_arguments(ends, now)?;
    let text = match appends.is_empty() {
        true => IN_TRANSACTION,
        false => {
            add_deferred(&mut arguments, &appends)?;
            IN_TRANSACTION_WITH_ENTRIES
        }
    };
    Ok(sqlx::query_as_with(fenced(text), arguments).fetch_all(conn).await?)
}

/// By itself, and committed with its answer: writes ends from which nothing follows that is known of before, with the
/// entries that waited for them, their usage and their budgets, and answers the leases that were still held. `None`:
/// something else is to be done about one of them, and nothing was written.
pub(in crate::store) async fn finish_alone(
    conn: &mut PgConnection,
    ends: &[Finish],
    now: DateTime<Utc>,
) -> Result<Option<EndedAlone>, StoreError> {
    let (appends, ledgers) = (deferred_appends(ends.iter())?, ended_ledgers(ends.iter()));
    let mut arguments = end_arguments(ends, now)?;
    if !ledgers.is_empty() {
        add_deferred(&mut arguments, &appends)?;
        arguments.add(Json(ledgers)).map_err(sqlx::Error::Encode)?;
        let text = fenced(ALONE_WITH_LEDGERS);
        let rows: Vec<AloneRow> = sqlx::query_as_with(text, arguments).fetch_all(conn).await?;
        return Ok(ended_alone(rows));
    }
    let text = match appends.is_empty() && ends.iter().all(|end| end.usage == Usage::default()) {
        true => ALONE,
        false => {
            add_deferred(&mut arguments, &appends)?;
            ALONE_WITH_USAGE
        }
    };
    let rows: Vec<(Option<Uuid>, Option<i64>)> = sqlx::query_as_with(fenced(text), arguments).fetch_all(conn).await?;
    let held: Option<HashSet<Lease>> =
        rows.into_iter().map(|(run_id, token)| Some(Lease { run_id: run_id?, token: token? })).collect();
    Ok(held.map(|held| (held, Vec::new())))
}

/// `None`: nothing was written.
fn ended_alone(rows: Vec<AloneRow>) -> Option<EndedAlone> {
    if rows.iter().any(|row| !row.is_open) {
        return None;
    }
    let lease = |row: &AloneRow| Some(Lease { run_id: row.run_id?, token: row.lease_token? });
    let held = rows.iter().filter_map(lease).collect();
    let ledgers = rows.into_iter().filter(|row| row.run_id.is_none()).map(|row| row.ledger).collect();
    Some((held, LedgerOutcome::of(ledgers).updated))
}

/// Those of these tasks that have runs waiting for their slot, in the order of their ids.
pub(in crate::store::batches) async fn waited_for(
    conn: &mut PgConnection,
    tasks: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let waited_for = "select t.task_id
           from unnest($1::uuid[]) as t (task_id)
          where exists (select from parked p where p.task_id = any (array[t.task_id]) and p.reason = 'overlap')
          order by t.task_id";
    Ok(sqlx::query_scalar(waited_for).bind(tasks).fetch_all(conn).await?)
}

/// Where a bug is planted, the lease of an end is not looked at.
fn fenced(text: &'static str) -> &'static str {
    failpoint_text!("no_fence", text, "and q.lease_token = f.lease_token" => "")
}

/// The values of `$1` to `$15`.
fn end_arguments(ends: &[Finish], now: DateTime<Utc>) -> Result<PgArguments, StoreError> {
    let errors = ends.iter().map(|end| optional_document(end.error.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let mut arguments = PgArguments::default();
    add(&mut arguments, ends.iter().map(|end| end.lease.run_id))?;
    add(&mut arguments, ends.iter().map(|end| end.lease.token))?;
    add(&mut arguments, ends.iter().map(|end| end.state.as_str()))?;
    add(&mut arguments, ends.iter().map(|end| optional(end.reason.as_deref())))?;
    add(&mut arguments, ends.iter().map(|end| optional(end.output.as_deref())))?;
    add(&mut arguments, errors.into_iter())?;
    add(&mut arguments, ends.iter().map(|end| end.usage.turns))?;
    add(&mut arguments, ends.iter().map(|end| end.usage.tool_calls))?;
    add(&mut arguments, ends.iter().map(|end| end.usage.input_tokens))?;
    add(&mut arguments, ends.iter().map(|end| end.usage.output_tokens))?;
    add(&mut arguments, ends.iter().map(|end| end.usage.cost_micros))?;
    add(&mut arguments, ends.iter().map(|end| end.execution_ms))?;
    add(&mut arguments, ends.iter().map(|end| end.keeps_slot()))?;
    arguments.add(now).map_err(sqlx::Error::Encode)?;
    add(&mut arguments, ends.iter().map(optional_fields))?;
    Ok(arguments)
}

/// The values of `$16` to `$35`.
fn add_deferred(arguments: &mut PgArguments, appends: &[TranscriptAppend]) -> Result<(), sqlx::Error> {
    let entries = entries_of(appends.iter());
    add(arguments, entries.iter().map(|(lease, _)| lease.token))?;
    add_entries(arguments, &entries)
}

/// The fields that few ends have, as the statement reads them.
fn optional_fields(end: &Finish) -> Option<Json<Value>> {
    let few = end.again.is_some() || end.park.is_some() || end.crashed || end.infra_retry || end.finish.is_some();
    few.then(|| {
        Json(json!({
            "run_at": end.again.map(|again| again.run_at),
            "attempts_back": end.attempts_back(),
            "crashes": i32::from(end.crashed),
            "infra_retries": i32::from(end.infra_retry),
            "finish": end.finish,
            "park_at": end.park.as_ref().map(Park::wake_at),
            "park_reason": end.park.as_ref().map(Park::reason),
            "park_turns": end.park.as_ref().and_then(Park::turns),
        }))
    })
}
