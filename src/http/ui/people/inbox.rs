//! The inbox: what agents ask people for, and the agents that wait for people.

mod agents;
mod question;

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::{UiError, UiList, UiResult, Visit};

/// The address of the inbox.
const HREF: &str = "/ui/inbox";
/// Filters of the questions.
const FILTERS: [&str; 2] = ["task_id", "run_id"];
/// Suspended agents that stand below the questions: the newest. The others are on a page of their own.
const AGENTS: usize = 20;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route(HREF, get(show_inbox)).merge(agents::routes()).merge(question::routes())
}

async fn show_inbox(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let asked = asked_of_agents(&list);
    let (questions, agents) =
        tokio::join!(questions(&visit, &list), visit.part(&["v1", "agents", "suspended"], &asked));
    let lists = [&questions["items"], &agents["answer"]["items"]];
    let rows: Vec<&Value> = lists.into_iter().filter_map(Value::as_array).flatten().collect();
    let names = task_names(&visit, rows.into_iter()).await;
    let page = json!({
        "questions": questions, "agents": agents, "names": names,
        "may_answer": visit.holds(Permission::RunsInput), "may_write": visit.holds(Permission::RunsWrite),
    });
    visit.show("inbox.html", "Inbox", page).await
}

/// A page of the open questions for input. Where the reader may not see them it says so, and has none.
async fn questions(visit: &Visit, list: &UiList) -> Value {
    let mut asked = list.asked();
    asked.extend([("kind", "input".to_owned()), ("status", "pending".to_owned())]);
    let (answer, problem) = match visit.get(&["v1", "approvals"], &asked).await {
        Ok(answer) => (answer, None),
        Err(error) => (Value::Null, Some(UiError::from(error).sentence())),
    };
    let mut view = list.view(HREF, answer);
    let rows: Vec<Value> = view["items"].as_array().into_iter().flatten().map(row).collect();
    view["items"] = rows.into();
    view["problem"] = problem.into();
    view
}

/// A question in short: its form may be long.
fn row(question: &Value) -> Value {
    json!({
        "id": question["id"], "run_id": question["run_id"], "task_id": question["task_id"],
        "tenant_id": question["tenant_id"], "agent": question["agent_name"], "step": question["step"],
        "server": question["server"]["server"], "asked": question["action_summary"],
        "description": question["description"], "created_at": question["created_at"],
        "expires_at": question["expires_at"],
    })
}

/// The query for the newest suspended agents, of the tenant that the address names.
fn asked_of_agents(list: &UiList) -> Vec<(&'static str, String)> {
    let tenant = list.get("tenant_id").map(|tenant| ("tenant_id", tenant.to_owned()));
    [("limit", AGENTS.to_string())].into_iter().chain(tenant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_a_question_has_its_words_and_none_of_its_form() {
        let question = json!({
            "id": "7", "run_id": "8", "task_id": null, "tenant_id": "ann", "agent_name": "github.issue",
            "action_summary": "Which branch?", "server": { "server": "github", "links": [] },
            "parameters": { "type": "object" }, "details": { "a": 1 }, "expires_at": "2027-01-01T00:00:00Z",
        });
        let shown = row(&question);
        assert_eq!((&shown["asked"], &shown["server"]), (&json!("Which branch?"), &json!("github")));
        assert_eq!((shown.get("parameters"), shown.get("details")), (None, None));
        assert_eq!(row(&json!({ "server": null }))["server"], Value::Null);
    }
}
