//! The store of one run, as its agent sees it: the transcript, the questions to people, and the budgets.

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::domain::approval::{Approval, ApprovalOverride, ApprovedCallStart, CallOutcome, GrantAsk};
use crate::domain::budget::{CallBound, Spend};
use crate::domain::run::{RunError, TranscriptEntry, TranscriptMessage, Usage};

/// Why the transcript could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another worker holds the run now: stop at once.
    #[error("the lease is lost")]
    LeaseLost,
    /// The store is away; the entry may or may not have been written.
    #[error("the store is unavailable")]
    Unavailable,
    /// Asking again does not mend it.
    #[error("what is stored can't be read or written")]
    Corrupt,
    /// A newer release wrote the transcript; it stays as it is.
    #[error("the transcript has the format {found}, and this release reads up to {newest}")]
    UnknownFormat {
        /// The format that is stored.
        found: i16,
        /// The newest that is known.
        newest: i16,
    },
}

/// The cost that a summary may come to.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryCost {
    /// At worst.
    pub bound: CallBound,
    /// Cost of the turn at which it is begun at worst, and so about that of the next one.
    pub turn: Spend,
    /// Most that the tenant may spend on summaries within an hour, in micro-dollars.
    pub hourly_micros: i64,
}

/// The transcript of one run, fenced by the lease under which it is executed.
pub trait AgentStore: Send + Sync {
    /// All entries, in order.
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>>;

    /// Messages of the runs before this one with their answers, oldest first.
    fn earlier(&self) -> BoxFuture<'_, Result<Vec<TranscriptMessage>, AppendError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Appends entries in one transaction. Once it has returned they are durable; when it failed with
    /// `Unavailable` they may be durable or not. The same entries (by `seq`) appended again change nothing.
    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>>;

    /// As [`AgentStore::append`]; in the same transaction what the call of the next turn may come to at worst is
    /// reserved, if that is left now. Whether it is reserved: nobody is waited for, and an end is left to
    /// [`AgentStore::reserve`].
    fn append_and_reserve(
        &self,
        entries: Vec<TranscriptEntry>,
        _turn: i64,
        _bound: CallBound,
    ) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(async move {
            self.append(entries).await?;
            Ok(false)
        })
    }

    /// Takes entries that may wait. They are stored with the next append, which brings them along, or with the record
    /// of how the execution ended; until then they are lost with the process.
    fn defer(&self, entries: Vec<TranscriptEntry>);

    /// Notes that facts may be extracted from the run, once it has succeeded.
    fn allow_extraction(&self) {}

    /// Whether a budget holds for the run: then each call of a model is reserved before it is made.
    fn is_budgeted(&self) -> bool {
        false
    }

    /// Reserves what the call of this turn may come to at worst, until an entry of the turn says what it came to. Waits
    /// while other calls under way have reserved what may be left. An error ends the run.
    fn reserve(&self, _turn: i64, _bound: CallBound) -> BoxFuture<'_, Result<(), RunError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Releases the reservation of this turn's model call, which cost nothing and is not made again.
    fn note_unmade(&self, _turn: i64) {}

    /// Charges this turn's model calls that were cut off together with the loop, because no entry will tell their cost.
    fn note_cut(&self, _turn: i64, _usage: Usage) {}

    /// Reserves what a summary may come to at worst, until an entry says what it came to. Waits for nobody; whether
    /// that was left, for the run and for its tenant in this hour, and leaves enough for another turn.
    fn reserve_summary(&self, _cost: SummaryCost) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    /// Gives back what a summary did not come to, in micro-dollars, to the tenant for this hour. Best effort.
    fn give_summary_back(&self, _micros: i64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The questions that were put about calls of a turn of this run. Here and below: a store that keeps no questions
    /// has none.
    fn approvals(&self, _turn: i64) -> BoxFuture<'_, Result<Vec<Approval>, AppendError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Whether the run may wait for people, beside those of its tenant that do.
    fn may_suspend(&self) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(std::future::ready(Ok(true)))
    }

    /// Marks that an approved call, which has this digest now, is about to be executed.
    fn begin<'a>(&'a self, _approval: Uuid, _digest: &'a str) -> BoxFuture<'a, Result<ApprovedCallStart, AppendError>> {
        Box::pin(std::future::ready(Ok(ApprovedCallStart::Refused)))
    }

    /// The overrides of the matrix that hold for calls of these tools by the run, and by this configured agent in it.
    fn overrides<'a>(
        &'a self,
        _agent: Option<&'a str>,
        _tools: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<ApprovalOverride>, AppendError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The standing grant that covers a call; its use is counted, once for the same call.
    fn use_grant<'a>(&'a self, _call: GrantAsk<'a>) -> BoxFuture<'a, Result<Option<Uuid>, AppendError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Notes what came of an approved call, for whoever approved it. Best effort.
    fn note_outcome(&self, _approval: Uuid, _outcome: CallOutcome) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
