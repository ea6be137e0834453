//! A transaction that several writes have part in, one after the other: the disk is waited for once for all of them.
//!
//! A part that ends well stays, one that is broken off is taken back by itself. Nobody is told that a part is written
//! before the whole is committed; where that fails, all of them have failed.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Parts of one transaction at most.
const PARTS: usize = 64;
/// The transaction between two parts, or with one under way.
pub(super) struct SharedTransaction {
    transaction: Transaction<'static, Sqlite>,
    /// Those who have had their part, and wait for the commit.
    waiting: Vec<oneshot::Sender<Result<(), String>>>,
    began: Instant,
    /// The last part is to be taken back before anything else is done.
    takes_back: bool,
    /// A part could not be ended or taken back: the whole is as good as lost.
    is_broken: bool,
}

/// The answer to a part that waits for the commit.
pub(super) struct PartCommit(oneshot::Receiver<Result<(), String>>);

impl SharedTransaction {
    /// Begins one for its first part, which is taken back with the whole.
    pub(super) async fn begin(pool: &SqlitePool) -> Result<SharedTransaction, sqlx::Error> {
        let transaction = pool.begin_with("begin immediate").await?;
        let (waiting, began) = (Vec::new(), Instant::now());
        Ok(SharedTransaction { transaction, waiting, began, takes_back: false, is_broken: false })
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }

    pub(super) fn as_connection(&self) -> &SqliteConnection {
        &self.transaction
    }

    /// Whether somebody waits for its commit.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether another part may follow: none does that comes later than this after the first.
    pub(super) fn has_room(&self, open_for: Duration) -> bool {
        self.waiting.len() + 1 < PARTS && self.began.elapsed() < open_for && !self.is_broken
    }

    /// Begins a part that follows others.
    pub(super) async fn begin_part(&mut self) -> Result<(), sqlx::Error> {
        self.take_back().await?;
        sqlx::query("savepoint part").execute(&mut *self.transaction).await.map(drop)
    }

    /// Ends a part that follows others: it is written if the whole is. A caller that goes away meanwhile leaves it so.
    pub(super) async fn end_part(&mut self) -> Result<(), sqlx::Error> {
        let ended = sqlx::query("release part").execute(&mut *self.transaction).await;
        self.is_broken |= ended.is_err();
        ended.map(drop)
    }

    /// A part that follows others is to be taken back.
    pub(super) fn break_part_off(&mut self) {
        self.takes_back = true;
    }

    /// The part that has ended waits for the commit.
    pub(super) fn await_commit(&mut self) -> PartCommit {
        let (sender, answer) = oneshot::channel();
        self.waiting.push(sender);
        PartCommit(answer)
    }

    /// Commits all parts. Where others wait it is done on this runtime to its end, though the caller goes away.
    pub(super) async fn commit_on(self, runtime: &Handle) -> Result<(), sqlx::Error> {
        match self.is_awaited() {
            false => self.commit_all().await,
            true => runtime.spawn(self.commit_and_tell()).await.unwrap_or_else(|error| Err(failed(error))),
        }
    }

    /// Commits all parts, and tells those who wait.
    async fn commit_and_tell(mut self) -> Result<(), sqlx::Error> {
        let waiting = std::mem::take(&mut self.waiting);
        let committed = self.commit_all().await;
        for waiting in waiting {
            // one that has gone away needs no answer
            let _ = waiting.send(committed.as_ref().copied().map_err(ToString::to_string));
        }
        committed
    }

    async fn commit_all(mut self) -> Result<(), sqlx::Error> {
        self.take_back().await?;
        match self.is_broken {
            false => self.transaction.commit().await,
            true => Err(failed("a write that shared the transaction broke it off")),
        }
    }

    async fn take_back(&mut self) -> Result<(), sqlx::Error> {
        if std::mem::take(&mut self.takes_back) {
            // until it is known to have ended well
            self.is_broken = true;
            sqlx::query("rollback to part; release part").execute(&mut *self.transaction).await?;
            self.is_broken = false;
        }
        Ok(())
    }
}

impl PartCommit {
    /// Whether the whole was committed. Where it was broken off it may have been.
    pub(super) async fn wait(self) -> Result<(), sqlx::Error> {
        let answer = self.0.await.unwrap_or_else(|_| Err("the commit was broken off".into()));
        answer.map_err(failed)
    }
}

fn failed(why: impl Into<Box<dyn Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Io(io::Error::other(why))
}
