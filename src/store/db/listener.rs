//! Listening to other instances on Postgres, each time by a new connection that does nothing else: where a wire has
//! gone silent nobody waits for its end, which may be a quarter of an hour away.

use std::sync::Arc;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::store::db::with_timeout;

/// Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct Listener {
    options: Arc<PgConnectOptions>,
    closed: CancellationToken,
    at_work: TaskTracker,
}

impl Listener {
    pub(in crate::store) fn of(options: PgConnectOptions) -> Listener {
        Listener { options: Arc::new(options), closed: CancellationToken::new(), at_work: TaskTracker::new() }
    }

    /// Hears what the services of this schema say from now on. A connection that is lost ends it.
    pub(in crate::store) async fn listen(&self) -> Result<PgListener, sqlx::Error> {
        // a listener comes from a pool; one that looks after nothing has no task of its own
        let one = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let one = one.connect_lazy_with((*self.options).clone());
        with_timeout(async {
            let mut listener = PgListener::connect_with(&one).await?;
            let schema: String = sqlx::query_scalar("select current_schema()").fetch_one(&mut listener).await?;
            listener.listen(&format!("reveille_{schema}")).await?;
            // one that is lost is not replaced behind our back: something may have been missed meanwhile
            listener.eager_reconnect(false);
            Ok(listener)
        })
        .await
    }

    /// Does what is to be done until they are closed; their end waits for it.
    pub(in crate::store) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.at_work.spawn(work);
    }

    /// `None` once they are closed.
    pub(in crate::store) async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.closed.run_until_cancelled(work).await
    }

    /// Nobody listens any more, and what was to be told is told. The connection of who listened ends by itself.
    pub(in crate::store) async fn close(&self) {
        self.closed.cancel();
        self.at_work.close();
        self.at_work.wait().await;
    }
}
