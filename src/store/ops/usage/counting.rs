//! Counting of usage: entries of transcripts are added to the days of their tenants.
//!
//! An entry is counted once, in the transaction that records the end of the execution that wrote it; whoever goes on
//! with the run counts on behind it. A process that dies loses nothing: the end that the rescuer records counts what it
//! has stored. Rows are written in the order of their keys and last of all, so that transactions never wait for each
//! other in a circle.

use std::borrow::Cow;

use chrono::NaiveDate;
use sqlx::QueryBuilder;
use uuid::Uuid;

use crate::domain::run::Usage;
use crate::domain::run::transcript::{ModelCall, ModelTokens};
use crate::store::StoreError;
use crate::store::db::sqlite_batch::{chunks, is_reusable, list};
use crate::store::db::text::text;
use crate::store::runs::lease::Finish;
use crate::store::sql::sql;
use crate::store::tx::Tx;

/// A call of a model that no entry of a transcript tells of.
pub(in crate::store) struct CallOutsideTranscript<'a> {
    pub tenant: &'a str,
    pub day: NaiveDate,
    pub task_id: Option<Uuid>,
    /// `None`: nobody knows which model was paid.
    pub model_call: Option<&'a ModelCall>,
    pub usage: Usage,
    pub duration_ms: i64,
}

/// Adds a call beside a run to its tenant's day.
pub(in crate::store) async fn count_beside(
    tx: &mut Tx<'_>,
    used: &CallOutsideTranscript<'_>,
) -> Result<(), StoreError> {
    let tokens = used.model_call.map_or(ModelTokens::default(), |call| call.tokens);
    tx.query(BESIDE)
        .bind(text(used.tenant))
        .bind(used.day)
        .bind(used.task_id.unwrap_or_default())
        .bind(used.model_call.map_or(Cow::Borrowed("unknown"), |call| text(&call.model)))
        .bind(used.duration_ms)
        .bind(used.usage.input_tokens)
        .bind(used.usage.output_tokens)
        .bind(tokens.cache_read)
        .bind(tokens.cache_write)
        .bind(tokens.reasoning)
        .bind(used.usage.cost_micros)
        .execute()
        .await?;
    Ok(())
}

/// In the transaction that has written these ends, with the entries that came with them.
pub(in crate::store) async fn count_usage(tx: &mut Tx<'_>, ended: &[&Finish]) -> Result<(), StoreError> {
    let used = || ended.iter().filter(|end| end.usage != Usage::default());
    let mut runs: Vec<Uuid> = used().map(|end| end.lease.run_id).collect();
    if runs.is_empty() {
        return Ok(());
    }
    runs.sort();
    add_entries(tx, &runs).await?;
    // of a run that is over nobody counts on
    let goes_on = |end: &&&Finish| end.again.is_some() || end.park.is_some();
    let mut open: Vec<Uuid> = used().filter(goes_on).map(|end| end.lease.run_id).collect();
    open.sort();
    for run in open {
        tx.query(COUNT_ON).bind(run).execute().await?;
    }
    Ok(())
}

async fn add_entries(tx: &mut Tx<'_>, runs: &[Uuid]) -> Result<(), StoreError> {
    match tx {
        Tx::Postgres(conn) => {
            sqlx::query(COUNT_POSTGRES).bind(runs).execute(&mut **conn).await?;
        }
        Tx::Sqlite(conn) => {
            for runs in chunks(runs) {
                let mut statement = QueryBuilder::new(ENTRIES_SQLITE);
                list(&mut statement, runs.iter().copied());
                statement.push(ADD).push(ADDED);
                statement.build().persistent(is_reusable(runs.len())).execute(&mut **conn).await?;
            }
        }
    }
    Ok(())
}

pub(in crate::store) const COUNT_ON: &str =
    "update runs set usage_seq = coalesce((select max(seq) + 1 from turns where run_id = $1), usage_seq) where id = $1";

const COUNT_POSTGRES: &str = sql!(ENTRIES_POSTGRES, ADD, ADDED);

/// The entries that are not counted yet; their rows are looked up by keys, whatever the planner believes of the tables.
const ENTRIES_POSTGRES: &str = sql!(
    "with entries as materialized (",
    ENTRY_POSTGRES,
    "  from unnest($1::uuid[]) as l (run_id)
       join runs r on r.id = any (array[l.run_id])
       join turns t on t.run_id = any (array[r.id]) and t.seq >= r.usage_seq"
);

/// Steps of the statement on Postgres that finishes runs, behind those in which it has `written` ends and `added` the
/// entries that came with them. Of the entries that were stored before, it sees what was committed when it began: each
/// append to these transcripts must have been answered by then. By the time that it comes here it has all other locks.
pub(in crate::store) const COUNT_ENDS: &str = sql!(
    ", entries as materialized (",
    ENTRY_POSTGRES,
    "  from written r
       join turns t on t.run_id = any (array[r.run_id]) and t.seq >= r.usage_seq
      where r.has_usage
      union all ",
    ENTRY_POSTGRES,
    "  from added t
       join runs r on r.id = any (array[t.run_id]) and t.seq >= r.usage_seq
      where (t.run_id in (select run_id from written where has_usage)) is true
     ), counted as (",
    ADD_UP,
    ADDED,
    ")"
);

/// An entry, `t`, of a run, `r`.
const ENTRY_POSTGRES: &str = sql!(
    ENTRY; "{day}" = "cast(t.created_at at time zone 'UTC' as date)";
    "{nobody}" = "cast('00000000-0000-0000-0000-000000000000' as uuid)"
);

/// The list of runs follows.
const ENTRIES_SQLITE: &str = sql!(
    "with entries as materialized (",
    sql!(ENTRY; "{day}" = "substr(t.created_at, 1, 10)"; "{nobody}" = "zeroblob(16)"),
    "  from runs r cross join turns t on t.run_id = r.id and t.seq >= r.usage_seq
      where r.id in "
);

const ENTRY: &str = "
        select r.tenant_id, {day} as day, coalesce(r.task_id, {nobody}) as task_id,
               t.model, t.turns, t.duration_ms, t.input_tokens, t.output_tokens, t.cache_read_tokens,
               t.cache_write_tokens, t.reasoning_tokens, t.cost_micros, t.tool_record ->> 'name' as tool,
               t.tool_record ->> 'is_known' as is_known, cast(t.tool_record ->> 'success' as text) as success,
               cast(t.tool_record ->> 'duration_ms' as bigint) as tool_ms,
               cast(t.tool_record ->> 'result_chars' as bigint) as result_chars ";

const BESIDE: &str = sql!(
    "insert into usage_days (tenant_id, day, task_id, kind, name, calls, failures, duration_ms, input_tokens, output_tokens,
                             cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_micros, result_chars)
     values ($1, $2, $3, 'model', $4, 1, 0, $5, $6, $7, $8, $9, $10, $11, 0)",
    ADDED
);

/// Rows that are there are added to.
const ADDED: &str = "
    on conflict (day, tenant_id, task_id, kind, name) do update
       set calls = usage_days.calls + excluded.calls, failures = usage_days.failures + excluded.failures,
           duration_ms = usage_days.duration_ms + excluded.duration_ms,
           input_tokens = usage_days.input_tokens + excluded.input_tokens,
           output_tokens = usage_days.output_tokens + excluded.output_tokens,
           cache_read_tokens = usage_days.cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = usage_days.cache_write_tokens + excluded.cache_write_tokens,
           reasoning_tokens = usage_days.reasoning_tokens + excluded.reasoning_tokens,
           cost_micros = usage_days.cost_micros + excluded.cost_micros,
           result_chars = usage_days.result_chars + excluded.result_chars";

const ADD: &str = sql!(") ", ADD_UP);

/// A call of a tool that is not there counts under one name: what models make up would else be rows without a bound.
const ADD_UP: &str = "
    insert into usage_days (tenant_id, day, task_id, kind, name, calls, failures, duration_ms, input_tokens, output_tokens,
                            cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_micros, result_chars)
    select tenant_id, day, task_id, kind, name, sum(calls), sum(failures), sum(duration_ms), sum(input_tokens),
           sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens), sum(reasoning_tokens), sum(cost_micros),
           sum(result_chars)
      from (
        select tenant_id, day, task_id, 'model' as kind, coalesce(model, 'unknown') as name, turns as calls, 0 as failures,
               coalesce(duration_ms, 0) as duration_ms, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
               reasoning_tokens, cost_micros, 0 as result_chars
          from entries where turns > 0 or input_tokens > 0 or output_tokens > 0 or cost_micros > 0
        union all
        select tenant_id, day, task_id, 'tool', case when is_known is null then tool else 'unknown' end, 1,
               case when success in ('true', '1') then 0 else 1 end, coalesce(tool_ms, 0), 0, 0, 0, 0, 0, 0,
               coalesce(result_chars, 0)
          from entries where tool is not null
      ) used
     where true
     group by tenant_id, day, task_id, kind, name
     order by day, tenant_id, task_id, kind, name";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_batch::ROWS;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn entries_of_ended_runs_are_found_by_an_index() {
        let mut statement = QueryBuilder::new(ENTRIES_SQLITE);
        list(&mut statement, [Uuid::nil(); ROWS[0]].into_iter());
        statement.push(ADD).push(ADDED);
        let plan = sqlite_plan(statement.sql().as_str()).await;
        assert!(!plan.iter().any(|step| ["SCAN r", "SCAN t"].contains(&step.as_str())), "{plan:?}");
        assert!(plan.iter().any(|step| step.starts_with("SEARCH t ")), "{plan:?}");
    }
}
