//! The one writer of SQLite, and in which order it is had.
//!
//! A tenant that writes seldom waits for the write that is under way, and for nobody's backlog. A tenant that publishes
//! thousands of events has its part of the writer's time, and other tenants and the engine's services have theirs.
//!
//! Writes of the engine's batches that wait for each other share a commit: the disk takes longer than their statements.
//! A write that is alone begins and commits as ever.

mod shared_transaction;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection, SqlitePool};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::base::clock::pause;
use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::store::db::flow::QueueFlow;
use crate::store::db::store_metrics::{MeasuredPool, PoolUse};
use shared_transaction::SharedTransaction;

/// A turn is waited for no longer.
const WAIT: Duration = Duration::from_secs(30);
/// A transaction that is older takes in no further part: those who have had theirs wait for it.
const OPEN_FOR: Duration = Duration::from_millis(5);
/// So often it is looked whether a transaction was left open for a write that did not come.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// The one connection that writes to SQLite, for which writers take turns.
#[derive(Clone)]
pub(in crate::store) struct SqliteWriter {
    /// Of one connection.
    pool: SqlitePool,
    turns: FairQueue<QueueFlow>,
    /// A transaction that is left open for whoever has the next turn, to have part in it or to commit it.
    open: Arc<Mutex<Option<SharedTransaction>>>,
    /// For so long it takes in further parts.
    open_for: Duration,
    /// Whether somebody looks after what is left open. It changes in the turn of whoever changes it.
    is_watched: Arc<AtomicBool>,
    /// Whether a text that begins and commits by itself may have been left between the two.
    is_text_open: Arc<AtomicBool>,
    /// The connection, after a text and until a transaction: one begins with a connection of the pool.
    kept: Arc<KeptConnection>,
    /// Where a transaction is committed that was left open in vain.
    runtime: Handle,
}

/// A transaction of the writer, or a part of one. Nobody else writes until it is dropped.
pub(in crate::store) struct WriteTransaction {
    writer: SqliteWriter,
    /// `None` once it has ended.
    shared: Option<SharedTransaction>,
    /// Whether it follows other parts, and has begun.
    is_part: bool,
    may_share: bool,
    _turn: QueuePermit<QueueFlow>,
}

/// The writer for a write that is a single text if it is alone.
pub(in crate::store) enum StatementTurn {
    /// Nobody else writes: the text begins and commits by itself, which is one way to the writer's thread.
    Alone(Statement),
    /// A part of what others write.
    Shared(WriteTransaction),
}

/// The writer for a single text, which is rolled back by the next write unless it is [ended](Statement::end).
pub(in crate::store) struct Statement {
    connection: PoolConnection<Sqlite>,
    writer: SqliteWriter,
    _turn: QueuePermit<QueueFlow>,
}

/// The connection between two texts. The pool asks one that it gets back whether it is still there, which is as long a
/// way to the writer's thread as a text.
struct KeptConnection {
    connection: Mutex<Option<PoolConnection<Sqlite>>>,
    /// Where the pool takes it back in the end, whoever drops it.
    runtime: Handle,
}

impl SqliteWriter {
    pub(in crate::store) fn new(pool: SqlitePool) -> SqliteWriter {
        SqliteWriter {
            pool,
            turns: FairQueue::new(1),
            open: Arc::default(),
            open_for: OPEN_FOR,
            is_watched: Arc::default(),
            is_text_open: Arc::default(),
            kept: Arc::new(KeptConnection { connection: Mutex::default(), runtime: Handle::current() }),
            runtime: Handle::current(),
        }
    }

    /// Begins a transaction of its own, in turn.
    pub(in crate::store) async fn begin(&self, flow: QueueFlow) -> Result<WriteTransaction, sqlx::Error> {
        let turn = self.turn(flow).await?;
        self.commit_open().await;
        self.begin_in_turn(turn, false).await
    }

    /// Begins a transaction, in turn, that may share its commit with those before and after it. It may see what they
    /// have written, so whatever it answers must be answered after its own commit.
    pub(in crate::store) async fn begin_shared(&self, flow: QueueFlow) -> Result<WriteTransaction, sqlx::Error> {
        let turn = self.turn(flow).await?;
        self.begin_shared_in_turn(turn).await
    }

    /// The writer in turn: a part of a transaction where others wait or have written theirs, and else the connection.
    pub(in crate::store) async fn begin_shared_or_acquire(
        &self,
        flow: QueueFlow,
    ) -> Result<StatementTurn, sqlx::Error> {
        let turn = self.turn(flow).await?;
        let has_open = self.open.lock().expect("writer lock").is_some();
        Ok(match has_open || self.is_wanted() {
            true => StatementTurn::Shared(self.begin_shared_in_turn(turn).await?),
            false => StatementTurn::Alone(self.statement_in_turn(turn).await?),
        })
    }

    async fn begin_shared_in_turn(&self, turn: QueuePermit<QueueFlow>) -> Result<WriteTransaction, sqlx::Error> {
        let open = match self.take_open() {
            Some(open) if open.has_room(self.open_for) => open,
            open => {
                self.commit_one(open).await;
                return self.begin_in_turn(turn, true).await;
            }
        };
        let mut writing =
            WriteTransaction { writer: self.clone(), shared: Some(open), is_part: false, may_share: true, _turn: turn };
        if let Some(shared) = &mut writing.shared {
            shared.begin_part().await?;
        }
        writing.is_part = true;
        Ok(writing)
    }

    async fn begin_in_turn(
        &self,
        turn: QueuePermit<QueueFlow>,
        may_share: bool,
    ) -> Result<WriteTransaction, sqlx::Error> {
        drop(self.kept.take());
        self.undo_text().await?;
        let shared = Some(SharedTransaction::begin(&self.pool).await?);
        Ok(WriteTransaction { writer: self.clone(), shared, is_part: false, may_share, _turn: turn })
    }

    /// The connection, in turn.
    #[cfg(test)]
    pub(in crate::store) async fn acquire(&self, flow: QueueFlow) -> Result<Statement, sqlx::Error> {
        let turn = self.turn(flow).await?;
        self.commit_open().await;
        self.statement_in_turn(turn).await
    }

    async fn statement_in_turn(&self, turn: QueuePermit<QueueFlow>) -> Result<Statement, sqlx::Error> {
        self.undo_text().await?;
        let connection = match self.kept.take() {
            Some(connection) => connection,
            None => self.pool.acquire().await?,
        };
        self.is_text_open.store(true, Ordering::Relaxed);
        Ok(Statement { connection, writer: self.clone(), _turn: turn })
    }

    /// Takes back what a text has written whose caller went away in the middle of it.
    async fn undo_text(&self) -> Result<(), sqlx::Error> {
        if self.is_text_open.load(Ordering::Relaxed) {
            let mut connection = self.pool.acquire().await?;
            // it fails where the text has come to its end
            let _ = sqlx::query("rollback").execute(&mut *connection).await;
            self.is_text_open.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(in crate::store) async fn close(&self) {
        let closed = self.pool.close();
        drop(self.kept.take());
        closed.await;
    }

    /// Whether somebody waits for the end of the present write.
    pub(in crate::store) fn is_wanted(&self) -> bool {
        self.turns.waiting() > 0
    }

    /// The queue of those who want to write, to be measured.
    pub(in crate::store) fn queue(&self) -> FairQueue<QueueFlow> {
        self.turns.clone()
    }

    async fn turn(&self, flow: QueueFlow) -> Result<QueuePermit<QueueFlow>, sqlx::Error> {
        timeout(WAIT, flow.acquire(&self.turns)).await.map_err(|_| sqlx::Error::PoolTimedOut)
    }

    fn take_open(&self) -> Option<SharedTransaction> {
        self.open.lock().expect("writer lock").take()
    }

    /// Commits what was left open, for the present turn. A failure is that of those who wait for it, and is told to
    /// them.
    async fn commit_open(&self) {
        self.commit_one(self.take_open()).await;
    }

    async fn commit_one(&self, open: Option<SharedTransaction>) {
        if let Some(open) = open {
            let _ = open.commit_on(&self.runtime).await;
        }
    }

    /// Leaves a transaction to the next turn. To be asked in a turn.
    fn leave_open(&self, shared: SharedTransaction) {
        *self.open.lock().expect("writer lock") = Some(shared);
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            self.runtime.spawn(self.clone().watch_open());
        }
    }

    /// Commits what is left open once nobody has a turn or waits for one: who waited may have gone away. Those that
    /// come one after the other commit it themselves.
    async fn watch_open(self) {
        let turn = loop {
            pause(LOOKS_EVERY).await;
            if let Some(turn) = self.turns.try_acquire(&QueueFlow::First(file!(), line!())) {
                break turn;
            }
        };
        self.commit_open().await;
        self.is_watched.store(false, Ordering::Relaxed);
        drop(turn);
    }
}

impl MeasuredPool for SqliteWriter {
    fn usage(&self, name: &'static str) -> PoolUse {
        let (usage, kept) = (self.pool.usage(name), u32::from(self.kept.lock().is_some()));
        PoolUse { in_use: usage.in_use.saturating_sub(kept), idle: usage.idle + kept, ..usage }
    }
}

impl KeptConnection {
    fn lock(&self) -> MutexGuard<'_, Option<PoolConnection<Sqlite>>> {
        self.connection.lock().expect("writer lock")
    }

    fn take(&self) -> Option<PoolConnection<Sqlite>> {
        self.lock().take()
    }
}

impl Drop for KeptConnection {
    fn drop(&mut self) {
        let _runtime = self.runtime.enter();
        drop(self.take());
    }
}

impl WriteTransaction {
    /// Returns once it is on the disk, with those who share the commit.
    pub(in crate::store) async fn commit(mut self) -> Result<(), sqlx::Error> {
        if std::mem::take(&mut self.is_part)
            && let Some(shared) = &mut self.shared
        {
            shared.end_part().await?;
        }
        let Some(mut shared) = self.shared.take() else { return Ok(()) };
        if self.may_share && self.writer.is_wanted() && shared.has_room(self.writer.open_for) {
            let commit = shared.await_commit();
            self.writer.leave_open(shared);
            // the turn of the next one
            drop(self);
            return commit.wait().await;
        }
        shared.commit_on(&self.writer.runtime).await
    }

    fn shared(&self) -> &SharedTransaction {
        self.shared.as_ref().expect("a transaction that has not ended")
    }
}

/// A write that has not ended is taken back before the next one: a part alone, or the whole.
impl Drop for WriteTransaction {
    fn drop(&mut self) {
        let Some(mut shared) = self.shared.take() else { return };
        if self.is_part {
            shared.break_part_off();
        }
        if shared.is_awaited() {
            self.writer.leave_open(shared);
        }
    }
}

impl Deref for WriteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.shared().as_connection()
    }
}

impl DerefMut for WriteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.shared.as_mut().expect("a transaction that has not ended").connection()
    }
}

impl Statement {
    /// The text is known to have ended: no transaction is open. Where it went wrong, the connection may be at fault, so
    /// the pool looks at it before it is used again.
    pub(in crate::store) fn end(self, went_well: bool) {
        let Statement { connection, writer, _turn } = self;
        writer.is_text_open.store(false, Ordering::Relaxed);
        let mut kept = writer.kept.lock();
        // a pool that is being closed waits for it
        if went_well && !writer.pool.is_closed() {
            *kept = Some(connection);
        }
    }
}

impl Deref for Statement {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Statement {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::scratch::{Scratch, asked};

    fn flow() -> QueueFlow {
        QueueFlow::Engine("test")
    }

    /// A writer with a table of numbers, and the store that it belongs to. A transaction takes in parts for as long as
    /// the machine needs to write them.
    async fn scratch() -> (Scratch, SqliteWriter) {
        let scratch = Scratch::open().await;
        let writer = SqliteWriter { open_for: Duration::from_secs(600), ..scratch.writer().clone() };
        let mut write = writer.begin(flow()).await.expect("a transaction");
        sqlx::query("create table numbers (number integer)").execute(&mut *write).await.expect("a table");
        write.commit().await.expect("committed");
        (scratch, writer)
    }

    async fn add(writing: &mut WriteTransaction, number: i64) {
        sqlx::query("insert into numbers values ($1)").bind(number).execute(&mut **writing).await.expect("a row");
    }

    /// A write that shares, of a number.
    async fn writing(writer: &SqliteWriter, number: i64) -> WriteTransaction {
        let mut writing = writer.begin_shared(flow()).await.expect("a turn");
        add(&mut writing, number).await;
        writing
    }

    /// The next turn, once the part before it has ended and waits for the commit.
    async fn follow<T, E: std::fmt::Debug>(
        waits: impl Future<Output = Result<T, E>>,
        before: impl Future<Output = Result<(), sqlx::Error>>,
    ) -> T {
        tokio::select! {
            next = waits => next.expect("a turn"),
            committed = before => panic!("nobody has shared it: {committed:?}"),
        }
    }

    /// The numbers that are committed.
    async fn committed(scratch: &Scratch) -> Vec<i64> {
        let mut read = scratch.store.db.read().await.expect("a reader");
        read.query("select number from numbers order by number").scalars().await.expect("numbers")
    }

    #[tokio::test]
    async fn writes_that_wait_for_each_other_share_a_commit_and_none_is_answered_before_it() {
        let (scratch, writer) = scratch().await;
        let first = writing(&writer, 1).await;
        let waits = asked(writer.begin_shared(flow()));
        let mut first = asked(first.commit());
        let mut second = waits.await.expect("a part");
        add(&mut second, 2).await;
        let waits = asked(writer.begin_shared_or_acquire(flow()));
        let mut second = asked(second.commit());
        let StatementTurn::Shared(mut third) = follow(waits, &mut second).await else { panic!("others have written") };
        add(&mut third, 3).await;
        assert!(futures::poll!(&mut first).is_pending());
        assert_eq!(committed(&scratch).await, [0_i64; 0]);
        third.commit().await.expect("all are committed");
        assert_eq!(committed(&scratch).await, [1, 2, 3]);
        for part in [first, second] {
            part.await.expect("told");
        }
        let alone = writer.begin_shared_or_acquire(flow()).await.expect("a turn");
        assert!(matches!(alone, StatementTurn::Alone(_)), "nobody else writes");
    }

    #[tokio::test]
    async fn part_that_fails_takes_back_itself_alone() {
        let (scratch, writer) = scratch().await;
        let first = writing(&writer, 1).await;
        let waits = asked(writer.begin_shared(flow()));
        let first = asked(first.commit());
        let mut second = waits.await.expect("a part");
        add(&mut second, 2).await;
        sqlx::query("insert into nowhere values (2)").execute(&mut *second).await.expect_err("no such table");
        let waits = asked(writer.begin_shared(flow()));
        drop(second);
        let mut third = waits.await.expect("a part");
        add(&mut third, 3).await;
        let waits = asked(writer.begin(flow()));
        // a transaction of its own begins behind the commit of what is open
        let (own, third) = tokio::join!(waits, third.commit());
        assert_eq!(committed(&scratch).await, [1, 3]);
        drop(own);
        for told in [first.await, third] {
            told.expect("told");
        }
    }

    #[tokio::test]
    async fn transaction_that_nobody_goes_on_with_is_committed_a_little_later() {
        let (scratch, writer) = scratch().await;
        let first = writing(&writer, 1).await;
        let waits = asked(writer.begin_shared(flow()));
        let first = asked(first.commit());
        // its turn has come, and it goes away
        drop(waits);
        first.await.expect("committed");
        let second = writing(&writer, 2).await;
        let waits = asked(writer.begin_shared(flow()));
        let second = asked(second.commit());
        drop(waits.await.expect("a part"));
        second.await.expect("committed");
        assert_eq!(committed(&scratch).await, [1, 2]);
    }

    #[tokio::test]
    async fn transaction_whose_parts_take_long_waits_for_the_next_and_for_nobody_who_has_gone_away() {
        let (scratch, writer) = scratch().await;
        let first = writing(&writer, 1).await;
        let waits = asked(writer.begin_shared(flow()));
        let first = asked(first.commit());
        let mut second = waits.await.expect("a part");
        let waits = asked(writer.begin_shared(flow()));
        pause(4 * LOOKS_EVERY).await;
        add(&mut second, 2).await;
        let mut second = asked(second.commit());
        while writer.open.lock().expect("writer lock").is_none() {
            assert!(futures::poll!(&mut second).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(committed(&scratch).await, [0_i64; 0]);
        // the turn is its own, and it never takes it
        drop(waits);
        for part in [first, second] {
            part.await.expect("committed");
        }
        assert_eq!(committed(&scratch).await, [1, 2]);
    }

    #[tokio::test]
    async fn part_whose_caller_goes_away_before_the_commit_is_committed_with_the_others() {
        let (scratch, writer) = scratch().await;
        let first = writing(&writer, 1).await;
        let waits = asked(writer.begin_shared(flow()));
        drop(asked(first.commit()));
        let mut second = waits.await.expect("a part");
        add(&mut second, 2).await;
        second.commit().await.expect("committed");
        assert_eq!(committed(&scratch).await, [1, 2]);
    }

    #[tokio::test]
    async fn text_whose_caller_goes_away_is_done_as_a_whole_or_not_at_all() {
        let (scratch, writer) = scratch().await;
        for text in [
            "begin immediate; insert into numbers values (1)",
            "begin immediate; insert into numbers values (2); commit",
        ] {
            let turn = writer.begin_shared_or_acquire(flow()).await.expect("a turn");
            let StatementTurn::Alone(mut statement) = turn else { panic!("nobody else writes") };
            sqlx::query(text).execute(&mut *statement).await.expect("written");
            // it is never told that it has come so far
            drop(statement);
        }
        writing(&writer, 3).await.commit().await.expect("committed");
        assert_eq!(committed(&scratch).await, [2, 3]);
    }

    #[tokio::test]
    async fn connection_is_kept_between_two_texts_and_given_back_for_a_transaction_and_at_the_end() {
        let (scratch, writer) = scratch().await;
        for number in 1..4 {
            let turn = writer.begin_shared_or_acquire(flow()).await.expect("a turn");
            let StatementTurn::Alone(mut statement) = turn else { panic!("nobody else writes") };
            assert_eq!(writer.usage("writer").in_use, 1);
            let insert = sqlx::query("begin immediate; insert into numbers values ($1); commit").bind(number);
            insert.execute(&mut *statement).await.expect("written");
            statement.end(true);
            let usage = writer.usage("writer");
            assert_eq!((usage.in_use, usage.idle), (0, 1), "nobody waits for the pool");
        }
        writing(&writer, 4).await.commit().await.expect("committed");
        assert_eq!(committed(&scratch).await, [1, 2, 3, 4]);
        let turn = writer.begin_shared_or_acquire(flow()).await.expect("a turn");
        let StatementTurn::Alone(statement) = turn else { panic!("nobody else writes") };
        statement.end(true);
        writer.close().await;
        assert!(writer.begin_shared_or_acquire(flow()).await.is_err(), "it is closed");
    }

    #[tokio::test]
    async fn connection_whose_text_has_failed_is_given_back_to_the_pool() {
        let (scratch, writer) = scratch().await;
        for (text, went_well) in [("insert into numbers values (1)", true), ("insert into nowhere values (2)", false)] {
            let turn = writer.begin_shared_or_acquire(flow()).await.expect("a turn");
            let StatementTurn::Alone(mut statement) = turn else { panic!("nobody else writes") };
            let written = sqlx::query(text).execute(&mut *statement).await;
            assert_eq!(written.is_ok(), went_well);
            statement.end(written.is_ok());
            assert_eq!(writer.kept.lock().is_some(), went_well);
        }
        writing(&writer, 3).await.commit().await.expect("committed");
        assert_eq!(committed(&scratch).await, [1, 3]);
    }

    #[tokio::test]
    async fn all_are_told_of_a_transaction_that_a_part_has_lost_and_the_next_one_writes() {
        let (scratch, writer) = scratch().await;
        let first = writing(&writer, 1).await;
        let waits = asked(writer.begin_shared(flow()));
        let first = asked(first.commit());
        let mut second = waits.await.expect("a part");
        // as a part would that the database ends with the whole
        sqlx::query("release part; savepoint other").execute(&mut *second).await.expect("ended");
        assert!(second.commit().await.is_err(), "it has no part any more");
        assert!(first.await.is_err(), "it is not known to be written");
        writing(&writer, 3).await.commit().await.expect("committed");
        assert_eq!(committed(&scratch).await, [3]);
    }
}
