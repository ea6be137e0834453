//! The fires that come next, of all scheduled tasks of a scope.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::store::db::text::text;
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

/// The name is asked of the task itself, so Postgres finds it by its id.
const SELECT: &str = "
    select d.task_id, d.tenant_id, (select t.name from tasks t where t.id = d.task_id) as name, d.next_at as next_fire_at
      from due d where d.kind = 'schedule' and d.next_at is not null";

impl Store {
    /// The next fires of the scope, the earliest first, one of each task. A task that is paused or has come to its end
    /// has none; conditions are polled and not listed.
    pub async fn upcoming_fires(&self, scope: &Scope, limit: i64) -> Result<Vec<UpcomingFire>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(SELECT), "");
        if let Some(tenant) = scope.tenant() {
            query.push_key("d.tenant_id", text(tenant).into_owned());
            order = "d.tenant_id, ";
        }
        query.push(" order by ").push(order).push("d.next_at limit ").push_bind(limit);
        let fires = query.finish().all().await?;
        read.end().await?;
        Ok(fires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_the_earliest_fires_are_where_an_index_begins() {
        for (end, index) in [
            (" order by d.next_at limit $1", "due_next"),
            (" and d.tenant_id = $1 order by d.tenant_id, d.next_at limit $2", "due_of_tenant"),
        ] {
            let plan = sqlite_plan(&format!("{SELECT}{end}")).await.join("; ");
            assert!(plan.contains(index) && !plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
