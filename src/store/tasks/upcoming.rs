//! The fires that come next, of all scheduled tasks of a scope.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::store::sql::sql;
use crate::store::{Store, StoreError};

/// The next fire of a scheduled task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema, sqlx_macros::FromRow)]
pub struct UpcomingFire {
    /// The task.
    pub task_id: Uuid,
    /// The tenant that owns it.
    pub tenant_id: String,
    /// Its name.
    pub name: String,
    /// The instant for which it is due, jitter included.
    pub next_fire_at: DateTime<Utc>,
}

const SELECT: &str = "
    select t.id as task_id, t.tenant_id, t.name, d.next_at as next_fire_at
      from due d join tasks t on t.id = d.task_id
     where d.kind = 'schedule' and d.next_at is not null";
const OF_ALL: &str = sql!(SELECT, " order by d.next_at limit $1");
const OF_TENANT: &str = sql!(SELECT, " and d.tenant_id = $2 order by d.next_at limit $1");

impl Store {
    /// The next fires of the scope, the earliest first, one of each task. A task that is paused or has come to its end
    /// has none; conditions are polled and not listed.
    pub async fn upcoming_fires(&self, scope: &Scope, limit: i64) -> Result<Vec<UpcomingFire>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let fires = match scope.tenant() {
            None => read.query(OF_ALL).bind(limit).all().await?,
            Some(tenant) => read.query(OF_TENANT).bind(limit).bind(tenant).all().await?,
        };
        read.end().await?;
        Ok(fires)
    }
}
