//! Appends to transcripts on Postgres: one statement for all runs of a batch. Entries that come with ends are written by
//! the statement that writes those.

use std::collections::HashSet;

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::types::Json;
use sqlx::{Arguments, Encode, Postgres, Type};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::ops::budgets::ledger_batch::{ANSWER, LEDGERS, LedgerOutcome, LedgerOutcomeRow};
use crate::store::runs::lease::Lease;
use crate::store::runs::new_entry::{EntryColumns, TranscriptAppend, ledger_batch};
use crate::store::sql::sql;

pub(in crate::store::batches) async fn append(
    conn: &mut PgConnection,
    appends: &[&TranscriptAppend],
) -> Result<HashSet<Lease>, StoreError> {
    let arguments = append_arguments(appends)?;
    let held: Vec<Lease> = sqlx::query_as_with(APPEND_ALONE, arguments).fetch_all(conn).await?;
    Ok(held.into_iter().collect())
}

/// As [`append`]; in the same statement, ledgers of budgets are changed by those whose lease is held.
pub(in crate::store::batches) async fn append_budgeted(
    conn: &mut PgConnection,
    appends: &[&TranscriptAppend],
) -> Result<(HashSet<Lease>, LedgerOutcome), StoreError> {
    let mut arguments = append_arguments(appends)?;
    arguments.add(Json(ledger_batch(appends.iter().copied()))).map_err(sqlx::Error::Encode)?;
    let rows: Vec<BudgetedRow> = sqlx::query_as_with(APPEND_BUDGETED, arguments).fetch_all(conn).await?;
    let lease = |row: &BudgetedRow| Some(Lease { run_id: row.run_id?, token: row.lease_token? });
    let held = rows.iter().filter_map(lease).collect();
    let updated = rows.into_iter().filter(|row| row.run_id.is_none()).map(|row| row.updated).collect();
    Ok((held, LedgerOutcome::of(updated)))
}

/// A lease that is held; or, without one, what was changed.
#[derive(sqlx_macros::FromRow)]
struct BudgetedRow {
    run_id: Option<Uuid>,
    lease_token: Option<i64>,
    #[sqlx(flatten)]
    updated: LedgerOutcomeRow,
}

const APPEND: &str = include_str!("../../sql/append.postgres.sql");
const APPEND_ALONE: &str = sql!(APPEND, "select run_id, lease_token from held");
const APPEND_BUDGETED: &str = sql!(
    sql!(
        APPEND,
        ", ",
        LEDGERS,
        "select cast(null as uuid) as run_id, cast(null as bigint) as lease_token, updated.* from (",
        ANSWER,
        ") updated
         union all
         select h.run_id, h.lease_token, false, null, null, null, null, null, null, null, null, null, null from held h"
    );
    "{batch}" = "$23";
    "{held}" = "(r.run_id, r.lease_token) in (select run_id, lease_token from held)"
);

/// Where a bug is planted: looks at no lease.
pub(in crate::store::batches) async fn append_ended(
    conn: &mut PgConnection,
    appends: &[TranscriptAppend],
) -> Result<(), StoreError> {
    let mut arguments = PgArguments::default();
    add_entries(&mut arguments, &entries_of(appends.iter()))?;
    sqlx::query_with(include_str!("../../sql/append_ended.postgres.sql"), arguments).execute(conn).await?;
    Ok(())
}

/// The values of `$1` to `$22`.
fn append_arguments(appends: &[&TranscriptAppend]) -> Result<PgArguments, sqlx::Error> {
    let entries = entries_of(appends.iter().copied());
    let mut arguments = PgArguments::default();
    add_entries(&mut arguments, &entries)?;
    add(&mut arguments, entries.iter().map(|(lease, _)| lease.token))?;
    add(&mut arguments, appends.iter().map(|append| append.lease.run_id))?;
    add(&mut arguments, appends.iter().map(|append| append.lease.token))?;
    Ok(arguments)
}

/// The entries, each with the lease of its run.
pub(super) fn entries_of<'a>(appends: impl Iterator<Item = &'a TranscriptAppend>) -> Vec<(Lease, &'a EntryColumns)> {
    appends.flat_map(|append| append.entries.iter().map(|entry| (append.lease, entry))).collect()
}

/// The values of 19 places, which follow each other alike in all statements.
pub(super) fn add_entries(arguments: &mut PgArguments, entries: &[(Lease, &EntryColumns)]) -> Result<(), sqlx::Error> {
    let columns = || entries.iter().map(|(_, entry)| *entry);
    add(arguments, columns().map(|entry| entry.format))?;
    add(arguments, entries.iter().map(|(lease, _)| lease.run_id))?;
    add(arguments, columns().map(|entry| entry.seq))?;
    add(arguments, columns().map(|entry| entry.turn))?;
    add(arguments, columns().map(|entry| entry.body.clone()))?;
    add(arguments, columns().map(|entry| entry.usage.turns))?;
    add(arguments, columns().map(|entry| entry.usage.tool_calls))?;
    add(arguments, columns().map(|entry| entry.usage.input_tokens))?;
    add(arguments, columns().map(|entry| entry.usage.output_tokens))?;
    add(arguments, columns().map(|entry| entry.usage.cost_micros))?;
    add(arguments, columns().map(|entry| entry.duration_ms))?;
    add(arguments, columns().map(|entry| entry.at))?;
    add(arguments, columns().map(|entry| entry.provider_message.as_deref()))?;
    add(arguments, columns().map(|entry| entry.model.as_deref()))?;
    add(arguments, columns().map(|entry| entry.tokens.cache_read))?;
    add(arguments, columns().map(|entry| entry.tokens.cache_write))?;
    add(arguments, columns().map(|entry| entry.tokens.reasoning))?;
    add(arguments, columns().map(|entry| entry.tool_record.clone()))?;
    add(arguments, columns().map(|entry| entry.delegation.clone()))
}

/// Adds a column as an array.
pub(super) fn add<'q, T>(arguments: &mut PgArguments, column: impl Iterator<Item = T>) -> Result<(), sqlx::Error>
where
    Vec<T>: Encode<'q, Postgres> + Type<Postgres> + 'q,
{
    arguments.add(column.collect::<Vec<T>>()).map_err(sqlx::Error::Encode)
}
