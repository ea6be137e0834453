//! The names of tasks of which a list of the API has the ids alone.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::base::token::Permission;
use crate::http::ui::frame::visit::Visit;

/// `{id: name}` of the tasks that rows name as `task_id`, as [`names_of`] has them.
pub async fn task_names<'r>(visit: &Visit, rows: impl Iterator<Item = &'r Value>) -> Value {
    let ids: Vec<&str> = rows.filter_map(|row| row["task_id"].as_str()).collect();
    Value::Object(names_of(visit, &ids).await)
}

/// The name of each of these tasks by its id. A conversation, a task that is gone, and one that the reader may not see
/// have none.
pub async fn names_of(visit: &Visit, ids: &[&str]) -> Map<String, Value> {
    if !visit.holds(Permission::TasksRead) {
        return Map::new();
    }
    let ids: BTreeSet<Uuid> = ids.iter().filter_map(|id| id.parse().ok()).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    match visit.state.store.task_names(&visit.caller.scope, &ids).await {
        Ok(found) => {
            let tasks = found.into_iter().filter(|(_, task)| !task.is_conversation);
            tasks.map(|(id, task)| (id.to_string(), task.name.into())).collect()
        }
        Err(error) => {
            tracing::debug!(%error, "the names of tasks can't be read now: rows are shown without them");
            Map::new()
        }
    }
}
