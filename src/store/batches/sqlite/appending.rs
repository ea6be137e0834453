//! Appends to transcripts on SQLite: which leases stand, then the entries of those; and entries that come with an end.

use std::collections::HashSet;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::store::StoreError;
use crate::store::batches::sqlite::starting::push_leases;
use crate::store::db::sqlite_batch::{chunks, is_reusable};
use crate::store::runs::lease::Lease;
use crate::store::runs::new_entry::{EntryColumns, TranscriptAppend};

/// Appends in the transaction that is open; answers the leases that are still held.
pub(in crate::store::batches) async fn append(
    conn: &mut SqliteConnection,
    appends: &[&TranscriptAppend],
) -> Result<HashSet<Lease>, StoreError> {
    execute(conn, QueryBuilder::new(""), appends, "").await
}

/// As [`append`], with the transaction around it, all of it on one way to the connection's thread: no transaction may
/// be open.
pub(in crate::store) async fn append_committed(
    conn: &mut SqliteConnection,
    appends: &[&TranscriptAppend],
) -> Result<HashSet<Lease>, StoreError> {
    let held = execute(conn, QueryBuilder::new("begin immediate;"), appends, "commit").await;
    if held.is_err() {
        // some faults have ended it already
        let _ = sqlx::query("rollback").execute(conn).await;
    }
    held
}

/// One text: which leases are held, and the entries of those.
async fn execute(
    conn: &mut SqliteConnection,
    mut text: QueryBuilder<Sqlite>,
    appends: &[&TranscriptAppend],
    end: &str,
) -> Result<HashSet<Lease>, StoreError> {
    let leases: Vec<Lease> = appends.iter().map(|append| append.lease).collect();
    chunks(&leases).for_each(|leases| held_leases(&mut text, leases));
    let entries = entries_of(appends.iter().copied());
    chunks(&entries).for_each(|entries| insert_held(&mut text, entries));
    text.push(end);
    let comes_again = is_reusable(leases.len()) && (entries.len() <= FEW_ENTRIES || is_reusable(entries.len()));
    let held: Vec<Lease> = text.build_query_as().persistent(comes_again).fetch_all(conn).await?;
    Ok(held.into_iter().collect())
}

pub(in crate::store::batches) async fn append_ended(
    conn: &mut SqliteConnection,
    appends: &[TranscriptAppend],
) -> Result<(), StoreError> {
    for entries in chunks(&entries_of(appends.iter())) {
        let mut text = QueryBuilder::new("");
        insert(&mut text, entries);
        text.push(" where true on conflict (run_id, seq) do nothing");
        text.build().persistent(is_reusable(entries.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

fn entries_of<'a>(appends: impl Iterator<Item = &'a TranscriptAppend>) -> Vec<(Lease, &'a EntryColumns)> {
    appends.flat_map(|append| append.entries.iter().map(|entry| (append.lease, entry))).collect()
}

/// Entries of one turn.
const FEW_ENTRIES: usize = 4;

/// Adds a statement that answers those of these leases under which a run is started.
fn held_leases(text: &mut QueryBuilder<Sqlite>, leases: &[Lease]) {
    push_leases(text, leases);
    text.push(
        "select q.run_id, q.lease_token
           from leases l cross join queue q on q.run_id = l.run_id and q.lease_token = l.lease_token
          where q.state = 'started';",
    );
}

/// Adds a statement that inserts the entries of runs whose lease is held.
pub(super) fn insert_held(text: &mut QueryBuilder<Sqlite>, entries: &[(Lease, &EntryColumns)]) {
    insert(text, entries);
    text.push(
        " cross join queue q on q.run_id = e.run_id and q.lease_token = e.lease_token
           where q.state = 'started' on conflict (run_id, seq) do nothing;",
    );
}

/// Adds a statement that inserts entries, without its end.
fn insert(text: &mut QueryBuilder<Sqlite>, entries: &[(Lease, &EntryColumns)]) {
    text.push(
        "with entries (run_id, lease_token, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens,
                       cost_micros, duration_ms, created_at, provider_message, model, cache_read_tokens,
                       cache_write_tokens, reasoning_tokens, tool_record, delegation) as (",
    );
    text.push_values(entries, |mut row, (lease, entry)| {
        let usage = entry.usage;
        row.push_bind(lease.run_id).push_bind(lease.token);
        row.push_bind(entry.seq).push_bind(entry.turn).push_bind(entry.format);
        row.push_bind(entry.body.clone()).push_bind(usage.turns).push_bind(usage.tool_calls);
        row.push_bind(usage.input_tokens).push_bind(usage.output_tokens).push_bind(usage.cost_micros);
        row.push_bind(entry.duration_ms).push_bind(entry.at).push_bind(entry.provider_message.clone());
        row.push_bind(entry.model.clone()).push_bind(entry.tokens.cache_read).push_bind(entry.tokens.cache_write);
        row.push_bind(entry.tokens.reasoning).push_bind(entry.tool_record.clone());
        row.push_bind(entry.delegation.clone());
    });
    text.push(
        ") insert into turns (run_id, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens, cost_micros,
                              duration_ms, created_at, provider_message, model, cache_read_tokens, cache_write_tokens,
                              reasoning_tokens, tool_record, delegation)
           select e.run_id, e.seq, e.turn, e.format, e.body, e.turns, e.tool_calls, e.input_tokens, e.output_tokens,
                  e.cost_micros, e.duration_ms, e.created_at, e.provider_message, e.model, e.cache_read_tokens,
                  e.cache_write_tokens, e.reasoning_tokens, e.tool_record, e.delegation
             from entries e",
    );
}
