//! Entries of transcripts as they are written.

use chrono::{DateTime, Utc};
use sqlx::types::{Json, JsonRawValue};

use crate::domain::run::Usage;
use crate::domain::run::transcript::{FORMAT, ModelTokens, TranscriptEntry, TranscriptMessage};
use crate::store::db::text::{document, optional_document};
use crate::store::ops::budgets::ledger_batch::LedgerBatch;
use crate::store::runs::lease::{Finish, Lease};
use crate::store::{Reservation, Settlement, StoreError};

/// Entries for the transcript of one run.
#[derive(Clone)]
pub(in crate::store) struct TranscriptAppend {
    pub lease: Lease,
    pub entries: Vec<EntryColumns>,
    /// Calls of models that the entries tell of, where a budget of a day pays for them.
    pub settlements: Vec<Settlement>,
    /// The call of a model that is to be made next.
    pub reservation: Option<Reservation>,
}

impl TranscriptAppend {
    /// The entries that waited for an end.
    fn deferred_to(end: &Finish) -> Result<TranscriptAppend, StoreError> {
        let entries = end.entries.iter().map(EntryColumns::of).collect::<Result<_, _>>()?;
        Ok(TranscriptAppend { lease: end.lease, entries, settlements: Vec::new(), reservation: None })
    }

    /// Whether ledgers of budgets are changed with it.
    pub fn is_budgeted(&self) -> bool {
        !self.settlements.is_empty() || self.reservation.is_some()
    }
}

/// The entries that waited for these ends, so that a transcript is complete once its run has ended.
pub(in crate::store) fn deferred_appends<'a>(
    ends: impl Iterator<Item = &'a Finish>,
) -> Result<Vec<TranscriptAppend>, StoreError> {
    ends.filter(|end| !end.entries.is_empty()).map(TranscriptAppend::deferred_to).collect()
}

/// The changes that these appends make to ledgers.
pub(in crate::store) fn ledger_batch<'a>(appends: impl Iterator<Item = &'a TranscriptAppend> + Clone) -> LedgerBatch {
    let settled = appends.clone().flat_map(|append| &append.settlements);
    LedgerBatch::new(settled, [], appends.filter_map(|append| append.reservation.as_ref()))
}

/// The changes that these ends make to ledgers: their calls are settled, and what their runs have reserved besides is
/// taken back.
pub(in crate::store) fn ended_ledgers<'a>(ends: impl Iterator<Item = &'a Finish> + Clone) -> LedgerBatch {
    let budgets = ends.filter_map(|end| Some((end.lease.run_id, end.budget.as_ref()?)));
    let settled = budgets.clone().flat_map(|(_, end)| &end.settlements);
    LedgerBatch::new(settled, budgets.map(|(run, _)| run), std::iter::empty())
}

/// Columns of an entry.
#[derive(Clone)]
pub(in crate::store) struct EntryColumns {
    pub seq: i64,
    pub turn: i64,
    pub format: i16,
    pub body: Json<Box<JsonRawValue>>,
    /// The provider's message: JSON in a column of text, where no database changes it.
    pub provider_message: Option<String>,
    /// Name of the model that was asked.
    pub model: Option<String>,
    /// Tokens of its call; of `usage`, the parts that providers count apart.
    pub tokens: ModelTokens,
    pub usage: Usage,
    pub duration_ms: Option<i64>,
    /// The record of the call of a tool whose result it is.
    pub tool_record: Option<Json<Box<JsonRawValue>>>,
    /// The call of the configured agent that speaks.
    pub delegation: Option<Json<Box<JsonRawValue>>>,
    pub at: DateTime<Utc>,
}

impl EntryColumns {
    /// The columns of an entry.
    pub fn of(entry: &TranscriptEntry) -> Result<EntryColumns, StoreError> {
        Ok(EntryColumns {
            seq: entry.seq,
            turn: entry.turn,
            format: FORMAT,
            body: document(&entry.message)?,
            provider_message: provider_message_text(&entry.message)?,
            model: entry.model_call.as_ref().map(|call| call.model.clone()),
            tokens: entry.model_call.as_ref().map(|call| call.tokens).unwrap_or_default(),
            usage: entry.usage,
            duration_ms: entry.duration_ms,
            tool_record: optional_document(entry.tool_record.as_ref())?,
            delegation: optional_document(entry.delegation.as_deref())?,
            at: entry.at,
        })
    }

    /// Length of its long parts.
    pub fn bytes(&self) -> usize {
        self.body.get().len() + self.provider_message.as_ref().map_or(0, String::len)
    }
}

fn provider_message_text(message: &TranscriptMessage) -> Result<Option<String>, StoreError> {
    let TranscriptMessage::Assistant { provider_message: Some(provider_message), .. } = message else {
        return Ok(None);
    };
    let unwritable = |error| StoreError::Corrupt(format!("a provider's message can't be written: {error}"));
    serde_json::to_string(&**provider_message).map(Some).map_err(unwritable)
}
