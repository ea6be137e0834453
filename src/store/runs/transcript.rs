//! Transcripts: what was said and done in a run, append only, fenced by the run's lease.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::Usage;
use crate::domain::run::transcript::{Echo, FORMAT, TranscriptEntry, TranscriptMessage};
use crate::store::db::listing::{PAGE_BYTES, PagedRow, RowPage, UNBOUNDED};
use crate::store::db::text::document;
use crate::store::runs::leases::Lease;
use crate::store::{Store, StoreError};

#[derive(sqlx::FromRow)]
struct TurnRow {
    seq: i64,
    turn: i64,
    format: i16,
    body: Json<TranscriptMessage>,
    echo: Option<String>,
    turns: i64,
    tool_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    cost_micros: i64,
    duration_ms: Option<i64>,
    created_at: DateTime<Utc>,
}

impl TurnRow {
    fn entry(self) -> Result<TranscriptEntry, StoreError> {
        if self.format != FORMAT {
            return Err(StoreError::Corrupt(format!("a transcript has the format {}, known is {FORMAT}", self.format)));
        }
        let mut message = self.body.0;
        if let TranscriptMessage::Assistant { echo, .. } = &mut message {
            *echo = self.echo.as_deref().map(echo_of).transpose()?;
        }
        Ok(TranscriptEntry {
            seq: self.seq,
            turn: self.turn,
            at: self.created_at,
            message,
            usage: Usage {
                turns: self.turns,
                tool_calls: self.tool_calls,
                input_tokens: self.input_tokens,
                output_tokens: self.output_tokens,
                cost_micros: self.cost_micros,
            },
            duration_ms: self.duration_ms,
        })
    }
}

fn echo_of(text: &str) -> Result<Arc<Echo>, StoreError> {
    let unreadable = |error| StoreError::Corrupt(format!("a provider's message can't be read: {error}"));
    serde_json::from_str(text).map(Arc::new).map_err(unreadable)
}

/// The provider's message as it is stored: JSON in a column of text, where no database changes it.
fn echo_text(message: &TranscriptMessage) -> Result<Option<String>, StoreError> {
    let TranscriptMessage::Assistant { echo: Some(echo), .. } = message else { return Ok(None) };
    let unwritable = |error| StoreError::Corrupt(format!("a provider's message can't be written: {error}"));
    serde_json::to_string(&**echo).map(Some).map_err(unwritable)
}

impl Store {
    /// Appends to the transcript and renews the lease, in one transaction. Appending the same entries again (because
    /// the answer was lost) does nothing. It is written in the turn of the run's tenant.
    pub async fn append(
        &self,
        tenant: &str,
        lease: Lease,
        lease_until: DateTime<Utc>,
        entries: &[TranscriptEntry],
    ) -> Result<(), StoreError> {
        let mut write = self.db.write_of(Some(tenant)).await?;
        let tx = &mut write.tx();
        let held = tx
            .query("update queue set lease_until = $3 where run_id = $1 and lease_token = $2 and state = 'started'")
            .bind(lease.run_id)
            .bind(lease.token)
            .bind(lease_until)
            .execute()
            .await?;
        if held == 0 {
            self.counts.fenced("transcript", 1);
            return Err(StoreError::LeaseLost);
        }
        for entry in entries {
            tx.query(
                "insert into turns (run_id, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens,
                                    cost_micros, duration_ms, created_at, echo)
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
                 on conflict (run_id, seq) do nothing",
            )
            .bind(lease.run_id)
            .bind(entry.seq)
            .bind(entry.turn)
            .bind(FORMAT)
            .bind(document(&entry.message)?)
            .bind(entry.usage.turns)
            .bind(entry.usage.tool_calls)
            .bind(entry.usage.input_tokens)
            .bind(entry.usage.output_tokens)
            .bind(entry.usage.cost_micros)
            .bind(entry.duration_ms)
            .bind(entry.at)
            .bind(echo_text(&entry.message)?)
            .execute()
            .await?;
        }
        write.commit().await?;
        Ok(())
    }

    /// Usage of all entries of a run together.
    pub async fn usage_of(&self, run_id: Uuid) -> Result<Usage, StoreError> {
        let sums: (i64, i64, i64, i64, i64) = self
            .db
            .read()
            .await?
            .query(
                "select cast(coalesce(sum(turns), 0) as bigint), cast(coalesce(sum(tool_calls), 0) as bigint),
                        cast(coalesce(sum(input_tokens), 0) as bigint), cast(coalesce(sum(output_tokens), 0) as bigint),
                        cast(coalesce(sum(cost_micros), 0) as bigint)
                   from turns where run_id = $1",
            )
            .bind(run_id)
            .one()
            .await?;
        let (turns, tool_calls, input_tokens, output_tokens, cost_micros) = sums;
        Ok(Usage { turns, tool_calls, input_tokens, output_tokens, cost_micros })
    }

    /// The transcript from entry `from` on, at most `limit` entries, in order; nothing of a run outside the scope. Without
    /// what only models get back.
    pub async fn transcript(
        &self,
        scope: &Scope,
        run_id: Uuid,
        from: i64,
        limit: i64,
    ) -> Result<Vec<TranscriptEntry>, StoreError> {
        Ok(self.page_of_turns(scope, run_id, from, limit, UNBOUNDED, false).await?.rows)
    }

    /// The transcript as a run goes on with it: with the messages of providers.
    pub async fn checkpoint(&self, run_id: Uuid, from: i64, limit: i64) -> Result<Vec<TranscriptEntry>, StoreError> {
        Ok(self.page_of_turns(&Scope::Every, run_id, from, limit, UNBOUNDED, true).await?.rows)
    }

    /// A page of the transcript from entry `from` on.
    pub async fn transcript_page(
        &self,
        scope: &Scope,
        run_id: Uuid,
        from: i64,
        limit: i64,
    ) -> Result<RowPage<TranscriptEntry>, StoreError> {
        self.page_of_turns(scope, run_id, from, limit, PAGE_BYTES, false).await
    }

    async fn page_of_turns(
        &self,
        scope: &Scope,
        run_id: Uuid,
        from: i64,
        limit: i64,
        bound: i64,
        with_echoes: bool,
    ) -> Result<RowPage<TranscriptEntry>, StoreError> {
        let mut read = self.db.read_of(scope.tenant()).await?;
        let rows: Vec<PagedRow<TurnRow>> = read
            .query(PAGE)
            .bind(run_id)
            .bind(from)
            .bind(limit)
            .bind(scope.tenant())
            .bind(bound)
            .bind(with_echoes)
            .all()
            .await?;
        RowPage::of(rows, TurnRow::entry)
    }
}

const PAGE: &str = "
    with page as materialized (
        select seq, octet_length(cast(body as text)) as bytes
          from turns
         where run_id = $1 and seq >= $2
           and ($4 is null or exists (select 1 from runs where id = $1 and tenant_id = $4))
         order by seq limit $3),
    fit as (select seq, sum(bytes) over (order by seq rows unbounded preceding) - bytes as before from page)
    select t.seq, t.turn, t.format, t.body, case when $6 then t.echo end as echo, t.turns, t.tool_calls, t.input_tokens,
           t.output_tokens, t.cost_micros, t.duration_ms, t.created_at, (select count(*) from page) as found
      from turns t join fit on fit.seq = t.seq
     where t.run_id = $1 and fit.before < $5
     order by t.seq";
