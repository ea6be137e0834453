//! How the service stands: instances, services, queues, MCP servers, and what is not as it should be.
//!
//! The operator sees all of it. A tenant sees whether the instance is ready, and how much of its own waits.

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};

use crate::http::HttpState;
use crate::http::ui::frame::{UiError, UiResult, Visit};

/// Parts of `/readyz` that are named one by one, each with what it means that it is false.
const PARTS: [(&str, &str, &str); 3] = [
    ("database", "Database", "does not answer"),
    ("bus", "Event bus", "does not answer"),
    ("clock", "Database’s clock", "is not known well enough: nothing is claimed or fired"),
];

/// The page.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route("/ui/system", get(show_system))
}

async fn show_system(visit: Visit) -> UiResult {
    let (readiness, stats, system) = tokio::join!(readiness(&visit), visit.part(&["v1", "stats"], &[]), system(&visit));
    let page = json!({
        "ready": readiness["answer"]["ready"],
        "readiness": readiness,
        "parts": parts(&readiness["answer"]),
        "stats": stats,
        "system": system,
    });
    visit.show("system.html", "System", page).await
}

/// `/readyz` of this instance, also where it is not ready: `{answer}` or `{problem}`.
async fn readiness(visit: &Visit) -> Value {
    match visit.get(&["readyz"], &[]).await {
        Ok(answer) => json!({ "answer": answer }),
        // then its body is the answer all the same
        Err(error) if error.status == 503 && error.problem["ready"].is_boolean() => json!({ "answer": error.problem }),
        Err(error) => json!({ "problem": UiError::from(error).sentence() }),
    }
}

/// The operator's view; of others nothing is asked.
async fn system(visit: &Visit) -> Value {
    match visit.is_operator() {
        true => visit.part(&["v1", "system"], &[]).await,
        false => Value::Null,
    }
}

/// `[{name, is_good, words}]` of the parts that must answer.
fn parts(readiness: &Value) -> Vec<Value> {
    let part = |(field, name, bad): (&str, &str, &str)| {
        let is_good = readiness[field].as_bool()?;
        Some(json!({ "name": name, "is_good": is_good, "words": if is_good { "answers" } else { bad } }))
    };
    PARTS.into_iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_answer_say_what_that_means() {
        let parts = parts(&json!({ "database": true, "bus": false }));
        assert_eq!(parts[0], json!({ "name": "Database", "is_good": true, "words": "answers" }));
        assert_eq!((&parts[1]["is_good"], &parts[1]["words"]), (&json!(false), &json!("does not answer")));
        assert_eq!(parts.len(), 2, "of the clock nothing is known");
    }
}
