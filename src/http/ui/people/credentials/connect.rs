//! The page with the link to a provider, at which a person connects an account.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::domain::credential::PRIMARY;
use crate::http::HttpState;
use crate::http::in_process::CallError;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::people::credentials::named_tenant;
use crate::http::ui::people::refusal::shown_in_form;

/// Where a service is unknown.
const UNKNOWN: &str = "The operator has described no service of this name in [oauth.*]. A key or a password is stored \
                       with `reveille credential set`.";

/// The page.
pub(super) fn routes() -> Router<HttpState> {
    Router::new().route("/ui/credentials/connect", get(show_connect))
}

/// Asks for the service and the account; with both it shows the link. Nothing is stored before the person agrees at the
/// provider.
async fn show_connect(visit: Visit) -> UiResult {
    let account = visit.query("account_name").unwrap_or(PRIMARY);
    let mut page = json!({
        "service": visit.query("service"), "account_name": account, "tenant_id": visit.query("tenant_id"),
        "may_write": visit.holds(Permission::CredentialsWrite),
    });
    let mut status = StatusCode::OK;
    if let Some(service) = visit.query("service") {
        match visit.get(&["v1", "credentials", service, account, "connect"], &named_tenant(&visit)).await {
            Ok(link) => page["link"] = link,
            Err(error) => (status, page["refused"]) = refusal(error)?,
        }
    }
    visit.show_as(status, "connect_account.html", "Connect an account", page).await
}

/// Why there is no link, for the form.
fn refusal(error: CallError) -> Result<(StatusCode, Value), UiError> {
    match error.status {
        404 => Ok((StatusCode::NOT_FOUND, json!({ "problem": UNKNOWN }))),
        503 => {
            let why = UiError::from(error).sentence();
            Ok((StatusCode::SERVICE_UNAVAILABLE, json!({ "problem": why })))
        }
        _ => shown_in_form(error),
    }
}
