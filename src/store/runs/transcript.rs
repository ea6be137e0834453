//! Transcripts: what was said and done in a run, append only, fenced by the run's lease.
//!
//! Appends of all runs that wait for one are written together. An append locks the lease and does not renew it:
//! heartbeats do that, for all runs of an instance in one statement.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::Usage;
use crate::domain::run::transcript::{
    FORMATS, ModelCall, ModelTokens, ProviderMessage, TranscriptEntry, TranscriptMessage,
};
use crate::store::batches::append_committed;
use crate::store::db::flow::QueueFlow;
use crate::store::db::listing::{PAGE_BYTES, RowPage, UNBOUNDED};
use crate::store::db::write_batcher::{BatchLimit, WriteBatcher, together_or_alone};
use crate::store::db::writer::StatementTurn;
use crate::store::db::{Db, Transaction, fault, with_timeout};
use crate::store::ops::budgets::ledger_batch::LedgerOutcome;
use crate::store::runs::lease::Lease;
use crate::store::runs::new_entry::{EntryColumns, TranscriptAppend};
use crate::store::sql::sql;
use crate::store::tx::Rows;
use crate::store::{Reservation, Settlement, Store, StoreError};

#[derive(sqlx_macros::FromRow)]
struct TurnRow {
    seq: i64,
    turn: i64,
    format: i16,
    /// A message, read once its format is known.
    body: Json<Box<RawValue>>,
    provider_message: Option<String>,
    model: Option<String>,
    cache_read_tokens: i64,
    cache_write_tokens: i64,
    reasoning_tokens: i64,
    #[sqlx(flatten)]
    usage: Usage,
    duration_ms: Option<i64>,
    tool_record: Option<String>,
    /// The agent that was called, read as the message is.
    delegation: Option<Json<Box<RawValue>>>,
    created_at: DateTime<Utc>,
}

impl TurnRow {
    fn entry(self) -> Result<TranscriptEntry, StoreError> {
        if !FORMATS.contains(&self.format) {
            return Err(StoreError::UnknownFormat { found: self.format, newest: *FORMATS.end() });
        }
        let model_call = self.model_call();
        let mut message: TranscriptMessage = read("a message", self.body.0.get())?;
        if let TranscriptMessage::Assistant { provider_message, .. } = &mut message {
            *provider_message = self.provider_message.as_deref().map(read_provider_message).transpose()?;
        }
        let delegation = self.delegation.map(|Json(text)| read("the agent of a message", text.get())).transpose()?;
        Ok(TranscriptEntry {
            seq: self.seq,
            turn: self.turn,
            at: self.created_at,
            delegation,
            message,
            usage: self.usage,
            duration_ms: self.duration_ms,
            model_call,
            // an account, on which nothing hangs
            tool_record: self.tool_record.as_deref().and_then(|record| serde_json::from_str(record).ok()),
        })
    }

    /// `None`: no model was asked, or the row is of format 1, which does not say.
    fn model_call(&self) -> Option<ModelCall> {
        let tokens = ModelTokens {
            input: self.usage.input_tokens,
            output: self.usage.output_tokens,
            cache_read: self.cache_read_tokens,
            cache_write: self.cache_write_tokens,
            reasoning: self.reasoning_tokens,
        };
        self.model.clone().map(|model| ModelCall { model, tokens })
    }
}

fn read_provider_message(text: &str) -> Result<Arc<ProviderMessage>, StoreError> {
    read("a provider's message", text).map(Arc::new)
}

fn read<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(format!("{what} can't be read: {error}")))
}

/// Appends in one transaction: of many runs where entries are small, of one where they are large.
pub(in crate::store) const TOGETHER: BatchLimit = BatchLimit { items: 100, bytes: 1 << 20 };

/// Appends that wait to be written, and whether the call that came with each is reserved.
pub(in crate::store) type AppendBatcher = WriteBatcher<TranscriptAppend, Result<bool, StoreError>>;

impl Store {
    /// Appends to the transcript of a run of this tenant, all or nothing. Appending the same entries again (because the
    /// answer was lost) does nothing.
    pub async fn append(&self, tenant: &str, lease: Lease, entries: &[TranscriptEntry]) -> Result<(), StoreError> {
        self.append_budgeted(tenant, lease, entries, Vec::new(), None).await?;
        Ok(())
    }

    /// As [`Store::append`]; in the same transaction the ledgers of budgets get what the calls have come to, and what
    /// the next one may come to, if that is left. Answers whether that is reserved.
    pub async fn append_budgeted(
        &self,
        tenant: &str,
        lease: Lease,
        entries: &[TranscriptEntry],
        settlements: Vec<Settlement>,
        reservation: Option<Reservation>,
    ) -> Result<bool, StoreError> {
        let columns = entries.iter().map(EntryColumns::of).collect::<Result<Vec<_>, _>>()?;
        let bytes = columns.iter().map(EntryColumns::bytes).sum();
        let (store, append) = (self.clone(), TranscriptAppend { lease, entries: columns, settlements, reservation });
        let work = |appends: Vec<_>| async move {
            together_or_alone(&store, &appends, |store, appends| Box::pin(store.append_together(appends))).await
        };
        let written = self.appends.submit_for(tenant.to_owned(), bytes, append, work).await;
        let is_reserved =
            written.unwrap_or_else(|| Err(StoreError::Unavailable("the append was broken off".into())))?;
        self.counts.used(entries.iter());
        Ok(is_reserved)
    }

    async fn append_together(&self, appends: &[TranscriptAppend]) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        // rows are locked in the order of their ids, as everywhere
        let mut in_order: Vec<&TranscriptAppend> = appends.iter().collect();
        in_order.sort_by_key(|append| append.lease.run_id);
        let (held, is_reserved) = match failpoint!("append_without_fence") {
            false => self.append_held(&in_order).await?,
            true => {
                let mut write = self.db.write_quick(QueueFlow::of(None)).await?;
                write.tx().append_ended(appends).await?;
                write.commit().await?;
                (appends.iter().map(|append| append.lease).collect(), false)
            }
        };
        let lost = appends.iter().filter(|append| !held.contains(&append.lease)).count();
        self.counts.fenced("transcript", lost);
        let written = appends.iter().map(|append| match held.contains(&append.lease) {
            true => Ok(is_reserved && append.reservation.is_some()),
            false => Err(StoreError::LeaseLost),
        });
        Ok(written.collect())
    }

    /// Appends where the lease is held; answers these leases, and whether the calls that came with them are reserved.
    /// It takes one way to the database, on SQLite where nobody else writes and no budget of a day holds.
    async fn append_held(&self, appends: &[&TranscriptAppend]) -> Result<(HashSet<Lease>, bool), StoreError> {
        let flow = QueueFlow::of(None);
        if appends.iter().any(|append| append.is_budgeted()) {
            return self.append_budgeted_held(appends).await;
        }
        let mut write = match &self.db {
            Db::Sqlite { writer, waits, .. } => {
                waits.record_acquire("writer", writer);
                match writer.begin_shared_or_acquire(flow).await? {
                    StatementTurn::Shared(writing) => Transaction::Sqlite(writing),
                    StatementTurn::Alone(mut statement) => {
                        fault()?;
                        let held = append_committed(&mut statement, appends).await;
                        statement.end(held.is_ok());
                        fault()?;
                        return Ok((held?, false));
                    }
                }
            }
            Db::Postgres { .. } => self.db.write_quick(flow).await?,
        };
        let held = write.tx().append(appends).await?;
        write.commit().await?;
        Ok((held, false))
    }

    /// As [`Store::append_held`], where budgets of a day pay for calls among these.
    async fn append_budgeted_held(&self, appends: &[&TranscriptAppend]) -> Result<(HashSet<Lease>, bool), StoreError> {
        let mut write = self.db.write_quick(QueueFlow::of(None)).await?;
        let (held, LedgerOutcome { is_reserved, updated }) = write.tx().append_budgeted(appends).await?;
        write.commit().await?;
        self.publish_updates(&updated, appends.iter().flat_map(|append| &append.settlements)).await;
        Ok((held, is_reserved))
    }

    /// Usage of all entries of a run together.
    pub async fn usage_of(&self, run_id: Uuid) -> Result<Usage, StoreError> {
        Ok(self
            .db
            .read_quick()
            .await?
            .query(
                "select cast(coalesce(sum(turns), 0) as bigint) as turns,
                        cast(coalesce(sum(tool_calls), 0) as bigint) as tool_calls,
                        cast(coalesce(sum(input_tokens), 0) as bigint) as input_tokens,
                        cast(coalesce(sum(output_tokens), 0) as bigint) as output_tokens,
                        cast(coalesce(sum(cost_micros), 0) as bigint) as cost_micros
                   from turns where run_id = $1",
            )
            .bind(run_id)
            .one()
            .await?)
    }

    /// The transcript from entry `from` on, at most `limit` entries, in order; nothing of a run outside the scope.
    /// Without what only models get back.
    pub async fn transcript(
        &self,
        scope: &Scope,
        run_id: Uuid,
        from: i64,
        limit: i64,
    ) -> Result<Vec<TranscriptEntry>, StoreError> {
        Ok(self.page_of_turns(scope, run_id, from, limit, UNBOUNDED).await?.rows)
    }

    /// The transcript of a run of this tenant as it goes on with it: with the messages of providers.
    ///
    /// # Errors
    /// An entry can't be read, or the database is away. A long transcript is read in the tenant's turn, however long
    /// that takes: the time for an answer is the database's alone.
    pub async fn checkpoint(
        &self,
        tenant: &str,
        run_id: Uuid,
        from: i64,
        limit: i64,
    ) -> Result<Vec<TranscriptEntry>, StoreError> {
        let rows = with_timeout(self.rows_of_checkpoint(run_id, from, limit)).await?;
        let read = |rows: &Rows| -> Result<Vec<TranscriptEntry>, StoreError> {
            let turns: Vec<TurnRow> = rows.read()?;
            turns.into_iter().map(TurnRow::entry).collect()
        };
        self.decode_rows(Some(tenant), rows, read).await?
    }

    async fn rows_of_checkpoint(&self, run_id: Uuid, from: i64, limit: i64) -> Result<Rows, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read.query(CHECKPOINT).bind(run_id).bind(from).bind(limit).rows().await?)
    }

    /// A page of the transcript from entry `from` on.
    pub async fn transcript_page(
        &self,
        scope: &Scope,
        run_id: Uuid,
        from: i64,
        limit: i64,
    ) -> Result<RowPage<TranscriptEntry>, StoreError> {
        self.page_of_turns(scope, run_id, from, limit, PAGE_BYTES).await
    }

    async fn page_of_turns(
        &self,
        scope: &Scope,
        run_id: Uuid,
        from: i64,
        limit: i64,
        bound: i64,
    ) -> Result<RowPage<TranscriptEntry>, StoreError> {
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        let page = match scope.tenant() {
            None => read.query(PAGE),
            Some(tenant) => read.query(PAGE_OF_TENANT).bind(tenant),
        };
        // planned each time: a plan that was made while there were no transcripts would read all of them
        let page = page.bind(run_id).bind(from).bind(limit).bind(bound).persistent(false);
        let rows = page.rows().await?;
        read.end().await?;
        let read =
            |rows: &Rows| -> Result<RowPage<TranscriptEntry>, StoreError> { RowPage::of(rows.read()?, TurnRow::entry) };
        self.decode_rows(scope.tenant(), rows, read).await?
    }
}

/// By its key alone, whatever the planner believes of the table: a run reads it once, and may stand still for it. How
/// long the entries are stands in them.
const CHECKPOINT: &str = "
    select seq, turn, format, body, provider_message, turns, tool_calls, input_tokens, output_tokens, cost_micros,
           duration_ms, created_at, model, cache_read_tokens, cache_write_tokens, reasoning_tokens,
           cast(tool_record as text) as tool_record, delegation,
           cast((select coalesce(sum(stored_bytes), 0)
                   from (select stored_bytes from turns where run_id = $1 and seq >= $2 order by seq limit $3) page)
                as bigint) as wide
      from turns where run_id = $1 and seq >= $2 order by seq limit $3";

const PAGE: &str = sql!(PAGE_WHERE; "{and}" = ""; "{run}" = "$1"; "{from}" = "$2"; "{limit}" = "$3"; "{bound}" = "$4");

const PAGE_OF_TENANT: &str = sql!(PAGE_WHERE; "{and}" = "and exists (select 1 from runs where id = $2 and tenant_id = $1)";
                                  "{run}" = "$2"; "{from}" = "$3"; "{limit}" = "$4"; "{bound}" = "$5");

const PAGE_WHERE: &str = "
    with page as materialized (
        select seq, octet_length(cast(body as text)) as bytes
          from turns
         where run_id = {run} and seq >= {from} {and}
         order by seq limit {limit}),
    fit as (select seq, sum(bytes) over (order by seq rows unbounded preceding) - bytes as before from page)
    select t.seq, t.turn, t.format, t.body, cast(null as text) as provider_message, t.turns, t.tool_calls,
           t.input_tokens, t.output_tokens, t.cost_micros, t.duration_ms, t.created_at, t.model,
           t.cache_read_tokens, t.cache_write_tokens, t.reasoning_tokens, cast(null as text) as tool_record,
           t.delegation, (select count(*) from page) as found,
           cast((select coalesce(sum(bytes), 0) from page) as bigint) as wide
      from turns t join fit on fit.seq = t.seq
     where t.run_id = {run} and fit.before < {bound}
     order by t.seq";
