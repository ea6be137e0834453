//! Appends to transcripts on Postgres: one statement for all runs of a batch, and one for those that come with ends.

use std::collections::HashSet;

use sqlx::PgConnection;

use crate::domain::run::transcript::FORMAT;
use crate::store::StoreError;
use crate::store::runs::lease::Lease;
use crate::store::runs::new_entry::{EntryColumns, TranscriptAppend};

pub(super) async fn append(
    conn: &mut PgConnection,
    appends: &[&TranscriptAppend],
) -> Result<HashSet<Lease>, StoreError> {
    let entries: Vec<(Lease, &EntryColumns)> =
        appends.iter().flat_map(|append| append.entries.iter().map(|entry| (append.lease, entry))).collect();
    let append = include_str!("../../sql/append.postgres.sql");
    let held: Vec<Lease> = sqlx::query_as(append)
        .bind(appends.iter().map(|append| append.lease.run_id).collect::<Vec<_>>())
        .bind(appends.iter().map(|append| append.lease.token).collect::<Vec<_>>())
        .bind(FORMAT)
        .bind(entries.iter().map(|(lease, _)| lease.run_id).collect::<Vec<_>>())
        .bind(entries.iter().map(|(lease, _)| lease.token).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.seq).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.turn).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.body.clone()).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.turns).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.tool_calls).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.input_tokens).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.output_tokens).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.cost_micros).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.duration_ms).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.at).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.echo.as_deref()).collect::<Vec<_>>())
        .fetch_all(conn)
        .await?;
    Ok(held.into_iter().collect())
}

pub(super) async fn append_ended(conn: &mut PgConnection, appends: &[TranscriptAppend]) -> Result<(), StoreError> {
    let entries: Vec<(Lease, &EntryColumns)> =
        appends.iter().flat_map(|append| append.entries.iter().map(|entry| (append.lease, entry))).collect();
    sqlx::query(include_str!("../../sql/append_ended.postgres.sql"))
        .bind(FORMAT)
        .bind(entries.iter().map(|(lease, _)| lease.run_id).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.seq).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.turn).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.body.clone()).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.turns).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.tool_calls).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.input_tokens).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.output_tokens).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.usage.cost_micros).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.duration_ms).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.at).collect::<Vec<_>>())
        .bind(entries.iter().map(|(_, entry)| entry.echo.as_deref()).collect::<Vec<_>>())
        .execute(conn)
        .await?;
    Ok(())
}
