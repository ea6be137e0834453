//! The page with the link to a provider, at which a person connects an account.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::domain::credential::PRIMARY;
use crate::http::HttpState;
use crate::http::in_process::CallError;
use crate::http::ui::frame::refusal::{fault, shown_in_form};
use crate::http::ui::frame::{UiError, UiForm, UiResult, Visit};

/// Where a service is unknown.
const UNKNOWN: &str = "The operator has described no service of this name in [oauth.*]. A key or a password is stored \
                       with `reveille credential set`.";

/// The page.
pub(super) fn routes() -> Router<HttpState> {
    Router::new().route("/ui/credentials/connect", get(show_connect).post(make_link))
}

/// The account that the page is about, as it was typed.
struct NamedAccount<'a> {
    service: Option<&'a str>,
    account: &'a str,
    tenant: Option<&'a str>,
}

impl<'a> NamedAccount<'a> {
    fn of(text: impl Fn(&str) -> Option<&'a str>) -> NamedAccount<'a> {
        NamedAccount {
            service: text("service"),
            account: text("account_name").unwrap_or(PRIMARY),
            tenant: text("tenant_id"),
        }
    }
}

/// Asks for the service and the account; the address may have them.
async fn show_connect(visit: Visit) -> UiResult {
    show(&visit, StatusCode::OK, &NamedAccount::of(|name| visit.query(name)), Value::Null, Value::Null).await
}

/// Makes the link. The provider may be looked for, and this service made known there, so it is no page that is only
/// looked at. Nothing is stored before the person agrees at the provider.
async fn make_link(form: UiForm) -> UiResult {
    let visit = &form.visit;
    visit.caller.may_write(&visit.state).await?;
    let named = NamedAccount::of(|name| form.get(name));
    let Some(service) = named.service else {
        let (status, refused) = fault("/service", "is missing: its name in `[oauth.*]`");
        return show(visit, status, &named, Value::Null, refused).await;
    };
    let tenant: Vec<(&str, String)> = named.tenant.map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect();
    match visit.get(&["v1", "credentials", service, named.account, "connect"], &tenant).await {
        Ok(link) => show(visit, StatusCode::OK, &named, link, Value::Null).await,
        Err(error) => {
            let (status, refused) = refusal(error)?;
            show(visit, status, &named, Value::Null, refused).await
        }
    }
}

/// The page with the link, or with why there is none.
async fn show(visit: &Visit, status: StatusCode, named: &NamedAccount<'_>, link: Value, refused: Value) -> UiResult {
    let page = json!({
        "service": named.service, "account_name": named.account, "tenant_id": named.tenant,
        "link": link, "refused": refused, "may_write": visit.holds(Permission::CredentialsWrite),
    });
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
