//! All facts of a tenant as a file: a JSON list, sent while it is read.

use std::io;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use futures::stream;
use serde_json::Value;

use crate::http::in_process::CallError;
use crate::http::streaming::limiter;
use crate::http::ui::frame::render::secured;
use crate::http::ui::frame::{UiError, UiList, UiResult, Visit};
use crate::http::ui::people::memory::FILTERS;

/// Facts that are asked for at once: the most of a page of the API.
const AT_ONCE: usize = 200;
/// Name of the file.
const FILE: &str = "attachment; filename=\"facts.json\"";

/// A list that is being sent.
struct FactExport {
    visit: Visit,
    list: UiList,
    cursor: Option<String>,
    /// A fact was written before.
    has_begun: bool,
}

/// The facts that the filters of the address mean; an admin names a tenant.
pub async fn download(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    if visit.sees_all() && list.get("tenant_id").is_none() {
        let why = "Facts are exported for one tenant at a time. Filter the list by a tenant first.";
        return Err(UiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Name a tenant", why));
    }
    let export = FactExport { visit, list, cursor: None, has_begun: false };
    let first = export.page().await?;
    let parts = stream::try_unfold(Some((export, first)), |state| async move {
        let Some((export, page)) = state else { return Ok(None) };
        export.part(page).await.map(Some)
    });
    // in a task of its own: a reader that stops reading would keep a connection to the database
    let mut response = secured(Body::from_stream(limiter::detached((), parts)).into_response());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(FILE));
    Ok(response)
}

impl FactExport {
    /// The next page of the list.
    async fn page(&self) -> Result<Value, CallError> {
        let mut asked = self.list.filters();
        asked.push(("limit", AT_ONCE.to_string()));
        asked.extend(self.cursor.clone().map(|cursor| ("cursor", cursor)));
        self.visit.get(&["v1", "facts"], &asked).await
    }

    /// The text of a page, and what is sent after it. A list that can't be read to its end breaks off, and is no JSON.
    async fn part(mut self, page: Value) -> io::Result<(String, Option<(FactExport, Value)>)> {
        let mut text = self.text_of(&page);
        self.cursor = page["next_cursor"].as_str().map(str::to_owned);
        if self.cursor.is_none() {
            text.push_str(if self.has_begun { "\n]\n" } else { "[]\n" });
            return Ok((text, None));
        }
        if !self.visit.is_still_good().await.map_err(io::Error::other)? {
            return Err(io::Error::other("the session has ended"));
        }
        let next = self.page().await.map_err(io::Error::other)?;
        Ok((text, Some((self, next))))
    }

    fn text_of(&mut self, page: &Value) -> String {
        let mut text = String::new();
        for fact in page["items"].as_array().into_iter().flatten() {
            append(&mut text, fact, &mut self.has_begun);
        }
        text
    }
}

/// Adds an item to a list, behind what stands between two.
fn append(text: &mut String, item: &Value, has_begun: &mut bool) {
    text.push_str(if *has_begun { ",\n" } else { "[\n" });
    text.push_str(&item.to_string());
    *has_begun = true;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_of_several_pages_are_one_list() {
        let (mut text, mut has_begun) = (String::new(), false);
        let items = [json!({ "text": "a" }), json!({ "text": "b\n" })];
        items.iter().for_each(|item| append(&mut text, item, &mut has_begun));
        text.push_str("\n]\n");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!(items));
    }
}
