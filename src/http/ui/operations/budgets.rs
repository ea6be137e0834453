//! Budgets: what the runs of a tenant may spend on models and have spent today, and what an operator says about it.
//!
//! A tenant sees its own. An operator sees those of the tenant that the address names, sets and clears them, and finds
//! the stop switch here, whose orders are in `switch`.

mod switch;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Map, Value, json};

use crate::http::HttpState;
use crate::http::in_process::CallError;
use crate::http::ui::frame::meter::day_bars;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::refusal::{fault, shown_in_form};
use crate::http::ui::frame::{UiForm, UiResult, Visit};

/// Where the page is.
const PAGE: &str = "/ui/budgets";
/// Tenants that are listed.
const TENANTS: usize = 200;

/// A limit of a form: its name as the API has it, behind a dot within its part; and its label.
type LimitField = (&'static str, &'static str);

/// The limits of a tenant, part by part.
const OF_TENANT: [(&str, &[LimitField]); 3] = [
    (
        "Of each run",
        &[
            ("run.turns", "Turns of models"),
            ("run.wall_time", "Seconds of execution"),
            ("run.tokens", "Tokens"),
            ("run.cost_usd", "Dollars"),
        ],
    ),
    ("Of each task and day", &[("task.tokens_per_day", "Tokens"), ("task.cost_usd_per_day", "Dollars")]),
    ("Of all runs in a day", &[("tenant.tokens_per_day", "Tokens"), ("tenant.cost_usd_per_day", "Dollars")]),
];
/// The limits of one task.
const OF_TASK: [(&str, &[LimitField]); 2] = [
    (
        "Of each run",
        &[
            ("turns", "Turns of models"),
            ("wall_time", "Seconds of execution"),
            ("tokens", "Tokens"),
            ("cost_usd", "Dollars"),
        ],
    ),
    ("Of all its runs in a day", &[("tokens_per_day", "Tokens"), ("cost_usd_per_day", "Dollars")]),
];

/// The page, its forms, and the switch.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route(PAGE, get(show_budgets))
        .route("/ui/budgets/set", post(set_budgets))
        .route("/ui/budgets/clear", post(clear_budgets))
        .route("/ui/budgets/tasks/set", post(set_task_budget))
        .route("/ui/budgets/tasks/clear", post(clear_task_budget))
        .merge(switch::routes())
}

/// A form that was not taken: which one, why (as [`shown_in_form`] has it), and what was typed.
#[derive(Default)]
struct RefusedForm {
    of_task: bool,
    why: Value,
    typed: Map<String, Value>,
}

async fn show_budgets(visit: Visit) -> UiResult {
    let tenant = visit.query("tenant_id").map(str::to_owned);
    show(&visit, StatusCode::OK, tenant, RefusedForm::default()).await
}

async fn set_budgets(form: UiForm) -> UiResult {
    let tenant = form.text("tenant_id").to_owned();
    let mut said = json!({ "run": {}, "task": {}, "tenant": {} });
    for (name, value) in limits_of(&form, &OF_TENANT) {
        if let Some((part, field)) = name.split_once('.') {
            said[part][field] = value;
        }
    }
    let set = form.visit.put(&["v1", "budgets", &tenant], said).await;
    settled(form, set, tenant, false).await
}

async fn clear_budgets(form: UiForm) -> UiResult {
    let tenant = form.text("tenant_id");
    form.visit.delete(&["v1", "budgets", tenant], &[]).await?;
    Ok(form.done(&address_of(tenant), "removed"))
}

async fn set_task_budget(form: UiForm) -> UiResult {
    let (tenant, task) = (form.text("tenant_id").to_owned(), form.text("task_id").to_owned());
    let said: Map<String, Value> =
        limits_of(&form, &OF_TASK).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    if task.is_empty() {
        return show_again(&form, fault("/task_id", "is missing: the id of a task"), tenant, true).await;
    }
    let set = form.visit.put(&["v1", "budgets", &tenant, "tasks", &task], said.into()).await;
    settled(form, set, tenant, true).await
}

async fn clear_task_budget(form: UiForm) -> UiResult {
    let (tenant, task) = (form.text("tenant_id"), form.text("task_id"));
    form.visit.delete(&["v1", "budgets", tenant, "tasks", task], &[]).await?;
    Ok(form.done(&address_of(tenant), "removed"))
}

/// Leads to the page after a form was taken; one whose limits are refused is shown again with what was typed.
async fn settled(form: UiForm, set: Result<Value, CallError>, tenant: String, of_task: bool) -> UiResult {
    match set {
        Ok(_) => Ok(form.done(&address_of(&tenant), "saved")),
        Err(error) => show_again(&form, shown_in_form(error)?, tenant, of_task).await,
    }
}

/// The page with a form that was refused, as it was typed.
async fn show_again(form: &UiForm, (status, why): (StatusCode, Value), tenant: String, of_task: bool) -> UiResult {
    let typed = form.own_fields().map(|(name, value)| (name.to_owned(), value.into())).collect();
    show(&form.visit, status, Some(tenant), RefusedForm { of_task, why, typed }).await
}

/// The limits that a form has typed, of these fields. A text that is no number stays one: the API says what is right.
fn limits_of<'f>(form: &'f UiForm, parts: &'f [(&str, &[LimitField])]) -> Vec<(&'f str, Value)> {
    let fields = parts.iter().flat_map(|(_, fields)| fields.iter());
    fields.filter_map(|(name, _)| Some((*name, number(form.get(name)?.trim())))).collect()
}

fn number(text: &str) -> Value {
    match (text.parse::<u64>(), text.parse::<f64>()) {
        (Ok(whole), _) => whole.into(),
        (_, Ok(number)) if number.is_finite() => number.into(),
        _ => text.into(),
    }
}

fn address_of(tenant: &str) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    format!("{PAGE}?{}", query.append_pair("tenant_id", tenant).finish())
}

/// The page of this tenant; `None`: of the reader's own, or for those who see all the list of tenants.
async fn show(visit: &Visit, status: StatusCode, tenant: Option<String>, refused: RefusedForm) -> UiResult {
    // one that is another's is not there, says the API
    let named: Vec<_> = tenant.iter().map(|name| ("tenant_id", name.clone())).collect();
    let tenant = tenant.or_else(|| visit.caller.scope.tenant().map(str::to_owned));
    let content = async {
        Ok::<Value, CallError>(match &tenant {
            None => json!({ "tenants": tenants(visit).await }),
            Some(_) => of_tenant(visit, visit.get(&["v1", "budgets"], &named).await?, &refused).await,
        })
    };
    let (stats, content) = tokio::join!(visit.part(&["v1", "stats"], &named), content);
    let mut page = content?;
    page["tenant"] = json!(tenant);
    page["halts"] = stats["answer"]["halts"].clone();
    page["more_halts"] = stats["answer"]["more_halts"].clone();
    page["can_set"] = visit.is_operator().into();
    page["problem"] = refused.why["problem"].clone();
    page["faults"] = refused.why["faults"].clone();
    visit.show_as(status, "budgets.html", "Budgets", page).await
}

/// Tenants that have used a model or a tool in the last days, each with its spending today: `{answer}` or `{problem}`.
async fn tenants(visit: &Visit) -> Value {
    let by = |from: Option<String>| {
        let from = from.map(|from| ("from", from));
        [("by", "tenant".to_owned()), ("limit", TENANTS.to_string())].into_iter().chain(from).collect::<Vec<_>>()
    };
    let (lately, today) = (by(None), by(Some(visit.now.date_naive().to_string())));
    let usage = ["v1", "stats", "usage"];
    let (mut lately, today) = tokio::join!(visit.part(&usage, &lately), visit.part(&usage, &today));
    let rows = lately.pointer_mut("/answer/items").and_then(Value::as_array_mut).into_iter().flatten();
    for row in rows {
        let of_today = today["answer"]["items"].as_array().into_iter().flatten().find(|sum| sum["key"] == row["key"]);
        let tokens = |sum: &Value| {
            sum["input_tokens"].as_i64().unwrap_or_default() + sum["output_tokens"].as_i64().unwrap_or_default()
        };
        row["tokens_lately"] = tokens(row).into();
        row["tokens_today"] = of_today.map_or(0, tokens).into();
        row["cost_today"] = of_today.map_or(json!(0), |sum| sum["cost_usd"].clone());
    }
    lately
}

/// A tenant's budgets, as the page shows them.
async fn of_tenant(visit: &Visit, budgets: Value, refused: &RefusedForm) -> Value {
    let asked_task = visit.query("task_id").unwrap_or_default();
    let typed_task = refused.typed.get("task_id").and_then(Value::as_str);
    let task = typed_task.unwrap_or(asked_task);
    let (of_tenant, of_task) = match refused.of_task {
        false => (Some(&refused.typed), None),
        true => (None, Some(&refused.typed)),
    };
    let tasks = tasks_of(visit, &budgets).await;
    let said = |name: &str| budgets["overrides"].pointer(&format!("/{}", name.replace('.', "/"))).cloned();
    let own = budgets["task_overrides"].as_array().into_iter().flatten().find(|own| own["task_id"] == task);
    let said_of_task = |name: &str| own.map(|own| own["budget"][name].clone());
    json!({
        "day": budgets["day"],
        "bars": day_bars(&budgets["today"], &budgets["limits"]["tenant"]),
        "run": budgets["limits"]["run"],
        "tasks": tasks,
        "forms": {
            "tenant": groups(&OF_TENANT, of_tenant.filter(|typed| !typed.is_empty()), said),
            "task": groups(&OF_TASK, of_task, said_of_task),
            "task_id": task,
        },
    })
}

/// Tasks that have spent something today or have limits of their own: `[{task_id, name, bars, own}]`.
async fn tasks_of(visit: &Visit, budgets: &Value) -> Vec<Value> {
    let list = |name: &str| budgets[name].as_array().cloned().unwrap_or_default();
    let (spent, own) = (list("tasks"), list("task_overrides"));
    let is_idle = |own: &&Value| !spent.iter().any(|task| task["task_id"] == own["task_id"]);
    let rows: Vec<&Value> = spent.iter().chain(own.iter().filter(is_idle)).collect();
    let names = task_names(visit, rows.iter().copied()).await;
    let row = |task: &Value| {
        let id = task["task_id"].as_str().unwrap_or_default();
        let own = own.iter().find(|own| own["task_id"] == id).map(|own| &own["budget"]);
        let mut limits = budgets["limits"]["task"].clone();
        let said = own.and_then(Value::as_object).into_iter().flatten();
        for (name, limit) in said.filter(|(_, limit)| !limit.is_null()) {
            limits[name] = limit.clone();
        }
        let bars = day_bars(task, &limits);
        json!({ "task_id": id, "name": names[id], "bars": bars, "own": own })
    };
    rows.into_iter().map(row).collect()
}

/// The fields of a form, each with what was typed, or else what holds: `[{legend, fields: [{name, label, value}]}]`.
fn groups(
    parts: &[(&str, &[LimitField])],
    typed: Option<&Map<String, Value>>,
    said: impl Fn(&str) -> Option<Value>,
) -> Vec<Value> {
    let value = |name: &str| match typed {
        Some(typed) => typed.get(name).and_then(Value::as_str).unwrap_or_default().to_owned(),
        None => said(name).filter(|value| !value.is_null()).map_or_else(String::new, |value| value.to_string()),
    };
    let field = |(name, label): &LimitField| json!({ "name": name, "label": label, "value": value(name) });
    let group = |(legend, fields): &(&str, &[LimitField])| {
        let fields: Vec<Value> = fields.iter().map(field).collect();
        json!({ "legend": legend, "fields": fields })
    };
    parts.iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_numbers_are_numbers_and_other_texts_are_left_to_the_api() {
        assert_eq!(number("12"), json!(12));
        assert_eq!(number("2.5"), json!(2.5));
        assert_eq!((number("-1"), number("inf"), number("ten")), (json!(-1.0), json!("inf"), json!("ten")));
    }

    #[test]
    fn form_shows_what_was_typed_before_what_holds() {
        let said = |name: &str| (name == "turns").then(|| json!(5));
        let first = |groups: Vec<Value>| groups[0]["fields"][0].clone();
        let held = first(groups(&OF_TASK, None, said));
        assert_eq!(held, json!({ "name": "turns", "label": "Turns of models", "value": "5" }));
        let typed = Map::from_iter([("turns".to_owned(), json!("many"))]);
        assert_eq!(first(groups(&OF_TASK, Some(&typed), said))["value"], "many");
    }

    #[test]
    fn address_of_a_tenant_holds_any_name() {
        assert_eq!(address_of("a&b c"), "/ui/budgets?tenant_id=a%26b+c");
    }
}
