//! The names of tasks, for those who have their ids alone.

use std::collections::HashMap;

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::trigger::ChatTrigger;
use crate::store::db::text::text;
use crate::store::{Store, StoreError};

/// The name of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskName {
    /// The name that it has now; of a conversation its title.
    pub name: String,
    /// Whether it is a conversation, which has no page among the tasks.
    pub is_conversation: bool,
}

type Row = (Uuid, String, String, String);

impl Store {
    /// The names of those of these tasks and conversations that are there, in one statement.
    pub async fn task_names(&self, scope: &Scope, ids: &[Uuid]) -> Result<HashMap<Uuid, TaskName>, StoreError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build("select t.id, t.tenant_id, t.name, t.trigger_type from tasks t where t.id in (");
        query.list(ids.iter()).push(")");
        let found: Vec<Row> = query.finish().persistent(false).all().await?;
        read.end().await?;
        let is_in_scope = |tenant: &str| scope.tenant().is_none_or(|own| text(own) == tenant);
        let named = found.into_iter().filter(|(_, tenant, ..)| is_in_scope(tenant));
        let name = |(id, _, name, kind): Row| (id, TaskName { name, is_conversation: kind == ChatTrigger::KIND });
        Ok(named.map(name).collect())
    }
}
