//! The address of a list: its filters and the place in it, and the links to the next page.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use url::form_urlencoded::Serializer;

use crate::http::in_process::CallError;
use crate::http::ui::frame::failure::UiError;
use crate::http::ui::frame::visit::Visit;

/// Rows of a page.
const ROWS: usize = 50;
/// The filter that only those have who see all tenants.
const TENANT: &str = "tenant_id";
/// Filters that are instants.
const INSTANTS: [&str; 2] = ["since", "until"];
/// Length of an instant as a form sends it without seconds, such as `2026-12-24T15:00`.
const WITHOUT_SECONDS: usize = "2026-12-24T15:00".len();

/// A list as its address asks for it. Filters have the names of the API.
pub struct UiList {
    given: Vec<(&'static str, String)>,
    cursor: Option<String>,
}

impl UiList {
    /// Reads the filters of these names, and `tenant_id` for those who see all tenants. What is empty is no filter.
    pub fn of(visit: &Visit, names: &[&'static str]) -> UiList {
        let tenant = visit.sees_all().then_some(TENANT);
        let given = |name: &'static str| Some((name, visit.query(name)?.to_owned()));
        UiList {
            given: names.iter().copied().chain(tenant).filter_map(given).collect(),
            cursor: visit.query("cursor").map(str::to_owned),
        }
    }

    /// The text of a filter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// The filters alone, as the API takes them.
    pub fn filters(&self) -> Vec<(&'static str, String)> {
        let read = |(name, value): &(&'static str, String)| match INSTANTS.contains(name) {
            true => (*name, instant(value)),
            false => (*name, value.clone()),
        };
        self.given.iter().map(read).collect()
    }

    /// The query for the API: filters, cursor and limit.
    pub fn asked(&self) -> Vec<(&'static str, String)> {
        let cursor = self.cursor.clone().map(|cursor| ("cursor", cursor));
        self.filters().into_iter().chain(cursor).chain([("limit", ROWS.to_string())]).collect()
    }

    /// The page of a list of the API at `path`, for the page of the dashboard at `href`, as [`UiList::view`] has it. A
    /// filter that the API refuses makes an empty page with a `problem`.
    ///
    /// # Errors
    /// The API answers no list.
    pub async fn ask(&self, visit: &Visit, path: &[&str], href: &str) -> Result<Value, UiError> {
        self.answered(href, visit.get(path, &self.asked()).await)
    }

    /// The page of an answer of the API, or of its refusal of a filter, as [`UiList::ask`] has it.
    ///
    /// # Errors
    /// The API answers no list.
    pub fn answered(&self, href: &str, answer: Result<Value, CallError>) -> Result<Value, UiError> {
        match answer {
            Ok(answer) => Ok(self.view(href, answer)),
            Err(refused) if matches!(refused.status, 400 | 422) => {
                let mut view = self.view(href, Value::Null);
                view["problem"] = UiError::from(refused).sentence().into();
                Ok(view)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `{items, filters: {name: text}, is_filtered, next, first, clear}`: addresses of the next and of the first page,
    /// and of the list without filters; `null` where there is none.
    pub fn view(&self, href: &str, mut answer: Value) -> Value {
        let filters: Map<String, Value> =
            self.given.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect();
        let next = answer["next_cursor"].as_str().map(|cursor| self.href(href, Some(cursor)));
        json!({
            "items": take_items(&mut answer),
            "is_filtered": !filters.is_empty(),
            "filters": filters,
            "next": next,
            "first": self.cursor.as_ref().map(|_| self.href(href, None)),
            "clear": href,
        })
    }

    /// An address of the list with these filters.
    pub fn href(&self, href: &str, cursor: Option<&str>) -> String {
        let mut query = Serializer::new(String::new());
        query.extend_pairs(&self.given).extend_pairs(cursor.map(|cursor| ("cursor", cursor)));
        match query.finish() {
            query if query.is_empty() => href.to_owned(),
            query => format!("{href}?{query}"),
        }
    }

    /// Refuses a list whose filters name no thing, where an action would otherwise be one on everything.
    ///
    /// # Errors
    /// There is no filter.
    pub fn refuse_everything(&self) -> Result<(), UiError> {
        match self.given.is_empty() {
            false => Ok(()),
            true => Err(UiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Choose what it is about",
                "Set at least one filter of the list first.",
            )),
        }
    }
}

/// The items of a list, taken out of it.
pub fn take_items(list: &mut Value) -> Vec<Value> {
    match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// An instant as a form sends it, which has no zone, is one of UTC.
fn instant(text: &str) -> String {
    let is_of_form = text.len() >= WITHOUT_SECONDS && text.bytes().all(|b| b.is_ascii_digit() || b"-T:".contains(&b));
    match (is_of_form, text.len()) {
        (true, WITHOUT_SECONDS) => format!("{text}:00Z"),
        (true, _) => format!("{text}Z"),
        (false, _) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(given: &[(&'static str, &str)], cursor: Option<&str>) -> UiList {
        let given = given.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        UiList { given, cursor: cursor.map(str::to_owned) }
    }

    #[test]
    fn filters_stay_in_the_addresses_of_the_other_pages() {
        let view = list(&[("state", "failed"), ("q", "a&b")], Some("c1"))
            .view("/ui/runs", json!({ "items": [1, 2], "next_cursor": "c2" }));
        assert_eq!(view["next"], "/ui/runs?state=failed&q=a%26b&cursor=c2");
        assert_eq!(view["first"], "/ui/runs?state=failed&q=a%26b");
        assert_eq!(
            (&view["items"], &view["filters"]["q"], &view["is_filtered"]),
            (&json!([1, 2]), &json!("a&b"), &json!(true))
        );
        let whole = list(&[], None).view("/ui/runs", json!({ "items": [], "next_cursor": null }));
        assert_eq!(
            (&whole["next"], &whole["first"], &whole["is_filtered"]),
            (&Value::Null, &Value::Null, &json!(false))
        );
    }

    #[test]
    fn instants_of_forms_are_ones_of_utc() {
        let asked = list(&[("since", "2026-12-24T15:00"), ("until", "2026-12-24T15:00:07")], None).asked();
        assert_eq!(asked[0], ("since", "2026-12-24T15:00:00Z".to_owned()));
        assert_eq!(asked[1], ("until", "2026-12-24T15:00:07Z".to_owned()));
        assert_eq!(asked[2], ("limit", "50".to_owned()));
        assert_eq!(instant("2026-12-24T15:00:00+01:00"), "2026-12-24T15:00:00+01:00");
        assert_eq!(instant("yesterday"), "yesterday");
    }
}
