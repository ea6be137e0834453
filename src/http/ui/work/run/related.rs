//! Things that a run is tied to: its task, its retries, and why it is where it is.

use serde_json::{Value, json};

use crate::http::ui::frame::Visit;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::work::run::entry::{list, text};

/// Earlier runs of a chain of retries that are named.
const CHAIN: usize = 5;
/// Runs of its task among which those are looked for that repeat a run.
const LATER: usize = 50;

/// The task or the conversation of a run: `{href, id, name}`, without a name where the reader may not see it; `null`
/// for a run that has neither.
pub async fn task_of(visit: &Visit, run: &Value) -> Value {
    let Some(id) = run["task_id"].as_str() else { return Value::Null };
    if run["trigger_type"] == "chat" {
        return json!({ "href": format!("/ui/conversations/{id}"), "id": id, "name": "a conversation" });
    }
    let names = task_names(visit, std::iter::once(run)).await;
    json!({ "href": format!("/ui/tasks/{id}"), "id": id, "name": names[id] })
}

/// The runs that this one repeats, the one before it first: `[{id, state, created_at}]`.
pub async fn repeated_runs(visit: &Visit, run: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    let mut before = run["retry_of"].as_str().map(str::to_owned);
    while let Some(id) = before.take().filter(|_| found.len() < CHAIN) {
        // one that is forgotten is named all the same
        let earlier = visit.get(&["v1", "runs", &id], &[]).await.unwrap_or_default();
        before = earlier["retry_of"].as_str().map(str::to_owned);
        found.push(json!({ "id": id, "state": earlier["state"], "created_at": earlier["created_at"] }));
    }
    found
}

/// The runs by which this one was repeated, as far as they are near: `[{id, state, created_at}]`.
pub async fn later_runs(visit: &Visit, run: &Value) -> Vec<Value> {
    let (Some(task), Some(finished)) = (run["task_id"].as_str(), run["finished_at"].as_str()) else {
        return Vec::new();
    };
    if run["state"] == "succeeded" {
        return Vec::new();
    }
    let asked = [("task_id", task.to_owned()), ("since", finished.to_owned()), ("limit", LATER.to_string())];
    let answer = visit.get(&["v1", "runs"], &asked).await.unwrap_or_default();
    repeating(&answer, text(&run["id"]))
}

fn repeating(answer: &Value, id: &str) -> Vec<Value> {
    let later = list(&answer["items"]).iter().filter(|later| later["retry_of"] == id);
    later
        .map(|later| json!({ "id": later["id"], "state": later["state"], "created_at": later["created_at"] }))
        .collect()
}

/// Why the run is where it is: `{answer: {sentences, needs}}`, or the problem.
pub async fn why(visit: &Visit, id: &str) -> Value {
    let mut part = visit.part(&["v1", "runs", id, "explain"], &[]).await;
    if let Some(answer) = part["answer"].as_object_mut() {
        // rows have what is told of calls
        answer.remove("calls");
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_runs_are_those_that_repeat_this_one() {
        let run = |id: &str, of: Value| json!({ "id": id, "retry_of": of, "state": "queued", "created_at": "c", "output": "x" });
        let answer = json!({ "items": [run("3", json!("1")), run("2", Value::Null), run("4", json!("3"))] });
        assert_eq!(repeating(&answer, "1"), [json!({ "id": "3", "state": "queued", "created_at": "c" })]);
        assert_eq!(repeating(&Value::Null, "1"), [] as [Value; 0]);
    }
}
