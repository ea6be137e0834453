//! Appends to transcripts on SQLite: which leases stand, then the entries of those; and entries that come with an end.

use std::collections::HashSet;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::domain::run::transcript::FORMAT;
use crate::store::StoreError;
use crate::store::batches::sqlite::starting::with_leases;
use crate::store::db::sqlite_batch::{chunks, is_reusable};
use crate::store::runs::lease::Lease;
use crate::store::runs::new_entry::{EntryColumns, TranscriptAppend};

pub(in crate::store::batches) async fn append(
    conn: &mut SqliteConnection,
    appends: &[&TranscriptAppend],
) -> Result<HashSet<Lease>, StoreError> {
    let leases: Vec<Lease> = appends.iter().map(|append| append.lease).collect();
    let mut held = HashSet::with_capacity(leases.len());
    for leases in chunks(&leases) {
        let still: Vec<Lease> =
            holding(leases).build_query_as().persistent(is_reusable(leases.len())).fetch_all(&mut *conn).await?;
        held.extend(still);
    }
    insert(conn, appends.iter().copied().filter(|append| held.contains(&append.lease))).await?;
    Ok(held)
}

pub(in crate::store::batches) async fn append_ended(
    conn: &mut SqliteConnection,
    appends: &[TranscriptAppend],
) -> Result<(), StoreError> {
    insert(conn, appends.iter()).await
}

async fn insert(
    conn: &mut SqliteConnection,
    appends: impl Iterator<Item = &TranscriptAppend>,
) -> Result<(), StoreError> {
    let entries: Vec<(Lease, &EntryColumns)> =
        appends.flat_map(|append| append.entries.iter().map(|entry| (append.lease, entry))).collect();
    for entries in chunks(&entries) {
        inserting(entries).build().persistent(is_reusable(entries.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Those of these leases under which a run is started.
fn holding(leases: &[Lease]) -> QueryBuilder<Sqlite> {
    let mut select = with_leases(leases);
    select.push(
        "select q.run_id, q.lease_token
           from leases l join queue q on q.run_id = l.run_id and q.lease_token = l.lease_token
          where q.state = 'started'",
    );
    select
}

fn inserting(entries: &[(Lease, &EntryColumns)]) -> QueryBuilder<Sqlite> {
    let mut insert = QueryBuilder::new(
        "insert into turns (run_id, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens,
                            cost_micros, duration_ms, created_at, provider_message, model, cache_read_tokens,
                            cache_write_tokens, reasoning_tokens) ",
    );
    insert.push_values(entries, |mut row, (lease, entry)| {
        let usage = entry.usage;
        row.push_bind(lease.run_id).push_bind(entry.seq).push_bind(entry.turn).push_bind(FORMAT);
        row.push_bind(entry.body.clone()).push_bind(usage.turns).push_bind(usage.tool_calls);
        row.push_bind(usage.input_tokens).push_bind(usage.output_tokens).push_bind(usage.cost_micros);
        row.push_bind(entry.duration_ms).push_bind(entry.at).push_bind(entry.provider_message.clone());
        row.push_bind(entry.model.clone()).push_bind(entry.tokens.cache_read).push_bind(entry.tokens.cache_write);
        row.push_bind(entry.tokens.reasoning);
    });
    insert.push(" on conflict (run_id, seq) do nothing");
    insert
}
