//! Tools: what agents may call, who is offered what and why not, and definitions of MCP servers that wait to be
//! accepted.

mod rows;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::domain::approval::Category;
use crate::http::HttpState;
use crate::http::ui::frame::list::take_items;
use crate::http::ui::frame::{UiError, UiForm, UiList, UiResult, Visit};
use crate::http::ui::operations::tools::rows::{OfferingAgents, groups, is_waiting, shown_rows, tool_href};
use crate::http::ui::operations::whole_list::page_of;
use crate::ports::tool::ToolSource;

/// Address of the list.
const HREF: &str = "/ui/tools";
/// Filters of the list: the first two are the API's, the others this page's.
const FILTERS: [&str; 6] = ["agent", "task_id", "category", "source", "offered", "q"];
/// Definitions to be accepted that the page shows; the others come once these are accepted.
const WAITING: usize = 50;
/// Filters that the API takes.
const OF_API: [&str; 3] = ["agent", "task_id", "tenant_id"];

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route(HREF, get(show_tools))
        .route("/ui/tools/{name}", get(show_tool))
        .route("/ui/tools/{name}/accept", post(accept_tool))
}

async fn show_tools(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let (tools, agents) = tokio::join!(ask(&visit, &list), OfferingAgents::ask(&visit, list.get("tenant_id")));
    let (tools, problem) = tools?;
    let (waiting, there): (Vec<Value>, Vec<Value>) = tools.into_iter().partition(is_waiting);
    let mut tools = page_of(&list, HREF, visit.query("cursor"), shown_rows(&list, &there, &agents));
    tools["problem"] = problem.into();
    let shown: Vec<Value> = waiting.iter().take(WAITING).map(|tool| agents.row(tool)).collect();
    let page = json!({
        "groups": groups(&tools["items"]),
        "tools": tools,
        "waiting": shown,
        "waiting_count": waiting.len(),
        "servers": servers(&visit),
        "agents": agents.names(),
        "categories": Category::WORDS,
        "sources": ToolSource::WORDS,
        "may_accept": visit.is_operator(),
    });
    visit.show("tools.html", "Tools", page).await
}

/// The tools as the API lists them, and in the place of them why it lists none by these filters.
async fn ask(visit: &Visit, list: &UiList) -> Result<(Vec<Value>, Option<String>), UiError> {
    let mut asked = list.filters();
    asked.retain(|(name, _)| OF_API.contains(name));
    match visit.get(&["v1", "tools"], &asked).await {
        Ok(mut answer) => Ok((take_items(&mut answer), None)),
        Err(refused) if matches!(refused.status, 400 | 422) => {
            Ok((Vec::new(), Some(UiError::from(refused).sentence())))
        }
        Err(error) => Err(error.into()),
    }
}

/// The MCP servers of this instance, as `/readyz` tells everybody.
fn servers(visit: &Visit) -> Value {
    serde_json::to_value(visit.state.mcp.health()).unwrap_or_default()
}

async fn show_tool(Path(name): Path<String>, visit: Visit) -> UiResult {
    show(&visit, &name, StatusCode::OK, None).await
}

/// A tool, and why its definition was not accepted.
async fn show(visit: &Visit, name: &str, status: StatusCode, problem: Option<String>) -> UiResult {
    let tenant = visit.query("tenant_id").filter(|_| visit.sees_all());
    let asked: Vec<(&str, String)> = tenant.map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect();
    let path = ["v1", "tools", name];
    let (tool, agents) = tokio::join!(visit.get(&path, &asked), OfferingAgents::ask(visit, tenant));
    let tool = tool?;
    let page = json!({
        "agents": agents.offers_of(name),
        "tool": tool,
        "tenant_id": tenant,
        "accept_href": format!("{}/accept", tool_href(name)),
        "may_accept": visit.is_operator(),
        "problem": problem,
    });
    visit.show_as(status, "tool.html", name, page).await
}

/// Accepts the definition that was looked at, and no other.
async fn accept_tool(Path(name): Path<String>, form: UiForm) -> UiResult {
    let Some(seen) = form.get("definition") else {
        let problem = "The form does not say which definition was looked at. Look at the one below.".to_owned();
        return show(&form.visit, &name, StatusCode::UNPROCESSABLE_ENTITY, Some(problem)).await;
    };
    let body = json!({ "definition": seen });
    match form.visit.post(&["v1", "tools", &name, "accept"], body, form.key()).await {
        Ok(_) => Ok(form.done(&tool_href(&name), "accepted")),
        Err(refused) if refused.status == 409 => {
            let problem = UiError::from(refused).sentence();
            show(&form.visit, &name, StatusCode::CONFLICT, Some(problem)).await
        }
        Err(error) => Err(error.into()),
    }
}
