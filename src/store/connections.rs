//! Connections to Postgres that are kept open, for whoever needs one next.
//!
//! One that is given back is there for the next at once, unless something is under way on it. A transaction that was left is
//! rolled back first. What was broken off in the middle of a statement is thrown away, and another takes its place: nobody
//! knows what it is in the middle of, which may be the beginning of a transaction, and whether its wire has not gone silent;
//! the system would give that up a quarter of an hour later.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult};
use futures::FutureExt;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::runtime::Handle;

use crate::clock::pause;
use crate::store::connect::postgres::comes_up_later;
use crate::store::db::answered;

/// A connection is waited for no longer, nor is its beginning.
const WAIT: Duration = Duration::from_secs(5);
/// Between two tries to connect to a server that is not up.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// One that was not used for longer is asked whether it is still there; a question before each use would cost as much as
/// the use itself.
const UNASKED: Duration = Duration::from_secs(1);
/// The answer to that is waited for no longer.
const ASKED: Duration = Duration::from_secs(2);
/// One that was not used for longer is closed: a burst leaves many.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// One that is older is replaced: what a server remembers for it only grows.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Between two looks for those that nobody uses.
const TIDY: Duration = Duration::from_secs(60);
/// Between two looks whether all are closed.
const CLOSING: Duration = Duration::from_millis(2);

/// A few connections of one kind. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connections(Pool<Connector, Held>);

pub(super) struct Connector(PgConnectOptions);

/// A connection that nobody else has until it is dropped.
pub(super) struct Held(Option<Object<Connector>>);

impl Connections {
    /// At most so many; one of them is there when this returns.
    pub(super) async fn open(options: PgConnectOptions, most: u32) -> Result<Connections, sqlx::Error> {
        let pool = Pool::builder(Connector(options))
            .max_size(most as usize)
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .recycle_timeout(Some(ASKED))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| sqlx::Error::Configuration(error.into()))?;
        let connections = Connections(pool);
        drop(connections.acquire().await?);
        let unused = connections.0.weak();
        tokio::spawn(async move {
            while let Some(pool) = unused.upgrade().filter(|pool| !pool.is_closed()) {
                pool.retain(|_, about| about.last_used() < IDLE);
                drop(pool);
                pause(TIDY).await;
            }
        });
        Ok(connections)
    }

    pub(super) async fn acquire(&self) -> Result<Held, sqlx::Error> {
        self.0.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            PoolError::Closed => sqlx::Error::PoolClosed,
            _ => sqlx::Error::PoolTimedOut,
        })
    }

    /// Closes them, each after what it does now.
    pub(super) async fn close(&self) {
        self.0.close();
        while self.counted().0 > 0 {
            pause(CLOSING).await;
        }
    }

    /// How many are open, how many of them nobody has, and how many there may be.
    pub(super) fn counted(&self) -> (u32, u32, u32) {
        let status = self.0.status();
        (status.size as u32, status.available as u32, status.max_size as u32)
    }
}

impl Manager for Connector {
    type Type = PgConnection;
    type Error = sqlx::Error;

    /// A server that starts again is waited for as long as a connection is. Boxed: else every statement would hold the room
    /// that it takes to connect.
    async fn create(&self) -> Result<PgConnection, sqlx::Error> {
        let connected = async {
            loop {
                match self.0.connect().await {
                    Err(error) if comes_up_later(&error) => pause(TRY_AGAIN).await,
                    done => return done,
                }
            }
        };
        Box::pin(connected).await
    }

    async fn recycle(&self, connection: &mut PgConnection, about: &Metrics) -> RecycleResult<sqlx::Error> {
        if about.age() > LIFETIME {
            return Err(RecycleError::message("it is old"));
        }
        if about.last_used() > UNASKED {
            connection.ping().await?;
        }
        Ok(())
    }
}

impl From<Object<Connector>> for Held {
    fn from(object: Object<Connector>) -> Held {
        Held(Some(object))
    }
}

impl Deref for Held {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("it is taken when it is dropped")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("it is taken when it is dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(mut object) = self.0.take() else { return };
        // the word that a transaction was left waits to be sent
        let left = object.should_flush();
        match (object.flush().now_or_never(), Handle::try_current()) {
            // nothing is under way
            (Some(Ok(())), _) => {}
            (None, Ok(runtime)) if left => drop(runtime.spawn(async move {
                if answered(object.flush()).await.is_err() {
                    drop(Object::take(object));
                }
            })),
            _ => drop(Object::take(object)),
        }
    }
}
