//! Usage: tokens and cost by day, task, model, tool or tenant, as charts and as a table of the same figures.

mod chart;
mod range;

use axum::Router;
use axum::routing::get;
use serde_json::{Map, Value, json};

use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::list::take_items;
use crate::http::ui::frame::names::names_of;
use crate::http::ui::frame::{UiError, UiList, UiResult, Visit};
use crate::http::ui::operations::usage::chart::{columns, lines};
use crate::http::ui::operations::usage::range::UsageRange;
use crate::store::{UsageGroup, UsageOrder};

/// Address of the page.
const HREF: &str = "/ui/usage";
/// Filters of the page, with the names of the API.
const FILTERS: [&str; 4] = ["by", "from", "until", "task_id"];
/// Rows that the API answers at most: more than the days of a range.
const MOST_ROWS: usize = 200;
/// The task in whose place runs without one are counted.
const NO_TASK: &str = "00000000-0000-0000-0000-000000000000";
/// Figures that are added up below the table.
const FIGURES: [&str; 12] = [
    "turns",
    "model_ms",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost_usd",
    "tool_calls",
    "tool_failures",
    "tool_ms",
    "result_chars",
];

/// The page.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route(HREF, get(show_usage))
}

async fn show_usage(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let range = UsageRange::of(list.get("from"), list.get("until"), visit.now.date_naive());
    let by = list.get("by").unwrap_or(UsageGroup::Day.as_str());
    let mut usage = ask(&visit, &list, &range, by).await?;
    let group = UsageGroup::parse(by);
    let rows = take_items(&mut usage);
    let names = match group {
        Some(UsageGroup::Task) => {
            let ids: Vec<&str> = rows.iter().filter_map(|row| row["key"].as_str()).collect();
            names_of(&visit, &ids).await
        }
        _ => Map::new(),
    };
    let mut rows: Vec<Value> = rows.into_iter().map(|row| name_row(group, &names, row)).collect();
    if by == UsageGroup::Day.as_str() && !rows.is_empty() {
        rows = range.fill(rows);
    }
    let page = json!({
        "charts": charts(by, &rows),
        "total": total(&rows),
        "rows": rows,
        "usage": usage,
        "by": by,
        "groups": UsageGroup::WORDS,
        "from": range.from,
        "until": range.until,
        "last": range.last_day(),
        "ranges": ranges(by, &range),
    });
    visit.show("usage.html", "Usage", page).await
}

/// The sums of the API. Days come on one page, all others fifty to a page, the largest first.
async fn ask(visit: &Visit, list: &UiList, range: &UsageRange, by: &str) -> Result<Value, UiError> {
    let mut asked = list.asked();
    asked.retain(|(name, _)| !matches!(*name, "from" | "until"));
    if by == UsageGroup::Day.as_str() {
        asked.retain(|(name, _)| !matches!(*name, "limit" | "cursor"));
        asked.push(("limit", MOST_ROWS.to_string()));
    } else {
        asked.push(("order", UsageOrder::Largest.as_str().to_owned()));
    }
    asked.extend(range.asked());
    list.answered(HREF, visit.get(&["v1", "stats", "usage"], &asked).await)
}

/// The row with a name for people, and a link: `label` and `href`. `names` has those of tasks; of one that is gone, or
/// that the reader may not see, the id is shown.
fn name_row(by: Option<UsageGroup>, names: &Map<String, Value>, mut row: Value) -> Value {
    let key = row["key"].as_str().unwrap_or_default().to_owned();
    let named = names.get(&key).and_then(Value::as_str);
    let (label, href) = match (by, named) {
        (Some(UsageGroup::Task), Some(name)) => (name.to_owned(), Some(address(&["ui", "tasks", &key], &[]))),
        (Some(UsageGroup::Task), None) if key == NO_TASK => ("no task".to_owned(), None),
        (Some(UsageGroup::Tool), _) => (key.clone(), Some(address(&["ui", "tools", &key], &[]))),
        _ => (key, None),
    };
    row["label"] = label.into();
    row["href"] = href.into();
    row
}

/// Two charts of the rows: tokens and cost, or for tools their calls and their time.
fn charts(by: &str, rows: &[Value]) -> Vec<Value> {
    let tokens = |row: &Value| figure(row, "input_tokens") + figure(row, "output_tokens");
    let draw: fn(&str, &str, &[(&str, f64)]) -> Value = if by == UsageGroup::Day.as_str() { columns } else { lines };
    if rows.is_empty() {
        return Vec::new();
    }
    if by == UsageGroup::Tool.as_str() {
        let calls = |row: &Value| figure(row, "tool_calls");
        let took = |row: &Value| figure(row, "tool_ms");
        return vec![draw("Calls", "count", &measured(rows, &calls)), draw("Time", "ms", &measured(rows, &took))];
    }
    let cost = |row: &Value| figure(row, "cost_usd");
    vec![draw("Tokens", "count", &measured(rows, &tokens)), draw("Cost", "usd", &measured(rows, &cost))]
}

/// The label of each row, and what is measured of it.
fn measured<'a>(rows: &'a [Value], measure: &dyn Fn(&Value) -> f64) -> Vec<(&'a str, f64)> {
    rows.iter().map(|row| (row["label"].as_str().unwrap_or_default(), measure(row))).collect()
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_default()
}

/// The sum of each figure over the rows.
fn total(rows: &[Value]) -> Value {
    FIGURES.iter().map(|name| ((*name).to_owned(), rows.iter().map(|row| figure(row, name)).sum::<f64>())).collect()
}

/// Addresses of the last days.
fn ranges(by: &str, range: &UsageRange) -> Vec<Value> {
    let href = |days: i64| address(&["ui", "usage"], &[("by", by.to_owned()), ("from", range.days_before(days))]);
    [7, 30, 90].map(|days| json!({ "days": days, "href": href(days) })).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, input: i64, cost: f64, calls: i64) -> Value {
        json!({ "label": label, "input_tokens": input, "output_tokens": 5, "cost_usd": cost, "tool_calls": calls })
    }

    #[test]
    fn row_of_a_task_has_its_name_and_one_that_is_gone_its_id() {
        let names = Map::from_iter([("a".to_owned(), json!("Mail"))]);
        let shown = |by, key: &str| {
            let row = name_row(Some(by), &names, json!({ "key": key }));
            (row["label"].clone(), row["href"].clone())
        };
        assert_eq!(shown(UsageGroup::Task, "a"), (json!("Mail"), json!("/ui/tasks/a")));
        assert_eq!(shown(UsageGroup::Task, "b"), (json!("b"), Value::Null));
        assert_eq!(shown(UsageGroup::Task, NO_TASK), (json!("no task"), Value::Null));
        assert_eq!(shown(UsageGroup::Tool, "a"), (json!("a"), json!("/ui/tools/a")));
        assert_eq!(shown(UsageGroup::Model, "a"), (json!("a"), Value::Null));
    }

    #[test]
    fn figures_are_added_up_and_drawn_by_what_they_are_grouped_by() {
        let rows = [row("a", 10, 0.5, 1), row("b", 20, 0.25, 2)];
        let total = total(&rows);
        assert_eq!(
            (&total["input_tokens"], &total["cost_usd"], &total["tool_calls"]),
            (&json!(30.0), &json!(0.75), &json!(3.0))
        );
        let titles = |by: &str| charts(by, &rows).iter().map(|chart| chart["title"].clone()).collect::<Vec<_>>();
        assert_eq!(titles("day"), ["Tokens", "Cost"]);
        assert_eq!(titles("tool"), ["Calls", "Time"]);
        assert!(charts("day", &[]).is_empty());
        assert_eq!(charts("model", &rows)[0]["bars"][0]["value"], 25.0, "the largest first");
    }
}
