//! Who hears what other instances say on Postgres, each time by a new connection that does nothing else: where a wire has
//! gone silent nobody waits for its end, which may be a quarter of an hour away.

use std::sync::Arc;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::store::db::answered;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Ears {
    options: Arc<PgConnectOptions>,
    closed: CancellationToken,
    listening: TaskTracker,
}

impl Ears {
    pub(super) fn of(options: PgConnectOptions) -> Ears {
        Ears { options: Arc::new(options), closed: CancellationToken::new(), listening: TaskTracker::new() }
    }

    /// Hears what the services of this schema say from now on. A connection that is lost ends it.
    pub(super) async fn listen(&self) -> Result<PgListener, sqlx::Error> {
        let one = PgPoolOptions::new().max_connections(1).min_connections(0).idle_timeout(None).max_lifetime(None);
        let one = one.connect_lazy_with((*self.options).clone());
        answered(async {
            let mut listener = PgListener::connect_with(&one).await?;
            let schema: String = sqlx::query_scalar("select current_schema()").fetch_one(&mut listener).await?;
            listener.listen(&format!("reveille_{schema}")).await?;
            // one that is lost is not replaced behind our back: something may have been missed meanwhile
            listener.eager_reconnect(false);
            Ok(listener)
        })
        .await
    }

    /// Does this until they are closed.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        self.listening.spawn(async move { closed.run_until_cancelled(work).await });
    }

    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.listening.close();
        self.listening.wait().await;
    }
}
