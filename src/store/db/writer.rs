//! The one writer of SQLite, and in which order it is had.
//!
//! A tenant that writes seldom waits for the write that is under way, and for nobody's backlog. A tenant that publishes
//! thousands of events has its part of the writer's time, and other tenants and the engine's services have theirs.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::time::timeout;

use crate::base::fair_queue::{FairQueue, QueuePermit};
use crate::store::db::flow::QueueFlow;
use crate::store::db::store_metrics::{PoolUse, Pooled};

/// A turn is waited for no longer.
const WAIT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(in crate::store) struct SqliteWriter {
    /// Of one connection.
    pool: SqlitePool,
    turns: FairQueue<QueueFlow>,
}

/// A transaction of the writer. Nobody else writes until it is dropped.
pub(in crate::store) struct Writing {
    // dropped first: what is left is rolled back before the next one writes
    transaction: Transaction<'static, Sqlite>,
    _turn: QueuePermit<QueueFlow>,
}

/// The writer for a single statement.
pub(in crate::store) struct Statement {
    connection: PoolConnection<Sqlite>,
    _turn: QueuePermit<QueueFlow>,
}

impl SqliteWriter {
    pub(in crate::store) fn new(pool: SqlitePool) -> SqliteWriter {
        SqliteWriter { pool, turns: FairQueue::new(1) }
    }

    /// Begins a transaction, in turn.
    pub(in crate::store) async fn begin(&self, flow: QueueFlow) -> Result<Writing, sqlx::Error> {
        let turn = self.turn(flow).await?;
        Ok(Writing { transaction: self.pool.begin_with("begin immediate").await?, _turn: turn })
    }

    /// The connection for a single statement, in turn.
    pub(in crate::store) async fn acquire(&self, flow: QueueFlow) -> Result<Statement, sqlx::Error> {
        let turn = self.turn(flow).await?;
        Ok(Statement { connection: self.pool.acquire().await?, _turn: turn })
    }

    pub(in crate::store) async fn close(&self) {
        self.pool.close().await;
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
}

impl Pooled for SqliteWriter {
    fn usage(&self, name: &'static str) -> PoolUse {
        self.pool.usage(name)
    }
}

impl Writing {
    pub(in crate::store) async fn commit(self) -> Result<(), sqlx::Error> {
        self.transaction.commit().await
    }
}

impl Deref for Writing {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.transaction
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
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
