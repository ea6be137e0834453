//! The log of the bus: what has come, newest first, what it did, and publishing by hand.

pub(in crate::http::ui::work) mod data;
pub(in crate::http::ui::work) mod line;
mod one;
mod publish;

use axum::Router;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::ui::frame::render::secured;
use crate::http::ui::frame::{UiList, UiResult, Visit};
use crate::http::ui::work::events::line::{href, line};

/// Address of the list.
const HREF: &str = "/ui/events";
/// Filters of the list, as the API has them.
const FILTERS: [&str; 5] = ["source", "type", "since", "until", "order"];

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/events", get(show_log))
        .route("/ui/events/live", get(follow))
        .route("/ui/events/find", get(find))
        .route("/ui/events/publish", get(publish::show).post(publish::publish))
        .route("/ui/events/{id}", get(one::show))
}

async fn show_log(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let mut asked = list.asked();
    if list.get("order").is_none() {
        asked.push(("order", "newest".to_owned()));
    }
    let mut page = list.answered(HREF, visit.get(&["v1", "events"], &asked).await)?;
    if let Value::Array(events) = &mut page["items"] {
        events.iter_mut().for_each(|event| *event = line(event));
    }
    // what comes is the first of the first page, unless that ends at an instant
    let is_head = page["first"].is_null() && list.get("order") != Some("oldest") && list.get("until").is_none();
    page["is_live"] = is_head.into();
    page["may_publish"] = visit.holds(Permission::EventsPublish).into();
    visit.show("events.html", "Events", json!({ "list": page })).await
}

/// The stream of the bus, by which the list knows that it is old.
async fn follow(visit: Visit, headers: HeaderMap) -> UiResult {
    visit.stream(&["v1", "events", "stream"], &headers).await
}

/// Leads to the page of an event that is looked for by its id.
async fn find(visit: Visit) -> UiResult {
    let given = |name: &str| visit.query(name).map(str::trim).filter(|text| !text.is_empty());
    let place = match given("id") {
        Some(id) => href(id, given("source"), given("tenant_id")),
        None => HREF.to_owned(),
    };
    Ok(secured(Redirect::to(&place).into_response()))
}
