//! The names of tasks of which a list of the API has the ids alone.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Map, Value};

use crate::http::ui::frame::visit::Visit;

/// Tasks that are looked up for one page: a page shows few names and must be fast.
const MOST: usize = 24;

/// `{id: name}` of the tasks that rows name as `task_id`. A task that is gone, that the reader may not see, or that
/// comes behind the first 24 has none.
pub async fn task_names<'r>(visit: &Visit, rows: impl Iterator<Item = &'r Value>) -> Value {
    let ids: BTreeSet<&str> = rows.filter_map(|row| row["task_id"].as_str()).collect();
    let ids: Vec<String> = ids.into_iter().take(MOST).map(str::to_owned).collect();
    let found = join_all(ids.into_iter().map(|id| name_of(visit, id))).await;
    Value::Object(found.into_iter().flatten().collect::<Map<String, Value>>())
}

async fn name_of(visit: &Visit, id: String) -> Option<(String, Value)> {
    let mut task = visit.get(&["v1", "tasks", &id], &[]).await.ok()?;
    Some((id, task["name"].take()))
}
