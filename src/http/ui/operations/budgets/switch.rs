//! The stop switch and disabled tenants: each order has a page that says what it does before it is given.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::words::words;
use crate::http::HttpState;
use crate::http::in_process::CallError;
use crate::http::ui::frame::{UiError, UiForm, UiResult, Visit};

/// Where an order is shown and given.
const PAGE: &str = "/ui/budgets/switch";

words! {
    /// Orders of the operator.
    enum SwitchAction {
        /// Nothing begins any more.
        Stop = "stop",
        /// Stopped work goes on.
        Start = "start",
        /// A tenant does nothing any more, and its tokens may read alone.
        Disable = "disable",
        /// A tenant that was disabled goes on.
        Enable = "enable",
    }
}

impl SwitchAction {
    /// The order of this word.
    fn named(word: &str) -> Result<SwitchAction, UiError> {
        SwitchAction::parse(word).ok_or_else(UiError::not_found)
    }

    /// Whether it can be about every tenant.
    fn is_for_all(self) -> bool {
        matches!(self, SwitchAction::Stop | SwitchAction::Start)
    }

    /// Whether it keeps work from being done.
    fn is_halt(self) -> bool {
        matches!(self, SwitchAction::Stop | SwitchAction::Disable)
    }

    /// The word of the sentence that says that it was done.
    fn done(self) -> &'static str {
        match self {
            SwitchAction::Stop => "stopped",
            SwitchAction::Start => "started",
            SwitchAction::Disable => "disabled",
            SwitchAction::Enable => "enabled",
        }
    }

    /// Title of its page.
    fn title(self, tenant: Option<&str>) -> String {
        let verb = match self {
            SwitchAction::Stop => "Stop",
            SwitchAction::Start => "Start",
            SwitchAction::Disable => "Disable",
            SwitchAction::Enable => "Enable",
        };
        match tenant {
            Some(tenant) => format!("{verb} the tenant {tenant}"),
            None => format!("{verb} all work"),
        }
    }
}

/// The page of an order, and the order.
pub(super) fn routes() -> Router<HttpState> {
    Router::new().route(PAGE, get(show_order).post(give_order))
}

async fn show_order(visit: Visit) -> UiResult {
    let action = SwitchAction::named(visit.query("order").unwrap_or_default())?;
    let tenant = visit.query("tenant_id").map(str::to_owned);
    show(&visit, StatusCode::OK, action, tenant, Value::Null).await
}

async fn give_order(form: UiForm) -> UiResult {
    let action = SwitchAction::named(form.text("order"))?;
    let tenant = form.get("tenant_id").map(str::to_owned);
    match given(&form, action, tenant.as_deref()).await {
        Ok(_) => Ok(form.done(&back(tenant.as_deref()), action.done())),
        Err(error) if error.status == 422 => {
            let refused = json!({ "errors": error.problem["errors"], "reason": form.text("reason") });
            show(&form.visit, StatusCode::UNPROCESSABLE_ENTITY, action, tenant, refused).await
        }
        Err(error) => Err(error.into()),
    }
}

async fn given(form: &UiForm, action: SwitchAction, tenant: Option<&str>) -> Result<Value, CallError> {
    let reason = form.get("reason").filter(|_| action.is_halt());
    let (word, key) = (action.as_str(), form.key());
    match action.is_for_all() {
        true => {
            let mut order = match tenant {
                Some(tenant) => json!({ "tenant_id": tenant }),
                None => json!({ "all": true }),
            };
            if let Some(reason) = reason {
                order["reason"] = reason.into();
            }
            form.visit.post(&["v1", word], order, key).await
        }
        false => {
            let order = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
            form.visit.post(&["v1", "tenants", tenant.unwrap_or_default(), word], order, key).await
        }
    }
}

/// The page that says what an order does; with what was refused, that of one that was not taken.
async fn show(
    visit: &Visit,
    status: StatusCode,
    action: SwitchAction,
    tenant: Option<String>,
    refused: Value,
) -> UiResult {
    if !visit.is_operator() {
        let sentence = "This needs an admin token that may do everything: it concerns the work of tenants.";
        return Err(UiError::new(StatusCode::FORBIDDEN, "Only the operator may do this", sentence));
    }
    if tenant.is_none() && !action.is_for_all() {
        return Err(UiError::not_found());
    }
    let named: Vec<_> = tenant.iter().map(|name| ("tenant_id", name.clone())).collect();
    let page = json!({
        "order": action.as_str(),
        "is_halt": action.is_halt(),
        "tenant": tenant,
        "stats": visit.part(&["v1", "stats"], &named).await,
        "refused": refused,
        "back": back(tenant.as_deref()),
    });
    visit.show_as(status, "budgets_switch.html", action.title(tenant.as_deref()), page).await
}

/// The page from which an order comes.
fn back(tenant: Option<&str>) -> String {
    tenant.map_or_else(|| super::PAGE.to_owned(), super::address_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ui::frame::navigation;

    #[test]
    fn each_order_has_a_sentence_that_says_that_it_was_done() {
        for action in SwitchAction::ALL {
            assert!(navigation::done(action.done()).is_some(), "{action:?}");
            assert_eq!(SwitchAction::named(action.as_str()), Ok(action));
        }
        assert!(SwitchAction::named("delete").is_err());
    }

    #[test]
    fn title_names_the_tenant_or_says_that_it_is_all_work() {
        assert_eq!(SwitchAction::Stop.title(None), "Stop all work");
        assert_eq!(SwitchAction::Disable.title(Some("ann")), "Disable the tenant ann");
        assert_eq!(back(Some("ann")), "/ui/budgets?tenant_id=ann");
        assert_eq!(back(None), "/ui/budgets");
    }
}
